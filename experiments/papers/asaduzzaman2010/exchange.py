"""Hosts that map and reserve, and the messages under way between them, in virtual time.

Messages of different tasks share one queue, so concurrent mappings meet. ``sent`` counts maps. A message takes its
link's delay, and no time for its size. Three answers of four only report the arrival of a map. Only the last answer to
a host has an effect: the host answers in its turn. Such answers are therefore not queued one by one. They are kept
until the last is known, and delivered together when the last arrives.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Set
from heapq import heappop, heappush

import msgspec

from thalweg.experiments.papers.asaduzzaman2010.mapping.agent import agents
from thalweg.experiments.papers.asaduzzaman2010.mapping.messages import (
    DEDICATED,
    Ack,
    Map,
    Message,
    Network,
    TaskOutcome,
    Transmit,
)
from thalweg.experiments.papers.asaduzzaman2010.mapping.rules import Rules
from thalweg.experiments.papers.asaduzzaman2010.mapping.task import Host, MappingTask, Platform

FOREVER_S = 1e9


def undisturbed(rules: Rules, patience_s: float = FOREVER_S) -> Rules:
    """Return the rules for a network without lost messages and changes, with known services. Nothing times out."""
    forever = dict.fromkeys(("lease_s", "probe_s", "gossip_s"), FOREVER_S)
    return msgspec.structs.replace(rules, patience_s=patience_s, **forever)


class _Answered:
    """Answers that are not final, to a host's maps of one task. ``last_s``: the arrival of the last. ``numbers``: the
    answered maps. ``open``: the maps for which the host waits.
    """

    __slots__ = ("last_s", "numbers", "open", "task")

    def __init__(self, task: int, waited_for: Set[int]) -> None:
        self.task, self.open = task, waited_for
        self.last_s = 0.0
        self.numbers: list[int] = []


class Exchange:
    """Hosts of a platform by their numbers, the messages under way, and the time."""

    def __init__(self, platform: Platform, rules: Rules, seed: int = 0) -> None:
        self.hosts = agents(platform, rules, seed)
        self.now = 0.0
        self.sent = 0  # maps
        self._queue: list[tuple[float, int, Host, Message | _Answered]] = []
        self._answered: list[dict[int, _Answered]] = [{} for _ in platform.servers]  # by task
        self._number = itertools.count()
        count = len(platform.servers)
        self._dedicated: list[dict[Host, float]] = [{} for _ in range(count)]
        for link in platform.links:
            self._dedicated[link.one][link.other] = self._dedicated[link.other][link.one] = link.delay_s
        self._public = [[0.0] * count for _ in range(count)]
        for (lower, upper), delay_s in platform.public_s.items():
            self._public[lower][upper] = self._public[upper][lower] = delay_s

    @property
    def busy(self) -> bool:
        """Return whether messages are under way."""
        return bool(self._queue)

    def delay_s(self, one: Host, other: Host) -> float:
        """Return the delay of the dedicated link between two hosts."""
        return self._dedicated[one][other]

    def begin(self, task: MappingTask) -> None:
        """Begin a task at its sink now."""
        self.post(task.sink, self.hosts[task.sink].begin(task, self.now))

    def post(self, sender: Host, sends: Iterable[Transmit]) -> None:
        """Send the messages of a host now."""
        now, queue, number = self.now, self._queue, self._number
        dedicated, public = self._dedicated[sender], self._public[sender]
        for send in sends:
            to, message = send.to, send.message
            if message.__class__ is Map:
                self.sent += 1
            elif message.__class__ is Ack and not message.final:
                self._answer(sender, to, message.task, message.number, send.via)
                continue
            at_s = now + send.wait_s + (dedicated[to] if send.via is DEDICATED else public[to])
            heappush(queue, (at_s, next(number), to, message))

    def _answer(self, host: Host, to: Host, task: int, number: int, via: Network) -> None:
        """Record that a host answers a map of a second host now, but not finally."""
        at_s = self.now + (self._dedicated if via is DEDICATED else self._public)[host][to]
        answered = self._answered[to].get(task)
        if answered is None:
            answered = self._answered[to][task] = _Answered(task, self.hosts[to].manager.unanswered(task))
        answered.numbers.append(number)
        if at_s > answered.last_s:
            answered.last_s = at_s
        if len(answered.numbers) == len(answered.open):
            heappush(self._queue, (answered.last_s, next(self._number), to, answered))

    def run(self, until: float) -> list[tuple[Host, TaskOutcome]]:
        """Deliver messages up to ``until``. Stop at the first time at which hosts have notes, and return the notes."""
        queue, hosts, sends = self._queue, self.hosts, list[Transmit]()
        managers = [host.manager for host in hosts]
        while queue and queue[0][0] <= until:
            self.now, _, to, message = heappop(queue)
            if message.__class__ is Map:  # nearly all messages are maps and answers: a short path to the manager
                if managers[to].on_map(message, self.now, sends):
                    self._answer(to, message.sender, message.task, message.number, message.via)
                if sends:
                    self.post(to, sends)
                    sends.clear()
                continue
            if isinstance(message, _Answered):
                self._all_answered(to, message)
            else:
                self.post(to, hosts[to].handle(message, self.now))
                if message.__class__ is Ack and (answered := self._answered[to].get(message.task)) is not None:
                    self._all_answered(to, answered)
            if hosts[to].reservations.notes:
                return [(to, note) for note in self._notes(to)]
        self.now = max(self.now, until) if until < float("inf") else self.now
        return []

    def _all_answered(self, host: Host, answered: _Answered) -> None:
        """Deliver the kept answers to a host that waits for no further answer."""
        if len(answered.open) > len(answered.numbers) or not answered.numbers:
            return  # the host has sent further maps meanwhile, or waits for a final answer
        if answered.last_s > self.now:
            heappush(self._queue, (answered.last_s, next(self._number), host, answered))
            return
        self._answered[host].pop(answered.task, None)
        numbers, answered.numbers = answered.numbers, []
        self.post(host, self.hosts[host].answered(answered.task, numbers, self.now))

    def tick(self) -> list[tuple[Host, TaskOutcome]]:
        """Call ``tick`` of every host, and return the notes."""
        notes = []
        for host in self.hosts:
            self.post(host.host, host.tick(self.now))
            notes += [(host.host, note) for note in self._notes(host.host)]
        return notes

    def _notes(self, host: Host) -> list[TaskOutcome]:
        notes = [*self.hosts[host].notes]
        self.hosts[host].notes.clear()
        return notes
