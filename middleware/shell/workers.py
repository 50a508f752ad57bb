"""Operators run here, in threads of their own, so that they never hold up a host's sockets.

Calls of a node that has proved quick may also be made by ``call`` in the shell's own thread (see ``duty``)."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from thalweg.middleware.dataflow import Node
from thalweg.middleware.errors import OperatorError, ThalwegError, one_line
from thalweg.middleware.loading import keeps_state, load_code, may_reorder
from thalweg.middleware.protocol import events as e
from thalweg.middleware.shell.transfers import frames_of, size_of

Task = e.RunOperator | e.TakeState | e.RestoreState | e.MergeStates

QUICK_S = 0.001
QUICK_CALLS = 3  # in a row of less than QUICK_S each make a node quick
SLOW_S = 0.01  # one such call, and the node is never quick again
QUICK_STATE_BYTES = 65_536  # its digest takes 0.04 ms, handing it to another thread and back 0.2 ms


class _Slot:
    """The code of one node, constructed once, by the first worker that needs it."""

    def __init__(self, node: Node, allow: Collection[str]) -> None:
        self.node = node
        self._allow = allow
        self._lock = threading.Lock()
        self._code: Any = None
        self._call: Callable[..., Any] | None = None
        self.streak = 0  # of quick calls
        self.state_bytes: int | None = None  # when it was last asked for, or came

    def took(self, duration_s: float) -> None:
        self.streak = (
            -(2**62) if duration_s > SLOW_S else self.streak + 1 if duration_s < QUICK_S else min(0, self.streak)
        )

    def call(self) -> Callable[..., Any]:
        """``combine(inputs, index)`` of an operator, ``produce(index)`` of a source."""
        with self._lock:
            if self._call is None:
                assert self.node.code is not None
                self._code = code = load_code(self.node.code, self._allow)
                wants = "combine" if self.node.kind == "operator" else "produce"
                self._call = getattr(code, wants, None)
                if self._call is None:
                    raise ThalwegError(f"{self.node.code.use!r} cannot run as {self.node.kind}: it has no {wants}()")
            return self._call

    @property
    def state_version(self) -> int:
        return int(getattr(self._code, "state_version", 1))

    def check_fresh(self, *, merging: bool) -> None:
        """That an operator of this code may appear while others disappear; ``merging``: their states are merged."""
        assert self.node.code is not None
        if not may_reorder(self._code):
            raise OperatorError(f"{self.node.code.use!r} is not reorderable")
        if keeps_state(self._code) and not merging:
            raise OperatorError(f"{self.node.code.use!r} has state, which would be lost")

    def snapshot(self) -> bytes:
        """The operator's state; empty for code that keeps none."""
        self.call()
        take = getattr(self._code, "snapshot", None)
        state = b"" if take is None else take()
        if not isinstance(state, bytes):
            raise OperatorError(f"snapshot() returned {type(state).__name__}, not bytes")
        self.state_bytes = len(state)
        return state

    def restore(self, state: bytes, state_version: int) -> None:
        self.call()
        if state_version != self.state_version:
            raise OperatorError(f"its state is of version {state_version}; the code here reads {self.state_version}")
        give = getattr(self._code, "restore", None)
        if give is not None:
            give(state)
        elif state:
            raise OperatorError(f"there are {len(state)} bytes of state, and the code here has no restore()")
        self.state_bytes = len(state)

    def merge(self, states: tuple[e.Inherited, ...]) -> None:
        """Take over the states of others."""
        self.call()
        for each in states:
            _check(each.state, each.digest)
            if each.state_version != self.state_version:
                said = f"a state is of version {each.state_version}; the code here reads {self.state_version}"
                raise OperatorError(said)
        merged = self._code.merge([bytes(each.state) for each in states])
        if not isinstance(merged, bytes):
            raise OperatorError(f"merge() returned {type(merged).__name__}, not bytes")
        self.restore(merged, self.state_version)


class Workers:
    """A few threads that take calls from a queue and hand each result to ``done`` as an event."""

    def __init__(self, done: Callable[[e.Event], None], allow: Collection[str], threads: int | None = None) -> None:
        self._done = done
        self._allow = allow
        self._slots: dict[tuple[str, str], _Slot] = {}
        self._queue: queue.SimpleQueue[Callable[[], e.Event | None] | None] = queue.SimpleQueue()
        count = threads or min(4, os.cpu_count() or 1)
        self._threads = [
            threading.Thread(target=self._work, name=f"thalweg-operator-{i}", daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def open(self, run: str, nodes: list[Node]) -> None:
        for node in nodes:
            if node.code is not None:
                slot = self._slots[run, node.name] = _Slot(node, self._allow)
                self._queue.put(partial(self._call, slot, run, -1, None))

    def close(self, run: str) -> None:
        for key in [key for key in self._slots if key[0] == run]:
            del self._slots[key]

    def submit(self, command: Task) -> None:
        """Have a call made by a thread here: ``OperatorFinished``, ``StateTaken`` or ``StateRestored``."""
        slot = self._slots.get((command.run, command.node))
        if slot is not None:
            self._queue.put(partial(self._make, slot, command))

    def open_node(self, command: e.OpenNode) -> None:
        """Construct the code of an operator that may come here: ``NodeOpened``."""
        slot = self._slots[command.run, command.node.name] = _Slot(command.node, self._allow)
        self._queue.put(partial(_open, slot, command))

    def close_node(self, command: e.CloseNode) -> None:
        self._slots.pop((command.run, command.node), None)

    def is_quick(self, command: Task) -> bool:
        """Whether handing this call over would take longer than it: as far as the last ones, or its bytes, tell."""
        slot = self._slots.get((command.run, command.node))
        if slot is None:
            return False
        if type(command) is e.RunOperator:
            return slot.streak >= QUICK_CALLS
        if type(command) is e.MergeStates:
            return False
        size = len(command.state) if type(command) is e.RestoreState else slot.state_bytes
        return size is not None and size <= QUICK_STATE_BYTES

    def call(self, command: Task) -> e.Event | None:
        """Make the call here and now; the event to handle, None when the node is gone."""
        slot = self._slots.get((command.run, command.node))
        return None if slot is None else self._make(slot, command)

    def stop(self, wait_s: float = 1.0) -> None:
        """End the threads after their present call; one in user code that takes longer is left to the process's end."""
        for _ in self._threads:
            self._queue.put(None)
        deadline = time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            event = task()
            del task
            if event is not None:
                self._done(event)
            del event

    def _make(self, slot: _Slot, command: Task) -> e.Event | None:
        match command:
            case e.RunOperator():
                return self._call(slot, command.run, command.index, command.inputs)
            case e.TakeState():
                return _take(slot, command)
            case e.RestoreState() | e.MergeStates():
                return _restore(slot, command)

    @staticmethod
    def _call(slot: _Slot, run: str, index: int, inputs: tuple[Any, ...] | None) -> e.Event | None:
        name = slot.node.name
        try:
            call = slot.call()
            if inputs is None:  # only to find out early whether it can be loaded
                return None
            begun = time.perf_counter()
            value = call(inputs, index) if slot.node.kind == "operator" else call(index)
            took = time.perf_counter() - begun
            slot.took(took)
            if value is None:
                if slot.node.kind == "operator":
                    return e.OperatorFailed(run, name, f"combine returned None for partition {index}")
                return e.OperatorFinished(run, name, index, end=True, duration_s=took)
            frames_of(value)
            return e.OperatorFinished(run, name, index, value, size_of(value), duration_s=took)
        except BaseException as error:  # user code: whatever it raises (SystemExit too) ends the run with its name
            return e.OperatorFailed(run, name, _reason(error, f" at partition {index}" if index >= 0 else ""))


def digest_of(state: bytes) -> str:
    """What a state is recognised by when it has arrived."""
    import hashlib  # OpenSSL: 4 MB that a host does without until an operator moves

    return f"sha256:{hashlib.sha256(state).hexdigest()}"


def _open(slot: _Slot, command: e.OpenNode) -> e.Event:
    try:
        slot.call()
        if command.fresh:
            slot.check_fresh(merging=command.merging)
    except BaseException as error:
        return e.NodeOpened(command.run, slot.node.name, _reason(error))
    return e.NodeOpened(command.run, slot.node.name)


def _take(slot: _Slot, command: e.TakeState) -> e.Event:
    try:
        state = slot.snapshot()
        state_version = slot.state_version
    except BaseException as error:
        return e.StateTaken(command.run, command.node, command.version, error=_reason(error, " in snapshot()"))
    digest = digest_of(state)
    return e.StateTaken(command.run, command.node, command.version, state, digest, state_version)


def _check(state: bytes, digest: str) -> None:
    if digest_of(state) != digest:
        raise OperatorError(f"the {len(state)} bytes that came do not have the state's digest")


def _restore(slot: _Slot, command: e.RestoreState | e.MergeStates) -> e.Event:
    where = " in restore()"
    try:
        if isinstance(command, e.MergeStates):
            where = " in merge()"
            slot.merge(command.states)
        else:
            _check(command.state, command.digest)
            slot.restore(bytes(command.state), command.state_version)
    except BaseException as error:
        return e.StateRestored(command.run, command.node, command.version, _reason(error, where))
    return e.StateRestored(command.run, command.node, command.version)


def _reason(error: BaseException, where: str = "") -> str:
    """What went wrong, in one line; our own errors speak for themselves."""
    if isinstance(error, ThalwegError):
        return one_line(error)
    return f"{type(error).__name__}{where}: {one_line(error)}"
