"""What a planner is told of the work: sizes and compute times of the nodes, and what resources cost.

Source of the defaults: Ranganathan, Acharya, Saltz (1998), section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.dataflow import Dataflow, Node
from thalweg.middleware.errors import UsageError
from thalweg.middleware.loading import may_reorder
from thalweg.middleware.network.figures import HostFigures, NodeFigures

PAPER_STARTUP_S = 0.05  # "the message startup cost was set to 50 milliseconds"
PAPER_DISK_BYTES_PER_S = 3e6  # "the disk bandwidth was set to 3MB/s"


class Hints(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one partition means for every node.

    ``output_bytes``: size of the output of every source and operator; ``compute_s``: seconds an
    operator computes (a node left out computes nothing); ``disk_bytes``: what a source reads from its disk (a
    source left out reads as much as it sends; give 0 for one that generates its data).

    What was measured of nodes that run already takes the place of what is declared: ``input_bytes``: bytes of a
    partition at every node that takes some, by producer; ``rates_hz``: partitions a second. ``hosts``: what hosts
    declare of their processors, and their loads.

    ``reorderable``: the operators that may be combined in any order and grouping with the same bytes as result, and
    for each who tells what such a combination makes and takes; a shape may be changed where these are.
    """

    output_bytes: dict[str, float]
    compute_s: dict[str, float] = {}
    disk_bytes: dict[str, float] = {}
    reorderable: dict[str, SupportsHints] = {}
    input_bytes: dict[str, dict[str, float]] = {}
    rates_hz: dict[str, float] = {}
    hosts: dict[str, HostFigures] = {}

    def selectivity(self, node: str) -> float:
        """Bytes that a node gives for each that it takes; nan where it takes none, or nobody knows how many."""
        input_bytes = plain_sum(self.input_bytes.get(node, {}).values())
        return self.output_bytes.get(node, math.nan) / input_bytes if input_bytes else math.nan

    def measured(self, nodes: Mapping[str, NodeFigures], hosts: Mapping[str, HostFigures]) -> Hints:
        """The same with what was measured of these."""
        inputs = {name: figures.input_bytes for name, figures in nodes.items() if figures.input_bytes}
        return msgspec.structs.replace(
            self,
            output_bytes=self.output_bytes | {name: figures.output_bytes for name, figures in nodes.items()},
            compute_s=self.compute_s | {name: nodes[name].call_s for name in inputs},
            input_bytes=self.input_bytes | inputs,
            rates_hz=self.rates_hz | {name: figures.rate_hz for name, figures in nodes.items()},
            hosts={**self.hosts, **hosts},
        )

    def of(self, dataflow: Dataflow) -> Hints:
        """The same, with none of the operators to be reordered that are no part of ``dataflow``."""
        inside = {name: operator for name, operator in self.reorderable.items() if name in dataflow.by_name}
        return msgspec.structs.replace(self, reorderable=inside)

    def check(self, dataflow: Dataflow) -> Hints:
        """Return self, or raise UsageError naming the node whose size or time is missing or negative."""
        for node in dataflow.nodes:
            if node.kind != "sink" and node.name not in self.output_bytes:
                raise UsageError(f"the hints leave out the output size of {node.kind} {node.name!r}; give its bytes")
        for field in ("output_bytes", "compute_s", "disk_bytes", "rates_hz"):
            for name, value in getattr(self, field).items():
                if not (math.isfinite(value) and value >= 0):
                    raise UsageError(f"{field} of node {name!r} is {value}; it must be finite and at least 0")
        for name, inputs in self.input_bytes.items():
            for producer, value in inputs.items():
                if not (math.isfinite(value) and value >= 0):
                    edge = f"input_bytes of node {name!r} from {producer!r}"
                    raise UsageError(f"{edge} are {value}; they must be finite and at least 0")
        return self


class CostParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What resources cost; the defaults are those of the paper's section 4.

    - ``startup_s``: start-up cost of a message between two hosts, seconds (0: none)
    - ``disk_bytes_per_s``: bandwidth of a source's disk, bytes per second (``inf``: reads are free)
    - ``compute_factor``: multiplies every compute time (0: computing is free)
    - ``host_compute_factor``: a further factor for single hosts (2: half as fast; default 1)
    - ``cores``: computations that a host runs at once; the period model divides a host's compute by it
    """

    startup_s: float = PAPER_STARTUP_S
    disk_bytes_per_s: float = PAPER_DISK_BYTES_PER_S
    compute_factor: float = 1.0
    host_compute_factor: dict[str, float] = {}
    cores: int = 1

    def __post_init__(self) -> None:
        for field in ("startup_s", "compute_factor"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{field} is {value}; it must be finite and at least 0 (0 turns it off)")
        if not self.disk_bytes_per_s > 0:
            raise UsageError(f"disk_bytes_per_s is {self.disk_bytes_per_s}; it must be above 0 (inf turns it off)")
        if self.cores < 1:
            raise UsageError(f"cores is {self.cores}; a host needs at least one")
        for host, factor in self.host_compute_factor.items():
            if not (math.isfinite(factor) and factor >= 0):
                raise UsageError(f"host_compute_factor of {host!r} is {factor}; it must be finite and at least 0")


@runtime_checkable
class SupportsHints(Protocol):
    """How an operator answers what it makes of inputs of given sizes (bytes, in the order of its inputs).

    One that has an attribute ``reorderable`` that is true says besides that combining is associative and commutative
    to the byte; it counts where it has no state, or a ``merge``.
    """

    def output_size_bytes(self, input_sizes: Sequence[float], /) -> float: ...

    def compute_s(self, input_sizes: Sequence[float], /) -> float: ...


class Answers(NamedTuple):
    """Functions that give the planner an operator's hints, in place of the operator itself (see ``SupportsHints``)."""

    output_size_bytes: Callable[[Sequence[float]], float]
    compute_s: Callable[[Sequence[float]], float] = lambda _: 0.0
    reorderable: bool = False


def propagate_hints(
    dataflow: Dataflow,
    source_bytes: Mapping[str, float],
    operator_of: Callable[[Node], SupportsHints],
    *,
    disk_bytes: Mapping[str, float] | None = None,
) -> Hints:
    """Hints for the whole tree from the sizes of its sources, asking every operator on the way up.

    ``source_bytes``: node name of every source → bytes of a partition; ``operator_of`` gives for an
    operator node the object that answers for it. Raises UsageError for a source left out.
    """
    sizes: dict[str, float] = {}
    compute: dict[str, float] = {}
    reorderable: dict[str, SupportsHints] = {}
    for name in dataflow.upward:
        node = dataflow.by_name[name]
        if node.kind == "source":
            if name not in source_bytes:
                raise UsageError(f"no size is given for source {name!r}; give the bytes of one partition")
            sizes[name] = float(source_bytes[name])
        elif node.kind == "operator":
            inputs = [sizes[producer] for producer in node.inputs]
            operator = operator_of(node)
            sizes[name] = float(operator.output_size_bytes(inputs))
            compute[name] = float(operator.compute_s(inputs))
            if may_reorder(operator) and node.missing == "wait":  # another tree would say that of other operators
                reorderable[name] = operator
    return Hints(sizes, compute, dict(disk_bytes or {}), reorderable).check(dataflow)
