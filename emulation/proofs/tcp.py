"""Proof of the rate of a TCP flow over a link, filled as by a program, with the kernel's handling of the bytes.

Datagrams prove a link's shape. This proof shows that large packets of TCP, acknowledgements and a queue leave a flow
the rate asked. The receiver's kernel counts the segments that have come. A segment has the size that the sender's
kernel reports, and headers. Many links are measured at a time, in one direction, so acknowledgements travel alone.
Links with delay or losses are left out, since TCP itself is slow there.

Source: tcp(7), TCP_INFO, TCP_MAXSEG; linux/tcp.h, struct tcp_info.
"""

from __future__ import annotations

import math
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress

from thalweg.emulation.kernel.htb import SEGMENT_HEADER_BYTES
from thalweg.emulation.kernel.world import World
from thalweg.middleware.network.view import Link

HEADERS_BYTES = {3: 52, 2: 66}  # IPv4 and TCP with time stamps, and Ethernet
SEGMENT_BYTES = (256, 1460)
SEGMENTS_WANTED = 30  # slow links get smaller segments rather than fewer segments
BEGIN_S, FLOW_S = 0.15, 0.3  # time until a flow is up to speed, and time that counts
ANSWERS = 0.05  # share of a link's rate that the link back must have, for acknowledgements
TOGETHER = 64  # links measured at once
TRUST, TRIES = 0.03, 3  # a link with a greater error is measured again, longer, with fewer links at once
CONNECT_S, WAIT_MS = 20.0, 5
WRITE = bytes(1 << 18)

_SND_MSS, _DATA_SEGS_IN = 16, 152  # positions of tcpi_snd_mss and tcpi_data_segs_in


def measure(world: World, links: Iterable[Link], go_on: Callable[[], None], together_bps: float) -> dict[Link, float]:
    """Return the rate, at the testbed's layer, of one TCP flow over every link that a flow can fill.

    ``together_bps``: total rate that can be measured at once. ``go_on`` is called continually. Its exception ends the
    measurement.
    """
    left = {link: rate_bps for link in links if (rate_bps := _fillable_bps(world, link))}
    rates_bps: dict[Link, float] = {}
    for tries in range(TRIES):
        for group in _groups(left, together_bps / 4**tries, world):
            rates_bps |= _flows(world, {link: left[link] for link in group}, 2**tries, go_on)
        left = {link: bps for link, bps in left.items() if abs(rates_bps.get(link, 0.0) - bps) > TRUST * bps}
    return rates_bps


def _fillable_bps(world: World, link: Link) -> float:
    """Return the rate that a flow should get, or 0 if TCP is slower than the link for reasons of its own."""
    shape, back = world.links[link].shape, world.links.get(link.back)
    if not (shape.passes and shape.rated) or shape.needs_netem or shape.queue_bytes < 4 * SEGMENT_BYTES[1]:
        return 0.0
    rate_bps = min(shape.set_bps, world.limit_bps(link))
    if back is not None and (not back.shape.passes or back.shape.needs_netem):
        return 0.0
    return 0.0 if back is not None and back.shape.set_bps < ANSWERS * rate_bps else rate_bps


def _groups(rates_bps: Mapping[Link, float], together_bps: float, world: World) -> Iterator[list[Link]]:
    """Yield links to be filled at once: one direction of every pair, and up to ``together_bps`` in total."""
    if world.limited:  # links share interfaces, so each is filled alone
        yield from ([link] for link in rates_bps)
        return
    for forward in (True, False):
        group, total = list[Link](), 0.0
        for link, rate_bps in sorted(rates_bps.items(), key=lambda item: item[1]):
            if (link.source < link.target) is not forward:
                continue
            if group and (total + rate_bps > together_bps or len(group) == TOGETHER):
                yield group
                group, total = [], 0.0
            group.append(link)
            total += rate_bps
        if group:
            yield group


class _Flow:
    """TCP connection over one link, and the segments that had come at several times."""

    def __init__(self, world: World, link: Link, rate_bps: float, stretch: float, stack: ExitStack) -> None:
        shape = world.links[link].shape
        segment = rate_bps / 8 * FLOW_S / SEGMENTS_WANTED
        most = SEGMENT_BYTES[1] if shape.mtu is None else min(SEGMENT_BYTES[1], shape.mtu.bytes - SEGMENT_HEADER_BYTES)
        self.segment_bytes = int(min(most, max(SEGMENT_BYTES[0], segment)))
        burst_s = shape.burst * 8 / rate_bps
        self.begin_s = stretch * (BEGIN_S + burst_s)
        self.end_s = self.begin_s + stretch * max(FLOW_S, SEGMENTS_WANTED * self.segment_bytes * 8 / rate_bps)
        with world.inside(link.target):
            self.listener = stack.enter_context(socket.socket())
        with world.inside(link.source):
            self.sender = stack.enter_context(socket.socket())
        for end in (self.listener, self.sender):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, self.segment_bytes)
            with suppress(OSError):  # an algorithm such as BBR fills no queue, and is slow to be up to speed
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("@ii", 1, 0))  # drops waiting bytes
            end.setblocking(False)
        self.listener.bind((world.ends[link.ends[1]].ip, 0))
        self.listener.listen(1)
        with suppress(BlockingIOError):
            self.sender.connect(self.listener.getsockname())
        self.receiver: socket.socket | None = None
        self.began_s = math.inf
        self.seen: list[tuple[float, int]] = []  # time, and segments that had come

    def accept(self, stack: ExitStack) -> bool:
        with suppress(BlockingIOError):
            self.receiver = stack.enter_context(self.listener.accept()[0])
            self.receiver.setblocking(False)
            self.began_s = time.monotonic()
        return self.receiver is not None

    def send(self) -> None:
        with suppress(BlockingIOError):
            while self.sender.send(WRITE) == len(WRITE):
                pass

    def receive(self) -> None:
        assert self.receiver is not None
        now_s = time.monotonic()
        come = _told(self.receiver, _DATA_SEGS_IN)
        with suppress(BlockingIOError):
            self.receiver.recv(1 << 24, socket.MSG_TRUNC)  # MSG_TRUNC: without a copy
        if self.begin_s <= now_s - self.began_s <= self.end_s:
            self.seen.append((now_s, come))

    def rate_bps(self, layer: int) -> float:
        if len(self.seen) < 2:
            return 0.0
        size = _told(self.sender, _SND_MSS) + HEADERS_BYTES[layer]
        (first_s, first), (last_s, last) = self.seen[0], self.seen[-1]
        return 8 * size * (last - first) / (last_s - first_s)


def _told(connection: socket.socket, at: int) -> int:
    """Return the number at a position of TCP_INFO."""
    value: int = struct.unpack_from("=I", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, at + 4), at)[0]
    return value


def _flows(
    world: World, rates_bps: Mapping[Link, float], stretch: float, go_on: Callable[[], None]
) -> dict[Link, float]:
    with ExitStack() as stack:
        flows = {link: _Flow(world, link, rate_bps, stretch, stack) for link, rate_bps in rates_bps.items()}
        waiting, poller, by_number = list(flows.values()), select.poll(), dict[int, Callable[[], None]]()
        stop_s = time.monotonic() + CONNECT_S
        while time.monotonic() < stop_s:
            go_on()
            for flow in [candidate for candidate in waiting if candidate.accept(stack)]:
                waiting.remove(flow)
                assert flow.receiver is not None
                for end, event, action in (
                    (flow.sender, select.POLLOUT, flow.send),
                    (flow.receiver, select.POLLIN, flow.receive),
                ):
                    by_number[end.fileno()] = action
                    poller.register(end, event)
                if not waiting:
                    stop_s = max(connection.began_s + connection.end_s for connection in flows.values())
            for number, _ in poller.poll(WAIT_MS):
                by_number[number]()
        return {link: flow.rate_bps(world.layer) for link, flow in flows.items()}
