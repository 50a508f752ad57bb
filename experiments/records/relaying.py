"""Relayed partitions of one placement of a run, by source, target and relays."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from thalweg.experiments.records.log import Row


class Relaying(msgspec.Struct, frozen=True):
    """Number and bytes of the partitions that went from one host to a second host over ``relays``, in this order."""

    source: str
    target: str
    relays: tuple[str, ...]
    partitions: int
    size_bytes: int

    @property
    def text(self) -> str:
        """The figures for people: ``30 partitions (3.9 MB) from h1 to client``."""
        return f"{self.partitions} partitions ({self.size_bytes / 1e6:.3g} MB) from {self.source} to {self.target}"


def relayings(rows: Iterable[Row]) -> list[Relaying]:
    """Return the sums of records ``relayed`` by source, target and relays. Only the last relay's records count."""
    by_route: dict[tuple[str, str, tuple[str, ...]], Relaying] = {}
    for row in rows:
        source, target, relays = row.detail.source, row.detail.target, row.detail.relays
        if source is None or target is None or row.host not in relays[-1:]:
            continue
        known = by_route.get((source, target, relays), Relaying(source, target, relays, 0, 0))
        sums = known.partitions + 1, known.size_bytes + (row.size_bytes or 0)
        by_route[source, target, relays] = Relaying(source, target, relays, *sums)
    return [by_route[route] for route in sorted(by_route)]
