"""The inputs of a node: those of the partition that it gathers, and later ones that have come before their turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.flow.actions import Output
from thalweg.middleware.protocol import messages as m


@dataclass(slots=True, eq=False)
class ReceiveWindow:
    """The inputs of one node, by producer."""

    inputs: dict[str, Output] = field(default_factory=dict)  # of the partition that is gathered
    asked: set[str] = field(default_factory=set)  # producers that owe their input for that partition
    last: str = ""  # the producer whose input came last
    prefetched: dict[int, dict[str, Output]] = field(default_factory=dict)  # by partition and producer, as they came

    def going_on(self, producers: Sequence[str], *, gathers: bool) -> ReceiveWindow:
        """Return the window in the next generation of a run: what was on its way is lost."""
        asked = {name for name in producers if name not in self.inputs} if gathers else set()
        return ReceiveWindow(self.inputs, asked, self.last)

    def gather(self, producers: Sequence[str], index: int) -> bool:
        """Ask for the inputs of partition ``index``. Return whether all have come before their turn."""
        self.inputs, self.asked = {}, set(producers)
        if self.prefetched:
            for name, output in self.prefetched.pop(index, {}).items():
                if name in self.asked:
                    self.take(name, output)
        return not self.asked

    def take(self, producer: str, output: Output) -> bool:
        """An input that was asked for has come. Return whether it was the last one."""
        self.asked.discard(producer)
        self.inputs[producer] = output
        self.last = producer
        return not self.asked

    def prefetch(self, producer: str, output: Output) -> None:
        """An input has come before its turn."""
        self.prefetched.setdefault(output.index, {})[producer] = output

    def put_back(self, index: int) -> None:
        """The inputs of partition ``index`` are asked for later again: those that have come wait for that."""
        if self.inputs:
            self.prefetched[index] = self.inputs
        self.inputs, self.asked = {}, set()

    def complete(self, producers: Sequence[str]) -> list[Output]:
        """Take the inputs out, which have all come, in the order of the producers."""
        inputs = [self.inputs[name] for name in producers]
        self.inputs = {}
        return inputs

    def clear(self) -> None:
        """Nothing is wanted any more."""
        self.inputs, self.asked, self.prefetched = {}, set(), {}

    def validate(self, producers: Sequence[str], indices: range, *, gathers: bool) -> None:
        """The invariants; AssertionError tells which does not hold. ``indices``: of inputs that may be here."""
        assert self.asked.isdisjoint(self.inputs), self
        assert self.asked | self.inputs.keys() == (set(producers) if gathers else set()), self
        assert self.prefetched.keys() <= set(indices), self


def together(index: int, inputs: Sequence[Output]) -> Output:
    """Return what a sink of these inputs is given: of several a tuple of them, in their order."""
    if len(inputs) == 1:
        return inputs[0]
    sizes = tuple([output.size_bytes for output in inputs])
    return Output(index, tuple([output.value for output in inputs]), plain_sum(sizes), sizes=sizes)


def end_of(producers: Sequence[str], inputs: Sequence[Output]) -> m.End:
    """Return the end of a node's stream, where some or all of its inputs' have ended (R8 of ``node``)."""
    remaining: list[str] = []
    for name, output in zip(producers, inputs, strict=True):
        if not output.end:
            remaining.append(name)
        elif isinstance(output.end, tuple):
            remaining += output.end
    return tuple(dict.fromkeys(remaining)) or True
