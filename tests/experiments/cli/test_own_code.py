"""Code in the working directory that a command line names, as the README describes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

from thalweg.experiments.cli.options import find_own_code

ROOT = Path(__file__).parents[3]
PLANNERS = """
from helpers_of_mine import START
from thalweg.middleware.planning import OneShot

def Mine():
    return OneShot(start=START)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a working directory with a planner and the module that the planner imports."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "planners_of_mine.py").write_text(PLANNERS, encoding="utf-8")
    (mine / "helpers_of_mine.py").write_text("START = 'client'\n", encoding="utf-8")
    return mine


def thalweg(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as the installed command does: not from the working directory (-P)."""
    code = "from thalweg.experiments.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments, "--servers", "2", "--images", "3"],
        capture_output=True, text=True, check=False, cwd=folder, timeout=patience(120),
        env={**os.environ, "PYTHONPATH": str(ROOT), "THALWEG_TRACES": ""},
    )  # fmt: skip


def test_a_run_finds_a_planner_in_the_working_directory(folder: Path) -> None:
    done = thalweg(folder, "run", "--testbed", "sim", "--placement", "planners_of_mine:Mine", "--out", "r")
    assert (done.returncode, done.stderr) == (0, "")
    assert "planners_of_mine:Mine" in done.stdout


@pytest.mark.long
@pytest.mark.spark
def test_a_sweep_and_the_executors_find_a_planner_in_the_working_directory(folder: Path) -> None:
    grid = ("--configurations", "1", "--pools", "1", "--master", "local[1]", "--out", "s")
    done = thalweg(folder, "sweep", "--placement", "planners_of_mine:Mine", *grid)
    assert (done.returncode, done.stderr) == (0, "")
    rows = {words[0]: words[1:] for line in done.stdout.splitlines() if (words := line.split())}
    assert rows["planners_of_mine:Mine"][:2] == ["1", "0"]


def test_the_working_directory_comes_last_and_only_for_modules_found_nowhere_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "json.py").touch()
    (folder / "colorsys.py").touch()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", before := [path for path in sys.path if path])
    original = list(before)
    find_own_code(["global", "json:Planner", "colorsys:Planner", "nowhere:Planner", ":x", "a b:c", "planners_of_mine"])
    assert sys.path == original
    find_own_code(["planners_of_mine:Mine", "helpers_of_mine:Mine"])
    assert sys.path == [*original, str(folder)]


def test_a_removed_working_directory_raises_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    find_own_code(["planners_of_mine:Mine"])
