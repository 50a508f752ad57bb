"""Code of the nodes of a trial's tree, and the expected value of every partition."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.shell.node_code import ENDED, NodeCode, NodeResult

FREE = Code("free")  # operators that combine in any order and grouping
MERGING = Code("seen")  # free operators that remember, with states that merge
DISK_S = 0.01

Known = dict[tuple[str, int], Any]


def content(dataflow: Dataflow, name: str, index: int, known: Known) -> Any:
    """Return the expected value of partition ``index`` of a node: everything that it was combined from, in order.

    The third element is the number of partitions that an operator had combined before. ``known``: values from earlier
    calls.
    """
    if (name, index) not in known:
        node = dataflow.by_name[name]
        if node.code == MERGING:
            known[name, index] = shown(index, _given(dataflow, name, index, known))
        else:
            inputs = tuple(content(dataflow, producer, index, known) for producer in node.inputs)
            before = index if node.kind == "operator" else 0
            known[name, index] = mixed(index, inputs) if node.code == FREE else (name, index, before, *inputs)
    return known[name, index]


def _given(dataflow: Dataflow, name: str, index: int, known: Known) -> set[Seen]:
    """Return the past inputs up to partition ``index`` of a merging operator and of merging operators below."""
    memory: set[Seen] = set()
    for producer in dataflow.by_name[name].inputs:
        if dataflow.by_name[producer].code == MERGING:
            memory |= _given(dataflow, producer, index, known)
        else:
            memory |= seen([content(dataflow, producer, i, known) for i in range(index + 1)])
    return memory


Seen = tuple[int, int]  # index and hash of a partition


def seen(values: Iterable[Any]) -> set[Seen]:
    """Return the inputs that a merging operator remembers, with those that merging operators below show."""
    memory: set[Seen] = set()
    for value in values:
        memory |= set(value[2]) if value[0] == "seen" else {(value[1], zlib.crc32(repr(value).encode()))}
    return memory


def shown(index: int, past: set[Seen]) -> Any:
    """Return the output of a merging operator: its past inputs, those of an odd partition from the next output on."""
    return ("seen", index, tuple(sorted(item for item in past if item[0] <= index - index % 2)))


def mixed(index: int, inputs: tuple[Any, ...]) -> Any:
    """Return the output of a free operator: its inputs and the inputs of free operators below, in no order."""
    parts = [part for value in inputs for part in (value[2] if value[0] == "mixed" else (value,))]
    return ("mixed", index, tuple(sorted(parts)))


class Counting(NodeCode):
    """Code whose partitions state their inputs and the number of partitions before. This number is the state.

    The state of a merging operator is its past inputs. With ``tells`` the code reports changes of the state.
    ``size_bytes``: of the state, or of a source's partitions. ``length``: of a source's stream. ``takes_s``: time of an
    operator for a partition.
    """

    def __init__(self, node: Node, size_bytes: int, length: int, takes_s: float, *, tells: bool = False) -> None:
        self.node, self.size_bytes, self.length, self.takes_s = node, size_bytes, length, takes_s
        self.keeps_state = node.code == MERGING  # a state that could be lost
        self.reorderable = self.keeps_state or node.code == FREE
        self.before = 0
        self.seen: set[Seen] = set()
        self.told: tuple[int, set[Seen]] | None = (0, set()) if tells else None

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        if not inputs:
            if index >= self.length:
                return ENDED
            return NodeResult((self.node.name, index, 0), self.size_bytes, DISK_S)
        if self.keeps_state:
            self.seen |= seen(inputs)
            value: Any = shown(index, self.seen)
        else:
            value = mixed(index, inputs) if self.reorderable else (self.node.name, index, self.before, *inputs)
        self.before += 1
        return NodeResult(value, 20_000, self.takes_s)

    def snapshot(self) -> bytes:
        self._tell()
        memory = sorted(self.seen) if self.keeps_state else self.before
        return msgspec.json.encode(memory).ljust(self.size_bytes)

    def restore(self, state: bytes) -> None:
        if self.keeps_state:
            self.seen = set(msgspec.json.decode(state, type=list[Seen]))
        else:
            self.before = int(state)
        self._tell()

    def _tell(self) -> None:
        if self.told is not None:
            self.told = self.before, set(self.seen)

    def delta(self) -> bytes | None:
        if self.told is None:
            return None
        before, seen = self.told
        self._tell()
        return msgspec.json.encode((self.before - before, sorted(self.seen - seen)))

    def apply(self, delta: bytes) -> None:
        more, seen = msgspec.json.decode(delta, type=tuple[int, list[Seen]])
        self.before += 0 if self.keeps_state else more
        self.seen |= set(seen)
        self._tell()

    def merge(self, states: Sequence[bytes]) -> bytes:
        merged: set[Seen] = set()
        for state in states:
            merged |= set(msgspec.json.decode(state, type=list[Seen]))
        return msgspec.json.encode(sorted(merged))

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        return 20_000.0

    def compute_s(self, input_sizes: Sequence[float]) -> float:
        return self.takes_s
