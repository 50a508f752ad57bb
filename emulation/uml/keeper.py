"""Testbeds that stay up inside a User-Mode Linux kernel: ``thalweg testbed up --kernel uml``.

A keeper process holds the kernel, runs the same ``testbed up`` in it, and puts the testbed's state file and socket
where ``detached`` looks for them. Behind the socket it speaks the protocol of ``supervisor`` by relaying it to
the supervisor inside (see ``uml.inside``), so that ``status``, ``exec``, ``verify``, ``down`` and ``attach`` work as
they do on the machine's own kernel.

A testbed of a program (``uml.testbed``) does not stay: there the launcher's own connection is relayed.

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

WATCH, HELD = 1, 2  # the connection by which the keeper learns of the end of the supervisor inside; a launcher's own
UP, STAY = b"u", b"s"


class _Client:
    """One connection from the host, and what its answers are waited for with."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.lock = threading.Lock()
        self.spawning: dict[int, InsideProcess] = {}
        self.processes: set[InsideProcess] = set()

    def send(self, line: bytes) -> None:
        with self.lock:
            self.connection.send(line)


class Keeper:
    """Relays between the host's clients and the supervisor of the one testbed inside."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._clients: dict[int, _Client] = {}
        self._number = HELD
        self._kernel: Kernel

    def keep(self, command: Sequence[str], control: socket.socket) -> int:
        """Boot, run ``command`` (a ``testbed up``), tell the launcher, and serve until the end; the exit status."""
        launcher = threading.Thread(target=self._follow_launcher, args=(control,), name="launcher", daemon=True)
        launcher.start()
        with Kernel(self._hear) as kernel:
            self._kernel = kernel
            status, said = self._output_of(command)
            if status == 0:
                state = self._state()
                listener, socket_name = listen(state.id), files(state.id)[1].name
                publish(state)  # its launcher, or `down`, removes both files
            with suppress(BrokenPipeError):  # nobody reads it
                sys.stdout.buffer.write(said)
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
        """Boot, run ``command``, which leaves a supervisor and prints its socket's name, and relay to it until the
        launcher hangs up; the exit status.
        """
        up = threading.Event()
        threading.Thread(target=self._follow_holder, args=(control, up), name="launcher", daemon=True).start()
        with Kernel(self._hear) as kernel:
            self._kernel = kernel
            status, said = self._output_of(command)
            if status != 0:
                return status
            up.set()
            control.sendall(UP)
            client = self._clients[HELD] = _Client(Connection(control))
            for number in (WATCH, HELD):
                kernel.send(Kind.CONNECT, number, f"{PRIVATE}/thalweg/{said.decode()}".encode())
            threading.Thread(target=self._serve, args=(HELD, client), name="client", daemon=True).start()
            self._over.wait()
        return 0

    def _follow_holder(self, control: socket.socket, up: threading.Event) -> None:
        """Its end is ours, at once while there is nothing yet to be ended in order. Takes nothing of what it says."""
        watched = select.poll()
        watched.register(control, select.POLLRDHUP)
        watched.poll()
        if not up.is_set():
            os._exit(1)
        self._over.set()

    @staticmethod
    def _follow_launcher(control: socket.socket) -> None:
        """Until the launcher has said that the testbed stays, its end is ours, and that ends the kernel."""
        if control.recv(1) != STAY:
            os._exit(1)

    def _output_of(self, command: Sequence[str]) -> tuple[int, bytes]:
        with open(os.memfd_create("output"), "w+b") as output:
            status = self._kernel.start(command, stdout=output.fileno(), stderr=2).wait()
            output.seek(0)
            return status, output.read()

    def _state(self) -> TestbedState:
        """The inner testbed's state, with us as the process whose end ends it."""
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
        """Pass on what a client asks, until it hangs up."""
        with suppress(EndlessLineError):  # the client is given up
            while (lines := client.connection.read()) is not None:
                for line in lines:
                    with suppress(TestbedError):  # the kernel has ended, and so will we
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
        stdin, stdout, stderr = given = client.connection.claim(3)
        if request.get("terminal") is not None:
            tty.setraw(stdin)  # the one that controls the process is inside, and this one passes on what it says
        started = client.spawning[request["id"]] = self._kernel.expect(stdin, stdout, stderr)
        for descriptor in given:
            os.close(descriptor)
        self._kernel.send(Kind.SPAWN, number, PROCESS.pack(started.number) + json.dumps(request).encode())
        started.begin()

    def _hear(self, kind: int, number: int, payload: bytes) -> None:
        """What comes from inside. Called by the kernel's reader, so it sends nothing inside."""
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
        """Tell of the end of a process when all that it wrote has been passed on."""
        with suppress(TestbedError):
            client.send(json.dumps({"exit": {"pid": pid, "status": process.wait()}}).encode())
        client.processes.discard(process)


def keeper_words(how: Literal["keep", "hold"], control: socket.socket, command: Sequence[str]) -> list[str]:
    """The command line of a keeper, which inherits ``control``."""
    return module_command("thalweg.emulation.uml.keeper", how, str(control.fileno()), *command)


def launch(command: Sequence[str]) -> int:
    """Run ``command``, a ``thalweg testbed up``, in a kernel that stays; its exit status.

    Its output and errors are ours. Until it stays, whatever ends this process ends the kernel too.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        keeper = subprocess.Popen(
            keeper_words("keep", theirs, command), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
            start_new_session=True,
        )  # fmt: skip
        theirs.close()
        try:
            if ours.recv(1) != UP:
                return keeper.wait() or 1  # it has said why
        except BaseException:  # interrupted
            ours.close()
            keeper.wait()
            raise
        ours.sendall(STAY)
    threading.Thread(target=keeper.wait, name="detached", daemon=True).start()  # no zombie if we live longer
    return 0


def main(how: str, control: str, *command: str) -> int:
    """The keeper process, which keeps or holds; ``control`` is the launcher's descriptor. Its errors are one line, as
    the command's own.
    """
    try:
        keeper = Keeper()
        return (keeper.hold if how == "hold" else keeper.keep)(command, socket.socket(fileno=int(control)))
    except ThalwegError as error:
        print(f"thalweg: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
