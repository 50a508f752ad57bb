"""What hosts passed on for others, of one placement of a run."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from thalweg.experiments.records.log import Row


class Relaying(msgspec.Struct, frozen=True):
    """What went from one host to another over ``relays``: so many partitions, and their bytes."""

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
    """Of records of kind ``relayed``, by source and target: the relays between them, and what the last passed on."""
    found: dict[tuple[str, str], Relaying] = {}
    for row in rows:
        source, target = row.detail.source, row.detail.target
        if source is None or target is None:
            continue
        known = found.get((source, target), Relaying(source, target, (), 0, 0))
        relays = known.relays if row.host in known.relays else tuple(sorted((*known.relays, row.host)))
        last = row.peer == target
        there = known.partitions + last, known.size_bytes + (row.size_bytes or 0) * last
        found[source, target] = Relaying(source, target, relays, *there)
    return [found[pair] for pair in sorted(found)]
