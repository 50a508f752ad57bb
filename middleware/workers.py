"""Operators run here, in threads of their own, so that they never hold up a host's sockets.

Calls of a node that has proved quick may also be made by ``call`` in the shell's own thread (see ``duty``)."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from thalweg.middleware import events as e
from thalweg.middleware.dataflow import Node
from thalweg.middleware.errors import ThalwegError
from thalweg.middleware.loading import load_code
from thalweg.middleware.transfers import frames_of, size_of

QUICK_S = 0.001
QUICK_CALLS = 3  # in a row of less than QUICK_S each make a node quick
SLOW_S = 0.01  # one such call, and the node is never quick again


class _Slot:
    """The code of one node, constructed once, by the first worker that needs it."""

    def __init__(self, node: Node, allow: Collection[str]) -> None:
        self.node = node
        self._allow = allow
        self._lock = threading.Lock()
        self._call: Callable[..., Any] | None = None
        self.streak = 0  # of quick calls

    def took(self, duration_s: float) -> None:
        self.streak = (
            -(2**62) if duration_s > SLOW_S else self.streak + 1 if duration_s < QUICK_S else min(0, self.streak)
        )

    def call(self) -> Callable[..., Any]:
        """``combine(inputs, index)`` of an operator, ``produce(index)`` of a source."""
        with self._lock:
            if self._call is None:
                assert self.node.code is not None
                code = load_code(self.node.code, self._allow)
                wants = "combine" if self.node.kind == "operator" else "produce"
                self._call = getattr(code, wants, None)
                if self._call is None:
                    raise ThalwegError(f"{self.node.code.use!r} cannot run as {self.node.kind}: it has no {wants}()")
            return self._call


class Workers:
    """A few threads that take calls from a queue and hand each result to ``done`` as an event."""

    def __init__(self, done: Callable[[e.Event], None], allow: Collection[str], threads: int | None = None) -> None:
        self._done = done
        self._allow = allow
        self._slots: dict[tuple[str, str], _Slot] = {}
        self._queue: queue.SimpleQueue[tuple[str, str, int, tuple[Any, ...] | None] | None] = queue.SimpleQueue()
        count = threads or min(4, os.cpu_count() or 1)
        self._threads = [
            threading.Thread(target=self._work, name=f"thalweg-operator-{i}", daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def open(self, run: str, nodes: list[Node]) -> None:
        for node in nodes:
            if node.code is not None:
                self._slots[run, node.name] = _Slot(node, self._allow)
                self._queue.put((run, node.name, -1, None))

    def close(self, run: str) -> None:
        for key in [key for key in self._slots if key[0] == run]:
            del self._slots[key]

    def submit(self, command: e.RunOperator) -> None:
        self._queue.put((command.run, command.node, command.index, command.inputs))

    def is_quick(self, command: e.RunOperator) -> bool:
        """Whether the node's last calls were so short that handing this one over would take longer."""
        slot = self._slots.get((command.run, command.node))
        return slot is not None and slot.streak >= QUICK_CALLS

    def call(self, command: e.RunOperator) -> e.Event | None:
        """Make the call here and now; the event to handle, None when the node is gone."""
        slot = self._slots.get((command.run, command.node))
        return None if slot is None else self._call(slot, command.run, command.index, command.inputs)

    def stop(self, wait_s: float = 1.0) -> None:
        """End the threads after their present call; one in user code that takes longer is left to the process's end."""
        for _ in self._threads:
            self._queue.put(None)
        deadline = time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            run, name, index, inputs = task
            del task
            slot = self._slots.get((run, name))
            if slot is None:
                continue
            event = self._call(slot, run, index, inputs)
            del inputs
            if event is not None:
                self._done(event)
            del event

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
        except ThalwegError as error:
            return e.OperatorFailed(run, name, _one_line(error))
        except BaseException as error:  # user code: whatever it raises (SystemExit too) ends the run with its name
            where = f" at partition {index}" if index >= 0 else ""
            return e.OperatorFailed(run, name, f"{type(error).__name__}{where}: {_one_line(error)}")


def _one_line(error: BaseException) -> str:
    """The error's text as one line that can be encoded (a file's name may not be UTF-8)."""
    try:
        text = str(error)
    except Exception:  # user code again
        text = "an error without a text"
    return " ".join(text.encode("utf-8", "replace").decode().split())
