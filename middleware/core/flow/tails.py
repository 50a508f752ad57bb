"""Tails: the last outputs of nodes that have left this host, and those that others keep of operators here.

Rules:

R1. The last output of a node that has left, or has another consumer, is its *tail*: kept until all that have not got
    it have demanded a later one.
R2. What is demanded of an operator that left its tail elsewhere is passed on to there, and so is the demand for a later
    one, which lets go of it.
R3. A host that passes a demand on again to where the tail is waits for that host: the consumer waits for this one.
R4. A tail that has gone with its host is gone: nobody makes that partition again, and the client is told.
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
    """Tail of an operator here that another host keeps, and the consumers that may lack it."""

    host: str
    index: int
    consumers: set[str]
    gone: bool = False  # that host was lost, and may have joined again without it


class ForwardedDemands(msgspec.Struct):
    """Demands that only the host which keeps a last output can answer, first and last passed on to it then."""

    index: int
    first_s: float
    last_s: float


class Tails:
    """The only writer of a run's tails on this host (``left``), and of those that others keep for it (``kept``)."""

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
        self._passed: dict[str, ForwardedDemands] = {}  # to those

    def leave(self, name: str, window: SendWindow | None) -> None:
        """Keep the last output of a node (R1). ``window``: that output, and the consumers that may lack it."""
        if window is not None:
            self.left[name] = window

    def wanted(self, demand: m.Demand) -> list[Dispatch] | None:
        """Return the sends with which a tail answers a demand (R1). None: no tail on this host answers it.

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
        """Drop a tail for a consumer that needs no partition before ``index`` (R1)."""
        window = self.left.get(name)
        if window is not None and index > window.unacked[-1].index:
            window.part((consumer,))
            if not window.consumers:
                del self.left[name]

    def keep(self, name: str, host: str, index: int, consumers: set[str]) -> None:
        """That host keeps the last output of an operator that has come from there, which these have perhaps not got."""
        self.kept[name] = RemoteTail(host, index, consumers)

    def answers(self, demand: m.Demand) -> Literal["node", "elsewhere", "nobody"]:
        """Who answers a demand for an operator here whose last output another host keeps; that host is sent it."""
        name, index = demand.producer, demand.index
        holder = self.kept[name]
        host = holder.host
        if index > holder.index:  # which acknowledges it
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
        """R2: have the host of a tail let go of it for a consumer that needs nothing before partition ``index``."""
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
        """R3: an operator here of which that host keeps what is demanded, and what that is."""
        repeated_s = self._out.now - 2 * self._retry_max_s  # who demanded it later still does
        for name, passed in self._passed.items():
            holder = self.kept.get(name)
            if passed.last_s > repeated_s and holder is not None and holder.host == host:
                return name, f"which keeps partition {passed.index} of it"
        return None

    def peer_gone(self, host: str) -> None:
        """A host was lost: no transfer to it is under way, and what it kept is gone."""
        self.unkeep(host)
        for window in self.left.values():
            window.peer_gone(host)

    def unkeep(self, host: str) -> None:
        """A host that was lost, or has joined, has no last outputs of operators here."""
        for holder in self.kept.values():
            holder.gone = holder.gone or holder.host == host

    def forget(self, name: str) -> None:
        """No host keeps anything of that operator for this one."""
        self.kept.pop(name, None)
        self._passed.pop(name, None)

    def shrink(self, turn: int) -> None:
        """The old tree has ended with partition ``turn``: nothing was handed over meanwhile, so all is of before."""
        for name in [name for name, window in self.left.items() if window.unacked[-1].index <= turn]:
            del self.left[name]
        self.kept.clear()

    def cut(self, gone: AbstractSet[str]) -> None:
        """These nodes are gone."""
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
