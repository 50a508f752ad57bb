"""The queries of a run, at its client: who uses which nodes, and what goes when one leaves.

Rules:

R1. A query is its sinks; it uses all that leads to them. The one that the run began with is number 0.
R2. What no other query uses goes with one that leaves. All hosts are told (``growth``), again and again until they have
    answered: only then is another query proposed, or another shape.
R3. Who is being proposed is not known to all hosts: nobody leaves meanwhile. The last of all stay, and keep nobody
    waiting, while others are to be proposed, which are to share what is there.
R4. Code that fails, and hosts that are lost, end the queries that use them, and no others. Where all do, it is the run.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.notes import Left, Lost, Notes
from thalweg.middleware.core.outbox import Setting, Timer
from thalweg.middleware.protocol import messages as m


class Queries:
    """The client's list of one run's queries."""

    def __init__(self, setting: Setting, tree: Tree, directory: Directory) -> None:
        self._out, self._limits = setting.out, setting.limits
        self._tree, self._directory = tree, directory
        self.sinks: dict[int, tuple[str, ...]] = {0: tree.dataflow.sinks}
        self.joining = False  # R3
        self.expected = 0  # queries that are to be proposed
        self._leaving: list[int] = []
        self._number = 0  # of what all are told
        self._gone: tuple[str, ...] = ()
        self._waiting: set[str] = set()  # for hosts that have not answered

    @property
    def busy(self) -> bool:
        """Whether some hosts may not know yet that a query has left."""
        return bool(self._waiting or (self._leaving and not self._stay))

    @property
    def _stay(self) -> bool:
        """R3: whether those that leave are the last of all, and others are to come."""
        return self.expected > 0 and self.sinks.keys() <= set(self._leaving)

    def _nodes_of(self, queries: Collection[int]) -> set[str]:
        """R1: what these queries use."""
        below = self._tree.dataflow.below
        return {name for query in queries for sink in self.sinks[query] for name in below(sink)}

    def leave(self, query: int) -> None:
        """A query is to leave."""
        if query in self.sinks and query not in self._leaving:
            self._leaving.append(query)
            self._go_on()

    def joined(self) -> None:
        """Nothing is being proposed any more."""
        self.joining = False
        self._go_on()

    def _go_on(self) -> None:
        """R2: tell everyone, if somebody leaves and nothing else is told."""
        if self._waiting or self.joining or not self._leaving or self._stay:
            return
        for query in self._leaving:
            del self.sinks[query]
            self.record(query, "left", "", {})
        self._leaving = []
        used = self._nodes_of(self.sinks)
        if not self.sinks or used >= self._tree.dataflow.by_name.keys():
            return  # who is the last ends the run
        self._number += 1
        self._gone = tuple([node.name for node in self._tree.dataflow.nodes if node.name not in used])
        self._waiting = set(self._directory.hosts)
        self.on_timer()

    def record(self, query: int, outcome: str, why: str, names: dict[str, str]) -> None:
        """What has become of a query; ``names``: of its nodes in the run."""
        begins = min([self._tree.first.get(name, 0) for name in self.sinks.get(query, ())], default=None)
        detail = {"query": query, "outcome": outcome, "why": why, "names": names}
        self._out.record("query", index=begins if outcome == "begun" else None, detail=detail)

    def on_timer(self) -> None:
        """Tell those that have not answered."""
        for host in sorted(self._waiting):
            self._out.send(host, m.Detach(self._out.run, self._number, self._gone))
        if self._waiting:
            self._out.wake(Timer.LEAVE, self._out.now + self._limits.retry_s)

    def on_detached(self, sender: str, message: m.Detached) -> Notes:
        if message.number == self._number:
            yield from self._without(sender)

    def on_lost(self, note: Lost) -> Notes:
        yield from self._without(note.host)

    def _without(self, host: str) -> Notes:
        if host in self._waiting:
            self._waiting.discard(host)
            if not self._waiting:
                self._go_on()
                yield Left()

    def fail(self, nodes: Collection[str], reason: str, **fields: Any) -> bool:
        """R4: these nodes cannot go on; False where all queries use one of them, or none as it is of an old tree."""
        users = {query for query in self.sinks if not self._nodes_of((query,)).isdisjoint(nodes)}
        if not users or users.issuperset(self.sinks.keys() - self._leaving):
            return False
        for query in sorted(users.difference(self._leaving)):
            self._out.fail(reason, query=query, **fields)
            self.leave(query)
        return True
