"""Nodes that a query shares with a run. Fault plans and their matrix have queries that begin and leave."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from playbook import ANY, Playbook, got
from run_ids import R

from thalweg.middleware.core.queries.queries import Queries
from thalweg.middleware.core.queries.sharing import join, shared
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.errors import DataflowError
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.absent_sources import without_source

CLIENT = "client"
SOURCE, OPERATOR, FAILS = Code("source"), Code("operator"), Code("fails")


def flow_of(*nodes: Node) -> Dataflow:
    return Dataflow(nodes)


S1, S2 = Node("s1", "source", (), SOURCE, "h1"), Node("s2", "source", (), SOURCE, "h2")
RUN = flow_of(
    S1, S2, Node("o", "operator", ("s1", "s2"), OPERATOR), Node("p", "operator", ("o",), OPERATOR),
    Node("t", "sink", ("p",), None, CLIENT),
)  # fmt: skip


def test_a_source_that_is_missing_or_on_a_stand_in_is_shared_as_the_original() -> None:
    at_h3 = msgspec.structs.replace(S1, pinned="h3", stand_ins=("h1",))
    for now in (at_h3, without_source(at_h3, 4, CLIENT), without_source(S1, 4, CLIENT)):
        run = flow_of(now, *RUN.nodes[1:])
        assert shared(run, RUN) == {"s1": "s1", "s2": "s2", "o": "o", "p": "p"}
        changed = msgspec.structs.replace(S1, code=OPERATOR)
        with pytest.raises(DataflowError, match="the run's node runs 'source', and the query's node 'operator'"):
            shared(run, flow_of(changed, *RUN.nodes[1:]))


def test_equal_nodes_are_shared_regardless_of_the_names() -> None:
    like = [msgspec.structs.replace(node, name=f"my {node.name}") for node in (S1, S2)]
    same = Node("x", "operator", ("my s1", "my s2"), OPERATOR)
    twin, turned = msgspec.structs.replace(same, name="y"), Node("z", "operator", ("my s2", "my s1"), OPERATOR)
    pinned = Node("h", "operator", ("my s1", "my s2"), OPERATOR, "h3")
    sink = Node("t", "sink", ("x", "y", "z", "h"), None, CLIENT)
    query = flow_of(*like, same, twin, turned, pinned, sink)
    assert shared(RUN, query) == {"my s1": "s1", "my s2": "s2", "x": "o"}
    where = {"y": "h1", "z": "h2", "h": "h3", "t": CLIENT}
    joined = join(RUN, query, where, 7, {"y~7"})
    assert joined.names == {"my s1": "s1", "my s2": "s2", "x": "o", "y": "y~7.1", "z": "z~7", "h": "h~7", "t": "t~7"}
    assert [(graft.node, graft.inputs, graft.host) for graft in joined.grafts] == [
        ("y~7.1", ("s1", "s2"), "h1"),
        ("z~7", ("s2", "s1"), "h2"),
        ("h~7", ("s1", "s2"), "h3"),
        ("t~7", ("o", "y~7.1", "z~7", "h~7"), CLIENT),
    ]


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (flow_of(Node("s1", "source", (), SOURCE, "h3"), Node("t", "sink", ("s1",))), "nothing in common with the run"),
        (flow_of(S1, Node("o", "operator", ("s1",), FAILS), Node("t", "sink", ("o",))),
         "operator 'o' differs from the run's node of this name: the run's node runs 'operator', and the query's node"
         " 'fails'; give it another name"),
        (flow_of(S1, Node("o", "operator", ("s1",), Code("operator", {"k": 1})), Node("t", "sink", ("o",))),
         "operator 'o' differs from the run's node of this name: its parameters differ"),
        (flow_of(S1, Node("s2", "operator", ("s1",), SOURCE), Node("t", "sink", ("s2",))),
         "operator 's2' differs from the run's node of this name: the run's node is the source"),
    ],
)  # fmt: skip
def test_a_query_that_conflicts_with_the_run_or_shares_nothing_is_refused(query: Dataflow, why: str) -> None:
    with pytest.raises(DataflowError, match=why):
        shared(RUN, query)


def test_generated_node_names_cause_no_conflict() -> None:
    run = flow_of(S1, Node("op0", "operator", ("s1",), OPERATOR), Node("t", "sink", ("op0",)))
    query = flow_of(S1, Node("op0", "operator", ("s1",), FAILS), Node("t", "sink", ("op0",)))
    assert shared(run, query) == {"s1": "s1"}


def test_the_record_of_a_query_names_unshared_nodes_with_the_distances(
    make_book: Callable[..., Playbook], install: m.Install
) -> None:
    book, node = make_book("client"), install.dataflow.by_name
    book << e.RunRequested(install) >> ANY
    like = [msgspec.structs.replace(node["o"], name="mine"), Node("t", "sink", ("mine",), None, CLIENT)]
    query = flow_of(node["s"], *like)
    book << e.AttachRequested(R, 1, query, {"s": "h1", "mine": "h2", "t": CLIENT}, {"mine": 0.25}) >> ANY
    book << got("h2", m.Vote(R, 1, "h2", 0, "no")) >> ANY
    for host in ("h1", "h2", "h3"):
        book << got(host, m.Done(R, 1, host)) >> ANY
    (record,) = (record for record in book.only(e.Record) if record.kind == "query")
    assert (record.fields["detail"]["outcome"], record.fields["detail"]["apart_s"]) == ("refused", {"mine": 0.25})


def test_a_query_begins_no_earlier_than_the_queries_before(
    make_book: Callable[..., Playbook], install: m.Install
) -> None:
    book = make_book("client")
    book << e.RunRequested(install) >> ANY
    query = flow_of(install.dataflow.by_name["s"], Node("t", "sink", ("s",), None, CLIENT))
    for number, voted in ((1, 8), (2, 3)):  # the source that was ahead has left
        book << e.AttachRequested(R, number, query, {"s": "h1", "t": CLIENT}) >> ANY
        book << got("h1", m.Vote(R, number, "h1", voted)) >> ANY
        for host in ("h1", "h2", "h3"):
            book << got(host, m.Done(R, number, host)) >> ANY
        run = book.core.runs[R]
        assert {run.tree.first[name] for name in run.parts.get(Queries).sinks[number]} == {9}


@pytest.mark.parametrize("partitions", [5, None])
def test_a_query_can_share_an_ended_source_only_at_the_end_of_the_run(
    make_book: Callable[..., Playbook], make_install: Callable[..., m.Install], partitions: int | None
) -> None:
    """``z`` came with a query that has renounced it. A second query begins at the end of the run and shares ``z``."""
    book, source = make_book("h1"), Node("z", "source", (), SOURCE, "h1")
    book << got(CLIENT, make_install(partitions=partitions)) >> ANY
    grafts = [m.Graft("z", (), "h1", source), m.Graft("u", ("z",), CLIENT, Node("u", "sink", ("z",), None, CLIENT))]
    later = [m.Graft("v", ("z",), CLIENT, Node("v", "sink", ("z",), None, CLIENT))]
    for number, shape in ((1, grafts), (2, later)):
        book << got(CLIENT, m.Propose(R, number, (), m.Shape(tuple(shape), ()))) >> ANY
        if number == 1:
            book << e.NodeOpened(R, "z") >> ANY
        book << got(CLIENT, m.Commit(R, number, 4, (), "a query", m.Shape(tuple(shape), ()))) >> ANY
        failed = [message.reason for message in book.sent(CLIENT) if isinstance(message, m.Failed)]
        if number == 1:
            book << got(CLIENT, m.SkipTo(R, "z", "u", None)) >> ANY
            assert book.core.runs[R].flow.nodes["z"].renounced
    assert bool(failed) == (partitions is None), failed


@pytest.mark.parametrize("taken", ["s", "o"])
def test_a_query_begins_on_the_new_host_of_an_operator_past_the_first_partition(
    make_book: Callable[..., Playbook], install: m.Install, taken: str
) -> None:
    """``o`` has dispatched the query's first partition elsewhere. The host accepts ``o`` only with all consumers."""
    book = make_book("h3")
    book << got(CLIENT, install) >> ANY
    book << got("h2", m.Offer(R, "o", 1)) >> ANY
    book << e.NodeOpened(R, "o") >> ANY
    consumers = [m.ConsumerDemand("t", 9), *([m.ConsumerDemand("u~1", 9)] if taken == "o" else [])]
    book << got("h2", m.State(R, "o", 1, 10, 1, 3, "sha", b"one", tuple(consumers), "h2")) >> ANY
    if taken == "o":
        assert [type(message) for message in book.sent("h2")] == [m.Refuse]
    else:
        book << e.StateRestored(R, "o", 1) >> ANY
        book << got("h2", m.Located(R, (m.Location("o", "h3", 2),))) >> ANY
        assert book.core.runs[R].flow.nodes["o"].index == 10
    sink = Node("u~1", "sink", (taken,), None, CLIENT)
    shape = m.Shape((m.Graft(sink.name, sink.inputs, CLIENT, sink),), ())
    book << got(CLIENT, m.Commit(R, 1, 7, (), "a query", shape)) >> ANY
    assert [message.number for message in book.sent(CLIENT) if isinstance(message, m.Done)] == [1]
    assert book.core.runs[R].tree.first == {sink.name: 8}
