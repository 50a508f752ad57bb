"""Deliberate faults in the code, one at a time, and the test that finds each: ``make mutants``.

Each entry of ``mutants.toml`` is an edit of one place in any file of the project. It is made in a copy of the project,
in which the tests that the entry names run. If none of these fails and the file is one of the core, all tests of the
core run as well. ``python tests/mutants.py`` makes all edits, ``… 3 7`` makes these, ``… journal`` makes those of files
with that word in their path, and ``--list`` shows them. The exit status is 1 if a fault survives, if a text is not
found exactly once, or if a named test fails in a copy without any fault.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
COPIED = "middleware", "emulation", "experiments", "operators", "benchmarks", "tests", "thalweg", "docs"
CORE = "middleware/core/"
FAULTS = "tests/experiments/faults/test_faults.py"
OF_THE_CORE = "-k", "not sockets", FAULTS, "tests/middleware/core/", "tests/emulation/virtual"


class Mutant(NamedTuple):
    """An edit: ``old`` becomes ``new`` in ``file``, which ``breaks`` a promise that ``tests`` check."""

    file: str
    old: str
    new: str
    breaks: str
    tests: list[str]


MUTANTS = [Mutant(**entry) for entry in tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["mutant"]]


def edited(mutant: Mutant, root: Path = ROOT) -> str:
    """Return the text of the mutant's file with the fault. Raise ValueError unless the old text is there once."""
    text = (root / mutant.file).read_text()
    if (count := text.count(mutant.old)) != 1:
        raise ValueError(f"{mutant.file}: {count} times {mutant.old!r}, for {mutant.breaks!r}; mend the list")
    return text.replace(mutant.old, mutant.new)


def failing(folder: Path, tests: Iterable[str], seconds: float) -> str:
    """Return the first test that fails in a copy of the project, empty if none does within ``seconds``."""
    options = "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-m", "not spark"
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return ""
    if not done.returncode:
        return ""
    name = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return name[1] if name else done.stdout[-300:] + done.stderr[-300:]


def killer(folder: Path, mutant: Mutant, seconds: float) -> str:
    """Return the first test that fails with the fault, empty if none does, or if that test fails without it as well."""
    path = folder / mutant.file
    original = path.read_text()
    path.write_text(edited(mutant, folder))
    try:
        if killed_by := failing(folder, mutant.tests, seconds):
            return killed_by
        killed_by = failing(folder, OF_THE_CORE, seconds) if mutant.file.startswith(CORE) else ""
    finally:
        path.write_text(original)
    return "" if killed_by and failing(folder, (killed_by,), seconds) else killed_by


def copy_project(folder: Path) -> None:
    """Copy into a folder what the tests need."""
    for part in COPIED:
        shutil.copytree(ROOT / part, folder / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"):
        shutil.copy(path, folder)


def main() -> int:
    """Make the edits that the command line asks for, and print the score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("which", nargs="*", help="numbers, or words in the paths of files; all edits without any")
    parser.add_argument("--seconds", type=float, default=900.0, help="how long the tests of one edit may take")
    parser.add_argument("--list", action="store_true", help="only show the edits")
    arguments = parser.parse_args()
    chosen = [
        (number, mutant)
        for number, mutant in enumerate(MUTANTS, 1)
        if not arguments.which
        or any(number == int(word) if word.isdigit() else word in mutant.file for word in arguments.which)
    ]
    for number, mutant in chosen:
        edited(mutant)
        if arguments.list:
            print(f"{number:3} {mutant.file:48} {mutant.breaks}")
    if arguments.list:
        return 0
    killed = 0
    with tempfile.TemporaryDirectory(prefix="thalweg-mutants-") as name:
        folder = Path(name)
        copy_project(folder)
        named = dict.fromkeys(test for _, mutant in chosen for test in mutant.tests)
        if broken := failing(folder, named, arguments.seconds):
            print(f"{broken} fails without any fault; mend it first")
            return 1
        for number, mutant in chosen:
            begun = time.monotonic()
            killed_by = killer(folder, mutant, arguments.seconds)
            killed += bool(killed_by)
            took_s = time.monotonic() - begun
            verdict = killed_by.removeprefix("tests/") or "SURVIVED"
            print(f"{number:3} {mutant.file:48} {mutant.breaks}: {verdict} ({took_s:.0f} s)", flush=True)
    print(f"{killed} of {len(chosen)} found")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
