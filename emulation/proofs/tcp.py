"""What one TCP flow gets of a link: as a program would fill it, with all that the kernel makes of its bytes on the way.

Datagrams prove a link's shape; this proves that large packets of TCP, acknowledgements and a queue leave a flow the
rate that was asked. The receiver's kernel counts the segments that have come, each as large as the sender's kernel
says, with its headers. Links are measured many at a time, in one direction at a time, so that acknowledgements travel
where nothing else does. Links with delay or losses are left out, since there it is TCP that is slow.

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
SEGMENTS_WANTED = 30  # smaller ones on slow links rather than few of them
BEGIN_S, FLOW_S = 0.15, 0.3  # until a flow is up to speed, and how long it counts
ANSWERS = 0.05  # of a link's rate that the way back must have, for acknowledgements
TOGETHER = 64  # links
TRUST, TRIES = 0.03, 3  # an error above this is measured again, longer, with fewer others
CONNECT_S, WAIT_MS = 20.0, 5
WRITE = bytes(1 << 18)

_SND_MSS, _DATA_SEGS_IN = 16, 152  # where tcpi_snd_mss and tcpi_data_segs_in stand


def measure(world: World, links: Iterable[Link], go_on: Callable[[], None], together_bps: float) -> dict[Link, float]:
    """The rate at the testbed's layer that one TCP flow got of each link that one can fill.

    ``together_bps``: the rates that can be measured at once. ``go_on`` is called all the time, and raises what is to
    end the measurement.
    """
    left = {link: rate_bps for link in links if (rate_bps := _fillable_bps(world, link))}
    found: dict[Link, float] = {}
    for tries in range(TRIES):
        for group in _groups(left, together_bps / 4**tries, world):
            found |= _flows(world, {link: left[link] for link in group}, 2**tries, go_on)
        left = {link: bps for link, bps in left.items() if abs(found.get(link, 0.0) - bps) > TRUST * bps}
    return found


def _fillable_bps(world: World, link: Link) -> float:
    """The rate that one flow should get; 0 where TCP has reasons of its own to be slower."""
    shape, back = world.links[link].shape, world.links.get(link.back)
    if not (shape.passes and shape.rated) or shape.needs_netem or shape.queue_bytes < 4 * SEGMENT_BYTES[1]:
        return 0.0
    rate_bps = min(shape.set_bps, world.limit_bps(link))
    if back is not None and (not back.shape.passes or back.shape.needs_netem):
        return 0.0
    return 0.0 if back is not None and back.shape.set_bps < ANSWERS * rate_bps else rate_bps


def _groups(rates_bps: Mapping[Link, float], together_bps: float, world: World) -> Iterator[list[Link]]:
    """Links to be filled at once: one direction of each pair, and up to so much in all."""
    if world.limited:  # links that share an interface
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
    """One connection, and what has come of it when."""

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
        for one in (self.listener, self.sender):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, self.segment_bytes)
            with suppress(OSError):  # others, such as BBR, fill no queue, and take their time to be up to speed
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("@ii", 1, 0))  # what waits is thrown away
            one.setblocking(False)
        self.listener.bind((world.ends[link.ends[1]].ip, 0))
        self.listener.listen(1)
        with suppress(BlockingIOError):
            self.sender.connect(self.listener.getsockname())
        self.receiver: socket.socket | None = None
        self.began_s = math.inf
        self.seen: list[tuple[float, int]] = []  # when, segments that have come by then

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
            self.receiver.recv(1 << 24, socket.MSG_TRUNC)  # without copying it
        if self.begin_s <= now_s - self.began_s <= self.end_s:
            self.seen.append((now_s, come))

    def rate_bps(self, layer: int) -> float:
        if len(self.seen) < 2:
            return 0.0
        size = _told(self.sender, _SND_MSS) + HEADERS_BYTES[layer]
        (first_s, first), (last_s, last) = self.seen[0], self.seen[-1]
        return 8 * size * (last - first) / (last_s - first_s)


def _told(connection: socket.socket, at: int) -> int:
    """A number of TCP_INFO."""
    found: int = struct.unpack_from("=I", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, at + 4), at)[0]
    return found


def _flows(
    world: World, rates_bps: Mapping[Link, float], stretch: float, go_on: Callable[[], None]
) -> dict[Link, float]:
    with ExitStack() as stack:
        flows = {link: _Flow(world, link, rate_bps, stretch, stack) for link, rate_bps in rates_bps.items()}
        waiting, poller, by_number = list(flows.values()), select.poll(), dict[int, Callable[[], None]]()
        stop_s = time.monotonic() + CONNECT_S
        while time.monotonic() < stop_s:
            go_on()
            for flow in [one for one in waiting if one.accept(stack)]:
                waiting.remove(flow)
                assert flow.receiver is not None
                for one, what, do in (
                    (flow.sender, select.POLLOUT, flow.send),
                    (flow.receiver, select.POLLIN, flow.receive),
                ):
                    by_number[one.fileno()] = do
                    poller.register(one, what)
                if not waiting:
                    stop_s = max(one.began_s + one.end_s for one in flows.values())
            for number, _ in poller.poll(WAIT_MS):
                by_number[number]()
        return {link: flow.rate_bps(world.layer) for link, flow in flows.items()}
