"""Properties of the work that a planner needs: sizes and compute times of the nodes, and what resources cost.

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
    """Bytes and seconds of one partition at every node.

    - ``output_bytes``: size of the output of every source and operator.
    - ``compute_s``: seconds that an operator computes. A node that is left out computes nothing.
    - ``disk_bytes``: bytes that a source reads from its disk. A source that is left out reads as much as it sends. Give
      0 for a source that generates its data.
    - ``input_bytes``: measured bytes of a partition at every node with inputs, by producer. Measurements of running
      nodes replace declared values.
    - ``rates_hz``: measured partitions a second.
    - ``hosts``: declared properties of the hosts' processors, and the hosts' loads.
    - ``reorderable``: operators that may be combined in any order and grouping, with the same bytes as the result. A
      planner may change the shape of a tree of these operators. The value of an entry tells the output size and the
      time of a combination.
    """

    output_bytes: dict[str, float]
    compute_s: dict[str, float] = {}
    disk_bytes: dict[str, float] = {}
    reorderable: dict[str, SupportsHints] = {}
    input_bytes: dict[str, dict[str, float]] = {}
    rates_hz: dict[str, float] = {}
    hosts: dict[str, HostFigures] = {}

    def selectivity(self, node: str) -> float:
        """Return output bytes per input byte of a node; nan if the node has no inputs, or if a size is unknown."""
        input_bytes = plain_sum(self.input_bytes.get(node, {}).values())
        return self.output_bytes.get(node, math.nan) / input_bytes if input_bytes else math.nan

    def measured(self, nodes: Mapping[str, NodeFigures], hosts: Mapping[str, HostFigures]) -> Hints:
        """Return the hints with the measurements of these nodes and hosts in place of declared values."""
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
        """Return the hints with only the reorderable operators that belong to ``dataflow``."""
        inside = {name: operator for name, operator in self.reorderable.items() if name in dataflow.by_name}
        return msgspec.structs.replace(self, reorderable=inside)

    def check(self, dataflow: Dataflow) -> Hints:
        """Return self. Raise UsageError that names the node if a size or time is missing, negative or not finite."""
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
    """Costs of resources, with the values of the paper's section 4 as defaults.

    - ``startup_s``: start-up cost of a message between two hosts, in seconds (0: none).
    - ``disk_bytes_per_s``: bandwidth of a source's disk, in bytes per second (``inf``: reads are free).
    - ``compute_factor``: factor of every compute time (0: computing is free).
    - ``host_compute_factor``: further factor of single hosts (2: half as fast, default 1).
    - ``cores``: computations that a host runs at once. The period model divides a host's compute time by this number.
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
    """Interface of an operator that tells its output size and compute time for given input sizes.

    Sizes are bytes, in the order of the operator's inputs. An operator may have an attribute ``reorderable`` that is
    true. The attribute states that combining is associative and commutative to the byte. It counts only if the operator
    has no state, or has a ``merge``.
    """

    def output_size_bytes(self, input_sizes: Sequence[float], /) -> float: ...

    def compute_s(self, input_sizes: Sequence[float], /) -> float: ...


class Answers(NamedTuple):
    """Functions that give the hints of an operator in place of the operator itself (see ``SupportsHints``)."""

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
    """Return hints for a whole dataflow from the sizes of its sources.

    Every operator is asked in turn, producers before consumers. ``source_bytes``: bytes of a partition by the name of
    the source. ``operator_of``: function from an operator node to the object that tells the node's sizes and times.
    Raises UsageError if a source is left out.
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
            if may_reorder(operator) and node.missing == "wait":  # "nothing" is a choice for this operator alone
                reorderable[name] = operator
    return Hints(sizes, compute, dict(disk_bytes or {}), reorderable).check(dataflow)
