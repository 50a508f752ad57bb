"""``thalweg run --workload plates``: every testbed and every placement gives the results of a single machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from thalweg.experiments.cli.main import invoke
from thalweg.experiments.cli.run import adopt_defaults
from thalweg.experiments.records.analysis import RunSummary, failures, summarize_run
from thalweg.experiments.records.records import load_run
from thalweg.experiments.reports.report import write_report
from thalweg.experiments.run_config import DEFAULTS, RunConfig
from thalweg.experiments.runs.launcher import execute
from thalweg.experiments.runs.plates import FOUND
from thalweg.experiments.runs.workload import build_dataflow, reference_digests
from thalweg.experiments.simulation.recorded import execute_virtually
from thalweg.experiments.views.tables import queries_table, seen_lines
from thalweg.middleware.client.steering.replanning import hints_of_code
from thalweg.middleware.errors import UsageError
from thalweg.operators.plates import CARS_PER_S, PlateSource

LINKS: dict[str, Any] = {"link_mean_bps": 2e5}
FEW: dict[str, Any] = {"workload": "plates", "servers": 3, "images": 24}


def ran(folder: Path, *placements: str, **options: Any) -> RunSummary:
    config = RunConfig(**{**FEW, **options}, placements=placements)
    (execute_virtually if config.testbed == "sim" else execute)(config, folder, lambda *_: None)
    summary = summarize_run(folder)
    assert failures(summary) == []
    assert load_run(folder).queries == {sink: [f"source@h{n}" for n in (1, 2, 3)] for sink in ("alarms", "counts")}
    for placement in summary.placements.values():
        assert (placement.images, placement.delivered, placement.digest_ok) == (24, 24, True)
        assert placement.digest == summary.reference_digest
        for query in placement.queries.values():
            assert query.digest_ok
            assert 0 < query.nothing < query.delivered == 24
            assert query.latency_p50_s is not None
            assert query.latency_p95_s is not None
            assert query.latency_p99_s is not None
            assert 0 < query.latency_p50_s <= query.latency_p95_s <= query.latency_p99_s
    return summary


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunSummary, Path]:
    more = {"scenario": "collapse", "collapse_at_s": 20.0, "period_s": 30.0, **LINKS}
    placements = "one-shot", "global", "local", "thalweg", "cost-space", "random-moves"
    folder = tmp_path_factory.mktemp("plates") / "run"
    return ran(folder, *placements, testbed="sim", **more), folder


def test_the_sinks_of_a_simulated_run_get_the_reference_results_while_operators_move(
    simulated: tuple[RunSummary, Path],
) -> None:
    summary, folder = simulated
    moved = {name: row.relocations for name, row in summary.placements.items()}
    assert moved["one-shot"] == 0 < min(moved["thalweg"], moved["random-moves"])
    assert sum(summary.placements["one-shot"].late_rows.values()) > 0
    assert len(queries_table(summary).rows) == 2 * len(moved)
    assert "  one-shot (operators placed once): a partition every" in "\n".join(seen_lines(summary))
    config = load_run(folder).config
    assert (config["workload"], config["bytes"]) == ("plates", True)
    assert not {"rule", "tree", "bands"} & config.keys()


def rows_of(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in pq.read_table(folder / "events.parquet").to_pylist() if row["kind"] == kind]


@pytest.mark.long
def test_operators_move_as_latencies_change_and_the_sinks_get_the_reference_results(tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / "docs/examples/latencies.toml"
    constant = tmp_path / "constant.toml"
    constant.write_text(example.read_text().partition("[[event]]")[0])
    ended, moves = {}, {}
    for name, file in (("changing", example), ("constant", constant)):
        folder = tmp_path / name
        options: dict[str, Any] = {"workload": "plates", "testbed": "sim", "scenario": str(file), "images": 80}
        options |= {"servers": 4, "time_scale": 5.0, "period_s": 30.0, "placements": ("cost-space",)}
        outcome = execute_virtually(RunConfig(**options), folder, lambda *_: None)
        summary = summarize_run(folder)
        assert failures(summary) == []
        ended[name] = outcome.found.ended["cost-space"]
        moves[name] = [row for row in rows_of(folder, "relocated") if row["t_s"] > 150]
        plans = [(row["t_s"], msgspec.json.decode(row["detail"])) for row in rows_of(folder, "plan")]
        near = [plan["latencies"].get("h4>client", [0])[0] for at, plan in plans if at > 300]
        assert min(near) > 0.1 if name == "constant" else max(near) < 0.1
    assert "h4" in {ended["changing"][node] for node in ("joint2", "joint3", "all", "count")}
    assert "h4" not in {ended["constant"][node] for node in ("joint2", "joint3", "all", "count")}
    assert any(row["peer"] == "h4" for row in moves["changing"])
    assert not any(row["peer"] == "h4" for row in moves["constant"])


@pytest.mark.long
def test_the_report_of_a_recorded_graph_draws_the_graph_and_the_latencies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = "run --workload plates --testbed sim --servers 2 --partitions 12 --placement random-moves --moves 3 --out"
    assert invoke([*command.split(), str(tmp_path / "a")]) == 0
    output = capsys.readouterr().out
    assert "graph: source@h1 > found1; source@h2 > found2; found1 > joint1 count; found2 > joint1 count; " in output
    write_report([tmp_path / "a"], tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    for shown in ("The dataflow and its hosts under random-moves", "Distribution of the latency at each sink"):
        assert f'<img alt="{shown}' in page
    assert all(name in page for name in ("found1", "joint1", "all at", "counts", "alarms", "3 moved"))


@pytest.mark.long
def test_a_run_of_processes_has_the_reference_digest_while_operators_move(
    simulated: tuple[RunSummary, Path], tmp_path: Path
) -> None:
    summary = ran(tmp_path / "a", "random-moves", testbed="loopback", time_scale=60.0)
    assert summary.placements["random-moves"].relocations > 0
    assert summary.reference_digest == simulated[0].reference_digest


@pytest.mark.netns
def test_a_run_on_namespaces_has_the_reference_digest_while_links_collapse(
    simulated: tuple[RunSummary, Path], tmp_path: Path
) -> None:
    more = {"scenario": "collapse", "collapse_at_s": 20.0, "period_s": 30.0, "time_scale": 60.0}
    summary = ran(tmp_path / "a", "global", prove=False, link_mean_bps=1e6, **more)
    assert summary.reference_digest == simulated[0].reference_digest


@pytest.mark.long
@pytest.mark.docker
def test_a_run_in_containers_has_the_reference_digest(
    simulated: tuple[RunSummary, Path], tmp_path: Path, docker_image: str
) -> None:
    more = {"image": docker_image, "prove": False, "time_scale": 60.0, **LINKS}
    summary = ran(tmp_path / "a", "random-moves", testbed="docker", **more)
    assert summary.placements["random-moves"].relocations > 0
    assert summary.reference_digest == simulated[0].reference_digest


def test_cameras_give_equal_tables_for_equal_indices_with_a_few_late_rows() -> None:
    first, again = (PlateSource(camera=2, seed=7, length=40) for _ in range(2))
    tables = [first.produce(index) for index in range(40)]
    assert again.produce(39).equals(tables[39])
    assert again.produce(40) is None
    assert again.produce(20).equals(tables[20])
    assert again.watermark_s == 95.0
    behind = [table.column("time").cast("int64").to_numpy() / 1e3 - 5 * index for index, table in enumerate(tables)]
    rows = sum(map(len, behind))
    assert rows == pytest.approx(CARS_PER_S * 200, rel=0.2)
    assert 0.05 < sum(int((seconds < 0).sum()) for seconds in behind) / rows < 0.2  # out of order
    assert sum(int((seconds < -10).sum()) for seconds in behind) > 0  # after the watermark
    assert first.size_bytes() == pytest.approx(sum(table.nbytes for table in tables) / 40, rel=0.2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"servers": 1}, "--servers is 1; two cameras have to see a plate"),
        ({"placements": ("random-reshapes",)}, "random-reshapes changes trees, and --workload plates is a graph"),
        ({"rate": 0.0}, "--rate is 0; give partitions a second, above 0"),
        ({"rule": "min"}, "--rule goes with --workload composition, and this is plates"),
        ({"workload": "composition", "rate": 1.0}, "--rate goes with --workload plates, and this is composition"),
    ],
)
def test_options_that_do_not_fit_the_workload_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        build_dataflow(RunConfig(**{**FEW, **options}).check())


def test_the_command_line_has_special_defaults_for_plates() -> None:
    options: dict[str, Any] = {"workload": "plates", "images": 7}
    adopt_defaults(options)
    assert options == {"workload": "plates", **DEFAULTS["plates"], "images": 7}
    unshaped: dict[str, Any] = {"workload": "plates", "testbed": "loopback"}
    adopt_defaults(unshaped)
    assert "link_mean_bps" not in unshaped
    assert msgspec.convert(unshaped, RunConfig).check().servers == 4


def test_both_sinks_get_varied_data_by_default(simulated: tuple[RunSummary, Path]) -> None:
    dataflow = build_dataflow(RunConfig(**{**FEW, "seed": 5}))
    digests = {sink: list(reference_digests(dataflow, 24, sink=sink)) for sink in dataflow.sinks}
    assert all(len(set(sink_digests)) > 3 for sink_digests in digests.values())
    hints = hints_of_code(dataflow).output_bytes  # without any selectivity all operators would be best at the client
    assert hints["found1"] == pytest.approx(FOUND * hints["source@h1"])
