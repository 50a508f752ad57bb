"""The testbed interface: hosts, the links between them, processes on them; and the loopback testbed.

A testbed is built once and taken down once; every method is idempotent, and ``with`` does both. Whatever ends the
launcher, a testbed of this module leaves no process behind.
"""

from __future__ import annotations

import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Self

import msgspec

from thalweg.emulation.replay import Replayable, ReplayHandle
from thalweg.emulation.supervisor_client import (
    Held,
    Redirect,
    SupervisorClient,
    TestbedProcess,
    start_plain,
)
from thalweg.middleware.errors import TestbedError, UsageError
from thalweg.middleware.network_view import Link

__all__ = [
    "LinkProof",
    "LinkSample",
    "LinkShape",
    "LoopbackTestbed",
    "Testbed",
    "TestbedProcess",
    "open_testbed",
    "passive_proofs",
]


class LinkShape(msgspec.Struct, frozen=True):
    """What a directed link is asked to be: bits per second, one-way seconds, seconds of jitter, share lost (0 to 1).

    Rates are wall-clock rates, counted at the testbed's layer; 0 becomes the documented floor.
    """

    rate_bps: float
    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0


class LinkProof(msgspec.Struct, frozen=True):
    """What a link delivered against what was asked, at the testbed's layer.

    ``error`` is delivered / asked - 1; ``seconds`` and ``size_bytes`` are what was measured; ``method`` is ``udp`` (the
    link was filled on purpose) or ``counters`` (read while a flow filled it).
    """

    src: str
    dst: str
    asked_bps: float
    delivered_bps: float
    error: float
    seconds: float
    size_bytes: int
    method: str


class LinkSample(msgspec.Struct, frozen=True):
    """What a link carried in the sampling interval that ended at ``at_s`` (``time.monotonic()``).

    ``asked_bps`` is the mean of what it was set to. ``backlogged``: packets waited at both ends of the interval.
    """

    at_s: float
    src: str
    dst: str
    asked_bps: float
    delivered_bps: float
    backlogged: bool


class Testbed(ABC):
    """Hosts that can run processes, and links between every two of them."""

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

    @property
    @abstractmethod
    def hosts(self) -> Mapping[str, str]:
        """Name to IP address, in the order given; known before ``up``."""

    @property
    def delay_emulated(self) -> bool:
        """Whether any link has a delay; False where only rates are emulated."""
        return False

    @abstractmethod
    def up(self) -> None:
        """Build it. Raises CapabilityError when this machine cannot."""

    @abstractmethod
    def down(self, grace_s: float = 0.0) -> None:
        """End every process (asked by SIGTERM first when ``grace_s`` is above 0) and remove everything."""

    @abstractmethod
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
        """Start a process on a host; arguments as for ``subprocess.Popen``. Raises UsageError when it cannot run."""

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


class SupervisedTestbed(Testbed):
    """A testbed whose processes a supervisor holds (see ``thalweg.emulation.supervisor``)."""

    def __init__(self, hosts: Sequence[str], run_id: str | None = None) -> None:
        super().__init__(hosts, run_id)
        self._supervisor: Held | None = None
        self._processes: list[TestbedProcess] = []
        self._over = False

    @abstractmethod
    def _start(self) -> Held: ...

    def adopt(self, supervisor: Held) -> None:
        """Use a supervisor that is up already instead of starting one."""
        self._supervisor = supervisor

    def up(self) -> None:
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
        process = self._client.spawn(self._known(host), argv, env, cwd, (stdin, stdout, stderr))
        self._processes.append(process)
        return process

    def down(self, grace_s: float = 0.0) -> None:
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


class LoopbackTestbed(SupervisedTestbed):
    """Hosts are processes on 127.0.0.1, links are not shaped: for functional runs and benchmarks."""

    backend: ClassVar[str] = "loopback"

    @property
    def hosts(self) -> Mapping[str, str]:
        return MappingProxyType(dict.fromkeys(self._names, "127.0.0.1"))

    def _start(self) -> Held:
        return start_plain(self.run_id)

    def shape(self, links: Mapping[Link, LinkShape]) -> None:
        raise UsageError("the loopback testbed has no links to shape; use --testbed netns for shaped links")

    def replay(
        self, traces: Mapping[Link, Replayable], time_scale: float = 1.0, *, sample_interval_s: float | None = 1.0
    ) -> ReplayHandle:
        raise UsageError("the loopback testbed cannot replay traces; use --testbed netns for shaped links")

    def prove(self, links: Iterable[Link] | None = None, seconds: float | None = None) -> list[LinkProof]:
        return []

    def start_sampling(self, interval_s: float = 1.0) -> None:
        return

    def samples(self) -> list[LinkSample]:
        return []


def open_testbed(backend: str, hosts: Sequence[str], *, run_id: str | None = None, **options: Any) -> Testbed:
    """A testbed by its backend's name, not yet up: ``netns`` (options ``subnet``, ``layer``) or ``loopback``.

    Raises UsageError for an unknown backend or option.
    """
    from thalweg.emulation.netns import NetnsTestbed

    backends: dict[str, type[Testbed]] = {"netns": NetnsTestbed, "loopback": LoopbackTestbed}
    if backend not in backends:
        raise UsageError(f"unknown testbed {backend!r}; there are {', '.join(backends)}")
    known = {"netns": {"subnet", "layer"}}.get(backend, set())
    for option in options.keys() - known:
        raise UsageError(f"the {backend} testbed has no option {option!r}; it has {sorted(known) or 'none'}")
    return backends[backend](hosts, run_id=run_id, **options)


def passive_proofs(samples: Iterable[LinkSample]) -> list[LinkProof]:
    """What a flow's own traffic proves: for each link its intervals with a backlog at both ends, added up."""
    sums: dict[Link, list[float]] = {}
    last: dict[Link, float] = {}
    for one in samples:
        link = (one.src, one.dst)
        before, last[link] = last.get(link), one.at_s
        if one.backlogged and before is not None:
            seconds = one.at_s - before
            total = sums.setdefault(link, [0.0, 0.0, 0.0])
            for i, part in enumerate((seconds, one.asked_bps * seconds, one.delivered_bps * seconds)):
                total[i] += part
    return [
        LinkProof(src, dst, asked / s, sent / s, sent / asked - 1, s, round(sent / 8), "counters")
        for (src, dst), (s, asked, sent) in sums.items()
    ]
