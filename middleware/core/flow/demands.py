"""Demands from nodes on this host to producers on other hosts, until the demands are answered.

Rules:

R1. A demand to another host is repeated with back-off until the partition arrives, and a ``SkipTo`` until its answer.
    Messages between nodes of one host are never lost, and never repeated.
R2. A demand carries newer locations and measured links (``Directory.piggyback``). The first demand in another tree, or
    for another query, carries the commit. A guest sends bare demands, because hosts ignore piggybacked data of guests.
R3. If another host keeps the tail of an operator, a demand for that tail is repeated as in R1.
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
    """Pending demands of a run's nodes on this host. No other part writes the table. ``nodes``: nodes on this host."""

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
        self._host, self._desk = context.out.host, context.out.context  # with the clock, read for every message
        self._silence, self._retries = shared.silence, shared.retries
        self._tree, self._directory, self._books = tree, directory, books
        self._guest, self._by_epochs = context.only_subscribes, context.by_epochs is not None
        self._lasts, self._leads, self._opened_s = context.fails_over, context.leads, context.out.now
        self._telling = directory.telling(upward=True)
        self._nodes = nodes
        self.pending: dict[tuple[str, str], Pending] = {}  # (consumer here, producer)
        self._answer_s: dict[tuple[str, str], float] = {}  # by the same keys: time that the last answer took

    # --- sending --------------------------------------------------------------------------------------

    def ask(self, node: NodeCore, index: int) -> None:
        """Demand partition ``index`` from the producers of a node.

        A demand to another host is repeated if the node lacks the input.
        """
        name, asked = node.node.name, node.received.asked
        for producer in node.node.inputs:
            if self._send(name, producer, index) and producer in asked:
                self.wait(name, producer, index)

    def demand(self, consumer: str, producer: str, index: int) -> None:
        """Demand a partition. Repeat the demand if the producer is on another host."""
        if self._send(consumer, producer, index):
            self.wait(consumer, producer, index)

    def _send(self, consumer: str, producer: str, index: int, *, again: bool = False) -> bool:
        """Send a demand. Return whether the producer is on another host."""
        out, directory, host = self._out, self._directory, self._host
        here = producer in self._nodes
        later = critical = False
        if self._by_epochs:
            node, book = self._nodes[consumer], self._books.of.get(consumer)
            later = node.received.last == producer
            critical = node.node.kind == "sink" if book is None else book.critical
        news = commit = None
        if here:
            again = False  # R1: no demand is lost within a host
        elif (host := directory.whereabouts(producer, index)) != self._host:
            if again:
                self._wait_for(host, self.pending[consumer, producer].asked_s)
            if not self._guest:
                if self._telling or directory.changes:
                    news = directory.piggyback(host, upward=True)
                if index == self._tree.fresh and not again:  # R2: the first demand in a tree or query
                    assert directory.switch is not None
                    commit = directory.switch.commit
        # else other hosts have sent a wrong location, and the demand goes to this host
        version = directory.locations[consumer].version
        out.send(host, m.Demand(out.run, producer, consumer, index, 0, version, later, critical, news, again, commit))
        return not here

    def skip(self, consumer: str, producer: str, index: int) -> None:
        """Announce the partition with which a consumer continues, and repeat the message until the answer.

        ``LAST``: the consumer takes no further partition.
        """
        if self._send_skip(consumer, producer, index):
            self.wait(consumer, producer, index)
            self.pending[consumer, producer].skips = True
        else:  # R1, R3: the consumer no longer needs a tail on another host
            self.pending.pop((consumer, producer), None)

    def _send_skip(self, consumer: str, producer: str, index: int, *, again: bool = False) -> bool:
        """Send a ``SkipTo``. Return whether the producer is on another host."""
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
        """Repeat a demand until its answer.

        The first repetition comes after ``retry_s``, or after twice the time of the last answer if that is longer.
        """
        edge, limits, now = (consumer, producer), self._limits, self._desk.now
        wait_s, twice_s = limits.retry_s, 2 * self._answer_s.get(edge, 0.0)
        if twice_s > wait_s:
            wait_s = max(wait_s, min(twice_s, limits.retry_max_s))
        self.pending[edge] = Pending(index, now + wait_s, wait_s, now)
        self._retries.by(now + wait_s)  # demands that wait already have longer intervals
        if self._lasts:
            if not self._silence.watching:
                self._silence.watch()
            self._greet(producer, index)

    def begin_soon(self, consumer: str, producer: str) -> None:
        """Repeat a demand early, because the producer's host may not have begun the new generation yet."""
        pending = self.pending.get((consumer, producer))
        if pending is not None:
            pending.interval_s = self._limits.retry_s / 4
            pending.due_s = pending.asked_s + pending.interval_s
            self._retries.by(pending.due_s)

    def answered(self, edge: tuple[str, str], index: int) -> None:
        """Remove a demand whose partition has arrived, and record how long the answer took."""
        pending = self.pending.get(edge)
        if pending is not None and pending.index == index:
            del self.pending[edge]
            self._answer_s[edge] = self._desk.now - pending.asked_s

    def skipped(self, message: m.Skipped) -> None:
        """Remove a ``SkipTo`` that the producer's host has answered."""
        edge, index = (message.consumer, message.producer), LAST if message.index is None else message.index
        pending = self.pending.get(edge)
        if pending is not None and pending.skips and pending.index == index:
            del self.pending[edge]

    def withdraw(self, consumer: str, producers: Iterable[str]) -> None:
        """Remove the demands of a node that gathers no further inputs."""
        for producer in producers:
            self.pending.pop((consumer, producer), None)

    def ended(self, consumer: str) -> None:
        """Remove the demands of a node that has ended. ``SkipTo`` messages remain until the answer."""
        for edge in [edge for edge, pending in self.pending.items() if edge[0] == consumer and not pending.skips]:
            del self.pending[edge]

    def redirect(self, producer: str, consumers: Iterable[str]) -> None:
        """Send the pending demands for a producer that has come to this host again, now within the host."""
        for consumer in consumers:
            pending = self.pending.pop((consumer, producer), None)
            if pending is not None:
                (self.skip if pending.skips else self.demand)(consumer, producer, pending.index)

    def retry(self) -> float | None:
        """Repeat the demands that are due (R1). Return the time when the next demand is due, or None."""
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
        """Repeat the demands to ``host`` at once (R1), because earlier demands may be lost."""
        now = self._out.now
        for (_, producer), pending in self.pending.items():
            if self._directory.whereabouts(producer, pending.index) == host:
                pending.due_s, pending.interval_s = now, self._limits.retry_s
                self._retries.by(now)

    # --- hosts that are waited for --------------------------------------------------------------------

    def waits_for(self, host: str) -> tuple[str, str] | None:
        """Return a node that waits for an input from ``host``, and the reason, or None."""
        for (consumer, producer), pending in self.pending.items():
            if self._directory.whereabouts(producer, pending.index) == host:
                return consumer, f"which holds {producer!r}"
        return None

    def check_waiting(self) -> bool:
        """Report to ``Suspicions`` the hosts that have not answered a demand. Return whether a demand is pending."""
        for (_, producer), pending in self.pending.items():
            self._wait_for(self._greet(producer, pending.index), pending.asked_s)
        return bool(self.pending)

    def _greet(self, producer: str, index: int) -> str:
        """Ping the host of a producer once, to measure its response time. Return the host."""
        host = self._directory.whereabouts(producer, index)
        if host in self._directory.hosts:
            self._silence.greet(self._out.run, host, leads=self._leads)
        return host

    def _wait_for(self, host: str, since_s: float) -> None:
        """Report to ``Suspicions`` that an answer of ``host`` is missing since ``since_s``."""
        if host in self._directory.hosts or host in self._directory.subscribers:
            self._silence.on_waiting(self._out.run, host, since_s, lasts=self._lasts, leads=self._leads)

    def stuck(self, host: str, since_s: float | None = None) -> None:
        """Report that a message to ``host`` has been under way in vain since ``since_s``.

        None: since the run began on this host.
        """
        self._wait_for(host, self._opened_s if since_s is None else since_s)

    # --- edges that are gone --------------------------------------------------------------------------

    def forget_edges(self) -> None:
        """Remove the demands of edges that the tree no longer has."""
        tables: tuple[dict[tuple[str, str], Any], ...] = (self.pending, self._answer_s)
        for table in tables:
            for edge in [edge for edge in table if not self._tree.has_edge(*edge)]:
                del table[edge]

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError if an invariant is violated."""
        for (consumer, producer), pending in self.pending.items():
            assert pending.skips or producer in self._nodes[consumer].received.asked, (consumer, producer)
