"""Commands on the hosts of a testbed that is up, for ``testbed exec`` and ``testbed logs``.

The user of a command waits for the imports of this module. It imports neither numpy nor typer, and nothing of links.
``parse`` reads the command line of ``exec`` without typer.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol

from thalweg.emulation.supervisor.client import Command, TestbedProcess
from thalweg.emulation.supervisor.requests import LaunchedProcess
from thalweg.emulation.testbeds.known import TestbedState, choose, connect
from thalweg.middleware.errors import UsageError, nearest

PIECE = 1 << 16
LAST_S = 0.2  # a process that outlives the command may hold the terminal open


class Asked(NamedTuple):
    """Request of ``testbed exec``. ``stay``: do not wait for the command.

    ``host`` None: every host. ``identity`` None: the only testbed.
    """

    host: str | None
    words: Sequence[str]
    identity: str | None = None
    stay: bool = False


def parse(arguments: Sequence[str]) -> Asked | None:
    """Return the request of a command line of ``testbed exec``. None: typer must read an error or a question for help.

    Options stand before the host, or between the host and the command. Raise UsageError for a host without a command.
    """
    identity, stay, everywhere = None, False, False
    rest, host = [*arguments], list[str]()
    while rest and rest[0] != "--" and (rest[0].startswith("-") or not (host or everywhere)):
        option = rest.pop(0)
        if not option.startswith("-"):
            host.append(option)
            continue
        if option == "--id" and rest:
            identity = rest.pop(0)
        elif option.startswith("--id="):
            identity = option.removeprefix("--id=")
        elif option in ("-d", "--detach"):
            stay = True
        elif option == "--all":
            everywhere = True
        else:
            return None
    if not everywhere and not host:
        return None
    return asked([*host, *rest], identity, stay=stay, everywhere=everywhere)


def asked(words: Sequence[str], identity: str | None, *, stay: bool, everywhere: bool) -> Asked:
    """Return the request of ``HOST -- CMD…``, or with ``everywhere`` of ``-- CMD…``.

    Raise UsageError if the host or the command is missing.
    """
    host, rest = (None, [*words]) if everywhere else (words[0] if words else None, [*words[1:]])
    if rest and rest[0] == "--":
        del rest[0]
    if host not in (None, "--") and not rest:
        raise UsageError(f"the command is missing: thalweg testbed exec {host} -- CMD…")
    if not rest or (host in (None, "--") and not everywhere):
        raise UsageError("name a host and a command: thalweg testbed exec h1 -- CMD…, or exec --all -- CMD…")
    return Asked(host, rest, identity, stay)


class Hosts(Protocol):
    """Interface to start commands on hosts: the client of a supervisor, or containers."""

    def spawn(self, host: str, command: Command) -> TestbedProcess: ...

    def launch(self, host: str, command: Command) -> int: ...

    def launched(self) -> list[LaunchedProcess]: ...


@contextmanager
def hosts_of(state: TestbedState) -> Iterator[Hosts]:
    """Yield the hosts of a testbed that is up. Spawned processes end with the context."""
    if state.backend == "docker":
        from thalweg.emulation.testbeds.detached import attach
        from thalweg.emulation.testbeds.docker import DockerTestbed

        with attach(state) as testbed:
            assert isinstance(testbed, DockerTestbed)
            yield testbed
    else:
        client = connect(state)
        try:
            yield client
        finally:
            client.close()


def _chosen(state: TestbedState, host: str | None) -> Sequence[str]:
    if host is not None and host not in state.hosts:
        raise UsageError(f"there is no host {host!r}; {nearest(host, state.hosts)}")
    return state.hosts if host is None else [host]


def execute(asked: Asked) -> int:
    """Run a command and return its exit status as a shell has it. On several hosts, return the highest status."""
    state = choose(asked.identity)
    names = _chosen(state, asked.host)
    with hosts_of(state) as hosts:
        if asked.stay:
            for host in names:
                pid = hosts.launch(host, Command(asked.words))
                print(f"process {pid} on {host}; see what it writes with: thalweg testbed logs {host}")
            return 0
        if asked.host is None:
            return _on_all(hosts, names, asked.words)
        if os.isatty(0) and os.isatty(1):
            return _on_terminal(hosts, asked.host, asked.words)
        return _waited(hosts.spawn(asked.host, Command(asked.words)))


def logs(host: str | None, identity: str | None, *, follow: bool) -> int:
    """Print the output of launched processes. With ``follow``, print the further output of the last process too."""
    state = choose(identity)
    names = _chosen(state, host)
    with hosts_of(state) as hosts:
        processes = [process for process in hosts.launched() if process.host in names]
        if not processes:
            raise UsageError(
                f"no process was launched on {host or 'any host'}; thalweg testbed exec -d launches processes"
            )
        for process in processes:
            followed = follow and process is processes[-1]
            state_text = "runs" if process.status is None else f"ended with {shown(process.status)}"
            print(
                f"{process.host}, process {process.pid}, {' '.join(process.argv)}: {state_text}",
                file=sys.stderr,
                flush=True,
            )
            words = (
                ["tail", "-s", "0.1", "-n", "+1", "-f", f"--pid={process.pid}", process.log]
                if followed
                else ["cat", process.log]
            )
            _waited(hosts.spawn(process.host, Command(words, stdin=subprocess.DEVNULL, own_folders=False)))
    return 0


def shown(status: int) -> int:
    """Return an exit status as a shell has it."""
    return status if status >= 0 else 128 - status


def _waited(process: TestbedProcess) -> int:
    """Wait for a process and return its status. Meanwhile, pass on SIGINT and SIGTERM to it."""
    with _handling(lambda number, _: process.send_signal(number), signal.SIGINT, signal.SIGTERM):
        return shown(process.wait())


def _on_all(hosts: Hosts, names: Sequence[str], words: Sequence[str]) -> int:
    """Run a command on every host at once, and return the highest status. A line of output begins with its host."""
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    width = max(map(len, names))
    with selectors.DefaultSelector() as selector:
        processes = []
        for host in names:
            processes.append(process := hosts.spawn(host, Command(words, stdin=null, stdout=pipe, stderr=pipe)))
            for source, sink in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                assert source is not None
                selector.register(
                    source, selectors.EVENT_READ, (f"{host:{width}}  ".encode(), sink.buffer, bytearray())
                )
        while selector.get_map():
            for key, _ in selector.select():
                head, sink, pending = key.data
                pending += (piece := os.read(key.fd, PIECE))
                if not piece:
                    selector.unregister(key.fileobj)
                    pending += b"\n" * bool(pending)
                *lines, rest = pending.split(b"\n")
                pending[:] = rest
                sink.write(b"".join(head + line + b"\n" for line in lines))
                sink.flush()
    statuses = [shown(process.wait()) for process in processes]
    for process in processes:
        process.close()
    return max(statuses)


# --- on a terminal ------------------------------------------------------------------------------------


def _on_terminal(hosts: Hosts, host: str, words: Sequence[str]) -> int:
    """Run a command under a terminal of its own, and show that terminal on ours. Return the command's status.

    Our terminal is raw meanwhile, and is restored afterwards.
    """
    import termios  # Windows has neither module, and no testbeds
    import tty

    size = _size()
    controller, command_end = os.openpty()
    os.set_blocking(controller, False)
    try:
        process = hosts.spawn(
            host, Command(words, stdin=command_end, stdout=command_end, stderr=command_end, terminal=size)
        )
    finally:
        os.close(command_end)
    before = termios.tcgetattr(0)
    wake, woken = os.pipe()
    for descriptor in (wake, woken):
        os.set_blocking(descriptor, False)
    former = signal.set_wakeup_fd(woken, warn_on_full_buffer=False)

    def tell_the_end() -> None:
        process.wait()
        os.write(woken, b"\0")

    waiter = threading.Thread(target=tell_the_end, daemon=True)
    with _handling(lambda *_: None, signal.SIGWINCH):
        try:
            tty.setraw(0)
            waiter.start()
            _relay(controller, wake, process, size)
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, before)
            signal.set_wakeup_fd(former)
    return shown(process.wait())


def _size() -> tuple[int, int]:
    columns, lines = os.get_terminal_size(0)
    return lines, columns


def _relay(ours: int, wake: int, process: TestbedProcess, size: tuple[int, int]) -> None:
    """Pass on typed input, output, and the size of our terminal until the process has ended."""
    typed, poller = bytearray(), selectors.PollSelector()
    poller.register(0, selectors.EVENT_READ)
    poller.register(wake, selectors.EVENT_READ)
    poller.register(ours, selectors.EVENT_READ)
    while ours in poller.get_map() or process.poll() is None:
        ready = {key.fd: events for key, events in poller.select(None if process.poll() is None else LAST_S)}
        if not ready and process.poll() is not None:
            return
        if wake in ready:
            with suppress(BlockingIOError):
                os.read(wake, PIECE)
            if (now := _size()) != size:
                size = now
                process.resize(size)
        if 0 in ready:
            typed += (piece := os.read(0, PIECE))
            if not piece:  # the user's terminal is gone
                poller.unregister(0)
        if ours in ready and ready[ours] & selectors.EVENT_READ:
            try:
                piece = os.read(ours, PIECE)
            except BlockingIOError:
                continue
            except OSError:  # no process has the terminal open
                poller.unregister(ours)
                continue
            view = memoryview(piece)
            while view:
                view = view[os.write(1, view) :]
        if ours in poller.get_map():
            if typed:
                with suppress(BlockingIOError):
                    del typed[: os.write(ours, typed)]
            poller.modify(ours, selectors.EVENT_READ | (selectors.EVENT_WRITE if typed else 0))


@contextmanager
def _handling(handler: Callable[[int, Any], object], *numbers: signal.Signals) -> Iterator[None]:
    """Call ``handler`` on these signals while the context lasts."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in previous.items():
            signal.signal(number, former)
