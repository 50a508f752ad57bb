"""Short virtual runs whose every event is what it was: a change that is not to change behaviour leaves these digests.

A digest covers each event that any host's core was told of, with its time and host. Who means to change behaviour
(a protocol, a planner, what is measured) records the digests again, and says in the commit why they differ.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from thalweg.experiments.cli.main import invoke
from thalweg.experiments.faults.trials import drawn_plan, run_trial

RUNS = {
    "--placement global --period 60 --seed 3": "742a2b92a97be4253e9cf1b038fa6f395d3bb238744f735340701606cdebe2c1",
    "--placement local --period 60 --seed 1 --k 2": "6d7fe63df20688ec32dd03b3f82b346a64a5af2858c0f50e2a42339b0e2c0ad0",
    "--placement thalweg --period 60 --seed 2": "c095d558c3726f12c1398bf9bd66f2bedc80ce79b0e52bb94d6368698f325ffe",
    "--placement random-moves --moves 20 --seed 4": "c2217f71243fd0376bd2b36895edd8affeb0dd7e2f0fdeb7a21c742dd915fbd7",
    "--placement one-shot --bytes --seed 1": "b9c0dcc7884d7137a066ba2daff4b09ec455f1e3546bf7f92bdcd1be642743f6",
}
FAULTS = {22: "0625f89e740935015b1306ce857342121dd954f3cdbc7c8b34afbb31d5becf5f"}


def told(options: str, folder: Path) -> list[str]:
    """The command that has the run's digest."""
    size = ["--servers", "8", "--images", "12" if "--bytes" in options else "40", "--link-mean", "0.2mbit"]
    return ["run", "--testbed", "sim", *size, *options.split(), "--out", str(folder / "a"), "--json"]


def digest(printed: str) -> str:
    (placement,) = json.loads(printed.splitlines()[-1])["placements"].values()
    return str(placement["log_digest"]).removeprefix("sha256:")


@pytest.mark.parametrize("options", RUNS)
def test_a_run_is_told_the_same_events(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("THALWEG_TRACES", raising=False)  # the generated ones
    assert invoke(told(options, tmp_path)) == 0
    assert digest(capsys.readouterr().out) == RUNS[options]


def test_a_run_is_told_the_same_events_on_another_processor(tmp_path: Path) -> None:
    """As on an early one: LAPACK adds up in another order, and numpy does without the later instructions."""
    later = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    early = {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": " ".join(later)}
    environment = {name: value for name, value in os.environ.items() if name != "THALWEG_TRACES"} | early
    options = next(options for options in RUNS if "thalweg" in options)
    line = [sys.executable, "-m", "thalweg", *told(options, tmp_path)]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert digest(done.stdout) == RUNS[options]


@pytest.mark.parametrize("seed", FAULTS)
def test_a_plan_of_faults_is_told_the_same_events(seed: int) -> None:
    result, _ = run_trial(drawn_plan(seed), digest=True)
    assert result.digest == f"sha256:{FAULTS[seed]}"
