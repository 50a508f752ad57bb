"""One run as a host sees it, .

What is decided about it is in ``flow``, ``relocation`` and ``barrier`` (moves), ``reshaping`` and ``inheritance``
(other trees), ``steering`` and ``local_steering`` (when), ``silence`` (ways that are dead) and ``coordinator``
(beginning and end).
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any

import msgspec

from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.relocation.handover import Arrival, Guest, Leaving, Tail
from thalweg.middleware.core.relocation.inheritance import Heir, Legacy
from thalweg.middleware.core.relocation.proposal import Membership, Proposer, Switch
from thalweg.middleware.core.relocation.reshaping import Bud
from thalweg.middleware.core.steering.epochs import EpochBook
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.protocol import messages as m


class Pending(msgspec.Struct):
    """A demand sent to another host that has not been answered."""

    index: int
    due_s: float
    interval_s: float
    asked_s: float  # when it was demanded first


class RunState:
    """One run as this host sees it."""

    def __init__(self, install: m.Install, host: str, now: float) -> None:
        self.install = install
        self.id = install.run
        self.opened_s = now
        self.dataflow = install.dataflow
        self.consumers = self.dataflow.consumers  # of both trees, where there are two; in the new one first
        self.former: Dataflow | None = None  # the old tree, until it is retired
        self.turn = -1  # the last partition that comes through it
        self.buds: dict[str, Bud] = {}  # operators that may appear here (reshaping.py)
        self.heirs: dict[str, Heir] = {}  # operators that have appeared here, and wait for states (inheritance.py)
        self.legacies: dict[str, Legacy] = {}  # by the operators here that disappear
        self.free: tuple[Code, ...] = ()  # codes that are reorderable, as far as this application was asked
        self.merging: tuple[Code, ...] = ()  # those with state among them
        self.locations = {location.node: location for location in install.locations}
        self.nodes: dict[str, NodeCore] = {}
        for node in install.dataflow.nodes:
            if self.locations[node.name].host == host:
                self.nodes[node.name] = NodeCore(node, install.partitions)
        self.pending: dict[tuple[str, str], Pending] = {}  # (consumer here, producer)
        self.answer_s: dict[tuple[str, str], float] = {}  # how long the last answer to such a demand took
        self.heard_s = now  # from the client
        self.hosts = {peer.name for peer in install.peers} | {entry.host for entry in install.locations}
        self.peers = {peer.name: peer for peer in install.peers}
        # what has changed of the locations, in order, and how much of it each host was told
        self.changes = 0
        self.changed: dict[str, int] = {}
        self.told: dict[str, int] = {}
        # operators on the move (relocation.py, barrier.py)
        self.leaving: dict[str, Leaving] = {}
        self.guests: dict[str, Guest] = {}
        self.tails: dict[str, Tail] = {}
        self.tail_hosts: dict[str, str] = {}  # of operators here: who keeps their last output
        self.arrivals: dict[str, Arrival] = {}
        self.move_due_s: float | None = None
        self.member = Membership()
        self.proposer = Proposer()
        self.switch: Switch | None = None
        # what decides on moves (steering.py)
        self.spent = (0, 0, 0)
        self.books: dict[str, EpochBook] = {}
        self.sizes: dict[tuple[str, str], int] = {}  # (consumer, producer) -> bytes of the last input
        self.state_bytes: dict[str, int] = {}
        self.compute_s: dict[str, float] = {}

    def node_of(self, name: str) -> Node:
        """A node of either tree; of one in both, as it is in the new one."""
        node = self.dataflow.by_name.get(name)
        if node is None:
            assert self.former is not None
            return self.former.by_name[name]
        return node

    def inputs_of(self, name: str) -> tuple[str, ...]:
        return self.node_of(name).inputs

    def consumer_of(self, name: str, index: int) -> str:
        """Who takes partition ``index`` of node ``name``."""
        if self.former is not None and index <= self.turn and name in self.former.by_name:
            return self.former.consumers[name][0]
        return self.consumers[name][0]

    def takes(self, consumer: str, producer: str, index: int) -> bool:
        """Whether ``consumer`` takes partition ``index`` of ``producer``, both perhaps unknown."""
        if self.former is None:
            return consumer in self.consumers.get(producer, ())
        return bool(self.consumers.get(producer)) and self.consumer_of(producer, index) == consumer

    def keeps(self, name: str) -> bool:
        """Whether a node has the same consumer in both trees, which may not have heard of the new one."""
        return self.former is not None and self.former.consumers.get(name) == self.dataflow.consumers.get(name)

    def grow(self, dataflow: Dataflow, turn: int) -> None:
        """Have two trees: ``dataflow`` for partitions after ``turn``."""
        self.former, self.dataflow, self.turn = self.dataflow, dataflow, turn
        self.consumers = {**self.former.consumers, **dataflow.consumers}

    def shrink(self, gone: AbstractSet[str]) -> None:
        """Have the new tree only; forget these nodes."""
        self.former = None
        self.consumers = self.dataflow.consumers
        of_nodes: tuple[dict[str, Any], ...] = (
            self.locations, self.changed, self.books, self.arrivals, self.state_bytes, self.compute_s,
        )  # fmt: skip
        for table in of_nodes:
            for name in gone & table.keys():
                del table[name]
        of_edges: tuple[dict[tuple[str, str], Any], ...] = (self.pending, self.answer_s, self.sizes)
        for edges in of_edges:
            for edge in [edge for edge in edges if edge[1] not in self.inputs_of_now(edge[0])]:
                del edges[edge]

    def inputs_of_now(self, name: str) -> tuple[str, ...]:
        node = self.dataflow.by_name.get(name)
        return () if node is None else node.inputs

    def operators(self) -> int:
        """How many operators are here."""
        return sum(node.node.kind == "operator" for node in self.nodes.values())

    def host_of(self, node: str, index: int) -> str:
        """The host that ``node`` is on when it works on partition ``index``."""
        location = self.locations[node]
        switch = self.switch
        if switch is not None and index > switch.iteration:
            move = switch.moves.get(node)
            if move is not None and move.version == location.version:
                return move.target
        return location.host
