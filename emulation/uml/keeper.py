"""Testbeds that stay up inside a User-Mode Linux kernel: ``thalweg testbed up --kernel uml``.

A keeper process holds the kernel and runs the same ``testbed up`` in it. It puts the testbed's state file and socket
where ``detached`` looks for them. Behind the socket it relays the protocol of ``supervisor`` to the supervisor inside
(see ``uml.inside``). So ``status``, ``exec``, ``verify``, ``down`` and ``attach`` work as on the machine's own kernel.

A program's testbed (``uml.testbed``) does not stay. There, the keeper relays the launcher's own connection.

States:   starting --launcher gone--> ended;   starting --launcher says stay--> staying;   starting --held--> held
          staying --supervisor inside ends, kernel ends, SIGTERM--> ended;   held --those, launcher gone--> ended
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import tty
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from thalweg.emulation.supervisor.connection import Connection, EndlessLineError
from thalweg.emulation.supervisor.processes import start_ticks
from thalweg.emulation.testbeds.detached import listen, publish
from thalweg.emulation.testbeds.known import TestbedState, files
from thalweg.emulation.uml.kernel import MALLOC_VARIABLES, PRIVATE_VARIABLES, InsideProcess, Kernel
from thalweg.emulation.uml.wire import PRIVATE, PROCESS, Kind
from thalweg.middleware.errors import TestbedError, ThalwegError, UsageError
from thalweg.middleware.platform.python import SHELL, module_command

WATCH, HELD = 1, 2  # connections: WATCH shows the end of the supervisor inside, HELD is a launcher's own
UP, STAY = b"u", b"s"


class _Client:
    """Connection of a client on the host, with the processes that await an answer or run."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.lock = threading.Lock()
        self.spawning: dict[int, InsideProcess] = {}
        self.processes: set[InsideProcess] = set()

    def send(self, line: bytes) -> None:
        with self.lock:
            self.connection.send(line)


class Keeper:
    """Relay between clients on the host and the supervisor of the one testbed inside."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._clients: dict[int, _Client] = {}
        self._number = HELD
        self._kernel: Kernel

    def keep(self, command: Sequence[str], control: socket.socket) -> int:
        """Boot a kernel, run ``command`` (a ``testbed up``), notify the launcher, and serve until the end.

        Return the exit status.
        """
        launcher = threading.Thread(target=self._follow_launcher, args=(control,), name="launcher", daemon=True)
        launcher.start()
        with Kernel(self._hear) as kernel:
            self._kernel = kernel
            status, output = self._output_of(command)
            if status == 0:
                state = self._state()
                listener, socket_name = listen(state.id), files(state.id)[1].name
                publish(state)  # the launcher or `down` removes both files
            with suppress(BrokenPipeError):  # the output has no reader
                sys.stdout.buffer.write(output)
                sys.stdout.flush()
            if status != 0:
                return status
            control.sendall(UP)
            launcher.join()
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (1, 2):
                os.dup2(null, descriptor)
            signal.signal(signal.SIGTERM, lambda *_: self._over.set())
            kernel.send(Kind.CONNECT, WATCH, f"{PRIVATE}/thalweg/{socket_name}".encode())
            threading.Thread(target=self._accept, args=(listener, socket_name), name="accept", daemon=True).start()
            self._over.wait()
        return 0

    def hold(self, command: Sequence[str], control: socket.socket) -> int:
        """Boot a kernel, run ``command``, and relay to the supervisor that it leaves until the launcher disconnects.

        ``command`` prints the name of the supervisor's socket. Return the exit status.
        """
        up = threading.Event()
        threading.Thread(target=self._follow_holder, args=(control, up), name="launcher", daemon=True).start()
        with Kernel(self._hear) as kernel:
            self._kernel = kernel
            status, output = self._output_of(command)
            if status != 0:
                return status
            up.set()
            control.sendall(UP)
            client = self._clients[HELD] = _Client(Connection(control))
            for number in (WATCH, HELD):
                kernel.send(Kind.CONNECT, number, f"{PRIVATE}/thalweg/{output.decode()}".encode())
            threading.Thread(target=self._serve, args=(HELD, client), name="client", daemon=True).start()
            self._over.wait()
        return 0

    def _follow_holder(self, control: socket.socket, up: threading.Event) -> None:
        """End the keeper when the launcher disconnects: at once before ``up``, else in order. Reads no data."""
        watched = select.poll()
        watched.register(control, select.POLLRDHUP)
        watched.poll()
        if not up.is_set():
            os._exit(1)
        self._over.set()

    @staticmethod
    def _follow_launcher(control: socket.socket) -> None:
        """End the keeper, and with it the kernel, if the launcher ends before it requests that the testbed stays."""
        if control.recv(1) != STAY:
            os._exit(1)

    def _output_of(self, command: Sequence[str]) -> tuple[int, bytes]:
        with open(os.memfd_create("output"), "w+b") as output:
            status = self._kernel.start(command, stdout=output.fileno(), stderr=2).wait()
            output.seek(0)
            return status, output.read()

    def _state(self) -> TestbedState:
        """Return the inner testbed's state, with the keeper as the process whose end ends the testbed."""
        _, text = self._output_of([SHELL, "-c", f"cat {PRIVATE}/thalweg/*.json"])
        inner = msgspec.json.decode(text, type=TestbedState)
        return msgspec.structs.replace(inner, pid=os.getpid(), start_ticks=start_ticks(os.getpid()) or 0)

    # --- clients --------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket, socket_name: str) -> None:
        while True:
            client = _Client(Connection(listener.accept()[0]))
            self._number += 1
            self._clients[self._number] = client
            self._kernel.send(Kind.CONNECT, self._number, f"{PRIVATE}/thalweg/{socket_name}".encode())
            threading.Thread(target=self._serve, args=(self._number, client), name="client", daemon=True).start()

    def _serve(self, number: int, client: _Client) -> None:
        """Relay the requests of a client until the client disconnects."""
        with suppress(EndlessLineError):  # the connection is closed below
            while (lines := client.connection.read()) is not None:
                for line in lines:
                    with suppress(TestbedError):  # the kernel has ended, and the keeper ends too
                        self._ask(number, client, line)
        self._clients.pop(number, None)
        self._kernel.send(Kind.HANGUP, number)
        for process in (*client.processes, *client.spawning.values()):
            process.end()
        client.connection.close()

    def _ask(self, number: int, client: _Client, line: bytes) -> None:
        request = json.loads(line)
        if request["op"] in ("spawn", "launch"):
            request["env"] = {**MALLOC_VARIABLES, **request["env"], **PRIVATE_VARIABLES}
        if request["op"] != "spawn":
            self._kernel.send(Kind.LINE, number, json.dumps(request).encode())
            return
        stdin, stdout, stderr = streams = client.connection.claim(3)
        if request.get("terminal") is not None:
            tty.setraw(stdin)  # the controlling terminal is inside, and this one passes its bytes on
        started = client.spawning[request["id"]] = self._kernel.expect(stdin, stdout, stderr)
        for descriptor in streams:
            os.close(descriptor)
        self._kernel.send(Kind.SPAWN, number, PROCESS.pack(started.number) + json.dumps(request).encode())
        started.begin()

    def _hear(self, kind: int, number: int, payload: bytes) -> None:
        """Handle a frame from inside. The kernel's reader calls this method, so the method sends nothing inside."""
        if kind == Kind.HANGUP and number in (0, WATCH):
            self._over.set()
            return
        client = self._clients.get(number)
        if client is None:
            return
        if kind == Kind.HANGUP:
            with suppress(OSError):
                client.connection.socket.shutdown(socket.SHUT_RDWR)
            return
        client.send(payload)
        answer = json.loads(payload)
        process = client.spawning.pop(answer["id"], None)
        if process is not None:
            client.processes.add(process)
            if "error" in answer:
                process.end()
            pid = answer.get("result", {}).get("pid")
            threading.Thread(target=self._await, args=(client, process, pid), name="process", daemon=True).start()

    @staticmethod
    def _await(client: _Client, process: InsideProcess, pid: int | None) -> None:
        """Report the end of a process after its whole output has been passed on."""
        with suppress(TestbedError):
            client.send(json.dumps({"exit": {"pid": pid, "status": process.wait()}}).encode())
        client.processes.discard(process)


def keeper_words(how: Literal["keep", "hold"], control: socket.socket, command: Sequence[str]) -> list[str]:
    """Return the command line of a keeper, which inherits ``control``."""
    return module_command("thalweg.emulation.uml.keeper", how, str(control.fileno()), *command)


def launch(command: Sequence[str]) -> int:
    """Run ``command``, a ``thalweg testbed up``, in a kernel that stays. Return its exit status.

    The command shares this process's output and errors. Until the testbed stays, the kernel ends with this process.
    """
    launcher_end, keeper_end = socket.socketpair()
    with launcher_end, keeper_end:
        keeper = subprocess.Popen(
            keeper_words("keep", keeper_end, command), stdin=subprocess.DEVNULL, pass_fds=[keeper_end.fileno()],
            start_new_session=True,
        )  # fmt: skip
        keeper_end.close()
        try:
            if launcher_end.recv(1) != UP:
                return keeper.wait() or 1  # the keeper has printed the reason
        except BaseException:  # an interrupt
            launcher_end.close()
            keeper.wait()
            raise
        launcher_end.sendall(STAY)
    threading.Thread(target=keeper.wait, name="detached", daemon=True).start()  # avoids a zombie
    return 0


def main(how: str, control: str, *command: str) -> int:
    """Run the keeper process, which keeps or holds. Errors are printed in one line, like the command's own.

    ``control``: descriptor of the launcher's connection.
    """
    try:
        keeper = Keeper()
        return (keeper.hold if how == "hold" else keeper.keep)(command, socket.socket(fileno=int(control)))
    except ThalwegError as error:
        print(f"thalweg: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
