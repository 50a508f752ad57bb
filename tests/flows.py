"""Small dataflows that many tests run."""

from __future__ import annotations

from thalweg.middleware.dataflow import Code, Dataflow, Node


def chain(source: Code, *operators: Code, host: str = "h1", client: str | None = None) -> Dataflow:
    """Return the dataflow ``s`` on a host -> ``o`` -> ``p`` … -> ``t`` on the client."""
    nodes = [Node("s", "source", (), source, host)]
    for name, code in zip("opqr", operators, strict=False):
        nodes.append(Node(name, "operator", (nodes[-1].name,), code))
    return Dataflow((*nodes, Node("t", "sink", (nodes[-1].name,), None, client)))
