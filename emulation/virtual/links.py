"""How messages get from host to host in virtual time: two models of what they wait for. Pure.

``SingleInterface``, the model of Ranganathan et al. (1998), section 2: a host sends or receives at most one message
at a time. A message waits until both its ends are idle; of those that could go, control messages go first, then
probes (an eighth of an image), then partitions, and older ones before younger. ``IndependentLinks``, as tc shapes them:
every directed link is a queue of its own for bulk transfers, one after the other; control messages pass them by.

A message takes the start-up cost and then its bytes at the link's rate, integrated exactly over the trace's steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from thalweg.middleware.network.view import Link, Pair

CONTROL, PROBE, BULK = RANKS = range(3)
Schedule = Callable[[float, Callable[[Any], None], Any], None]  # (at, call, with what)


class LinkRate(Protocol):
    """What a link can carry over time; ``BandwidthTrace`` and ``Window`` are such."""

    def rate_at(self, t_s: float, /) -> float: ...

    def transfer_time_s(self, size_bytes: float, start_s: float, /) -> float: ...


class Transfer:
    """The ``number``-th message on its way; ``item`` is the sender's own. The times are set when it starts."""

    __slots__ = ("began_s", "ends_s", "item", "number", "rank", "size_bytes", "source", "target", "took_s")

    def __init__(self, number: int, source: str, target: str, size_bytes: int, rank: int, item: Any) -> None:
        self.number, self.source, self.target = number, source, target
        self.size_bytes, self.rank, self.item = size_bytes, rank, item
        self.began_s = self.took_s = self.ends_s = 0.0


class LinkModel:
    """The links between hosts. ``send`` takes a transfer; ``arrived`` is called with it when it is through.

    Raises KeyError for a pair of hosts without a link.
    """

    def __init__(
        self,
        links: Mapping[Link, LinkRate],
        startup_s: float,
        schedule: Schedule,
        arrived: Callable[[Transfer], None],
    ) -> None:
        self.links: dict[Pair, LinkRate] = dict(links.items())
        self.startup_s, self.schedule, self.arrived = startup_s, schedule, arrived

    def send(self, transfer: Transfer, now: float) -> None:
        raise NotImplementedError

    def _end_s(self, transfer: Transfer, now: float) -> float:
        """When it will be through if it starts now."""
        bytes_from_s = now + self.startup_s
        link = self.links[transfer.source, transfer.target]
        return bytes_from_s + link.transfer_time_s(transfer.size_bytes, bytes_from_s)


class IndependentLinks(LinkModel):
    """Links do not hinder each other."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._queues: dict[Pair, deque[Transfer]] = {link: deque() for link in self.links}  # the first is going

    def send(self, transfer: Transfer, now: float) -> None:
        if transfer.rank == CONTROL:
            self._start(transfer, now)
            return
        queue = self._queues[transfer.source, transfer.target]
        queue.append(transfer)
        if len(queue) == 1:
            self._start(transfer, now)

    def _start(self, transfer: Transfer, now: float) -> None:
        transfer.began_s = now
        transfer.ends_s = end_s = self._end_s(transfer, now)
        transfer.took_s = end_s - now
        self.schedule(end_s, self._through, transfer)

    def _through(self, transfer: Transfer) -> None:
        if transfer.rank != CONTROL:
            queue = self._queues[transfer.source, transfer.target]
            queue.popleft()
            if queue:
                self._start(queue[0], transfer.ends_s)
        self.arrived(transfer)


class SingleInterface(LinkModel):
    """A host does one thing at a time: it sends one message, or receives one."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        hosts = dict.fromkeys(host for link in self.links for host in link)
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
        transfer.began_s = now
        transfer.ends_s = end_s = self._end_s(transfer, now)
        transfer.took_s = end_s - now
        self.schedule(end_s, self._through, transfer)

    def _through(self, transfer: Transfer) -> None:
        """What the arrival gives rise to waits with the rest; then both hosts take up something else."""
        self.arrived(transfer)
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


MODELS: Mapping[str, type[LinkModel]] = {"single": SingleInterface, "independent": IndependentLinks}
