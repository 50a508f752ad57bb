"""What hosts passed on for others, of one placement of a run."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from thalweg.experiments.records.log import Row


class Relaying(msgspec.Struct, frozen=True):
    """What went from one host to another over ``relays``, in this order: so many partitions, and their bytes."""

    source: str
    target: str
    relays: tuple[str, ...]
    partitions: int
    size_bytes: int

    @property
    def text(self) -> str:
        """For people: ``30 partitions (3.9 MB) from h1 to client``."""
        return f"{self.partitions} partitions ({self.size_bytes / 1e6:.3g} MB) from {self.source} to {self.target}"


def relayings(rows: Iterable[Row]) -> list[Relaying]:
    """Of records of kind ``relayed``, by source, target and relays: what the last of these passed on."""
    found: dict[tuple[str, str, tuple[str, ...]], Relaying] = {}
    for row in rows:
        source, target, relays = row.detail.source, row.detail.target, row.detail.relays
        if source is None or target is None or row.host not in relays[-1:]:
            continue
        known = found.get((source, target, relays), Relaying(source, target, relays, 0, 0))
        there = known.partitions + 1, known.size_bytes + (row.size_bytes or 0)
        found[source, target, relays] = Relaying(source, target, relays, *there)
    return [found[route] for route in sorted(found)]
