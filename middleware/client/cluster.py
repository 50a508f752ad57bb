"""Cluster of host processes on this machine (``LocalCluster``), started and ended with its object."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from thalweg.middleware.client.closed_at_exit import keep_in_mind
from thalweg.middleware.errors import HostAbsentError, UsageError, expect, warn_dropped, words
from thalweg.middleware.loading import check_packages, check_roots
from thalweg.middleware.platform.processes import (
    STOPS_WHEN_ASKED,
    Progress,
    apart,
    first_lines,
    interrupt,
    new_ends,
)
from thalweg.middleware.platform.python import PYTHON, folder_variables, module_command
from thalweg.middleware.platform.waiting import UNIX_SOCKETS
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.shell.descriptors import check_for_hosts
from thalweg.middleware.shell.endpoints import TCP, UNIX, SocketFolder, check_networks
from thalweg.middleware.shell.security import MEMBERS, PUBLIC, SECRET, Keys, Role, new_certificate, write_certificate
from thalweg.middleware.shell.shell import ShellConfig

START_S = 30.0  # time of a host process to listen; longer while it makes progress
MOST_TIMES = 10  # the longest wait in multiples of START_S, on a busy machine
CLOSED = "the cluster is closed; make another one"


class LocalCluster:
    """Cluster of ``count`` host processes ``h1`` … on this machine.

    By default only this user can dial its Unix sockets.

    Args:
        count: the number of hosts, or their names.
        allow: packages, beside Thalweg's own, whose code dataflows may name.
        time_scale: emulated seconds per wall-clock second.
        data_roots: folders whose files sources may read, as ``image_folder`` does.
        records: folder for the hosts' event logs (``<host>.jsonl``).
        limits: limits of each host that differ from the defaults, by the names of ``CoreConfig``.
        transport: ``ipc``: Unix sockets in a private folder. ``curve``: loopback with certificates, the default on a
            system without Unix sockets. ``tcp``: loopback without certificates, which every user of this machine can
            dial.
        networks: names of further networks to which every host is joined. Over TCP, each has a loopback address.

    Raises HostAbsentError if a process does not come up, CapabilityError if the process may open too few files. Use the
    cluster as a context manager, or call ``close()``.
    """

    def __init__(
        self,
        count: int | Collection[str],
        *,
        allow: Collection[str] = (),
        data_roots: Collection[str | Path] = (),
        time_scale: float = 1.0,
        records: Path | str | None = None,
        limits: Mapping[str, float] | None = None,
        transport: Literal["ipc", "curve", "tcp"] = "ipc" if UNIX_SOCKETS else "curve",
        networks: Collection[str] = (),
    ) -> None:
        if not isinstance(count, int) or isinstance(count, bool):
            names = list(words(count, "the hosts of a cluster are a number, or a collection of names"))
        else:
            names = [f"h{i + 1}" for i in range(count)]
        for name in names:
            ShellConfig(name, time_scale=time_scale)
        allow = check_packages(allow)
        expect({} if limits is None else limits, Mapping, "limits are a mapping of names to values")
        settings = [f"{name}={value}" for name, value in (limits or {}).items()]
        CoreConfig().limited(settings)
        self._more = [f"--limit={setting}" for setting in settings]
        self._more += [f"--data-root={root}" for root in check_roots(data_roots)]
        if not names:
            raise UsageError("a cluster needs at least one host")
        if twice := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"a cluster cannot have a host {twice[0]!r} twice")
        if transport == "ipc" and not UNIX_SOCKETS:
            raise UsageError("this system has no Unix sockets; choose the transport curve")
        check_for_hosts(len(names))
        self._environment = own_environment()
        self.addresses: dict[str, str] = {}
        self.pids: dict[str, int] = {}
        self.time_scale = time_scale
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._starting = threading.Lock()  # held while a process is started; a closed cluster starts none
        self._closed = False
        self._watch = _Watch(self._processes)
        self._folder = SocketFolder()
        self._more.append(f"--parents-folder={self._folder.name}")
        self._transport = transport
        self._networks = tuple(words(networks, "networks of a cluster are a collection of names"))
        check_networks(self.ends_of(""))
        self._host = partial(host_command, allow=allow, time_scale=time_scale, records=records)
        self._numbers: dict[str, int] = {}  # of hosts: a restarted host listens at its former endpoint
        self.insecure = transport == "tcp"
        keep_in_mind(self)
        try:
            for name in names:
                self._spawn(name)
            self._watch.start()
            self._await(names)
        except BaseException:
            self.close()
            raise

    def _spawn(self, name: str, *more: str) -> None:
        number = self._numbers.setdefault(name, len(self._numbers))
        listen = f"{UNIX}{self._folder.name}/{number}" if self._transport == "ipc" else f"{TCP}127.0.0.1:*"
        command = self._host(name, listen)
        command += ["--insecure"] * self.insecure
        if (certificate := self.certificate(name, "host")) is not None:
            command += ["--keys", str(certificate)]
        command += [f"--network={network}={end}" for network, end in self.ends_of(f"{number}n").items()]
        with self._starting:
            if self._closed:
                raise UsageError(CLOSED)
            self.pids.pop(name, None)
            self._processes[name] = subprocess.Popen(
                [*command, *self._more, *more],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self._environment,
                **apart(),
            )
        self._watch.add(name)

    def _await(self, names: Collection[str]) -> None:
        try:
            streams = {name: p.stdout.fileno() for name in names if (p := self._processes[name]).stdout is not None}
            progress = Progress({name: self._processes[name].pid for name in streams})
            lines = wait_ready_lines(streams, START_S, progress)
        except (OSError, ValueError, HostAbsentError):
            if self._closed:  # close() has also closed the pipes
                raise UsageError(CLOSED) from None
            raise
        for name in names:  # in the order of the names, not of the answers
            self.addresses[name] = lines[name]["control"]
            self.pids[name] = int(lines[name]["pid"])

    def start(self, name: str, *more: str) -> str:
        """Start a further host, or restart an ended host. Return the endpoint, for ``Client.add_host``.

        A restarted host listens at the same endpoint, except over TCP. Clients of this cluster add the host again by
        themselves, also to present runs. ``more``: further options of ``thalweg host``.

        Raises UsageError for a host that runs, HostAbsentError if the host does not come up.
        """
        ShellConfig(name)
        if (process := self._processes.get(name)) is not None:
            if process.poll() is None:
                raise UsageError(f"host {name!r} of the cluster runs; end it first")
            self._watch.wait_notified(name)
            _let_go(process)
        self._spawn(name, *more)
        self._watch.start()
        try:
            self._await([name])
        except BaseException:  # the host may be started once more
            self.kill(name)
            raise
        self._watch.notify_start(name, self.addresses[name])
        return self.addresses[name]

    def ends_of(self, name: str) -> dict[str, str]:
        """Return the bulk endpoints of a host or client of the cluster in the further networks, by network."""
        if self._transport == "ipc":
            return {network: f"{UNIX}{self._folder.name}/{name}.{network}" for network in self._networks}
        return {network: f"{TCP}127.0.0.{number}:*" for number, network in enumerate(self._networks, 2)}

    def certificate(self, name: str, role: Role = "client") -> Path | None:
        """Return the path of the secret certificate of a host or client of the cluster. None: the cluster has no keys.

        The certificate is made at the first call.
        """
        if self._transport != "curve":
            return None
        folder = Path(self._folder.name)
        certificate = folder / f"{name}{SECRET}"
        if not certificate.exists():
            member, _, _ = new_certificate(name, role, folder)
            write_certificate(folder / MEMBERS / f"{name}{PUBLIC}", member.text())
        return certificate

    def poll(self) -> dict[str, int]:
        """Return the exit status of every host that has ended. A status below 0 is the signal that ended the host."""
        return {name: status for name, p in self._processes.items() if (status := p.poll()) is not None}

    def tell_ends(self, tell: Callable[[str, str], None]) -> None:
        """Call a method with the name and the fate of every ending host, in a thread of the cluster.

        Ends before this call are reported at once. A fate continues a sentence that begins with the host's name:
        ``ended with status 3``. The cluster does not keep the method's object alive.
        """
        self._watch.subscribe(tell)

    def tell_starts(self, tell: Callable[[str, str], None]) -> None:
        """Call a method with the name and the endpoint of each host that is started from now on.

        The method is called by the thread that starts the host, before ``start`` returns. The cluster does not keep the
        method's object alive.
        """
        self._watch.subscribe_to_starts(tell)

    def kill(self, name: str) -> None:
        """End one host at once, as a crash would."""
        self._processes[name].kill()
        self._processes[name].wait()

    def drain(self, name: str, timeout_s: float = 30.0) -> int | None:
        """End a host when its operators have moved away.

        Return its exit status, or None if it still runs after ``timeout_s``.

        On a system where SIGTERM cannot request this, a message does, which needs keys.
        """
        process = self._processes[name]
        if STOPS_WHEN_ASKED:
            process.terminate()
        else:
            self._request_drain(name, timeout_s)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout_s)
        return None

    def _request_drain(self, name: str, timeout_s: float) -> None:
        from thalweg.middleware.client.membership.drain import (
            drain,  # imports asyncio, needed here on Windows only
        )

        certificate = self.certificate("client")
        keys = None if certificate is None else Keys.load(certificate, role="client")
        with contextlib.suppress(HostAbsentError):  # the host is not empty in time
            drain(name, self.addresses[name], keys, timeout_s)

    def close(self) -> None:
        """End every host process and wait for its end. A second call does nothing."""
        with self._starting:
            self._closed = True
        for name, process in self._processes.items():
            if process.poll() is None and name in self.pids:
                interrupt(process)
            elif process.poll() is None:
                process.terminate()  # it still starts; an interrupt would print a traceback
        deadline = time.monotonic() + 5
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _let_go(process)
        self._watch.join()
        self._folder.cleanup()

    def forked(self) -> None:
        """Forget the hosts in a forked child process. The hosts stay with the parent, which ends them."""
        for process in self._processes.values():
            process.returncode = 0  # only the parent waits for the process
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()  # an open pipe would keep the host alive after its parent
        self._processes.clear()
        self._starting = threading.Lock()
        self._watch = _Watch(self._processes)
        self._folder.cleanup.detach()

    def __del__(self) -> None:
        if any(process.returncode is None for process in getattr(self, "_processes", {}).values()):
            self.close()
            warn_dropped(f"the cluster of {', '.join(self._processes)}", self)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _let_go(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


class _Watch:
    """Thread that waits for the ends of a cluster's processes and reports each end at once.

    The thread does not keep the cluster alive. Rules:

    - R1: A subscriber is notified of every end once, also of the ends before its subscription.
    - R2: A process is added before its end can be waited for, so that its number cannot belong to a newer process.
    """

    def __init__(self, processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
        self._processes = processes
        self._ends = new_ends()
        self._lock = threading.Condition()
        self._fates: dict[str, str] = {}
        self._subscribers: list[weakref.WeakMethod[Callable[[str, str], None]]] = []
        self._of_starts: list[weakref.WeakMethod[Callable[[str, str], None]]] = []
        self._thread = threading.Thread(target=self._wait, name="thalweg-cluster", daemon=True)
        self._over = False  # the thread is over, as every process has ended

    def add(self, name: str) -> None:
        with self._lock:
            if self._over:
                self._ends, self._over = new_ends(), False
                self._thread = threading.Thread(target=self._wait, name="thalweg-cluster", daemon=True)
            self._fates.pop(name, None)
            self._ends.add(self._processes[name], name)  # R2: add the process before its end can be waited for

    def start(self) -> None:
        if not self._thread.ident:
            self._thread.start()

    def wait_notified(self, name: str) -> None:
        """Wait until every subscriber was notified of a host's end."""
        with self._lock:
            self._lock.wait_for(lambda: name in self._fates)

    def subscribe(self, tell: Callable[[str, str], None]) -> None:
        with self._lock:
            self._subscribers.append(weakref.WeakMethod(tell))
            for name, fate in self._fates.items():  # R1: report the earlier ends as well
                tell(name, fate)

    def subscribe_to_starts(self, tell: Callable[[str, str], None]) -> None:
        with self._lock:
            self._of_starts.append(weakref.WeakMethod(tell))

    def notify_start(self, name: str, address: str) -> None:
        """Notify subscribers that a host has been started and listens at ``address``."""
        with self._lock:
            living = [(reference, tell) for reference in self._of_starts if (tell := reference()) is not None]
            self._of_starts = [reference for reference, _ in living]
        for _, tell in living:  # without the lock: a client calls the host
            tell(name, address)

    def join(self) -> None:
        """Wait for the end of the thread. Call it when every process has ended."""
        if not self._thread.ident:  # the cluster did not come up
            self._ends.close()
        elif threading.current_thread() is not self._thread:
            self._thread.join()

    def _wait(self) -> None:
        while self._goes_on():
            for name in self._ends.wait():
                fate = fate_of(self._processes[name].wait())
                with self._lock:
                    self._fates[name] = fate
                    for reference in self._subscribers:
                        if (tell := reference()) is not None:
                            tell(name, fate)
                    self._lock.notify_all()

    def _goes_on(self) -> bool:
        """Return whether a process still runs. After the last end, close the means of waiting."""
        with self._lock:
            if not self._ends.waiting:
                self._over = True
                self._ends.close()
            return not self._over


def addresses_of(hosts: LocalCluster | Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the endpoints of all hosts, and those of the hosts that run.

    Raise HostAbsentError if every host of a ``LocalCluster`` has ended.
    """
    if not isinstance(hosts, LocalCluster):
        expect(hosts, Mapping, "the hosts are a LocalCluster, or a mapping of names to endpoints")
        words((*hosts, *hosts.values()), "names and endpoints of hosts are texts")
        return dict(hosts), dict(hosts)
    addresses, ended = dict(hosts.addresses), hosts.poll()
    if ended and len(ended) == len(addresses):
        host, status = next(iter(ended.items()))
        raise HostAbsentError(f"no host of the cluster is left: {host!r} {fate_of(status)}", host=host)
    return addresses, {host: addresses[host] for host in addresses if host not in ended}


def fate_of(status: int) -> str:
    """Return how a process ended, by its exit status: ``ended with status -11 (SIGSEGV)``."""
    names = {-number: number.name for number in signal.Signals}
    return f"ended with status {status}" + (f" ({names[status]})" if status in names else "")


def host_command(
    name: str,
    listen: str,
    *,
    allow: Collection[str] = (),
    time_scale: float = 1.0,
    records: Path | str | None = None,
    insecure: bool = False,
    python: str = PYTHON,
) -> list[str]:
    """Return the command of a host process that ends with its parent. ``python``: the interpreter on the machine."""
    options = ["--name", name, "--listen", listen, "--with-parent", "--time-scale", repr(time_scale)]
    command = module_command("thalweg.middleware.shell.daemon", *options, python=python)
    for package in allow:
        command += ["--allow", package]
    if records is not None:
        command += ["--records", str(Path(records) / f"{name}.jsonl")]
    if insecure:
        command.append("--insecure")
    return command


def host_environment() -> dict[str, str]:
    """Return an environment with one thread a process for numerical libraries. Hosts share the machine's cores."""
    return {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}


def own_environment() -> dict[str, str]:
    """Return ``host_environment`` for a host that finds modules where this process does, in the same order.

    Raises UsageError if this process imports from its working directory, and the directory has been removed.
    """
    try:
        return host_environment() | folder_variables()
    except FileNotFoundError:
        raise UsageError("the working directory, where hosts start, has been removed; change to another") from None


def wait_ready_lines(
    descriptors: Mapping[str, int], timeout_s: float, progress: Progress | None = None
) -> dict[str, dict[str, str]]:
    """Return the first line (JSON) of each named pipe. Raise HostAbsentError for a pipe that closes or stays silent.

    With ``progress``, the wait goes on for up to ``MOST_TIMES`` as long while hosts make progress. The wait ends when a
    host has made no progress for half of ``timeout_s``.
    """
    ready: dict[str, dict[str, str]] = {}
    stuck, times, part_s = dict[str, str](), 1, timeout_s if progress is None else timeout_s / 2

    def more(names: Collection[str]) -> bool:
        nonlocal times
        if progress is None:
            return False
        reasons = {name: why for name in names if (why := progress.stuck(name))}
        if times > 1:
            stuck.update(reasons)
        if stuck or times == 2 * MOST_TIMES:
            return False
        times += 1
        return True

    for name, line in first_lines(descriptors, part_s, more):
        if not line:
            raise HostAbsentError(f"host {name!r} ended before it listened")
        ready[name] = msgspec.json.decode(line)
    if missing := sorted(descriptors.keys() - ready.keys(), key=lambda name: (name not in stuck, name)):
        why = f": {stuck[missing[0]]}" if stuck else "" if progress is None else ": is the machine too busy?"
        raise HostAbsentError(f"host {missing[0]!r} did not come up within {times * part_s:g} s{why}")
    return ready
