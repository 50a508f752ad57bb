"""Testbed interface, launcher's side: hosts, the links between them, and processes on hosts.

A testbed is built once and taken down once. Every method is idempotent, and ``with`` does both. If the launcher ends
for any reason, no process of the testbed stays. A supervisor does the work. This module checks requests and converts
answers to values.
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

FEW_LINKS = 1000  # shapes of up to so many links are read by name, else the shapes of all links
PROVEN_AT_ONCE = 1_200  # limit of links of one request to prove links
PROVE_S, PROVE_LINK_S = 600.0, 4.0  # time limit of the request, plus this per link, which may be measured twice
MAX_NETWORKS = 7  # limit of further networks
AT_ONCE = 500  # links of one request to shape. With 1000 hosts, a busy machine still answers in time


class NetworkOptions(TypedDict, total=False):
    """Options of a testbed's network, for every backend with links (see ``Testbed``)."""

    layer: int
    networks: Sequence[str]
    ipv6: bool
    control_band: bool


class Testbed(ABC):
    """Hosts that can run processes, and links between every two hosts. A supervisor holds both.

    See ``thalweg.emulation.server.supervisor``. Subclasses define the kind of host.
    """

    __test__ = False
    backend: ClassVar[str]
    subnet: str
    supervisor: StartedSupervisor | None = None
    """Supervisor that this process has started for the testbed."""
    unnamed = ""
    """Why hosts cannot resolve the names of hosts. Empty: they can, or they share the machine's names."""

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
        """Check the options of a testbed. ``hosts``: their names. Raises UsageError if there is no host.

        ``layer``: where rates are counted, 3 for IP bytes, 2 for Ethernet frames without preamble and checksum.
        ``networks``: further networks, in which hosts have an additional interface. ``ipv6``: hosts also have IPv6
        addresses. ``control_band``: packets marked for expedited forwarding, such as this runtime's control messages,
        go first on their link. Raises UsageError for names that are empty, alike, or have another meaning for a
        resolver.
        """
        self.run_id = run_id or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        if not hosts:
            raise UsageError("a testbed needs at least one host")
        for name in hosts:
            if not name or not name.isprintable() or hosts.count(name) > 1:
                raise UsageError(f"host name {name!r} is empty, unprintable or given twice")
        self._networks: dict[str, dict[str, str]] = {}
        self.subnets: dict[str, str] = {}  # subnets of the further networks
        for via in networks:
            if not via or not via.isprintable() or via == NET or via in self._networks:
                raise UsageError(f"network name {via!r} is empty, unprintable, given twice, or the common network's")
            self._networks[via] = {}
        if len(self._networks) > MAX_NETWORKS:
            raise UsageError(f"{len(self._networks)} networks are asked for besides the common one; a testbed has at"
                             f" most {MAX_NETWORKS}")  # fmt: skip
        if layer not in (2, 3):
            raise UsageError(f"layer is {layer}; rates count layer 2 or 3")
        if wrong := objection([*hosts], [*self._networks]):
            raise UsageError(wrong)
        self.layer, self.ipv6, self.control_band = layer, ipv6, control_band
        self._names = tuple(hosts)
        self._place = {name: number for number, name in enumerate(hosts)}
        self.limited = False
        """Whether hosts may have total rates of sending or receiving."""
        self.lines: Mapping[str, str] = {}
        """Presets of the access lines of hosts, as last read, by the host's name in the network."""
        self._addresses_6: dict[str, str] | None = None  # None: not yet read
        self._addresses: dict[str, str] = {}
        self._connection: SupervisorClient | None = None
        self._processes: list[TestbedProcess] = []
        self._over = False
        self._read: dict[Link, LinkShape] = {}
        self._unread = False  # whether shapes may have changed since they were read
        self._replay: ReplayHandle | None = None
        self._replay_delays = False  # whether a replay that another client loaded gives delays

    @property
    def hosts(self) -> Mapping[str, str]:
        """IP addresses by host name, in the order given. On docker the addresses are known once the testbed is up."""
        return MappingProxyType(self._addresses)

    @property
    def hosts_6(self) -> Mapping[str, str]:
        """IPv6 addresses by host name, once the testbed is up. Empty without IPv6."""
        if self._addresses_6 is None:
            self.status()
        return MappingProxyType(self._addresses_6 or {})

    @property
    def networks(self) -> Mapping[str, Mapping[str, str]]:
        """IP addresses of the hosts in every further network, by the network's name."""
        return MappingProxyType(self._networks)

    @abstractmethod
    def _start(self, listener: socket.socket | None) -> StartedSupervisor:
        """Start a supervisor with its hosts. A supervisor with a ``listener`` can be detached and found again."""

    def attach(self, client: SupervisorClient) -> None:
        """Use a running supervisor instead of starting one. ``down`` then disconnects and leaves it running."""
        self._connection = client
        self._unread = True
        self.status(of=(), strangers=False)

    def up(self, listener: socket.socket | None = None) -> None:
        """Build the testbed. Raises CapabilityError if this machine cannot."""
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
        """End every process and remove the testbed. With ``grace_s`` above 0, processes first get SIGTERM."""
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
        """Shapes of links as last read. For an attached testbed they are read when needed."""
        if self._unread:
            self.status(strangers=False)
        return self._read

    def status(self, of: Iterable[Link] | None = None, *, strangers: bool = True) -> dict[str, Any]:
        """Return the supervisor's answer, and update ``shapes``, for all links or those in ``of``.

        Args:
            of: links whose shapes are asked for. None asks for all.
            strangers: count frames from unknown addresses as well, which reads the counters of all ports.

        The answer has the running ``processes``, whether a replay is ``replaying``, the lags of its steps (``replay``),
        rates of hosts, and the processor time of the supervisor (``cpu_s``).
        """
        return self._ask_status(None if of is None else [*of], strangers=strangers)[0]

    def _ask_status(
        self, asked: list[Link] | None, *, strangers: bool
    ) -> tuple[dict[str, Any], list[tuple[Link, LinkShape]]]:
        """Return the supervisor's answer, and the shapes of the links in ``asked``. None: of all links."""
        answer = self._client.call(requests.Status(asked, strangers))
        shapes = msgspec.convert(answer.pop("shapes"), list[tuple[tuple[str, ...], LinkShape]])
        rows = [(Link(*link), shape) for link, shape in shapes]
        rows.sort(key=lambda one: (one[0].via, self._place[one[0].source], self._place[one[0].target]))
        if asked is None:
            self._read, self._unread = dict(rows), False
        else:
            self._read.update(rows)
        self._replay_delays = answer.pop("replay_delays", False)
        self.limited = bool(answer.get("up_bps") or answer.get("down_bps"))
        self.lines = answer.get("lines", {})
        self._addresses_6 = answer.pop("ipv6", {})  # absent in testbeds of earlier versions
        return answer, rows

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
        """Start a process on a host, with arguments as for ``subprocess.Popen``. Raises UsageError if it cannot run.

        On docker the process gets the variables of ``env`` that differ from the launcher's. There, ``cwd`` None is the
        folder of the container.
        """
        process = self._spawn(self._known(host), Command(argv, env, cwd, stdin, stdout, stderr))
        self._processes.append(process)
        return process

    def _spawn(self, host: str, command: Command) -> TestbedProcess:
        return self._client.spawn(host, command)

    @property
    def python(self) -> str:
        """Python interpreter on the hosts, with Thalweg installed."""
        return PYTHON

    def outbox(self, folder: Path) -> Path:
        """Return where processes on hosts write files for ``folder``. ``collect`` brings the files there.

        The result is ``folder`` itself if hosts share this file system. Every ``folder`` has a distinct name.
        """
        return folder

    def collect(self) -> None:  # noqa: B027  (most hosts have this file system)
        """Copy files from the outboxes of hosts to their folders. Call it before ``down``."""

    def fate(self, host: str) -> str:
        """Return why a host no longer works, as text for people. Empty: the host works."""
        return ""

    # --- links ----------------------------------------------------------------------------------------

    @property
    def delay_emulated(self) -> bool:
        """Return whether links have delays, or a replay's changes will give links delays."""
        to_come = self._replay_delays or (self._replay is not None and self._replay.delays)
        return to_come or any(shape.delay_s > 0 for shape in self._shapes.values())

    def shape(self, links: Mapping[Link, LinkShape], tell: Callable[[int], None] | None = None) -> None:
        """Shape links. The first call for a link sets the link up. Later calls change it in place, without a gap.

        Large sets are sent in parts. After each part, ``tell`` is called with the number of links done.
        """
        client, asked = self._client, [(as_link(link), shape) for link, shape in links.items()]
        for link, shape in asked:
            self._check(link, shape)
        notes = [floored_note(f"link {link.text}", shape.rate_bps) for link, shape in asked]
        asked.sort(key=lambda one: (one[0].via, self._place[one[0].target]))  # a host's port sets all links to the host
        for begin in range(0, len(asked), AT_ONCE):
            some = asked[begin : begin + AT_ONCE]
            client.call(requests.ShapeLinks([*some]))
            self._read.update((link, shape.settled()) for link, shape in some)
            if tell is not None:
                tell(begin + len(some))
        self._tell(notes)

    @property
    def shapes(self) -> Mapping[Link, LinkShape]:
        """Requested shape of every shaped link."""
        return MappingProxyType(self._shapes)

    def limit_hosts(
        self,
        up_bps: Mapping[str, float | None] = {},
        down_bps: Mapping[str, float | None] = {},
        via: str = NET,
    ) -> None:
        """Set the total rates of hosts in a network in place, for sending (``up_bps``) and receiving (``down_bps``).

        None removes a limit. No packet is lost. Links keep their own rates. The packets that a host sends wait in one
        queue. The links to a host share its receiving rate equally. Raises UsageError for an unknown host or a rate out
        of range, and CapabilityError if the testbed cannot do it.
        """
        for host, rate_bps in (*up_bps.items(), *down_bps.items()):
            self._known(host)
            if rate_bps is not None and not 0 <= rate_bps <= MAX_RATE_BPS:
                raise UsageError(f"all that {host} sends or receives: {outside(rate_bps)}; lower it, or the time scale")
        self._check_network(via)
        notes = [floored_note(f"what {host} {does}", bps) for does, rates in (("sends", up_bps), ("receives", down_bps))
                for host, bps in rates.items() if bps is not None]  # fmt: skip
        self._client.call(requests.LimitHosts(dict(up_bps), dict(down_bps), via))
        self.limited = True
        self._tell(notes)

    def set_lines(self, lines: Mapping[str, requests.HostLine | None], via: str = NET) -> None:
        """Record the access lines of hosts in a network. ``limit_hosts`` then sets up their queues."""
        for host in lines:
            self._known(host)
        self._check_network(via)
        self._client.call(requests.SetLines(dict(lines), via))
        presets = named({cable_of(host, via): None if line is None else line.preset for host, line in lines.items()})
        self.lines = {end: preset for end, preset in {**self.lines, **presets}.items() if preset is not None}

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
        """Load traces for a replay. Nothing changes before ``start()`` of the result. Unshaped links are shaped.

        ``time_scale`` divides the traces' times and multiplies their rates.
        """
        from thalweg.emulation.testbeds.replay import LinkSchedule, ReplayHandle, schedule  # imports numpy

        known: dict[int, LinkSchedule] = {}  # links may share a trace
        schedules: dict[Link, LinkSchedule] = {}
        for link, trace in ((as_link(link), trace) for link, trace in traces.items()):
            if id(trace) not in known:
                known[id(trace)] = schedule(trace, time_scale)
            schedules[link] = known[id(trace)]
            self._check(link, LinkShape(float(known[id(trace)].rates_bps.max())))
        missing = schedules.keys() - self._shapes.keys()
        if missing:
            self.shape(
                {
                    link: LinkShape(float(link_schedule.rates_bps[0]))
                    for link, link_schedule in schedules.items()
                    if link in missing
                }
            )
        self._replay = ReplayHandle(self._client, schedules, time_scale)
        self._replay_delays = False
        return self._replay

    def alter(self, links: Iterable[Link], figures: ShapeFigures) -> None:
        """Change some fields of links' own shapes in place. A replay's effects still apply to the new shapes."""
        chosen = [*map(as_link, links)]
        for link in chosen:
            self._check(link, LinkShape(0.0))
        rate_bps = figures.rate_bps
        notes = [floored_note(f"link {link.text}", rate_bps) for link in chosen if isinstance(rate_bps, float)]
        self._client.call(requests.AlterLinks(chosen, figures))
        self._unread = True
        self._tell(notes)

    def set_carrier(self, hosts: Iterable[str], carrier: str, via: str = NET) -> None:
        """Remove the carriers of hosts in a network (``down``), or restore them (``up``). Links keep their shapes.

        A host without carrier sees its interface down, and packets to the host are lost. Raises UsageError for an
        unknown host or state.
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
        """Issue one warning: the first note that is not empty, and the number of further notes."""
        some = [note for note in told if note]
        if some:
            more = f" (and {len(some) - 1} more)" if len(some) > 1 else ""
            warnings.warn(f"{some[0]}{more}", stacklevel=_outside())

    def stop_replay(self, *, missing_ok: bool = False) -> None:
        """Stop a replay, also one that another process started. Every link keeps its present shape."""
        if not missing_ok or self.status((), strangers=False)["replaying"]:
            self._client.call(requests.ReplayStop())
            self._unread = True

    def restart_replay(self) -> None:
        """Start the loaded replay again."""
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
        """Fill links, each for ``seconds``, and measure what they deliver. The default is every link with a rate.

        ``flows``: also measure one TCP flow. ``every_kind``: also check that frames of every kind pass and are shaped,
        and that no frame passes a cut. Every link is then cut for a moment. Large sets are sent in parts. After each
        part, ``tell`` is called with the number of links done. Raises UsageError for a link that is not shaped.
        """
        chosen = [link for link, shape in self._shapes.items() if shape.rated]
        if links is not None:
            chosen = [*map(as_link, links)]
        for link in chosen:
            if link not in self._shapes:
                raise UsageError(f"link {link.text} is not shaped; there is nothing to prove")
        if not chosen:
            return []
        if len(chosen) > PROVEN_AT_ONCE:  # in this order a request has whole rounds
            from thalweg.emulation.proofs.rate import tournament  # imports modules that only Linux has

            pairs = (pair for round_pairs in tournament(self._names) for pair in round_pairs)
            place = {frozenset(pair): number for number, pair in enumerate(pairs)}
            chosen.sort(key=lambda link: (link.via, place[frozenset(link[:2])]))
        proofs: list[LinkProof] = []
        for begin in range(0, len(chosen), PROVEN_AT_ONCE):
            some = chosen[begin : begin + PROVEN_AT_ONCE]
            timeout_s = PROVE_S + PROVE_LINK_S * len(some)
            answer = self._client.call(requests.Prove([*some], seconds, flows, every_kind), timeout_s=timeout_s)
            proofs += msgspec.convert(answer["proofs"], list[LinkProof])
            if tell is not None:
                tell(len(proofs))
        return proofs

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Stop a running replay for the time of the body, and restart it afterwards.

        Raises TestbedError for a host that has ended.
        """
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
        """Sample the links' counters every ``interval_s`` (wall seconds), with or without a replay."""
        self._client.call(requests.SampleStart(interval_s))

    def stop_sampling(self) -> None:
        """Take a last sample and end the sampling. Idempotent."""
        with suppress(TestbedError):  # a testbed that has ended samples nothing
            self._client.call(requests.SampleStop())

    def samples(self) -> list[LinkSample]:
        """Return the samples since the last call. Intervals in which a link was idle are left out."""
        rows = b64decode(self._client.call(requests.Samples())["rows"])
        names, networks = ("", *self._names), (NET, *self._networks)
        return [
            LinkSample(at_s, names[int(a)], names[int(b)], asked, delivered, waits > 0, networks[int(via)], seconds)
            for at_s, a, b, asked, delivered, waits, via, seconds in struct.iter_unpack("=8d", rows)
        ]

    def recording(self) -> Recording:
        """Return the testbed's records since its start."""
        from thalweg.emulation.recording.recording import fetch  # imports NumPy, which few callers need

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
    """Return a warning if a rate above 0 is below the minimum of links. Otherwise it is empty."""
    if not 0 < rate_bps < floored(rate_bps):
        return ""
    return f"{what} is set to {format_rate(floored(rate_bps))}, the least there is, instead of {format_rate(rate_bps)}"
