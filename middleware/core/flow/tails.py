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
from thalweg.middleware.core.flow.actions import ConsumerState, Output
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.forwards import MAX_FORWARDS, forwarded
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.measuring.silence import Suspicions
from thalweg.middleware.protocol import messages as m


class Tail(msgspec.Struct):
    """The last output of a node for consumers that it does not serve from here any more, until they acknowledge it."""

    output: Output
    takers: dict[str, ConsumerState]

    def is_due(self, demand: m.Demand) -> bool:
        """Whether the consumer is to be sent it now: it is not on its way, and did not land while this was said."""
        taker = self.takers[demand.consumer]
        if demand.again and taker.landed == demand.index:
            taker.landed = -1
            return False
        return not taker.sending

    def was_sent(self, consumer: str, to: str) -> None:
        """Its transfer to that host has begun, or, where that is none, is over."""
        self.takers[consumer].to, self.takers[consumer].sending = to, bool(to)

    def on_transfer_over(self, index: int, consumer: str, *, arrived: bool) -> None:
        """A transfer of a partition of this node is over."""
        if index == self.output.index and consumer in self.takers:
            taker = self.takers[consumer]
            taker.sending, taker.landed = False, index if arrived else -1


class RemoteTail(msgspec.Struct):
    """Another host that keeps the last output of an operator here, and who may not have got it from there."""

    host: str
    index: int
    takers: set[str]
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
        "_tree",
        "kept",
        "left",
    )

    def __init__(self, context: RunContext, silence: Suspicions, tree: Tree, directory: Directory) -> None:
        self._out, self._host, self._to = context.out, context.out.host, context.install.client
        self._retry_max_s, self._lasts = context.limits.retry_max_s, context.fails_over
        self._silence, self._tree, self._directory = silence, tree, directory
        self.left: dict[str, Tail] = {}
        self.kept: dict[str, RemoteTail] = {}
        self._passed: dict[str, ForwardedDemands] = {}  # to those

    def leave(self, node: NodeCore) -> None:
        """R1: keep a node's last output, for consumers that may not have got it."""
        output, name = node.retained, node.node.name
        if output is not None:
            self.left[name] = tail = Tail(output, {})
            for consumer, taker in node.takers.items():
                if node.taker is not None or taker.demanded <= output.index:  # the only one has perhaps changed
                    consumer = consumer or self._tree.consumer_of(name, output.index)
                    tail.takers[consumer] = taker.of_last(output.index)
            node.release()

    def wanted(self, demand: m.Demand) -> Tail | None:
        """R1: the tail that answers this demand. Who demands a later partition has let go of it."""
        tail = self.left.get(demand.producer)
        if tail is None or demand.index < tail.output.index:
            return None
        if demand.index > tail.output.index:
            self.let_go(demand.producer, demand.consumer, demand.index)
            return None
        return tail if demand.consumer in tail.takers else None

    def let_go(self, name: str, consumer: str, index: int) -> None:
        """R1: let go of a tail for a consumer that needs nothing of the node before partition ``index``."""
        tail = self.left.get(name)
        if tail is None or index <= tail.output.index:
            return
        if self._tree.former is None or index <= self._tree.turn:  # else it is perhaps another consumer's
            tail.takers.pop(consumer, None)
            if not tail.takers:
                del self.left[name]

    def keep(self, name: str, host: str, index: int, takers: set[str]) -> None:
        """That host keeps the last output of an operator that has come from there, which these have perhaps not got."""
        self.kept[name] = RemoteTail(host, index, takers)

    def answers(self, demand: m.Demand) -> Literal["node", "elsewhere", "nobody"]:
        """Who answers a demand for an operator here whose last output another host keeps; that host is sent it."""
        name, index = demand.producer, demand.index
        holder = self.kept[name]
        host = holder.host
        if self._tree.former is not None and index > self._tree.turn:  # perhaps of another consumer
            return "node"
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
        if index <= holder.index or (self._tree.former is not None and index > self._tree.turn):
            return
        if consumer in holder.takers:
            holder.takers.discard(consumer)
            if holder.host != self._host:
                self._out.send(holder.host, m.ReplayNotNeeded(self._out.run, name, consumer, index))
        if not holder.takers:
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
        for tail in self.left.values():
            for taker in tail.takers.values():
                taker.unsent(host)

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
        for name in [name for name, tail in self.left.items() if tail.output.index <= turn]:
            del self.left[name]
        self.kept.clear()

    def cut(self, gone: AbstractSet[str]) -> None:
        """These nodes are gone."""
        for name in gone:
            self.left.pop(name, None)
            self.forget(name)
        for name, tail in list(self.left.items()):
            tail.takers = {consumer: taker for consumer, taker in tail.takers.items() if consumer not in gone}
            if not tail.takers:
                del self.left[name]
        for name, holder in list(self.kept.items()):
            holder.takers -= gone
            if not holder.takers:
                self.forget(name)
