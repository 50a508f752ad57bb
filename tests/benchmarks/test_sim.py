"""The benchmark of the virtual shell: SimPy's model is the same, and answers are complete. Speeds are not checked."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from benchmarks import peers_simpy
from benchmarks.options import SimOptions
from benchmarks.sim import SIMPY_KEYS, STAYING, bench_sim, run_memory
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.links import BULK, CONTROL
from thalweg.experiments.cli.main import invoke
from thalweg.experiments.sweeps.simulation import Simulated, Simulation
from thalweg.middleware.dataflow import Code, Node, complete_binary_tree
from thalweg.middleware.errors import RunError, UsageError
from thalweg.middleware.shell.node_code import NodeCode, NodeResult

needs_simpy = pytest.mark.skipif(not peers_simpy.installed(), reason="SimPy is not installed (the dev extra)")

SIZE = 1000.0
LINK = BandwidthTrace("constant", np.zeros(1), np.full(1, 8.0 * SIZE))  # a partition a second


class Steady(NodeCode):
    """Code with partitions of one size. Sources take half a second, operators a quarter."""

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        return NodeResult(index, int(SIZE), 0.25 if inputs else 0.5)


def steady(node: Node) -> NodeCode:
    return Steady()


@needs_simpy
def test_arrivals_in_simpy_equal_arrivals_computed_by_hand() -> None:
    code = Code("unused")
    hosts = ("h1", "h2", "client")
    links = {(source, target): LINK for source in hosts for target in hosts if source != target}
    demand_s = peers_simpy.DEMAND_BYTES / SIZE
    single = complete_binary_tree({"h1": code}, code)
    arrivals_s = peers_simpy.arrivals(single, {"source@h1": "h1", "sink": "client"}, 3, links, steady, 0.1)
    ask_s = 0.1 + demand_s
    first_s = ask_s + 0.5 + 1.1  # demanded, read, sent; the next partition is read meanwhile
    assert arrivals_s == pytest.approx([first_s + number * (ask_s + 1.1) for number in range(3)])

    both = complete_binary_tree({"h1": code, "h2": code}, code)
    placement = {"source@h1": "h1", "source@h2": "h2", "op0": "client", "sink": "client"}
    arrivals_s = peers_simpy.arrivals(both, placement, 2, links, steady, 0.1)
    # the client sends its two demands one after the other, and receives the partitions likewise
    assert arrivals_s[0] == pytest.approx(ask_s + max(ask_s, 0.5) + 2 * 1.1 + 0.25)
    assert arrivals_s[1] - arrivals_s[0] == pytest.approx(2 * ask_s + 2 * 1.1 + 0.25)


@needs_simpy
def test_an_interface_carries_one_message_at_a_time_and_control_messages_first() -> None:
    import simpy

    env: Any = simpy.Environment()
    interfaces = peers_simpy._Interfaces(env)
    began: list[tuple[str, float]] = []

    def message(name: str, source: str, target: str, rank: int, took_s: float = 1.0) -> peers_simpy.Process:
        yield interfaces.take(source, target, rank)
        began.append((name, env.now))
        yield env.timeout(took_s)
        interfaces.give_back(source, target)

    for step in (
        ("first", "a", "b", BULK),
        ("older", "a", "c", BULK),
        ("elsewhere", "c", "d", BULK, 0.5),
        ("control", "c", "a", CONTROL),
        ("last", "b", "a", BULK),
    ):
        env.process(message(*step))
    env.run()
    assert began == [("first", 0.0), ("elsewhere", 0.0), ("control", 1.0), ("older", 2.0), ("last", 3.0)]


@pytest.mark.long
@needs_simpy
def test_the_virtual_world_and_simpy_give_the_same_interarrival_time() -> None:
    answer = bench_sim(SimOptions(servers=(8,), images=40, placements=STAYING, rounds=3, memory=()))
    assert answer["simpy"] == peers_simpy.version()
    for row in answer["rows"]:
        assert row["interarrival_ratio"] == pytest.approx(1.0, abs=0.03)
        assert row["ratio"] > 0


@pytest.mark.long
def test_the_figures_of_simpy_are_missing_if_simpy_is_not_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers_simpy, "installed", lambda: False)
    options = ["bench", "sim", "--servers", "2", "--images", "3", "--rounds", "1", "--memory", "3"]
    assert invoke([*options, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (answer["bench"], answer["simpy"], answer["images"], answer["rounds"]) == ("sim", None, 3, 1)
    assert [(row["servers"], row["placement"]) for row in answer["rows"]] == [
        (2, name) for name in SimOptions().placements
    ]
    for row in answer["rows"]:
        assert all(row.pop(key) is None for key in SIMPY_KEYS)
        row.pop("placement")
        assert all(figure > 0 for figure in row.values())
    (memory,) = answer["memory"]
    assert (memory["images"], memory["servers"]) == (3, 2)
    assert 1_000_000 < memory["before_bytes"] <= memory["peak_bytes"]
    assert memory["grown_bytes"] == memory["peak_bytes"] - memory["before_bytes"]
    assert invoke([*options, "--placement", "one-shot"]) == 0
    table = capsys.readouterr().out
    assert all(text in table for text in ("one-shot", "virtual s/s", "peak MB", "SimPy is not installed"))


def test_placements_share_networks_and_figures_are_medians_over_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []
    means = {0: 5.0, 1: 90.0, 2: 7.0}

    def simulate(config: Simulation) -> Simulated:
        asked.append((config.configuration, config.placement))
        return Simulated(mean_interarrival_s=means[config.configuration], elapsed_s=10.0, events=4, delivered=2)

    monkeypatch.setattr("benchmarks.sim.simulate", simulate)
    placements = ("one-shot", "local")
    answer = bench_sim(SimOptions(servers=(2, 2), images=2, placements=placements, rounds=3, memory=(), others=False))
    assert [row["placement"] for row in answer["rows"]] == list(placements)
    assert {row["mean_interarrival_s"] for row in answer["rows"]} == {7.0}
    assert asked[1:] == [(number, name) for number in range(3) for name in placements for _ in range(2)]


def test_options_that_cannot_be_simulated_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="2 images"):
        bench_sim(SimOptions(images=1))
    with pytest.raises(UsageError, match="1 server"):
        bench_sim(SimOptions(servers=()))
    with pytest.raises(UsageError, match="measure memory"):
        bench_sim(SimOptions(memory=(0,)))
    with pytest.raises(RunError, match=r"memory is measured failed: .*nowhere"):
        run_memory(Simulation(servers=2, images=2, placement="nowhere"))
    monkeypatch.setattr("benchmarks.sim.simulate", lambda config: Simulated(failed="h1 is gone"))
    with pytest.raises(RunError, match="failed: h1 is gone"):
        bench_sim(SimOptions(servers=(2,), images=2, rounds=1, memory=()))
