"""Number of partitions under way over each edge of a stream's trees, large enough to keep links busy.

A node sends this number of partitions before the acknowledgement of the first has arrived (``Install.ahead``). Take a
link that needs :math:`t` seconds for a partition, and :math:`r` for an empty message there and an empty message back.
With one partition under way, the link sends a partition every :math:`t + r` seconds. With *n* under way, it sends a
partition every :math:`(t + r) / n` seconds, at best every :math:`t`. So the number that fills the link is the
bandwidth-delay product in partitions, plus 1. A further 1 is added because some partitions are larger than others. No
link needs to send more often than the slowest part of the tree takes for a partition. That time is the period of the
stream.

Without delays, one partition under way is enough for constant links and equal partitions. But rates and sizes vary, and
a node receives, computes and sends in turn. So a single tree with several partitions under way is faster: a link that
is fast at the moment works ahead. Several trees keep each other's links busy, and wait longer for their first
partitions if more are under way. A graph that is no tree restarts as a whole after a failure if several partitions are
under way, so it gets more than one only for delays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from thalweg.middleware.dataflow import MOST_AHEAD
from thalweg.middleware.network.view import Link, NetworkView
from thalweg.middleware.planning.problem.hints import Hints
from thalweg.middleware.planning.problem.task import Stripe

LEAST_S = 1e-3  # least time of a host for a partition of any size
VARYING = 4  # partitions under way over each edge of a single tree, for rates and sizes that vary
ROOM_BYTES = 32 * 1024 * 1024  # most bytes of a node's outputs under way for this reason
SPARE = 0.05  # share of the stream's period that may be lost: with shorter delays one partition is enough


def links_of(trees: Iterable[Stripe]) -> frozenset[Link]:
    """Return the links of the shared network that the edges of these trees take."""
    return frozenset(link for tree in trees for link, _ in _edges(tree))


def depth_for(trees: Sequence[Stripe], all_hints: Sequence[Hints], view: NetworkView) -> int:
    """Return the number of partitions that are to be under way over every edge of all trees of a stream, at least 1.

    ``all_hints``: the hints of every tree. ``view``: as for ``depth_of``.
    """
    depth = max(depth_of(tree, hints, view) for tree, hints in zip(trees, all_hints, strict=True))
    tree, known = trees[0], all_hints[0].output_bytes
    sizes = [known[producer] for _, producer in _edges(tree) if producer in known]
    if len(trees) > 1 or tree.dataflow.not_a_tree() or not sizes:
        return depth
    return max(depth, min(VARYING, int(ROOM_BYTES / max(1.0, *sizes))))


def depth_of(tree: Stripe, hints: Hints, view: NetworkView) -> int:
    """Return the number of partitions that fill the links of ``tree`` in spite of their delays, at least 1.

    ``hints``: bytes and seconds of the tree's nodes. ``view``: rates (bit/s) and one-way latencies (s) of the links. A
    link is left out if its rate or latency is unknown, or if its rate is 0.
    """
    known = []
    for link, producer in _edges(tree):
        rate_bps, there_s = view.rate_bps(*link), view.latency_s(*link)
        size_bytes = hints.output_bytes.get(producer)
        if rate_bps and there_s is not None and size_bytes is not None:
            back_s = view.latency_s(link.target, link.source)
            known.append((size_bytes * 8 / rate_bps, there_s + (there_s if back_s is None else back_s)))
    computes_s = [hints.compute_s.get(name, 0.0) for name in tree.dataflow.operators]
    period_s = max([LEAST_S, *computes_s, *(takes_s for takes_s, _ in known)])
    wanted = max([(takes_s + trip_s) / period_s for takes_s, trip_s in known], default=0.0)
    return 1 if wanted <= 1 + SPARE else min(MOST_AHEAD, math.ceil(wanted - SPARE) + 1)


def _edges(tree: Stripe) -> Iterable[tuple[Link, str]]:
    """Yield the link and the producer of every edge between two hosts."""
    where = tree.placement
    for node in tree.dataflow.nodes:
        here = where.get(node.name, node.pinned)
        for producer in node.inputs:
            source = where.get(producer, tree.dataflow.by_name[producer].pinned)
            if here is not None and source is not None and here != source:
                yield Link(source, here), producer
