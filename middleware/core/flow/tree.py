"""Graph of a run. While the old tree is drained after a reshaping (``reshaping.reshaping``), a run has two trees."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

from thalweg.middleware.dataflow import Dataflow, Node

NO_STARTS: Mapping[str, int] = MappingProxyType({})


class Tree:
    """Graph of one run. No other part writes it.

    Partitions up to ``turn`` pass through ``former``, if there is an old tree. Later partitions pass through
    ``dataflow``.
    """

    def __init__(self, dataflow: Dataflow, first: Mapping[str, int] = NO_STARTS) -> None:
        self.dataflow = dataflow
        self.consumers = dataflow.consumers  # of both trees, if there are two; a node of both has its new consumers
        self.former: Dataflow | None = None  # the old tree, until it is retired (``shrink``)
        self.turn = -1  # the last partition of the old tree
        self.fresh = -1  # first partition of the new tree or query: its producer may not know the commit
        self.first = dict(first)  # first partitions of nodes of later queries, or in a later generation

    def node_of(self, name: str) -> Node:
        """Return a node of either tree. If both trees have the node, return it as it is in the new tree."""
        node = self.dataflow.by_name.get(name)
        if node is None:
            assert self.former is not None
            return self.former.by_name[name]
        return node

    def consumer_of(self, name: str, index: int) -> str:
        """Return the consumer of partition ``index`` of node ``name``. In a tree, a node has one consumer."""
        if self.former is not None and index <= self.turn and name in self.former.by_name:
            return self.former.consumers[name][0]
        return self.consumers[name][0]

    def takes(self, consumer: str, producer: str, index: int) -> bool:
        """Return whether ``consumer`` takes partition ``index`` of ``producer``. False for unknown nodes."""
        if self.former is None:
            return consumer in self.consumers.get(producer, ())
        return bool(self.consumers.get(producer)) and self.consumer_of(producer, index) == consumer

    def sources_of(self, names: Iterable[str], index: int) -> set[str]:
        """Return the sources from which partition ``index`` of nodes ``names`` is made. Unknown nodes are ignored."""
        dataflow = self.dataflow if self.former is None or index > self.turn else self.former
        below = {name for name in names if name in dataflow.by_name}
        for name in reversed(dataflow.upward):  # consumers before producers
            if name in below:
                below.update(dataflow.by_name[name].inputs)
        return below.intersection(dataflow.sources)

    def keeps(self, name: str) -> bool:
        """Return whether a node has the same consumer in both trees.

        If so, the consumer may not know the new tree yet.
        """
        return self.former is not None and self.former.consumers.get(name) == self.dataflow.consumers.get(name)

    def has_edge(self, consumer: str, producer: str) -> bool:
        """Return whether ``producer`` is an input of ``consumer`` in the new tree."""
        node = self.dataflow.by_name.get(consumer)
        return node is not None and producer in node.inputs

    def grow(self, dataflow: Dataflow, turn: int) -> None:
        """Add a second tree: partitions after ``turn`` pass through ``dataflow``."""
        self.former, self.dataflow, self.turn, self.fresh = self.dataflow, dataflow, turn, turn + 1
        self.consumers = {**self.former.consumers, **dataflow.consumers}

    def shrink(self) -> AbstractSet[str]:
        """Drop the old tree. Return the nodes that only the old tree had."""
        assert self.former is not None
        gone = self.former.by_name.keys() - self.dataflow.by_name.keys()
        self.former, self.fresh = None, -1
        self.consumers = self.dataflow.consumers
        return gone

    def extend(self, dataflow: Dataflow, names: Iterable[str], first: int) -> None:
        """Add nodes ``names`` from partition ``first`` on. ``dataflow``: the graph with the new nodes."""
        self.first |= dict.fromkeys(names, first)
        self.dataflow, self.consumers, self.fresh = dataflow, dataflow.consumers, first

    def cut(self, gone: Collection[str]) -> None:
        """Remove nodes from the graph."""
        self.dataflow = without(self.dataflow, gone)
        self.consumers = self.dataflow.consumers
        for name in gone:
            self.first.pop(name, None)


def without(dataflow: Dataflow, gone: Collection[str]) -> Dataflow:
    """Return a dataflow without the nodes ``gone``."""
    return Dataflow(tuple([node for node in dataflow.nodes if node.name not in gone]))
