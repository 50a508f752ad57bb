"""One host of a platform: map manager, reservations, the resources that both use, and directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thalweg.experiments.papers.asaduzzaman2010.mapping.directory import ServiceDirectory
from thalweg.experiments.papers.asaduzzaman2010.mapping.holdings import Resources
from thalweg.experiments.papers.asaduzzaman2010.mapping.manager import MapManager, Mapped
from thalweg.experiments.papers.asaduzzaman2010.mapping.messages import (
    Ack,
    DirectoryGossip,
    Entry,
    Map,
    Message,
    TaskOutcome,
    Transmit,
)
from thalweg.experiments.papers.asaduzzaman2010.mapping.reserving import Reservations
from thalweg.experiments.papers.asaduzzaman2010.mapping.rules import Rules
from thalweg.experiments.papers.asaduzzaman2010.mapping.task import Host, MappingTask, Platform, Server


class Agent:
    """Pure state machine of one host, as the core of the runtime: messages and time in, messages to send out.

    The driver calls ``tick`` now and then to end what has timed out, and reads ``notes``.
    """

    def __init__(
        self,
        host: Host,
        platform: Platform,
        rules: Rules,
        links: Mapping[Host, tuple[float, float]],
        known: Iterable[Entry],
        seed: int = 0,
    ) -> None:
        """Create the agent. ``links``: rate and cost of dedicated links, by neighbour. ``known``: entries of known
        hosts.
        """
        server = platform.servers[host]
        rates = {neighbour: rate_bps for neighbour, (rate_bps, _) in links.items()}
        costs = {neighbour: cost for neighbour, (_, cost) in links.items()}
        self.host = host
        self.resources = Resources(server.capacity, rates, server.uplink_bps)
        self.directory = ServiceDirectory(entry_of(host, server), known, rules.gossip_s, seed)
        self.manager = MapManager(host, self.resources, rules, costs, self.directory, seed)
        self.reservations = Reservations(host, self.resources, rules)

    @property
    def notes(self) -> list[TaskOutcome]:
        return self.reservations.notes

    def begin(self, task: MappingTask, now: float) -> list[Transmit]:
        """Map and reserve a task whose sink is here."""
        return self.manager.begin(task, now)

    def handle(self, message: Message, now: float) -> list[Transmit]:
        """Handle a message. Return the messages to send."""
        out: list[Transmit] = []
        if isinstance(message, Map):
            if self.manager.on_map(message, now, out):
                answer = Ack(message.task, self.host, message.number, message.via, False)
                out.insert(0, Transmit(message.sender, message.via, 0.0, answer))
        elif isinstance(message, Ack):
            self._seek(self.manager.on_ack(message, out), now, out)
        elif isinstance(message, DirectoryGossip):
            self.directory.on_gossip(message, out)
        else:
            self.reservations.handle(message, now, out)
        return out

    def answered(self, task: int, numbers: Iterable[int], now: float) -> list[Transmit]:
        """Handle answers that are not final, to the maps ``numbers``, at once. Return the messages to send."""
        out: list[Transmit] = []
        self._seek(self.manager.on_answers(task, numbers, out), now, out)
        return out

    def tick(self, now: float) -> list[Transmit]:
        """Handle the passage of time. Return the messages to send."""
        out: list[Transmit] = []
        for mapped in self.manager.tick(now):
            self._seek(mapped, now, out)
        self.reservations.tick(now, out)
        self.directory.tick(now, out)
        return out

    def end(self, task: int, now: float) -> list[Transmit]:
        """End a task whose source is here. Return the messages to send."""
        out: list[Transmit] = []
        self.reservations.end(task, now, out)
        return out

    def cut(self, neighbour: Host) -> list[Transmit]:
        """Handle the loss of the dedicated link to a neighbour. Return the messages to send."""
        out: list[Transmit] = []
        self.reservations.cut(neighbour, out)
        return out

    def _seek(self, mapped: Mapped | None, now: float, out: list[Transmit]) -> None:
        if mapped is not None:
            self.reservations.seek(mapped.task, mapped.found, now, out)


def entry_of(host: Host, server: Server) -> Entry:
    """Return a host's directory entry at the start."""
    return Entry(host, server.services, server.uplink_bps > 0 or server.downlink_bps > 0)


def agents(platform: Platform, rules: Rules, seed: int = 0, *, strangers: bool = False) -> list[Agent]:
    """Return an agent for every host. Raise UsageError for an invalid platform or invalid rules. ``strangers``: a host
    knows only hosts at its dedicated links.
    """
    platform.check()
    rules.check()
    links: list[dict[Host, tuple[float, float]]] = [{} for _ in platform.servers]
    for link in platform.links:
        links[link.one][link.other] = links[link.other][link.one] = link.rate_bps, link.cost
    entries = [entry_of(host, server) for host, server in enumerate(platform.servers)]
    return [
        Agent(host, platform, rules, own, [entries[neighbour] for neighbour in own] if strangers else entries, seed)
        for host, own in enumerate(links)
    ]
