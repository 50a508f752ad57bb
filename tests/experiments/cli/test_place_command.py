"""``thalweg place``: the example, explicit trees, and errors of wrong files."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from thalweg.experiments.cli.place import place
from thalweg.experiments.problems.placement import load_placement
from thalweg.middleware.errors import UsageError
from thalweg.middleware.planning import CostModel, Plan, Task

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "placement.toml"
SMALL = """
hosts = ["client", "a", "b"]
[dataflow.sources]
a = 125000
b = 125000
[dataflow.operator]
output = "sum"
compute_s = 1
[costs]
startup_s = 0
disk_bytes_per_s = inf
"""
LINKS = """
[[links]]
src = "a"
dst = "client"
rate = "1mbit"
[[links]]
src = "b"
dst = "client"
rate = 1e6
"""
TREE = SMALL.replace("[dataflow.sources]", '[dataflow]\ntree = "star"\n[dataflow.sources]')


def run(*arguments: object) -> str:
    """Return the standard output of ``thalweg place ARGUMENTS``. Exceptions pass through."""
    app = typer.Typer()
    app.command()(place)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def run_json(*arguments: object) -> dict[str, Any]:
    content = json.loads(run(*arguments, "--json").splitlines()[-1])
    assert isinstance(content, dict)
    return content


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "problem.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("cost", ["critical-path", "period"])
def test_the_example_is_solved_and_beats_download_all(cost: str) -> None:
    answer = run_json(EXAMPLE, "--cost", cost)
    hosts = tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))["hosts"]
    assert set(answer["placement"].values()) <= set(hosts)
    assert answer["placement"]["source@paris"] == "paris"
    assert answer["cost_s"] < answer["download_all_cost_s"] == answer["initial_cost_s"]
    assert answer["steps"][-1]["cost_s"] == answer["cost_s"]
    text = run(EXAMPLE, "--cost", cost)
    assert f"{cost}: {answer['cost_s']:.3f} s; download-all: {answer['download_all_cost_s']:.3f} s" in text
    assert "source@santa-barbara" in text


def test_a_star_tree_has_the_calculated_cost(write: Any) -> None:
    answer = run_json(write(TREE + LINKS), "--planner", "download-all")
    assert answer["cost_s"] == pytest.approx(1 + 1)  # 1 Mbit at 1 Mbit/s, then a second of computing
    assert answer["critical"] == ["source@a", "op0", "sink"]
    assert run_json(write(TREE + LINKS), "--planner", "download-all", "--cost", "period")["cost_s"] == pytest.approx(3)
    duplex = ("--cost", "period", "--cost-option", "node_cycles=false", "--cost-option", "interface=duplex")
    assert run_json(write(TREE + LINKS), "--planner", "download-all", *duplex)["cost_s"] == pytest.approx(2)


def test_the_fixed_planner_evaluates_the_placement_of_the_file_or_option(write: Any) -> None:
    placed = write(TREE + LINKS + '[placement]\nop0 = "a"\n')
    answer = run_json(placed, "--planner", "fixed")
    assert (answer["placement"]["op0"], answer["cost_s"]) == ("a", None)  # nobody says what b to a carries
    answer = run_json(placed, "--planner", "fixed", "--option", 'placement={"op0": "client"}')
    assert (answer["placement"]["op0"], answer["cost_s"]) == ("client", pytest.approx(2))
    with pytest.raises(UsageError, match="planner fixed has no placement; give one"):
        run(write(TREE + LINKS), "--planner", "fixed")
    with pytest.raises(UsageError, match="names node 'op7'"):
        run(placed, "--planner", "fixed", "--option", 'placement={"op7": "a"}')


def test_explicit_nodes_with_pins_and_a_start_placement_are_solved(write: Any) -> None:
    text = """
    hosts = ["h", "a", "b"]
    default_rate = "8mbit"
    [placement]
    free = "b"
    [costs]
    startup_s = 0
    [[dataflow.nodes]]
    name = "left"
    host = "a"
    bytes = 3e6
    [[dataflow.nodes]]
    name = "fixed"
    inputs = ["left"]
    host = "b"
    operator = { output = 1e6 }
    [[dataflow.nodes]]
    name = "free"
    inputs = ["fixed"]
    [dataflow.operator]
    compute_s_per_byte = 1e-6
    """
    problem = load_placement(write(text))
    assert problem.hints.output_bytes == {"left": 3e6, "fixed": 1e6, "free": 1e6}
    assert problem.hints.compute_s == {"fixed": 0.0, "free": 1.0}
    assert problem.current == {"left": "a", "fixed": "b", "free": "b", "sink": "h"}
    for planner, start in (("one-shot", "start=current"), ("exhaustive", "limit=10")):
        answer = run_json(write(text), "--planner", planner, "--option", start)
        assert answer["cost_s"] == pytest.approx(1 + 3 + 1 + 1)  # disk, left to fixed, on to the client, computing
        assert answer["placement"]["fixed"] == "b"


def test_a_graph_with_several_sinks_is_placed_and_printed_as_text(write: Any) -> None:
    node = '[[dataflow.nodes]]\nname = "{}"\n{}\n'
    text = 'hosts = ["h", "a", "b"]\ndefault_rate = "8mbit"\n'
    text += node.format("cam", 'host = "a"\nbytes = 3e6') + node.format("far", 'host = "b"\nbytes = 1e6')
    text += node.format("seen", 'inputs = ["cam"]\noperator = { output = 1e4 }')
    text += node.format("joint", 'inputs = ["seen", "far"]\noperator = { output = 1e4 }')
    sinks = '[dataflow.sinks]\nalarms = ["joint"]\narchive = ["seen", "joint"]\n'
    answer = run_json(write(text + sinks))
    assert answer["placement"] == {"cam": "a", "far": "b", "seen": "a", "joint": "b", "alarms": "h", "archive": "h"}
    line = "graph: cam > seen; seen > joint archive; far > joint; joint > alarms archive"
    assert line in run(write(text + sinks))
    assert load_placement(write(text)).dataflow.by_name["sink"].inputs == ("joint",)
    for wrong, says in (
        (text + sinks.replace("alarms", "cam"), "the name 'cam' stands for the client"),
        (text + sinks.replace('"joint"', '"joined"'), "'alarms' takes its input from unknown node 'joined'"),
        (TREE + sinks, "sinks goes with nodes"),
    ):
        with pytest.raises(UsageError, match=says):
            run(write(wrong))


def test_the_cost_over_a_link_of_rate_0_is_infinite(write: Any) -> None:
    path = write(TREE + LINKS.replace("1e6", "0"))
    assert run_json(path, "--planner", "download-all")["cost_s"] is None
    assert "infinite (over a link of rate 0)" in run(path, "--planner", "download-all")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hosts = [", "problem.toml: "),
        ("hosts = 3\ndataflow = {}", "Expected `array`"),
        (TREE.replace("startup_s", "start_s"), "unknown field `start_s`.*costs.*did you mean 'startup_s'"),
        (TREE.replace("compute_s =", "computes ="), "unknown field `computes`.*did you mean 'compute_s'"),
        (TREE.replace("startup_s = 0", "startup_s = -1"), "startup_s is -1"),
        (TREE.replace('"star"', '"stat"'), "unknown tree 'stat'; did you mean 'star'"),
        (SMALL, "either tree and sources, or nodes"),
        (TREE.replace('"b"]', '"c"]'), "unknown host 'b'"),
        (TREE.replace("b = 125000", "b = -1"), "'source@b' is -1"),
        (TREE.replace("[dataflow]", 'client = "clint"\n[dataflow]'), "did you mean 'client'"),
        (TREE, "no rate for a to client, b to client"),
        (TREE + LINKS.replace("1mbit", "1mbt"), "link a to client: '1mbt' is not a rate"),
        (TREE + LINKS.replace("1e6", "-1"), "link b to client: -1.0 must be finite"),
        (TREE + LINKS.replace('"b"', '"a"'), "link a to client is given twice"),
        (TREE + LINKS.replace('"b"', '"bb"'), "unknown host 'bb'; did you mean 'b'"),
        (TREE + LINKS.replace('"b"', '"client"'), "from 'client' to itself"),
        (TREE + LINKS + '[placement]\nop1 = "a"', "names node 'op1'"),
        (TREE + LINKS + 'latency = "20 parsec"', "the link b to client: '20 parsec' is not a time"),
        ('latency = "nowhere"\n' + TREE, "problem.toml: .*nowhere"),
        (TREE + LINKS + "[capacities]\nbb = {}", "capacities name unknown host 'bb'; did you mean 'b'"),
        (TREE + LINKS + "[capacities]\nb = {sped = 2}", "unknown field `sped`.*did you mean 'speed'"),
        (TREE + LINKS + "[capacities]\nb = {cores = 0}", "a host's cores are 0; give 1 to 65536"),
        (
            'hosts = ["h"]\n[[dataflow.nodes]]\nname = "x"\nhost = "h"\nbytes = 1\ninputs = ["x"]',
            "has inputs and bytes",
        ),
        (
            'hosts = ["h"]\n[[dataflow.nodes]]\nname = "x"\nhost = "h"\nbytes = 1\n'
            '[[dataflow.nodes]]\nname = "y"\nhost = "h"\nbytes = 1',
            r"the only node that feeds no other node; here these are \['x', 'y'\]",
        ),
    ],
)
def test_wrong_files_are_refused_in_a_single_line(write: Any, text: str, says: str) -> None:
    arguments = ["--option", "start=current"] if "[placement]" in text else []
    with pytest.raises(UsageError, match=says) as error:
        run(write(text), *arguments)
    assert "\n" not in str(error.value)


class Near:
    """Planner of a user that considers latencies, and speeds and loads of hosts."""

    def plan(self, task: Task, model: CostModel) -> Plan:
        task.view.require_latency([("a", "b")])
        ahead = {host: task.view.latency_s(host, "client") or 0.0 for host in task.hosts[1:]}
        best = min(ahead, key=lambda host: ahead[host] + task.compute_factor(host))
        return Plan({node.name: node.pinned or best for node in task.dataflow.nodes}, task.dataflow)


def test_a_planner_sees_the_latencies_and_capacities_of_the_file(write: Any) -> None:
    with pytest.raises(UsageError, match=r"gives no latency for a to b, which .*:Near needs; add it to links, set def"):
        run(write(TREE + LINKS), "--planner", f"{__name__}:Near")
    path = write('latency = "rtt.csv"\n' + TREE + LINKS + 'latency = "700ms"\n')
    (path.parent / "rtt.csv").write_text("src,dst,rtt_ms\na,b,10\na,client,900\nb,client,30\n")
    assert run_json(path, "--planner", f"{__name__}:Near")["placement"]["op0"] == "a"
    faster = path.read_text() + "[capacities]\nb = {speed = 2, load = 0.5}\n"
    assert run_json(write(faster), "--planner", f"{__name__}:Near")["placement"]["op0"] == "b"
    slow, quick = (
        run_json(write(TREE + LINKS + text), "--planner", "one-shot")
        for text in ("", "[capacities]\nclient = {speed = 4}\n")
    )
    assert quick["download_all_cost_s"] < slow["download_all_cost_s"]


def test_thalweg_chooses_the_tree_and_the_bound_is_printed(write: Any) -> None:
    content = run_json(EXAMPLE, "--planner", "thalweg", "--bound")
    fixed = run_json(EXAMPLE, "--planner", "one-shot", "--cost", "period", "--bound")
    assert content["cost_model"] == "period"  # it has no other
    assert content["bound_period_s"] == fixed["bound_period_s"] < content["cost_s"] < fixed["cost_s"] / 2
    assert "inputs" not in fixed and set(content["inputs"]) == set(content["placement"]) - {
        name for name in content["placement"] if name.startswith("source@")
    }
    text = run(EXAMPLE, "--planner", "thalweg", "--bound", "--cost", "expected-period")
    assert "has a period below" in text and "(independent interfaces; transfers alone)" in text
    where_order_matters = EXAMPLE.read_text().replace("reorderable = true", "reorderable = false")
    ordered = run_json(write(where_order_matters), "--planner", "thalweg")
    assert "inputs" not in ordered and ordered["cost_s"] <= fixed["cost_s"]
    with pytest.raises(UsageError, match="gives no rate for a to b, which --bound needs; add links, or set default"):
        run(write(TREE + LINKS), "--planner", "download-all", "--bound")


def test_wrong_options_are_refused(write: Any, tmp_path: Path) -> None:
    path = write(TREE + LINKS)
    for arguments, says in (
        (["--planner", "one-shoot"], "did you mean 'one-shot'"),
        (["--cost", "critical"], "did you mean 'critical-path'"),
        (["--option", "start"], "is not KEY=VALUE"),
        (["--option", "start=nowhere"], "Invalid enum value"),
        (["--option", "start=current"], "needs the current placement"),
    ):
        with pytest.raises(UsageError, match=says):
            run(path, *arguments)
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        run(tmp_path / "missing.toml")


OPTIMAL = EXAMPLE.with_name("optimal.toml")


def test_the_optimum_of_the_example_is_proven_and_no_other_placement_is_better(tmp_path: Path) -> None:
    answer = run_json(OPTIMAL, "--planner", "odp", "--mps", tmp_path / "odp.mps")
    assert answer["proven"] and answer["gap"] <= 1e-6 and 0 <= answer["utility"] <= 1
    assert answer["weights"] == {"response": 0.5, "availability": 0.3, "usage": 0.2}
    assert all(ends["proven"] and ends["best"] <= ends["worst"] for ends in answer["extremes"].values())
    assert answer["placement"]["camera"] == "edge-1" and answer["placement"]["count"] != "edge-1"
    assert "ROWS" in (tmp_path / "odp.mps").read_text()
    by_program = run_json(OPTIMAL, "--planner", "odp", "--option", "structure=false")
    assert by_program["way"] == "program" and by_program["cost"] == pytest.approx(answer["cost"], rel=1e-6)
    text = run(OPTIMAL, "--planner", "odp")
    assert "proven optimal; found by frontier" in text and "response counts 0.5: best" in text
    for planner in ("exhaustive", "one-shot", "download-all"):
        other = run_json(OPTIMAL, "--planner", planner, "--cost", "objective")
        assert other["cost_s"] >= answer["cost"] * (1 - 1e-9)
        assert (planner != "exhaustive") or other["cost_s"] == pytest.approx(answer["cost"])
    alone = run_json(
        OPTIMAL, "--planner", "odp", "--option", "objective=availability", "--option", "availability=hosts"
    )
    assert alone["metrics"]["availability"] >= answer["metrics"]["availability"]
    assert "usage: " in run(OPTIMAL, "--cost", "usage")


def test_cost_space_and_download_all_are_evaluated_with_the_requested_cost() -> None:
    own, other = (run_json(OPTIMAL, "--planner", name, "--cost", "usage") for name in ("cost-space", "one-shot"))
    assert own["cost_model"] == "usage"
    assert own["download_all_cost_s"] == own["initial_cost_s"] == other["download_all_cost_s"]
    assert other["cost_s"] <= own["cost_s"] < own["download_all_cost_s"]


def test_heuristics_and_planners_are_compared_with_the_optimum(write: Any) -> None:
    answer = run_json(OPTIMAL, "--compare")
    scores = {row["name"]: row for row in answer["compared"]}
    assert answer["proven"] and {"local-search", "t-storm", "rizou", "planner one-shot"} <= scores.keys()
    assert scores["local-search"]["ratio"] == pytest.approx(1.0) == scores["planner one-shot"]["ratio"]
    placed = [row["ratio"] for row in answer["compared"] if row["ratio"] is not None]
    assert placed == sorted(placed) and placed[0] >= 1 - 1e-9
    refused = scores["planner download-all"]
    assert refused["cost"] is None and "is on 'client', which is no candidate of it" in refused["said"]
    by_usage = run_json(OPTIMAL, "--compare", "--planner", "odp", "--option", "objective=usage")
    assert by_usage["weights"] == {"usage": 1.0}
    assert {row["name"]: row["ratio"] for row in by_usage["compared"]}["planner one-shot"] == pytest.approx(1.0)
    assert "proven optimal, by frontier" in run(OPTIMAL, "--compare")
    for arguments, says in (
        ([], "place needs a FILE, or --compare --random N"),
        (["--random", "3"], "--random goes with --compare, in place of FILE"),
        ([OPTIMAL, "--compare", "--random", "3"], "--random goes with --compare, in place of FILE"),
        ([OPTIMAL, "--compare", "--planner", "thalweg"], "--compare compares with odp; leave --planner thalweg away"),
        ([EXAMPLE, "--compare"], "gives no latency for austin to client, .* which odp needs"),
        ([OPTIMAL, "--compare", "--option", "objective=usag"], "did you mean 'usage'"),
    ):
        with pytest.raises(UsageError, match=says):
            run(*arguments)


def test_heuristics_are_compared_on_random_problems() -> None:
    answer, again = (run_json("--compare", "--random", "2", "--seed", "1") for _ in range(2))
    ratios = {heuristic["name"]: heuristic for heuristic in answer["heuristics"]}
    assert answer["problems"] == 2 == answer["proven"] == ratios["local-search"]["found"]
    for heuristic, repeated in zip(answer["heuristics"], again["heuristics"], strict=True):
        assert {**heuristic, "planning_ms": 0} == {**repeated, "planning_ms": 0}
        assert (
            heuristic["found"] <= 2
            and 1 - 1e-9 <= heuristic["median"] <= heuristic["percentile_95"] <= heuristic["worst"]
        )
    assert ratios["local-search"]["worst"] <= 1.05
    text = run("--compare", "--random", "1", "--seed", "2")
    assert "ratios of costs to the optimum's, on 1 random problem" in text


def test_a_share_of_the_candidates_is_drawn_by_a_seed() -> None:
    answers = [
        run_json(OPTIMAL, "--planner", "odp", "--option", "candidates=0.4", "--option", f"seed={seed}")
        for seed in (1, 1, 2)
    ]
    assert answers[0]["placement"] == answers[1]["placement"] != answers[2]["placement"]
    assert "of 40% of the candidates" in run(OPTIMAL, "--planner", "odp", "--option", "candidates=0.4")


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ('["edge-2", "edge-3", "cloud"]', "[]", "node 'count' has no candidate; name a host that it may be on"),
        ('["edge-2", "edge-3", "cloud"]', '["mars"]', "node 'count' has the candidate 'mars', which is no host"),
        (
            '["edge-2", "edge-3", "cloud"]',
            '["cloud"]\nhost = "edge-3"',
            "pinned to 'edge-3', which is not among its",
        ),
        ('host = "edge-2"', 'host = "mars"', "'mars'"),
        (
            'host = "edge-1"',
            'host = "edge-1"\ndemand = 3',
            "operator 'camera' needs 3, and of its candidates the largest has 2: 1 are short",
        ),
        (
            "demand = 2 ",
            'candidates = ["edge-1"]\ndemand = 9 ',
            "'tag' needs 9, and of its candidates the largest has 2: 7",
        ),
        (
            "availability = 0.995",
            "availability = 0",
            "availability of host 'edge-2' is 0; it must be above 0, at",
        ),
        ("availability = 0.99 ", "availability = 1.5 ", "availability of host 'edge-1' is 1.5"),
        ("availability = 0.999", "availability = -1", "link_availability of the link from 'edge-1' to 'edge-2' is -1"),
        ("speed = 4", "speed = 0", "a host's speed is 0"),
        ("response = 0.5", "response = -0.5", "the weight of response is -0.5"),
        ("response = 0.5", "response = 0.6", "sum to 0.6 + 0.3 + 0.2; make that 1"),
        ("usage = 0.2", "usages = 0.2", "the objective has no 'usages'; did you mean 'usage'"),
        ("usage = 0.2", "usage = 0.1\ntraffic = 0.1", "the objective has both traffic and usage"),
        ('latency = "5ms"', 'latency = "-5ms"', "-5ms"),
        ('default_latency = "30ms"', "", "gives no latency for client to cloud"),
        ('bandwidth = "1mbit"', 'bandwidth = "-1mbit"', "-1mbit"),
        ("takes = { microphone", "takes = { camera", "node 'join' takes from 'camera', which is none of its inputs"),
        ("rate_hz = 10 ", "rate_hz = 0 ", "dataflow.rate_hz is 0.0; give partitions a second, above 0"),
    ],
)
def test_an_invalid_problem_of_optimal_placement_is_refused_in_a_single_line(
    was: str, now: str, said: str, write: Any
) -> None:
    text = OPTIMAL.read_text(encoding="utf-8")
    assert was in text
    text = text.replace(was, now, 1)
    if was == 'default_latency = "30ms"':
        text = text.replace('latency = "12ms"', "")
    with pytest.raises(UsageError) as caught:
        run(write(text), "--planner", "odp")
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_bandwidth_that_is_too_small_is_named(write: Any) -> None:
    """Every consumer of the camera's pictures is behind a link of 8 B/s."""
    text = OPTIMAL.read_text(encoding="utf-8").replace('bandwidth = "1mbit"', 'bandwidth = "64bit"')
    text = text.replace("demand = 2 ", 'candidates = ["edge-2"]\ndemand = 2 ')
    with pytest.raises(
        UsageError, match=r"cannot be solved.* link from 'edge-1' to 'edge-2' has a bandwidth of 8, .* short"
    ):
        run(write(text), "--planner", "odp")
    with pytest.raises(UsageError, match="--mps writes the program of --planner odp"):
        run(OPTIMAL, "--mps", "x.mps")


def test_several_trees_are_printed_with_the_share_of_every_tree() -> None:
    options = ("--cost", "period", "--cost-option", "interface=independent", "--planner", "thalweg")
    striped = run_json(EXAMPLE, *options, "--option", "stripes=4")
    assert len(striped["trees"]) == 4
    assert sum(tree["share"] for tree in striped["trees"]) == pytest.approx(1)
    assert all(len(tree["edges"]) == 8 for tree in striped["trees"])
    single = run_json(EXAMPLE, *options)
    assert "trees" not in single
    assert striped["cost_s"] < single["cost_s"]
    assert "tree 4, " in run(EXAMPLE, *options, "--option", "stripes=4")


NETWORKS = EXAMPLE.parent / "two-networks-placement.toml"


@pytest.mark.parametrize(
    ("options", "op1", "over", "dollars"),
    [
        ((), "client", {("h1", "h2"): ["leased"], ("h2", "client"): ["leased"], ("h3", "client"): ["net"]}, 0.13),
        (
            ("--wanted", 0.2), "h2",
            {("h1", "h2"): ["leased"], ("h3", "h2"): ["leased"], ("h2", "client"): ["leased"]}, 0.06,
        ),
        (
            ("--planner", "download-all"), "client",
            {("h1", "client"): ["leased", "leased"], ("h2", "client"): ["leased"], ("h3", "client"): ["net"]}, 0.15,
        ),
        (
            ("--planner", "download-all", "--hops", 1), "client",
            {("h1", "client"): ["net"], ("h2", "client"): ["leased"], ("h3", "client"): ["net"]}, 0.20,
        ),
    ],
)  # fmt: skip
def test_the_networks_of_edges_are_chosen_and_priced(
    options: tuple[object, ...], op1: str, over: dict[tuple[str, str], list[str]], dollars: float
) -> None:
    answer = run_json(NETWORKS, "--cost", "period", *options)
    assert answer["placement"]["op1"] == op1
    chosen = {(edge["src"], edge["dst"]): [link.get("via", "net") for link in edge["over"]] for edge in answer["edges"]}
    assert chosen == over
    assert answer["price_per_partition"] == pytest.approx(131_072 / 1e9 * dollars)
    assert answer["networks_period_s"] < 5.0
    assert f"the bytes of a thousand cost ${131_072 / 1e6 * dollars:.3g}" in run(NETWORKS, "--cost", "period", *options)


@pytest.mark.parametrize(
    ("was", "now", "says"),
    [
        ('network = "leased"', 'network = "leasd"', "over leasd: there is no such network; did you mean 'leased'?"),
        ('rate = "1mbit"\n', "", "h1 to h2 over leased is rented: give the agreed rate"),
        ('src = "h3"\ndst = "h2"', 'src = "h1"\ndst = "h2"', "the link h1 to h2 over leased is given twice"),
        ('kind = "dedicated"', 'kind = "public"', "network 'leased' is public, where no link is rented"),
        ("price_per_gb = 0.09", "price_per_gb = -1", "network 'net' has an impossible price"),
        ('[networks.net]', '[networks.net]\nkind = "dedicated"', "joins all hosts, so it is public"),
    ],
)  # fmt: skip
def test_an_invalid_network_is_refused_in_a_single_line(was: str, now: str, says: str, write: Any) -> None:
    text = NETWORKS.read_text()
    assert was in text
    with pytest.raises(UsageError, match=re.escape(says)) as raised:
        run(write(text.replace(was, now, 1)))
    assert "\n" not in str(raised.value)


def test_invalid_options_of_networks_are_refused(write: Any) -> None:
    for options, says in (
        ((EXAMPLE, "--wanted", "1"), "--wanted and --hops choose between networks"),
        ((NETWORKS, "--wanted", "0"), "--wanted is 0; give partitions a second, above 0"),
        ((NETWORKS, "--hops", "9"), "--hops is 9; give 1, for links from host to host, to 8"),
        ((NETWORKS, "--planner", "odp"), "which odp does not plan for"),
    ):
        with pytest.raises(UsageError, match=says):
            run(*options)
