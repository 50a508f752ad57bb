"""``LocalCluster``: host processes of this machine, started and ended with the object."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from thalweg.middleware.errors import HostAbsentError, UsageError
from thalweg.middleware.loading import check_roots
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.shell.endpoints import socket_folder
from thalweg.middleware.shell.security import MEMBERS, PUBLIC, SECRET, Role, new_certificate, write_certificate

START_S = 30.0  # a host process that has not said it listens by then is not coming


class LocalCluster:
    """``count`` host processes ``h1`` …, which listen on Unix sockets that only this user can dial.

    Args:
        count: how many, or the hosts' names.
        allow: packages, beside Thalweg's own, whose code dataflows may name.
        time_scale: emulated seconds per wall-clock second.
        data_roots: folders whose files sources may read, as ``image_folder`` does.
        records: folder for the hosts' event logs (``<host>.jsonl``).
        limits: of each host, by the names of ``CoreConfig``, where they are not its defaults.
        transport: ``ipc``, Unix sockets in a folder of their own; ``curve``, loopback with certificates; or ``tcp``,
            loopback without, which every user of this machine can dial: both for measurements.

    Raises HostAbsentError when a process does not come up. Use it as a context manager, or call ``close()``.
    """

    def __init__(
        self,
        count: int | Collection[str],
        *,
        allow: Collection[str] = (),
        data_roots: Collection[str | Path] = (),
        time_scale: float = 1.0,
        records: Path | None = None,
        limits: Mapping[str, float] | None = None,
        transport: Literal["ipc", "curve", "tcp"] = "ipc",
    ) -> None:
        settings = [f"{name}={value}" for name, value in (limits or {}).items()]
        CoreConfig().limited(settings)
        more = [f"--limit={setting}" for setting in settings]
        more += [f"--data-root={root}" for root in check_roots(data_roots)]
        names = [f"h{i + 1}" for i in range(count)] if isinstance(count, int) else list(count)
        if not names:
            raise UsageError("a cluster needs at least one host")
        if twice := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"a cluster cannot have a host {twice[0]!r} twice")
        self.addresses: dict[str, str] = {}
        self.pids: dict[str, int] = {}
        self.time_scale = time_scale
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = socket_folder()
        self._transport = transport
        self.insecure = transport == "tcp"
        try:
            for number, name in enumerate(names):
                listen = f"ipc://{self._folder.name}/{number}" if transport == "ipc" else "tcp://127.0.0.1:*"
                command = host_command(name, listen, allow=allow, time_scale=time_scale, records=records)
                command += ["--insecure"] * self.insecure
                if (certificate := self.certificate(name, "host")) is not None:
                    command += ["--keys", str(certificate)]
                self._processes[name] = subprocess.Popen(
                    [*command, *more],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=host_environment(),
                    start_new_session=True,
                )
            streams = {name: p.stdout.fileno() for name, p in self._processes.items() if p.stdout is not None}
            lines = wait_ready_lines(streams, START_S)
        except BaseException:
            self.close()
            raise
        for name in names:  # in their order, not in that of their coming up
            self.addresses[name] = lines[name]["control"]
            self.pids[name] = int(lines[name]["pid"])

    def certificate(self, name: str, role: Role = "client") -> Path | None:
        """The secret certificate of one of the cluster's, made when it is first asked for; None without keys."""
        if self._transport != "curve":
            return None
        folder = Path(self._folder.name)
        made = folder / f"{name}{SECRET}"
        if not made.exists():
            member, _, _ = new_certificate(name, role, folder)
            write_certificate(folder / MEMBERS / f"{name}{PUBLIC}", member.text())
        return made

    def poll(self) -> dict[str, int]:
        """The hosts that have ended, with their exit status."""
        return {name: status for name, p in self._processes.items() if (status := p.poll()) is not None}

    def kill(self, name: str) -> None:
        """End one host at once, as a crash would."""
        self._processes[name].kill()
        self._processes[name].wait()

    def close(self) -> None:
        """End every host process and wait for it; idempotent."""
        for process in self._processes.values():
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + 5
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        self._folder.cleanup()

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def host_command(
    name: str,
    listen: str,
    *,
    allow: Collection[str] = (),
    time_scale: float = 1.0,
    records: Path | None = None,
    insecure: bool = False,
    python: str = sys.executable,
) -> list[str]:
    """The command that starts a host process which ends with its parent; ``python`` is the interpreter there."""
    command = [python, "-m", "thalweg.middleware.shell.daemon", "--name", name, "--listen", listen, "--with-parent"]
    command += ["--time-scale", repr(time_scale)]
    for package in allow:
        command += ["--allow", package]
    if records is not None:
        command += ["--records", str(records / f"{name}.jsonl")]
    if insecure:
        command.append("--insecure")
    return command


def host_environment() -> dict[str, str]:
    """One thread a process for numerical libraries: hosts share the machine's cores."""
    return {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}


def wait_ready_lines(descriptors: Mapping[str, int], timeout_s: float) -> dict[str, dict[str, str]]:
    """The first line (JSON) each named pipe delivers; HostAbsentError names one that closes or stays silent."""
    buffers = dict.fromkeys(descriptors, b"")
    ready: dict[str, dict[str, str]] = {}
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for name, descriptor in descriptors.items():
            selector.register(descriptor, selectors.EVENT_READ, name)
        while len(ready) < len(descriptors):
            events = selector.select(max(0.0, deadline - time.monotonic()))
            if not events:
                missing = sorted(set(descriptors) - set(ready))
                raise HostAbsentError(f"host {missing[0]!r} did not come up within {timeout_s:g} s")
            for key, _ in events:
                name = key.data
                piece = os.read(key.fd, 4096)
                if not piece:
                    raise HostAbsentError(f"host {name!r} ended before it listened")
                buffers[name] += piece
                if b"\n" in buffers[name]:
                    selector.unregister(key.fd)
                    ready[name] = msgspec.json.decode(buffers[name].partition(b"\n")[0])
    return ready
