"""Graphs that a seed draws, with filters and windows, and the code of their nodes.

Operators and sources are like those of applications: hosts call them like any code, and so does ``reference_run`` on
one machine. A value is bytes that name its node, its index, a hash of its inputs and the number of values before. A
value that was lost, doubled or mixed up on the way, or in a state, shows in the values of a sink.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.middleware.parcels import NOTHING, Nothing
from thalweg.middleware.shell.node_code import NodeResult, OwnCode
from thalweg.operators.interface import Operator, Source

ALLOW = (*DEFAULT_ALLOW, __name__)
MAX_FAN = 4
AHEAD = (1, 1, 1, 2, 4)  # outputs that a node keeps
PASSED = (5, 30, 80)  # of a hundred values, the number that a filter passes
ROWS = (2, 3, 5, 9)  # values in a window
STATES = (1, 1, 18_000, 300_000)  # bytes: inline, bulk in one chunk, bulk in chunks, refused if not wanted
RATES = (None, None, 3.0, 20.0)  # of sources, in the same graphs as filters and windows
WITH_GAPS = (1, 2)  # of every three seeds: some operators of the graph filter or have windows
BROKEN = "drawn to fail"
MADE_BYTES = 20_000.0  # size of an operator's output on a link

Value = bytes | Nothing


def draw_graph(dice: Random, hosts: Sequence[str], client: str) -> Dataflow:
    """Draw a graph of 3 to 15 nodes over sources on any hosts, with fan-in and fan-out to 4 and one or two sinks."""
    while True:
        flow = _any_graph(dice, hosts, client)
        wide = max(len(takers) for takers in flow.consumers.values())
        if wide <= MAX_FAN and flow.not_a_tree() and not flow._apart():
            return flow.validate(hosts)


def _any_graph(dice: Random, hosts: Sequence[str], client: str) -> Dataflow:
    count = dice.randint(1, 5)
    ahead = [dice.choice(AHEAD) for _ in range(20)]
    names = [f"s{i}" for i in range(count)]
    nodes = [Node(name, "source", (), Code("source"), dice.choice(hosts)) for name in names]
    fresh = set(names)
    for i in range(dice.randint(1, 8)):
        inputs = {dice.choice(sorted(fresh or names)), *dice.sample(names, min(len(names), dice.randint(0, 3)))}
        nodes.append(Node(f"o{i}", "operator", tuple(sorted(inputs)), Code("operator")))
        fresh = (fresh - inputs) | {f"o{i}"}
        names.append(f"o{i}")
    nodes = [msgspec.structs.replace(node, ahead=most) for node, most in zip(nodes, ahead, strict=False)]
    loose = sorted(fresh)
    sinks: list[list[str]] = [[], []] if dice.random() < 0.8 else [[]]
    for name in loose:
        dice.choice(sinks).append(name)
    for some in (sink for sink in sinks if not sink or dice.random() < 0.3):
        some.append(dice.choice([name for name in names if name not in some]))
    return Dataflow((*nodes, *(Node(f"t{i}", "sink", tuple(members), None, client) for i, members in enumerate(sinks))))


def coded(flow: Dataflow, seed: int, sizes: dict[str, int], lengths: dict[str, int]) -> Dataflow:
    """Return the graph with code in its nodes. ``sizes``: bytes of operators' states. ``lengths``: of streams."""
    dice = Random(f"{seed} gaps")

    def code_of(node: Node) -> Code:
        if node.kind == "source":
            return numbers(node.name, lengths.get(node.name))
        return draw_code(dice, node.name, sizes[node.name], gaps=seed % 3 in WITH_GAPS)

    nodes = [node if node.kind == "sink" else msgspec.structs.replace(node, code=code_of(node)) for node in flow.nodes]
    for number in range(len(flow.sources)) if seed % 3 in WITH_GAPS else ():
        nodes[number] = msgspec.structs.replace(nodes[number], rate=dice.choice(RATES))
    return Dataflow(tuple(nodes))


def numbers(name: str, length: int | None = None) -> Code:
    """Return the code of a source of ``length`` values."""
    return Code(f"{__name__}:Numbers", {"name": name, "length": length})


def draw_code(dice: Random, name: str, state_bytes: int, *, gaps: bool) -> Code:
    """Draw the code of an operator. With ``gaps``, the operator may be a filter or have a window."""
    params: dict[str, Any] = {"name": name, "state_bytes": state_bytes}
    kind = dice.random()
    if gaps and kind < 0.3:
        params["passed"] = dice.choice(PASSED)
    elif gaps and kind < 0.6:
        rows = dice.choice(ROWS)
        params |= {"rows": rows, "every": dice.randint(1, rows), "on_nothing": dice.random() < 0.3}
    return Code(f"{__name__}:Counting", params)


class Numbers(Source[bytes]):
    """Source of ``length`` values: its name with the index."""

    def __init__(self, name: str, length: int | None = None) -> None:
        self.name, self.length = name, length

    def produce(self, index: int) -> bytes | None:
        return None if self.length is not None and index >= self.length else f"{self.name} {index}".encode()


class Counting(Operator[Value, bytes]):
    """Operator whose output has a hash of its inputs and the number of calls. Its state takes ``state_bytes`` or more.

    A filter passes ``passed`` of a hundred values. A window has an output at ``rows`` values, and drops the ``every``
    oldest. With ``on_nothing`` an index without a value counts as a value. After ``breaks_after`` calls the operator
    fails.
    """

    def __init__(
        self,
        name: str,
        state_bytes: int = 1,
        passed: int = 100,
        rows: int = 1,
        every: int = 1,
        on_nothing: bool = False,
        breaks_after: int | None = None,
    ) -> None:
        self.name, self.state_bytes, self.passed = name, state_bytes, passed
        self.rows, self.every, self.on_nothing = rows, every, on_nothing
        self.breaks_after = breaks_after
        self.before = 0
        self.window: list[int] = []

    def combine(self, inputs: Sequence[Value], index: int) -> bytes | Nothing:
        if self.before == self.breaks_after:
            raise ValueError(BROKEN)
        digest = zlib.crc32(repr([*inputs]).encode())
        self.before += 1
        if digest % 100 >= self.passed:
            return NOTHING
        self.window.append(digest)
        if len(self.window) < self.rows:
            return NOTHING
        output = f"{self.name} {index}: {self.before} {self.window}".encode()
        del self.window[: self.every]
        return output

    def snapshot(self) -> bytes:
        return msgspec.json.encode((self.before, self.window)).ljust(self.state_bytes)

    def restore(self, state: bytes) -> None:
        self.before, self.window = msgspec.json.decode(state, type=tuple[int, list[int]])


class Timed(OwnCode):
    """Code of a node on a host, with the times of a trial and the size of a source's partitions."""

    def __init__(self, node: Node, size_bytes: int, disk_s: float, takes_s: float) -> None:
        super().__init__(node, ALLOW)
        self.size_bytes = size_bytes if self.is_source else MADE_BYTES
        self.takes_s = disk_s if self.is_source else takes_s

    def make(self, index: int, inputs: tuple[object, ...]) -> NodeResult:
        result = super().make(index, inputs)
        if result.end:
            return result
        return msgspec.structs.replace(
            result, size_bytes=int(result.size_bytes and self.size_bytes), seconds=self.takes_s
        )

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        return self.size_bytes

    def compute_s(self, input_sizes: Sequence[float]) -> float:
        return self.takes_s
