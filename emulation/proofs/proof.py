"""What links delivered against what was asked of them: measured on purpose, or sampled while a flow used them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from thalweg.middleware.network.view import NET, Link

RATE_ERROR = 0.05  # what a link may be off by …
RATE_FROM_BPS = 0.5e6  # … from this rate on
DATAGRAMS_BPS = 5e8  # more than this is told by a flow alone, where there is one
DELAY_EARLY_S = 1e-4  # clocks are read before the packet leaves and after it comes; less than the delay is an error
DELAY_LATE_S, DELAY_LATE_SHARE = 0.002, 0.1  # whichever is more
QUEUE_ERROR, QUEUE_LATE_S = 0.05, 0.001  # of a queue's length; clocks are read before the packet leaves
STALLED, MOST_STALLED = 0.02, 0.35  # shares of stalls from which on people are told, and that make a link wrong


class KindProof(NamedTuple):
    """Of frames of a kind, how many were ``sent`` over a link, how many must come, and how many came; and how many were
    sent while the link was cut, and came all the same.
    """

    kind: str
    sent: int
    wanted: int
    came: int
    cut_sent: int
    through_cut: int


class LinkProof(msgspec.Struct, frozen=True):
    """What a link delivered against what was asked, at the testbed's layer.

    ``asked_bps`` is what can be expected: the link's rate, that of an interface at its ends if lower, 0 for one that is
    cut. ``error`` is delivered / asked - 1; ``seconds`` and ``size_bytes`` are what was measured. ``method``: ``udp``,
    as the link was filled on purpose. ``stalled``: the share of the time in which the machine let nothing pass though
    packets waited, for longer than the link's burst makes up; it is not in ``seconds``, and a flow loses it. When the
    machine kept the sender from sending, for so long that the link ran dry, that is in neither.

    Links with delay, loss and the like (netem) are also measured for those, the others keep None and 0: the delay one
    way with its 99 % confidence interval; the jitter, None where none was asked; how many of ``sent`` packets were
    lost, and the least and the most that a link with the loss asked loses in 99 % of cases; the mean length asked of
    bursts of losses (0 where it was not measured), the number of bursts, and its interval; copies that came. Delay and
    jitter are estimates of the parameters asked, whatever the distribution. ``tcp_bps``: what one TCP flow got, of the
    same bits as ``delivered_bps``; None where none was asked for, or where TCP would have reasons of its own.
    ``delivered_queue_s``: what a datagram waited in the link's queue when that was full, None where it was not
    measured, as of a discipline that keeps its queue short by itself; ``queue_step_s``: a datagram's part of it.
    ``kinds``: what came of frames of every kind, ``unshaped``: how many of them came without the link's class having
    let them through; empty and 0 where they were not sent. ``longer``: frames that were longer than the link's MTU,
    and came. ``via``: the link's network, left out where all share it.
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
        """The link that was measured."""
        return Link(self.src, self.dst, NET if self.via is msgspec.UNSET else self.via)

    @property
    def rate_error(self) -> float:
        """What the rate may be off by, stalls apart: 5 %; below 0.5 Mbit/s, where few packets pass in a proof's time,
        10 %.
        """
        return RATE_ERROR if self.asked_bps >= RATE_FROM_BPS else 2 * RATE_ERROR

    @property
    def rate_ok(self) -> bool:
        """Within ``rate_error``, or of too many datagrams to tell."""
        return self.by_flow or abs(self.error) <= self.rate_error

    @property
    def by_flow(self) -> bool:
        """Whether only the flow counts: nobody can send and receive as many datagrams as fill so fast a link."""
        return self.tcp_bps is not None and self.asked_bps > DATAGRAMS_BPS

    @property
    def tcp_error(self) -> float | None:
        """What one flow got / asked - 1; None where none was measured."""
        return self.tcp_bps / self.asked_bps - 1 if self.tcp_bps is not None and self.asked_bps else None

    @property
    def tcp_ok(self) -> bool:
        """Within ``rate_error``, and a machine's stalls; or not measured."""
        error = self.tcp_error
        stalled = 0.0 if self.by_flow else self.stalled
        return error is None or -self.rate_error - stalled <= error <= self.rate_error

    @property
    def delay_ok(self) -> bool:
        """Not less than asked, nor over 2 ms and over 10 % more, as far as can be told; or not measured."""
        if self.delay_low_s is None or self.delay_high_s is None:
            return True
        asked_s = self.asked_delay_s
        latest_s = asked_s + max(DELAY_LATE_S, DELAY_LATE_SHARE * asked_s)
        return self.delay_high_s >= asked_s - DELAY_EARLY_S and self.delay_low_s <= latest_s

    @property
    def queue_ok(self) -> bool:
        """Within 5 % and a datagram and a half of what was asked; or not measured."""
        if self.delivered_queue_s is None or not self.asked_queue_s:
            return True
        off_s = abs(self.delivered_queue_s - self.asked_queue_s)
        return off_s <= QUEUE_ERROR * self.asked_queue_s + 1.5 * self.queue_step_s + QUEUE_LATE_S

    @property
    def kinds_ok(self) -> bool:
        """Frames of every kind come, shaped, and none through a cut; or none were sent."""
        return not (self.unshaped or self.longer) and all(
            one.came >= one.wanted and not one.through_cut for one in self.kinds
        )

    @property
    def loss_ok(self) -> bool:
        """Within what 99 % of links with the loss asked lose; or not measured."""
        return self.lost_low <= self.lost <= self.lost_high

    @property
    def bursts_ok(self) -> bool:
        """As many bursts of losses as bursts of the length asked would be, in 99 % of cases; or not measured."""
        return self.bursts_low <= self.bursts <= self.bursts_high


def failures(proofs: Iterable[LinkProof]) -> list[str]:
    """One line for every link that is not as asked: what is off, and by how much."""
    lines = []
    for one in proofs:
        wrong = []
        if not one.rate_ok:
            asked, found = one.asked_bps / 1e6, one.delivered_bps / 1e6
            what = f"instead of {asked:.3g} Mbit/s ({one.error:+.1%})" if asked else "Mbit/s though it is cut"
            wrong.append(f"delivers {found:.3g} {what}")
        if not one.tcp_ok and one.tcp_bps is not None:
            asked, found = one.asked_bps / 1e6, one.tcp_bps / 1e6
            wrong.append(f"gives one TCP flow {found:.3g} instead of {asked:.3g} Mbit/s ({one.tcp_error:+.1%})")
        if not one.delay_ok and one.delivered_delay_s is not None:
            wrong.append(f"delays by {one.delivered_delay_s * 1e3:.3g} instead of {one.asked_delay_s * 1e3:.3g} ms")
        if not one.loss_ok:
            most = f"{one.lost_low} to {one.lost_high} of which the {one.asked_loss:.3g} asked would explain"
            wrong.append(f"loses {one.lost} of {one.sent} packets, {most}")
        if not one.bursts_ok:
            bursts = f"{one.bursts_low} to {one.bursts_high} of which the mean length of {one.asked_burst:.3g} asked"
            wrong.append(f"loses {one.lost} packets in {one.bursts} bursts, {bursts} would explain")
        if not one.queue_ok and one.delivered_queue_s is not None:
            wrong.append(f"queues for {one.delivered_queue_s * 1e3:.3g} instead of {one.asked_queue_s * 1e3:.3g} ms")
        wrong += _wrong_kinds(one)
        if one.stalled > MOST_STALLED and not one.by_flow:
            wrong.append(f"is kept waiting by this machine for {one.stalled:.0%} of the time; make it less busy")
        if wrong:
            lines.append(f"link {one.link.text} {'; '.join(wrong)}")
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
    """What a link carried in the interval of so many ``seconds`` that ended at ``at_s`` (``time.monotonic()``).

    ``asked_bps`` is the mean of what it was set to. ``backlogged``: packets waited at both ends of the interval.
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
