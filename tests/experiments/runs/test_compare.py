"""``thalweg compare``: made-up runs on either side, a real pair, and the simulated cost of a testbed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from patience import patience
from typer.testing import CliRunner

from thalweg.experiments.cli import verbs as cli
from thalweg.experiments.records.analysis import QuerySummary
from thalweg.experiments.records.comparisons import Latency, beyond, load_comparison
from thalweg.experiments.records.records import RunInfo
from thalweg.experiments.run_config import RunConfig
from thalweg.experiments.runs import compare
from thalweg.experiments.runs.compare import Execute
from thalweg.experiments.runs.launcher import execute
from thalweg.experiments.runs.session import Found, Outcome
from thalweg.experiments.runs.strategies import make_strategies
from thalweg.experiments.simulation.links import HEADER_BYTES, PACKET_PAYLOAD_BYTES, TAKE_UP_S
from thalweg.experiments.simulation.recorded import execute_as_on_testbeds, execute_virtually
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import RunError, UsageError

LABELS = ("download-all", "one-shot")
CONFIG = RunConfig(placements=LABELS, images=5)
SIDES = execute_as_on_testbeds, execute
Make = Callable[..., Execute]


def quiet(what: str, done: int, total: int) -> None:
    """Ignore progress."""


@pytest.fixture
def side(new_run: Any, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a maker of one side of a comparison.

    The maker takes the seconds between the deliveries of each run, and the host where operators start.
    """
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))

    def make(*apart_s: float, host: str = "h1", images: int | None = None) -> Execute:
        seconds: Iterator[float] = iter(apart_s)

        def execute(config: RunConfig, folder: Path, tell: Any) -> Outcome:
            tell("running", 1, 2)
            run = new_run(str(folder), seed=config.seed, images=config.images)
            step = next(seconds, None)
            if step is None:
                raise RunError("a host is gone")
            for label in config.placements:
                run.placements.append(label)
                delivered = config.images if images is None else images
                run.deliver(label, [(step * (i + 1), i) for i in range(delivered)])
                run.add(0.0, "client", "started", label)
            run.write(testbed=config.testbed)
            placed = {label: {"op0": "client" if label == "download-all" else host} for label in config.placements}
            info = RunInfo(run="x", testbed=config.testbed, seed=config.seed, images=config.images, placements=[])
            return Outcome(info, folder, Found(placed), Dataflow())

        return execute

    return make


def test_rows_have_the_median_of_the_emulated_runs(side: Make, tmp_path: Path) -> None:
    steps: list[str] = []
    comparison = compare.compare(
        CONFIG,
        [3, 5],
        tmp_path / "c",
        lambda what, done, total: steps.append(what),
        (side(9.5, 12.0), side(10.0, 11.0, 9.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0)),
        repeats=3,
    )
    first, second, third, _ = comparison.rows
    assert (second.placement, second.emulated_s, second.spread) == ("one-shot", 10.0, 0.0)
    assert (first.placement, first.seed) == ("download-all", 3)
    assert first.ratio == pytest.approx(0.95)
    assert first.emulated_each_s == pytest.approx([10.0, 11.0, 9.0])
    assert first.emulated_s == pytest.approx(10.0)
    assert first.spread == pytest.approx(11 / 9 - 1)
    assert (first.same_start, first.simulated_moves, first.emulated_moves) == (True, 0, [0, 0, 0])
    assert third.seed == 5
    assert third.ratio == pytest.approx(1.2)
    assert comparison.worst is not None
    assert (comparison.worst.placement, comparison.worst.seed) == ("download-all", 5)
    assert comparison.worst.off == pytest.approx(0.2)
    assert [line.partition(":")[0] for line in beyond(comparison)] == ["download-all, seed 5", "one-shot, seed 5"]
    folders = sorted(str(path.parent.relative_to(tmp_path / "c")) for path in tmp_path.glob("c/*/*/run.toml"))
    alone = [f"netns-{label}-{i}" for label in LABELS for i in (1, 2, 3)]
    assert folders == [f"seed-{seed}/{name}" for seed in (3, 5) for name in (*alone, "sim")]
    assert steps[:2] == ["seed 3, sim: running", "seed 3, netns: running"]
    shown = load_comparison(tmp_path / "c" / "comparison.json")
    assert [row.ratio for row in shown.rows] == [row.ratio for row in comparison.rows]
    again = json.loads((tmp_path / "c" / "comparison.json").read_text())
    assert (again["limit"], again["config"]["images"], "seed" in again["config"]) == (0.08, 5, False)


def test_finished_rows_are_kept_when_a_later_seed_fails(side: Make, tmp_path: Path) -> None:
    with pytest.raises(RunError):
        compare.compare(CONFIG, [1, 2], tmp_path, quiet, (side(10.0, 10.0), side(10.0, 10.0)))
    assert [row.seed for row in load_comparison(tmp_path / "comparison.json").rows] == [1, 1]


def test_a_side_that_fell_short_does_not_pass(side: Make, tmp_path: Path) -> None:
    comparison = compare.compare(CONFIG, [1], tmp_path, quiet, (side(10.0), side(10.0, 10.0, images=1)))
    assert (comparison.rows[0].ratio, comparison.worst) == (None, None)
    lines = beyond(comparison)
    assert lines[0].endswith("seed-1/netns-download-all, download-all: 4 of 5 images were not delivered")
    assert lines[-1] == "one-shot, seed 1: nothing can be compared, because a side delivered less than two images"


def test_a_busy_machine_is_noted(side: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (1000.0, 0.0, 0.0))
    comparison = compare.compare(CONFIG, [1], tmp_path, quiet, (side(10.0), side(10.0, 10.0)))
    assert comparison.notes[0].startswith("the machine was busy before the first run (load average 1000.0)")


def test_the_command_prints_a_table_or_json_and_fails_beyond_the_limit(
    side: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THALWEG_TRACES", raising=False)
    whole = compare.compare

    def answer(*more: str, simulated_s: float) -> Any:
        sides = side(simulated_s), side(10.0, host="h2")
        monkeypatch.setattr(compare, "compare", lambda *given, **more: whole(*given[:4], sides, **more))
        out = tmp_path / f"c{simulated_s}"
        asked = ["compare", "--placement", "one-shot", "--images", "5", "--seed", "7", "--repeats", "1"]
        command = [*asked, "--out", str(out), *more]
        return CliRunner().invoke(cli.app, command)

    done = answer(simulated_s=9.6)
    assert (done.exit_code, done.stderr) == (0, "")
    rows = {words[0]: words[1:] for line in done.stdout.splitlines() if (words := line.split())}
    assert rows["one-shot"] == ["7", "9.60", "10.0", "0.960", "–", "differs", "0", "/", "0"]
    assert max(map(len, done.stdout.splitlines()[:6])) <= 80
    done = answer("--json", "--limit", "0.2", simulated_s=7.0)
    assert done.exit_code == 1
    assert done.stderr == "thalweg: one-shot, seed 7: simulated is 0.700 of emulated, beyond 20%\n"
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["rows"][0]["ratio"], last["worst"]["off"]) == (pytest.approx(0.7), pytest.approx(0.3))


@pytest.mark.parametrize(
    ("changes", "seeds", "options", "said"),
    [
        ({}, [], {}, "no --seed was given"),
        ({}, [1, 2, 1], {}, "--seed 1 is given twice; to emulate the seed twice, give --repeats 2"),
        ({"images": 1}, [1], {}, "--images is 1; give 2 or more"),
        ({}, [1], {"limit": float("nan")}, "--limit is nan; it must be between 0 and 1"),
        ({}, [1], {"repeats": 0}, "--repeats is 0; it must be at least 1"),
        ({"servers": 0}, [1], {}, "--servers is 0"),
    ],
)
def test_an_invalid_comparison_is_refused_before_a_run_starts(
    changes: dict[str, Any], seeds: list[int], options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    config = msgspec.structs.replace(CONFIG, **changes)
    with pytest.raises(UsageError, match=said):
        compare.compare(config, seeds, tmp_path / "c", quiet, SIDES, **options)
    assert not (tmp_path / "c").exists()


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(UsageError, match="is not empty"):
        compare.compare(CONFIG, [1], tmp_path, quiet, SIDES)


def test_emulated_runs_get_only_the_options_of_the_placement(side: Make, tmp_path: Path) -> None:
    seen: list[tuple[str, tuple[str, ...], float | None, float | None]] = []

    def noting(execute: Execute) -> Execute:
        def run(config: RunConfig, folder: Path, tell: Any) -> Outcome:
            make_strategies(config)
            seen.append((config.testbed, config.placements, config.period_s, config.hysteresis))
            return execute(config, folder, tell)

        return run

    config = RunConfig(placements=("one-shot", "global"), images=3, period_s=60.0, hysteresis=1.0)
    simulate, emulate = noting(side(10.0)), noting(side(10.0, 10.0))
    compare.compare(config, [1], tmp_path, quiet, (simulate, emulate))
    assert seen == [
        ("sim", ("one-shot", "global"), 60.0, 1.0),
        ("netns", ("one-shot",), None, None),
        ("netns", ("global",), 60.0, 1.0),
    ]
    with pytest.raises(UsageError, match="--period goes with"):
        compare.compare(RunConfig(placements=("one-shot",), period_s=60.0), [1], tmp_path / "c", quiet, SIDES)


@pytest.mark.netns
@pytest.mark.parametrize(
    ("options", "sinks"),
    [
        pytest.param(
            ["--servers", "2", "--time-scale", "60", "--link-mean", "0.2mbit"], {"sink"}, marks=pytest.mark.long
        ),
        (["--workload", "plates"], {"alarms", "counts"}),
    ],
    ids=["composition", "plates"],
)
def test_a_real_pair_of_runs_is_alike(
    options: list[str], sinks: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THALWEG_TRACES", raising=False)
    options += ["--images", "8", "--placement", "download-all", "--view", "truth", "--limit", "0.5"]
    more = ["--seed", "1", "--repeats", "1", "--out", str(tmp_path / "c")]
    done = CliRunner().invoke(cli.app, ["compare", *options, *more])
    assert done.exit_code == 0, done.output
    comparison = load_comparison(tmp_path / "c" / "comparison.json")
    (row,) = comparison.rows
    assert row.same_start
    assert comparison.item == ("image" if sinks == {"sink"} else "partition")
    assert row.queries.keys() == sinks
    for sink, query in row.queries.items():
        # a busy machine delays the emulated run
        assert query.simulated.p95_s / 1.5 <= query.emulated.p95_s <= 2 * query.simulated.p95_s * patience(1.0)
        assert sink in done.stdout


def test_latencies_are_the_medians_of_the_emulated_runs() -> None:
    runs = [
        QuerySummary(delivered=1, nothing=0, digest=None, digest_ok=None, mean_interarrival_s=1.0,
                     latency_p50_s=p50, latency_p95_s=2 * p50, latency_p99_s=p99)
        for p50, p99 in ((1.0, 9.0), (3.0, None), (2.0, 9.0))
    ]  # fmt: skip
    assert compare._latency(runs) == Latency(2.0, 4.0, None)


# --- what a testbed costs, in virtual time --------------------------------------------------------------


@pytest.mark.parametrize("interface", ["independent", "single"])
def test_a_busy_link_rests_while_both_hosts_take_up_a_message(interface: Any, tmp_path: Path) -> None:
    """Both hosts take up a message in wall time.

    A demand follows a partition, and the next partition follows the demand.
    """
    traces = tmp_path / "traces"
    traces.mkdir()
    (traces / "steady.csv").write_text("time_s,bandwidth_bps\n0,200000\n")
    config = RunConfig(
        testbed="sim", interface=interface, servers=1, placements=("download-all",), images=6, time_scale=100.0,
        traces=str(traces), image_deviation=0.0, prove=False,
    )  # fmt: skip
    outcome = execute_virtually(config, tmp_path / "run", quiet)
    rows = _rows(outcome.folder)
    sent = sorted((row["t_s"] - row["duration_s"], row["t_s"], row["size_bytes"]) for row in rows)
    rests = [later[0] - earlier[1] for earlier, later in pairwise(sent)]
    begun, ended, size = sent[0]
    headers = HEADER_BYTES * -(-size // PACKET_PAYLOAD_BYTES) if interface == "independent" else 0
    assert ended - begun == pytest.approx((size + headers) * 8 / 200_000)
    demand_s = 0.1  # at most: some hundred bytes, news among them
    twice_s = 2 * TAKE_UP_S * config.time_scale if interface == "independent" else 0.0
    assert twice_s < median(rests) < twice_s + demand_s


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(folder / "events.parquet").to_pylist()
    return [row for row in rows if row["kind"] == "transfer" and row["peer"] == "client"]
