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
    "--placement global --period 60 --seed 3": "aa70e392099db49eeee72c312dffd2260bf25cfde80e0ebcffde25e5af750507",
    "--placement local --period 60 --seed 1 --k 2": "f2d55eeeadcb6d420c9ed080c351c82f65d9c5a6d4e2bcb6eca1ebb79b97faff",
    "--placement thalweg --period 60 --seed 2": "b74cb5ca4ca9d1d5c26b8f85dc5ec2fec710b4b2bbe4abd1e56b73df81598340",
    "--placement random-moves --moves 20 --seed 4": "4a38f1ebe94e6ebb9e43833f7682fe1e31b55055d912a7c837b371ab01f91e74",
    "--placement one-shot --bytes --seed 1": "0dcd4a517fa57cc5dbad28e4aaeab4828cab7188fb7c74ba979234aeb8d70e06",
}
FAULTS = {22: "c79b1b3ebafb675f78816184526329c1a226216d93aa99b9986d13b0e61607e8"}


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
