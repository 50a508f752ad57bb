"""Placed dataflows in words: where operators are, and the tree over hosts in one line.

Clients' workers import this module, also in containers, where nothing is that reads Parquet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from thalweg.middleware.dataflow import Dataflow, Node


def operators_at(dataflow: Dataflow, placement: Mapping[str, str]) -> dict[str, str]:
    """Where a placement has the operators."""
    return {name: placement[name] for name in dataflow.operators}


def as_line(dataflow: Dataflow, placement: Mapping[str, str]) -> str:
    """A placed tree as ``client(h1 h2(h3 h4))``: h3 and h4 send to h2, and h2 sends one result to the client.

    A host that sends several results, or gets some back, stands there several times. Of a graph who sends to whom.
    """
    if dataflow.not_a_tree():
        return as_edges((placement[edge.producer], placement[edge.consumer]) for edge in dataflow.edges)
    sending: dict[str, list[str]] = {}  # by node, what its host is sent for it
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
    """Who gives to whom, as ``cam > seen archive; seen > archive``; nothing of those that give to themselves."""
    takers: dict[str, dict[str, None]] = {}
    for producer, consumer in edges:
        if producer != consumer:
            takers.setdefault(producer, {})[consumer] = None
    return "; ".join(f"{name} > {' '.join(own)}" for name, own in takers.items())


def rows_as_line(tree: Iterable[tuple[str, list[str], str]]) -> str:
    """The same of the name, inputs and host of every operator and, last, of the sink, as records have them.

    A source is where the name says that the tree builders give it (``source@h1``).
    """
    rows = list(tree)
    if not rows:
        return ""
    own = {name for name, *_ in rows}
    sources = dict.fromkeys(each for _, inputs, _ in rows for each in inputs if each not in own)
    nodes = [Node(name, "source") for name in sources]
    nodes += [Node(name, "operator", tuple(inputs)) for name, inputs, _ in rows[:-1]]
    nodes.append(Node(rows[-1][0], "sink", tuple(rows[-1][1])))
    hosts = {name: name.removeprefix("source@") for name in sources} | {name: host for name, _, host in rows}
    return as_line(Dataflow(tuple(nodes)), hosts)


def ended_as(began: Dataflow, dataflow: Dataflow, placement: Mapping[str, str]) -> dict[str, Any]:
    """What a placement that moves operators is in the end; ``tree`` only where it is another than it began with."""
    found: dict[str, Any] = {"placement": operators_at(dataflow, placement)}
    return found if dataflow == began else {**found, "tree": as_line(dataflow, placement)}
