"""What a study has run, and what was seen of it, whatever carried the data.

A *share* is one run: a query, others that begin in it and share what is the same, and where operators go when all have
begun. The last host is the client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from thalweg.emulation.proofs.proof import LinkSample
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import RunError
from thalweg.middleware.network.view import Link
from thalweg.operators.reference import digest, reference_run

BEFORE = 2  # partitions of a share's first query, before the others begin
SETTLED = 5  # partitions after the last change, from which on rates are measured: those under way go as before
OPEN = 2  # partitions at the end that are left out: who has all it wants may hear no more of what it sent
LEAST = 5  # partitions over which they are
SAMPLE_S = 0.1  # between two readings of what links have carried, on the wall

Row = Mapping[str, Any]  # of the event log


class Share(msgspec.Struct, frozen=True):
    """``placement``: of all nodes that are not pinned, by the names of the first query; what it has is not begun
    again. ``moved``: those operators that go elsewhere when all have begun. Empty ``placement``: by ``planner``, which
    measures what it needs.
    """

    label: str
    queries: tuple[Dataflow, ...]
    placement: dict[str, str]
    moved: dict[str, str] = {}
    planner: str = ""


class Job(msgspec.Struct, frozen=True):
    """What the client's worker is to do, all shares at a time."""

    shares: tuple[Share, ...]
    partitions: int
    addresses: dict[str, str]
    listen: str
    records: str
    time_scale: float


class Got(msgspec.Struct, frozen=True):
    """What the client got of a query: the digests of its partitions from ``first`` on."""

    first: int
    digests: list[str]


class Ran(msgspec.Struct, frozen=True):
    """``got``: by label and query. ``rows``: the event log. ``samples``: what links carried, where there are any, in
    seconds and bit/s of the wall."""

    shares: tuple[Share, ...]
    partitions: int
    got: Mapping[str, Sequence[Got]]
    rows: Sequence[Row]
    placements: Mapping[str, Mapping[str, str]]
    samples: Sequence[LinkSample] = ()

    def equal(self) -> bool:
        """Whether every query got what a single machine makes from where it began, and all of it."""
        return all(
            one.digests == [digest(value) for value in reference_run(query, self.partitions)][one.first :]
            for share in self.shares
            for query, one in zip(share.queries, self.got[share.label], strict=True)
        )

    def relocations(self) -> int:
        return sum(row["kind"] == "relocated" and row["detail"]["outcome"] == "moved" for row in self.rows)

    def usage(self, latency_s: Mapping[Link, float]) -> tuple[float, tuple[float, float]]:
        """Bytes in transit: of each link with a latency the rate that flowed, by the log, times it; and from when to
        when on the wall that was measured, in the share that was last to begin and the one that was first to end.

        Raises RunError where operators have not come to rest in time.
        """
        total, begins, ends = 0.0, float("-inf"), float("inf")
        after = self.partitions - OPEN
        for share in self.shares:
            rows = [row for row in self.rows if row["placement"] == share.label]
            first = self._settled(share, rows)
            if after - first < LEAST:
                raise RunError(
                    f"operators of {share.label} have come to rest with partition {first} of {self.partitions}"
                )
            spans = _spans(rows, first, after - 1)
            period_s = sum(last["t"] - begun["t"] for begun, last in spans) / len(spans) / (after - first - 1)
            total += _in_transit(rows, first, after, latency_s) / (after - first) / period_s
            begins = max(begins, *(begun["wall"] for begun, _ in spans))
            ends = min(ends, *(last["wall"] for _, last in spans))
        return total, (begins, ends)

    def _settled(self, share: Share, rows: Sequence[Row]) -> int:
        """Return the first partition from which on all queries of a share run and its operators are at rest."""
        begun = max(one.first for one in self.got[share.label])
        moves: list[int] = [row["index"] for row in rows if row["kind"] == "relocated"]
        return SETTLED + max([begun, *moves])

    def carried(self, latency_s: Mapping[Link, float], between: tuple[float, float], time_scale: float) -> float | None:
        """The same by what the kernel counted on the links, headers, demands and all; None where nothing was sampled,
        or for too short a time."""
        begins, ends = between
        if not self.samples or ends - begins < 0.5:
            return None
        bits = 0.0
        for one in self.samples:
            overlap_s = min(one.at_s, ends) - max(one.at_s - SAMPLE_S, begins)
            if overlap_s > 0 and (one.src, one.dst) in latency_s:
                bits += one.delivered_bps * overlap_s * latency_s[Link(one.src, one.dst)]
        return bits / 8 / (ends - begins) / time_scale


def _spans(rows: Sequence[Row], first: int, last: int) -> list[tuple[Row, Row]]:
    """Return the rows with which each node that produces partitions made the first and the last one."""
    made = {(row["node"], row["index"]): row for row in rows if row["kind"] == "produced" and row["index"] >= first}
    return [(made[node, first], made[node, last]) for node in sorted({node for node, _ in made})]


def _in_transit(rows: Sequence[Row], first: int, after: int, latency_s: Mapping[Link, float]) -> float:
    """Return the bytes that were sent over links for these partitions, each times the link's latency."""
    sent: dict[tuple[str, str, str, int], float] = {
        (row["node"], row["host"], row["peer"], row["index"]): row["size_bytes"]
        for row in rows
        if row["kind"] == "transfer" and first <= row["index"] < after and (row["host"], row["peer"]) in latency_s
    }
    return sum(size * latency_s[Link(host, peer)] for (_, host, peer, _), size in sent.items())
