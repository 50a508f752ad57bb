"""Shares in virtual time, each in a separate world, so that streams do not compete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.emulation.scenarios.timeline import Timeline
from thalweg.emulation.virtual.world import World
from thalweg.experiments.papers.pietzuch2006.running.job import BEFORE, Got, Ran, Share
from thalweg.experiments.run_config import CLIENT
from thalweg.experiments.simulation.links import carrying, world_config
from thalweg.experiments.simulation.run import real_code
from thalweg.middleware.dataflow import Dataflow, sinks_at
from thalweg.middleware.errors import RunError
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.middleware.protocol import events as e
from thalweg.middleware.shell.packing import opened
from thalweg.operators.reference import digest


def virtually(shares: tuple[Share, ...], network: Timeline, partitions: int) -> Ran:
    """Run the shares. Raise RunError if a share fails."""
    rows: list[Mapping[str, Any]] = []
    got, placements = {}, {}
    for share in shares:
        script = Script(share, network, rows)
        got[share.label] = script.run(partitions)
        placements[share.label] = script.world.placement
    return Ran(shares, partitions, got, rows, placements)


class Script:
    """Share with a first query, later queries after ``BEFORE`` partitions, and moves when every query has begun."""

    def __init__(self, share: Share, network: Timeline, rows: list[Mapping[str, Any]]) -> None:
        self.share = share
        self.queries = [sinks_at(query, CLIENT) for query in share.queries]
        rates = {link: network.trace(link) for link in network.links}
        links = carrying(rates, "independent", network)
        code, config = real_code(DEFAULT_ALLOW, float("inf")), world_config("independent", 0.0)

        def on_record(host: str, now: float, record: e.Record) -> None:
            rows.append(
                {"t": now, "wall": now, "host": host, "placement": share.label, "kind": record.kind, **record.fields}
            )

        self.world = World(tuple(network.hosts), links, code, config, on_record=on_record)
        self.world.on_delivered, self.world.driver = self._delivered, self._drive
        self.digests: dict[str, list[str]] = {}
        self.begun = self.moved = False

    def run(self, partitions: int) -> list[Got]:
        first, world = self.queries[0], self.world
        world.run(first, self._placement(first), partitions, label=self.share.label)
        if failed := world.failed or next(iter(world.queries_failed.values()), None):
            raise RunError(failed)
        results = [Got(0, self.digests[first.sinks[0]])]
        for number, query in enumerate(self.queries[1:], 1):
            begun = world.attached[number]
            results.append(Got(begun.first_index, self.digests[begun.names[query.sinks[0]]]))
        return results

    def _placement(self, query: Dataflow) -> dict[str, str]:
        return {node.name: node.pinned or self.share.placement[node.name] for node in query.nodes}

    def _delivered(self, partition: e.Deliver, now: float) -> None:
        sink = partition.sink or self.queries[0].sinks[0]
        self.digests.setdefault(sink, []).append(digest(opened(partition.value, DEFAULT_ALLOW)))

    def _drive(self) -> None:
        world, share, later = self.world, self.share, self.queries[1:]
        if not self.begun and len(self.digests[self.queries[0].sinks[0]]) >= BEFORE:
            self.begun = True
            for number, query in enumerate(later, 1):
                world.attach(number, query, self._placement(query))
        if share.moved and not self.moved and self.begun and len(world.attached) == len(later):
            self.moved = True
            world.move(share.moved)
