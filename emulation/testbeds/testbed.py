"""The testbed interface: hosts, the links between them, processes on them; the launcher's side.

A testbed is built once and taken down once; every method is idempotent, and ``with`` does both. Whatever ends the
launcher, no testbed leaves a process behind. A supervisor does the work; here requests are checked and answers become
values.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import sys
import time
import warnings
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypedDict

import msgspec

from thalweg.emulation.kernel.names import named, objection
from thalweg.emulation.links.shape import MAX_RATE_BPS, LinkShape, ShapeFigures, floored, outside
from thalweg.emulation.links.units import format_rate
from thalweg.emulation.proofs.proof import LinkProof, LinkSample
from thalweg.emulation.supervisor import requests
from thalweg.emulation.supervisor.client import Command, Redirect, StartedSupervisor, SupervisorClient, TestbedProcess
from thalweg.middleware.errors import TestbedError, UsageError, nearest
from thalweg.middleware.network.view import NET, Link, as_link, cable_of
from thalweg.middleware.platform.python import PYTHON

if TYPE_CHECKING:
    from thalweg.emulation.recording.recording import Recording
    from thalweg.emulation.testbeds.replay import ReplayHandle
    from thalweg.emulation.traces.trace import BandwidthTrace

FEW_LINKS = 1000  # whose shapes are asked for by name; of more all are read
PROVEN_AT_ONCE = 1_200  # links of one request
PROVE_S, PROVE_LINK_S = 600.0, 4.0  # such a request at most, and more for each link: it may be measured again, alone
MAX_NETWORKS = 7  # besides the one that all share
AT_ONCE = 500  # links of one request; of a thousand hosts it is answered in time on a busy machine as well


class NetworkOptions(TypedDict, total=False):
    """Options of a testbed's network that every backend with links takes (see ``Testbed``)."""

    layer: int
    networks: Sequence[str]
    ipv6: bool
    control_band: bool


class Testbed(ABC):
    """Hosts that can run processes, and links between every two of them; a supervisor holds both.

    See ``thalweg.emulation.server.supervisor``. Subclasses say what hosts are.
    """

    __test__ = False
    backend: ClassVar[str]
    subnet: str
    supervisor: StartedSupervisor | None = None
    """The one that this process has started for it."""
    unnamed = ""
    """Why hosts do not know each other by name; empty where they do, and where they share a machine's names."""

    def __init__(
        self,
        hosts: Sequence[str],
        run_id: str | None = None,
        layer: int = 3,
        networks: Iterable[str] = (),
        *,
        ipv6: bool = True,
        control_band: bool = False,
    ) -> None:
        """``hosts``: their names. ``layer``: what a rate counts, 3 for IP bytes, 2 for Ethernet frames without preamble
        and checksum. ``networks``: those in which hosts have an interface besides the one that all share. ``ipv6``:
        hosts have addresses of IPv6 as well. ``control_band``: what is marked for expedited forwarding, as this
        runtime's control messages are, waits behind nothing else of its link. Raises UsageError for no host, and for
        names that are empty, alike, or something else to a resolver.
        """
        self.run_id = run_id or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        if not hosts:
            raise UsageError("a testbed needs at least one host")
        for name in hosts:
            if not name or not name.isprintable() or hosts.count(name) > 1:
                raise UsageError(f"host name {name!r} is empty, unprintable or given twice")
        self._networks: dict[str, dict[str, str]] = {}
        self.subnets: dict[str, str] = {}  # of these networks
        for via in networks:
            if not via or not via.isprintable() or via == NET or via in self._networks:
                raise UsageError(f"network name {via!r} is empty, unprintable, given twice, or the common network's")
            self._networks[via] = {}
        if len(self._networks) > MAX_NETWORKS:
            raise UsageError(f"{len(self._networks)} networks asked besides the common one; a testbed has at most"
                             f" {MAX_NETWORKS}")  # fmt: skip
        if layer not in (2, 3):
            raise UsageError(f"layer is {layer}; rates count layer 2 or 3")
        if wrong := objection([*hosts], [*self._networks]):
            raise UsageError(wrong)
        self.layer, self.ipv6, self.control_band = layer, ipv6, control_band
        self._names = tuple(hosts)
        self._place = {name: number for number, name in enumerate(hosts)}
        self.limited = False
        """Whether hosts may have rates of all that they send or receive."""
        self.lines: Mapping[str, str] = {}
        """The presets of hosts' access lines, by what a host is called in the network, as they were last read."""
        self._addresses_6: dict[str, str] | None = None  # once it has been asked for
        self._addresses: dict[str, str] = {}
        self._connection: SupervisorClient | None = None
        self._processes: list[TestbedProcess] = []
        self._over = False
        self._read: dict[Link, LinkShape] = {}
        self._unread = False  # whether the supervisor may have other shapes than those that were read
        self._replay: ReplayHandle | None = None
        self._replay_delays = False  # what the supervisor has said of a replay that others have loaded

    @property
    def hosts(self) -> Mapping[str, str]:
        """Name to IP address, in the order given; on docker known once it is up."""
        return MappingProxyType(self._addresses)

    @property
    def hosts_6(self) -> Mapping[str, str]:
        """Host names to IPv6 addresses. It is empty without IPv6, and can be asked for once the testbed is up."""
        if self._addresses_6 is None:
            self.status()
        return MappingProxyType(self._addresses_6 or {})

    @property
    def networks(self) -> Mapping[str, Mapping[str, str]]:
        """The hosts' IP addresses in every network besides the one that all share, by the network's name."""
        return MappingProxyType(self._networks)

    @abstractmethod
    def _start(self, listener: socket.socket | None) -> StartedSupervisor:
        """A supervisor with the hosts made; one given a ``listener`` can be detached and found again."""

    def attach(self, client: SupervisorClient) -> None:
        """Use a supervisor that is up already instead of starting one; ``down`` hangs up, and leaves it running."""
        self._connection = client
        self._unread = True
        self.status(of=(), strangers=False)

    def up(self, listener: socket.socket | None = None) -> None:
        """Build it. Raises CapabilityError when this machine cannot."""
        if self._over:
            raise TestbedError("this testbed has been taken down; open another one")
        if self._connection is None:
            self.supervisor = self._start(listener)
            self._connection = self.supervisor.client

    @property
    def _client(self) -> SupervisorClient:
        if self._connection is None:
            state = "has been taken down" if self._over else "is not up yet; call up() first"
            raise TestbedError(f"the testbed {state}")
        return self._connection

    def _known(self, host: str) -> str:
        if host not in self.hosts:
            raise UsageError(f"unknown host {host!r}; the hosts are {', '.join(self.hosts)}")
        return host

    def down(self, grace_s: float = 0.0) -> None:
        """End every process (asked by SIGTERM first when ``grace_s`` is above 0) and remove everything."""
        self._over = True
        if self._connection is None:
            return
        if grace_s > 0:
            running = [process for process in self._processes if process.poll() is None]
            for process in running:
                process.terminate()
            stop = time.monotonic() + grace_s
            for process in running:
                process._ended.wait(max(0.0, stop - time.monotonic()))
        (self.supervisor or self._connection).close()
        self.supervisor = self._connection = None
        for process in self._processes:
            process.close()

    @property
    def _shapes(self) -> dict[Link, LinkShape]:
        """The shapes as they were last read. Shapes of a testbed that was attached are read when they are needed."""
        if self._unread:
            self.status(strangers=False)
        return self._read

    def status(self, of: Iterable[Link] | None = None, *, strangers: bool = True) -> dict[str, Any]:
        """Return the supervisor's answer, and bring ``shapes`` up to date: all of them, or those ``of`` some links.

        Args:
            of: links whose shapes are asked for. None asks for all.
            strangers: count frames from unknown addresses as well, which reads the counters of all ports.

        The answer has ``processes`` that run, whether a replay is ``replaying`` and how late its changes came
        (``replay``), rates of hosts, and the processor time of the supervisor (``cpu_s``).
        """
        return self._ask_status(None if of is None else [*of], strangers=strangers)[0]

    def _ask_status(
        self, asked: list[Link] | None, *, strangers: bool
    ) -> tuple[dict[str, Any], list[tuple[Link, LinkShape]]]:
        """Return the supervisor's answer, and the shapes that were asked for; None asks for all."""
        answer = self._client.call(requests.Status(asked, strangers))
        shapes = msgspec.convert(answer.pop("shapes"), list[tuple[tuple[str, ...], LinkShape]])
        found = [(Link(*link), shape) for link, shape in shapes]
        found.sort(key=lambda one: (one[0].via, self._place[one[0].source], self._place[one[0].target]))
        if asked is None:
            self._read, self._unread = dict(found), False
        else:
            self._read.update(found)
        self._replay_delays = answer.pop("replay_delays", False)
        self.limited = bool(answer.get("up_bps") or answer.get("down_bps"))
        self.lines = answer.get("lines", {})
        self._addresses_6 = answer.pop("ipv6", {})  # a testbed of an earlier version has none
        return answer, found

    def shapes_of(self, links: Iterable[Link]) -> dict[Link, LinkShape]:
        """Return the present shapes of these links. A link that is not shaped is left out."""
        asked = [*links]
        shaped = dict(self._ask_status(asked if len(asked) <= FEW_LINKS else None, strangers=False)[1])
        return {link: shaped[link] for link in asked if link in shaped}

    # --- processes ------------------------------------------------------------------------------------

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
        return PYTHON

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

    # --- links ----------------------------------------------------------------------------------------

    @property
    def delay_emulated(self) -> bool:
        """Whether links have delays, or are to have them by a replay's changes."""
        to_come = self._replay_delays or (self._replay is not None and self._replay.delays)
        return to_come or any(shape.delay_s > 0 for shape in self._shapes.values())

    def shape(self, links: Mapping[Link, LinkShape], tell: Callable[[int], None] | None = None) -> None:
        """Shape links: the first time sets them up, later changes are made in place, without a gap.

        ``tell`` is told how many there are of those that have been asked for: of very many, some at a time.
        """
        client, asked = self._client, [(as_link(link), shape) for link, shape in links.items()]
        for link, shape in asked:
            self._check(link, shape)
        told = [floored_note(f"link {link.text}", shape.rate_bps) for link, shape in asked]
        asked.sort(key=lambda one: (one[0].via, self._place[one[0].target]))  # the links to a host are set at its port
        for begin in range(0, len(asked), AT_ONCE):
            some = asked[begin : begin + AT_ONCE]
            client.call(requests.ShapeLinks([*some]))
            self._read.update((link, shape.settled()) for link, shape in some)
            if tell is not None:
                tell(begin + len(some))
        self._tell(told)

    @property
    def shapes(self) -> Mapping[Link, LinkShape]:
        """What every shaped link is asked to be."""
        return MappingProxyType(self._shapes)

    def limit_hosts(
        self,
        up_bps: Mapping[str, float | None] = {},
        down_bps: Mapping[str, float | None] = {},
        via: str = NET,
    ) -> None:
        """Set the total rates of hosts in a network in place, for sending (``up_bps``) and receiving (``down_bps``).

        None removes a limit. No packet is lost. Links keep their own rates. The packets that a host sends wait in one
        queue. The links to a host share its receiving rate equally. Raises UsageError for an unknown host or a rate
        out of range, and CapabilityError if the testbed cannot do it.
        """
        for host, rate_bps in (*up_bps.items(), *down_bps.items()):
            self._known(host)
            if rate_bps is not None and not 0 <= rate_bps <= MAX_RATE_BPS:
                raise UsageError(f"all that {host} sends or receives: {outside(rate_bps)}; lower it, or the time scale")
        self._check_network(via)
        told = [floored_note(f"what {host} {does}", bps) for does, some in (("sends", up_bps), ("receives", down_bps))
                for host, bps in some.items() if bps is not None]  # fmt: skip
        self._client.call(requests.LimitHosts(dict(up_bps), dict(down_bps), via))
        self.limited = True
        self._tell(told)

    def set_lines(self, lines: Mapping[str, requests.HostLine | None], via: str = NET) -> None:
        """Note the access lines of hosts in a network; ``limit_hosts`` then gives each queue its place."""
        for host in lines:
            self._known(host)
        self._check_network(via)
        self._client.call(requests.SetLines(dict(lines), via))
        told = named({cable_of(host, via): None if one is None else one.preset for host, one in lines.items()})
        self.lines = {end: preset for end, preset in {**self.lines, **told}.items() if preset is not None}

    def _check(self, link: Link, shape: LinkShape) -> None:
        source, target = (self._known(host) for host in link[:2])
        self._check_network(link.via)
        where = f"link {link.text}"
        if source == target:
            raise UsageError(f"{where}: a host has no link to itself")
        if wrong := shape.objection():
            raise UsageError(f"{where}: {wrong}")

    def _check_network(self, via: str) -> None:
        if via != NET and via not in self._networks:
            raise UsageError(f"this testbed has no network {via!r}; {nearest(via, (NET, *self._networks))}")

    def replay(self, traces: Mapping[Link, BandwidthTrace], time_scale: float = 1.0) -> ReplayHandle:
        """Load traces to be replayed; nothing changes before ``start()`` of what is returned.

        Links not shaped yet are. ``time_scale`` divides the traces' times and multiplies their rates.
        """
        from thalweg.emulation.testbeds.replay import LinkSchedule, ReplayHandle, schedule  # which imports numpy

        known: dict[int, LinkSchedule] = {}  # links may share a trace
        schedules: dict[Link, LinkSchedule] = {}
        for link, trace in ((as_link(link), trace) for link, trace in traces.items()):
            if id(trace) not in known:
                known[id(trace)] = schedule(trace, time_scale)
            schedules[link] = known[id(trace)]
            self._check(link, LinkShape(float(known[id(trace)].rates_bps.max())))
        missing = schedules.keys() - self._shapes.keys()
        if missing:
            self.shape({link: LinkShape(float(one.rates_bps[0])) for link, one in schedules.items() if link in missing})
        self._replay = ReplayHandle(self._client, schedules, time_scale)
        self._replay_delays = False
        return self._replay

    def alter(self, links: Iterable[Link], figures: ShapeFigures) -> None:
        """Change some fields of links' own shapes where they stand, whatever a replay makes of them besides."""
        chosen = [*map(as_link, links)]
        for link in chosen:
            self._check(link, LinkShape(0.0))
        rate_bps = figures.rate_bps
        told = [floored_note(f"link {link.text}", rate_bps) for link in chosen if isinstance(rate_bps, float)]
        self._client.call(requests.AlterLinks(chosen, figures))
        self._unread = True
        self._tell(told)

    def set_carrier(self, hosts: Iterable[str], carrier: str, via: str = NET) -> None:
        """Take the plugs of hosts out of a network (``down``), or put them in again (``up``). Links keep their shapes.

        A host without carrier sees its interface go down; what is sent to it is lost. Raises UsageError for an unknown
        host or state.
        """
        chosen = [self._known(host) for host in hosts]
        self._check_network(via)
        if carrier not in ("up", "down"):
            raise UsageError(f"there is no carrier {carrier!r}; there are up, down")
        self._client.call(requests.SetCarrier(chosen, carrier == "up", via))

    def reset(self, links: Iterable[Link]) -> int:
        """Reset the TCP connections from the sources to the targets of these links. Return their number."""
        return int(self._client.call(requests.Reset([*map(as_link, links)]))["reset"])

    @staticmethod
    def _tell(told: Sequence[str]) -> None:
        """Issue one warning: the first of these notes that is not empty, and the number of others."""
        some = [note for note in told if note]
        if some:
            more = f" (and {len(some) - 1} more)" if len(some) > 1 else ""
            warnings.warn(f"{some[0]}{more}", stacklevel=_outside())

    def stop_replay(self, *, missing_ok: bool = False) -> None:
        """Leave every link as a replay has it now, also one that another process began."""
        if not missing_ok or self.status((), strangers=False)["replaying"]:
            self._client.call(requests.ReplayStop())
            self._unread = True

    def restart_replay(self) -> None:
        """Let the replay that was stopped begin anew."""
        self._client.call(requests.ReplayStart())

    def prove(
        self,
        links: Iterable[Link] | None = None,
        seconds: float | None = None,
        *,
        flows: bool = False,
        every_kind: bool = False,
        tell: Callable[[int], None] | None = None,
    ) -> list[LinkProof]:
        """Fill links (by default all that have a rate) and measure what they deliver; ``seconds`` each.

        ``flows``: also what one flow of TCP gets. ``every_kind``: also whether frames of every kind pass, shaped, and
        none through a cut: every link is cut for a moment. ``tell`` is told how many there are: of very many, some at
        a time.
        Raises UsageError for a link that is not shaped.
        """
        chosen = [link for link, shape in self._shapes.items() if shape.rated]
        if links is not None:
            chosen = [*map(as_link, links)]
        for link in chosen:
            if link not in self._shapes:
                raise UsageError(f"link {link.text} is not shaped; there is nothing to prove")
        if not chosen:
            return []
        if len(chosen) > PROVEN_AT_ONCE:  # such that those of a request are whole rounds
            from thalweg.emulation.proofs.rate import tournament  # which imports what Linux alone has

            pairs = (pair for one in tournament(self._names) for pair in one)
            place = {frozenset(pair): number for number, pair in enumerate(pairs)}
            chosen.sort(key=lambda link: (link.via, place[frozenset(link[:2])]))
        found: list[LinkProof] = []
        for begin in range(0, len(chosen), PROVEN_AT_ONCE):
            some = chosen[begin : begin + PROVEN_AT_ONCE]
            timeout_s = PROVE_S + PROVE_LINK_S * len(some)
            answer = self._client.call(requests.Prove([*some], seconds, flows, every_kind), timeout_s=timeout_s)
            found += msgspec.convert(answer["proofs"], list[LinkProof])
            if tell is not None:
                tell(len(found))
        return found

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Inside, a replay rests; it begins anew afterwards. TestbedError names a host that has ended."""
        for host in self.hosts:
            if why := self.fate(host):
                raise TestbedError(f"host {host!r} cannot be verified: {why}; take the testbed down and up again")
        replaying = self.status((), strangers=False)["replaying"]
        if replaying:
            self.stop_replay()
        try:
            yield
        finally:
            if replaying:
                self.restart_replay()

    def start_sampling(self, interval_s: float) -> None:
        """Sample the links' counters periodically (wall seconds), replay or not."""
        self._client.call(requests.SampleStart(interval_s))

    def stop_sampling(self) -> None:
        """Take a last sample, and no more. Idempotent."""
        with suppress(TestbedError):  # a testbed that is gone samples nothing
            self._client.call(requests.SampleStop())

    def samples(self) -> list[LinkSample]:
        """The samples since the last call; intervals in which a link was idle are left out."""
        rows = b64decode(self._client.call(requests.Samples())["rows"])
        names, networks = ("", *self._names), (NET, *self._networks)
        return [
            LinkSample(at_s, names[int(a)], names[int(b)], asked, delivered, waits > 0, networks[int(via)], seconds)
            for at_s, a, b, asked, delivered, waits, via, seconds in struct.iter_unpack("=8d", rows)
        ]

    def recording(self) -> Recording:
        """Return what the testbed has recorded since its start."""
        from thalweg.emulation.recording.recording import fetch  # NumPy, which few need

        return fetch(self._client)

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()


def _outside() -> int:
    """Return the stack level of the caller outside this package, for a warning."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("thalweg."):
        frame, level = frame.f_back, level + 1
    return level


def floored_note(what: str, rate_bps: float) -> str:
    """Return the warning for a rate below the least that a link can have. It is empty for other rates."""
    if not 0 < rate_bps < floored(rate_bps):
        return ""
    return f"{what} is set to {format_rate(floored(rate_bps))}, the least there is, instead of {format_rate(rate_bps)}"
