"""What another query has in common with a run, and what its other nodes are called there.

Rules:

R1. A node is shared that is the same: the same code, parameters and rate, the same inputs in the same order, and the
    same host where it is pinned, as sources are. Then it makes the same. Where operators that are not pinned are does
    not count, nor ``ahead``: a shared node stays as it is.
R2. One node of the run stands for one of the query: two that are the same are two there as well.
R3. Names that are made up (``op3``, ``source@h1``) mean nothing. One that somebody chose means that node, so it is
    refused for other code.
R4. All other nodes get names that the run has never had, so no late message can be about one of them.
R5. What is to be ``apart`` is not shared, though it is the same; nor is then what takes from it.
R6. A source that is on a stand-in, or missing (``protocol.absent_sources``), is still the one that it was where it was.
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
    """The nodes of ``query`` that the run has already, but for those ``apart``, and what they are called there.

    ``given``: what some are called there, whatever they are made of. Raises DataflowError where there are none, or a
    name of the run's means something else in the query.
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
            # R5: a node that takes from one that is apart is not shared either
            candidates = existing.get(_key(node, tuple([names[producer] for producer in node.inputs]), node.pinned), [])
            # R2: a node of the run stands for one node of the query only
            same = [candidate for candidate in candidates if candidate not in names.values()]
        if same:
            names[name] = name if name in same else same[0]
        elif name in present.by_name and not MADE_UP.match(name):
            _check_name(present.by_name[name], node)
    if not names and not any(map(is_inlet, query.nodes)):  # of a stream over several trees, all of which is there
        raise DataflowError(
            "the query has nothing in common with the run: no source of it has the code, the parameters and the host of"
            " one there; run it by itself"
        )
    return names


def _key(node: Node, inputs: tuple[str, ...], host: str | None) -> object:
    code = msgspec.msgpack.encode(own_code(node), order="deterministic")
    return node.kind, code, inputs, host, node.rate


def _check_name(there: Node, node: Node) -> None:
    """R3."""
    difference, code = "", own_code(there)
    if there.kind != node.kind:
        difference = f"what it names there is the {there.kind}"
    elif code is not None and node.code is not None and code.use != node.code.use:
        difference = f"there it runs {code.use!r}, and here {node.code.use!r}"
    elif code != node.code:
        difference = "its parameters differ"
    if difference:
        raise DataflowError(f"{node.kind} {node.name!r} is not the one of the run: {difference}; give it another name")


class SharedQuery(msgspec.Struct, frozen=True):
    """A query as part of a run: the names of its nodes there, and those that appear."""

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
    """What appears in ``present`` with a query.

    Args:
        placement: a host for every node of the query that the run does not have.
        number: stands in the names of what appears.
        used: names that the run has had.
        apart: nodes of the query that are not to be shared.
        given: what nodes of the query are called there, whatever they are made of.

    Raises DataflowError where nothing is shared, or a host is left out.
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
