"""The testbed interface: hosts, the links between them, processes on them.

A testbed is built once and taken down once; every method is idempotent, and ``with`` does both. Whatever ends the
launcher, no testbed leaves a process behind.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.proofs.proof import LinkProof, LinkSample
from thalweg.emulation.supervisor.client import Command, Held, Redirect, SupervisorClient, TestbedProcess
from thalweg.emulation.testbeds.replay import Replayable, ReplayHandle
from thalweg.middleware.errors import TestbedError, UsageError
from thalweg.middleware.network.view import Link


class Testbed(ABC):
    """Hosts that can run processes, and links between every two of them; a supervisor holds the processes.

    See ``thalweg.emulation.supervisor.server``.
    """

    __test__ = False
    backend: ClassVar[str]

    def __init__(self, hosts: Sequence[str], run_id: str | None = None) -> None:
        """``hosts``: their names. Raises UsageError for none, an empty name or one given twice."""
        self.run_id = run_id or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        if not hosts:
            raise UsageError("a testbed needs at least one host")
        for name in hosts:
            if not name or not name.isprintable() or hosts.count(name) > 1:
                raise UsageError(f"host name {name!r} is empty, unprintable or given twice")
        self._names = tuple(hosts)
        self._supervisor: Held | None = None
        self._processes: list[TestbedProcess] = []
        self._over = False

    @property
    @abstractmethod
    def hosts(self) -> Mapping[str, str]:
        """Name to IP address, in the order given; on docker known once it is up."""

    @property
    def delay_emulated(self) -> bool:
        """Whether any link has a delay; False where only rates are emulated."""
        return False

    @abstractmethod
    def _start(self) -> Held: ...

    def adopt(self, supervisor: Held) -> None:
        """Use a supervisor that is up already instead of starting one."""
        self._supervisor = supervisor

    def up(self) -> None:
        """Build it. Raises CapabilityError when this machine cannot."""
        if self._over:
            raise TestbedError("this testbed has been taken down; open another one")
        if self._supervisor is None:
            self._supervisor = self._start()

    @property
    def _client(self) -> SupervisorClient:
        if self._supervisor is None:
            state = "has been taken down" if self._over else "is not up yet; call up() first"
            raise TestbedError(f"the testbed {state}")
        return self._supervisor.client

    def _known(self, host: str) -> str:
        if host not in self.hosts:
            raise UsageError(f"unknown host {host!r}; the hosts are {', '.join(self.hosts)}")
        return host

    def down(self, grace_s: float = 0.0) -> None:
        """End every process (asked by SIGTERM first when ``grace_s`` is above 0) and remove everything."""
        self._over = True
        if self._supervisor is None:
            return
        if grace_s > 0:
            running = [process for process in self._processes if process.poll() is None]
            for process in running:
                process.terminate()
            stop = time.monotonic() + grace_s
            for process in running:
                process._ended.wait(max(0.0, stop - time.monotonic()))
        self._supervisor.close()
        self._supervisor = None
        for process in self._processes:
            process.close()

    def run(
        self,
        host: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: Redirect = None,
        stdout: Redirect = None,
        stderr: Redirect = None,
    ) -> TestbedProcess:
        """Start a process on a host; arguments as for ``subprocess.Popen``. Raises UsageError when it cannot run.

        On docker it gets of ``env`` what differs from our own, and ``cwd`` None is its container's folder.
        """
        process = self._spawn(self._known(host), Command(argv, env, cwd, stdin, stdout, stderr))
        self._processes.append(process)
        return process

    def _spawn(self, host: str, command: Command) -> TestbedProcess:
        return self._client.spawn(host, command)

    @property
    def python(self) -> str:
        """The interpreter on the hosts that has Thalweg."""
        return sys.executable

    def outbox(self, folder: Path) -> Path:
        """Where processes on hosts write what is to stand in ``folder``, once ``collect`` has been called.

        ``folder`` itself where hosts have our file system. Each ``folder`` has a name of its own.
        """
        return folder

    def collect(self) -> None:  # noqa: B027  (most hosts have our file system)
        """Bring what processes left in their outboxes. To be called before ``down``."""

    def fate(self, host: str) -> str:
        """What has become of a host that no longer works, for people; empty for one that does."""
        return ""

    @abstractmethod
    def shape(self, links: Mapping[Link, LinkShape]) -> None:
        """Shape links: the first time sets them up, later changes are made in place, without a gap."""

    @abstractmethod
    def replay(
        self, traces: Mapping[Link, Replayable], time_scale: float = 1.0, *, sample_interval_s: float | None = 1.0
    ) -> ReplayHandle:
        """Load traces to be replayed; nothing changes before ``start()`` of what is returned.

        Links not shaped yet are. ``time_scale`` divides the traces' times and multiplies their rates.
        ``sample_interval_s`` (wall): also sample the links while it runs.
        """

    @abstractmethod
    def prove(self, links: Iterable[Link] | None = None, seconds: float | None = None) -> list[LinkProof]:
        """Fill links (all shaped ones by default) and measure what they deliver; ``seconds`` each."""

    @abstractmethod
    def start_sampling(self, interval_s: float = 1.0) -> None:
        """Sample the links' counters periodically, replay or not."""

    @abstractmethod
    def samples(self) -> list[LinkSample]:
        """The samples since the last call; intervals in which a link was idle are left out."""

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
