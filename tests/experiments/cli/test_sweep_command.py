from __future__ import annotations

import json
import os
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from thalweg.experiments.cli import verbs as cli
from thalweg.experiments.cli.stopping import Stopped
from thalweg.experiments.papers.ranganathan1998.study import MADE
from thalweg.experiments.sweeps import sweep
from thalweg.experiments.sweeps.results import schema
from thalweg.experiments.sweeps.simulation import Simulation
from thalweg.experiments.sweeps.simulations import Simulations
from thalweg.experiments.sweeps.sweep import SweepOutcome, load_sweep, run_sweep
from thalweg.experiments.sweeps.variants import VARIANTS
from thalweg.middleware.errors import UsageError

Asked = list[tuple[Simulations, Path]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Record the simulations that the command would have run, with their folders."""
    seen: Asked = []

    def run(one: Simulations, folder: Path, **_: Any) -> SweepOutcome:
        seen.append((one, folder))
        raise Stopped(15)

    monkeypatch.setattr(sweep, "run_sweep", run)
    monkeypatch.delenv("THALWEG_TRACES", raising=False)
    return seen


@pytest.mark.spark
@pytest.mark.usefixtures("shared_spark")
def test_a_sweep_prints_the_results_and_the_reasons_of_failed_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "run_sweep", partial(run_sweep, function="sweep_fakes:troubled"))
    first, folder = tmp_path / "first", tmp_path / "s [1]"
    first.touch()
    options = ["--placement", "sweep_fakes:Mine", "--placement", "local", "--placement", "download-all"]
    command = ["sweep", *options, "--configurations", "4", "--pools", "2", "--allow", str(first), "--out", str(folder)]
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 1, done.output
    rows = {words[0]: words[1:] for line in done.stdout.splitlines() if (words := line.split())}
    assert rows["sweep_fakes:Mine"] == ["4", "0", "52.5", "2.00"]
    assert rows["local"] == ["4", "4", "–", "–"]
    assert done.stdout.splitlines()[-2:] == [f"results: {folder}{os.sep}", f"next: thalweg report {folder}"]
    assert done.stderr == "thalweg: 4 of 12 runs failed: local: ValueError: no plan for 8\n"

    monkeypatch.setattr(sweep, "run_sweep", partial(run_sweep, function="sweep_fakes:result"))
    done = CliRunner().invoke(cli.app, [*command, "--json"])
    assert (done.exit_code, done.stderr) == (0, "")
    output = json.loads(done.stdout)
    assert output.pop("wall_s") > 0
    placements = output.pop("placements")
    assert placements["local"] == {"runs": 4, "failed": 0, "mean_interarrival_s": 21.0, "median_speedup": 5.0}
    identity = load_sweep(folder, Simulations).id
    assert output == {"sweep": identity, "out": str(folder), "runs": 12, "done": 12, "failed": 0, "skipped": 8}


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("shared_spark")
def test_the_json_of_a_figure_has_rows_beside_the_published_values(tmp_path: Path) -> None:
    options = ["--configurations", "2", "--pools", "1", "--out", str(tmp_path / "s")]
    done = CliRunner().invoke(cli.app, ["sweep", "--figure", "sbon-table1", *options, "--json"])
    assert done.exit_code == 0, done.stderr
    output = json.loads(done.stdout)
    assert output["placements"]["relaxation, 1"]["runs"] == 2
    (figure,) = output["figures"]["results"]
    ours = {row["label"]: row["usage_penalty"]["mean"] for row in figure["rows"]}
    beside = {entry["name"]: (entry["paper"], entry["ours"]["mean"], entry["unit"]) for entry in figure["comparisons"]}
    assert beside["consumer, usage"] == (60, ours["consumer"], "%")
    assert beside["optimal, delay"][0] == 13
    assert {"order", "usage", "delay"} <= {entry["claim"] for entry in figure["verdicts"]}
    assert json.loads((tmp_path / "s" / "figures.json").read_text()) == output["figures"]


def test_placements_are_added_to_a_figure_and_other_options_replace_the_defaults(
    asked: Asked,
) -> None:
    options = ["--figure", "8", "--placement", "sweep_fakes:Mine", "--placement", "global", "--servers", "4"]
    done = CliRunner().invoke(cli.app, ["sweep", *options, "--configurations", "3"])
    ((simulations, folder),) = asked
    assert (simulations.figure, simulations.servers, simulations.pools, simulations.configurations) == ("8", (4,), 3, 3)
    assert simulations.placements == ("download-all", "one-shot", "local", "global", "thalweg", "sweep_fakes:Mine")
    assert folder == Path("runs") / simulations.id
    assert (done.exit_code, done.stderr) == (143, "thalweg: stopped by SIGTERM; nothing ran\n")


def test_a_sweep_without_options_runs_six_placements_on_300_configurations(
    asked: Asked,
) -> None:
    CliRunner().invoke(cli.app, ["sweep"])
    CliRunner().invoke(cli.app, ["sweep", "--figure", "6"])
    (default, _), (sixth, _) = asked
    assert default.placements == ("download-all", "one-shot", "local", "global", "thalweg-once", "thalweg")
    assert (default.servers, default.trees, default.periods_s, default.ks) == ((8,), ("binary",), (), ())
    assert (default.configurations, default.pools, default.first_pool, default.pool, default.images) == (
        300,
        10,
        1001,
        "paper",
        180,
    )
    assert default.trials() == [trial for trial in sixth.trials() if not trial.variant]
    assert (default.id[:6], sixth.id[:5]) == ("sweep-", "fig6-")


def test_the_sensitivity_figure_sweeps_variants_of_the_generated_pool(asked: Asked, tmp_path: Path) -> None:
    CliRunner().invoke(cli.app, ["sweep", "--figure", "sensitivity", "--configurations", "1"])
    ((simulations, _),) = asked
    trials = simulations.trials()
    assert Counter(trial.pool for trial in trials) == dict.fromkeys(["paper", *(f"paper:{made}" for made in MADE)], 5)
    assert [simulations.arm_of(msgspec.structs.asdict(trial)) for trial in trials] == simulations.arms()
    with pytest.raises(UsageError, match="is not generated"):
        msgspec.structs.replace(simulations, pool=str(tmp_path)).check()


def test_variants_and_short_periods_of_a_figure_are_swept_too(asked: Asked) -> None:
    for options in (["ablation"], ["9"], ["9", "--period", "60"], ["stripes"]):
        CliRunner().invoke(cli.app, ["sweep", "--figure", *options])
    (ablation, folder), (ninth, _), (period, _), (stripes, _) = asked
    assert set(VARIANTS) == {*ablation.variants, *ninth.variants, *stripes.variants}
    assert {trial.variant for trial in ablation.trials()} == {"", *ablation.variants}
    assert folder.name.startswith("ablation-")
    ours = [trial.period_s for trial in ninth.trials()[:18] if trial.placement == "thalweg"]
    assert ours == [30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0]
    assert [trial.period_s for trial in period.trials()[:4]] == [None, 60.0, None, 60.0]


def test_every_pool_is_a_separate_sweep_in_a_separate_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    def run(one: Simulations, folder: Path, **_: Any) -> SweepOutcome:
        seen.append(one.pool)
        outcome = {"sweep": one.id, "folder": folder, "reasons": {f"{one.pool} is odd": 1}, "notes": [], "wall_s": 2.0}
        return SweepOutcome(runs=1, done=0, failed=1, skipped=0, **outcome)

    monkeypatch.setattr(sweep, "run_sweep", run)
    monkeypatch.setattr(sweep, "load_results", lambda folder, kind: schema(Simulation).empty_table())
    monkeypatch.setattr(Simulations, "check", lambda one: one)  # there are no such traces
    monkeypatch.setenv("THALWEG_TRACES", str(tmp_path))
    out, pools = str(tmp_path / "s"), ["--pool", "paper", "--pool", "regions"]
    done = CliRunner().invoke(cli.app, ["sweep", "--figure", "stripes", *pools, "--out", out])
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-1] == f"next: thalweg report {out}/paper {out}/regions"
    for pool in ("paper", "regions"):
        assert f"1 of 1 run failed: {pool} is odd" in done.stderr
    done = CliRunner().invoke(cli.app, ["sweep", "--figure", "stripes", "--out", out, "--json"])
    sweeps = json.loads(done.stdout.splitlines()[-1])["sweeps"]
    assert {name: answer["out"] for name, answer in sweeps.items()} == {
        name: f"{out}/{name}" for name in ("paper", "wanify_aws", "puffer_max60")
    }
    monkeypatch.delenv("THALWEG_TRACES")
    CliRunner().invoke(cli.app, ["sweep", "--figure", "stripes", "--out", out])
    assert seen == ["paper", "regions", "paper", "wanify_aws", "puffer_max60", "paper"]


def test_a_folder_of_traces_is_recorded_with_the_absolute_path(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "both", "t/bandwidth/both"):
        (tmp_path / name).mkdir(parents=True)
    for pool in ("mine", "both", "real", "paper", "./both", "nowhere"):
        CliRunner().invoke(cli.app, ["sweep", "--pool", pool, "--traces", "t"])
    parent = str(tmp_path)
    assert [simulations.pool for simulations, _ in asked] == [
        f"{parent}/mine",
        "both",
        "real",
        "paper",
        f"{parent}/both",
        "nowhere",
    ]
    assert [simulations.traces for simulations, _ in asked] == [f"{parent}/t"] * 3 + [None] + [f"{parent}/t"] * 2


def test_an_interrupted_sweep_reports_the_saved_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(one: Simulations, folder: Path, *, master: str, tell: sweep.Tell) -> SweepOutcome:
        tell("simulating", 7, 12)
        raise Stopped(2)

    monkeypatch.setattr(sweep, "run_sweep", run)
    done = CliRunner().invoke(cli.app, ["sweep", "--out", "s"])
    assert done.exit_code == 130
    assert done.stderr == "thalweg: stopped by SIGINT; 7 of 12 results are kept in s; the same command resumes\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--figure", "11"], "--figure is 11; there are 6, 7, 8, 9, 10, sensitivity, ablation, stripes, sbon-table1"),
        (["--figure", "sbon-8", "--pool", "real"], "--pool is real; --figure sbon-8 has paper, gt-itm"),
        (["--figure", "sbon-8", "--servers", "4"], "--servers does not go with --figure sbon-8; leave one away"),
        (["--figure", "sbon-8", "--testbed", "sim"], "--testbed does not go with --figure sbon-8; leave one away"),
        (["--figure", "6", "--kernel", "uml"], "--kernel goes with --figure sbon-13 or sbon-14, which run"),
        (["--figure", "sbon-13", "--testbed", "sim", "--kernel", "uml"], "--kernel uml goes with netns, and this test"),
        (["--placement", "nowhere.at.all:Planner"], "'nowhere.at.all:Planner' cannot be imported"),
        (["--master", "moon"], "is not a Spark master"),
        (["--pool", "paper", "--pool", "nosuch"], "nosuch"),
        (["--pool", "a/mine", "--pool", "b/mine"], "--pool names two pools 'mine'"),
        (["--configurations", "3", "--pools", "4"], "give --pools 1 to 3"),
        (["--cost", "nothing"], "unknown cost model"),
        (["--images", "1"], "--images is 1; give 2 or more"),
        (["--faults", "2", "--configurations", "300"], "--configurations does not go with --faults; leave one away"),
        (["--faults", "2", "--pool", "nosuch"], "--pool does not go with --faults"),
        (["--faults", "2", "--figure", "6"], "--figure does not go with --faults"),
        (["--replay-faults", "2", "--images", "9"], "--images does not go with --replay-faults"),
        (["--replay-faults", "2", "--first-seed", "9"], "--first-seed does not go with --replay-faults"),
        (["--first-seed", "9"], "--first-seed goes with --faults; the seed of the first pool is --first-pool"),
        (["--tasks", "9"], "--tasks goes with --figure bimodal-8 or bimodal-9"),
        (["--reallocation", "9"], "--reallocation goes with --figure bimodal-8 or bimodal-9"),
        (["--figure", "bimodal-8", "--reallocation", "0"], "Expected `float` > 0.0 - at `$.reallocation_s`"),
    ],
)
def test_bad_input_starts_nothing(tmp_path: Path, options: list[str], says: str) -> None:
    out = [] if "--replay-faults" in options else ["--out", str(tmp_path / "s")]
    done = CliRunner().invoke(cli.app, ["sweep", *options, *out])
    assert isinstance(done.exception, UsageError)
    assert says in str(done.exception)
    assert not (tmp_path / "s").exists()


def test_a_negative_seed_is_refused() -> None:
    done = CliRunner().invoke(cli.app, ["sweep", "--first-pool", "-1"])
    assert done.exit_code == 2
    assert "--first-pool" in done.stderr


def test_a_count_of_1_is_printed_in_the_singular(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(one: Simulations, folder: Path, **_: Any) -> SweepOutcome:
        reasons = {"global: ValueError: no": 1}
        return SweepOutcome(
            sweep="x", folder=folder, runs=1, done=0, failed=1, skipped=0, reasons=reasons, notes=[], wall_s=2.0
        )

    monkeypatch.setattr(sweep, "run_sweep", run)
    monkeypatch.setattr(sweep, "load_results", lambda folder, kind: schema(Simulation).empty_table())
    done = CliRunner().invoke(cli.app, ["sweep", "--configurations", "1", "--out", str(tmp_path / "s")])
    assert "1 configuration of 1 pool (paper)" in done.stdout
    assert "1 run in 2.00 s, 0 of them were there already" in done.stdout
    assert done.stderr == "thalweg: 1 of 1 run failed: global: ValueError: no\n"
