"""What testbeds with shaped links have in common, launcher's side: shapes, replays, proofs and samples of links.

The supervisor does the work; here requests are checked and answers become values.
"""

from __future__ import annotations

import socket
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from thalweg.emulation.links.shape import MAX_RATE_BPS, LinkShape, outside
from thalweg.emulation.proofs.proof import LinkProof, LinkSample
from thalweg.emulation.supervisor import requests
from thalweg.emulation.supervisor.client import StartedSupervisor
from thalweg.emulation.supervisor.sampler import Sampler
from thalweg.emulation.testbeds.replay import LinkSchedule, Replayable, ReplayHandle, schedule
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Link

PROVE_S = 600.0  # at most


class ShapedTestbed(Testbed):
    """A testbed whose supervisor has a world of links; subclasses say what hosts are."""

    subnet: str

    def __init__(self, hosts: Sequence[str], run_id: str | None = None, layer: int = 3) -> None:
        """``layer``: what a rate counts, 3 for IP bytes, 2 for Ethernet frames without preamble and checksum."""
        super().__init__(hosts, run_id)
        if layer not in (2, 3):
            raise UsageError(f"layer is {layer}; rates count layer 2 or 3")
        self.layer = layer
        self._addresses: dict[str, str] = {}
        self._shapes: dict[Link, LinkShape] = {}
        self._limits: dict[str, float] = {}
        self._replay: ReplayHandle | None = None
        self._replay_delays = False  # what the supervisor has said of a replay that others have loaded

    @property
    def hosts(self) -> Mapping[str, str]:
        return MappingProxyType(self._addresses)

    @abstractmethod
    def start(self, listener: socket.socket | None = None) -> StartedSupervisor:
        """A supervisor with the hosts made; one given a ``listener`` can be detached and found again."""

    def _start(self) -> StartedSupervisor:
        return self.start()

    @property
    def delay_emulated(self) -> bool:
        """Whether links have delays, or are to have them by a replay's changes."""
        to_come = self._replay_delays or (self._replay is not None and self._replay.delays)
        return to_come or any(shape.delay_s > 0 for shape in self._shapes.values())

    def shape(self, links: Mapping[Link, LinkShape]) -> None:
        client = self._client
        for link, shape in links.items():
            self._check(link, shape)
        client.call(requests.ShapeLinks([(*link, shape) for link, shape in links.items()]))
        self._shapes.update(links)

    @property
    def shapes(self) -> Mapping[Link, LinkShape]:
        """What every shaped link is asked to be."""
        return MappingProxyType(self._shapes)

    def status(self) -> dict[str, Any]:
        """What the supervisor says of the testbed; ``shapes`` is up to date after it.

        ``processes`` that it runs, whether it is ``replaying``, and if so how late changes came (``replay``); ``cpu_s``
        is the processor time that the supervisor has taken.
        """
        answer = self._client.call(requests.Status())
        self._shapes = {Link(source, target): LinkShape(*shape) for source, target, shape in answer.pop("shapes")}
        self._limits = answer["limits"]
        self._replay_delays = answer.pop("replay_delays", False)
        return answer

    def limit_interfaces(self, limits_bps: Mapping[str, float | None]) -> None:
        """Limit all that a host sends together, and all that it receives together, to a rate; None lifts it.

        In place: nothing is lost by it. Links keep their own rates; those that compete for what a host sends get equal
        parts of it, what it receives waits in one queue. Raises UsageError for an unknown host or a rate out of range,
        and CapabilityError where the testbed cannot do it.
        """
        for host, rate_bps in limits_bps.items():
            self._known(host)
            if rate_bps is not None and not 0 <= rate_bps <= MAX_RATE_BPS:
                raise UsageError(f"interface of {host}: {outside(rate_bps)}; lower it, or the time scale")
        self._client.call(requests.LimitInterfaces(dict(limits_bps)))
        known = {**self._limits, **limits_bps}
        self._limits = {host: rate_bps for host, rate_bps in known.items() if rate_bps is not None}

    def _check(self, link: Link, shape: LinkShape) -> None:
        source, target = (self._known(host) for host in link)
        where = f"link {source} → {target}"
        if source == target:
            raise UsageError(f"{where}: a host has no link to itself")
        if wrong := shape.objection():
            raise UsageError(f"{where}: {wrong}")

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
        self._replay = ReplayHandle(self._client, schedules, time_scale, sample_interval_s)
        self._replay_delays = False
        return self._replay

    def stop_replay(self) -> None:
        """Leave every link as a replay has it now, also one that another process began."""
        self._client.call(requests.ReplayStop())
        self.status()

    def restart_replay(self) -> None:
        """Let the replay that was stopped begin anew."""
        self._client.call(requests.ReplayStart())

    def prove(self, links: Iterable[Link] | None = None, seconds: float | None = None) -> list[LinkProof]:
        chosen = list(self._shapes) if links is None else list(links)
        for source, target in chosen:
            if (source, target) not in self._shapes:
                raise UsageError(f"link {source} → {target} is not shaped; there is nothing to prove")
        if not chosen:
            return []
        answer = self._client.call(requests.Prove([*chosen], seconds), timeout_s=PROVE_S)
        return msgspec.convert(answer["proofs"], list[LinkProof])

    def start_sampling(self, interval_s: float = 1.0) -> None:
        self._client.call(requests.SampleStart(interval_s))

    def stop_sampling(self) -> None:
        """Take a last sample, and no more."""
        self._client.call(requests.SampleStop())

    def samples(self) -> list[LinkSample]:
        rows = array("d", self._client.call_for_bytes(requests.Samples()))
        names = ("", *self._names)
        width = Sampler.COLUMNS
        return [
            LinkSample(
                rows[i], names[int(rows[i + 1])], names[int(rows[i + 2])], rows[i + 3], rows[i + 4], rows[i + 5] > 0
            )
            for i in range(0, len(rows), width)
        ]
