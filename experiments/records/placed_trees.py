"""Placed dataflows in words: where operators are, and the tree over hosts in one line.

Clients' workers import this, also in containers, where nothing is that reads Parquet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg.middleware.dataflow import Dataflow


def operators_at(dataflow: Dataflow, placement: Mapping[str, str]) -> dict[str, str]:
    """Where a placement has the operators."""
    return {name: placement[name] for name in dataflow.operators}


def as_line(dataflow: Dataflow, placement: Mapping[str, str]) -> str:
    """A placed tree as ``client(h1 h2(h3 h4))``: h3 and h4 send to h2, and h2 sends one result to the client.

    A host that sends several results, or gets some back, stands there several times.
    """
    sending: dict[str, list[str]] = {}  # by node, what its host is sent for it
    for name in dataflow.upward:
        sending[name] = []
        for producer in dataflow.by_name[name].inputs:
            below = sending.pop(producer)
            if placement[producer] == placement[name]:
                sending[name] += below
            else:
                sending[name].append(_with(placement[producer], below))
    return _with(placement[dataflow.sink], sending[dataflow.sink])


def _with(host: str, below: list[str]) -> str:
    return f"{host}({' '.join(below)})" if below else host


def ended_as(began: Dataflow, dataflow: Dataflow, placement: Mapping[str, str]) -> dict[str, Any]:
    """What a placement that moves operators is in the end; ``tree`` only where it is another than it began with."""
    found: dict[str, Any] = {"placement": operators_at(dataflow, placement)}
    return found if dataflow == began else {**found, "tree": as_line(dataflow, placement)}
