"""A process in a container, over the engine's exec, with the standard streams of a local one."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
import tty
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from thalweg.emulation.containers.engine import failures, sdk, talking
from thalweg.emulation.supervisor.client import Command, TestbedProcess, lent_streams
from thalweg.middleware.errors import TestbedError

CHUNK = 1 << 16
STATUS_S = 5.0  # the engine knows how a process ended a moment after its streams have closed
REFUSED = b"OCI runtime exec failed"


class ContainerProcess(TestbedProcess):
    """Like ``TestbedProcess``. Signals come from outside, which takes root where the container's user is another."""

    def __init__(self, container: Any, host: str, command: Command) -> None:
        """Start a command; what cannot be executed says so and ends with 126 or 127.

        ``command``: ``env`` is added to the container's own, ``cwd`` None is its own folder. The terminal that controls
        it is the engine's; ours passes on what that says.
        """
        terminal = command.terminal is not None
        words, folder = command.words(host), None if command.cwd is None else os.fspath(command.cwd)
        self._prepare(host, words)
        self._container = container
        _, client = sdk()
        self._api = client.api
        with talking(f"running {words[0]!r} on {host!r}"), lent_streams(command) as (theirs, ours):
            made = self._api.exec_create(
                container.id, words, stdin=True, tty=terminal, environment=dict(command.env or {}), workdir=folder
            )
            self._exec = made["Id"]
            self._stream = self._api.exec_start(self._exec, tty=terminal, socket=True)
            self._socket: socket.socket = getattr(self._stream, "_sock", self._stream)
            self._socket.settimeout(None)
            self._ends = [os.dup(descriptor) for descriptor in theirs]
            self._over = os.pipe()  # closed at our end when the process has ended
        self._keep(ours)
        self._terminal = terminal
        if command.terminal is not None:
            tty.setraw(self._ends[0])
            self.resize(command.terminal)
        self._sender = threading.Thread(target=self._send, name=f"input {host}", daemon=True)
        self._sender.start()
        threading.Thread(target=self._receive, name=f"output {host}", daemon=True).start()

    def _send(self) -> None:
        """Our input is the process's, until one of them ends; then whoever writes to it learns of that."""
        poller = select.poll()
        for descriptor in (self._ends[0], self._over[0]):
            poller.register(descriptor, select.POLLIN)
        with suppress(OSError):
            while self._over[0] not in dict(poller.poll()) and (piece := os.read(self._ends[0], CHUNK)):
                self._socket.sendall(piece)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
        os.close(self._ends[0])

    def _receive(self) -> None:
        """What the process writes is ours; the end of the stream is its end, or its container's."""
        from docker.utils.socket import frames_iter

        first = True
        with suppress(OSError):
            for which, piece in frames_iter(self._socket, self._terminal):
                if first and piece.startswith(REFUSED):
                    which, piece = 2 if not self._terminal else 1, self._refusal(piece)
                first = False
                self._write(self._ends[which], piece)
        status = self._final_status()
        for descriptor in (self._over[1], *self._ends[1:]):
            os.close(descriptor)
        self._sender.join()
        os.close(self._over[0])
        for connection in (self._stream, self._socket):
            with suppress(OSError):
                connection.close()
        self._end(status)

    def _refusal(self, said: bytes) -> bytes:
        """The engine's words for a program that cannot be started, which come as its output, in ours."""
        why = said.decode(errors="replace").strip().rpartition(": unknown")[0].rpartition(": ")[2]
        return f"thalweg: cannot run {self.args[0]!r} on {self.host!r}: {why}\n".encode()

    @staticmethod
    def _write(descriptor: int, piece: bytes) -> None:
        view = memoryview(piece)
        with suppress(BrokenPipeError):  # nobody reads any more: the process may go on
            while view:
                view = view[os.write(descriptor, view) :]

    def _inspected(self) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = self._api.exec_inspect(self._exec)
        except failures():
            return {"Running": False, "ExitCode": None, "Pid": 0}  # its container has been removed
        return found

    def _inspected_when(self, settled: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
        """What the engine knows of the process, once that is ``settled`` or a few seconds have passed."""
        stop = time.monotonic() + STATUS_S
        while not settled(found := self._inspected()) and time.monotonic() < stop:
            time.sleep(0.01)  # the engine has no event to wait for here
        return found

    def _final_status(self) -> int:
        found = self._inspected_when(lambda one: not one["Running"])
        code = found["ExitCode"]
        if code is None or found["Running"]:
            return -signal.SIGKILL
        return 128 - code if 128 < code <= 128 + signal.SIGRTMAX else int(code)

    def _running(self) -> int | None:
        """The process's number on this machine, once it has one; None when it has ended."""
        if self._status is not None:
            return None
        found = self._inspected_when(lambda one: one["Pid"] or one["ExitCode"] is not None)
        return found["Pid"] or None if found["Running"] else None

    @property
    def pid(self) -> int | None:
        """The process's number on this machine; None once it has ended."""
        return self._running()

    def send_signal(self, number: int) -> None:
        if (pid := self._running()) is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return
            except PermissionError:
                raise TestbedError(f"signals to processes on {self.host!r} need root on this machine") from None

    def resize(self, size: tuple[int, int]) -> None:
        with suppress(*failures()):
            self._api.exec_resize(self._exec, height=size[0], width=size[1])
