"""Absent sources: sources without which a run continues, and the partitions that each source misses.

If a source of a lost host has no stand-in, the source is *absent*. From one partition on, an absent source delivers
nothing, until the host is back. The graph records the missing partitions as *gaps*: ranges [first, until), of which the
last is open while the source is absent. The code of such a source is ``INTERMITTENT``, with the source's own code and
the gaps as parameters. The results of the run are therefore the results of a single machine that evaluates this graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.protocol import messages as m

INTERMITTENT = "thalweg.operators.intermittent:Intermittent"
MOST = 256  # gaps of a source; a host that is lost more often is waited for
Gap = tuple[int, int | None]


def may_miss(flow: Dataflow, name: str) -> bool:
    """Return whether a run may continue without a source.

    Every consumer of the source has to allow it (``missing="nothing"``). Every sink that the source feeds has to keep a
    further source that is present. A source with ``MOST`` gaps is waited for.
    """
    node, below = flow.by_name[name], {sink: flow.below(sink) for sink in flow.sinks}
    takers = [flow.by_name[consumer] for consumer in flow.consumers[name]]
    if node.kind != "source" or any(taker.missing != "nothing" for taker in takers) or len(gaps_of(node)) >= MOST:
        return False
    alternatives = [source for source in flow.sources if source != name and not is_absent(flow.by_name[source])]
    return all(any(source in made_of for source in alternatives) for made_of in below.values() if name in made_of)


def gaps_of(node: Node) -> tuple[Gap, ...]:
    """Return the gaps of a source: the ranges of partitions that the source has missed."""
    if node.code is None or node.code.use != INTERMITTENT:
        return ()
    return tuple([(first, until) for first, until in node.code.params["gaps"]])


def is_absent(node: Node) -> bool:
    """Return whether a source is absent now: the last gap is open."""
    gaps = gaps_of(node)
    return bool(gaps) and gaps[-1][1] is None


def without_source(node: Node, first: int, at: str) -> Node:
    """Return the source as an absent source from partition ``first`` on. ``at``: the host that it is pinned to
    meanwhile.

    The former host of the source becomes the first stand-in.
    """
    before = [(start, first if until is None else min(until, first)) for start, until in gaps_of(node) if start < first]
    if before and before[-1][1] == first:
        first = before.pop()[0]
    homes = () if is_absent(node) or node.pinned is None else (node.pinned,)
    stand_ins = tuple(dict.fromkeys([host for host in (*homes, *node.stand_ins) if host != at]))
    return _with(node, [*before, (first, None)], at, stand_ins)


def back(node: Node, first: int, at: str) -> Node:
    """Return the absent source as present again from partition ``first`` on, pinned to host ``at``."""
    *before, (start, _) = gaps_of(node)
    gaps: list[Gap] = [*before, (start, first)] if start < first else before
    return _with(node, gaps, at, tuple([host for host in node.stand_ins if host != at]))


def spared(node: Node, barred: Collection[str]) -> Node:
    """Return the source without the stand-ins that have no part in the run any more (``barred``)."""
    stand_ins = tuple([host for host in node.stand_ins if host not in barred])
    return node if stand_ins == node.stand_ins else msgspec.structs.replace(node, stand_ins=stand_ins)


def with_gaps(flow: Dataflow, gaps: Mapping[str, Iterable[Gap]]) -> Dataflow:
    """Return the graph with these gaps of its sources. The sources keep their hosts."""
    nodes = [_with(n, list(gaps[n.name]), n.pinned or "", n.stand_ins) if gaps.get(n.name) else n for n in flow.nodes]
    return Dataflow(tuple(nodes))


def all_gaps(flow: Dataflow) -> dict[str, tuple[Gap, ...]]:
    """Return the gaps of the graph by source. Sources without a gap are left out."""
    return {node.name: gaps for node in flow.nodes if (gaps := gaps_of(node))}


def own_code(node: Node) -> Code | None:
    """Return the code of a node. If the node is a source with gaps, return the code inside ``INTERMITTENT``."""
    code = node.code
    return Code(**code.params["code"]) if code is not None and code.use == INTERMITTENT else code


def _with(node: Node, gaps: list[Gap], at: str, stand_ins: tuple[str, ...]) -> Node:
    own = own_code(node)
    assert own is not None
    if gaps:
        code = {"use": own.use, "params": own.params}
        own = Code(INTERMITTENT, {"code": code, "gaps": [list(gap) for gap in gaps]})
    return msgspec.structs.replace(node, code=own, pinned=at, stand_ins=stand_ins)


# --- what operators remember of a source ----------------------------------------------------------------


def above(flow: Dataflow, names: Iterable[str]) -> set[str]:
    """Return the nodes that consume outputs of these nodes, directly or through further nodes."""
    reached = {*names}
    for name in flow.upward:
        if not reached.isdisjoint(flow.by_name[name].inputs):
            reached.add(name)
    return reached - {*names}


def gap_at(last: int, replicas: Mapping[str, Collection[int]], bases: Mapping[str, int]) -> int:
    """Return the latest partition, at most ``last``, from which sources may deliver other values than before.

    The results must stay those of a single machine. Therefore every operator that remembers the old values restarts
    there, from a replica at that partition (``replicas``). An operator that first began at that partition or later
    (``bases``) begins anew.
    """
    if not replicas:
        return last
    tries = {0, *(index for indices in replicas.values() for index in indices), *bases.values()}
    fits = (
        i for i in tries if i <= last and all(i in indices or bases[name] >= i for name, indices in replicas.items())
    )
    return max(fits)


def follows(old: m.HistoryGap | None, node: str, index: int, generation: int) -> m.HistoryGap:
    """Return the history gap of a node at partition ``index``, combined with the earlier gap ``old`` of the node."""
    if old is None:
        return m.HistoryGap(node, index, generation, 0, index)
    return m.HistoryGap(node, index, generation, old.generation, min(old.least, old.index, index))


def is_right(cut: m.HistoryGap | None, index: int, generation: int) -> bool:
    """Return whether a replica at ``index`` that was valid in ``generation`` is valid after the gap ``cut``."""
    if cut is None or generation >= cut.generation:
        return True
    return index <= (cut.index if generation >= cut.before else cut.least)
