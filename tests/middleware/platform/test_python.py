"""Command lines of our own Python processes, and where programs and modules are found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

from thalweg.middleware.errors import UsageError
from thalweg.middleware.platform import python

NAMES = ("json", "string", "shutil", "msgspec", "numpy")
SHOW = "import sys; from thalweg.middleware.platform.python import append_folders; append_folders(); print(sys.path)"


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a working directory whose modules have well-known names and end the process that imports them."""
    there = tmp_path / "foreign"
    there.mkdir()
    for name in NAMES:
        (there / f"{name}.py").write_text(f"import os\nos._exit({100 + NAMES.index(name)})\n", encoding="utf-8")
    monkeypatch.chdir(there)
    monkeypatch.delenv(python.LAST, raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return there


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=patience(60), check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_an_isolated_process_imports_nothing_from_the_working_directory(foreign: Path) -> None:
    for name in NAMES:
        assert run(*python.isolated_command("-c", f"import {name}; print({name}.__name__)")).strip() == name
    assert run(*python.module_command("json.tool", "--help")).startswith("usage:")
    unsafe = subprocess.run([sys.executable, "-m", "json.tool", "--help"], capture_output=True, check=False)
    assert unsafe.returncode != 0  # the files are found there otherwise


def test_folders_of_a_child_are_in_the_order_of_the_parent(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, last = foreign.parent / "first", foreign.parent / "last"
    monkeypatch.setattr(sys, "path", [str(first), *(path for path in sys.path if path), str(last), str(foreign)])
    variables = python.folder_variables()
    assert variables["PYTHONPATH"].split(os.pathsep)[0] == str(first)
    assert str(foreign) not in variables["PYTHONPATH"].split(os.pathsep)
    assert variables[python.LAST].split(os.pathsep)[-2:] == [str(last), str(foreign)]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name in ("json", "msgspec"):
        assert run(sys.executable, "-P", "-c", f"{SHOW}; import {name}").rstrip().endswith(f"'{last}', '{foreign}']")


def test_a_child_finds_thalweg_if_the_folder_is_last_on_the_path_of_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    home = str(Path(__file__).absolute().parents[3])
    library = str(Path(os.__file__).parent)
    monkeypatch.setattr(sys, "path", [library, home])
    assert python.folder_variables() == {"PYTHONPATH": home, python.LAST: home}


def test_an_appended_folder_counts_in_the_process_and_in_children(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", before := list(sys.path))
    monkeypatch.setenv(python.LAST, "")
    (more := foreign.parent / "more").mkdir()
    (more / "only_there.py").write_text("print('found')\n", encoding="utf-8")
    python.append_folder(str(foreign))
    python.append_folder(str(more))
    assert sys.path == before
    assert sys.path[-2:] == [str(foreign), str(more)]
    assert run(sys.executable, "-P", "-c", f"{SHOW}; import only_there, json").splitlines()[-1] == "found"
    python.append_folders()  # none is there twice
    assert sys.path.count(str(more)) == 1


def test_relative_last_folders_are_left_out(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", before := list(sys.path))
    monkeypatch.setenv(python.LAST, os.pathsep.join(["", ".", "foreign"]))
    kept = list(before)
    python.append_folders()
    assert sys.path == kept


def test_programs_are_found_in_absolute_folders_only(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (foreign / "bin").mkdir()
    for program in (foreign / "tool", foreign / "bin/tool"):
        program.write_text("#!/bin/sh\n", encoding="utf-8")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join(["", ".", "bin", ""]))
    assert python.find_program("tool") is None
    python.drop_relative_folders()
    assert os.environ["PATH"] == ""
    monkeypatch.setenv("PATH", os.pathsep.join([".", str(foreign / "bin")]))
    assert python.find_program("tool") == str(foreign / "bin/tool")
    python.drop_relative_folders()
    assert os.environ["PATH"] == str(foreign / "bin")
    monkeypatch.setenv("PATH", ".")
    assert python.find_program("tool", str(foreign / "bin")) == str(foreign / "bin/tool")


def test_a_working_directory_that_has_been_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert python.working_folder() == str(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="the working directory has been removed; change to another"):
        python.working_folder()
