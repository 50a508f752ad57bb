"""Transport of messages between hosts in virtual time: three models of the queues and rates of links. Pure.

``SingleInterface`` is the model of Ranganathan et al. (1998), section 2: a host sends or receives at most one message
at a time. A message waits until both its ends are idle. Among the messages that could go, control messages go first,
then probes (an eighth of an image), then partitions. Within a rank the oldest goes first. ``IndependentLinks`` are
links as tc shapes them. Every directed link has a queue of its own, which sends bulk one transfer at a time. Control
messages pass the queue, unless the network has no band for control messages (R10). ``SharedLinks`` is the bounded
multi-port model (Benoit et al. 2008, section 2.2). It adds hosts with a limited interface, whose rate is shared among
the messages that the host sends and receives at once.

A message takes the start-up cost and then its bytes at the link's rate, integrated exactly over the trace's steps.

A ``ShapedLink`` also has delays and losses, which a scenario defines for packets. With TCP, these have the following
effects on whole messages:

- R1: a message arrives a delay after its last byte has left. Meanwhile the link sends the next message.
- R2: a delay varies from message to message by its jitter. No message overtakes an earlier message of its connection.
  Bulk has one connection, control messages have a second.
- R3: lost or corrupted packets are sent again, and take the link's rate again, until every packet has come through.
  Every such round takes a round trip. If too few packets follow for a receiver to detect the loss, the time-out of TCP
  is added.
- R4: a duplicated packet takes the link's rate twice. A reordered packet, which is sent at once instead of after its
  delay, waits at the receiver for the packets before it.
- R5: a sender is notified of an arrival when the answer has come back.
- R6: a link that is cut carries nothing, and the messages on their way wait. A link that is cut for good never carries
  anything again.
- R7: a host with a limited interface sends at that rate one message's bytes after the other, and receives likewise. A
  host has an interface for each network. A host with an up rate sends at the lesser of this and the interface's rate. A
  host with a down rate receives at the lesser of this and the interface's rate.

Rule of ``SingleInterface``:

- R12: a control message waits until both its ends are idle at once, which may never happen between two busy hosts. So
  after ``MOST_OVERTAKEN`` later beginnings of other messages at its ends, an end that becomes idle is kept for it.

Rules of ``SharedLinks``:

- R8: messages that go at once have max-min fair rates: no rate can be raised without lowering a rate that is no higher.
  No link carries more than its own rate. No interface sends and receives together more than its rate. A host sends in
  total at most at its up rate, and receives in total at most at its down rate.
- R9: rates are shared anew as soon as a message begins or ends, or the rate of a link in use changes.

Rules of ``IndependentLinks`` and ``SharedLinks`` if ``control_band`` is False:

- R10: a control message whose bytes could go waits for the bulk on its link at that moment. The wait is the time that
  the remaining bytes of this bulk need (shared: at the rate of that moment), without start-up costs and round trips.
  The wait is at most the time in which the link alone carries a full queue.
- R11: control messages leave a link in the order of their arrival at the link.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Any

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.traces.trace import Rates
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.errors import TraceError
from thalweg.middleware.network.view import NET, Cable, Link, cable_of

CONTROL, PROBE, BULK = RANKS = range(3)
Schedule = Callable[[float, Callable[[Any], None], Any], None]  # (time, call, argument)


LinkRate = Rates  # rates of a link over time, such as a ``BandwidthTrace`` or a ``Window``


class Transfer:
    """The ``number``-th message, on its way over one link. ``item`` belongs to the sender. A start sets the times.

    ``link``: the link of the message over the network ``via``, equal to a ``Link``. ``follows``: the transfer is a
    later piece of a passage that has begun, and has no start-up cost. ``back_s``: time from the arrival until the
    sender is notified. ``waits_s``: the part of ``took_s`` in which the sender waits for round trips and sends no
    bytes.
    """

    __slots__ = (
        "back_s", "began_s", "ends_s", "follows", "item", "link", "number", "rank", "size_bytes", "source", "target",
        "took_s", "via", "waits_s",
    )  # fmt: skip

    def __init__(
        self, number: int, source: str, target: str, size_bytes: int, rank: int, item: Any, via: str = NET
    ) -> None:
        self.number, self.source, self.target, self.via = number, source, target, via
        self.link: tuple[str, ...] = (source, target) if via == NET else (source, target, via)
        self.size_bytes, self.rank, self.item = size_bytes, rank, item
        self.began_s = self.took_s = self.ends_s = self.back_s = self.waits_s = 0.0
        self.follows = False


SEGMENT_BYTES = 1448  # of a message in a packet: 1500 bytes without the headers of IPv4 and TCP with time stamps
FEW_PACKETS = 4  # three later packets reveal a lost packet, or else a time-out does; RFC 5681, section 3.2
TIME_OUT_S = 0.2  # minimum in Linux
MOST_OVERTAKEN = 40  # partitions and probes that begin at the ends of a waiting control message before it (R12)


class ShapedLink:
    """Link with the rate of ``rates``, and with the delays and losses of ``shapes``, each from its time on.

    ``key``: seed of the link's random draws, together with the number of a message. ``time_out_s``: time-out of TCP, in
    the link's time. ``time_scale``: time scale of the testbed that the link represents. The testbed sizes its usual
    queue in time of the clock. The link keeps the times of the last arrivals, so every world needs links of its own.
    """

    def __init__(
        self,
        rates: LinkRate,
        shapes: Sequence[tuple[float, LinkShape]],
        key: str,
        time_out_s: float = TIME_OUT_S,
        time_scale: float = 1.0,
    ) -> None:
        self.rates, self.key, self.time_out_s, self._time_scale = rates, key, time_out_s, time_scale
        self._from_s, self._shapes = [at_s for at_s, _ in shapes], [shape for _, shape in shapes]
        self._last_s = [0.0, 0.0]  # when the last message of each connection arrives

    def rate_at(self, t_s: float) -> float:
        return self.rates.rate_at(t_s)

    def bits_between(self, start_s: float, stop_s: float) -> float:
        return self.rates.bits_between(start_s, stop_s)

    def until_s(self, t_s: float) -> float:
        return self.rates.until_s(t_s)

    def transfer_time_s(self, size_bytes: float, start_s: float) -> float:
        """Return the seconds that a message's bytes take from ``start_s`` on, without losses.

        Infinity: the link is cut for good.
        """
        try:
            return self.rates.transfer_time_s(size_bytes, start_s)
        except TraceError:  # R6: the link is cut for good
            return math.inf

    def shape_at(self, t_s: float) -> LinkShape:
        """Return the delays and losses at a time. The rate of the shape is not to be used."""
        return self._shapes[max(0, bisect_right(self._from_s, t_s) - 1)]

    def queue_bytes_at(self, t_s: float) -> int:
        """Return the limit of the link's queue at the rate of a moment."""
        shape = self.shape_at(t_s)._replace(rate_bps=self.rate_at(t_s))
        return shape.dilated(self._time_scale).queue_bytes

    def again(self, transfer: Transfer, start_s: float, back_s: float) -> tuple[int, float]:
        """Return the bytes of a message that take the link's rate again, and the time of the rounds that detect losses.

        ``back_s``: the delay of the link in the opposite direction.
        """
        shape = self.shape_at(start_s)
        spoilt = 1 - (1 - shape.loss) * (1 - shape.corrupt)
        if not (spoilt or shape.duplicate):
            return 0, 0.0
        dice = Random(f"{self.key} {transfer.number}")
        packets = max(1, math.ceil(transfer.size_bytes / SEGMENT_BYTES))
        # R4: a duplicate takes the link's rate as well
        extra, waits_s, time_out_s = round(packets * shape.duplicate), 0.0, self.time_out_s
        while lost := _lost(packets, shape, spoilt, dice):
            extra += lost  # R3: lost packets take the link's rate again
            waits_s += shape.delay_s + back_s
            if packets - lost < FEW_PACKETS:
                waits_s, time_out_s = waits_s + time_out_s, 2 * time_out_s  # RFC 6298, section 5.5
            packets = lost
        return extra * min(SEGMENT_BYTES, transfer.size_bytes), waits_s

    def arrives_s(self, transfer: Transfer, sent_s: float) -> float:
        """Return the arrival time of a message whose last byte left at ``sent_s``."""
        shape, connection = self.shape_at(sent_s), int(transfer.rank != CONTROL)
        delay_s = shape.delay_s
        if shape.jitter_s:
            delay_s += shape.jitter_s * _spread(shape.distribution, Random(f"{self.key} jitter {transfer.number}"))
        # R1, R2: after the delay, and not before the message in front
        arrives_s = max(sent_s + max(0.0, delay_s), self._last_s[connection])
        self._last_s[connection] = arrives_s
        return arrives_s


def _lost(packets: int, shape: LinkShape, spoilt: float, dice: Random) -> int:
    """Return the number of packets, of ``packets`` in a row, that are lost or corrupted."""
    if not shape.loss_burst:
        return plain_sum(dice.random() < spoilt for _ in range(packets))
    (begins, ends), count = shape.gilbert, 0
    bad = dice.random() < shape.loss
    for _ in range(packets):
        count += bad or dice.random() < shape.corrupt
        bad = dice.random() >= ends if bad else dice.random() < begins
    return count


def _spread(distribution: str, dice: Random) -> float:
    """Return the deviation of a delay from its mean, in units of the jitter, drawn as netem does."""
    if distribution == "uniform":
        return dice.uniform(-1.0, 1.0)
    normal, pareto = dice.gauss(0.0, 1.0), (dice.paretovariate(3.0) - 1.5) / math.sqrt(0.75)  # means 0, deviations 1
    return {"normal": normal, "pareto": pareto, "paretonormal": (normal + 3 * pareto) / 4}[distribution]


class LinkModel(ABC):
    """Base of the models of the links between hosts.

    ``arrived`` is called with a transfer when the transfer arrives. ``config`` has the start-up cost, the limits of
    hosts, and ``control_band``. Raises KeyError for a pair of hosts without a link over the requested network.
    """

    def __init__(
        self,
        links: Mapping[Link, LinkRate],
        config: WorldConfig,
        schedule: Schedule,
        arrived: Callable[[Transfer], None],
    ) -> None:
        self.links: dict[tuple[str, ...], LinkRate] = dict(links.items())
        self.config, self.startup_s, self.schedule, self.arrived = config, config.startup_s, schedule, arrived
        self._shaped = {link: shaped for link, shaped in self.links.items() if isinstance(shaped, ShapedLink)}
        # by cable, for sending and for receiving: the rate, and the time from which the cable is free
        self._limits_bps: dict[tuple[Cable, bool], float] = _limits_bps(config) if self._shaped else {}
        self._free_s: dict[tuple[Cable, bool], float] = {}

    @abstractmethod
    def send(self, transfer: Transfer, now: float) -> None:
        """Accept a message, which goes as soon as earlier messages permit."""

    def _start(self, transfer: Transfer, now: float) -> None:
        """Start the bytes of a message. ``_through`` is called when the last byte has left."""
        bytes_from_s = now if transfer.follows else now + self.startup_s
        self._leaves(transfer, now, self._left_s(transfer, bytes_from_s))

    def _leaves(self, transfer: Transfer, began_s: float, end_s: float) -> None:
        """Set a message's times, and schedule ``_through`` for the time at which its last byte leaves."""
        transfer.began_s = began_s
        transfer.ends_s = end_s
        transfer.took_s = end_s - began_s
        if end_s < math.inf:  # R6: else the link is cut for good, and the last byte never leaves
            self.schedule(end_s, self._through, transfer)

    def _left_s(self, transfer: Transfer, start_s: float) -> float:
        """Return the time at which the last byte of a message has left, if the bytes go from ``start_s`` on.

        Infinity: never.
        """
        end_s = start_s + self.links[transfer.link].transfer_time_s(transfer.size_bytes, start_s)
        return self._shaped_end_s(transfer, start_s, end_s) if self._shaped else end_s

    def _shaped_end_s(self, transfer: Transfer, start_s: float, end_s: float) -> float:
        """Return the time at which the last byte of a message has left for good.

        ``end_s``: this time without losses and without limited interfaces.
        """
        link = self._shaped[transfer.link]
        extra_bytes, waits_s = self._again(transfer, start_s)
        if end_s < math.inf and (extra_bytes or waits_s):
            end_s += waits_s
            end_s += link.transfer_time_s(extra_bytes, end_s)
        for end, rate_bps in self._limits_of(transfer):  # R7: one message after the other at a host's limit
            free_s = max(start_s, self._free_s.get(end, 0.0)) + 8 * transfer.size_bytes / rate_bps
            self._free_s[end] = free_s
            waits_s = min(waits_s, max(0.0, end_s - free_s))
            end_s = max(end_s, free_s)
        transfer.waits_s = waits_s
        return end_s

    def _limits_of(self, transfer: Transfer) -> Iterator[tuple[tuple[Cable, bool], float]]:
        """Yield the limited ends of a message's link, the sender's and the receiver's, each with its rate."""
        for host, receives in ((transfer.source, False), (transfer.target, True)):
            end = cable_of(host, transfer.via), receives
            if rate_bps := self._limits_bps.get(end):
                yield end, rate_bps

    def _again(self, transfer: Transfer, start_s: float) -> tuple[int, float]:
        """Set a transfer's ``back_s``, and return the result of ``ShapedLink.again``: 0 without shaped links."""
        if not self._shaped:
            return 0, 0.0
        back = self._shaped[Link(transfer.target, transfer.source, transfer.via)]
        transfer.back_s = back.shape_at(start_s).delay_s  # R5: the answer takes the delay of the way back
        return self._shaped[transfer.link].again(transfer, start_s, transfer.back_s)

    @abstractmethod
    def _through(self, transfer: Transfer) -> None:
        """Handle the departure of a message's last byte: start the messages that waited for it."""

    def _there(self, transfer: Transfer) -> None:
        """Have a message arrive whose bytes have left: now, or after the link's delay."""
        if self._shaped:
            at_s = self._shaped[transfer.link].arrives_s(transfer, transfer.ends_s)
            self.schedule(at_s, self.arrived, transfer)
        else:
            self.arrived(transfer)


def _limits_bps(config: WorldConfig) -> dict[tuple[Cable, bool], float]:
    """Return the limit of each cable for sending (False) and receiving (True): the lesser of its two rates."""
    least_bps: dict[tuple[Cable, bool], float] = {}
    for receives, own_bps in ((False, config.up_bps), (True, config.down_bps)):
        for limits in (config.interfaces_bps, own_bps):
            for cable, rate_bps in limits.items():
                least_bps[cable, receives] = min(rate_bps, least_bps.get((cable, receives), math.inf))
    return least_bps


class IndependentLinks(LinkModel):
    """Links without influence on the rates of other links, with one queue of bulk for each link."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._queues: dict[tuple[str, ...], deque[Transfer]] = {
            link: deque() for link in self.links
        }  # the first is under way
        self._control_s: dict[tuple[str, ...], float] = {}  # by link: time at which its last control message leaves

    def send(self, transfer: Transfer, now: float) -> None:
        queue = self._queues[transfer.link]
        if transfer.rank == CONTROL:
            if self.config.control_band:
                self._start(transfer, now)
            elif self.startup_s:  # R10: the message joins the queue when its bytes could go
                self.schedule(now + self.startup_s, self._join, (transfer, now))
            else:
                self._join((transfer, now))
            return
        queue.append(transfer)
        if len(queue) == 1:
            self._start(transfer, now)

    def _join(self, sent: tuple[Transfer, float]) -> None:
        """Have a control message, with its time of sending, wait behind the bulk of its link."""
        transfer, began_s = sent
        now = began_s + self.startup_s
        from_s = now + self._queued_s(transfer.link, now)
        end_s = self._left_s(transfer, from_s) if from_s < math.inf else math.inf
        end_s = max(end_s, self._control_s.get(transfer.link, 0.0))  # R11: not before the control message in front
        self._control_s[transfer.link] = end_s
        self._leaves(transfer, began_s, end_s)

    def _queued_s(self, link: tuple[str, ...], now: float) -> float:
        """Return the time for which the bulk in a link's queue keeps a control message waiting (R10)."""
        queue, rates = self._queues[link], self.links[link]
        if not queue:
            return 0.0
        most_bits = 8 * _queue_bytes(rates, now)
        most_s = _carried_s(rates, most_bits, now)
        needs_s = self._needs_s(queue[0], now, most_bits)
        for transfer in islice(queue, 1, None):
            if needs_s >= most_s:
                break
            needs_s += self._alone_s(transfer, now + needs_s)
        return min(needs_s, most_s)

    def _needs_s(self, transfer: Transfer, now: float, most_bits: float) -> float:
        """Return the time that the remaining bytes of the message under way need. In its start-up all bytes remain.

        The result may be infinity if the link could carry ``most_bits`` in this time.
        """
        bytes_from_s = transfer.began_s if transfer.follows else transfer.began_s + self.startup_s
        return max(0.0, transfer.ends_s - transfer.waits_s - max(now, bytes_from_s))

    def _alone_s(self, transfer: Transfer, start_s: float) -> float:
        """Return the time that the bytes of a message take from ``start_s`` on if no other message is in the way."""
        least_s = (8 * transfer.size_bytes / rate_bps for _, rate_bps in self._limits_of(transfer))
        return max(self.links[transfer.link].transfer_time_s(transfer.size_bytes, start_s), *least_s, 0.0)

    def _through(self, transfer: Transfer) -> None:
        if transfer.rank != CONTROL:
            queue = self._queues[transfer.link]
            queue.popleft()
            if queue:
                self._start(queue[0], transfer.ends_s)
        self._there(transfer)


def _queue_bytes(link: LinkRate, t_s: float) -> int:
    """Return the limit of a link's queue at the rate of a moment: the link's own limit, or the usual limit."""
    return link.queue_bytes_at(t_s) if isinstance(link, ShapedLink) else LinkShape(link.rate_at(t_s)).queue_bytes


def _carried_s(link: LinkRate, bits: float, start_s: float) -> float:
    """Return the time in which a link carries ``bits``, including headers. Infinity: never."""
    most_s = link.transfer_time_s(bits / 8, start_s)  # so long, or longer if the link adds headers
    if most_s == math.inf:  # R6: the link is cut for good
        return math.inf
    at_s = start_s
    while bits > 0 and at_s < start_s + most_s:
        rate_bps, until_s = link.rate_at(at_s), max(link.until_s(at_s), math.nextafter(at_s, math.inf))
        room = rate_bps * (until_s - at_s) if rate_bps else 0.0
        if bits <= room:
            return at_s + bits / rate_bps - start_s
        bits, at_s = bits - room, until_s
    return min(at_s - start_s, most_s)


class _Flow:
    """Message on its way from ``from_s`` on, with the remaining bits, the rate and the expected end.

    ``waits_s``: time that the sender waits after the last bit. ``entered``: the bytes have begun to go.
    """

    __slots__ = ("bits", "cables", "ends_s", "entered", "from_s", "link", "rate_bps", "transfer", "waits_s")

    def __init__(self, transfer: Transfer, link: LinkRate, from_s: float) -> None:
        self.transfer, self.link, self.from_s = transfer, link, from_s
        self.cables = cable_of(transfer.source, transfer.via), cable_of(transfer.target, transfer.via)
        self.bits = self.rate_bps = self.waits_s = 0.0
        self.ends_s, self.entered = math.inf, False


class SharedLinks(IndependentLinks):
    """Links that share the interfaces of the hosts at their ends, max-min fair."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._limits_bps = _limits_bps(self.config)
        self._flows: list[_Flow] = []
        self._going: dict[tuple[str, ...], _Flow] = {}  # by link: the flow that started last
        self._at_s, self._rounds = 0.0, 0  # time and number of the last sharing

    def _start(self, transfer: Transfer, now: float) -> None:
        if transfer.rank == CONTROL:
            super()._start(transfer, now)
            return
        transfer.began_s = now
        flow = _Flow(transfer, self.links[transfer.link], now if transfer.follows else now + self.startup_s)
        self._going[transfer.link] = flow
        self.schedule(flow.from_s, self._enter, flow)

    def _enter(self, flow: _Flow) -> None:
        transfer, link, now = flow.transfer, flow.link, flow.from_s
        flow.entered = True
        extra_bytes, flow.waits_s = self._again(transfer, now)
        alone_s = link.transfer_time_s(transfer.size_bytes + extra_bytes, now)
        if alone_s < math.inf:  # R6: else the link is cut for good, and the message never leaves
            flow.bits = link.bits_between(now, now + alone_s)
            self._flows.append(flow)
            self._share(now)
        else:
            flow.bits = math.inf

    def _needs_s(self, transfer: Transfer, now: float, most_bits: float) -> float:
        flow = self._going[transfer.link]
        if not flow.entered:
            return self._alone_s(transfer, flow.from_s)
        self._share(now)  # brings the flow's bits and rate up to date
        if not flow.bits:
            return 0.0
        most_bps = flow.link.rate_at(now)
        share = flow.rate_bps / most_bps if most_bps else 1.0
        bits = flow.bits / share if share else math.inf  # bits that the link alone would carry in the same time
        return _carried_s(flow.link, bits, now) if bits < most_bits else math.inf

    def _share(self, now: float) -> None:
        """Update the bits of every flow, release finished flows, and set the rates until the next change (R8, R9)."""
        going: list[_Flow] = []
        for flow in self._flows:
            flow.bits = max(0.0, flow.bits - flow.rate_bps * (now - self._at_s))
            if flow.bits and now < flow.ends_s:
                going.append(flow)
                continue
            transfer, flow.bits = flow.transfer, 0.0
            transfer.ends_s = now + flow.waits_s
            transfer.took_s = transfer.ends_s - transfer.began_s
            self.schedule(transfer.ends_s, self._through, transfer)
        self._flows, self._at_s = going, now
        most_bps = [flow.link.rate_at(now) for flow in going]
        limits = self.config.interfaces_bps, self.config.up_bps, self.config.down_bps
        rates = max_min_rates(most_bps, [flow.cables for flow in going], *limits)  # R8: links and hosts share fairly
        next_s = math.inf
        for flow, rate_bps in zip(going, rates, strict=True):
            flow.rate_bps = rate_bps
            flow.ends_s = now + flow.bits / rate_bps if rate_bps else math.inf
            changes_s = max(flow.link.until_s(now), math.nextafter(now, math.inf))
            next_s = min(next_s, flow.ends_s, changes_s)
        self._rounds += 1
        if next_s < math.inf:
            self.schedule(next_s, self._share_again, (self._rounds, next_s))

    def _share_again(self, due: tuple[int, float]) -> None:
        number, at_s = due
        if number == self._rounds:  # R9: no rates have been shared since
            self._share(at_s)


def max_min_rates(
    most_bps: Sequence[float],
    cables: Sequence[tuple[Cable, Cable]],
    interfaces_bps: Mapping[Cable, float],
    up_bps: Mapping[Cable, float] = {},
    down_bps: Mapping[Cable, float] = {},
) -> list[float]:
    """Return the fair rates of messages between hosts that go at once.

    ``most_bps`` and ``cables`` have the rate of the link, and the cables at its ends, of each message.
    ``interfaces_bps``: limits of the total that a cable sends and receives. ``up_bps``, ``down_bps``: limits of the
    total that a cable sends, or receives. Progressive filling: the rates rise alike until a link or a limit is full.
    The rates of the messages that it carries are then final.
    """
    rates, rising = [0.0] * len(cables), list(range(len(cables)))
    limits = interfaces_bps, up_bps, down_bps
    uses = [
        [(kind, cable) for kind, cable in ((0, a), (0, b), (1, a), (2, b)) if cable in limits[kind]] for a, b in cables
    ]
    left = {(kind, cable): limits[kind][cable] for used in uses for kind, cable in used}
    while rising:
        counts = Counter(limit for i in rising for limit in uses[i])
        shares = {limit: max(0.0, left[limit]) / count for limit, count in counts.items()}
        room = {i: min([most_bps[i], *(shares[limit] for limit in uses[i])]) for i in rising}
        level = min(room.values())
        for i in rising:
            if room[i] <= level:
                rates[i] = level
                for limit in uses[i]:
                    left[limit] -= level
        rising = [i for i in rising if room[i] > level]
    return rates


class SingleInterface(LinkModel):
    """Links between hosts that do one thing at a time: send a message, or receive a message."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        hosts = dict.fromkeys(host for link in self.links for host in link[:2])
        self._busy = dict.fromkeys(hosts, False)
        # by host: the messages that wait there to be sent or received, by rank, oldest first
        self._waiting: dict[str, tuple[list[Transfer], ...]] = {host: ([], [], []) for host in hosts}
        self._begun = dict.fromkeys(hosts, 0)  # by host: started messages that are no control messages
        self._begun_before: dict[int, int] = {}  # by number of a waiting control message: those of its ends before it

    def send(self, transfer: Transfer, now: float) -> None:
        source, target = transfer.source, transfer.target
        if self._may_go(transfer):
            self._start(transfer, now)
            return
        self._waiting[source][transfer.rank].append(transfer)
        self._waiting[target][transfer.rank].append(transfer)
        if transfer.rank == CONTROL:
            self._begun_before[transfer.number] = self._begun[source] + self._begun[target]

    def _start(self, transfer: Transfer, now: float) -> None:
        source, target = transfer.source, transfer.target
        self._busy[source] = self._busy[target] = True
        if transfer.rank == CONTROL:
            self._begun_before.pop(transfer.number, None)
        else:
            self._begun[source] += 1
            self._begun[target] += 1
        super()._start(transfer, now)

    def _through(self, transfer: Transfer) -> None:
        """Deliver the message before its hosts become idle, so that messages caused by the arrival wait with the rest.

        Then start the oldest waiting messages of both hosts.
        """
        self._there(transfer)
        now = transfer.ends_s
        source, target = transfer.source, transfer.target
        self._busy[source] = self._busy[target] = False
        for rank in RANKS:
            while (oldest := self._older(source, target, rank)) is not None:
                self._waiting[oldest.source][rank].remove(oldest)
                self._waiting[oldest.target][rank].remove(oldest)
                self._start(oldest, now)

    def _older(self, one_host: str, other_host: str, rank: int) -> Transfer | None:
        """Return the oldest message that waits at one of two hosts and could go."""
        first, second = self._oldest(one_host, rank), self._oldest(other_host, rank)
        if first is None or second is None:
            return first or second
        return first if first.number < second.number else second

    def _oldest(self, host: str, rank: int) -> Transfer | None:
        """Return the oldest message that waits at a host and could go."""
        if not self._busy[host]:
            for transfer in self._waiting[host][rank]:
                if self._may_go(transfer):
                    return transfer
        return None

    def _may_go(self, transfer: Transfer) -> bool:
        source, target = transfer.source, transfer.target
        if self._busy[source] or self._busy[target]:
            return False
        return transfer.rank == CONTROL or not (self._is_kept(source) or self._is_kept(target))

    def _is_kept(self, host: str) -> bool:
        """Return whether a host is kept idle for its oldest control message, whose other end is busy (R12)."""
        waiting = self._waiting[host][CONTROL]
        if not waiting:
            return False
        oldest = waiting[0]
        begun = self._begun[oldest.source] + self._begun[oldest.target]
        return begun - self._begun_before[oldest.number] >= MOST_OVERTAKEN


MODELS: Mapping[str, type[LinkModel]] = {
    "single": SingleInterface, "independent": IndependentLinks, "shared": SharedLinks,
}  # fmt: skip
