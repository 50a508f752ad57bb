"""Threads that run the code of nodes, so that no call delays the sockets of a host.

The shell's own thread may make the calls of a node that has proved quick (``standby_loop``).

Rules:

- R1: Calls of one node are made one after the other, in the order of arrival.
- R2: A run gets a further thread only while more threads are free than the run has. So no run takes the last thread,
  whatever its calls do.
- R3: Threads are started when needed, at most ``max_threads``. For the first ``PROMPT`` calls of a run this happens at
  once, for further calls after a wait of ``GROW_S``. A thread without work for ``IDLE_S`` ends.
- R4: If the run of a call is closed or its node has left, the call is abandoned. A call cannot be ended, so the answer
  is dropped, and the thread counts until the call returns.
- R5: A call that takes longer than its run allows is answered with ``OperatorFailed``. So is a call that has waited for
  ``NO_THREAD_S``, if the run has no thread at all.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from thalweg.middleware.dataflow import Node
from thalweg.middleware.loading import Allow
from thalweg.middleware.logbook import Logbook
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell import node_code
from thalweg.middleware.shell.node_code import NodeCode, OwnCode, StateCall

Task = e.RunOperator | StateCall

PROMPT = min(4, os.cpu_count() or 1)
GROW_S = 0.1
IDLE_S = 10.0
NO_THREAD_S = 10.0
QUICK_S = 0.001
QUICK_CALLS = 3  # number of calls below QUICK_S that make a node quick
SLOW_S = 0.01  # after one such call, AGAIN times as many quick calls are needed
AGAIN = 16
QUICK_STATE_BYTES = 65_536  # such a state and its digest take 0.03 ms, a hand-over to a thread and back 0.2 ms


class Lane:
    """Calls of one run: the nodes whose next call waits for a thread, and the number of calls under way."""

    __slots__ = ("allow", "busy", "run", "timeout_s", "waiting")

    def __init__(self, run: RunId, timeout_s: float | None, allow: Allow) -> None:
        self.run, self.timeout_s, self.allow = run, timeout_s, allow
        self.busy = 0
        self.waiting: deque[Slot] = deque()


class Call:
    """Call of a node's code that waits or is under way."""

    __slots__ = ("begun_s", "command", "make", "over", "overdue", "slot")

    def __init__(self, slot: Slot, command: Task | None, make: Callable[[], e.Event | None]) -> None:
        self.slot, self.command, self.make = slot, command, make  # without a command the call loads the code
        self.begun_s = 0.0
        self.over = self.overdue = False

    def failed(self, why: str) -> e.OperatorFailed:
        self.overdue = True
        slot, command = self.slot, self.command
        activity = "loading its code" if command is None or slot.code is None else node_code.name_of(command)
        index = command.of_stream if isinstance(command, e.RunOperator) else None
        return slot.failed(node_code.overdue(slot.lane.run, slot.node.name, index, f"{activity} {why}"))


class Slot:
    """Code of one node, constructed once, by the first thread that needs the code."""

    def __init__(self, node: Node, lane: Lane, logbook: Logbook | None = None) -> None:
        self.node, self._logbook = node, logbook or Logbook("")
        self.lane = lane
        self.code: NodeCode | None = None
        self.gone = False  # its answers are dropped
        self.calls: deque[Call] = deque()  # calls that wait
        self.busy = False  # a call is under way
        self.waits_s = 0.0  # since when the first call could be made
        self._logged = False
        self._streak: float = 0  # recent quick calls, less slower calls
        self._wanted: float = QUICK_CALLS
        self._take_s: dict[bool, float] = {}  # duration of the last state, and of the last change (delta)
        self._lock = threading.Lock()

    def open(self) -> NodeCode:
        if self.code is None:
            with self._lock:
                if self.code is None:
                    self.code = OwnCode(self.node, self.lane.allow)
                    if self.code.waits:  # never in the shell's own thread
                        self._wanted = math.inf
        return self.code

    def is_quick(self, command: Task) -> bool:
        """Return whether a hand-over of this call would take longer than the call.

        The estimate is from the last calls, or from the bytes of a state.
        """
        if isinstance(command, e.RunOperator):
            return self._streak >= self._wanted
        if isinstance(command, e.MergeStates) or self.code is None:
            return False
        if isinstance(command, e.TakeState):
            is_delta = command.delta and self.code.tells
            if self._take_s.get(is_delta, math.inf) < QUICK_S:
                return True
            size = self.code.delta_bytes if is_delta else self.code.state_bytes
        else:
            size = len(command.state) + sum([len(delta.state) for delta in command.deltas])
        return size is not None and size <= QUICK_STATE_BYTES

    def make(self, command: Task) -> e.Event:
        """Make the call in this thread. Return ``OperatorFinished``, ``StateTaken``, ``StateRestored`` or a failure."""
        if isinstance(command, e.TakeState):
            is_delta, begun_s = command.delta and self.code is not None and self.code.tells, time.perf_counter()
            event = node_code.take_or_give(self.open, command)
            self._take_s[is_delta] = time.perf_counter() - begun_s
            return event
        if not isinstance(command, e.RunOperator):
            return node_code.take_or_give(self.open, command)
        code = self.code
        if code is None:  # loading takes longer than most calls, and does not count as a call
            failed = _try(self, e.OpenNode(command.run, self.node))
            if failed is not None:
                return failed
            code = self.open()
        begun_s = time.perf_counter()
        outcome = node_code.make(code, command)
        took_s = time.perf_counter() - begun_s
        if isinstance(outcome, e.OperatorFailed):
            return self.failed(outcome)
        if took_s < QUICK_S:
            if self._streak < self._wanted + QUICK_CALLS:
                self._streak += 1
        elif took_s < SLOW_S:  # perhaps the thread only waited for the processor
            self._streak = max(0, self._streak - 2)
        else:
            self._streak, self._wanted = 0, self._wanted * AGAIN
        return node_code.finished(command, outcome, took_s)

    def failed(self, event: e.OperatorFailed) -> e.OperatorFailed:
        """Return the event. Log the first failure of the node, with the lines of its traceback."""
        if not self._logged:
            self._logged = True
            where = event.cause.traceback if event.cause else ""
            text = f"run {event.run}: node {event.node!r}: {event.reason}"
            self._logbook.write(
                "node-failed", text, more=where, run=str(event.run), node=event.node, reason=event.reason
            )
        return event


class Workers:
    """Threads that make calls and pass each result to ``done`` as an event.

    ``due_s``: time of the next call of ``overdue``.
    """

    def __init__(
        self,
        done: Callable[[e.Event], None],
        allowed: Callable[[str], Allow],
        max_threads: int = 64,
        logbook: Logbook | None = None,
    ) -> None:
        self._logbook = logbook
        self.due_s = math.inf
        self._done = done
        self._allowed = allowed
        self._most = max(1, max_threads)
        self._slots: dict[tuple[RunId, str], Slot] = {}
        self._lanes: dict[RunId, Lane] = {}
        self._lock = threading.Lock()  # of the fields below, and of the fields of lanes, slots and calls
        self._waiting: dict[RunId, Lane] = {}  # lanes with waiting calls, the next lane first
        self._calls: set[Call] = set()  # calls under way
        self._idle: list[queue.SimpleQueue[Call | None]] = []
        self._threads: set[threading.Thread] = set()
        self._stopping = False

    def open(self, run: RunId, nodes: list[Node], timeout_s: float | None = None, client: str = "") -> None:
        """Load the code of these nodes of a client's run. A failure is reported with ``OperatorFailed``."""
        if run not in self._lanes:
            self._lanes[run] = Lane(run, timeout_s, self._allowed(client))
        for node in nodes:
            if node.code is not None:
                slot = self._slot(run, node)
                self._have_made(Call(slot, None, partial(_try, slot, e.OpenNode(run, node))))

    def _slot(self, run: RunId, node: Node) -> Slot:
        self.close_node(e.CloseNode(run, node.name))
        lane = self._lanes.get(run)
        if lane is None:
            lane = self._lanes[run] = Lane(run, None, self._allowed(""))
        slot = self._slots[run, node.name] = Slot(node, lane, self._logbook)
        return slot

    def pass_on(self, run: RunId, follows: RunId, nodes: Iterable[str]) -> None:
        """Pass these nodes and their calls on to the next generation of the run."""
        for name in nodes:
            slot = self._slots.pop((run, name), None)
            if slot is not None:
                self._slots[follows, name] = slot
                self._lanes[follows] = slot.lane
        with self._lock:
            lane = self._lanes.get(follows)
            if lane is not None and lane.run == run:
                lane.run = follows
                if self._waiting.pop(run, None) is not None:
                    self._waiting[follows] = lane

    def close(self, run: RunId, *, follows: bool = False) -> None:
        """Abandon the calls of a run that is over (R4). Abandon the code too, unless a next generation ``follows``."""
        for key in [key for key in self._slots if key[0] == run]:
            self.close_node(e.CloseNode(*key), follows=follows)
        self._lanes.pop(run, None)

    def slot(self, command: Task) -> Slot | None:
        """Return the slot for a call. None: the node has left."""
        return self._slots.get((command.run, command.node))

    def submit(self, slot: Slot, command: Task) -> None:
        """Make a call in one of the threads."""
        self._have_made(Call(slot, command, partial(slot.make, command)))

    def open_node(self, command: e.OpenNode) -> None:
        """Construct the code of an operator that may come to this host. Answered by ``NodeOpened``."""
        slot = self._slot(command.run, command.node)
        self._have_made(Call(slot, None, partial(node_code.open_node, slot.open, command)))

    def close_node(self, command: e.CloseNode, *, follows: bool = False) -> None:
        slot = self._slots.pop((command.run, command.node), None)
        if slot is not None:
            with self._lock:
                slot.gone = True
                slot.calls.clear()
                if slot in slot.lane.waiting:
                    slot.lane.waiting.remove(slot)
                    self._still_waits(slot.lane)
            if slot.code is not None and not follows:
                slot.code.abandon()

    def stop(self, wait_s: float = 1.0) -> None:
        """End the threads after their present calls. A call that takes longer than ``wait_s`` ends with the process."""
        with self._lock:
            self._stopping = True
            for box in self._idle:
                box.put(None)
            threads = list(self._threads)
        deadline = time.monotonic() + wait_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    # --- calls that another thread makes ---------------------------------------------------------------

    def timed(self, slot: Slot, command: Task) -> Call:
        """Return a call for the shell's own thread to make. The call may become overdue."""
        call = Call(slot, command, _never)
        call.begun_s = time.monotonic()
        return call

    def watch(self, call: Call) -> None:
        """Watch a call over which the thread on duty has lost the duty. ``Call.over`` is set when the call returns."""
        with self._lock:
            self._calls.add(call)
            self._watch(call)

    # --- what is due -----------------------------------------------------------------------------------

    def slept(self, slept_s: float) -> None:
        """Exclude ``slept_s``, in which this process did not run, from the durations of calls."""
        with self._lock:
            for call in self._calls:
                call.begun_s += slept_s
            for lane in self._waiting.values():
                for slot in lane.waiting:
                    slot.waits_s += slept_s

    def overdue(self, now: float) -> list[e.OperatorFailed]:
        """Start threads for calls that have waited, and return the failures of calls over time (R3, R5)."""
        failed: list[e.OperatorFailed] = []
        with self._lock:
            self.due_s = math.inf
            for lane in list(self._waiting.values()):
                failed += self._check(lane, now)
            self._calls = {call for call in self._calls if not call.over}
            for call in self._calls:
                limit_s = call.slot.lane.timeout_s
                if limit_s is None or call.overdue or call.slot.gone:
                    continue
                if now - call.begun_s >= limit_s:
                    failed.append(call.failed(node_code.not_within(limit_s)))
                else:
                    self._watch(call)
        return failed

    def _check(self, lane: Lane, now: float) -> list[e.OperatorFailed]:
        waiting, failed = lane.waiting, []
        while waiting and now - waiting[0].waits_s >= GROW_S and self._begin(waiting[0], grow=True):
            waiting.popleft()
        if waiting and lane.busy == 0 and now - waiting[0].waits_s >= NO_THREAD_S:
            lost = sum(call.slot.gone for call in self._calls)
            why = f"was not begun: all {self._most} threads (max_threads) of this host are in calls, {lost} of them of "
            call = waiting.popleft().calls.popleft()
            failed = [
                call.failed(f"{why}runs that are over; wait for them, or start the host with --limit max_threads=N")
            ]
        if self._still_waits(lane):
            grows_s = waiting[0].waits_s + GROW_S
            self.due_s = min(
                self.due_s, grows_s if now < grows_s else now + NO_THREAD_S / 10, self._begins_s(lane, now)
            )
        return failed

    def _still_waits(self, lane: Lane) -> bool:
        if not lane.waiting:
            self._waiting.pop(lane.run, None)
        return bool(lane.waiting)

    def _begins_s(self, lane: Lane, now: float) -> float:
        """Return the earliest time at which a waiting call may be overdue, as it may begin at any time."""
        return math.inf if lane.timeout_s is None else now + lane.timeout_s

    def _watch(self, call: Call) -> None:
        if call.slot.lane.timeout_s is not None:
            self.due_s = min(self.due_s, call.begun_s + call.slot.lane.timeout_s)

    # --- threads ---------------------------------------------------------------------------------------

    def _have_made(self, call: Call) -> None:
        slot = call.slot
        lane = slot.lane
        with self._lock:
            slot.calls.append(call)
            if slot.busy or len(slot.calls) > 1:  # R1: an earlier call of the node is to end first
                return
            slot.waits_s = now = time.monotonic()
            if lane.waiting or not self._begin(slot, grow=lane.busy < PROMPT):
                self._let_wait(slot)
                self.due_s = min(self.due_s, now + GROW_S, self._begins_s(lane, now))

    def _let_wait(self, slot: Slot) -> None:
        slot.lane.waiting.append(slot)
        self._waiting[slot.lane.run] = slot.lane

    def _free(self, lane: Lane) -> bool:
        """Return whether the run may have a further thread (R2)."""
        return lane.busy < self._most - len(self._calls)

    def _begin(self, slot: Slot, *, grow: bool) -> bool:
        """Begin a node's next call if a thread is free, or with ``grow`` can be started. Return whether it began."""
        if not self._free(slot.lane):
            return False
        if self._idle:
            box = self._idle.pop()
        elif grow and len(self._threads) < self._most:
            box = queue.SimpleQueue()
            thread = threading.Thread(target=self._work, args=(box,), name="thalweg-operator", daemon=True)
            self._threads.add(thread)
            try:
                thread.start()
            except RuntimeError:  # the process may have no more threads
                self._threads.discard(thread)
                return False
        else:
            return False
        box.put(self._next_of(slot))
        return True

    def _next_of(self, slot: Slot) -> Call:
        call = slot.calls.popleft()
        slot.busy = True
        slot.lane.busy += 1
        call.begun_s = time.monotonic()
        self._calls.add(call)
        self._watch(call)
        return call

    def _work(self, box: queue.SimpleQueue[Call | None]) -> None:
        while (call := self._wait(box)) is not None:
            while call is not None:
                event = call.make()
                # R4, R5: the answer of an abandoned or overdue call is dropped
                wanted = not (call.overdue or call.slot.gone)
                following = self._ended(call, box)
                if wanted and event is not None:
                    self._done(event)
                call = following
                del event, following
        with self._lock:
            self._threads.discard(threading.current_thread())

    def _wait(self, box: queue.SimpleQueue[Call | None]) -> Call | None:
        while True:
            try:
                return box.get(timeout=IDLE_S)
            except queue.Empty:
                with self._lock:
                    if box in self._idle:  # else the box is about to get a call
                        self._idle.remove(box)
                        self._threads.discard(threading.current_thread())
                        return None

    def _ended(self, call: Call, box: queue.SimpleQueue[Call | None]) -> Call | None:
        """Note the end of a call. Return the next call for the thread, None if no call waits."""
        slot = call.slot
        with self._lock:
            call.over, slot.busy = True, False
            slot.lane.busy -= 1
            self._calls.discard(call)
            if slot.calls:
                slot.waits_s = time.monotonic()
                self._let_wait(slot)
            if self._stopping:
                box.put(None)
                return None
            for run, lane in self._waiting.items():
                if self._free(lane):
                    del self._waiting[run]
                    following = self._next_of(lane.waiting.popleft())
                    if lane.waiting:
                        self._waiting[run] = lane  # behind the other lanes
                    return following
            self._idle.append(box)
            return None


def _try(slot: Slot, command: e.OpenNode) -> e.OperatorFailed | None:
    failed = node_code.load(slot.open, command)
    return None if failed is None else slot.failed(failed)


def _never() -> None:
    """Stand in for a call by the shell's own thread."""
