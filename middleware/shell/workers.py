"""Operators run here, in threads of their own, so that they never hold up a host's sockets.

Calls of a node that has proved quick may also be made by the shell's own thread (see ``duty``)."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from thalweg.middleware.dataflow import Node
from thalweg.middleware.loading import Allow
from thalweg.middleware.protocol import events as e
from thalweg.middleware.shell import node_code
from thalweg.middleware.shell.node_code import Made, NodeCode, OwnCode, StateCall

Task = e.RunOperator | StateCall

QUICK_S = 0.001
QUICK_CALLS = 3  # of less than QUICK_S each make a node quick
SLOW_S = 0.01  # one such call, and it takes AGAIN times as many until the node is quick again
AGAIN = 16
QUICK_STATE_BYTES = 65_536  # its digest takes 0.04 ms, handing it to another thread and back 0.2 ms


class Slot:
    """The code of one node, constructed once, by the first worker that needs it."""

    def __init__(self, node: Node, allow: Allow) -> None:
        self.node = node
        self.code: NodeCode | None = None
        self.gone = False  # nobody wants its answers any more
        self._logged = False
        self._streak = 0  # quick calls of late, less the others
        self._wanted = QUICK_CALLS
        self._allow = allow
        self._lock = threading.Lock()

    def open(self) -> NodeCode:
        if self.code is None:
            with self._lock:
                if self.code is None:
                    self.code = OwnCode(self.node, self._allow)
        return self.code

    def is_quick(self, command: Task) -> bool:
        """Whether handing this call over would take longer than it: as far as the last ones, or its bytes, tell."""
        if type(command) is e.RunOperator:
            return self._streak >= self._wanted
        if type(command) is e.MergeStates or self.code is None:
            return False
        size = len(command.state) if type(command) is e.RestoreState else self.code.state_bytes
        return size is not None and size <= QUICK_STATE_BYTES

    def make(self, command: Task) -> e.Event:
        """Make the call here and now: ``OperatorFinished``, ``StateTaken`` or ``StateRestored``, or why not."""
        if type(command) is not e.RunOperator:
            return node_code.take_or_give(self.open, command)  # type: ignore[arg-type]
        if self.code is None:  # loading takes longer than most calls, and is none
            failed = _try(self, e.OpenNode(command.run, self.node))
            if failed is not None:
                return failed
        begun_s = time.perf_counter()
        made = node_code.make(self.open, command)
        took_s = time.perf_counter() - begun_s
        if type(made) is not Made:
            return self.failed(made)  # type: ignore[arg-type]
        if took_s < QUICK_S:
            self._streak = min(self._streak + 1, self._wanted + QUICK_CALLS)
        elif took_s < SLOW_S:  # perhaps only its thread had to wait for the processor
            self._streak = max(0, self._streak - 2)
        else:
            self._streak, self._wanted = 0, self._wanted * AGAIN
        return node_code.finished(command, made, took_s)

    def failed(self, event: e.OperatorFailed) -> e.OperatorFailed:
        """The same; the first is logged, with where in its code the node failed."""
        if not self._logged:
            import logging  # only failures need it: a host starts sooner without

            self._logged = True
            where = event.cause.traceback if event.cause else ""
            said = f"run {event.run}: node {event.node!r}: {event.reason}" + (where and f"\n{where}")
            logging.getLogger("thalweg").error("%s", said)  # on standard error, where nobody says otherwise
        return event


class Workers:
    """A few threads that take calls from a queue and hand each result to ``done`` as an event."""

    def __init__(self, done: Callable[[e.Event], None], allow: Allow, threads: int | None = None) -> None:
        self._done = done
        self._allow = allow
        self._slots: dict[tuple[str, str], Slot] = {}
        self._queue: queue.SimpleQueue[Callable[[], e.Event | None] | None] = queue.SimpleQueue()
        count = threads or min(4, os.cpu_count() or 1)
        self._threads = [
            threading.Thread(target=self._work, name=f"thalweg-operator-{i}", daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def open(self, run: str, nodes: list[Node]) -> None:
        """Find out early whether the code of these nodes can be loaded: ``OperatorFailed`` if not."""
        for node in nodes:
            if node.code is not None:
                slot = self._slots[run, node.name] = Slot(node, self._allow)
                self._queue.put(partial(_try, slot, e.OpenNode(run, node)))

    def close(self, run: str) -> None:
        for key in [key for key in self._slots if key[0] == run]:
            self._slots.pop(key).gone = True

    def slot(self, command: Task) -> Slot | None:
        """Where the call is made; None when the node is gone."""
        return self._slots.get((command.run, command.node))

    def submit(self, slot: Slot, command: Task) -> None:
        """Have a call made by a thread here."""
        self._queue.put(partial(slot.make, command))

    def open_node(self, command: e.OpenNode) -> None:
        """Construct the code of an operator that may come here: ``NodeOpened``."""
        slot = self._slots[command.run, command.node.name] = Slot(command.node, self._allow)
        self._queue.put(partial(node_code.open_node, slot.open, command))

    def close_node(self, command: e.CloseNode) -> None:
        slot = self._slots.pop((command.run, command.node), None)
        if slot is not None:
            slot.gone = True

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


def _try(slot: Slot, command: e.OpenNode) -> e.OperatorFailed | None:
    failed = node_code.load(slot.open, command)
    return None if failed is None else slot.failed(failed)
