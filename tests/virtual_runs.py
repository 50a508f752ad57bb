"""Runs of dataflows in virtual time, with real code and values, while messages are lost and operators move."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.faults import FaultPlan, Storm
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.emulation.virtual.links import ShapedLink
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.experiments.simulation.run import real_code
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.network.view import Link, links_between
from thalweg.middleware.planning.registry import RandomMoves
from thalweg.middleware.protocol import events as e
from thalweg.middleware.shell.packing import opened

HOSTS = ("h1", "h2", "h3", "client")


def plane(count: int, seed: int = 1) -> tuple[tuple[str, ...], np.ndarray]:
    """Return ``count`` hosts, the client last, and their latencies: distance in a plane plus both access lines."""
    random = np.random.default_rng(seed)
    places, line_s = random.random((count, 2)) / 5, random.random(count) * 0.02
    latency_s = np.sqrt(((places[:, None] - places[None]) ** 2).sum(2)) + line_s[:, None] + line_s[None]
    np.fill_diagonal(latency_s, 0.0)
    return (*(f"h{number}" for number in range(1, count)), "client"), latency_s


def shaped(
    hosts: Sequence[str], latency_s: np.ndarray, *, dead: Collection[str] = (), later: Mapping[str, float] = {}
) -> dict[Link, ShapedLink]:
    """Return links with these latencies. Links of ``dead`` hosts carry nothing. ``later``: by host, the latency that
    all of its links gain after half a minute."""
    fast, hardly = BandwidthTrace.constant("fast", 1e8), BandwidthTrace.constant("hardly", 1e-6)
    links = {}
    for (a, source), (b, target) in itertools.permutations(enumerate(hosts), 2):
        after_s = later.get(source, 0.0) + later.get(target, 0.0)
        shapes = [(0.0, LinkShape(1e8, float(latency_s[a, b])))]
        shapes += [(30.0, LinkShape(1e8, float(latency_s[a, b]) + after_s))] if after_s else []
        rate = hardly if {source, target} & {*dead} else fast
        links[Link(source, target)] = ShapedLink(rate, shapes, f"{source} {target}")
    return links


class Moved:
    """Run of ``partitions`` with ``moves``: ``values``, ``seconds`` of the deliveries, and ``records``."""

    def __init__(
        self, flow: Dataflow, partitions: int, allow: Collection[str] = (), *, moves: int = 12, seed: int = 0
    ) -> None:
        self.values: list[Any] = []
        self.seconds: list[float] = []
        self.records: list[e.Record] = []
        allow = ("thalweg.operators", *allow)
        links = {link: BandwidthTrace.constant(" ".join(link), 1e6) for link in links_between(HOSTS)}
        storm = FaultPlan(seed, (Storm(drop=0.1, duplicate=0.1, unconfirmed=0.1),) if moves else ())
        world = FaultyWorld(
            HOSTS,
            links,
            real_code(allow, 1e9),
            storm,
            WorldConfig("independent", startup_s=0.0, validate=True),
            on_record=lambda _, __, record: self.records.append(record),
        )

        def delivered(command: e.Deliver, now: float) -> None:
            assert command.index == len(self.values)
            self.values.append(opened(command.value, allow))
            self.seconds.append(now)

        world.on_delivered = delivered
        if moves:
            world.driver = RandomMover(RandomMoves(moves, seed), world, HOSTS).on_delivered
        spread = {name: HOSTS[(seed + place) % len(HOSTS)] for place, name in enumerate(flow.operators)}
        pinned = {node.name: node.pinned or "client" for node in flow.nodes if node.kind != "operator"}
        flow = flow.validate()
        world.run(flow, {**spread, **pinned}, partitions)
        self.failed, self.relocations = world.failed, world.relocations

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [record.fields for record in self.records if record.kind == kind]
