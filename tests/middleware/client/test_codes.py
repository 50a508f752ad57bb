"""Faults that ``Client.check`` finds in a dataflow, without a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from runtime_codes import ALLOW

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import DataflowError, PlacementError, UsageError

SCENES = Code("scenes", {"site": 0, "sites": 1, "seed": 1})
COMPOSITE = Code("composite")


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with LocalCluster(1) as cluster, Client(cluster) as client:
        yield client


def graph(source: Code = SCENES, operator: Code = COMPOSITE, *, at: str = "h1") -> Dataflow:
    made = Dataflow()
    made.sink("t", made.operator(operator, made.source(source, at=at, name="s"), name="o"))
    return made


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (graph(operator=Code("composit")), "operator 'o': unknown operator 'composit'; did you mean 'composite'"),
        (graph(operator=Code("composite", {"rul": "max"})), "operator 'o': 'composite' does not take {'rul': 'max'}"),
        (graph(operator=Code("composite", {"rule": "loudest"})), "operator 'o': composite: "),
        (
            graph(operator=Code("composite", {"rule": 3})),
            "operator 'o': 'composite' does not take rule=3: Expected `str`, got `int`",
        ),
        (
            graph(source=Code("image_folder", {"folder": 3})),
            "source 's': 'image_folder' does not take folder=3: Expected",
        ),
        (graph(operator=SCENES), "operator 'o': 'scenes' cannot run as operator: it has no combine()"),
        (
            graph(operator=Code("thalweg.operators:Absent")),
            "operator 'o': 'thalweg.operators:Absent' cannot be imported",
        ),
        (graph(source=Code("composite")), "source 's': 'composite' cannot run as source: it has no produce()"),
        (graph(source=Code("scenes", {"site": 1, "sites": 1, "seed": 1})), "source 's': scenes: site 1 of 1 sites"),
        (graph(source=Code("scenes", {"site": 0})), "source 's': 'scenes' does not take {'site': 0}"),
        (graph(source=Code("image_folder", {"fold": "x"})), "source 's': 'image_folder' does not take {'fold': 'x'}"),
        (graph(source=Code("image_folder", {"folder": "/nosuch"}), at="client"), "source 's': "),
        (graph(at="h9"), "source 's' is pinned to unknown host 'h9'; the hosts are client, h1"),
    ],
)
def test_a_fault_in_a_dataflow_is_reported_with_the_node_and_starts_no_run(
    client: Client, made: Dataflow, says: str
) -> None:
    with pytest.raises(DataflowError) as caught:
        client.check(made)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)
    assert client.shell.core.runs == {}


@pytest.mark.parametrize("params", [{"rule": object()}, {1: 2}])
def test_a_parameter_that_no_message_can_carry_is_refused(client: Client, params: dict[Any, Any]) -> None:
    with pytest.raises(UsageError, match="of the parameters of node 'o'"):
        client.check(graph(operator=Code("composite", params)))


def test_a_graph_that_runs_passes_the_check(client: Client) -> None:
    """A folder that only the host has is no fault, either."""
    assert client.check(graph()) == ()
    assert client.check(graph(source=Code("image_folder", {"folder": "/nosuch"}))) == ()
    assert client.check(graph(), {"o": "h1"}) == ()
    with pytest.raises(PlacementError, match="operator 'o' is placed on unknown host 'h9'"):
        client.check(graph(), {"o": "h9"})
    assert len(list(client.run(graph(), {"o": "h1"}, partitions=2))) == 2


def test_code_that_a_client_does_not_allow_is_returned_as_unchecked(client: Client) -> None:
    made = graph(operator=Code("runtime_codes:Mix"))
    assert client.check(made) == ("o",)
    with LocalCluster(1) as cluster, Client(cluster, allow=ALLOW) as other:
        assert other.check(made) == ()
        wrong = graph(operator=Code("runtime_codes:Mix", {"nonsense": 1}))
        with pytest.raises(DataflowError, match="operator 'o': 'runtime_codes:Mix' does not take"):
            other.check(wrong)
