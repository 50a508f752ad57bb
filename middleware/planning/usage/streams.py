"""Queries for the placement by network usage: nodes, the streams between them, and the hosts of pinned nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.errors import UsageError
from thalweg.middleware.planning.problem.problem import Problem

LEAST_BYTES = 1.0  # least rate of a stream
Floats = npt.NDArray[np.float64]


class QueryStream(msgspec.Struct, frozen=True):
    """Stream from a node to one of its consumers. ``rate``: DR(l), in bytes a second."""

    producer: int
    consumer: int
    rate: float


class Query(msgspec.Struct, frozen=True, dict=True):
    """Streams between nodes, and the hosts of pinned nodes. Nodes are numbered from 0, producers before consumers."""

    streams: tuple[QueryStream, ...]
    pinned: Mapping[int, int]

    def check(self) -> Query:
        """Return self. Raise UsageError for a bad stream, or for a node that is joined to no pinned node."""
        for stream in self.streams:
            if not (math.isfinite(stream.rate) and stream.rate > 0):
                raise UsageError(
                    f"the stream from node {stream.producer} to {stream.consumer} has a rate of {stream.rate} bytes/s;"
                    " it must be above 0 and finite"
                )
            if not 0 <= stream.producer < stream.consumer:
                raise UsageError(
                    f"a stream goes from node {stream.producer} to {stream.consumer}; nodes are numbered so that a"
                    " producer comes before its consumers"
                )
        reached, follow = {*self.pinned}, [*self.pinned]
        while follow:
            more = {node for node, _ in self.beside[follow.pop()]} - reached
            reached |= more
            follow += more
        if lost := [node for node in range(self.nodes) if node not in reached]:
            raise UsageError(f"node {lost[0]} has no pin, and the nodes joined to it have none; pin one of these nodes")
        return self

    @cached_property
    def nodes(self) -> int:
        """Number of nodes."""
        return 1 + max((*(stream.consumer for stream in self.streams), *self.pinned), default=-1)

    @cached_property
    def operators(self) -> tuple[int, ...]:
        """Nodes that are to be placed."""
        return tuple(node for node in range(self.nodes) if node not in self.pinned)

    @cached_property
    def tree(self) -> bool:
        """Return whether exactly one path joins every two nodes, in either direction of the streams."""
        roots = list(range(self.nodes))
        for stream in self.streams:
            ends = []
            for node in (stream.producer, stream.consumer):
                while roots[node] != node:
                    node = roots[node]
                ends.append(node)
            if ends[0] == ends[1]:
                return False
            roots[ends[0]] = ends[1]
        return len(self.streams) == self.nodes - 1

    @cached_property
    def beside(self) -> Mapping[int, tuple[tuple[int, float], ...]]:
        """Neighbours of every node, each with the rate of the stream between the two nodes."""
        neighbours: dict[int, list[tuple[int, float]]] = {node: [] for node in range(self.nodes)}
        for stream in self.streams:
            neighbours[stream.producer].append((stream.consumer, stream.rate))
            neighbours[stream.consumer].append((stream.producer, stream.rate))
        return {node: tuple(pairs) for node, pairs in neighbours.items()}

    def usage(self, hosts: Sequence[int], latency_s: Floats) -> float:
        """Return the network usage u(q) of a placement: bytes in transit (Pietzuch et al., equation 1)."""
        return plain_sum(
            stream.rate * float(latency_s[hosts[stream.producer], hosts[stream.consumer]]) for stream in self.streams
        )

    def delay_s(self, hosts: Sequence[int], latency_s: Floats) -> float:
        """Return the longest delay from a source to a sink in a placement, in seconds."""
        since = [0.0] * self.nodes
        for stream in sorted(self.streams, key=lambda stream: stream.producer):
            way = float(latency_s[hosts[stream.producer], hosts[stream.consumer]])
            since[stream.consumer] = max(since[stream.consumer], since[stream.producer] + way)
        return max(since)


def query_of(problem: Problem) -> Query:
    """Return a compiled task as a query.

    The streams are the edges, with the bytes of a partition as rates. Nodes that cannot move are pinned to their hosts.
    """
    task, names = problem.task, problem.names
    sizes, input_bytes = task.hints.output_bytes, task.hints.input_bytes
    streams = []
    for producer, consumer in zip(problem.producer.tolist(), problem.consumer.tolist(), strict=True):
        measured = input_bytes.get(names[consumer], {}).get(names[producer], sizes[names[producer]])
        streams.append(QueryStream(producer, consumer, max(measured, LEAST_BYTES)))
    held = problem.at_sink()
    pinned = {node: int(held[node]) for node, movable in enumerate(problem.movable) if not movable}
    return Query(tuple(streams), pinned)
