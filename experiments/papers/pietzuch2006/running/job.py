"""Jobs of a study while data flows, and their results on a testbed or in virtual time.

A *share* is one run: a first query, later queries that join and share equal nodes, and moves of operators when all
queries have begun. The last host is the client.
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

BEFORE = 2  # partitions of a share's first query, before the later queries begin
SETTLED = 5  # partitions after the last change that are not measured: some were under way on the old routes
OPEN = 2  # partitions at the end that are left out: a finished host may miss the ends of its last transfers
LEAST = 5  # partitions that are measured
SAMPLE_S = 0.1  # between two readings of the links' counters, on the wall clock

Row = Mapping[str, Any]  # of the event log


class Share(msgspec.Struct, frozen=True):
    """One run of queries. ``placement``: of the nodes that are not pinned, by the names of the first query. Later
    queries share equal nodes. ``moved``: new hosts of operators that move when all queries have begun. Empty
    ``placement``: by ``planner``, which measures what it needs.
    """

    label: str
    queries: tuple[Dataflow, ...]
    placement: dict[str, str]
    moved: dict[str, str] = {}
    planner: str = ""


class Job(msgspec.Struct, frozen=True):
    """Job of the client's worker, with shares that run at the same time."""

    shares: tuple[Share, ...]
    partitions: int
    addresses: dict[str, str]
    listen: str
    records: str
    time_scale: float


class Got(msgspec.Struct, frozen=True):
    """Results of a query at the client: the digests of the partitions from ``first`` on."""

    first: int
    digests: list[str]


class Ran(msgspec.Struct, frozen=True):
    """Results of shares. ``got``: by label and query. ``rows``: the event log. ``samples``: the traffic of links, if
    sampled, in seconds and bit/s of the wall clock.
    """

    shares: tuple[Share, ...]
    partitions: int
    got: Mapping[str, Sequence[Got]]
    rows: Sequence[Row]
    placements: Mapping[str, Mapping[str, str]]
    samples: Sequence[LinkSample] = ()

    def equal(self) -> bool:
        """Return whether every query got the results of a single machine, complete from its first partition on."""
        return all(
            received.digests == [digest(value) for value in reference_run(query, self.partitions)][received.first :]
            for share in self.shares
            for query, received in zip(share.queries, self.got[share.label], strict=True)
        )

    def relocations(self) -> int:
        return sum(row["kind"] == "relocated" and row["detail"]["outcome"] == "moved" for row in self.rows)

    def usage(self, latency_s: Mapping[Link, float]) -> tuple[float, tuple[float, float]]:
        """Return the bytes in transit, by the log: rate times latency, summed over links with a latency. Return also
        the span of the measurement on the wall clock, from the beginning of the last share to the end of the first.

        Raises RunError if operators have not come to rest in time.
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
        begun = max(received.first for received in self.got[share.label])
        moves: list[int] = [row["index"] for row in rows if row["kind"] == "relocated"]
        return SETTLED + max([begun, *moves])

    def carried(self, latency_s: Mapping[Link, float], between: tuple[float, float], time_scale: float) -> float | None:
        """Return the bytes in transit by the kernel's counts on the links, with headers and demands. None: nothing was
        sampled, or for too short a time.
        """
        begins, ends = between
        if not self.samples or ends - begins < 0.5:
            return None
        bits = 0.0
        for sample in self.samples:
            overlap_s = min(sample.at_s, ends) - max(sample.at_s - SAMPLE_S, begins)
            if overlap_s > 0 and (sample.src, sample.dst) in latency_s:
                bits += sample.delivered_bps * overlap_s * latency_s[Link(sample.src, sample.dst)]
        return bits / 8 / (ends - begins) / time_scale


def _spans(rows: Sequence[Row], first: int, last: int) -> list[tuple[Row, Row]]:
    """Return the rows of the first and the last partition of every node that produces partitions."""
    produced = {(row["node"], row["index"]): row for row in rows if row["kind"] == "produced" and row["index"] >= first}
    return [(produced[node, first], produced[node, last]) for node in sorted({node for node, _ in produced})]


def _in_transit(rows: Sequence[Row], first: int, after: int, latency_s: Mapping[Link, float]) -> float:
    """Return the bytes of these partitions over links, times the links' latencies."""
    sent: dict[tuple[str, str, str, int], float] = {
        (row["node"], row["host"], row["peer"], row["index"]): row["size_bytes"]
        for row in rows
        if row["kind"] == "transfer" and first <= row["index"] < after and (row["host"], row["peer"]) in latency_s
    }
    return sum(size * latency_s[Link(host, peer)] for (_, host, peer, _), size in sent.items())
