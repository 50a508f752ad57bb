"""Dataflows of operators over records, and their runs with moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from record_codes import Row
from virtual_runs import Moved

from thalweg import NOTHING
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.operators.reference import digest, reference_run

ALLOW = ("record_codes",)


def records(name: str, **params: Any) -> Code:
    module = {"Window": "windows", "Join": "join"}.get(name, "records")
    return Code(f"thalweg.operators.{module}:{name}", params)


def source(site: int = 0, **params: Any) -> Code:
    return Code("record_codes:Trips", {"site": site, **params})


def joined(*sources: Code, operator: Code, then: Sequence[Code] = ()) -> Dataflow:
    """Return the dataflow sources -> ``o`` -> … -> ``t``, with the sources on three hosts."""
    nodes = [Node(f"s{i}", "source", (), code, f"h{i % 3 + 1}") for i, code in enumerate(sources)]
    nodes.append(Node("o", "operator", tuple(node.name for node in nodes), operator))
    for name, code in zip("pq", then, strict=False):
        nodes.append(Node(name, "operator", (nodes[-1].name,), code))
    return Dataflow((*nodes, Node("t", "sink", (nodes[-1].name,))))


def moved(flow: Dataflow, partitions: int, seed: int = 0) -> list[Row]:
    """Return all rows of a virtual run with moves and lost messages. Check the values against a single process."""
    run = Moved(flow, partitions, ALLOW, seed=seed)
    assert run.failed is None
    assert run.relocations
    expected = list(reference_run(flow, partitions, ("thalweg.operators", *ALLOW)))
    assert [digest(value) for value in run.values] == [digest(value) for value in expected]
    return rows_of(run.values)


def rows_of(values: Iterable[Any]) -> list[Row]:
    return [row for value in values if value is not NOTHING for row in value.to_pylist()]
