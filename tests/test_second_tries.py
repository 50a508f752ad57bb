"""Second tries: a try begins afresh, the summary has the first reason, and a run may have few second tries."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

SHARED = """
import pytest

ENDED = []

@pytest.fixture(scope="session")
def cluster():
    yield {"state": "fresh"}
    ENDED.append("cluster")

@pytest.fixture(scope="session")
def kept():
    yield {"state": "fresh"}
    ENDED.append("kept")

@pytest.fixture(scope="module")
def bed(cluster):
    yield {"state": "fresh"}
    ENDED.append("bed")

def test_before(bed, kept):
    bed["state"] = "used"

def test_that_spoils_what_it_shares(bed, cluster, kept):
    assert (bed["state"], cluster["state"]) == ("fresh", "fresh") or not ENDED, "left behind by the first try"
    if not ENDED:
        bed["state"] = cluster["state"] = kept["state"] = "spoilt"
        raise RuntimeError("ping is missing")

def test_after(bed, cluster, kept):
    assert (bed["state"], cluster["state"], kept["state"]) == ("fresh", "fresh", "spoilt")
    assert ENDED == ["bed", "cluster"], "each ended once, and what no test can spoil did not end"
"""


def pytest_says(folder: Path, code: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on a file of tests, with second tries and without any other settings."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(code)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "second_tries",
        "-p",
        "no:cacheprovider",
        "--reruns",
        "1",
        *options,
    ]
    environment = {"PYTHONPATH": str(Path(__file__).parent), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=patience(60), check=False
    )


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_second_try_sees_no_change_of_the_first_try(tmp_path: Path, processes: str) -> None:
    done = pytest_says(tmp_path, SHARED, "-n", processes)
    assert done.returncode == 0, done.stdout
    assert "3 passed, 1 rerun" in done.stdout
    assert "test_it.py::test_that_spoils_what_it_shares (passed in the end): call: " in done.stdout
    assert "RuntimeError: ping is missing" in done.stdout, "the first reason"
    assert "1 of 3 tests needed a second try; a run may have 3" in done.stdout


def test_the_summary_has_the_first_reason_of_a_test_that_fails_in_the_end(tmp_path: Path) -> None:
    code = "TRIES = []\ndef test_it():\n    TRIES.append(1)\n    assert False, f'reason {len(TRIES)}'\n"
    done = pytest_says(tmp_path, code)
    assert done.returncode == 1
    assert "test_it.py::test_it (failed in the end): call: " in done.stdout
    assert "AssertionError: reason 1" in done.stdout.rpartition("tests that needed a second try")[2]


@pytest.mark.parametrize(("number", "status"), [(3, 0), (4, 1)])
def test_a_run_fails_if_too_many_tests_needed_a_second_try(tmp_path: Path, number: int, status: int) -> None:
    code = (
        "import pytest\nTRIED = set()\n"
        f"@pytest.mark.parametrize('each', range({number}))\n"
        "def test_it(each):\n    if each not in TRIED:\n        TRIED.add(each)\n        raise RuntimeError('busy')\n"
    )
    done = pytest_says(tmp_path, code)
    assert done.returncode == status, done.stdout
    assert f"{number} passed, {number} rerun" in done.stdout
    assert ("FAILED: 4 of 4 tests needed a second try; a run may have 3" in done.stdout) is bool(status)


def test_an_error_at_the_end_of_a_shared_fixture_is_reported(tmp_path: Path) -> None:
    code = (
        "import pytest\n@pytest.fixture(scope='module')\ndef bed():\n    yield\n    raise OSError('cannot go down')\n"
        "def test_it(bed):\n    assert False, 'first'\n"
    )
    done = pytest_says(tmp_path, code, "--reruns", "0")
    assert done.returncode == 1
    assert "cannot go down" in done.stdout
    assert "AssertionError: first" in done.stdout
