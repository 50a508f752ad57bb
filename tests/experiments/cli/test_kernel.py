"""``--kernel uml``: allowed options, capacity, and a run in this kernel as a user sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from patience import patience

from thalweg.experiments import run_config as options
from thalweg.experiments.cli.main import invoke
from thalweg.experiments.networks import traced as network
from thalweg.experiments.run_config import CLIENT, RunConfig, host_names
from thalweg.experiments.runs.workload import build_dataflow
from thalweg.middleware.errors import UsageError

CLI = (sys.executable, "-m", "thalweg")


def test_the_uml_kernel_needs_netns_and_is_entered_only_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["testbed", "up", "--kernel", "uhl"]) == 2
    error = "thalweg: --kernel is 'uhl'; did you mean 'uml'?; see thalweg testbed up --help\n"
    assert capsys.readouterr().err == error
    with pytest.raises(UsageError, match="--kernel uml goes with netns, and this testbed is docker"):
        options.runs_elsewhere("uml", "docker")
    for testbed in ("docker", "loopback", "sim"):
        with pytest.raises(UsageError, match=f"--kernel uml goes with --testbed netns, and this run is on {testbed}"):
            RunConfig(testbed=testbed, kernel="uml").check()
    monkeypatch.setattr(options, "inside_uml", lambda: False)
    assert not options.runs_elsewhere("host", "netns")
    assert options.runs_elsewhere("uml", "netns")
    monkeypatch.setattr(options, "inside_uml", lambda: True)
    assert not options.runs_elsewhere("uml", "netns")


def test_the_time_scale_fits_the_capacity_of_the_uml_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "inside_uml", lambda: True)
    config = RunConfig(servers=4, link_mean_bps=1e6)
    edges = len(build_dataflow(config).nodes) - 1
    scale = network.easy_time_scale(config, edges)
    assert scale == int(scale)
    assert scale <= network.EASY * network.UML_CARRY_BPS / (edges * 1e6) < scale + 1
    assert network.easy_time_scale(RunConfig(link_mean_bps=1e3), 1) == network.MOST_TIME_SCALE
    assert network.easy_time_scale(RunConfig(link_mean_bps=1e9), 15) == 1
    hosts = [*host_names(4), CLIENT]
    most = int(network.UML_CARRY_BPS / (edges * 1e6))
    assert network.build_network(RunConfig(servers=4, link_mean_bps=1e6, time_scale=most), hosts, edges).traces
    with pytest.raises(UsageError, match=rf"a User-Mode Linux kernel carries about .* to at most {most}$"):
        network.build_network(RunConfig(servers=4, link_mean_bps=1e6, time_scale=most + 1), hosts, edges)


def test_no_kernel_boots_for_a_folder_that_is_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("thalweg.emulation.uml.kernel.run_thalweg_inside", lambda: pytest.fail("it boots"))
    (tmp_path / "used").write_bytes(b"")
    assert invoke(["run", "--kernel", "uml", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"thalweg: {tmp_path} is not empty; choose another --out, or remove it\n"
    assert invoke(["run", "--kernel", "uml", "--out", str(tmp_path / "used")]) == 2
    assert "Not a directory; choose another --out" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.uml
def test_a_run_in_the_uml_kernel_leaves_an_ordinary_run_folder(tmp_path: Path) -> None:
    command = [*CLI, "run", "--kernel", "uml", "--servers", "2", "--images", "4", "--placement", "one-shot"]
    command += ["--link-mean", "0.2mbit", "--json"]
    env = {name: value for name, value in os.environ.items() if name != "THALWEG_TRACES"}
    done = subprocess.run(
        [*command, "--out", "a"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=patience(240)
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["placements"]["one-shot"]["digest_ok"]
    run = tomllib.loads((tmp_path / "a" / "run.toml").read_text())
    assert run["config"]["kernel"] == "uml"
    assert run["versions"]["kernel"] != os.uname().release
    assert f"--time-scale is {run['time_scale']:g}" in done.stderr
    assert (tmp_path / "a" / "events.parquet").stat().st_uid == os.getuid()
