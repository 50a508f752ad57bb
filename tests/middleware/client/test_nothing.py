"""Indices without a value, values that are no arrays, and watermarks, between hosts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from flows import chain
from runtime_codes import ALLOW, Plate
from virtual_runs import Moved

from thalweg import NOTHING
from thalweg.middleware.client.client import Client
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.errors import OperatorError, RunError
from thalweg.operators.reference import digest, reference_run


def gives(kind: str, every: int = 1, **params: Any) -> Code:
    return Code("runtime_codes:Gives", {"kind": kind, "every": every, **params})


def sees(**params: Any) -> Code:
    return Code("runtime_codes:Sees", params)


def pair(first: Code, second: Code, operator: Code) -> Dataflow:
    sources = Node("a", "source", (), first, "h1"), Node("b", "source", (), second, "h2")
    return Dataflow((*sources, Node("o", "operator", ("a", "b"), operator), Node("t", "sink", ("o",))))


# --- nothing ------------------------------------------------------------------------------------------


def test_an_operator_is_called_only_if_an_input_has_a_value_and_empty_indices_are_recorded() -> None:
    flow = pair(gives("text", every=4), gives("text", every=6), sees())
    seen = Moved(flow, 24, ALLOW)
    assert seen.failed is None
    assert seen.relocations > 3
    expected: list[Any] = [NOTHING] * 24
    for count, index in enumerate(index for index in range(24) if index % 4 == 0 or index % 6 == 0):
        there = [f"text {index}" if index % every == 0 else NOTHING for every in (4, 6)]
        expected[index] = f"{count} calls before {there}"
    assert seen.values == expected
    nodes = [fields["node"] for fields in seen.of_kind("nothing")]
    assert {name: nodes.count(name) for name in "abo"} == {"a": 18, "b": 20, "o": 16}
    assert [digest(value) for value in reference_run(flow, 24, ALLOW)] == [digest(value) for value in expected]


def test_an_operator_may_ask_for_calls_without_values() -> None:
    seen = Moved(chain(gives("text", every=5), sees(on_nothing=True)), 10, ALLOW, moves=0)
    assert [value.split()[0] for value in seen.values] == [str(index) for index in range(10)]


@pytest.mark.parametrize("how", ["thread", "task", "all"])
def test_an_application_gets_only_values_unless_empty_indices_are_requested(client: Client, how: str) -> None:
    flow = chain(gives("text", every=7), sees())
    run = client.run(flow, {"o": "h2"}, partitions=30, nothing=how == "all")

    async def take() -> list[Any]:
        return [each async for each in run]

    came = asyncio.run(take()) if how == "task" else list(run)
    if how == "all":
        assert [each.index for each in came] == list(range(30))
        assert [each.index for each in came if each.value is not NOTHING] == [0, 7, 14, 21, 28]
        assert (came[1].size_bytes, run.skipped) == (0, 0)
    else:
        assert [each.index for each in came] == [0, 7, 14, 21, 28]
        assert run.skipped == 25


def test_the_error_about_a_none_value_suggests_the_constant_nothing(client: Client) -> None:
    with pytest.raises(RunError, match="combine returned None for partition 0; return NOTHING for an index without"):
        list(client.run(chain(gives("text"), Code("runtime_codes:Raises", {"how": "none", "at": 0})), {"o": "h1"}))


# --- other values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text", "plain", "struct", "batch", "table"])
def test_values_of_every_kind_equal_the_reference_while_operators_move(kind: str) -> None:
    flow = chain(gives(kind, every=3), *[Code("runtime_codes:Forwards")] * 2)
    seen = Moved(flow, 15, ALLOW, moves=6)
    assert seen.failed is None
    assert [digest(value) for value in seen.values] == [digest(value) for value in reference_run(flow, 15, ALLOW)]
    assert len({digest(value) for value in seen.values}) == 6


def test_values_of_every_kind_cross_sockets_and_structs_keep_the_class(client: Client) -> None:
    for kind in ("plain", "struct", "batch", "table"):
        flow = chain(gives(kind), *[Code("runtime_codes:Forwards")] * 2)
        run = client.run(flow, {"o": "h2", "p": "h3"}, partitions=12)
        values = []
        for each in run:
            values.append(each.value)
            if each.index in (3, 7):  # a host that has not had the schema gets it
                run.move({"o": "h3", "p": "h1"} if each.index == 3 else {"o": "h1", "p": "h2"})
        assert [digest(value) for value in values] == [digest(value) for value in reference_run(flow, 12, ALLOW)]
        assert kind != "struct" or values[3] == Plate("plate 3", 0.5)


def test_a_schema_that_changes_in_mid_stream_ends_the_run_and_names_the_column(client: Client) -> None:
    flow = chain(gives("batch", changes=4), Code("runtime_codes:Forwards"))
    with pytest.raises(RunError, match=r"'s' .* partition 4, the output: column 'n' is string, and was int64"):
        list(client.run(flow, {"o": "h2"}, partitions=6))


def test_a_struct_from_a_package_that_the_application_does_not_allow_is_refused(cluster: Any) -> None:
    with Client(cluster, name="strict") as client:
        run = client.run(chain(gives("struct"), Code("runtime_codes:Forwards")), {"o": "h2"}, partitions=2)
        for _ in range(2):
            with pytest.raises(RunError, match=r"partition 0 cannot be delivered: .* allow code from 'runtime_codes'"):
                next(run)


def test_a_watermark_is_the_earliest_of_the_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = pair(gives("batch", lag_s=3.0), gives("batch", every=2, lag_s=5.0), Code("runtime_codes:Marks"))
    assert Moved(flow, 6, ALLOW, moves=2).values == [f"{index - 5.0}" for index in range(6)]
    none = pair(gives("batch", lag_s=3.0), gives("text"), Code("runtime_codes:Marks"))
    assert list(reference_run(none, 2, ALLOW)) == ["None", "None"]
    with pytest.raises(OperatorError, match="the watermark is nan; give seconds"):
        list(reference_run(pair(gives("batch", lag_s=float("nan")), gives("text"), sees()), 1, ALLOW))
