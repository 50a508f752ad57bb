"""The testbed interface: hosts, the links between them, processes on them; and the loopback testbed.

A testbed is built once and taken down once; every method is idempotent, and ``with`` does both. Whatever ends the
launcher, a testbed of this module leaves no process behind.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import msgspec

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.proofs.delay import delay_holds
from thalweg.emulation.supervisor.client import (
    Held,
    Redirect,
    SupervisorClient,
    TestbedProcess,
    start_plain,
)
from thalweg.emulation.testbeds.replay import Replayable, ReplayHandle
from thalweg.middleware.errors import TestbedError, UsageError
from thalweg.middleware.network.view import Link

__all__ = [
    "LinkProof",
    "LinkSample",
    "LoopbackTestbed",
    "Testbed",
    "TestbedProcess",
    "failures",
    "open_testbed",
    "passive_proofs",
]


RATE_ERROR = 0.05  # what a link may be off by …
RATE_FROM_BPS = 0.5e6  # … from this rate on
STALLED, MOST_STALLED = 0.02, 0.35  # shares of stalls from which on people are told, and that make a link wrong


class LinkProof(msgspec.Struct, frozen=True):
    """What a link delivered against what was asked, at the testbed's layer.

    ``asked_bps`` is what can be expected: the link's rate, that of an interface at its ends if lower, 0 for one that is
    cut. ``error`` is delivered / asked - 1; ``seconds`` and ``size_bytes`` are what was measured; ``method`` is ``udp``
    (the link was filled on purpose) or ``counters`` (read while a flow filled it). ``stalled``: the share of the time
    in which the machine let nothing pass though packets waited, for longer than the link's burst makes up; it is not in
    ``seconds``, and a flow loses it (``udp`` only).

    Links with delay, loss and the like (netem) are also measured for those, the others keep None and 0: the delay one
    way with its 99 % confidence interval; the jitter, in terms of the distribution asked; how many of ``sent`` packets
    were lost, and the least and the most that a link with the loss asked loses in 99 % of cases; copies that came.
    """

    src: str
    dst: str
    asked_bps: float
    delivered_bps: float
    error: float
    seconds: float
    size_bytes: int
    method: str
    asked_delay_s: float = 0.0
    delivered_delay_s: float | None = None
    delay_low_s: float | None = None
    delay_high_s: float | None = None
    asked_jitter_s: float = 0.0
    delivered_jitter_s: float | None = None
    asked_loss: float = 0.0
    sent: int = 0
    lost: int = 0
    lost_low: int = 0
    lost_high: int = 0
    duplicates: int = 0
    stalled: float = 0.0

    @property
    def rate_ok(self) -> bool:
        """Within 5 %, stalls apart; below 0.5 Mbit/s, where few packets pass in a proof's time, within 10 %."""
        return abs(self.error) <= (RATE_ERROR if self.asked_bps >= RATE_FROM_BPS else 2 * RATE_ERROR)

    @property
    def delay_ok(self) -> bool:
        """Not less than asked, nor over 2 ms and over 10 % more, as far as can be told; or not measured."""
        if self.delay_low_s is None or self.delay_high_s is None:
            return True
        return delay_holds(self.asked_delay_s, self.delay_low_s, self.delay_high_s)

    @property
    def loss_ok(self) -> bool:
        """Within what 99 % of links with the loss asked lose; or not measured."""
        return self.lost_low <= self.lost <= self.lost_high


def failures(proofs: Iterable[LinkProof]) -> list[str]:
    """One line for every link that is not as asked: what is off, and by how much."""
    lines = []
    for one in proofs:
        wrong = []
        if not one.rate_ok:
            asked, found = one.asked_bps / 1e6, one.delivered_bps / 1e6
            what = f"instead of {asked:.3g} Mbit/s ({one.error:+.1%})" if asked else "Mbit/s though it is cut"
            wrong.append(f"delivers {found:.3g} {what}")
        if not one.delay_ok and one.delivered_delay_s is not None:
            wrong.append(f"delays by {one.delivered_delay_s * 1e3:.3g} instead of {one.asked_delay_s * 1e3:.3g} ms")
        if not one.loss_ok:
            most = f"{one.lost_low} to {one.lost_high} of which the {one.asked_loss:.3g} asked would explain"
            wrong.append(f"loses {one.lost} of {one.sent} packets, {most}")
        if one.stalled > MOST_STALLED:
            wrong.append(f"is kept waiting by this machine for {one.stalled:.0%} of the time; make it less busy")
        if wrong:
            lines.append(f"link {one.src} → {one.dst} {'; '.join(wrong)}")
    return lines


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
        """Name to IP address, in the order given; on docker known once it is up."""

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


class SupervisedTestbed(Testbed):
    """A testbed whose processes a supervisor holds (see ``thalweg.emulation.supervisor.server``)."""

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


OPTIONS = {
    "netns": {"subnet", "layer"},
    "loopback": set[str](),
    "docker": {"subnet", "layer", "image", "cpus", "memory_bytes", "mounts", "serve", "same_code"},
}


def open_testbed(backend: str, hosts: Sequence[str], *, run_id: str | None = None, **options: Any) -> Testbed:
    """A testbed by its backend's name, not yet up; what options each takes is in ``OPTIONS``.

    Raises UsageError for an unknown backend or option.
    """
    if backend not in OPTIONS:
        raise UsageError(f"unknown testbed {backend!r}; there are {', '.join(OPTIONS)}")
    known = OPTIONS[backend]
    for option in options.keys() - known:
        raise UsageError(f"the {backend} testbed has no option {option!r}; it has {sorted(known) or 'none'}")
    if backend == "loopback":
        return LoopbackTestbed(hosts, run_id=run_id)
    if backend == "netns":
        from thalweg.emulation.testbeds.netns import NetnsTestbed

        return NetnsTestbed(hosts, run_id=run_id, **options)
    from thalweg.emulation.testbeds.docker import DockerTestbed

    return DockerTestbed(hosts, run_id=run_id, **options)


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
        if asked  # nothing is asked of a link that is cut
    ]
