"""User code in threads of its own: whatever it does is an event, and no thread ends by it."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from thalweg.middleware import events as e
from thalweg.middleware.dataflow import Code, Node
from thalweg.middleware.workers import Workers, digest_of
from thalweg.operators import Operator

WAIT_S = 10.0  # for an event that comes within milliseconds


class Versioned(Operator):
    """Says that its state is of this version, whatever that is."""

    def __init__(self, version: Any) -> None:
        self._version = version

    @property
    def state_version(self) -> Any:
        return self._version

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        return inputs[0]

    def snapshot(self) -> bytes:
        return b"a state"

    def restore(self, state: bytes) -> None:
        assert state == b"a state"


class Bench:
    """One thread, and what it has answered."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
        self.workers = Workers(self.events.put, (__name__,), threads=1)

    def open(self, version: object) -> None:
        """A node ``o`` of run ``r`` whose state is of this version."""
        code = Code(f"{__name__}:Versioned", {"version": version})
        self.workers.open_node(e.OpenNode("r", Node("o", "operator", ("s",), code)))
        assert self.answer() == e.NodeOpened("r", "o")

    def answer(self) -> e.Event:
        return self.events.get(timeout=WAIT_S)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.workers.stop()
    assert not any(thread.is_alive() for thread in bench.workers._threads)


@pytest.mark.parametrize("version", ["2b", None, [1], "\udce9", 1e400], ids=repr)
def test_a_state_version_that_is_no_number_is_an_answer_with_the_reason(bench: Bench, version: object) -> None:
    bench.open(version)
    for _ in range(2):  # the thread is there to make the second call
        bench.workers.submit(e.TakeState("r", "o", 7))
        taken = bench.answer()
        assert isinstance(taken, e.StateTaken)
        assert (taken.run, taken.node, taken.version, taken.state) == ("r", "o", 7, b"")
        assert "Error in snapshot(): " in taken.error
        assert "\n" not in taken.error
        taken.error.encode()
    bench.workers.submit(e.RestoreState("r", "o", 7, b"a state", digest_of(b"a state"), 1))
    restored = bench.answer()
    assert isinstance(restored, e.StateRestored)
    assert "Error in restore(): " in restored.error


def test_a_state_and_its_version_go_there_and_back(bench: Bench) -> None:
    bench.open("2")
    bench.workers.submit(e.TakeState("r", "o", 7))
    assert bench.answer() == e.StateTaken("r", "o", 7, b"a state", digest_of(b"a state"), 2)
    bench.workers.submit(e.RestoreState("r", "o", 7, b"a state", digest_of(b"a state"), 2))
    assert bench.answer() == e.StateRestored("r", "o", 7)
    bench.workers.submit(e.RestoreState("r", "o", 7, b"a state", digest_of(b"a state"), 3))
    assert bench.answer() == e.StateRestored("r", "o", 7, "its state is of version 3; the code here reads 2")
    bench.workers.submit(e.RestoreState("r", "o", 7, b"another", digest_of(b"a state"), 2))
    assert bench.answer() == e.StateRestored("r", "o", 7, "the 7 bytes that came do not have the state's digest")


def test_a_call_of_a_node_that_is_gone_is_not_answered(bench: Bench) -> None:
    bench.open(2)
    bench.workers.close_node(e.CloseNode("r", "o"))
    bench.workers.submit(e.TakeState("r", "o", 7))
    assert bench.workers.call(e.TakeState("r", "o", 7)) is None
    bench.open(2)  # whose answer is the next
