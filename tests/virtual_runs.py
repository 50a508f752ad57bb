"""Dataflows run in virtual time, their own code on real values, while messages get lost and operators move."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.faults import FaultPlan, FaultyWorld, Storm
from thalweg.emulation.virtual.world import WorldConfig
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.experiments.simulation.run import real_code
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.network.view import links_between
from thalweg.middleware.planning.registry import RandomMoves
from thalweg.middleware.protocol import events as e
from thalweg.middleware.shell.packing import opened

HOSTS = ("h1", "h2", "h3", "client")


class Moved:
    """A run of ``partitions`` with ``moves``: its values, the ``seconds`` of their delivery, its ``records``."""

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
