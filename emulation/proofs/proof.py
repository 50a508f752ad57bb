"""Figures that links delivered against the figures asked, measured on purpose, or sampled while a flow used them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from thalweg.middleware.network.view import NET, Link

RATE_ERROR = 0.05  # largest error of a link's rate …
RATE_FROM_BPS = 0.5e6  # … from this rate on
DATAGRAMS_BPS = 5e8  # above this rate, only a flow counts, if there is one
DELAY_EARLY_S = 1e-4  # clocks are read before a packet leaves and after it comes, so a shorter delay is an error
DELAY_LATE_S, DELAY_LATE_SHARE = 0.002, 0.1  # the greater counts
QUEUE_ERROR, QUEUE_LATE_S = 0.05, 0.001  # of a queue's length. Clocks are read before the packet leaves
STALLED, MOST_STALLED = 0.02, 0.35  # shares of stalls that are reported, and that make a link wrong


class KindProof(NamedTuple):
    """Counts of frames of a kind on a link: ``sent``, ``wanted`` (how many must come), and ``came``.

    Of ``cut_sent`` frames that were sent while the link was cut, ``through_cut`` came all the same.
    """

    kind: str
    sent: int
    wanted: int
    came: int
    cut_sent: int
    through_cut: int


class LinkProof(msgspec.Struct, frozen=True):
    """Figures that a link delivered against the figures asked, at the testbed's layer.

    ``asked_bps`` is the rate to expect: the link's rate, or a lower rate of an interface at its ends, or 0 for a link
    that is cut. ``error`` is delivered / asked - 1. ``seconds`` and ``size_bytes`` are the measured time and bytes.
    ``method``: ``udp``, as the link was filled on purpose. ``stalled``: share of the time in which the machine let
    nothing pass though packets waited, beyond the time that the link's burst makes up. This time is not in ``seconds``,
    and a flow loses it. If the machine kept the sender from sending until the link ran dry, the time is in neither.

    Links with delay, loss and the like (netem) are also measured for the following figures. For the remaining links,
    these fields stay None and 0.

    - delay: one way, with its 99 % confidence interval.
    - jitter: None if no jitter was asked.
    - losses: ``lost`` of ``sent`` packets, and the least and most that a link with the loss asked loses in 99 % of
      cases.
    - bursts of losses: the mean length asked (0 if not measured), the number of bursts, and its interval.
    - ``duplicates``: copies that came.

    Delay and jitter are estimates of the parameters asked, whatever the distribution. ``tcp_bps``: rate of one TCP
    flow, of the same bits as ``delivered_bps``. None: no flow was asked for, or TCP itself would be slow.
    ``delivered_queue_s``: wait of a datagram in the link's full queue. None: not measured, as for a discipline that
    keeps its queue short by itself. ``queue_step_s``: part of a datagram in this wait. ``kinds``: arrivals of frames of
    every kind, empty if no frames were sent. ``unshaped``: arrivals that the link's class had not let through.
    ``longer``: frames that came although longer than the link's MTU. ``via``: the link's network, left out for the
    network that all share.
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
    asked_burst: float = 0.0
    bursts: int = 0
    bursts_low: int = 0
    bursts_high: int = 0
    duplicates: int = 0
    stalled: float = 0.0
    tcp_bps: float | None = None
    asked_queue_s: float = 0.0
    delivered_queue_s: float | None = None
    queue_step_s: float = 0.0
    kinds: tuple[KindProof, ...] = ()
    unshaped: int = 0
    longer: int = 0
    via: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def link(self) -> Link:
        """Return the link that was measured."""
        return Link(self.src, self.dst, NET if self.via is msgspec.UNSET else self.via)

    @property
    def rate_error(self) -> float:
        """Return the largest error of a right rate, stalls apart: 5 %, or 10 % below 0.5 Mbit/s.

        At a lower rate, few packets pass in a proof's time.
        """
        return RATE_ERROR if self.asked_bps >= RATE_FROM_BPS else 2 * RATE_ERROR

    @property
    def rate_ok(self) -> bool:
        """Return whether the rate is within ``rate_error``, or is too high to tell by datagrams."""
        return self.by_flow or abs(self.error) <= self.rate_error

    @property
    def by_flow(self) -> bool:
        """Return whether only the flow counts, since no process can handle the datagrams that fill so fast a link."""
        return self.tcp_bps is not None and self.asked_bps > DATAGRAMS_BPS

    @property
    def tcp_error(self) -> float | None:
        """Return the rate of one flow / the rate asked - 1, or None if no flow was measured."""
        return self.tcp_bps / self.asked_bps - 1 if self.tcp_bps is not None and self.asked_bps else None

    @property
    def tcp_ok(self) -> bool:
        """Return whether the flow's rate is within ``rate_error`` and a machine's stalls, or was not measured."""
        error = self.tcp_error
        stalled = 0.0 if self.by_flow else self.stalled
        return error is None or -self.rate_error - stalled <= error <= self.rate_error

    @property
    def delay_ok(self) -> bool:
        """Return whether the delay is as asked, or was not measured.

        A wrong delay is shorter, or is longer by over 2 ms and over 10 %, beyond the confidence interval.
        """
        if self.delay_low_s is None or self.delay_high_s is None:
            return True
        asked_s = self.asked_delay_s
        latest_s = asked_s + max(DELAY_LATE_S, DELAY_LATE_SHARE * asked_s)
        return self.delay_high_s >= asked_s - DELAY_EARLY_S and self.delay_low_s <= latest_s

    @property
    def queue_ok(self) -> bool:
        """Return whether the queue is within 5 % and 1.5 datagrams of the length asked, or was not measured."""
        if self.delivered_queue_s is None or not self.asked_queue_s:
            return True
        off_s = abs(self.delivered_queue_s - self.asked_queue_s)
        return off_s <= QUEUE_ERROR * self.asked_queue_s + 1.5 * self.queue_step_s + QUEUE_LATE_S

    @property
    def kinds_ok(self) -> bool:
        """Return whether frames of every kind came, shaped, and none through a cut, or none were sent."""
        return not (self.unshaped or self.longer) and all(
            kind.came >= kind.wanted and not kind.through_cut for kind in self.kinds
        )

    @property
    def loss_ok(self) -> bool:
        """Return whether the losses are in the range of 99 % of links with the loss asked, or were not measured."""
        return self.lost_low <= self.lost <= self.lost_high

    @property
    def bursts_ok(self) -> bool:
        """Return whether the number of bursts is in the 99 % range for the length asked, or was not measured."""
        return self.bursts_low <= self.bursts <= self.bursts_high


def failures(proofs: Iterable[LinkProof]) -> list[str]:
    """Return one line for every link that is not as asked: the wrong figures, and the figures asked."""
    lines = []
    for proof in proofs:
        wrong = []
        if not proof.rate_ok:
            asked, delivered = proof.asked_bps / 1e6, proof.delivered_bps / 1e6
            contrast = f"instead of {asked:.3g} Mbit/s ({proof.error:+.1%})" if asked else "Mbit/s though it is cut"
            wrong.append(f"delivers {delivered:.3g} {contrast}")
        if not proof.tcp_ok and proof.tcp_bps is not None:
            asked, delivered = proof.asked_bps / 1e6, proof.tcp_bps / 1e6
            wrong.append(f"gives one TCP flow {delivered:.3g} instead of {asked:.3g} Mbit/s ({proof.tcp_error:+.1%})")
        if not proof.delay_ok and proof.delivered_delay_s is not None:
            wrong.append(f"delays by {proof.delivered_delay_s * 1e3:.3g} instead of {proof.asked_delay_s * 1e3:.3g} ms")
        if not proof.loss_ok:
            usual = f"a loss of {proof.asked_loss:.3g}, as asked, explains {proof.lost_low} to {proof.lost_high}"
            wrong.append(f"loses {proof.lost} of {proof.sent} packets, and {usual}")
        if not proof.bursts_ok:
            usual = f"a mean length of {proof.asked_burst:.3g}, as asked, explains"
            wrong.append(
                f"loses {proof.lost} packets in {proof.bursts} bursts, and {usual} {proof.bursts_low} to"
                f" {proof.bursts_high}"
            )
        if not proof.queue_ok and proof.delivered_queue_s is not None:
            wrong.append(
                f"queues for {proof.delivered_queue_s * 1e3:.3g} instead of {proof.asked_queue_s * 1e3:.3g} ms"
            )
        wrong += _wrong_kinds(proof)
        if proof.stalled > MOST_STALLED and not proof.by_flow:
            wrong.append(
                f"is kept waiting by this machine for {proof.stalled:.0%} of the time; make the machine less busy"
            )
        if wrong:
            lines.append(f"link {proof.link.text} {'; '.join(wrong)}")
    return lines


def _wrong_kinds(one: LinkProof) -> Iterator[str]:
    for kind in one.kinds:
        if kind.came < kind.wanted:
            yield f"loses {kind.kind}: {kind.came} of {kind.sent} frames come"
        if kind.through_cut:
            yield f"lets {kind.kind} through a cut: {kind.through_cut} of {kind.cut_sent} frames come"
    if one.longer:
        yield f"lets {one.longer} frames pass that are longer than its MTU"
    if one.unshaped:
        yield f"lets {one.unshaped} frames pass unshaped"


class LinkSample(msgspec.Struct, frozen=True):
    """Bits that a link carried in the interval of ``seconds`` that ended at ``at_s`` (``time.monotonic()``).

    ``asked_bps``: mean rate to which the link was set. ``backlogged``: packets waited at both ends of the interval.
    """

    at_s: float
    src: str
    dst: str
    asked_bps: float
    delivered_bps: float
    backlogged: bool
    via: str = NET
    seconds: float = 0.0

    @property
    def link(self) -> Link:
        return Link(self.src, self.dst, self.via)

    @property
    def size_bytes(self) -> float:
        return self.delivered_bps * self.seconds / 8
