"""Sources that a run goes on without: which may be missing, and of which partitions they are.

A source of a lost host that nobody stands in for is *absent*: it gives nothing from one partition on, until its host is
back. What it gave, and what it did not, is in the graph: its code is ``INTERMITTENT`` then, with its own in it and the
*gaps*, the partitions [first, until) of which it is missing, the last one open while it is absent. So what the run
gives is what one machine gives that evaluates this graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.protocol import messages as m

INTERMITTENT = "thalweg.operators.intermittent:Intermittent"
MOST = 256  # gaps of one source; a host that comes and goes more often is waited for
Gap = tuple[int, int | None]


def may_miss(flow: Dataflow, name: str) -> bool:
    """Whether a run may go on without that source: all that take from it allow it, and every sink has another."""
    node, below = flow.by_name[name], {sink: flow.below(sink) for sink in flow.sinks}
    takers = [flow.by_name[consumer] for consumer in flow.consumers[name]]
    if node.kind != "source" or any(taker.missing != "nothing" for taker in takers) or len(gaps_of(node)) >= MOST:
        return False
    alternatives = [source for source in flow.sources if source != name and not is_absent(flow.by_name[source])]
    return all(any(source in made_of for source in alternatives) for made_of in below.values() if name in made_of)


def gaps_of(node: Node) -> tuple[Gap, ...]:
    """The partitions of which a source is missing."""
    if node.code is None or node.code.use != INTERMITTENT:
        return ()
    return tuple([(first, until) for first, until in node.code.params["gaps"]])


def is_absent(node: Node) -> bool:
    """Whether a source gives nothing now."""
    gaps = gaps_of(node)
    return bool(gaps) and gaps[-1][1] is None


def without_source(node: Node, first: int, at: str) -> Node:
    """The source as it is absent from partition ``first`` on; ``at``: the host that says so. Its own is a stand-in."""
    before = [(start, first if until is None else min(until, first)) for start, until in gaps_of(node) if start < first]
    if before and before[-1][1] == first:
        first = before.pop()[0]
    homes = () if is_absent(node) or node.pinned is None else (node.pinned,)
    stand_ins = tuple(dict.fromkeys([host for host in (*homes, *node.stand_ins) if host != at]))
    return _with(node, [*before, (first, None)], at, stand_ins)


def back(node: Node, first: int, at: str) -> Node:
    """The absent source as it gives from partition ``first`` on what it has, on host ``at``."""
    *before, (start, _) = gaps_of(node)
    gaps: list[Gap] = [*before, (start, first)] if start < first else before
    return _with(node, gaps, at, tuple([host for host in node.stand_ins if host != at]))


def spared(node: Node, barred: Collection[str]) -> Node:
    """The source without those stand-ins that have no part in the run any more."""
    stand_ins = tuple([host for host in node.stand_ins if host not in barred])
    return node if stand_ins == node.stand_ins else msgspec.structs.replace(node, stand_ins=stand_ins)


def with_gaps(flow: Dataflow, gaps: Mapping[str, Iterable[Gap]]) -> Dataflow:
    """The graph whose sources are missing of these partitions, where each of its hosts is."""
    nodes = [_with(n, list(gaps[n.name]), n.pinned or "", n.stand_ins) if gaps.get(n.name) else n for n in flow.nodes]
    return Dataflow(tuple(nodes))


def all_gaps(flow: Dataflow) -> dict[str, tuple[Gap, ...]]:
    """By source the partitions of which it is missing; those that have all are left out."""
    return {node.name: gaps for node in flow.nodes if (gaps := gaps_of(node))}


def own_code(node: Node) -> Code | None:
    """The code of a node, of a source as it is where nothing is missing."""
    code = node.code
    return Code(**code.params["code"]) if code is not None and code.use == INTERMITTENT else code


def _with(node: Node, gaps: list[Gap], at: str, stand_ins: tuple[str, ...]) -> Node:
    own = own_code(node)
    assert own is not None
    if gaps:
        code = {"use": own.use, "params": own.params}
        own = Code(INTERMITTENT, {"code": code, "gaps": [list(gap) for gap in gaps]})
    return msgspec.structs.replace(node, code=own, pinned=at, stand_ins=stand_ins)


# --- what other operators remember of it ----------------------------------------------------------------


def above(flow: Dataflow, names: Iterable[str]) -> set[str]:
    """All that takes from these nodes, or from what does."""
    reached = {*names}
    for name in flow.upward:
        if not reached.isdisjoint(flow.by_name[name].inputs):
            reached.add(name)
    return reached - {*names}


def gap_at(last: int, replicas: Mapping[str, Collection[int]], bases: Mapping[str, int]) -> int:
    """From which partition on, ``last`` at most, sources may give something else, so that one machine could as well.

    All operators that remember what these gave have to begin there: from their ``replicas`` at that partition, or,
    where they began no sooner (``bases``), anew.
    """
    if not replicas:
        return last
    tries = {0, *(index for indices in replicas.values() for index in indices), *bases.values()}
    fits = (
        i for i in tries if i <= last and all(i in indices or bases[name] >= i for name, indices in replicas.items())
    )
    return max(fits)


def follows(old: m.HistoryGap | None, node: str, index: int, generation: int) -> m.HistoryGap:
    """What is told of another cut of a node."""
    if old is None:
        return m.HistoryGap(node, index, generation, 0, index)
    return m.HistoryGap(node, index, generation, old.generation, min(old.least, old.index, index))


def is_right(cut: m.HistoryGap | None, index: int, generation: int) -> bool:
    """Whether a replica at ``index`` that was right in ``generation`` is so after the cut."""
    if cut is None or generation >= cut.generation:
        return True
    return index <= (cut.index if generation >= cut.before else cut.least)
