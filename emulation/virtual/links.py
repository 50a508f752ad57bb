"""How messages get from host to host in virtual time: three models of what they wait for. Pure.

``SingleInterface``, the model of Ranganathan et al. (1998), section 2: a host sends or receives at most one message
at a time. A message waits until both its ends are idle; of those that could go, control messages go first, then
probes (an eighth of an image), then partitions, and older ones before younger. ``IndependentLinks``, as tc shapes them:
every directed link is a queue of its own for bulk transfers, one after the other; control messages pass them by.
``SharedLinks``, the bounded multi-port model (Benoit et al. 2008, section 2.2): the same, and hosts with a limited
interface share its rate among all that they send and receive at once.

A message takes the start-up cost and then its bytes at the link's rate, integrated exactly over the trace's steps.

A ``ShapedLink`` has delays and losses besides, as a scenario gives them to packets. What TCP makes of these is told of
whole messages:

- R1: a message is there a delay after its last byte has left; meanwhile the link takes the next one.
- R2: a delay varies from message to message by its jitter, and no message overtakes another of its connection: what is
  bulk has one, what is control another.
- R3: packets that are lost or corrupted are sent again, and take the link's rate again, until all have come through.
  Each such round takes a round trip, or the time-out of TCP where too few packets follow for a receiver to tell.
- R4: a packet that is duplicated takes the link's rate twice. One that is sent at once, instead of after its delay,
  waits at the receiver for those before it.
- R5: a sender hears that a message has arrived when the answer has come back.
- R6: a link that is cut carries nothing; what is on its way waits. One that is cut for good carries nothing any more.
- R7: a host with a limited interface sends, and receives, one message's bytes after the other at that rate. It has an
  interface for each network.

Of ``SharedLinks``:

- R8: what goes at once has max-min fair rates: none can be raised without lowering one that is no higher, where no link
  carries more than its own rate, and no interface more than its rate of what it sends and receives together.
- R9: rates are shared anew as soon as a message begins or ends, or the rate of a link in use changes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.traces.trace import Rates
from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.errors import TraceError
from thalweg.middleware.network.view import NET, Cable, Link, cable_of

CONTROL, PROBE, BULK = RANKS = range(3)
Schedule = Callable[[float, Callable[[Any], None], Any], None]  # (at, call, with what)


LinkRate = Rates  # what a link can carry over time; ``BandwidthTrace`` and ``Window`` are such


class Transfer:
    """The ``number``-th message on its way; ``item`` is the sender's own. The times are set when it starts.

    ``link``: the one that it takes, over the network ``via``, as a ``Link`` hashes. ``follows``: it is a later piece of
    what has begun, and costs no start-up.
    ``back_s``: from its arrival until its sender hears of it.
    """

    __slots__ = (
        "back_s", "began_s", "ends_s", "follows", "item", "link", "number", "rank", "size_bytes", "source", "target",
        "took_s", "via",
    )  # fmt: skip

    def __init__(
        self, number: int, source: str, target: str, size_bytes: int, rank: int, item: Any, via: str = NET
    ) -> None:
        self.number, self.source, self.target, self.via = number, source, target, via
        self.link: tuple[str, ...] = (source, target) if via == NET else (source, target, via)
        self.size_bytes, self.rank, self.item = size_bytes, rank, item
        self.began_s = self.took_s = self.ends_s = self.back_s = 0.0
        self.follows = False


SEGMENT_BYTES = 1448  # of a message in a packet: 1500 bytes without the headers of IPv4 and TCP with time stamps
FEW_PACKETS = 4  # a lost packet is told by three later ones, or by a time-out; RFC 5681, section 3.2
TIME_OUT_S = 0.2  # Linux's least


class ShapedLink:
    """A link with the rate of ``rates``, and the delays and losses of ``shapes``, each from its time on.

    ``key``: what chance on the link depends on, besides the number of a message. ``time_out_s``: of TCP, in the link's
    time. It knows what it has carried: each world needs links of its own.
    """

    def __init__(
        self, rates: LinkRate, shapes: Sequence[tuple[float, LinkShape]], key: str, time_out_s: float = TIME_OUT_S
    ) -> None:
        self.rates, self.key, self.time_out_s = rates, key, time_out_s
        self._from_s, self._shapes = [at_s for at_s, _ in shapes], [shape for _, shape in shapes]
        self._last_s = [0.0, 0.0]  # when the last message of each connection arrives

    def rate_at(self, t_s: float) -> float:
        return self.rates.rate_at(t_s)

    def bits_between(self, start_s: float, stop_s: float) -> float:
        return self.rates.bits_between(start_s, stop_s)

    def until_s(self, t_s: float) -> float:
        return self.rates.until_s(t_s)

    def transfer_time_s(self, size_bytes: float, start_s: float) -> float:
        """Seconds that a message's bytes take from ``start_s`` on, if none is lost; infinity where none arrives."""
        try:
            return self.rates.transfer_time_s(size_bytes, start_s)
        except TraceError:  # R6: cut for good
            return math.inf

    def shape_at(self, t_s: float) -> LinkShape:
        """Of the delays and losses; its rate is not meant."""
        return self._shapes[max(0, bisect_right(self._from_s, t_s) - 1)]

    def again(self, transfer: Transfer, start_s: float, back_s: float) -> tuple[int, float]:
        """The bytes of a message that take the link's rate once more, and how long is waited to know which.

        ``back_s``: the delay of the way back.
        """
        shape = self.shape_at(start_s)
        spoilt = 1 - (1 - shape.loss) * (1 - shape.corrupt)
        if not (spoilt or shape.duplicate):
            return 0, 0.0
        dice = Random(f"{self.key} {transfer.number}")
        packets = max(1, math.ceil(transfer.size_bytes / SEGMENT_BYTES))
        extra, waits_s, time_out_s = round(packets * shape.duplicate), 0.0, self.time_out_s  # R4
        while lost := plain_sum(dice.random() < spoilt for _ in range(packets)):
            extra += lost  # R3
            waits_s += shape.delay_s + back_s
            if packets - lost < FEW_PACKETS:
                waits_s, time_out_s = waits_s + time_out_s, 2 * time_out_s  # RFC 6298, section 5.5
            packets = lost
        return extra * min(SEGMENT_BYTES, transfer.size_bytes), waits_s

    def arrives_s(self, transfer: Transfer, sent_s: float) -> float:
        """When a message is there whose last byte left at ``sent_s``."""
        shape, connection = self.shape_at(sent_s), int(transfer.rank != CONTROL)
        delay_s = shape.delay_s
        if shape.jitter_s:
            delay_s += shape.jitter_s * _spread(shape.distribution, Random(f"{self.key} jitter {transfer.number}"))
        arrives_s = max(sent_s + max(0.0, delay_s), self._last_s[connection])  # R1, R2
        self._last_s[connection] = arrives_s
        return arrives_s


def _spread(distribution: str, dice: Random) -> float:
    """How far a delay is from its mean, in units of the jitter, as netem draws it."""
    if distribution == "uniform":
        return dice.uniform(-1.0, 1.0)
    normal, pareto = dice.gauss(0.0, 1.0), (dice.paretovariate(3.0) - 1.5) / math.sqrt(0.75)  # means 0, deviations 1
    return {"normal": normal, "pareto": pareto, "paretonormal": (normal + 3 * pareto) / 4}[distribution]


class LinkModel(ABC):
    """The links between hosts. ``send`` takes a transfer; ``arrived`` is called with it when it is there.

    ``interfaces_bps``: of the cables that are limited, on links that are shaped. Raises KeyError for a pair of hosts
    without a link over the network that is asked for.
    """

    def __init__(
        self,
        links: Mapping[Link, LinkRate],
        startup_s: float,
        schedule: Schedule,
        arrived: Callable[[Transfer], None],
        interfaces_bps: Mapping[Cable, float] = {},
    ) -> None:
        self.links: dict[tuple[str, ...], LinkRate] = dict(links.items())
        self.startup_s, self.schedule, self.arrived = startup_s, schedule, arrived
        self._shaped = {link: one for link, one in self.links.items() if isinstance(one, ShapedLink)}
        self._interfaces_bps = interfaces_bps
        self._free_s: dict[tuple[Cable, bool], float] = {}  # of a limited interface, for sending and for receiving

    @abstractmethod
    def send(self, transfer: Transfer, now: float) -> None:
        """Take a message, which goes as soon as those before it let it."""

    def _start(self, transfer: Transfer, now: float) -> None:
        """Let the bytes of a message go: ``_through`` is called when the last of them has left."""
        bytes_from_s = now if transfer.follows else now + self.startup_s
        link = self.links[transfer.link]
        end_s = bytes_from_s + link.transfer_time_s(transfer.size_bytes, bytes_from_s)
        if self._shaped:
            end_s = self._shaped_end_s(transfer, bytes_from_s, end_s)
        transfer.began_s = now
        transfer.ends_s = end_s
        transfer.took_s = end_s - now
        if end_s < math.inf:  # R6
            self.schedule(end_s, self._through, transfer)

    def _shaped_end_s(self, transfer: Transfer, start_s: float, end_s: float) -> float:
        """When its last byte has left for good; were nothing lost, and no interface limited, at ``end_s``."""
        link = self._shaped[transfer.link]
        extra_bytes, waits_s = self._again(transfer, start_s)
        if end_s < math.inf and (extra_bytes or waits_s):
            end_s += waits_s
            end_s += link.transfer_time_s(extra_bytes, end_s)
        for end, receives in ((transfer.source, False), (transfer.target, True)):
            cable = cable_of(end, transfer.via)
            if rate_bps := self._interfaces_bps.get(cable):  # R7
                free_s = max(start_s, self._free_s.get((cable, receives), 0.0)) + 8 * transfer.size_bytes / rate_bps
                self._free_s[cable, receives] = free_s
                end_s = max(end_s, free_s)
        return end_s

    def _again(self, transfer: Transfer, start_s: float) -> tuple[int, float]:
        """The bytes of a message that take its link's rate once more, and how long is waited to know which."""
        if not self._shaped:
            return 0, 0.0
        back = self._shaped[Link(transfer.target, transfer.source, transfer.via)]
        transfer.back_s = back.shape_at(start_s).delay_s  # R5
        return self._shaped[transfer.link].again(transfer, start_s, transfer.back_s)

    @abstractmethod
    def _through(self, transfer: Transfer) -> None:
        """The last byte of a message has left: what waited for it goes."""

    def _there(self, transfer: Transfer) -> None:
        """Its bytes have left: it arrives now, or after the link's delay."""
        if self._shaped:
            at_s = self._shaped[transfer.link].arrives_s(transfer, transfer.ends_s)
            self.schedule(at_s, self.arrived, transfer)
        else:
            self.arrived(transfer)


class IndependentLinks(LinkModel):
    """Links do not hinder each other."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._queues: dict[tuple[str, ...], deque[Transfer]] = {
            link: deque() for link in self.links
        }  # the first is going

    def send(self, transfer: Transfer, now: float) -> None:
        if transfer.rank == CONTROL:
            self._start(transfer, now)
            return
        queue = self._queues[transfer.link]
        queue.append(transfer)
        if len(queue) == 1:
            self._start(transfer, now)

    def _through(self, transfer: Transfer) -> None:
        if transfer.rank != CONTROL:
            queue = self._queues[transfer.link]
            queue.popleft()
            if queue:
                self._start(queue[0], transfer.ends_s)
        self._there(transfer)


class _Flow:
    """A message on its way from ``from_s`` on: what is left of it, at which rate it goes, and when it would be through.

    ``waits_s``: what its sender then waits for besides.
    """

    __slots__ = ("bits", "cables", "ends_s", "from_s", "link", "rate_bps", "transfer", "waits_s")

    def __init__(self, transfer: Transfer, link: LinkRate, from_s: float) -> None:
        self.transfer, self.link, self.from_s = transfer, link, from_s
        self.cables = cable_of(transfer.source, transfer.via), cable_of(transfer.target, transfer.via)
        self.bits = self.rate_bps = self.waits_s = 0.0
        self.ends_s = math.inf


class SharedLinks(IndependentLinks):
    """Links share the interfaces of the hosts at their ends, max-min fair."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._flows: list[_Flow] = []
        self._at_s, self._rounds = 0.0, 0  # of the last sharing

    def _start(self, transfer: Transfer, now: float) -> None:
        if transfer.rank == CONTROL:
            super()._start(transfer, now)
            return
        transfer.began_s = now
        flow = _Flow(transfer, self.links[transfer.link], now if transfer.follows else now + self.startup_s)
        self.schedule(flow.from_s, self._enter, flow)

    def _enter(self, flow: _Flow) -> None:
        transfer, link, now = flow.transfer, flow.link, flow.from_s
        extra_bytes, flow.waits_s = self._again(transfer, now)
        alone_s = link.transfer_time_s(transfer.size_bytes + extra_bytes, now)
        if alone_s < math.inf:  # R6
            flow.bits = link.bits_between(now, now + alone_s)
            self._flows.append(flow)
            self._share(now)

    def _share(self, now: float) -> None:
        """Count what has gone until now, let go what is through, and share the rates until something changes."""
        going: list[_Flow] = []
        for flow in self._flows:
            flow.bits = max(0.0, flow.bits - flow.rate_bps * (now - self._at_s))
            if flow.bits and now < flow.ends_s:
                going.append(flow)
                continue
            transfer = flow.transfer
            transfer.ends_s = now + flow.waits_s
            transfer.took_s = transfer.ends_s - transfer.began_s
            self.schedule(transfer.ends_s, self._through, transfer)
        self._flows, self._at_s = going, now
        most_bps = [flow.link.rate_at(now) for flow in going]
        rates = max_min_rates(most_bps, [flow.cables for flow in going], self._interfaces_bps)  # R8
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
        if number == self._rounds:  # R9: nothing has changed since
            self._share(at_s)


def max_min_rates(
    most_bps: Sequence[float], cables: Sequence[tuple[Cable, Cable]], interfaces_bps: Mapping[Cable, float]
) -> list[float]:
    """Fair rates of what goes between hosts at once: ``most_bps`` and ``cables`` of each, and which have limits.

    Progressive filling: all rates rise alike, until a link or an interface is full; then those that it carries stay.
    """
    rates, rising = [0.0] * len(cables), list(range(len(cables)))
    left = {cable: interfaces_bps[cable] for ends in cables for cable in ends if cable in interfaces_bps}
    while rising:
        counts = Counter(cable for i in rising for cable in cables[i] if cable in left)
        shares = {cable: max(0.0, left[cable]) / count for cable, count in counts.items()}
        room = {i: min([most_bps[i], *(shares[cable] for cable in cables[i] if cable in shares)]) for i in rising}
        level = min(room.values())
        for i in rising:
            if room[i] <= level:
                rates[i] = level
                for cable in cables[i]:
                    if cable in left:
                        left[cable] -= level
        rising = [i for i in rising if room[i] > level]
    return rates


class SingleInterface(LinkModel):
    """A host does one thing at a time: it sends one message, or receives one."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        hosts = dict.fromkeys(host for link in self.links for host in link[:2])
        self._busy = dict.fromkeys(hosts, False)
        # of every host, what waits to be sent or received there, by rank, oldest first
        self._waiting: dict[str, tuple[list[Transfer], ...]] = {host: ([], [], []) for host in hosts}

    def send(self, transfer: Transfer, now: float) -> None:
        source, target = transfer.source, transfer.target
        if not (self._busy[source] or self._busy[target]):
            self._start(transfer, now)
            return
        self._waiting[source][transfer.rank].append(transfer)
        self._waiting[target][transfer.rank].append(transfer)

    def _start(self, transfer: Transfer, now: float) -> None:
        self._busy[transfer.source] = self._busy[transfer.target] = True
        super()._start(transfer, now)

    def _through(self, transfer: Transfer) -> None:
        """What the arrival gives rise to waits with the rest; then both hosts take up something else."""
        self._there(transfer)
        now = transfer.ends_s
        source, target = transfer.source, transfer.target
        self._busy[source] = self._busy[target] = False
        for rank in RANKS:
            while (next_one := self._older(source, target, rank)) is not None:
                self._waiting[next_one.source][rank].remove(next_one)
                self._waiting[next_one.target][rank].remove(next_one)
                self._start(next_one, now)

    def _older(self, one_host: str, other_host: str, rank: int) -> Transfer | None:
        """The oldest that waits at either host and could go."""
        one, other = self._oldest(one_host, rank), self._oldest(other_host, rank)
        if one is None or other is None:
            return one or other
        return one if one.number < other.number else other

    def _oldest(self, host: str, rank: int) -> Transfer | None:
        """The oldest that waits at a host and could go."""
        busy = self._busy
        if not busy[host]:
            for transfer in self._waiting[host][rank]:
                if not (busy[transfer.source] or busy[transfer.target]):
                    return transfer
        return None


MODELS: Mapping[str, type[LinkModel]] = {
    "single": SingleInterface, "independent": IndependentLinks, "shared": SharedLinks,
}  # fmt: skip
