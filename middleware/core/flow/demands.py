"""The demands that nodes here have sent to producers on other hosts, until they are answered.

Rules:

R1. A demand to another host is repeated, with back-off, until the partition has come. So is a ``SkipTo``, until it is
    answered. Between two nodes of one host nothing is lost, so nothing is repeated.
R2. A demand carries what the host has to tell (``Directory.piggyback``). The first demand in another tree, or for
    another query, carries the commit. A guest, which nobody would believe, sends the demand alone.
R3. A host that waits for another that keeps a tail repeats the demand to it as any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from thalweg.middleware.core.context.outbox import RunContext
from thalweg.middleware.core.flow.actions import LAST
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.entries import Pending
from thalweg.middleware.core.flow.epochs import EpochBooks
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.parts.host_services import HostServices
from thalweg.middleware.protocol import messages as m


class Demands:
    """The only writer of what nodes here wait for from other hosts. ``nodes``: those of the run that are here."""

    __slots__ = (
        "_answer_s",
        "_books",
        "_by_epochs",
        "_desk",
        "_directory",
        "_guest",
        "_host",
        "_lasts",
        "_leads",
        "_limits",
        "_nodes",
        "_opened_s",
        "_out",
        "_retries",
        "_silence",
        "_telling",
        "_tree",
        "pending",
    )

    def __init__(
        self,
        context: RunContext,
        shared: HostServices,
        tree: Tree,
        directory: Directory,
        books: EpochBooks,
        nodes: Mapping[str, NodeCore],
    ) -> None:
        self._out, self._limits = context.out, context.limits
        self._host, self._desk = context.out.host, context.out.context  # whose clock is read for every message
        self._silence, self._retries = shared.silence, shared.retries
        self._tree, self._directory, self._books = tree, directory, books
        self._guest, self._by_epochs = context.only_subscribes, context.by_epochs is not None
        self._lasts, self._leads, self._opened_s = context.fails_over, context.leads, context.out.now
        self._telling = directory.telling(upward=True)
        self._nodes = nodes
        self.pending: dict[tuple[str, str], Pending] = {}  # (consumer here, producer)
        self._answer_s: dict[tuple[str, str], float] = {}  # how long the last answer to such a demand took

    # --- sending --------------------------------------------------------------------------------------

    def ask(self, node: NodeCore, index: int) -> None:
        """Demand partition ``index`` of all producers of a node, and wait for those that the node waits for."""
        name, asked = node.node.name, node.received.asked
        for producer in node.node.inputs:
            if self._send(name, producer, index) and producer in asked:
                self.wait(name, producer, index)

    def demand(self, consumer: str, producer: str, index: int) -> None:
        """Demand a partition, from another host until it comes."""
        if self._send(consumer, producer, index):
            self.wait(consumer, producer, index)

    def _send(self, consumer: str, producer: str, index: int, *, again: bool = False) -> bool:
        """Return whether the producer is on another host."""
        out, directory, host = self._out, self._directory, self._host
        here = producer in self._nodes
        later = critical = False
        if self._by_epochs:
            node, book = self._nodes[consumer], self._books.of.get(consumer)
            later = node.received.last == producer
            critical = node.node.kind == "sink" if book is None else book.critical
        news = commit = None
        if here:
            again = False  # R1: within a host no demand is lost, so none is repeated
        elif (host := directory.whereabouts(producer, index)) != self._host:
            if again:
                self._wait_for(host, self.pending[consumer, producer].asked_s)
            if not self._guest:
                if self._telling or directory.changes:
                    news = directory.piggyback(host, upward=True)
                if index == self._tree.fresh and not again:  # R2: the first demand in a tree or query
                    assert directory.switch is not None
                    commit = directory.switch.commit
        # else by a wrong word of others, and this host knows its own news
        version = directory.locations[consumer].version
        out.send(host, m.Demand(out.run, producer, consumer, index, 0, version, later, critical, news, again, commit))
        return not here

    def skip(self, consumer: str, producer: str, index: int) -> None:
        """Tell a producer, until it answers, with which partition a consumer here goes on. ``LAST``: with none."""
        if self._send_skip(consumer, producer, index):
            self.wait(consumer, producer, index)
            self.pending[consumer, producer].skips = True
        else:  # R1, R3: nor is a last output waited for any more that another host keeps
            self.pending.pop((consumer, producer), None)

    def _send_skip(self, consumer: str, producer: str, index: int, *, again: bool = False) -> bool:
        """Return whether the producer is on another host."""
        here, to = producer in self._nodes, self._host
        if not here:
            to = self._directory.whereabouts(producer, index)
            if again and to != self._host:
                self._wait_for(to, self.pending[consumer, producer].asked_s)
        version = self._directory.locations[consumer].version
        first = None if index == LAST else index
        self._out.send(to, m.SkipTo(self._out.run, producer, consumer, first, version=version))
        return not here

    # --- waiting --------------------------------------------------------------------------------------

    def wait(self, consumer: str, producer: str, index: int) -> None:
        """Repeat a demand until it is answered: not before twice the time that the last answer took."""
        edge, limits, now = (consumer, producer), self._limits, self._desk.now
        wait_s, twice_s = limits.retry_s, 2 * self._answer_s.get(edge, 0.0)
        if twice_s > wait_s:
            wait_s = max(wait_s, min(twice_s, limits.retry_max_s))
        self.pending[edge] = Pending(index, now + wait_s, wait_s, now)
        self._retries.by(now + wait_s)  # those that wait have backed off further
        if self._lasts:
            if not self._silence.watching:
                self._silence.watch()
            self._greet(producer, index)

    def begin_soon(self, consumer: str, producer: str) -> None:
        """Repeat a demand soon: that host may not have begun the generation yet, and not heard of it."""
        pending = self.pending.get((consumer, producer))
        if pending is not None:
            pending.interval_s = self._limits.retry_s / 4
            pending.due_s = pending.asked_s + pending.interval_s
            self._retries.by(pending.due_s)

    def answered(self, edge: tuple[str, str], index: int) -> None:
        """A partition that was demanded has come."""
        pending = self.pending.get(edge)
        if pending is not None and pending.index == index:
            del self.pending[edge]
            self._answer_s[edge] = self._desk.now - pending.asked_s

    def skipped(self, message: m.Skipped) -> None:
        """Repeat a ``SkipTo`` no more that the producer's host has answered."""
        edge, index = (message.consumer, message.producer), LAST if message.index is None else message.index
        pending = self.pending.get(edge)
        if pending is not None and pending.skips and pending.index == index:
            del self.pending[edge]

    def withdraw(self, consumer: str, producers: Iterable[str]) -> None:
        """Repeat no demand of a node that it does not wait for any more."""
        for producer in producers:
            self.pending.pop((consumer, producer), None)

    def ended(self, consumer: str) -> None:
        """A node has ended while its inputs were to come: only that it wants nothing more is still to be heard."""
        self._forget(lambda edge: edge[0] == consumer and not self.pending[edge].skips, self.pending)

    def redirect(self, producer: str, consumers: Iterable[str]) -> None:
        """A producer has come here: what these demand of it, and what they skip, it is told here."""
        for consumer in consumers:
            pending = self.pending.pop((consumer, producer), None)
            if pending is not None:
                (self.skip if pending.skips else self.demand)(consumer, producer, pending.index)

    def retry(self) -> float | None:
        """R1: repeat what is due; when the next is, None when nothing waits."""
        now, earliest_s = self._out.now, None
        for (consumer, producer), pending in self.pending.items():
            if pending.due_s <= now:
                (self._send_skip if pending.skips else self._send)(consumer, producer, pending.index, again=True)
                pending.interval_s = min(2 * pending.interval_s, self._limits.retry_max_s)
                pending.due_s = now + pending.interval_s
            if earliest_s is None or pending.due_s < earliest_s:
                earliest_s = pending.due_s
        return earliest_s

    def hurry(self, host: str) -> None:
        """R1: repeat at once what that host was asked for: it has perhaps not heard it for long."""
        now = self._out.now
        for (_, producer), pending in self.pending.items():
            if self._directory.whereabouts(producer, pending.index) == host:
                pending.due_s, pending.interval_s = now, self._limits.retry_s
                self._retries.by(now)

    # --- hosts that are waited for --------------------------------------------------------------------

    def waits_for(self, host: str) -> tuple[str, str] | None:
        """Return a node here that waits for an input from ``host``, and what for."""
        for (consumer, producer), pending in self.pending.items():
            if self._directory.whereabouts(producer, pending.index) == host:
                return consumer, f"which holds {producer!r}"
        return None

    def check_waiting(self) -> bool:
        """Look which hosts are waited for, in a run that outlives them. Return whether there are any."""
        for (_, producer), pending in self.pending.items():
            self._wait_for(self._greet(producer, pending.index), pending.asked_s)
        return bool(self.pending)

    def _greet(self, producer: str, index: int) -> str:
        """Ask the host of a producer once how long its answers take. Return that host."""
        host = self._directory.whereabouts(producer, index)
        if host in self._directory.hosts:
            self._silence.greet(self._out.run, host, leads=self._leads)
        return host

    def _wait_for(self, host: str, since_s: float) -> None:
        """Something has been expected of ``host``, or been meant for it, since then."""
        if host in self._directory.hosts or host in self._directory.subscribers:
            self._silence.on_waiting(self._out.run, host, since_s, lasts=self._lasts, leads=self._leads)

    def stuck(self, host: str, since_s: float | None = None) -> None:
        """What was meant for ``host`` has not got there, perhaps since then."""
        self._wait_for(host, self._opened_s if since_s is None else since_s)

    # --- edges that are gone --------------------------------------------------------------------------

    def forget(self, gone: Any) -> None:
        """Forget the edges for which ``gone`` is true."""
        self._forget(gone, self.pending)
        self._forget(gone, self._answer_s)

    @staticmethod
    def _forget(gone: Any, edges: dict[tuple[str, str], Any]) -> None:
        for edge in [edge for edge in edges if gone(edge)]:
            del edges[edge]

    def validate(self) -> None:
        """The invariants; AssertionError tells which does not hold."""
        for (consumer, producer), pending in self.pending.items():
            assert pending.skips or producer in self._nodes[consumer].received.asked, (consumer, producer)
