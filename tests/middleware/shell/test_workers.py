"""User code in threads of its own: its results and errors are events, and no thread ends by them."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from patience import patience
from run_ids import R, run_of

from thalweg.middleware.dataflow import Code, Node
from thalweg.middleware.errors import OperatorError
from thalweg.middleware.loading import reorderable
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell import workers as shell_workers
from thalweg.middleware.shell.node_code import digest_of
from thalweg.middleware.shell.workers import GROW_S, NO_THREAD_S, Lane, Slot, Task, Workers
from thalweg.operators import Operator

WAIT_S = 10.0  # for an event that comes within milliseconds
LOADING_S = 0.3  # of code that takes its time to load


class Versioned(Operator):
    """Operator whose state is of the version ``version``, valid or not."""

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


class Sees(Operator):
    """Operator that keeps the set of letters that it has seen."""

    reorderable = True

    def __init__(self, how: str = "") -> None:
        self.how, self.seen = how, b""

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        self.seen = self.merge([self.seen, *inputs])
        return self.seen

    def snapshot(self) -> bytes:
        return self.seen

    def restore(self, state: bytes) -> None:
        self.seen = state

    def merge(self, states: Sequence[bytes]) -> Any:
        if self.how == "raises":
            raise ValueError("two lines\nof text")
        return "text" if self.how == "type" else bytes(sorted(set(b"".join(states))))


class Forgets(Versioned):
    """Operator that is reorderable, but cannot merge its states."""

    reorderable = True

    def __init__(self) -> None:
        super().__init__(1)


class LoadsSlowly(Versioned):
    def __init__(self) -> None:
        super().__init__(1)
        time.sleep(LOADING_S)


class Plain(Operator):
    reorderable = True

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        return max(inputs)


class Answers:
    """Workers and their answers."""

    def __init__(self, max_threads: int = 1) -> None:
        self.events: queue.SimpleQueue[e.Event] = queue.SimpleQueue()
        self.workers = Workers(self.events.put, lambda _: (__name__,), max_threads)

    def submit(self, command: Task) -> None:
        slot = self.workers.slot(command)
        assert slot is not None
        self.workers.submit(slot, command)

    def answer(self) -> e.Event:
        return self.events.get(timeout=patience(WAIT_S))


class Bench(Answers):
    """One worker thread and its answers."""

    def open(self, version: object) -> None:
        """Open a node ``o`` of run ``r`` whose state is of this version."""
        code = Code(f"{__name__}:Versioned", {"version": version})
        self.workers.open_node(e.OpenNode(R, Node("o", "operator", ("s",), code)))
        assert self.answer() == e.NodeOpened(R, "o")


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.workers.stop()
    assert not any(thread.is_alive() for thread in bench.workers._threads)


@pytest.mark.parametrize("version", ["2b", None, [1], "\udce9", 1e400], ids=repr)
def test_an_invalid_state_version_is_answered_with_the_reason(bench: Bench, version: object) -> None:
    bench.open(version)
    for _ in range(2):  # the thread is there to make the second call
        bench.submit(e.TakeState(R, "o", 7))
        taken = bench.answer()
        assert isinstance(taken, e.StateTaken)
        assert (taken.run, taken.node, taken.version, taken.state) == (R, "o", 7, b"")
        assert "Error in snapshot(): " in taken.error
        assert "\n" not in taken.error
        taken.error.encode()
    bench.submit(e.RestoreState(R, "o", 7, b"a state", digest_of(b"a state"), 1))
    restored = bench.answer()
    assert isinstance(restored, e.StateRestored)
    assert "Error in restore(): " in restored.error


def refusal(error: str) -> e.StateRestored:
    """Return the answer to a state that the runtime itself refuses. It has no traceback of user code."""
    return e.StateRestored(R, "o", 7, error, m.Cause(None, "thalweg.middleware.errors.OperatorError"))


def test_a_state_is_restored_only_with_the_same_version_and_digest(bench: Bench) -> None:
    bench.open("2")
    bench.submit(e.TakeState(R, "o", 7))
    assert bench.answer() == e.StateTaken(R, "o", 7, b"a state", digest_of(b"a state"), 2)
    bench.submit(e.RestoreState(R, "o", 7, b"a state", digest_of(b"a state"), 2))
    assert bench.answer() == e.StateRestored(R, "o", 7)
    bench.submit(e.RestoreState(R, "o", 7, b"a state", digest_of(b"a state"), 3))
    assert bench.answer() == refusal("its state is of version 3; the code here reads 2")
    bench.submit(e.RestoreState(R, "o", 7, b"another", digest_of(b"a state"), 2))
    assert bench.answer() == refusal("the 7 bytes that came do not have the state's digest")


@pytest.mark.parametrize(
    ("name", "merging", "error"),
    [
        ("Plain", False, ""),
        ("Plain", True, ""),
        ("Sees", True, ""),
        ("Sees", False, "{use!r} has state, which would be lost"),
        ("Forgets", True, "{use!r} is not reorderable"),
    ],
)
def test_only_code_without_state_or_with_mergeable_states_may_appear_in_a_new_tree(
    bench: Bench, name: str, merging: bool, error: str
) -> None:
    code = Code(f"{__name__}:{name}")
    bench.workers.open_node(e.OpenNode(R, Node("o", "operator", ("s",), code), fresh=True, merging=merging))
    assert bench.answer() == e.NodeOpened(R, "o", error.format(use=code.use))
    found = reorderable([code], (__name__,))
    assert found.codes == ((code,) if name != "Forgets" else ())
    assert found.merging == ((code,) if name == "Sees" else ())


def merge(*states: bytes, digest: str = "", version: int = 1) -> e.MergeStates:
    taken = tuple(e.Inherited(state, digest or digest_of(state), version) for state in states)
    return e.MergeStates(R, "o", 7, taken)


@pytest.mark.parametrize(
    ("how", "states", "error"),
    [
        ("", merge(b"ab", b"", b"bc"), ""),
        ("", merge(b"ab", b"cd", digest=digest_of(b"ab")), "the 2 bytes that came do not have the state's digest"),
        ("", merge(b"ab", version=2), "a state is of version 2; the code here reads 1"),
        ("raises", merge(b"ab"), "ValueError in merge(): two lines of text"),
        ("type", merge(b"ab"), "merge() returned str, not bytes"),
    ],
)
def test_merged_states_are_restored_or_the_answer_has_the_reason(
    bench: Bench, how: str, states: e.MergeStates, error: str
) -> None:
    node = Node("o", "operator", ("s",), Code(f"{__name__}:Sees", {"how": how}))
    bench.workers.open_node(e.OpenNode(R, node, fresh=True, merging=True))
    assert bench.answer() == e.NodeOpened(R, "o")
    slot = bench.workers.slot(states)
    assert slot is not None
    assert not slot.is_quick(states)
    bench.submit(states)
    restored = bench.answer()
    assert isinstance(restored, e.StateRestored)
    assert restored.error == error
    if how == "raises":
        assert restored.cause and restored.cause.kind == "ValueError"
        assert "in merge" in restored.cause.traceback
    elif error:
        assert restored == refusal(error)
    bench.submit(e.TakeState(R, "o", 7))
    taken = bench.answer()
    assert isinstance(taken, e.StateTaken)
    assert taken.state == (b"" if error else b"abc")


def test_a_node_that_is_closed_has_no_slot_for_a_call(bench: Bench) -> None:
    bench.open(2)
    slot = bench.workers.slot(e.TakeState(R, "o", 7))
    bench.workers.close_node(e.CloseNode(R, "o"))
    assert slot is not None
    assert slot.gone
    assert bench.workers.slot(e.TakeState(R, "o", 7)) is None


class Large(Operator):
    """Operator with a state of one megabyte."""

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        return inputs[0]

    def snapshot(self) -> bytes:
        return bytes(1_000_000)


@pytest.mark.parametrize(("quick_s", "quick"), [(60.0, True), (0.0, False)])
def test_a_large_state_counts_as_quick_if_the_last_snapshot_was_quick(
    monkeypatch: pytest.MonkeyPatch, quick_s: float, quick: bool
) -> None:
    monkeypatch.setattr(shell_workers, "QUICK_S", quick_s)
    slot, take = (
        Slot(Node("o", "operator", ("s",), Code(f"{__name__}:Large")), Lane(R, None, (__name__,))),
        e.TakeState(R, "o", 7),
    )
    slot.open()
    assert not slot.is_quick(take)
    slot.make(take)
    assert slot.is_quick(take) == quick


def test_loading_is_no_part_of_the_first_calls_time() -> None:
    slot = Slot(Node("o", "operator", ("s",), Code(f"{__name__}:LoadsSlowly")), Lane(R, None, (__name__,)))
    finished = slot.make(e.RunOperator(R, "o", 0, (b"value",)))
    assert isinstance(finished, e.OperatorFinished)
    assert finished.value == b"value"
    assert finished.duration_s < LOADING_S


def test_a_first_call_fails_with_the_reason_why_the_code_cannot_be_loaded() -> None:
    slot = Slot(Node("o", "operator", ("s",), Code(f"{__name__}:Absent")), Lane(R, None, (__name__,)))
    failed = slot.make(e.RunOperator(R, "o", 0, (b"value",)))
    assert isinstance(failed, e.OperatorFailed)
    assert "Absent" in failed.reason


class Coloured(Exception):
    """Exception whose text is long and has control characters."""

    def __str__(self) -> str:
        return "\x1b[31mred\x07 " + "x" * 20_000


class Wordless(Exception):
    def __str__(self) -> str:
        raise SystemExit("no words")


class Throws(Operator):
    """Operator that raises the exception ``what`` from nested calls."""

    def __init__(self, what: str) -> None:
        self.what = what

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        return self.deeper(index or 200)

    def deeper(self, depth: int) -> None:
        if not depth:
            raise {"coloured": Coloured, "wordless": Wordless, "ours": OperatorError}[self.what]("said")
        self.deeper(depth - 1)


@pytest.mark.parametrize(
    ("what", "kind", "says"),
    [
        ("coloured", f"{__name__}.Coloured", "x" * 2_000),
        ("wordless", f"{__name__}.Wordless", "Wordless: <exception str() failed>"),
        ("ours", "thalweg.middleware.errors.OperatorError", "OperatorError: said"),
    ],
)
def test_a_traceback_fits_a_message_and_a_terminal(what: str, kind: str, says: str) -> None:
    slot = Slot(Node("o", "operator", ("s",), Code(f"{__name__}:Throws", {"what": what})), Lane(R, None, (__name__,)))
    failed = slot.make(e.RunOperator(R, "o", 3, (b"value",)))
    assert isinstance(failed, e.OperatorFailed)
    cause = failed.cause
    assert cause is not None
    assert (cause.kind, cause.index) == (kind, 3)
    assert cause.traceback.startswith("Traceback (most recent call last):\n")
    assert says in cause.traceback
    assert cause.traceback.replace("\n", "").isprintable()
    assert "node_code.py" not in cause.traceback
    assert "\n" not in failed.reason
    sent = m.Failed(R, "o", failed.reason[:4000], cause)
    assert frames.decode_control(frames.encode(sent)) == sent


def test_an_error_of_the_runtime_itself_has_no_traceback_of_user_code() -> None:
    slot = Slot(Node("o", "operator", ("s",), Code("nosuch")), Lane(R, None, ()))
    failed = slot.make(e.RunOperator(R, "o", 0, (b"value",)))
    assert isinstance(failed, e.OperatorFailed)
    assert failed.cause == m.Cause(None, "thalweg.middleware.errors.OperatorError")


# --- calls that take long, and what they leave to others ----------------------------------------------

LET_GO = threading.Event()
ENTERED: queue.SimpleQueue[str] = queue.SimpleQueue()


class Hangs(Versioned):
    """Operator that hangs in the method ``how`` until ``LET_GO`` is set."""

    def __init__(self, how: str = "combine") -> None:
        super().__init__(1)
        self.how = how
        self.enter("construct")

    def enter(self, what: str) -> None:
        if what == self.how:
            ENTERED.put(what)
            assert LET_GO.wait(patience(WAIT_S))

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        self.enter("combine")
        return b"made"

    def snapshot(self) -> bytes:
        self.enter("snapshot")
        return super().snapshot()

    def restore(self, state: bytes) -> None:
        self.enter("restore")

    def merge(self, states: Sequence[bytes]) -> bytes:
        self.enter("merge")
        return b"a state"


class Crowd(Answers):
    """Workers of code that may hang."""

    def open(self, run: RunId, count: int = 1, how: str = "combine", timeout_s: float | None = None) -> None:
        nodes = [Node(f"o{i}", "operator", ("s",), Code(f"{__name__}:Hangs", {"how": how})) for i in range(count)]
        self.workers.open(run, nodes, timeout_s)

    def combine(self, run: RunId, *names: str, index: int = 0) -> None:
        for name in names or ("o0",):
            self.submit(e.RunOperator(run, name, index, (b"value",)))

    def entered(self, count: int) -> None:
        """Wait until ``count`` calls hang. A call that waits for a thread has waited long enough for one by then."""
        deadline = time.monotonic() + patience(WAIT_S)
        while count:
            assert time.monotonic() < deadline
            assert self.workers.overdue(time.monotonic() + GROW_S) == []
            with contextlib.suppress(queue.Empty):
                ENTERED.get(timeout=0.01)
                count -= 1


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Crowd]]:
    monkeypatch.setattr(shell_workers, "PROMPT", 2)
    made: list[Crowd] = []

    def make(max_threads: int) -> Crowd:
        made.append(Crowd(max_threads))
        return made[-1]

    LET_GO.clear()
    yield make
    LET_GO.set()
    for one in made:
        one.workers.stop(WAIT_S)
        assert not one.workers._threads
    while not ENTERED.empty():
        ENTERED.get()


def test_hung_calls_of_several_runs_never_take_the_last_thread(crowd: Callable[[int], Crowd]) -> None:
    one = crowd(8)
    for run, threads in (("a", 4), ("b", 2), ("c", 1)):  # half of what is left each
        one.open(run_of(run), 8)
        one.combine(run_of(run), *(f"o{i}" for i in range(8)))
        one.entered(threads)
    assert ENTERED.empty()
    one.open(run_of("d"), 2, how="nothing")
    one.combine(run_of("d"), "o0", "o1")
    made = [one.answer() for _ in range(2)]
    assert {event.node for event in made if isinstance(event, e.OperatorFinished)} == {"o0", "o1"}
    for run in map(run_of, "abc"):
        one.workers.close(run)  # none is ended by that, but none of its calls that wait is begun
    LET_GO.set()
    one.combine(run_of("d"), index=1)
    assert isinstance(one.answer(), e.OperatorFinished)
    assert one.events.empty()


def test_a_call_without_a_free_thread_fails_after_a_time_limit(crowd: Callable[[int], Crowd]) -> None:
    one = crowd(1)
    one.open(run_of("a"))
    one.combine(run_of("a"))
    one.entered(1)
    one.workers.close(run_of("a"))
    one.open(run_of("b"))
    waits_s = time.monotonic()
    assert one.workers.due_s <= waits_s + GROW_S
    assert one.workers.overdue(waits_s + 0.9 * NO_THREAD_S) == []
    assert one.workers.due_s < waits_s + 1.1 * NO_THREAD_S
    (failed,) = one.workers.overdue(waits_s + NO_THREAD_S)
    assert failed.reason == (
        "loading its code was not begun: all 1 threads (max_threads) of this host are in calls, 1 of them of runs that "
        "are over; wait for them, or start the host with --limit max_threads=N"
    )
    LET_GO.set()
    one.open(run_of("c"))
    one.combine(run_of("c"))
    assert isinstance(one.answer(), e.OperatorFinished)  # the thread came back


def test_calls_of_a_node_are_made_in_turn(crowd: Callable[[int], Crowd]) -> None:
    one = crowd(8)
    one.open(R, how="snapshot")
    one.submit(e.TakeState(R, "o0", 1))
    one.entered(1)
    one.combine(R)
    one.workers.overdue(time.monotonic() + GROW_S)
    assert one.events.empty()
    LET_GO.set()
    assert isinstance(one.answer(), e.StateTaken)
    assert isinstance(one.answer(), e.OperatorFinished)


def test_threads_without_work_end(crowd: Callable[[int], Crowd], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_workers, "IDLE_S", 0.01)
    one = crowd(8)
    one.open(R, 4)
    one.combine(R, "o0", "o1", "o2", "o3")
    one.entered(4)
    threads = list(one.workers._threads)
    assert len(threads) == 4
    LET_GO.set()
    for thread in threads:
        thread.join(patience(WAIT_S))
    assert not one.workers._threads
    one.combine(R, index=1)
    assert sum(isinstance(one.answer(), e.OperatorFinished) for _ in range(5)) == 5


@pytest.mark.parametrize(
    ("how", "command", "what"),
    [
        ("combine", e.RunOperator(R, "o0", 7, (b"value",)), "combine() of partition 7"),
        ("snapshot", e.TakeState(R, "o0", 1), "snapshot()"),
        ("restore", e.RestoreState(R, "o0", 1, b"", digest_of(b""), 1), "restore()"),
        ("merge", e.MergeStates(R, "o0", 1, (e.Inherited(b"", digest_of(b""), 1),)), "merge()"),
        ("construct", None, "loading its code"),
    ],
)
def test_a_call_that_takes_longer_than_the_run_allows_fails_once(
    crowd: Callable[[int], Crowd], how: str, command: Task | None, what: str
) -> None:
    one = crowd(4)
    one.open(R, how=how, timeout_s=3.0)
    if command is not None:
        one.submit(command)
    one.entered(1)
    begun_s = time.monotonic()
    assert one.workers.due_s <= begun_s + 3.0
    assert one.workers.overdue(begun_s + 1.0) == []
    assert one.workers.due_s <= begun_s + 3.0
    cause = m.Cause(7 if how == "combine" else None, "TimeoutError")
    failed = e.OperatorFailed(R, "o0", f"{what} has not returned within 3 s (call_timeout_s)", cause)
    assert one.workers.overdue(begun_s + 3.0) == [failed]
    assert one.workers.overdue(begun_s + 9.0) == []
    LET_GO.set()
    one.open(run_of("other"), how="nothing")
    one.combine(run_of("other"))
    assert isinstance(one.answer(), e.OperatorFinished)  # and nothing of the call that was given up
    assert one.events.empty()


def test_code_and_pending_calls_pass_to_the_next_generation_of_a_run() -> None:
    answers = Answers(2)
    workers, code = answers.workers, Code(f"{__name__}:Sees")
    try:
        workers.open(R, [Node(name, "operator", ("s",), code) for name in "op"], 60.0)
        for name in "op":
            answers.submit(e.RunOperator(R, name, 0, (b"a",)))
        assert {answers.answer().node for _ in "op"} == {"o", "p"}  # type: ignore[attr-defined]
        answers.submit(e.RunOperator(R, "o", 1, (b"b",)))
        workers.pass_on(R, run_of("r~1"), ["o"])
        workers.close(R, follows=True)
        workers.open(run_of("r~1"), [Node("p", "operator", ("s",), code)], 60.0)
        assert workers.slot(e.TakeState(R, "o", 1)) is None
        answers.submit(e.TakeState(run_of("r~1"), "o", 1))
        finished, taken = answers.answer(), answers.answer()
        assert isinstance(finished, e.OperatorFinished)
        assert (finished.run, finished.value) == (R, b"ab")  # called before
        assert isinstance(taken, e.StateTaken)
        assert (taken.run, taken.state) == (run_of("r~1"), b"ab")
        answers.submit(e.RunOperator(run_of("r~1"), "p", 0, (b"c",)))
        made = answers.answer()
        assert isinstance(made, e.OperatorFinished)
        assert made.value == b"c"  # its code was opened anew
    finally:
        workers.stop()
