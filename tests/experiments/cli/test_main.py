"""Behaviour common to all verbs: refusals, and forms of quantities."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from thalweg.experiments.cli.main import invoke


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("testbed up --delay 5m", "--delay: '5m' is not a time; write it as 20ms, 30s"),
        ("testbed up --rate fast", "--rate: 'fast' is not a rate; write it as tc does: 64kbit"),
        ("testbed up --loss 100%", "--loss: '100%' is 100% or more; a share is below 100%"),
        ("run --period soon", "--period: 'soon' is not a time; write it as 20ms"),
        ("run --image-bytes 2zb", "--image-bytes: '2zb' is not a size; write it as 16kb"),
        ("traces describe x --step 1y", "--step: '1y' is not a time; write it as 20ms"),
        ("run --testbed loopback --traces x", "--traces shapes links, and the loopback testbed has none"),
        ("testbed up --hosts x", "--hosts is 'x'; give a whole number; see thalweg testbed up --help"),
        ("run --servers x", "--servers is 'x'; give a whole number, at least 1; see thalweg run --help"),
        ("run --servers 0", "--servers is 0; give a whole number, at least 1; see thalweg run --help"),
        ("run --images 1.5", "--images is '1.5'; give a whole number, at least 1; see thalweg run --help"),
        ("run --time-scale fast", "--time-scale is 'fast'; give a number; see thalweg run --help"),
        ("run --kernel um", "--kernel is 'um'; did you mean 'uml'?; see thalweg run --help"),
        ("run --workload planed", "--workload is 'planed'; did you mean 'planned'?; see thalweg run --help"),
        ("compare --workload planned", "--workload is 'planned'; did you mean 'plates'?; see thalweg compare --help"),
        ("compare --seed 1 --seed x", "--seed is 'x'; give a whole number; see thalweg compare --help"),
        ("run --testbed sim --operator join", "unknown --operator 'join'; did you mean 'array-join'?"),
        ("run --testbed sim --operator scenes", "unknown --operator 'scenes'; known are "),
        ("run --testbed sim --cost usage", "--cost usage needs the latencies of a placement file (thalweg"),
        ("run --testbed sim --rule maxx", "composite: unknown rule 'maxx'; use max, min, latest or an import path"),
        ("keys new h1 --expires 0", "--expires is 0; give a whole number, at least 1; see thalweg keys new --help"),
        ("keys new h1 --role guest", "--role is 'guest'; known are host, client; see thalweg keys new --help"),
        ("bench move --size -1", "--size is -1; give a whole number, at least 0; see thalweg bench move --help"),
        ("run --servers", "option '--servers' requires an argument; see thalweg run --help"),
        ("host --frob", "unrecognized arguments: --frob; see thalweg host --help"),
        ("host --time-scale x", "--time-scale is 'x'; give a number; see thalweg host --help"),
        ("host --name", "argument --name: expected one argument; see thalweg host --help"),
        ("host drain", "the following arguments are required: NAME; see thalweg host drain --help"),
        ("testbed up --frob", "no such option: --frob; see thalweg testbed up --help"),
        ("frob", "no such command 'frob'; see thalweg --help"),
        ("analyze", "missing argument 'folders"),
    ],
)  # fmt: skip
def test_a_usage_error_is_a_single_line(line: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(line.split()) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert output.err.lower().startswith(f"thalweg: {says.lower()}")


def test_a_rate_in_bytes_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note = "10Mbps counts bytes, as tc has it: 80.0 Mbit/s; for bits write 10Mbit"
    assert invoke(["testbed", "up", "--hosts", "0", "--rate", "10Mbps"]) == 2
    assert capsys.readouterr().err.startswith(f"note: --rate: {note}\n")
    file = tmp_path / "wan.toml"
    file.write_text('hosts = 3\n[links]\nrate = "1mbit"\n[[link]]\nfrom = "h1"\nto = "h2"\nrate = "10Mbps"\n')
    assert invoke(["testbed", "plan", str(file)]) == 0
    assert f"note: {file}, line 7: rate: {note}" in capsys.readouterr().out
    file.write_text("hosts = 2\n[links]\nrate = true\n")
    assert invoke(["testbed", "plan", str(file)]) == 2
    assert "line 3: rate: true is not a rate; write it as tc does" in capsys.readouterr().err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["--version"]) == 0
    assert capsys.readouterr().out.startswith("thalweg 0.")
    assert invoke([]) == 2
    assert "testbed" in capsys.readouterr().out


def test_a_shell_completes_verbs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    environment = {"COMP_WORDS": "thalweg testbed ver", "COMP_CWORD": "2", "_THALWEG_COMPLETE": "complete_bash"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert invoke([]) == 0
    assert capsys.readouterr().out.split() == ["verify"]


def test_a_host_starts_without_modules_of_other_verbs() -> None:
    code = (
        "import sys; from thalweg.experiments.cli.main import invoke; said = invoke(['host', '--listen', '', '--name'])"
    )
    code += "; print(said, sorted({'pydantic', 'thalweg.experiments.cli.verbs'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "2 []\n"
