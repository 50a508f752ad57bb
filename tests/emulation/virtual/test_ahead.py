"""Several partitions under way over an edge, in virtual time: at the rate of the links, once and in order."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.links import ShapedLink
from thalweg.emulation.virtual.world import World
from thalweg.experiments.cli.verbs import app
from thalweg.experiments.faults.generated_plans import drawn_plan
from thalweg.experiments.faults.trials import run_trial
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.network.view import Link
from thalweg.middleware.protocol import commands as c
from thalweg.middleware.shell.node_code import NodeCode, NodeResult

PLANS = int(os.environ.get("THALWEG_AHEAD_PLANS", "2"))
RATE_BPS, DELAY_S = 10e6, 0.1
HOSTS = "h1", "h2", "client"
CODE = Code("composite")
ONE_EACH = Dataflow(
    (
        Node("s", "source", (), CODE, "h1"),
        Node("o", "operator", ("s",), CODE),
        Node("t", "sink", ("o",), None, "client"),
    )
)


class Says(NodeCode):
    """Code whose value is its index."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        assert inputs in ((), (index,))
        return NodeResult(index, self.size_bytes)


class Ran:
    """Run of a source, an operator and a sink, with delivery times and the most values that a host held."""

    def __init__(self, ahead: int, size_bytes: int, partitions: int = 100) -> None:
        rates, shapes = BandwidthTrace.constant("steady", RATE_BPS), [(0.0, LinkShape(RATE_BPS, DELAY_S))]
        links = {Link(*pair): ShapedLink(rates, shapes, " ".join(pair)) for pair in itertools.permutations(HOSTS, 2)}
        config = WorldConfig("independent", startup_s=0.0, ahead=ahead, validate=True)
        self.world = World(HOSTS, links, lambda _: Says(size_bytes), config)
        self.seconds: list[float] = []
        self.held = 0
        self.world.on_delivered = self._delivered
        self.world.run(ONE_EACH, {"s": "h1", "o": "h2", "t": "client"}, partitions)
        half = partitions // 2
        self.share = size_bytes * 8 * (partitions - half) / (self.seconds[-1] - self.seconds[half - 1]) / RATE_BPS

    def _delivered(self, part: c.Deliver, now: float) -> None:
        assert part.index == part.value == len(self.seconds)
        self.seconds.append(now)
        for host in self.world.hosts.values():
            for run in host.core.runs.values():
                for node in run.flow.nodes.values():
                    waiting = sum(map(len, node.received.prefetched.values()))
                    self.held = max(self.held, len(node.window.unacked) + waiting)


@pytest.mark.parametrize(("size_bytes", "ahead"), [(16_384, 17), (65_536, 5), (262_144, 2)])
def test_a_link_with_a_long_delay_carries_the_full_rate(size_bytes: int, ahead: int) -> None:
    """The partitions of a round trip of 200 ms at 10 Mbit/s are under way, and one partition more."""
    ran = Ran(ahead, size_bytes)
    assert len(ran.seconds) == 100
    assert ran.share >= 0.95
    assert ran.held <= 2 * ahead - 1, "of one node: outputs that are not acknowledged, inputs that have come early"


def test_ahead_auto_finds_the_number_of_partitions_that_the_links_need(tmp_path: Path) -> None:
    """``--ahead auto`` uses measurements of links. It comes within 5 % of 64 partitions ahead."""
    scenario, means = Path(__file__).parents[3] / "docs/examples/long-delays.toml", {}
    options = ("--testbed", "sim", "--scenario", str(scenario), "--placement", "one-shot", "--images", "120")
    for size in ("16KB", "64KB", "256KB"):
        for ahead in ("auto", "64"):
            more = ("--image-bytes", size, "--pixel-s", "0", "--startup-s", "0", "--ahead", ahead)
            outputs = ("--json", "--out", str(tmp_path / size / ahead))
            done = CliRunner().invoke(app, ["run", *options, *more, *outputs], catch_exceptions=False)
            result = json.loads(done.stdout.splitlines()[-1])["placements"]["one-shot"]
            assert (result["lost"], result["out_of_order"]) == (0, 0)
            means[ahead] = result["mean_interarrival_s"]
        assert means["auto"] < 1.05 * means["64"], (size, means)


def test_a_link_with_a_single_partition_under_way_waits_for_every_round_trip() -> None:
    assert Ran(1, 65_536).share < 0.25
    assert Ran(2, 65_536).share < 0.5, "credit for two is two of them in a round trip"


@pytest.mark.parametrize(
    ("seed", "graph", "ahead"),
    [
        (2050, False, 4),  # an operator is run on its next inputs, which are here, before its state is taken
        (20786, False, 4),  # the tree changes while a node that went on keeps several outputs for the only consumer
        (3007, True, 8),  # of several consumers one that begins later holds up a node that keeps more outputs for it
        (3010, True, 4),  # what a late demand asks of a tail is waited for though it has come
        *[(seed, graph, 2 + seed % 7) for graph in (False, True) for seed in range(7000, 7000 + PLANS)],
    ],
)
def test_partitions_come_once_in_order_under_faults_or_the_run_gives_the_cause(
    seed: int, graph: bool, ahead: int
) -> None:
    """Operators of drawn trees and graphs move, are reshaped and are lost. ``THALWEG_AHEAD_PLANS=1000`` draws 1000."""
    plan = msgspec.structs.replace(drawn_plan(seed, graph=graph), ahead=ahead)
    result, _ = run_trial(plan)
    assert result.outcome != "failed", result
    assert not (result.duplicate or result.out_of_order)
