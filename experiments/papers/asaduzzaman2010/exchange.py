"""Hosts that map and reserve, and what is under way between them, in virtual time.

Messages of all tasks share one queue, so mappings that go on at once meet. ``sent`` counts maps; a message takes its
link's delay, and nothing for its size.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable

from thalweg.middleware.planning.mapping.agent import agents
from thalweg.middleware.planning.mapping.messages import DEDICATED, Map, Message, Send, Settled
from thalweg.middleware.planning.mapping.rules import Rules
from thalweg.middleware.planning.mapping.task import Host, Platform, Task


class Exchange:
    """The hosts of a platform by their numbers, and the time."""

    def __init__(self, platform: Platform, rules: Rules, seed: int = 0) -> None:
        self.hosts = agents(platform, rules, seed)
        self.now = 0.0
        self.sent = 0  # maps
        self._queue: list[tuple[float, int, Host, Message]] = []
        self._number = itertools.count()
        count = len(platform.servers)
        self._dedicated: list[dict[Host, float]] = [{} for _ in range(count)]
        for link in platform.links:
            self._dedicated[link.one][link.other] = self._dedicated[link.other][link.one] = link.delay_s
        self._public = [[0.0] * count for _ in range(count)]
        for (one, other), delay_s in platform.public_s.items():
            self._public[one][other] = self._public[other][one] = delay_s

    @property
    def busy(self) -> bool:
        """Whether messages are under way."""
        return bool(self._queue)

    def delay_s(self, one: Host, other: Host) -> float:
        """Of the dedicated link between two hosts."""
        return self._dedicated[one][other]

    def begin(self, task: Task) -> None:
        """A task comes to its sink now."""
        self.post(task.sink, self.hosts[task.sink].begin(task, self.now))

    def post(self, sender: Host, sends: Iterable[Send]) -> None:
        """What a host sends now."""
        now, queue, number = self.now, self._queue, self._number
        dedicated, public = self._dedicated[sender], self._public[sender]
        for send in sends:
            to = send.to
            delay_s = dedicated[to] if send.via is DEDICATED else public[to]
            if send.message.__class__ is Map:
                self.sent += 1
            heapq.heappush(queue, (now + send.wait_s + delay_s, next(number), to, send.message))

    def run(self, until: float) -> list[tuple[Host, Settled]]:
        """Deliver what comes until then; it stops at the first moment at which hosts have notes, and gives them."""
        queue, hosts, sends = self._queue, self.hosts, list[Send]()
        managers = [host.manager for host in hosts]
        while queue and queue[0][0] <= until:
            self.now, _, to, message = heapq.heappop(queue)
            if message.__class__ is Map:  # nearly all messages are maps and answers: straight to who takes them
                managers[to].on_map(message, self.now, sends)
                self.post(to, sends)
                sends.clear()
                continue
            self.post(to, hosts[to].handle(message, self.now))
            if hosts[to].reservations.notes:
                return [(to, note) for note in self._notes(to)]
        self.now = max(self.now, until) if until < float("inf") else self.now
        return []

    def tick(self) -> list[tuple[Host, Settled]]:
        """Have all hosts look at the time."""
        found = []
        for host in self.hosts:
            self.post(host.host, host.tick(self.now))
            found += [(host.host, note) for note in self._notes(host.host)]
        return found

    def _notes(self, host: Host) -> list[Settled]:
        notes = [*self.hosts[host].notes]
        self.hosts[host].notes.clear()
        return notes
