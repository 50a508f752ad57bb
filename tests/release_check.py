"""``make release-check``: the wheel and the sdist are complete, and the tutorials run with either of them alone.

Each package is built, then installed in an environment of its own, outside the checkout. There the commands of README
and of the tutorials run, every public name is imported, and the error of ``thalweg bench`` names a checkout. The long
description has no link and no picture that leads into the repository. The exit status is 1 if a check fails.
"""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs/tutorials").glob("*-*.md")))
NEEDED = ("pytest", "markdown-it-py", "psutil")  # by the runner of pages
INTERNAL_LINK = re.compile(r"\]\((?!https?:|#)[^)]*\)")
IMPORT_ALL = "import thalweg\nfor name in thalweg.__all__: getattr(thalweg, name)\nprint(thalweg.__version__)"


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """Run a command and return the output. If the command fails, print the output and raise CalledProcessError."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        done.check_returncode()
    return done.stdout


def environment(folder: Path) -> Path:
    """Make a virtual environment, and return its Python."""
    run(sys.executable, "-I", "-m", "venv", folder)
    return folder / "bin/python"


def build(folder: Path) -> tuple[Path, Path]:
    """Build the wheel and the sdist, and return their paths."""
    python = environment(folder / "build")
    run(python, "-m", "pip", "install", "-q", "build")
    run(python, "-m", "build", "--outdir", folder / "dist", ROOT)
    (wheel,), (sdist,) = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return wheel, sdist


def faults_of(wheel: Path) -> list[str]:
    """Return the faults of a wheel's files and metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = email.message_from_bytes(archive.read(next(name for name in names if name.endswith("/METADATA"))))
    links = INTERNAL_LINK.findall(metadata.get_payload())
    faults = [f"the long description links into the repository: {link}" for link in links]
    faults += [f"the wheel has {name}" for name in names if not name.startswith(("thalweg/", "thalweg-"))]
    pythons = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    if missing := set(pythons) - set(metadata.get_all("Classifier", [])):
        faults.append(f"the wheel lacks the classifier {sorted(missing)[0]}")
    return faults


def check(package: Path, folder: Path) -> None:
    """Install a package in a fresh environment, and run the pages there."""
    python = environment(folder / package.suffix.strip("."))
    work = folder / f"work{package.suffix}"
    run(python, "-m", "pip", "install", "-q", f"{package}[all]", *NEEDED)
    for name in PAGES:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, work / name)
    for name in ("pages.py", "patience.py"):
        shutil.copy(ROOT / "tests" / name, work / name)
    version = run(python, "-I", "-c", IMPORT_ALL, cwd=work).strip()
    size = run("du", "-sm", python.parent.parent).split()[0]
    print(f"{package.name}: version {version}, {size} MB with all extras", flush=True)
    *printed, status = run("sh", "-c", '"$0" -I -m thalweg bench tree 2>&1; echo $?', python, cwd=work).splitlines()
    if status != "2" or len(printed) != 1 or "in a checkout" not in printed[0]:
        raise SystemExit(f"release-check: thalweg bench says {printed}, and ends with {status}")
    print(run(python, "pages.py", *PAGES, cwd=work), end="", flush=True)


def main(words: Sequence[str]) -> int:
    """Check the packages, and return the exit status."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            wheel, sdist = build(folder)
            if faults := faults_of(wheel):
                print("\n".join(faults), file=sys.stderr)
                return 1
            for package in (wheel, sdist):
                check(package, folder)
        except subprocess.CalledProcessError as error:
            print(f"release-check: {' '.join(map(str, error.cmd))} has ended with {error.returncode}", file=sys.stderr)
            return 1
    print("release-check: the wheel and the sdist are complete")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
