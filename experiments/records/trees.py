"""Placed dataflows as text: the hosts of operators, and the tree over hosts in one line.

Workers of clients import this module, also in containers without a reader of Parquet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from thalweg.middleware.dataflow import Dataflow, Node


def operators_at(dataflow: Dataflow, placement: Mapping[str, str]) -> dict[str, str]:
    """Return the host of each operator in a placement."""
    return {name: placement[name] for name in dataflow.operators}


def as_line(dataflow: Dataflow, placement: Mapping[str, str]) -> str:
    """Return a placed tree as ``client(h1 h2(h3 h4))``: h3 and h4 send to h2, and h2 sends one result to the client.

    A host that sends several results, or gets results back, appears several times. For a graph, the edges are listed
    (``as_edges``).
    """
    if dataflow.not_a_tree():
        return as_edges((placement[edge.producer], placement[edge.consumer]) for edge in dataflow.edges)
    sending: dict[str, list[str]] = {}  # by node, the subtrees that other hosts send to the node
    for name in dataflow.upward:
        sending[name] = []
        for producer in dataflow.by_name[name].inputs:
            below = sending.pop(producer)
            if placement[producer] == placement[name]:
                sending[name] += below
            else:
                sending[name].append(_with(placement[producer], below))
    return _with(placement[dataflow.sinks[0]], sending[dataflow.sinks[0]])


def _with(host: str, below: list[str]) -> str:
    return f"{host}({' '.join(below)})" if below else host


def as_edges(edges: Iterable[tuple[str, str]]) -> str:
    """Return edges between hosts as ``cam > seen archive; seen > archive``. Edges within a host are left out."""
    takers: dict[str, dict[str, None]] = {}
    for producer, consumer in edges:
        if producer != consumer:
            takers.setdefault(producer, {})[consumer] = None
    return "; ".join(f"{name} > {' '.join(own)}" for name, own in takers.items())


def rows_as_line(tree: Iterable[tuple[str, list[str], str]]) -> str:
    """Return a placed tree as a line, from a record's rows: name, inputs and host of all operators and, last, the sink.

    The host of a source follows from the source's name, which the tree builders have made (``source@h1``).
    """
    rows = list(tree)
    if not rows:
        return ""
    own = {name for name, *_ in rows}
    sources = dict.fromkeys(producer for _, inputs, _ in rows for producer in inputs if producer not in own)
    nodes = [Node(name, "source") for name in sources]
    nodes += [Node(name, "operator", tuple(inputs)) for name, inputs, _ in rows[:-1]]
    nodes.append(Node(rows[-1][0], "sink", tuple(rows[-1][1])))
    hosts = {name: name.removeprefix("source@") for name in sources} | {name: host for name, _, host in rows}
    return as_line(Dataflow(tuple(nodes)), hosts)


def ended_as(began: Dataflow, dataflow: Dataflow, placement: Mapping[str, str]) -> dict[str, Any]:
    """Return the final state of a placement that moves operators.

    ``tree`` is present only if the final tree is not the initial tree.
    """
    ended: dict[str, Any] = {"placement": operators_at(dataflow, placement)}
    return ended if dataflow == began else {**ended, "tree": as_line(dataflow, placement)}
