"""The netns testbed, launcher's side: hosts are network namespaces, links are shaped by tc."""

from __future__ import annotations

import ipaddress
import itertools
import math
import socket
from array import array
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from thalweg.emulation import proof
from thalweg.emulation.netns_world import MAX_HOSTS
from thalweg.emulation.replay import LinkSchedule, Replayable, ReplayHandle, schedule
from thalweg.emulation.supervisor_client import StartedSupervisor, start_isolated
from thalweg.emulation.supervisor_replay import Sampler
from thalweg.emulation.testbed import LinkProof, LinkSample, LinkShape, SupervisedTestbed
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network_view import Link

SUBNET = "10.77.0.0/16"  # seen only inside the testbed's own namespaces
MAX_RATE_BPS = 2e9  # one link on one core, offloads off; a machine that carries less is found out by the proof
PROOF_S = 3.0  # aimed at for all links; at least PROOF_LEAST_S a round
PROOF_ROUND_S = (0.12, 0.35)


def host_addresses(names: Sequence[str], subnet: str) -> dict[str, str]:
    """An address of ``subnet`` for every name; UsageError when there are not enough."""
    try:
        network = ipaddress.IPv4Network(subnet)
    except ValueError as error:
        raise UsageError(f"bad subnet {subnet!r}: {error}") from None
    room = min(max(network.num_addresses - 2, 0), MAX_HOSTS)
    if len(names) > room:
        holder, remedy = f"subnet {subnet}", "ask for fewer, or a wider subnet"
        if room == MAX_HOSTS:
            holder, remedy = "testbed", "ask for fewer"
        raise UsageError(f"{len(names)} hosts asked, but the {holder} has {room} addresses; {remedy}")
    return dict(zip(names, map(str, itertools.islice(network.hosts(), len(names))), strict=True))


class NetnsTestbed(SupervisedTestbed):
    """Hosts are network namespaces on one machine, inside a user namespace when not root."""

    backend: ClassVar[str] = "netns"

    def __init__(
        self, hosts: Sequence[str], run_id: str | None = None, *, subnet: str = SUBNET, layer: int = 3
    ) -> None:
        """``layer``: what a rate counts, 3 for IP bytes, 2 for Ethernet frames without preamble and checksum."""
        super().__init__(hosts, run_id)
        if layer not in (2, 3):
            raise UsageError(f"layer is {layer}; rates count layer 2 or 3")
        self.subnet, self.layer = subnet, layer
        self._hosts = host_addresses(self._names, subnet)
        self._shapes: dict[Link, LinkShape] = {}

    @property
    def hosts(self) -> Mapping[str, str]:
        return MappingProxyType(self._hosts)

    @property
    def delay_emulated(self) -> bool:
        return any(shape.delay_s > 0 for shape in self._shapes.values())

    @property
    def mode(self) -> str:
        """How it is isolated, for the record: ``root`` or ``user`` (namespace)."""
        return self._supervisor.mode if self._supervisor is not None else "down"

    def _start(self) -> StartedSupervisor:
        return self.start()

    def start(self, listener: socket.socket | None = None) -> StartedSupervisor:
        """A supervisor with the hosts built; one given a ``listener`` can be detached and found again."""
        started = start_isolated(self.run_id, listener)
        prefix_length = ipaddress.IPv4Network(self.subnet).prefixlen
        try:
            started.client.call("build", hosts=self._hosts, prefix_length=prefix_length, layer=self.layer)
        except BaseException:
            started.close()
            raise
        return started

    def shape(self, links: Mapping[Link, LinkShape]) -> None:
        client = self._client
        for link, shape in links.items():
            self._check(link, shape)
        rows = [[*link, s.rate_bps, s.delay_s, s.jitter_s, s.loss] for link, s in links.items()]
        client.call("shape", links=rows)
        self._shapes.update(links)

    def recall(self, rates_bps: Iterable[tuple[str, str, float]]) -> None:
        """Learn what the links of an adopted testbed are set to."""
        self._shapes.update({(source, target): LinkShape(rate_bps) for source, target, rate_bps in rates_bps})

    def _check(self, link: Link, shape: LinkShape) -> None:
        source, target = (self._known(host) for host in link)
        where = f"link {source} → {target}"
        if source == target:
            raise UsageError(f"{where}: a host has no link to itself")
        if not 0 <= shape.rate_bps <= MAX_RATE_BPS:
            raise UsageError(
                f"{where}: {shape.rate_bps / 1e6:g} Mbit/s of wall time is outside what can be emulated (0 to"
                f" {MAX_RATE_BPS / 1e6:g}); lower the rates (--link-mean) or the time scale"
            )
        for what, value in (("delay_s", shape.delay_s), ("jitter_s", shape.jitter_s)):
            if not 0 <= value <= 60:
                raise UsageError(f"{where}: {what} is {value:g}; it must lie between 0 and 60 seconds")
        if not 0 <= shape.loss < 1 or math.isnan(shape.loss):
            raise UsageError(f"{where}: loss is {shape.loss:g}; it is a share, at least 0 and below 1")

    def replay(
        self, traces: Mapping[Link, Replayable], time_scale: float = 1.0, *, sample_interval_s: float | None = 1.0
    ) -> ReplayHandle:
        known: dict[int, LinkSchedule] = {}  # links may share a trace
        schedules: dict[Link, LinkSchedule] = {}
        for link, trace in traces.items():
            if id(trace) not in known:
                known[id(trace)] = schedule(trace, time_scale)
            schedules[link] = known[id(trace)]
            self._check(link, LinkShape(float(known[id(trace)].rates_bps.max())))
        missing = traces.keys() - self._shapes.keys()
        if missing:
            self.shape({link: LinkShape(float(schedules[link].rates_bps[0])) for link in traces if link in missing})
        return ReplayHandle(self._client, schedules, time_scale, sample_interval_s)

    def prove(self, links: Iterable[Link] | None = None, seconds: float | None = None) -> list[LinkProof]:
        chosen = list(self._shapes) if links is None else list(links)
        for source, target in chosen:
            if (source, target) not in self._shapes:
                raise UsageError(f"link {source} → {target} is not shaped; there is nothing to prove")
        if not chosen:
            return []
        if seconds is None:
            rounds = len(proof.link_rounds({link: self._shapes[link].rate_bps for link in chosen}))
            seconds = min(max(PROOF_S / rounds, PROOF_ROUND_S[0]), PROOF_ROUND_S[1])
        rows = self._client.call("prove", timeout_s=600, links=[list(link) for link in chosen], seconds=seconds)
        return [
            LinkProof(src, dst, asked, delivered, delivered / asked - 1, measured, size, "udp")
            for src, dst, asked, delivered, measured, size in rows["proofs"]
        ]

    def start_sampling(self, interval_s: float = 1.0) -> None:
        self._client.call("sample_start", interval_s=interval_s)

    def samples(self) -> list[LinkSample]:
        rows = array("d", self._client.call_for_bytes("samples"))
        names = ("", *self._names)
        width = Sampler.COLUMNS
        return [
            LinkSample(
                rows[i], names[int(rows[i + 1])], names[int(rows[i + 2])], rows[i + 3], rows[i + 4], rows[i + 5] > 0
            )
            for i in range(0, len(rows), width)
        ]
