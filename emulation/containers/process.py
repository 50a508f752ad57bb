"""Process in a container, run by the engine's exec, with the standard streams of a local process."""

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
STATUS_S = 5.0  # the exit status is known shortly after the streams have closed
REFUSED = b"OCI runtime exec failed"


class ContainerProcess(TestbedProcess):
    """``TestbedProcess`` in a container. If the container has a different user, signals need root on this machine."""

    def __init__(self, container: Any, host: str, command: Command) -> None:
        """Start a command. A command that cannot be executed prints why, and ends with 126 or 127.

        ``env`` is added to the container's environment. ``cwd`` None is the container's folder. The controlling
        terminal is the engine's, and the launcher's terminal passes its bytes on.
        """
        terminal = command.terminal is not None
        words, folder = command.words(host), None if command.cwd is None else os.fspath(command.cwd)
        self._prepare(host, words)
        self._container = container
        _, client = sdk()
        self._api = client.api
        with talking(f"running {words[0]!r} on {host!r}"), lent_streams(command) as (child_streams, pipe_ends):
            created = self._api.exec_create(
                container.id, words, stdin=True, tty=terminal, environment=dict(command.env or {}), workdir=folder
            )
            self._exec = created["Id"]
            self._stream = self._api.exec_start(self._exec, tty=terminal, socket=True)
            self._socket: socket.socket = getattr(self._stream, "_sock", self._stream)
            self._socket.settimeout(None)
            self._ends = [os.dup(descriptor) for descriptor in child_streams]
            self._over = os.pipe()  # its writing end is closed when the process has ended
        self._keep(pipe_ends)
        self._terminal = terminal
        if command.terminal is not None:
            tty.setraw(self._ends[0])
            self.resize(command.terminal)
        self._sender = threading.Thread(target=self._send, name=f"input {host}", daemon=True)
        self._sender.start()
        threading.Thread(target=self._receive, name=f"output {host}", daemon=True).start()

    def _send(self) -> None:
        """Copy the launcher's input to the process until either of them ends. Writers then get an error."""
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
        """Copy the output of the process. The stream ends with the process, or with the container."""
        from docker.utils.socket import frames_iter

        first = True
        with suppress(OSError):
            for stream, piece in frames_iter(self._socket, self._terminal):
                if first and piece.startswith(REFUSED):
                    stream, piece = 2 if not self._terminal else 1, self._refusal(piece)
                first = False
                self._write(self._ends[stream], piece)
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
        """Return the message for a program that cannot be started, from the engine's message in its output."""
        why = said.decode(errors="replace").strip().rpartition(": unknown")[0].rpartition(": ")[2]
        return f"thalweg: cannot run {self.args[0]!r} on {self.host!r}: {why}\n".encode()

    @staticmethod
    def _write(descriptor: int, piece: bytes) -> None:
        view = memoryview(piece)
        with suppress(BrokenPipeError):  # no reader is left: the process may continue
            while view:
                view = view[os.write(descriptor, view) :]

    def _inspected(self) -> Mapping[str, Any]:
        try:
            state: Mapping[str, Any] = self._api.exec_inspect(self._exec)
        except failures():
            return {"Running": False, "ExitCode": None, "Pid": 0}  # the container has been removed
        return state

    def _inspected_when(self, settled: Callable[[Mapping[str, Any]], bool]) -> Mapping[str, Any]:
        """Return the engine's state of the process, as soon as it is ``settled``, or after ``STATUS_S``."""
        stop = time.monotonic() + STATUS_S
        while not settled(state := self._inspected()) and time.monotonic() < stop:
            time.sleep(0.01)  # the engine sends no event for this
        return state

    def _final_status(self) -> int:
        state = self._inspected_when(lambda one: not one["Running"])
        code = state["ExitCode"]
        if code is None or state["Running"]:
            return -signal.SIGKILL
        return 128 - code if 128 < code <= 128 + signal.SIGRTMAX else int(code)

    def _running(self) -> int | None:
        """Return the number of the process on this machine, as soon as it has one. None: the process has ended."""
        if self._status is not None:
            return None
        state = self._inspected_when(lambda one: one["Pid"] or one["ExitCode"] is not None)
        return state["Pid"] or None if state["Running"] else None

    @property
    def pid(self) -> int | None:
        """Number of the process on this machine. None: the process has ended."""
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
