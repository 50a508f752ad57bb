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
from patience import patience

from thalweg.experiments.cli.main import invoke
from thalweg.experiments.faults.drawn import drawn_plan
from thalweg.experiments.faults.trials import run_trial

RUNS = {
    "--placement global --period 60 --seed 3": "35d18c5b42c8c9587e2eb3b81224ac2e1b6481087b6aac56cb8437e146946a12",
    "--placement local --period 60 --seed 1 --k 2": "09b126912edc1771a06d304b29868a23bd091e609acb28515c42317fe9a1a0cf",
    "--placement thalweg --period 60 --seed 2": "45b480eb131ea2ad2fbb46a62f15640782f6accca92790714a29189da0c7f7b5",
    "--placement random-moves --moves 20 --seed 4": "37286f0795c812cbf2bd574a29fc02755555257aa40e5b88177e1c41c0605eb8",
    "--placement one-shot --bytes --seed 1": "aa2d15d9d534196d393a38c62357b40041ce71013b8a0b6e6ffa02029a256323",
}
FAULTS = {22: "a80ebc7a046ca932c5bbc92d9b1d905084eb6570bc4c067511f78535f125c532"}


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
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=patience(60), check=True)
    assert digest(done.stdout) == RUNS[options]


@pytest.mark.parametrize("seed", FAULTS)
def test_a_plan_of_faults_is_told_the_same_events(seed: int) -> None:
    result, _ = run_trial(drawn_plan(seed), digest=True)
    assert result.digest == f"sha256:{FAULTS[seed]}"
