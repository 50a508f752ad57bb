"""Nodes that a query shares with a run, and names of the query's remaining nodes in the run.

Rules:

R1. A node of the query is shared if the run has the same node: equal code, parameters and rate, and equal inputs in the
    same order. Pinned nodes, such as sources, also need the same host. The same nodes give the same partitions. Hosts
    of operators that are not pinned do not count, and ``ahead`` does not count. A shared node stays as it is.
R2. One node of the run stands for one node of the query. Two nodes of the query that are the same are two nodes in the
    run.
R3. A generated name (``op3``, ``source@h1``) means nothing. A chosen name means the node of the run, so the name is
    refused for other code.
R4. Every node that is not shared gets a name that the run has never had, so no late message can name the node.
R5. A node that is to be ``apart`` is not shared, even if the run has the same node. Nodes that take from the node are
    not shared either.
R6. A source that runs on a stand-in, or is missing (``protocol.absent_sources``), is still the same source as on its
    own host.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import msgspec

from thalweg.middleware.core.reshaping.shape import fresh_name
from thalweg.middleware.dataflow import Dataflow, Node
from thalweg.middleware.errors import DataflowError
from thalweg.middleware.protocol.absent_sources import own_code
from thalweg.middleware.protocol.messages import Graft
from thalweg.middleware.protocol.split_graph import is_inlet

MADE_UP = re.compile(r"(op\d+|source@.*)(\.\d+)?(~[\d.]+)?\Z")


def shared(
    present: Dataflow, query: Dataflow, apart: Collection[str] = (), given: Mapping[str, str] = {}
) -> dict[str, str]:
    """Return the nodes of ``query`` that the run has already, with their names in the run.

    Nodes in ``apart`` are left out. ``given``: names in the run of nodes of the query, whatever their code is. Raises
    DataflowError if no node is shared, or if a name of the run means a different node in the query.
    """
    existing: dict[object, list[str]] = {}
    for node in present.nodes:
        for host in dict.fromkeys((node.pinned, *node.stand_ins)):  # R6: on a stand-in the source is still the same
            existing.setdefault(_key(node, node.inputs, host), []).append(node.name)
    names = dict(given)
    for name in query.upward:
        node = query.by_name[name]
        if node.kind == "sink" or name in given:
            continue
        same = []
        if name not in apart and all(producer in names for producer in node.inputs):
            # R5: a node that takes from an apart node is not shared either
            candidates = existing.get(_key(node, tuple([names[producer] for producer in node.inputs]), node.pinned), [])
            # R2: a node of the run stands for one node of the query only
            same = [candidate for candidate in candidates if candidate not in names.values()]
        if same:
            names[name] = name if name in same else same[0]
        elif name in present.by_name and not MADE_UP.match(name):
            _check_name(present.by_name[name], node)
    if not names and not any(map(is_inlet, query.nodes)):  # a query with inlets shares what the trees make
        raise DataflowError(
            "the query has nothing in common with the run: no source of the query has the code, the parameters and the"
            " host of a source of the run; run the query by itself"
        )
    return names


def _key(node: Node, inputs: tuple[str, ...], host: str | None) -> object:
    code = msgspec.msgpack.encode(own_code(node), order="deterministic")
    return node.kind, code, inputs, host, node.rate


def _check_name(there: Node, node: Node) -> None:
    """Raise DataflowError if the run has a node of this name with another kind, code or parameters (R3)."""
    difference, code = "", own_code(there)
    if there.kind != node.kind:
        difference = f"the run's node is the {there.kind}"
    elif code is not None and node.code is not None and code.use != node.code.use:
        difference = f"the run's node runs {code.use!r}, and the query's node {node.code.use!r}"
    elif code != node.code:
        difference = "its parameters differ"
    if difference:
        raise DataflowError(
            f"{node.kind} {node.name!r} differs from the run's node of this name: {difference}; give it another name"
        )


class SharedQuery(msgspec.Struct, frozen=True):
    """Query as part of a run: names of its nodes in the run, and the nodes that appear."""

    names: dict[str, str]
    grafts: tuple[Graft, ...]


def join(
    present: Dataflow,
    query: Dataflow,
    placement: Mapping[str, str],
    number: int,
    used: Collection[str],
    apart: Collection[str] = (),
    given: Mapping[str, str] = {},
) -> SharedQuery:
    """Return the names that a query's nodes have in the run ``present``, and the nodes that appear there.

    Args:
        placement: a host for every node of the query that the run does not have.
        number: a number for the names of the nodes that appear.
        used: names that the run has had.
        apart: nodes of the query that are not to be shared.
        given: names in the run of nodes of the query, whatever their code is.

    Raises DataflowError if no node is shared, or if the placement leaves out a host.
    """
    names = shared(present, query, apart, given)
    reserved = {*used, *present.by_name}
    grafts = []
    for name in query.upward:
        if name in names:
            continue
        node = query.by_name[name]
        host = placement.get(name, node.pinned)
        if host is None:
            raise DataflowError(f"the placement leaves out {node.kind} {name!r}; name its host")
        names[name] = fresh_name(name, number, reserved)  # R4: no late message can be about a new name
        node = msgspec.structs.replace(
            node, name=names[name], inputs=tuple([names[producer] for producer in node.inputs])
        )
        grafts.append(Graft(node.name, node.inputs, host, node))
    return SharedQuery(names, tuple(grafts))
