"""Proof of the delay, jitter, loss and duplicates of links against the figures asked.

Every link to be measured gets a train of small, numbered datagrams that carry their sending time. The trains are slow,
so a link is idle between datagrams. The kernel's receive time stamps are the times of arrival. All trains run at once,
since only the machine is shared.

A median needs no assumption about further delays of single packets. Its 99 % interval is that of the order statistics.
Losses are compared with exact 99 % intervals (``losses``). So one right link in a hundred looks wrong. A link that
looks wrong is measured again with more datagrams (``measure``).

Source: socket(7), SO_TIMESTAMPNS; Conover, Practical Nonparametric Statistics (1999), 3.1 and 3.2.
"""

from __future__ import annotations

import heapq
import math
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

import msgspec

from thalweg.emulation.kernel import netem
from thalweg.emulation.kernel.world import World
from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.proofs.losses import binomial_interval, measured
from thalweg.emulation.proofs.proof import LinkProof
from thalweg.middleware.network.view import Cable, Link

SO_TIMESTAMPNS = 35  # asm-generic/socket.h
SO_RCVBUFFORCE = 33
RECEIVE_BYTES = 1 << 22
TRAIN_PORT = 47_809  # any port: the namespaces are ours
HEADERS_BYTES = {3: 28, 2: 42}  # IPv4 and UDP, and Ethernet
PASSAGE_S = 1.5  # length of a train
LINK_PER_S = 250.0  # datagrams a second of a link
BURSTS_WANTED, BURSTS_S, BURSTS_PER_S = 30, 5.0, 4.0  # of a link with bursts: bursts wanted, longest train …
# … and the factor of datagrams a second
TOGETHER_PER_S, SLOW_PER_S = 4000.0, 2000.0  # datagrams a second of all links, on a usual and on a slow kernel
LEAST_DATAGRAMS = 20
SHARE = 0.4  # of a link's rate, and of an interface's
SETTLE_S = 0.25  # after the last delay: queues empty, late packets come

_DATAGRAM = struct.Struct("=IIq")  # numbers of train and datagram, and sending time in nanoseconds


def latest_s(shape: LinkShape) -> float:
    """Return the delay after which a packet has come at the latest, unless it is lost or queues."""
    return shape.delay_s + netem.quantile(shape.distribution, 1.0) * shape.jitter_s if shape.jitter_s else shape.delay_s


def median_delay_s(shape: LinkShape) -> float:
    """Return the median delay by netem's table and reordering.

    For a lopsided distribution, the median is not ``delay_s``.
    """
    if shape.reorder >= 0.5:  # the median packet is sent at once
        return 0.0
    if not shape.jitter_s:
        return shape.delay_s
    share = (0.5 - shape.reorder) / (1 - shape.reorder)
    return max(0.0, shape.delay_s + netem.quantile(shape.distribution, share) * shape.jitter_s)


def with_passage(
    proof: LinkProof, shape: LinkShape, sent: int, delays_s: Mapping[int, float], arrived: int
) -> LinkProof:
    """Return a link's proof with the results of a train of ``sent`` datagrams.

    ``delays_s``: delay of each datagram's first arrival, by number. ``arrived``: number of arrivals, copies included.
    """
    ordered = sorted(delays_s.values())
    away = median_delay_s(shape) - shape.delay_s
    low = high = median = jitter_s = math.inf
    if ordered:
        median = ordered[len(ordered) // 2] - away
        first, last = binomial_interval(len(ordered), 0.5)
        low, high = ordered[max(0, first - 1)] - away, ordered[min(len(ordered) - 1, last)] - away
        quarter = len(ordered) // 4
        jitter_s = ordered[3 * quarter] - ordered[quarter]
        wide = netem.quantile(shape.distribution, 0.75) - netem.quantile(shape.distribution, 0.25)
        jitter_s /= wide
    losses = measured(shape, sent, delays_s)
    return msgspec.structs.replace(
        proof,
        asked_delay_s=shape.delay_s,
        delivered_delay_s=median,
        delay_low_s=low,
        delay_high_s=high,
        asked_jitter_s=shape.jitter_s,
        delivered_jitter_s=jitter_s if shape.jitter_s and not shape.reorder else None,
        asked_loss=shape.loss,
        sent=sent,
        lost=losses.lost,
        lost_low=losses.low,
        lost_high=losses.high,
        asked_burst=losses.asked_burst,
        bursts=losses.bursts,
        bursts_low=losses.bursts_low,
        bursts_high=losses.bursts_high,
        duplicates=arrived - len(delays_s),
    )


def open_receiver(world: World, cable: Cable, port: int, stack: ExitStack) -> socket.socket:
    """Return a socket at a host's end of a network for datagrams with time stamps, with the largest buffer allowed."""
    end = world.ends[cable]
    with world.inside(end.name):
        receiver = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    receiver.bind((end.ip, port))
    receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)  # the kernel cuts this to the size allowed
    with suppress(PermissionError):
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BYTES)
    return receiver


def open_sender(world: World, host: str, stack: ExitStack) -> socket.socket:
    """Return a socket on a host for datagrams, which never waits."""
    with world.inside(host):
        sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    sender.setblocking(False)
    return sender


def receive(receiver: socket.socket, buffer: bytearray) -> int | None:
    """Read the next datagram's head. Return the kernel's receive time in nanoseconds, or None without a datagram."""
    while True:
        try:
            _, ancillary, _, _ = receiver.recvmsg_into([buffer], 64, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if ancillary:  # a datagram from before stamps were switched on has no stamp
            seconds, nanoseconds = struct.unpack("@ll", ancillary[0][2])
            return int(seconds * 1_000_000_000 + nanoseconds)


class _Train:
    """Datagrams of one link, with the delays of the datagrams that arrived."""

    def __init__(self, shape: LinkShape, target: tuple[str, int], sender: socket.socket, interval_s: float, count: int):
        self.shape, self.target, self.sender, self.interval_s, self.count = shape, target, sender, interval_s, count
        self.sent = self.arrived = 0
        self.delays_s: dict[int, float] = {}

    def send(self, number: int) -> None:
        with suppress(BlockingIOError):  # the datagram is sent at the train's next turn
            self.sender.sendto(_DATAGRAM.pack(number, self.sent, time.time_ns()), self.target)
            self.sent += 1

    def arrive(self, number: int, delay_ns: int) -> None:
        if number < self.sent and delay_ns >= 0:  # a corrupted datagram may have any number
            self.arrived += 1
            self.delays_s.setdefault(number, delay_ns / 1e9)


def measure(
    world: World, proofs: Mapping[Link, LinkProof], go_on: Callable[[], None], *, slow: bool = False
) -> dict[Link, LinkProof]:
    """Send trains over the links of these proofs, and return the proofs with the results.

    A link with a wrong result gets a second, denser train, which counts. ``slow``: the kernel itself loses packets if
    many are under way.
    """
    together_per_s = SLOW_PER_S if slow else TOGETHER_PER_S
    results = _trains(world, proofs, LINK_PER_S, together_per_s, go_on)
    wrong = {link: row for link, row in results.items() if not (row.delay_ok and row.loss_ok and row.bursts_ok)}
    if wrong:
        results |= _trains(world, wrong, 2 * LINK_PER_S, together_per_s, go_on)
    return results


def _trains(
    world: World,
    proofs: Mapping[Link, LinkProof],
    link_per_s: float,
    together_per_s: float,
    go_on: Callable[[], None],
) -> dict[Link, LinkProof]:
    shapes = {link: world.links[link].shape for link in proofs}
    shares_bps, ends = world.shares_bps(proofs), [link.ends for link in proofs]
    leaving, coming = (dict.fromkeys(end[i] for end in ends) for i in (0, 1))
    bits = 8 * (_DATAGRAM.size + HEADERS_BYTES[world.layer])
    with ExitStack() as stack:
        receivers = [open_receiver(world, cable, TRAIN_PORT, stack) for cable in coming]
        senders = {cable: open_sender(world, world.ends[cable].name, stack) for cable in leaving}
        trains = []
        for link in proofs:
            source, target = link.ends
            shape = shapes[link]
            per_s, wanted = link_per_s, 0.0
            if shape.loss and shape.loss_burst:
                per_s, wanted = BURSTS_PER_S * link_per_s, BURSTS_WANTED * shape.loss_burst / shape.loss
            interval_s = max(1 / per_s, len(proofs) / together_per_s, bits / (SHARE * shares_bps[link]))
            count = max(LEAST_DATAGRAMS, int(PASSAGE_S / interval_s), int(min(wanted, BURSTS_S / interval_s)))
            to = (world.ends[target].ip, TRAIN_PORT)
            trains.append(_Train(shape, to, senders[source], interval_s, count))
        _run(trains, receivers, go_on)
    return {
        link: with_passage(proof, train.shape, train.sent, train.delays_s, train.arrived)
        for (link, proof), train in zip(proofs.items(), trains, strict=True)
    }


def _run(trains: list[_Train], receivers: list[socket.socket], go_on: Callable[[], None]) -> None:
    buffer = bytearray(_DATAGRAM.size)
    start_s = time.monotonic()
    due = [(start_s + train.interval_s * i / len(trains), i) for i, train in enumerate(trains)]
    heapq.heapify(due)
    settle_s = max(latest_s(train.shape) for train in trains) + SETTLE_S
    stop_s = math.inf
    while (now_s := time.monotonic()) < stop_s:
        go_on()
        while due and due[0][0] <= now_s:
            at_s, i = due[0]
            train = trains[i]
            train.send(i)
            if train.sent < train.count:
                heapq.heapreplace(due, (at_s + train.interval_s, i))
            else:
                heapq.heappop(due)
        for receiver in receivers:
            while (stamp_ns := receive(receiver, buffer)) is not None:
                i, number, sent_ns = _DATAGRAM.unpack(buffer)
                if i < len(trains):
                    trains[i].arrive(number, stamp_ns - sent_ns)
        if not due and stop_s == math.inf:
            stop_s = now_s + settle_s
        if not due and all(len(train.delays_s) == train.sent for train in trains):
            break
        wait_s = due[0][0] - time.monotonic() if due else 0.005
        select.select(receivers if not due else [], [], [], min(max(wait_s, 0.0), 0.005))
