"""Every verb that reads a file reports an error of the file in one line, which names the file once."""

from __future__ import annotations

from pathlib import Path

import pytest

from thalweg.experiments.cli.main import invoke

VERBS = (
    "place",
    "place --compare",
    "place --planner odp",
    "provision",
    "provision --launch sim",
    "testbed plan",
    "testbed up",
    "testbed verify",
    "run --testbed sim --scenario",
    "run --testbed sim --placement fixed --plan",
    "run --testbed sim --traces",
    "run --testbed loopback --folder",
    "compare --traces",
    "sweep --figure 6 --configurations 1 --pool",
    "traces describe",
    "traces list",
    "traces import --out made",
    "keys allow",
    "host --listen ipc:///tmp/never --keys",
    "analyze",
    "report",
)
INPUTS = {
    "missing.toml": None,
    "garbled.toml": b"hosts = [",
    "binary.toml": b"\xff\xfe",
    "unknown.toml": b"unknown = 1\n",
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("verb", VERBS)
def test_an_error_of_a_file_names_the_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = INPUTS[name]
    if text is not None:
        Path(name).write_bytes(text)
    assert invoke([*verb.split(), name]) == 2
    error = capsys.readouterr().err
    assert error.startswith("thalweg: ")
    assert (error.count(name), error.count("\n")) == (1, 1), error
    left = {path.name for path in tmp_path.rglob("*")} - {"runs"}  # an empty folder, in which a run would be
    assert left == ({name} if text is not None else set())


def test_a_program_that_cannot_be_written_is_a_usage_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = Path(__file__).parents[3] / "docs" / "examples" / "optimal.toml"
    target = tmp_path / "absent" / "odp.mps"
    assert invoke(["place", str(file), "--planner", "odp", "--mps", str(target)]) == 2
    error = capsys.readouterr().err
    assert (
        error == f"thalweg: the program cannot be written to {target}; name a file in an existing folder, as odp.mps\n"
    )
