"""Tails: last outputs of nodes that have left this host, and last outputs that other hosts keep for operators here.

Rules:

R1. The last output of a node that has left, or has a new consumer, is its *tail*. The host keeps the tail until every
    consumer that lacks the tail has demanded a later partition.
R2. If the tail of an operator is on another host, a demand for the tail is forwarded there. A demand for a later
    partition releases the tail, and the host of the tail is notified.
R3. If a demand for a tail is forwarded again, this host waits for the host of the tail, because the consumer waits for
    this host.
R4. If the host of a tail is lost, the tail is lost too. No node makes the partition again, and the client is notified.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Literal

import msgspec

from thalweg.middleware.core.context.outbox import RunContext
from thalweg.middleware.core.flow.actions import Dispatch
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.forwards import MAX_FORWARDS, forwarded
from thalweg.middleware.core.flow.send_window import SendWindow
from thalweg.middleware.core.measuring.silence import Suspicions
from thalweg.middleware.protocol import messages as m


class RemoteTail(msgspec.Struct):
    """Tail of an operator on this host that another host keeps, and the consumers that may lack the tail."""

    host: str
    index: int
    consumers: set[str]
    gone: bool = False  # the host was lost. If it has joined again, it lacks the tail


class ForwardedDemands(msgspec.Struct):
    """Forwarded demands for partition ``index``, a remote tail, and the times of the first and last forwarding."""

    index: int
    first_s: float
    last_s: float


class Tails:
    """Tails of one run: kept on this host (``left``), and kept on other hosts for operators here (``kept``).

    No other part writes these tables.
    """

    __slots__ = (
        "_directory",
        "_host",
        "_lasts",
        "_out",
        "_passed",
        "_retry_max_s",
        "_silence",
        "_to",
        "kept",
        "left",
    )

    def __init__(self, context: RunContext, silence: Suspicions, directory: Directory) -> None:
        self._out, self._host, self._to = context.out, context.out.host, context.install.client
        self._retry_max_s, self._lasts = context.limits.retry_max_s, context.fails_over
        self._silence, self._directory = silence, directory
        self.left: dict[str, SendWindow] = {}
        self.kept: dict[str, RemoteTail] = {}
        self._passed: dict[str, ForwardedDemands] = {}  # by operator: demands forwarded to the host of its tail

    def leave(self, name: str, window: SendWindow | None) -> None:
        """Keep the last output of a node as a tail (R1).

        ``window``: the output, and the consumers that may lack it. None: there is no tail.
        """
        if window is not None:
            self.left[name] = window

    def wanted(self, demand: m.Demand) -> list[Dispatch] | None:
        """Return the sends with which a tail answers a demand (R1). None: no tail on this host answers.

        A demand for a later partition acknowledges the tail.
        """
        window = self.left.get(demand.producer)
        if window is None:
            return None
        index, consumer, last = demand.index, demand.consumer, window.unacked[-1].index
        if index > last:
            self.let_go(demand.producer, consumer, index)
            return None
        if index < last or consumer not in window.consumers:
            return None
        window.consumers[consumer].miss(index, again=demand.again)
        return window.due(consumer)

    def let_go(self, name: str, consumer: str, index: int) -> None:
        """Release a tail for a consumer that needs no partition before ``index`` (R1)."""
        window = self.left.get(name)
        if window is not None and index > window.unacked[-1].index:
            window.part((consumer,))
            if not window.consumers:
                del self.left[name]

    def keep(self, name: str, host: str, index: int, consumers: set[str]) -> None:
        """Record that ``host`` keeps the tail of an operator here. ``consumers``: consumers that may lack the tail."""
        self.kept[name] = RemoteTail(host, index, consumers)

    def answers(self, demand: m.Demand) -> Literal["node", "elsewhere", "nobody"]:
        """Return the side that answers a demand for an operator here with a remote tail.

        "node": the operator answers. "elsewhere": the demand is forwarded to the host of the tail (R2). "nobody": the
        tail is lost, or the demand was forwarded too often.
        """
        name, index = demand.producer, demand.index
        holder = self.kept[name]
        host = holder.host
        if index > holder.index:  # a demand for a later partition acknowledges the tail
            self.acknowledge(name, demand.consumer, index)
            return "node"
        if index < holder.index or host == self._host:
            return "node"
        if holder.gone or host not in self._directory.hosts:
            # R4: the tail has gone with its host, and no node makes the partition again
            reason = f"its partition {index} was on host {host!r}, which went away"
            self._out.send(self._to, m.Failed(self._out.run, name, reason, lost=host))
            return "nobody"
        if demand.forwards >= MAX_FORWARDS:
            return "nobody"
        self._out.send(host, forwarded(demand))
        now, passed = self._out.now, self._passed.get(name)
        if passed is None or passed.index != index:
            self._passed[name] = ForwardedDemands(index, now, now)
        else:  # R3: the demand is repeated, so this host waits for the host of the tail
            passed.last_s = now
            self._silence.on_waiting(self._out.run, host, passed.first_s, lasts=self._lasts)
        return "elsewhere"

    def acknowledge(self, name: str, consumer: str, index: int) -> None:
        """Release a remote tail for a consumer that needs no partition before ``index`` (R2).

        The host of the tail is notified.
        """
        holder = self.kept[name]
        if index <= holder.index:
            return
        if consumer in holder.consumers:
            holder.consumers.discard(consumer)
            if holder.host != self._host:
                self._out.send(holder.host, m.ReplayNotNeeded(self._out.run, name, consumer, index))
        if not holder.consumers:
            self.forget(name)

    def waits_for(self, host: str) -> tuple[str, str] | None:
        """Return an operator here whose tail on ``host`` is demanded, and the reason, or None (R3)."""
        repeated_s = self._out.now - 2 * self._retry_max_s  # a consumer that still waits has repeated its demand since
        for name, passed in self._passed.items():
            holder = self.kept.get(name)
            if passed.last_s > repeated_s and holder is not None and holder.host == host:
                return name, f"which keeps partition {passed.index} of it"
        return None

    def peer_gone(self, host: str) -> None:
        """Record the loss of ``host``: transfers to the host have ended, and its tails are lost."""
        self.unkeep(host)
        for window in self.left.values():
            window.peer_gone(host)

    def unkeep(self, host: str) -> None:
        """Record that ``host`` has no tails for operators here, because the host was lost or has joined."""
        for holder in self.kept.values():
            holder.gone = holder.gone or holder.host == host

    def forget(self, name: str) -> None:
        """Remove the records of the remote tail of an operator."""
        self.kept.pop(name, None)
        self._passed.pop(name, None)

    def shrink(self, turn: int) -> None:
        """Remove the tails of the old tree, which ended with partition ``turn``.

        Nothing was handed over while there were two trees, so every remote tail is older.
        """
        for name in [name for name, window in self.left.items() if window.unacked[-1].index <= turn]:
            del self.left[name]
        self.kept.clear()

    def cut(self, gone: AbstractSet[str]) -> None:
        """Remove nodes that are gone, as owners and as consumers of tails."""
        for name in gone:
            self.left.pop(name, None)
            self.forget(name)
        for name, window in list(self.left.items()):
            window.part(gone)
            if not window.consumers:
                del self.left[name]
        for name, holder in list(self.kept.items()):
            holder.consumers -= gone
            if not holder.consumers:
                self.forget(name)
