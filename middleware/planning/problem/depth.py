"""How many partitions are to be under way over the edges of a stream's trees: as many as fill links with long delays.

A node sends so many partitions before a word of the first has come back (``Install.ahead``). A link that takes
:math:`t` seconds for a partition, and :math:`r` for an empty message there and another back, sends one every
:math:`t + r` seconds with one under way, and every :math:`(t + r) / n` with *n*, at best every :math:`t`: the
bandwidth-delay product in partitions, and one more, and another as some are larger than others. No link needs to send
more often than the slowest part of the tree takes for a partition, whose period the stream has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from thalweg.middleware.dataflow import MOST_AHEAD
from thalweg.middleware.network.view import Link, NetworkView
from thalweg.middleware.planning.problem.hints import Hints
from thalweg.middleware.planning.problem.task import Stripe

LEAST_S = 1e-3  # that a host takes for a partition, however small it is
SPARE = 0.05  # of the stream's period that may be lost: where delays are shorter one partition under way is enough


def links_of(trees: Iterable[Stripe]) -> frozenset[Link]:
    """The links that the edges of these trees take, over the network that all hosts share."""
    return frozenset(link for tree in trees for link, _ in _edges(tree))


def depth_of(tree: Stripe, hints: Hints, view: NetworkView) -> int:
    """How many partitions are to be under way over every edge of ``tree``, at least 1.

    ``hints``: bytes and seconds of its nodes. ``view``: rates (bit/s) and one-way latencies (s) of its links; a link
    of which either is not known, or that carries nothing, counts for none.
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
    """Every edge between two hosts, as the link that it takes, and its producer."""
    where = tree.placement
    for node in tree.dataflow.nodes:
        here = where.get(node.name, node.pinned)
        for producer in node.inputs:
            source = where.get(producer, tree.dataflow.by_name[producer].pinned)
            if here is not None and source is not None and here != source:
                yield Link(source, here), producer
