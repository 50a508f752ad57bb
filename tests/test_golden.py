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
    "--placement global --period 60 --seed 3": "4012fdf8a4e210445394e4b32d869d27cc522052a0e48d0f85babcdfc8cf5055",
    "--placement local --period 60 --seed 1 --k 2": "61b927bdf1d8a73f60b79f96aaf8696a84d03f7c0c807b1c60543a4e081f58ec",
    "--placement thalweg --period 60 --seed 2": "bd2e2e24039ed0e5dc6dc861b07d9dea437ae6f4bfa0605677b8b0ccde7fe797",
    "--placement random-moves --moves 20 --seed 4": "3219db9f00ea9dbcf970456c87681aad1496eab028b5f67f1edeb22e21f76ded",
    "--placement one-shot --bytes --seed 1": "5f9423a50e2846e2a8aacd930e0be627a456450fd9cd507842edaa0fb4d4069c",
}
FAULTS = {22: "be7a8ee496e9cfda160694c2191f354fe75e4b295a66f5228a7926aa0d1ee2e2"}


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
