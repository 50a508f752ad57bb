"""Readings of the traffic of links, with a bounded cost: a share of one processor's time.

If the root of a port has counted nothing since the last reading, its links are not read.
"""

from __future__ import annotations

import errno
import time
from array import array
from collections import deque
from collections.abc import Mapping

from thalweg.emulation.kernel.htb import ClassCounters
from thalweg.emulation.kernel.netlink import NetlinkError
from thalweg.emulation.kernel.world import LinkState, World
from thalweg.emulation.recording.samples import FINEST_S, Sample, Samples
from thalweg.middleware.network.view import Cable, Link

SHARE = 0.005
"""Share of a processor's time for readings."""
CREDIT_S = 0.02  # of processor time that may be used at once
IDLE_S = 1.0  # between two readings while nothing is carried
LIVELY_S = 5.0  # of frequent readings, after traffic, a change or the start of a process
READING = 0.02  # share of the covered time that a reading may take, and so the error of its time
TRIES = 3
COUNTERS = 1 << 32  # the kernel's counters of packets wrap here
SLICE_S = 0.002  # of readings without a pause, so that a replay's changes are not late


class _Port:
    """Counters of the links to one host, as of the last reading."""

    def __init__(self, hosts: int, now_s: float) -> None:
        self.links: dict[int, tuple[Link, LinkState]] = {}  # by the source's number
        self.read_s = now_s
        self.passed: tuple[int, ...] = ()
        self.sent, self.packets, self.drops = (array("Q", bytes(8 * (hosts + 1))) for _ in range(3))
        self.asked_bits = array("d", bytes(8 * (hosts + 1)))


class Counting:
    """Readings of all ports in turn. ``next_s``: time of the next reading, on the clock of ``time.monotonic()``."""

    def __init__(self, world: World, samples: Samples) -> None:
        self._world, self._samples = world, samples
        self.numbers: dict[Link, int] = {}
        """Numbers of links in samples and changes, in the order of first use."""
        self._ports: dict[Cable, _Port] = {}
        self._round: deque[Cable] = deque()  # ports that this round has still to read
        self._round_s = self._lively_s = self._counted_s = self.next_s = time.monotonic()
        self._credit_s, self.cost_s = CREDIT_S, 0.0

    def number(self, link: Link) -> int:
        """Return the number of a link in samples and changes."""
        return self.numbers.setdefault(link, len(self.numbers))

    def know(self, link: Link, state: LinkState) -> None:
        """Add a link that has just been set up to the readings."""
        source, target = link.ends
        if target not in self._ports:
            self._ports[target] = _Port(len(self._world.hosts), time.monotonic())
        self._ports[target].links[self._world.ends[source].number] = link, state

    def wake(self) -> None:
        """Read soon, and often for some time: traffic is likely."""
        now_s = time.monotonic()
        self._lively_s = now_s
        self.next_s = min(self.next_s, max(now_s, self._round_s + FINEST_S, self._affordable_s(now_s)))

    def read_due(self) -> None:
        """Read the next ports for about ``SLICE_S``, and set ``next_s``."""
        began_s = time.monotonic()
        if not self._round:
            self._round.extend(self._ports)
            self._round_s = began_s
        while self._round and time.monotonic() - began_s < SLICE_S:
            self._read(self._round.popleft())
        now_s = time.monotonic()
        interval_s = FINEST_S if now_s - self._lively_s < LIVELY_S else IDLE_S
        due_s = now_s if self._round else self._round_s + interval_s
        self.next_s = max(due_s, self._affordable_s(now_s))

    def read_before(self, links: list[Link]) -> None:
        """Read the ports of links that are about to change, if processor time is left."""
        for target in {link.ends[1] for link in links} & self._ports.keys():
            if self._affordable_s(time.monotonic()) > time.monotonic():
                return
            self._read(target)

    def read_all(self) -> None:
        """Read every port now, regardless of the cost."""
        for target in self._ports:
            self._read(target, leave_out=False)

    def _affordable_s(self, now_s: float) -> float:
        """Return the time from which processor time is left for a reading."""
        self._credit_s = min(CREDIT_S, self._credit_s + SHARE * (now_s - self._counted_s))
        self._counted_s = now_s
        return now_s + max(0.0, -self._credit_s) / SHARE

    def _read(self, target: Cable, *, leave_out: bool = True) -> None:
        """Read the counters of a port. ``leave_out``: a delayed reading may be left to the next one."""
        if target in self._world.gone:
            return
        used_s, began_s = time.thread_time(), time.monotonic()
        try:
            self._read_port(target, self._ports[target], leave_out=leave_out)
        except NetlinkError as error:
            if error.errno != errno.ENODEV:
                raise
            self._world.gone.add(target)
        # some kernels count processor time in whole ticks: the elapsed time bounds it
        used_s = min(time.thread_time() - used_s, time.monotonic() - began_s)
        self._credit_s, self.cost_s = self._credit_s - used_s, self.cost_s + used_s

    def _read_port(self, target: Cable, port: _Port, *, leave_out: bool) -> None:
        began_s = time.monotonic()
        passed = self._world.passed(target)
        if passed == port.passed and not passed[-1]:  # nothing was counted, and no packet waits
            port.read_s = now_s = (began_s + time.monotonic()) / 2
            for number, (_, state) in port.links.items():
                port.asked_bits[number] = state.asked_bits(now_s)
            return
        for _ in range(TRIES):
            began_s = time.monotonic()
            counters = self._world.counters(target)
            now_s = time.monotonic()
            if now_s - began_s <= READING * (now_s - port.read_s):
                break
        else:
            if leave_out:
                return
        self._keep(port, counters, (began_s + now_s) / 2)
        port.passed = passed

    def _keep(self, port: _Port, counters: Mapping[str, ClassCounters], now_s: float) -> None:
        before_s = port.read_s
        for counted in counters.values():
            number = counted.minor
            if number not in port.links:  # a class of a link that the kernel refused halfway
                continue
            link, state = port.links[number]
            asked_bits, asked_before = state.asked_bits(now_s), port.asked_bits[number]
            sent, packets = counted.sent_bytes - port.sent[number], counted.sent_packets - port.packets[number]
            drops = counted.drops - port.drops[number]
            if sent < 0:  # the port was set up anew
                sent, packets, drops = counted.sent_bytes, counted.sent_packets, counted.drops
            if (sent or drops or counted.backlog_bytes) and now_s > before_s:
                self._samples.add(Sample(
                    self.number(link), before_s, now_s, asked_before, max(asked_before, asked_bits), sent,
                    packets % COUNTERS, drops % COUNTERS, counted.backlog_bytes,
                ))  # fmt: skip
                self._lively_s = now_s
            port.sent[number], port.packets[number] = counted.sent_bytes, counted.sent_packets
            port.drops[number], port.asked_bits[number] = counted.drops, asked_bits
        port.read_s = now_s
