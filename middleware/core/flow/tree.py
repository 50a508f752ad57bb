"""The graph of a run; if it is a tree, two of them while the old one is drained (``reshaping.reshaping``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType

from thalweg.middleware.dataflow import Dataflow, Node

NO_STARTS: Mapping[str, int] = MappingProxyType({})


class Tree:
    """The only writer of a run's trees. Partitions up to ``turn`` come through ``former``, or else ``dataflow``."""

    def __init__(self, dataflow: Dataflow, first: Mapping[str, int] = NO_STARTS) -> None:
        self.dataflow = dataflow
        self.consumers = dataflow.consumers  # of both trees, where there are two; in the new one first
        self.former: Dataflow | None = None  # the old tree, until it is retired
        self.turn = -1  # the last partition that comes through it
        self.fresh = -1  # the first of another tree, or query: who is asked for it may not know of that
        self.first = dict(first)  # of nodes of later queries, or in a later generation: their first partition

    def node_of(self, name: str) -> Node:
        """A node of either tree; of one in both, as it is in the new one."""
        node = self.dataflow.by_name.get(name)
        if node is None:
            assert self.former is not None
            return self.former.by_name[name]
        return node

    def consumer_of(self, name: str, index: int) -> str:
        """Who takes partition ``index`` of node ``name``, which has one consumer."""
        if self.former is not None and index <= self.turn and name in self.former.by_name:
            return self.former.consumers[name][0]
        return self.consumers[name][0]

    def takes(self, consumer: str, producer: str, index: int) -> bool:
        """Whether ``consumer`` takes partition ``index`` of ``producer``, both perhaps unknown."""
        if self.former is None:
            return consumer in self.consumers.get(producer, ())
        return bool(self.consumers.get(producer)) and self.consumer_of(producer, index) == consumer

    def sources_of(self, names: Iterable[str], index: int) -> set[str]:
        """The sources that partition ``index`` of any of these nodes is made of; of an unknown one none."""
        dataflow = self.dataflow if self.former is None or index > self.turn else self.former
        below = {name for name in names if name in dataflow.by_name}
        for name in reversed(dataflow.upward):  # consumers before producers
            if name in below:
                below.update(dataflow.by_name[name].inputs)
        return below.intersection(dataflow.sources)

    def keeps(self, name: str) -> bool:
        """Whether a node has the same consumer in both trees, which may not have heard of the new one."""
        return self.former is not None and self.former.consumers.get(name) == self.dataflow.consumers.get(name)

    def has_edge(self, consumer: str, producer: str) -> bool:
        """Whether in the new tree ``producer`` is an input of ``consumer``."""
        node = self.dataflow.by_name.get(consumer)
        return node is not None and producer in node.inputs

    def grow(self, dataflow: Dataflow, turn: int) -> None:
        """Have two trees: ``dataflow`` for partitions after ``turn``."""
        self.former, self.dataflow, self.turn, self.fresh = self.dataflow, dataflow, turn, turn + 1
        self.consumers = {**self.former.consumers, **dataflow.consumers}

    def shrink(self) -> AbstractSet[str]:
        """Have the new tree only; the nodes that are gone with the old one."""
        assert self.former is not None
        gone = self.former.by_name.keys() - self.dataflow.by_name.keys()
        self.former, self.fresh = None, -1
        self.consumers = self.dataflow.consumers
        return gone

    def extend(self, dataflow: Dataflow, names: Iterable[str], first: int) -> None:
        """Have nodes ``names`` beside all others, from partition ``first`` on."""
        self.first |= dict.fromkeys(names, first)
        self.dataflow, self.consumers, self.fresh = dataflow, dataflow.consumers, first

    def cut(self, gone: Collection[str]) -> None:
        """Have these nodes no more."""
        self.dataflow = without(self.dataflow, gone)
        self.consumers = self.dataflow.consumers
        for name in gone:
            self.first.pop(name, None)


def without(dataflow: Dataflow, gone: Collection[str]) -> Dataflow:
    """A dataflow without some of its nodes."""
    return Dataflow(tuple([node for node in dataflow.nodes if node.name not in gone]))
