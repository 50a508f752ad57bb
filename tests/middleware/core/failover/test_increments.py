"""Incremental replicas are taken, kept, sent and restored, and always give back the saved state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from playbook import ANY, got
from run_ids import R, run_of

from benchmarks.tree import ALLOW, WORKLOAD
from benchmarks.workload import Told
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.core.failover.checkpoints import MOST, SMALL_BYTES
from thalweg.middleware.core.failover.recovery import Recovery
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.messages import Failover, Start
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.node_code import OwnCode, digest_of, take_or_give
from thalweg.operators import Operator
from thalweg.operators.reference import digest, reference_run


class Sums(Operator):
    """Operator that counts letters and gives increments. ``how`` names a misbehaviour."""

    def __init__(self, how: str = "") -> None:
        self.how = how
        self.counts: dict[int, int] = {}
        self.more: dict[int, int] = {}

    def combine(self, inputs: Sequence[Any], index: int) -> bytes:
        for letter in bytes(inputs[0]):
            self.counts[letter] = self.counts.get(letter, 0) + 1
            self.more[letter] = self.more.get(letter, 0) + 1
        return self.snapshot_of(self.counts)

    @staticmethod
    def snapshot_of(counts: dict[int, int]) -> bytes:
        return b"".join([bytes([letter]) + count.to_bytes(4, "big") for letter, count in sorted(counts.items())])

    def snapshot(self) -> bytes:
        self.more = {}
        return self.snapshot_of(self.counts)

    def restore(self, state: bytes) -> None:
        self.counts, self.more = {}, {}
        self.apply(state)

    def delta(self) -> Any:
        if self.how == "raises":
            raise ValueError("two lines\nof text")
        more, self.more = self.more, {}
        return {"none": None, "type": "text"}.get(self.how, self.snapshot_of(more))

    def apply(self, delta: bytes) -> None:
        for at in range(0, len(delta), 5):
            self.counts[delta[at]] = self.counts.get(delta[at], 0) + int.from_bytes(delta[at + 1 : at + 5], "big")


def opened(how: str = "") -> OwnCode:
    return OwnCode(Node("o", "operator", ("s",), Code(f"{__name__}:Sums", {"how": how})), (__name__,))


def taken(code: OwnCode, **what: bool) -> e.StateTaken:
    answer = take_or_give(lambda: code, e.TakeState(R, "o", 1, **what))
    assert isinstance(answer, e.StateTaken)
    return answer


def restored(command: e.RestoreState) -> tuple[OwnCode, e.Event]:
    code = opened()
    return code, take_or_give(lambda: code, command)


REPLICA = {"replica": True, "delta": True}


@given(st.lists(st.one_of(st.binary(max_size=6), st.sampled_from(["replica", "whole", "hand-over"]))))
def test_a_whole_replica_and_the_later_increments_restore_the_state(steps: list[bytes | str]) -> None:
    """Hand-overs and whole replicas in between do not matter."""
    code, chain, count = opened(), list[e.StateTaken](), 0
    for step in steps:
        if isinstance(step, bytes):
            code.make(count, (step,))
            count += 1
        elif step == "hand-over":
            assert taken(code).delta is not True
        else:
            got = taken(code, replica=True, delta=step == "replica" and bool(chain))
            assert (got.error, got.digest) == ("", digest_of(got.state))
            chain = [*chain, got] if got.delta is True else [got]
            first, *increments = chain
            deltas = tuple([e.Inherited(increment.state, increment.digest, 1) for increment in increments])
            whole = first.state, first.digest, 1
            restored_code, answer = restored(e.RestoreState(R, "o", 1, *whole, deltas))
            assert answer == e.StateRestored(R, "o", 1)
            assert restored_code.make(99, (b"",)).value == code.make(99, (b"",)).value


def test_an_increment_is_made_only_after_a_replica() -> None:
    code = opened()
    code.make(0, (b"ab",))
    assert taken(code, **REPLICA).delta is not True  # none before
    code.make(1, (b"b",))
    assert taken(code, **REPLICA).state == Sums.snapshot_of({98: 1})
    nothing = taken(code, **REPLICA)
    assert (nothing.state, nothing.delta, nothing.keeps is False) == (b"", True, False)
    code.make(2, (b"c",))
    taken(code)  # for a hand-over, after which it stayed: what has changed before went with that
    assert taken(code, **REPLICA).delta is not True


@pytest.mark.parametrize(("how", "error"), [("none", ""), ("raises", "ValueError in delta(): two lines"), ("type", "")])
def test_code_without_a_usable_increment_is_asked_for_the_whole_state(how: str, error: str) -> None:
    code = opened(how)
    taken(code, replica=True)
    code.make(0, (b"a",))
    answer = taken(code, **REPLICA)
    assert answer.delta is not True
    if how == "none":
        assert answer.state == Sums.snapshot_of({97: 1})
    else:
        assert (error or "delta() returned str, not bytes") in answer.error
        assert "\n" not in answer.error
        assert taken(code, replica=True).state == Sums.snapshot_of({97: 1})


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (e.Inherited(b"xxxxx", "00", 1), "the 5 bytes that came do not have the state's digest"),
        (e.Inherited(b"x", digest_of(b"x"), 2), "its state is of version 2; the code here reads 1"),
    ],
)
def test_an_increment_with_a_wrong_digest_or_version_is_not_restored(change: e.Inherited, error: str) -> None:
    _, answer = restored(e.RestoreState(R, "o", 1, b"", digest_of(b""), 1, (change,)))
    assert isinstance(answer, e.StateRestored)
    assert answer.error == error


# --- on hosts -------------------------------------------------------------------------------------------


def lasting(install: Any, number: int, *starts: Start, **options: Any) -> m.Install:
    named = replace(install, run=RunId(install.run.stream, generation=number))
    return replace(replace(named, failover=Failover(**options)), starts=starts)


def state(index: int, since: int = -1, what: bytes = b"xy", run: RunId = R) -> m.Checkpoint:
    return m.Checkpoint(run, "o", 1, index, 1, len(what), "", what, since)


def stable(book: Any) -> list[int]:
    return [message.index for message in book.sent("client") if isinstance(message, m.CheckpointStored)]


def test_an_increment_counts_once_every_earlier_replica_of_the_chain_is_there(
    make_book: Any, make_install: Any
) -> None:
    book = make_book("h3")
    book << got("client", lasting(make_install(others=("h3",)), 0)) >> ANY
    for message, acknowledged in [
        (state(4, since=2), []),
        (state(6, since=4), []),
        (state(2), [2, 4, 6]),
        (state(8, since=9), []),
        (state(8, since=8), []),
        (state(8, since=6), [8]),
    ]:
        book << got("h2", message) >> ANY
        assert stable(book) == acknowledged, message
    book << got("client", m.CheckpointsObsolete(R, (Start("o", 6),))) >> ANY
    (replicas,) = book.core.hosted.failover_runs.replicas.values()
    assert sorted(replicas["o"]) == [2, 4, 6, 8]  # on what 6 follows
    book << got("h2", state(10)) >> ANY
    book << got("client", m.CheckpointsObsolete(R, (Start("o", 10),))) >> ANY
    assert sorted(replicas["o"]) == [10]


def test_increments_without_a_base_use_bounded_memory(make_book: Any, make_install: Any) -> None:
    book = make_book("h3")
    book << got("client", lasting(make_install(others=("h3",)), 0, increments=4)) >> ANY
    for index in range(1, 100):
        book << got("h2", state(index, since=index - 1)) >> ANY  # the last invariant is checked each time
    (replicas,) = book.core.hosted.failover_runs.replicas.values()
    assert len(replicas["o"]) == 2 * MOST + 4


def test_a_host_that_starts_from_an_increment_is_sent_the_whole_chain(make_book: Any, make_install: Any) -> None:
    install = make_install(others=("h3",))
    keeper, restarted = make_book("h3"), make_book("h2")
    keeper << got("client", lasting(install, 0)) >> ANY
    for message in (state(2), state(4, since=2, what=b"z"), state(6, since=4)):
        keeper << got("h2", message) >> ANY
    anew = lasting(install, 1, Start("s", 4), Start("o", 4, "h3"), Start("t", 4))
    for book in (keeper, restarted):
        book << got("client", anew) >> ANY
    keeper << got("h2", m.StateRequest(run_of("r~1"), "o")) >> ANY
    sent = [message for message in keeper.sent("h2") if isinstance(message, m.Checkpoint)]
    assert sent == [state(2, run=run_of("r~1")), state(4, since=2, what=b"z", run=run_of("r~1"))]
    restarted << got("h3", sent[1]) >> []
    restore = e.RestoreState(run_of("r~1"), "o", 1, b"xy", "", 1, (e.Inherited(b"z", "", 1),))
    restarted << got("h3", sent[0]) >> [restore]
    restarted << got("h3", sent[0]) >> []


@pytest.mark.parametrize("failing", [2, 4], ids=["the whole replica", "the increment"])
def test_each_replica_of_a_chain_that_does_not_arrive_is_reported(
    make_book: Any, make_install: Any, failing: int
) -> None:
    """One replica of the chain arrives at every try, and the other never arrives. The third failure is reported."""
    book, large = make_book("h3"), bytes(m.INLINE_STATE_BYTES + 1)
    install = make_install(others=("h3",))
    book << got("client", lasting(install, 0)) >> ANY
    for index, since in ((2, -1), (4, 2)):
        replica = m.Checkpoint(R, "o", 1, index, 1, len(large), "", since=since)
        book << got("h2", replica, large, len(large)) >> ANY
    book << got("client", lasting(install, 1, Start("s", 4), Start("o", 4, "h3"), Start("t", 4))) >> ANY
    for failures in (1, 2, 3):
        book << got("h2", m.StateRequest(run_of("r~1"), "o")) >> ANY
        sends = [send for send in book.only(e.Send) if isinstance(send.message, m.Checkpoint)]
        assert [send.message.index for send in sends] == [2, 4]
        reports = []
        for send in sends:
            if send.message.index == failing:
                book << e.TransferFailed("h2", send.message) >> ANY
                reports = [message for message in book.sent("h2") if isinstance(message, m.StateMissing)]
            else:
                book << e.TransferMeasured("h2", send.message, len(large), 0.1) >> ANY
        assert len(reports) == (failures == 3)


def test_a_replica_of_the_same_partition_replaces_an_increment_without_a_base(
    make_book: Any, make_install: Any
) -> None:
    """Increments of the operator's earlier life are left on the host. A restarted operator is sent a whole replica."""
    install, book = make_install({"o": "h4"}, others=("h2", "h3")), make_book("h4")
    book << got("client", lasting(install, 0)) >> ANY
    for message in (state(4, since=2), state(5, since=4, what=b"z")):
        book << got("h2", message) >> ANY
    book << got("client", lasting(install, 1, Start("s", 5), Start("o", 5, "h3"), Start("t", 5))) >> ANY
    whole = state(4, what=b"all", run=run_of("r~1"))
    assert book.core.wants("h3", whole)
    restore = e.RestoreState(run_of("r~1"), "o", 1, b"all", "", 1, (e.Inherited(b"z", "", 1),))
    book << got("h3", whole) >> [restore]
    assert not book.core.wants("h3", whole)


@pytest.fixture
def asked(make_book: Any, make_install: Any) -> Iterator[Any]:
    """The host of an operator with a replica due after each partition. A step checks one request and answers."""
    book = make_book("h2")
    book << got("client", lasting(make_install(others=("h3", "h4")), 0, every=1, increments=3)) >> ANY
    index = 0

    def step(answer: bytes | str, *, delta: bool, now: float = 0.0) -> list[m.Checkpoint]:
        nonlocal index
        book.at(now) << got("client", m.Demand(R, "o", "t", index)) >> ANY
        book << got("h1", m.Partition(R, "s", "o", index), b"p", 1) >> ANY
        book << e.OperatorFinished(R, "o", index, b"q", 1) >> ANY
        index += 1
        (take,) = book.only(e.TakeState)
        assert (take.replica, take.delta) == (True, delta)
        fields = {"error": answer} if isinstance(answer, str) else {"state": answer, "digest": ""}
        book << e.StateTaken(R, "o", 1, **fields, **({"delta": True} if delta else {})) >> ANY
        return [send.message for send in book.only(e.Send) if isinstance(send.message, m.Checkpoint)]

    return step, book


def test_a_whole_replica_follows_many_or_large_increments(asked: Any) -> None:
    step, book = asked
    assert [replica.since for replica in step(b"123456", delta=False)] == [-1]
    for index in (1, 2, 3):
        assert [replica.since for replica in step(b"x", delta=True)] == [index]
    assert [replica.since for replica in step(b"123456", delta=False)] == [-1]  # after three
    assert [replica.since for replica in step(b"1234", delta=True)] == [5]
    assert [replica.since for replica in step(b"56", delta=True)] == [6]
    book << got("client", m.CheckpointsObsolete(R, (Start("o", 7),))) >> ANY
    step(b"123456", delta=False)  # six bytes of changes on a state of six


def test_a_large_whole_replica_instead_of_an_increment_delays_the_next_replica(
    make_book: Any, make_install: Any
) -> None:
    """The next replica waits until the inputs are 20 times the state, or for ``every_s``.

    A replica is due at multiples of ``every``. Increments end the wait.
    """
    book, index, at = make_book("h2"), 0, 0.0
    book << got("client", lasting(make_install(others=("h3", "h4")), 0, every=2)) >> ANY
    large, took, asked = b"x" * (SMALL_BYTES + 1), list[int](), list[bool]()

    def make(until: int, size_bytes: int, answer: bytes, **more: bool) -> list[int]:
        nonlocal index
        took.clear()
        while index < until:
            book.at(at) << got("client", m.Demand(R, "o", "t", index)) >> ANY
            book << got("h1", m.Partition(R, "s", "o", index), b"p", size_bytes) >> ANY
            book << e.OperatorFinished(R, "o", index, b"q", 1) >> ANY
            index += 1
            if takes := book.only(e.TakeState):
                took.append(index)
                asked.append(takes[0].delta)
                book << e.StateTaken(R, "o", 1, answer, "", 1, **more) >> ANY
                for send in [send for send in book.only(e.Send) if isinstance(send.message, m.Checkpoint)]:
                    book << e.TransferMeasured(send.to, send.message, len(answer), 1.0) >> ANY
                book << got("client", m.CheckpointsObsolete(R, (Start("o", index),))) >> ANY
        return [*took]

    assert make(5, 1, large) == [1, 2], "the first, which nothing was before, and one that went whole again"
    assert asked == [False, True]
    assert make(30, len(large), large) == [26], "the first even one after 20 of that size"
    at = 61.0
    assert make(31, 1, large) == [31], "a minute has passed"
    at = 122.0
    assert make(32, 1, b"changed", delta=True) == [32]
    assert make(37, 1, b"changed", delta=True) == [34, 36]


@pytest.mark.parametrize("what", ["lost", "failed", "error", "let go"])
def test_a_whole_replica_follows_if_the_last_replica_is_lost_or_obsolete(asked: Any, what: str) -> None:
    step, book = asked
    (sent,) = step(b"x" * (1 + m.INLINE_STATE_BYTES), delta=False)
    holder = next(send.to for send in book.only(e.Send) if send.message == sent)
    if what == "lost":
        book << got("client", m.Lost(R, holder, ())) >> ANY
    elif what == "failed":
        book << e.TransferFailed(holder, sent) >> ANY
    elif what == "let go":  # there are later ones, of before it began anew
        book << got("client", m.CheckpointsObsolete(R, (Start("o", 9),))) >> ANY
    else:
        step("it raised", delta=True)
    step(b"123", delta=False)


@pytest.mark.parametrize(("use", "state_bytes"), [("Told", 40_000), ("Ballast", 400_000)])
def test_a_killed_operator_resumes_with_the_complete_state(use: str, state_bytes: int) -> None:
    """The code gives increments (``Told``) or only whole states (``Ballast``)."""
    flow = Dataflow()
    seen = [flow.source(Code(f"{WORKLOAD}:FixedSource", {"site": n, "size_bytes": 64}), at=f"h{n + 1}") for n in (0, 1)]
    flow.sink("t", flow.operator(Code(f"{WORKLOAD}:{use}", {"state_bytes": state_bytes}), *seen, name="o"))
    expected, known = reference_run(flow, 60, (*DEFAULT_ALLOW, *ALLOW)), set[int]()
    with LocalCluster(4, allow=ALLOW) as cluster, Client(cluster, allow=ALLOW) as client:
        run = client.run(flow, {"o": "h3"}, partitions=60, failover=Failover(every=2))
        for partition in run:
            assert digest(partition.value) == digest(next(expected))
            if partition.index == 41:
                replicas = client.shell.core.runs[RunId(run.id)].parts.get(Recovery).known["o"]
                known = {*replicas}
                cluster.kill("h3")
    assert known, "no replica was told of"


def test_the_increments_of_the_benchmark_operator_reproduce_the_state() -> None:
    original, copy = Told(9), Told(9)
    arrays = [np.zeros(9, np.uint8), np.ones(9, np.uint8)]
    copy.restore(original.snapshot())
    for index in range(40):
        original.combine(arrays, index)
        if index % 7 == 0:
            copy.apply(original.delta())
    copy.apply(original.delta())
    assert original.snapshot() == copy.snapshot()
