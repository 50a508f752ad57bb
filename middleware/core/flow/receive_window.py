"""Window of a node towards its producers: inputs of the gathered partition, and inputs of later partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.flow.actions import Output
from thalweg.middleware.protocol import messages as m


@dataclass(slots=True, eq=False)
class ReceiveWindow:
    """Inputs of one node, by producer."""

    inputs: dict[str, Output] = field(default_factory=dict)  # inputs of the gathered partition
    asked: set[str] = field(default_factory=set)  # producers whose input for the partition is missing
    last: str = ""  # producer of the newest input
    prefetched: dict[int, dict[str, Output]] = field(default_factory=dict)  # inputs of later partitions, by partition

    def going_on(self, producers: Sequence[str], *, gathers: bool) -> ReceiveWindow:
        """Return the window in the next generation of a run.

        Transfers under way are lost, and inputs of later partitions are dropped.
        """
        asked = {name for name in producers if name not in self.inputs} if gathers else set()
        return ReceiveWindow(self.inputs, asked, self.last)

    def gather(self, producers: Sequence[str], index: int) -> bool:
        """Begin to gather partition ``index``. Return whether all of its inputs are here already."""
        self.inputs, self.asked = {}, set(producers)
        if self.prefetched:
            for name, output in self.prefetched.pop(index, {}).items():
                if name in self.asked:
                    self.take(name, output)
        return not self.asked

    def take(self, producer: str, output: Output) -> bool:
        """Add an input of the gathered partition. Return whether the partition is complete now."""
        self.asked.discard(producer)
        self.inputs[producer] = output
        self.last = producer
        return not self.asked

    def prefetch(self, producer: str, output: Output) -> None:
        """Keep an input of a later partition."""
        self.prefetched.setdefault(output.index, {})[producer] = output

    def put_back(self, index: int) -> None:
        """Stop gathering partition ``index``, and keep its inputs for the next time."""
        if self.inputs:
            self.prefetched[index] = self.inputs
        self.inputs, self.asked = {}, set()

    def complete(self, producers: Sequence[str]) -> tuple[list[Output], bool]:
        """Return the inputs of the gathered partition, in the order of the producers, and remove them.

        The second value is whether an input has ended.
        """
        arrived, self.inputs, ended = self.inputs, {}, False
        inputs = [arrived[name] for name in producers]
        for output in inputs:
            if output.end:
                ended = True
        return inputs, ended

    def clear(self) -> None:
        """Drop the inputs of a node that gathers no longer."""
        self.inputs, self.asked, self.prefetched = {}, set(), {}

    def validate(self, producers: Sequence[str], indices: range, *, gathers: bool) -> None:
        """Check the invariants. Raise AssertionError if an invariant is violated.

        ``indices``: partitions whose inputs may be kept. ``gathers``: the node gathers a partition now.
        """
        assert self.asked.isdisjoint(self.inputs), self
        assert self.asked | self.inputs.keys() == (set(producers) if gathers else set()), self
        assert self.prefetched.keys() <= set(indices), self


def together(index: int, inputs: Sequence[Output]) -> Output:
    """Return the delivery of a sink: the only input, or a tuple of several inputs."""
    if len(inputs) == 1:
        return inputs[0]
    sizes = tuple([output.size_bytes for output in inputs])
    return Output(index, tuple([output.value for output in inputs]), plain_sum(sizes), sizes=sizes)


def end_of(producers: Sequence[str], inputs: Sequence[Output]) -> m.End:
    """Return the end of a node's stream, if at least one input has ended (R8 of ``node``).

    A tuple names the nodes that had one more partition.
    """
    remaining: list[str] = []
    for name, output in zip(producers, inputs, strict=True):
        if not output.end:
            remaining.append(name)
        elif isinstance(output.end, tuple):
            remaining += output.end
    return tuple(dict.fromkeys(remaining)) or True
