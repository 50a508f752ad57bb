"""Links of a run: shaping, proof and replay on a testbed, and their records."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec

from thalweg.emulation.links.shape import BURST_FLOOR_BYTES, PACKET_BYTES
from thalweg.emulation.proofs.windows import worst_sampled
from thalweg.emulation.scenarios.events import Deed
from thalweg.emulation.testbeds.replay import ReplayHandle
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.emulation.traces.trace import BandwidthTrace, Rates
from thalweg.experiments.command import Tell
from thalweg.experiments.networks.collapse import Collapse
from thalweg.experiments.networks.described import Network
from thalweg.experiments.networks.truth import Replayed, Truth
from thalweg.experiments.records.bills import Bill
from thalweg.middleware.network.tariffs import Tariff
from thalweg.middleware.network.view import Link

SAMPLE_S = 0.1  # between two readings of the links' counters
GRANULARITY_BYTES = PACKET_BYTES + BURST_FLOOR_BYTES  # tolerated excess of a window: a whole packet and a burst
View = list[tuple[tuple[str, ...], float]]
"""Every link and its bit/s at a placement's start."""


class Unshaped:
    """Links that no testbed shapes. Nothing is known or recorded of such links."""

    def __init__(self, time_scale: float) -> None:
        self.time_scale = time_scale
        self.truth = Truth(time_scale)
        self.rows: list[dict[str, Any]] = []  # records of the links
        self.tariffs: dict[str, Tariff] = {}  # of described networks
        self.agreed_bps: dict[Link, float] = {}  # of rented links
        self.collapse: Collapse | None = None

    def set_up(self, prove: bool, tell: Tell) -> list[str]:
        """Set the links to their initial state, and ``prove`` them. Return notes for people."""
        return ["links are not shaped"]

    def load(self, stack: ExitStack) -> None:
        """Prepare the replay of the links until ``stack`` unwinds."""

    def view(self) -> View:
        """Return the rates at a placement's start."""
        return []

    @contextmanager
    def replaying(self) -> Iterator[float]:
        """Replay traces within a ``with`` block, and yield the start (Unix time).

        The rates stay known for comparisons.
        """
        yield time.time()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Keep the links as at the start of their traces within a ``with`` block, so that measurements see no
        changes.
        """
        yield

    def record(self, label: str, began_s: float) -> list[str]:
        """Record the asked and delivered rates of links during a placement. Return notes for people."""
        return []

    def record_deed(self, label: str, deed: Deed, began_s: float, wall_s: float) -> None:
        """Record an event that befell a host's process during a placement."""
        about = {"t": (wall_s - began_s) * self.time_scale, "placement": label, "detail": {"outcome": deed.kind}}
        self._row("befallen", deed.host, wall_s, **about)

    def _row(self, kind: str, host: str, wall_s: float, **fields: Any) -> None:
        self.rows.append({"t": 0.0, "wall": wall_s, "host": host, "kind": kind, **fields})


class Emulated(Unshaped):
    """Links that a testbed shapes."""

    def __init__(self, network: Network, bed: Testbed) -> None:
        super().__init__(network.timeline.time_scale)
        self.network, self.bed = network, bed
        self.tariffs, self.agreed_bps = dict(network.timeline.networks), network.timeline.agreed_bps
        self._lasted_s = 0.0  # emulated, of the last replay
        self._rates: Mapping[Link, Rates] = {}  # rates of the links, known once they are set
        self.replay: ReplayHandle  # from ``load`` on

    def set_up(self, prove: bool, tell: Tell) -> list[str]:
        timeline = self.network.timeline
        timeline.shape_testbed(self.bed)
        if prove:
            tell("proving the links", 0, 0)
            self._prove()
        rates_only = [] if self.bed.delay_emulated else ["links have rates only: no delay is emulated"]
        return [*self.network.notes, *rates_only]

    def _prove(self) -> None:
        now_s = time.time()
        for proof in self.bed.prove():
            columns = ("src", "dst", "delivered_bps", "size_bytes", "seconds")  # columns of the record itself
            detail = {key: value for key, value in msgspec.to_builtins(proof).items() if key not in columns}
            about = {"size_bytes": proof.size_bytes, "duration_s": proof.seconds, "detail": detail}
            self._row("proof", proof.src, now_s, peer=proof.dst, value=proof.delivered_bps, **about)

    def load(self, stack: ExitStack) -> None:
        timeline = self.network.timeline
        self.replay = self.bed.replay(self.network.traces, timeline.time_scale)
        stack.callback(self.replay.stop)
        if timeline.changes:
            self.replay.change(timeline.changes)
        self._rates = timeline.rates(emulated=self.replay.emulated())

    def befall(self, collapse: Collapse) -> None:
        """Make the links collapse in every later placement."""
        self.collapse = collapse
        changes = collapse.changes(self.network.timeline.links)
        self.replay.change(changes)
        self._rates = self.network.befallen(changes).timeline.rates(emulated=self.replay.emulated())

    def view(self) -> View:
        return [(link, rates.rate_at(0.0)) for link, rates in self._rates.items()]

    @contextmanager
    def replaying(self) -> Iterator[float]:
        began_s = self.replay.start() + time.time() - time.monotonic()
        self.bed.start_sampling(SAMPLE_S)
        try:
            yield began_s
        finally:
            self._lasted_s = (time.time() - began_s) * self.time_scale
            self.replay.stop()
            self.bed.stop_sampling()
            self.truth.add(Replayed(began_s, time.time(), self._rates))

    @contextmanager
    def resting(self) -> Iterator[None]:
        began_s, still = time.time(), {}
        for link, trace in self.replay.emulated().items():
            still[link] = BandwidthTrace.constant(trace.name, trace.rate_at(0.0))
        try:
            yield
        finally:
            self.truth.add(Replayed(began_s, time.time(), still))

    def record(self, label: str, began_s: float) -> list[str]:
        offset_s = time.time() - time.monotonic()
        samples = self.bed.samples()
        for sample in samples:
            wall_s = sample.at_s + offset_s
            detail = {"asked_bps": sample.asked_bps, "backlogged": sample.backlogged}
            about = {"t": (wall_s - began_s) * self.time_scale, "placement": label, "detail": detail}
            self._row("link", sample.src, wall_s, peer=sample.link.goal, value=sample.delivered_bps, **about)
        if self.tariffs:
            carried: dict[Link, float] = {}
            for sample in samples:
                carried[sample.link] = carried.get(sample.link, 0.0) + sample.size_bytes
            timeline = self.network.timeline
            bill = Bill.of(timeline.networks, timeline.rented, carried, self._lasted_s)
            about = {"t": self._lasted_s, "placement": label, "detail": {"bill": msgspec.to_builtins(bill)}}
            self._row("bill", "testbed", time.time(), value=bill.total, **about)
        statistics = msgspec.to_builtins(self.replay.statistics())
        worst = worst_sampled(samples, SAMPLE_S, GRANULARITY_BYTES)
        if worst:
            link = max(worst, key=lambda link: worst[link].ratio)
            statistics |= {"worst_window": worst[link].ratio, "worst_window_link": ">".join(link)}
        self._row("replay", "testbed", began_s, placement=label, detail=statistics)
        if (collapse := self.collapse) is None:
            return []
        wall_s = began_s + collapse.at_s / self.time_scale
        if wall_s > time.time():
            return [collapse.missed(label)]
        self._row("scenario", collapse.host, wall_s, t=collapse.at_s, placement=label, **collapse.record())
        return []
