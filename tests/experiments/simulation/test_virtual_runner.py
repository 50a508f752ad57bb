"""``thalweg run --testbed sim`` as a user runs it: figures, records, digests, and refusals."""

from __future__ import annotations

import heapq
import itertools
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from patience import patience

from thalweg.emulation.links.shape import LinkShape, Queue
from thalweg.emulation.scenarios.hosts import HostSpec
from thalweg.emulation.scenarios.timeline import Timeline
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.links import BULK, CONTROL, MODELS, Transfer
from thalweg.experiments.cli.main import invoke
from thalweg.experiments.records.analysis import summarize_run
from thalweg.experiments.records.moves import read_changes
from thalweg.experiments.run_config import COLLAPSE_FACTOR, RunConfig
from thalweg.experiments.runs.session import Outcome
from thalweg.experiments.simulation.links import HEADER_BYTES, PACKET_PAYLOAD_BYTES, Framed, carrying
from thalweg.experiments.simulation.recorded import execute_as_on_testbeds, execute_virtually
from thalweg.experiments.views.tables import links_line
from thalweg.middleware.dataflow import check_placement
from thalweg.middleware.errors import PlacementError, RunError, UsageError
from thalweg.middleware.network.view import Link
from thalweg.middleware.planning import PlanResult, Task
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.operators import Operator

HERE = __name__
SMALL = (
    *("run", "--testbed", "sim", "--servers", "4", "--images", "10", "--image-bytes", "20000", "--seed", "3"),
    *("--link-mean", "0.1mbit"),
)


@pytest.fixture(autouse=True)
def no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THALWEG_TRACES", raising=False)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def thalweg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs one command line in an empty folder, and returns status, output and errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        status = invoke(list(arguments))
        return status, *capsys.readouterr()

    return run


def execute(folder: Path, **options: Any) -> Outcome:
    values = {"testbed": "sim", "servers": 4, "images": 8, "image_bytes": 20_000, "seed": 3, **options}
    return execute_virtually(RunConfig(**values), folder, lambda what, done, total: None)


def rows(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    matching = [row for row in pq.read_table(folder / "events.parquet").to_pylist() if row["kind"] in kinds]
    return [{**row, "detail": json.loads(row["detail"]) if row["detail"] else {}} for row in matching]


# --- the command --------------------------------------------------------------------------------------


def test_a_run_prints_a_single_object_and_leaves_an_ordinary_run_folder(thalweg: Run, tmp_path: Path) -> None:
    placements = ("--placement", "one-shot", "--placement", "global", "--placement", "local", "--period", "10")
    status, out, err = thalweg(*SMALL, *placements, "--validate", "--out", "a", "--json")
    assert (status, err) == (0, "")
    result = json.loads(out.splitlines()[-1])
    assert (result["testbed"], result["seed"], result["reference_digest"]) == ("sim", 3, None)
    for placement in result["placements"].values():
        assert placement["images"] == placement["delivered"] == 10
        assert placement["lost"] == placement["duplicate"] == placement["out_of_order"] == 0
        assert placement["mean_interarrival_s"] > 0
        assert placement["log_digest"].startswith("sha256:")
        assert placement["digest"] is None  # nothing was composed
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["events.parquet", "run.toml"]
    assert {row["kind"] for row in pq.read_table(tmp_path / "a" / "events.parquet").to_pylist()} >= {
        "placed", "delivered", "transfer", "estimate", "plan", "epoch", "log",
    }  # fmt: skip
    run_toml = tomllib.loads((tmp_path / "a" / "run.toml").read_text())
    assert run_toml["notes"] == ["virtual time, independent links, sizes only: nothing is composed"]
    assert "virtual time" in thalweg(*SMALL, "--placement", "one-shot", "--out", "b")[1]


@pytest.mark.long
@pytest.mark.parametrize("stripes", ["3", "auto"])
def test_operators_with_state_run_above_the_trees(thalweg: Run, tmp_path: Path, stripes: str) -> None:
    line = (*SMALL, "--placement", "thalweg", "--operator", "running", "--bytes", "--validate", "--stripes", stripes)
    status, out, err = thalweg(*line, "--out", "a", "--json")
    assert (status, err) == (0, "")
    (placement,) = json.loads(out.splitlines()[-1])["placements"].values()
    assert (placement["delivered"], placement["lost"], placement["duplicate"], placement["out_of_order"]) == (
        10,
        0,
        0,
        0,
    )
    assert placement["digest_ok"]
    carried = {row["detail"]["stripe"] for row in rows(tmp_path / "a", "carried")}
    assert carried == ({0, 1, 2} if stripes == "3" else set()), "one tree of all repays most"
    (placed,) = rows(tmp_path / "a", "placed")
    at = {host for name, host in placed["detail"]["placement"].items() if name.startswith("op")}
    assert at == {"client"} or stripes == "auto"


@pytest.mark.long
def test_the_same_configuration_has_the_same_log_in_every_process(thalweg: Run, tmp_path: Path) -> None:
    line = [*SMALL, "--placement", "global", "--placement", "local", "--k", "2", "--period", "60", "--json", "--bytes"]
    result = json.loads(thalweg(*line, "--out", "here")[1].splitlines()[-1])
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-m", "thalweg", *line, "--out", f"with {seed}"],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=patience(60), check=True,
        )  # fmt: skip
        other = json.loads(done.stdout.splitlines()[-1])
        assert other["run"] == result["run"]
        for label, placement in other["placements"].items():
            assert {**placement, "wall_s": 0} == {**result["placements"][label], "wall_s": 0}
    events = {(tmp_path / name / "events.parquet").read_bytes() for name in ("here", "with 1", "with 2")}
    assert len(events) == 1


@pytest.mark.long
def test_the_readme_run_delivers_all_images_with_every_seed(tmp_path: Path) -> None:
    """Twenty seeds run until partitions flow, 0.1 s each. The night profile runs two hundred seeds to the end."""
    night = os.environ.get("HYPOTHESIS_PROFILE") == "night"
    seeds, images = (200, 180) if night else (20, 4)
    for seed in range(1, seeds + 1):
        options = {"servers": 8, "placements": ("one-shot", "global"), "image_bytes": 131_072, "link_mean_bps": 2e5}
        outcome = execute(tmp_path / str(seed), seed=seed, images=images, **options)
        assert set(outcome.found.delivered.values()) == {images}, seed


def test_a_different_seed_or_interface_leads_to_a_different_log(tmp_path: Path) -> None:
    digests = set()
    variants: list[dict[str, Any]] = [{}, {"seed": 4}, {"interface": "single"}, {"startup_s": 0.1}, {"bytes": True}]
    for number, options in enumerate(variants):
        folder = tmp_path / str(number)
        execute(folder, placements=("one-shot",), **options)
        digests.add(rows(folder, "log")[0]["detail"]["digest"])
    assert len(digests) == 5


def test_real_bytes_give_the_reference_results_in_the_time_of_simulated_sizes(tmp_path: Path) -> None:
    execute(tmp_path / "sizes", placements=("one-shot", "global"), period_s=60.0, pixel_s=7e-6)
    real = execute(tmp_path / "bytes", placements=("one-shot", "global"), period_s=60.0, pixel_s=7e-6, bytes=True)
    summary = summarize_run(tmp_path / "bytes")
    assert summary.reference_digest is not None
    assert {placement.digest for placement in summary.placements.values()} == {summary.reference_digest}
    assert real.found.delivered == {"one-shot": 8, "global": 8}
    came = [[(row["index"], row["t_s"]) for row in rows(tmp_path / name, "delivered")] for name in ("sizes", "bytes")]
    assert came[0] == came[1]
    assert sorted(path.name for path in (tmp_path / "bytes" / "images" / "global").iterdir())[0] == "000.png"


def test_a_changed_tree_gives_the_reference_results_and_is_recorded(tmp_path: Path) -> None:
    execute(tmp_path, placements=("one-shot", "thalweg"), bytes=True, servers=6)
    summary = summarize_run(tmp_path)
    assert summary.reference_digest is not None
    assert {figures.digest for figures in summary.placements.values()} == {summary.reference_digest}
    initial, chosen = (row["detail"] for row in rows(tmp_path, "placed"))
    assert initial["inputs"] != chosen["inputs"] and chosen["planner"] == "thalweg" and chosen["probed"] == 42
    for plan in (initial, chosen):
        assert plan["inputs"]["sink"][0] in plan["placement"]
        assert {a for inputs in plan["inputs"].values() for a in inputs} == set(plan["placement"]) - {"sink"}
    for row, placement in zip(rows(tmp_path, "log"), summary.placements.values(), strict=True):
        assert 0 < row["detail"]["bound_period_s"] < placement.mean_interarrival_s


def test_operators_with_state_move_and_give_the_reference_results(tmp_path: Path) -> None:
    options = {"placements": ("random-moves",), "moves": 6, "operator": "mixed", "images": 30, "bytes": True}
    for interface in ("single", "independent"):
        execute(tmp_path / interface, **options, interface=interface, validate=True)
        summary = summarize_run(tmp_path / interface)
        assert summary.placements["random-moves"].digest == summary.reference_digest
        assert summary.placements["random-moves"].relocations == 6


def test_trees_that_change_at_random_give_the_reference_results(tmp_path: Path) -> None:
    options = {"placements": ("random-reshapes",), "reshapes": 4, "moves": 3, "images": 40, "bytes": True}
    outcome = execute(tmp_path, **options, validate=True)
    summary = summarize_run(tmp_path)
    placement = summary.placements["random-reshapes"]
    assert (placement.delivered, placement.lost, placement.duplicate, placement.out_of_order) == (40, 0, 0, 0)
    assert placement.digest == summary.reference_digest
    assert (placement.reshapes, placement.relocations) == (4, 3)
    assert outcome.found.trees["random-reshapes"].startswith("client(")
    last = [change for change in read_changes(tmp_path) if change.changed][-1]
    assert set(outcome.found.ended["random-reshapes"]) == set(last.operators)


@pytest.mark.parametrize("seed", [5, 10])
def test_a_slow_installation_over_a_slow_link_does_not_make_a_run_fail(seed: int, tmp_path: Path) -> None:
    outcome = execute(tmp_path / "a", servers=8, link_mean_bps=2e5, seed=seed, placements=("one-shot",))
    assert outcome.found.delivered == {"one-shot": 8}


CUT = """
hosts = ["client", "h1", "h2"]
[links]
rate = "1mbit"
[[event]]
kind = "outage"
at = "5s"
host = "h1"
"""


def test_a_host_that_a_scenario_cuts_off_is_lost_after_15_s_of_silence(tmp_path: Path) -> None:
    (tmp_path / "cut.toml").write_text(CUT)
    options: dict[str, Any] = {"servers": 2, "images": 1000, "scenario": str(tmp_path / "cut.toml")}
    with pytest.raises(RunError, match=r"^host 'h1', which holds .*, has been silent for 15 s"):
        execute(tmp_path / "a", placements=("download-all",), **options)


def test_a_run_has_the_delays_of_a_trace_and_reports_emulated_delays(tmp_path: Path) -> None:
    summaries = {}
    for delay_s in (0, 3):
        folder = tmp_path / str(delay_s)
        folder.mkdir()
        (folder / "owd.csv").write_text(f"time_s,delay_s\n0,0\n0.3,{delay_s}\n3600,0\n")
        text = 'hosts = 3\nduration = "2h"\n[links]\nrate = "1mbit"\ntrace = "owd.csv"\n'
        (folder / "wan.toml").write_text(text)
        execute(folder / "run", placements=("download-all",), servers=2, scenario=str(folder / "wan.toml"))
        summaries[delay_s] = summarize_run(folder / "run")
    means_s = [summary.placements["download-all"].mean_interarrival_s or 0.0 for summary in summaries.values()]
    assert means_s[1] > means_s[0] + 1
    assert [links_line(summary).rpartition("; ")[2] for summary in summaries.values()] == [
        "rates only, no delays",
        "delays emulated",
    ]


@pytest.mark.parametrize(
    ("interface", "own", "common"),
    [("independent", 'up_rate = "250kbit"', ""), ("shared", 'up_rate = "250kbit"', ""),
     ("independent", "", 'down_rate = "500kbit"'), ("shared", "", 'down_rate = "500kbit"')],
)  # fmt: skip
def test_hosts_send_and_receive_at_the_rates_of_a_scenario_file(
    interface: str, own: str, common: str, tmp_path: Path
) -> None:
    """Both servers send images to the client: at 1 Mbit/s each, or limited.

    The limit is 250 kbit/s of one server, or 500 kbit/s of the client.
    """
    mean_s = {}
    for name, line, key in (("free", "", ""), ("limited", common, own)):
        host = "[[hosts]]\nname = "
        hosts = f'{host}"client"\n{line}\n{host}"h1"\n{host}"h2"\n{key}\n'
        (tmp_path / f"{name}.toml").write_text(f'{hosts}[links]\nrate = "1mbit"\n')
        options: dict[str, Any] = {"servers": 2, "images": 20, "image_deviation": 0.0, "interface": interface}
        options |= {"scenario": str(tmp_path / f"{name}.toml"), "placements": ("download-all",)}
        execute(tmp_path / name, **options)
        mean_s[name] = summarize_run(tmp_path / name).placements["download-all"].mean_interarrival_s
    assert mean_s == {"free": pytest.approx(0.16, rel=0.15), "limited": pytest.approx(0.64, rel=0.15)}


def test_a_run_has_a_control_band_unless_the_scenario_file_disables_the_band(tmp_path: Path) -> None:
    """Without the band, control messages of a server wait behind the server's images."""
    digests = {}
    for says in ("", "control_band = true", "control_band = false"):
        (tmp_path / "wan.toml").write_text(f'hosts = 5\n{says}\n[links]\nrate = "0.1mbit"\nqueue = "2s"\n')
        folder = tmp_path / (says or "nothing")
        options: dict[str, Any] = {"scenario": str(tmp_path / "wan.toml"), "placements": ("one-shot", "download-all")}
        execute(folder, **options, validate=True)
        digests[says] = [row["detail"]["digest"] for row in rows(folder, "log")]
    assert digests[""] == digests["control_band = true"]
    assert digests[""] != digests["control_band = false"]


def test_a_client_with_a_single_interface_gets_images_in_sequence(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "one.csv").write_text("time_s,bandwidth_bps\n0,80000\n60,80000\n")
    mean_s = {}
    for interface in ("single", "independent"):
        options: dict[str, Any] = {"interface": interface, "traces": str(tmp_path / "traces"), "image_deviation": 0.0}
        execute(tmp_path / interface, placements=("download-all",), **options)
        placement = summarize_run(tmp_path / interface).placements["download-all"]
        assert placement.delivered == 8
        mean_s[interface] = placement.mean_interarrival_s
    # 20 kB take 2 s; demands wait for images where there is one interface, and there are headers where there is not
    assert mean_s == {"single": pytest.approx(8.0, rel=0.05), "independent": pytest.approx(2.0, rel=0.06)}


def test_estimates_stand_beside_the_true_rates_of_the_links(tmp_path: Path) -> None:
    execute(tmp_path / "a", placements=("one-shot",), interface="single")
    details = [row["detail"] for row in rows(tmp_path / "a", "estimate")]
    assert details
    assert [estimate["sample_bps"] for estimate in details] == pytest.approx(
        [estimate["truth_bps"] for estimate in details], rel=0.01
    )


# --- a collapse ---------------------------------------------------------------------------------------


def test_a_collapse_hits_every_placement_at_the_same_time(tmp_path: Path) -> None:
    options: dict[str, Any] = {"placements": ("one-shot", "global"), "period_s": 300.0, "images": 60, "seed": 2}
    options |= {"image_bytes": 131_072, "link_mean_bps": 2e5}
    execute(tmp_path / "calm", **options)
    outcome = execute(tmp_path / "hit", **options, scenario="collapse", collapse_at_s=200.0)
    calm, hit = summarize_run(tmp_path / "calm"), summarize_run(tmp_path / "hit")
    struck = rows(tmp_path / "hit", "scenario")
    assert {row["placement"]: row["t_s"] for row in struck} == dict.fromkeys(("one-shot", "global"), 200.0)
    assert len(struck) == 2
    assert struck[0]["value"] == COLLAPSE_FACTOR
    assert struck[0]["host"] in outcome.found.placed["one-shot"].values()
    assert any("collapse" in note for note in outcome.info.notes)
    means = {(name, label): summary.placements[label].mean_interarrival_s or 0.0
             for name, summary in (("calm", calm), ("hit", hit)) for label in summary.placements}  # fmt: skip
    assert means["hit", "one-shot"] > 1.2 * means["calm", "one-shot"]
    assert means["hit", "global"] > 1.2 * means["calm", "global"]  # the images of its own site have to come from there


def test_a_collapse_after_the_end_is_noted_and_a_collapse_without_a_host_is_refused(
    tmp_path: Path,
) -> None:
    outcome = execute(tmp_path / "short", placements=("one-shot",), scenario="collapse", images=2, seed=1)
    assert "one-shot had ended before the collapse; ask for more --images" in outcome.info.notes
    with pytest.raises(UsageError, match="no host to collapse"):
        execute(tmp_path / "alone", servers=1, scenario="collapse")
    assert not (tmp_path / "alone").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"limits": ("max_partition_bytes=2000",)}, r"takes at most 2000 \(its limit max_partition_bytes\)"),
        ({"call_timeout_s": 1e-6, "time_scale": 2.0}, r"has not returned within 2e-06 s \(call_timeout_s\)"),
    ],
)
def test_limits_reach_every_host(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(RunError, match=says):
        execute(tmp_path / "a", placements=("one-shot",), **options)


def test_a_link_of_a_testbed_carries_packet_headers() -> None:
    framed = Framed(BandwidthTrace("t", np.array([0.0]), np.array([8000.0])))
    assert framed.rate_at(3.0) == 8000.0
    for size_bytes, packets in ((0, 0), (1, 1), (PACKET_PAYLOAD_BYTES, 1), (PACKET_PAYLOAD_BYTES + 1, 2)):
        assert framed.transfer_time_s(size_bytes, 5.0) == pytest.approx((size_bytes + packets * HEADER_BYTES) / 1000)


@pytest.mark.parametrize("interface", ["independent", "shared"])
def test_a_full_queue_delays_a_message_by_the_length_of_the_queue(interface: str) -> None:
    """A link without a queue size has 100 ms of wall time, which is 300 ms at a time scale of three."""
    hosts = {name: HostSpec(name) for name in "ab"}
    for queue, time_scale, waits_s in ((None, 1.0, 0.1), (None, 3.0, 0.3), (Queue(0.2), 3.0, 0.2)):
        shapes = {Link(*pair): LinkShape(1e6, queue=queue) for pair in (("a", "b"), ("b", "a"))}
        timeline = Timeline(hosts=hosts, links=shapes, traces={}, time_scale=time_scale)
        due: list[tuple[float, int, Any, Any]] = []
        came: list[Transfer] = []
        numbers = itertools.count()
        links = carrying(timeline.rates(), interface, timeline)
        config = WorldConfig(interface, startup_s=0.0, control_band=False)
        model = MODELS[interface](links, config, partial(_later, due, numbers), came.append)
        model.send(Transfer(1, "a", "b", 10**6, BULK, None), 0.0)
        _later(due, numbers, 1.0, partial(model.send, now=1.0), Transfer(2, "a", "b", 0, CONTROL, None))
        while due:
            _, _, call, argument = heapq.heappop(due)
            call(argument)
        assert [transfer.number for transfer in came] == [2, 1]
        assert came[0].ends_s == pytest.approx(1.0 + waits_s)


def _later(due: list[Any], numbers: Iterator[int], at_s: float, call: Callable[[Any], None], what: Any) -> None:
    heapq.heappush(due, (at_s, next(numbers), call, what))


def test_links_have_the_delays_of_a_latency_matrix(tmp_path: Path) -> None:
    """Under download-all a partition arrives two delays after its demand. The slower link decides."""
    pairs = [("h1", "h2", 10), ("h1", "client", 2000), ("h2", "client", 6000)]
    lines = [f"{a},{b},{rtt_ms}" for first, second, rtt_ms in pairs for a, b in ((first, second), (second, first))]
    (tmp_path / "matrix.csv").write_text("\n".join(["src,dst,rtt_ms", *lines, ""]))
    took_s = {}
    for name, latency in (("near", None), ("far", str(tmp_path / "matrix.csv"))):
        options: dict[str, Any] = {"servers": 2, "placements": ("download-all",), "latency": latency}
        outcome = execute(tmp_path / name, **options)
        delivered = [row["t_s"] for row in rows(tmp_path / name, "delivered")]
        took_s[name] = (delivered[-1] - delivered[0]) / (len(delivered) - 1)
        assert outcome.info.delay_emulated is (latency is not None)
    assert took_s["far"] - took_s["near"] == pytest.approx(6.0, rel=0.02)


def test_placements_can_be_planned_by_measured_work_load_and_latency(tmp_path: Path) -> None:
    """The records have the measurements of the placements that adapt."""
    options: dict[str, Any] = {"placements": ("global", "thalweg", "one-shot"), "period_s": 20.0, "images": 30}
    outcome = execute(tmp_path / "a", measured=True, **options)
    assert set(outcome.found.delivered.values()) == {30}
    seen = {(row["kind"], row["placement"]) for row in rows(tmp_path / "a", "work", "load", "latency")}
    assert seen == {(kind, label) for kind in ("work", "load", "latency") for label in ("global", "thalweg")}
    sources = [row for row in rows(tmp_path / "a", "work") if row["node"].startswith("source@")]
    assert all(15_000 < row["size_bytes"] < 30_000 and row["value"] > 0 for row in sources)
    execute(tmp_path / "b", **options)
    assert rows(tmp_path / "b", "work", "load", "latency") == []


# --- bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--testbed", "loopback", "--bytes"), "--bytes goes with --testbed sim, and this run is on loopback"),
        (("--testbed", "netns", "--validate"), "--validate goes with --testbed sim, and this run is on netns"),
        (("--testbed", "loopback", "--interface", "single"), "--interface goes with --testbed sim"),
        (("--testbed", "sim", "--interface", "singel"), "singel"),
        (
            ("--testbed", "sim", "--operator", "running"),
            "'running' has state, which only real values give; add --bytes",
        ),
        (("--testbed", "sim", "--placement", "globl"), "did you mean 'global'"),
        (("--testbed", "sim", "--forecaster", "medan"), "median"),
        (("--placement", "one-shoot"), "did you mean 'one-shot'"),
        (("--testbed", "loopback", "--limit", "lease=3"), "unknown limit 'lease'; did you mean 'lease_s'"),
        (("--call-timeout", "0"), "--call-timeout is 0; give seconds above 0"),
        (("--servers", "0"), "--servers is 0"),
        (("--servers", "1000"), "addresses"),
        (("--images", "0"), "--images is 0"),
        (("--tree", "bushy"), "unknown tree 'bushy'"),
        (("--testbed", "moon"), "moon"),
        (("--traces", "missing"), "missing"),
        (("--link-mean", "fast"), "'fast' is not a rate"),
        (("--link-mean", "900mbit", "--time-scale", "100"), "lower --link-mean, or --time-scale to at most"),
        (("--cost", "beauty"), "beauty"),
        (("--dtype", "float"), "dtype"),
        (("--placement", "one-shot", "--period", "60"), "--period goes with --placement global or --placement local"),
        (("--placement", "global", "--k", "2"), "--k goes with --placement local"),
        (("--placement", "global", "--period", "0"), "period_s is 0.0"),
        (("--operator", "runing"), "did you mean 'running'"),
        (("--scenario", "flood"), "flood"),
        (("--testbed", "sim", "--latency", "nowhere"), "nowhere"),
        (
            ("--testbed", "sim", "--placement", "one-shot", "--measured"),
            "--measured goes with placements",
        ),
        (("--testbed", "loopback", "--latency", "x.csv"), "--latency gives links delays, and the loopback testbed has"),
        (("--testbed", "sim", "--latency", "x.csv", "--scenario", "x.toml"), "x.toml"),
        (("--collapse-at", "60s"), "--collapse-at is the begin of --scenario collapse"),
        (("--scenario", "collapse", "--collapse-at", "-1"), "--collapse-at: '-1' is not a time"),
        (("--scenario", "collapse", "--testbed", "loopback"), "loopback has none"),
        (("--scenario", "collapse", "--link-mean", "0.02mbit"), "raise --time-scale or --link-mean"),
    ],
)
def test_invalid_options_are_refused_in_a_single_line_before_a_folder_is_made(
    thalweg: Run, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    status, out, err = thalweg("run", *arguments, "--out", "a")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("thalweg: ")
    assert says in err
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_an_earlier_run_is_left_alone(thalweg: Run, tmp_path: Path) -> None:
    assert thalweg(*SMALL, "--placement", "one-shot", "--out", "a")[0] == 0
    before = (tmp_path / "a" / "run.toml").read_bytes()
    status, _, err = thalweg(*SMALL, "--placement", "one-shot", "--out", "a")
    assert (status, err) == (2, "thalweg: a is not empty; choose another --out, or remove it\n")
    assert (tmp_path / "a" / "run.toml").read_bytes() == before
    (tmp_path / "file").touch()
    status, _, err = thalweg(*SMALL, "--placement", "one-shot", "--out", "file")
    assert (status, err) == (2, "thalweg: cannot make file: File exists; choose another --out\n")


class Breaks(Operator):
    """Operator that raises at partition 4, or when the size of its fifth output is requested."""

    def __init__(self, **_: Any) -> None:
        self.asked = 0

    def combine(self, inputs: Any, index: int) -> Any:
        if index == 4:
            raise ValueError("a cloud\nin the way")
        return inputs[0]

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        self.asked += 1
        if self.asked == 5:
            raise ValueError("a cloud\nin the way")
        return max(input_sizes)


class Nowhere:
    """Planner that finds no placement."""

    def plan(self, task: Task, model: Any) -> Any:
        raise PlacementError("there is no place")


class Later:
    """Planner that fails at a replanning. Its first placement is on the host ``first``."""

    adaptation = GlobalMoves(period_s=1.0)
    first = "h1"

    def plan(self, task: Task, model: Any) -> Any:
        if task.current is not None:
            raise KeyError("zzz")
        placement = dict.fromkeys(task.dataflow.operators, self.first)
        return PlanResult(check_placement(task.dataflow, placement, task.hosts), task.dataflow)


BREAKS: dict[str, Any] = {"operator": f"{HERE}:Breaks", "allow": (HERE,), "placements": ("one-shot", "local")}


def test_an_operator_that_raises_ends_the_run_and_delivered_images_stay_recorded(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"^node 'op\d' on host '\w+': ValueError at partition 4: a cloud in the way$"):
        execute(tmp_path / "a", **BREAKS)
    assert 0 < len(rows(tmp_path / "a", "delivered")) <= 4
    assert {row["placement"] for row in rows(tmp_path / "a", "delivered")} == {"one-shot"}
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["events.parquet", "run.toml"]


def test_an_operator_that_raises_on_a_single_machine_is_not_run_on_hosts(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"^ValueError at partition 4, on a single machine as well: a cloud"):
        execute(tmp_path / "a", **BREAKS, bytes=True)
    assert not (tmp_path / "a").exists()


def test_a_planner_that_raises_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    for folder in ("a", "mine"):
        with pytest.raises(PlacementError, match="there is no place"):
            execute(tmp_path / folder, placements=(f"{HERE}:Nowhere",), allow=(HERE,))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]  # which was there before
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_planner_that_fails_while_data_flows_is_noted_and_the_flow_goes_on(tmp_path: Path) -> None:
    outcome = execute(tmp_path / "a", placements=(f"{HERE}:Later",), allow=(HERE,))
    assert summarize_run(tmp_path / "a").placements[f"{HERE}:Later"].delivered == 8
    assert any(
        note == f"{HERE}:Later went on as it was placed: planner {HERE}:Later failed: KeyError: 'zzz'"
        for note in outcome.info.notes
    )


def test_an_edited_planner_leads_to_a_different_run_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    for folder, first in (("a", "h1"), ("b", "h1"), ("c", "h2")):
        monkeypatch.setattr(Later, "first", first)
        runs.append(execute(tmp_path / folder, placements=(f"{HERE}:Later",), allow=(HERE,)).info.run)
    assert runs[0] == runs[1] != runs[2]


def test_the_truth_is_known_while_data_flows_except_in_runs_as_on_testbeds(tmp_path: Path) -> None:
    """Both runs have the same first plan. Only the run as on a testbed probes links afterwards."""
    config = RunConfig(
        testbed="sim", servers=4, images=60, placements=("global",), period_s=60.0, view="truth", link_mean_bps=2e5
    )
    probed, first = {}, {}
    for name, run in (("lasts", execute_virtually), ("before", execute_as_on_testbeds)):
        folder = tmp_path / name
        run(config, folder, lambda what, done, total: None)
        probed[name] = sum(row["detail"]["probe_bytes"] for row in rows(folder, "monitor"))
        first[name] = [row["detail"] for row in rows(folder, "placed")]
    assert probed["lasts"] == 0 < probed["before"]
    assert first["lasts"] == first["before"]
