"""Deliberate faults in the core, one at a time, and which test finds each: ``make mutants``.

Each of ``mutants.toml`` is an edit of one place, made in a copy of the package under which the core's tests then run,
those of the part first. ``python tests/mutants.py`` makes all of them, ``… 3 7`` these, ``--list`` only says what they
are. The exit status is 1 when one survives, or when a text is not found exactly once.
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
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
COPIED = "middleware", "emulation", "experiments", "operators", "tests", "thalweg", "docs"
CORE, CASES = "middleware/core/", "tests/middleware/core/"
FAULTS = "tests/experiments/faults/test_faults.py"
ALL = FAULTS, CASES, "tests/emulation/virtual"


class Mutant(NamedTuple):
    """``old`` becomes ``new`` in ``file``, which ``breaks`` a promise; ``first`` are the tests of that part."""

    file: str
    old: str
    new: str
    breaks: str
    first: str


MUTANTS = [Mutant(**one) for one in tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["mutant"]]


def edited(mutant: Mutant, root: Path = ROOT) -> str:
    """The text of its file with the fault. Raises ValueError where the old text is not there exactly once."""
    text = (root / CORE / mutant.file).read_text()
    if (found := text.count(mutant.old)) != 1:
        raise ValueError(f"{CORE}{mutant.file}: {found} times {mutant.old!r}, for {mutant.breaks!r}; mend the list")
    return text.replace(mutant.old, mutant.new)


def killer(folder: Path, mutant: Mutant, seconds: float) -> str:
    """The first test that fails with it, empty when none does within ``seconds``."""
    path = folder / CORE / mutant.file
    kept = path.read_text()
    path.write_text(edited(mutant, folder))
    options = "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-k", "not sockets", "-m", "not spark"
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        for tests in ((CASES + mutant.first,), ALL):
            command = [sys.executable, "-m", "pytest", *options, *tests]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds)
            if done.returncode:
                found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
                return found[1].removeprefix("tests/") if found else done.stdout[-300:]
    except subprocess.TimeoutExpired:
        return ""
    finally:
        path.write_text(kept)
    return ""


def main() -> int:
    """All that were asked for, and the score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("numbers", nargs="*", type=int, help="of these alone")
    parser.add_argument("--seconds", type=float, default=900.0, help="that the tests of a part, and then all, may take")
    parser.add_argument("--list", action="store_true", help="only say what they are")
    asked = parser.parse_args()
    chosen = [(number, one) for number, one in enumerate(MUTANTS, 1) if not asked.numbers or number in asked.numbers]
    for _, mutant in chosen:
        edited(mutant)
    killed = 0
    with tempfile.TemporaryDirectory(prefix="thalweg-mutants-") as name:
        folder = Path(name)
        for part in COPIED:
            shutil.copytree(ROOT / part, folder / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (*ROOT.glob("*.md"), ROOT / "pyproject.toml", ROOT / "Makefile"):
            shutil.copy(path, folder)
        for number, mutant in chosen:
            told = f"{number:2} {mutant.file:26} {mutant.breaks}"
            if asked.list:
                print(told)
                continue
            begun = time.monotonic()
            by = killer(folder, mutant, asked.seconds)
            killed += bool(by)
            print(f"{told}: {by or 'SURVIVED'} ({time.monotonic() - begun:.0f} s)", flush=True)
    if not asked.list:
        print(f"{killed} of {len(chosen)} found")
    return 0 if asked.list or killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
