"""Inside a User-Mode Linux kernel: connections from the host to a testbed's supervisor. Standard library only.

Lines of the supervisor's protocol pass unchanged. Descriptors cannot cross kernels: a ``spawn``'s three become pipes,
relayed as a process's streams.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Protocol

from thalweg.emulation.supervisor.connection import Connection
from thalweg.emulation.uml.wire import PROCESS, Kind


class Agent(Protocol):
    """The loop that connections hang in, and that has the streams of processes, by number (``uml.inside``)."""

    def send(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None: ...
    def watch(self, descriptor: int, act: Callable[[], None]) -> None: ...
    def forget(self, descriptor: int) -> None: ...
    def lend(self, number: int) -> tuple[int, int, int]: ...
    def ended(self, number: int, status: int) -> None: ...
    def drop(self, number: int) -> None: ...


class _Connection(Connection):
    """One connection to a supervisor, and what its answers are waited for with."""

    def __init__(self, number: int, path: str) -> None:
        super().__init__(socket.socket(socket.AF_UNIX))
        self.number = number
        self.socket.connect(path)
        self.spawning: dict[int, int] = {}  # request → process
        self.processes: dict[int, int] = {}  # the supervisor's number of a process → ours


class Relay:
    """All connections of an agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._connections: dict[int, _Connection] = {}

    def hear(self, kind: int, number: int, payload: bytes) -> None:
        """A frame for a connection."""
        if kind == Kind.CONNECT:
            try:
                connection = _Connection(number, payload.decode())
            except OSError:
                self._agent.send(Kind.HANGUP, number)
                return
            self._connections[number] = connection
            self._agent.watch(connection.socket.fileno(), lambda: self._answer(connection))
        elif number in self._connections:
            connection = self._connections[number]
            if kind == Kind.LINE:
                connection.send(payload)
            elif kind == Kind.SPAWN:
                self._spawn(connection, payload)
            else:
                self._hang_up(connection)

    def _spawn(self, connection: _Connection, payload: bytes) -> None:
        (process,), line = PROCESS.unpack_from(payload), payload[PROCESS.size :]
        connection.spawning[json.loads(line)["id"]] = process
        streams = self._agent.lend(process)
        connection.send(line, streams)
        for descriptor in streams:
            os.close(descriptor)

    def _answer(self, connection: _Connection) -> None:
        lines = connection.read()
        connection.forget_descriptors()
        if lines is None:
            self._hang_up(connection)
            self._agent.send(Kind.HANGUP, connection.number)
            return
        for line in lines:
            self._pass_on(connection, line)

    def _pass_on(self, connection: _Connection, line: bytes) -> None:
        answer = json.loads(line)
        if "exit" in answer:
            process = connection.processes.pop(answer["exit"]["pid"], None)
            if process is not None:
                self._agent.ended(process, answer["exit"]["status"])
            return
        process = connection.spawning.pop(answer["id"], None)
        if process is not None and "error" in answer:
            self._agent.drop(process)
        elif process is not None:
            connection.processes[answer["result"]["pid"]] = process
            line = json.dumps(answer | {"fds": 0}).encode()  # a handle of the process, which is of no use outside
        self._agent.send(Kind.LINE, connection.number, line)

    def _hang_up(self, connection: _Connection) -> None:
        """The supervisor ends what this connection started."""
        del self._connections[connection.number]
        self._agent.forget(connection.socket.fileno())
        connection.close()
        for process in (*connection.processes.values(), *connection.spawning.values()):
            self._agent.drop(process)
