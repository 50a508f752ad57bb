"""Short virtual runs whose every event is what it was: a change that is not to change behaviour leaves these digests.

A digest covers each event that any host's core was told of, with its time and host. Who means to change behaviour
(a protocol, a planner, what is measured) records the digests again, and says in the commit why they differ.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from thalweg.experiments.cli.main import invoke
from thalweg.experiments.faults.trials import drawn_plan, run_trial

RUNS = {
    "--placement global --period 60 --seed 3": "6cb9b1582f39cba3bbff98db337838ee80ef172a5c5610f6a2aed957e9a99cf2",
    "--placement local --period 60 --seed 1 --k 2": "230cf45ded970367303ca8586571c24bb1756c7895320bdd2329ba739616aadf",
    "--placement thalweg --period 60 --seed 2": "32e50a7eccf91c48ede6decbaa749497b18cc9b112806805e328410da5749820",
    "--placement random-moves --moves 20 --seed 4": "a9d1980fd9beeb4972ed210d2b176bb92e10c40b888a07cfdb3be502adc4209a",
    "--placement one-shot --bytes --seed 1": "68a8efb9fa355d3cbce05aff94ce4435860567e83dcfc533086b928543e48f62",
}
FAULTS = {22: "424266f1e5e0c1b781be8f81d546811c8511fd18b4fd2f4a1b5f6d222631ed11"}


@pytest.mark.parametrize("options", RUNS)
def test_a_run_is_told_the_same_events(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("THALWEG_TRACES", raising=False)  # the generated ones
    size = ["--servers", "8", "--images", "12" if "--bytes" in options else "40", "--link-mean", "0.2mbit"]
    assert invoke(["run", "--testbed", "sim", *size, *options.split(), "--out", str(tmp_path / "a"), "--json"]) == 0
    (placement,) = json.loads(capsys.readouterr().out.splitlines()[-1])["placements"].values()
    assert placement["log_digest"] == f"sha256:{RUNS[options]}"


@pytest.mark.parametrize("seed", FAULTS)
def test_a_plan_of_faults_is_told_the_same_events(seed: int) -> None:
    result, _ = run_trial(drawn_plan(seed), digest=True)
    assert result.digest == f"sha256:{FAULTS[seed]}"
