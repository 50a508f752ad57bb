"""Base classes of an application's code: operators, which combine partitions, and sources, which produce partitions.

A partition's value is a numpy array, ``bytes``, Arrow records or plain data. An operator in ten lines:

    import numpy as np
    from numpy.typing import NDArray
    from thalweg.operators import Operator

    Image = NDArray[np.uint8]

    class Mean(Operator[Image, Image]):                       # types of the inputs and of the output
        def __init__(self, weight: float = 0.5) -> None:      # the params of Code("my.module:Mean", params)
            self.weight = weight

        def combine(self, inputs: Sequence[Image], index: int) -> Image:
            first, second = inputs
            return (self.weight * first + (1 - self.weight) * second).astype(first.dtype)

The runtime calls one node's methods from a worker thread, one call at a time. A value never changes. Inputs are
``bytes`` and read-only arrays, and the operator may keep the inputs. A returned buffer may be used again.
docs/explanation/memory.md says which buffers are copied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic

import numpy as np
from numpy.typing import NDArray

from thalweg.middleware.errors import OperatorError
from thalweg.middleware.parcels import Nothing

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    In = TypeVar("In", default=Any)
    Out = TypeVar("Out", default=Any)
else:
    from typing import TypeVar  # has defaults from Python 3.13 on

    In, Out = TypeVar("In"), TypeVar("Out")

Array = NDArray[np.generic]
Value = Array | bytes


class Operator(ABC, Generic[In, Out]):
    """Inner node of a dataflow: combines the inputs' partitions of one index into one output partition.

    An operator that keeps state from index to index overrides ``snapshot`` and ``restore``. With both, the operator can
    move to another host with identical outputs. An operator without state needs neither.

    ``state_version``: version of the states that ``restore`` reads. Raise the version with every release that changes
    the result of ``snapshot``. A host refuses a state of another version before it calls ``restore``.

    ``reorderable``: set to True if combining is associative and commutative *to the byte*. Every tree of such operators
    over the same inputs then gives the same output, in any order and with any number of inputs for each operator. A
    planner may choose the tree. Sums of floats do not qualify, because floats round.

    An operator with state is reorderable only with a method ``merge(states: Sequence[bytes]) -> bytes``. The argument
    has one or more snapshots, of which some may be empty. The result is the state of one operator that has seen
    everything that the operators of the snapshots had seen. When the tree changes after partition *k*, the last
    operator of the new tree begins with the merged states of all old operators after *k*. The remaining new operators
    begin without state. Outputs after a number of partitions may depend only on the values that all operators together
    have seen by then. They must not depend on which operator has seen a value, or how often. An operator has also seen
    the outputs of the operators below it. Outputs must not depend on when the operators below began. So merging is
    associative, commutative and idempotent. A maximum so far, a set and a sketch qualify. A count and a mean do not.
    Without ``merge``, an operator with state keeps its inputs.

    An operator with a large state of which little changes may also have ``delta() -> bytes | None`` and
    ``apply(delta: bytes)``. Both serve the replicas on other hosts (docs/explanation/replicas-and-generations.md).
    ``delta`` returns the changes since the last call of ``snapshot`` or ``delta``, or since the operator was
    constructed or restored. Earlier changes need not be repeated. If the changes are larger than the state, or unknown,
    ``delta`` returns None, and a snapshot is taken. The runtime calls ``delta`` under the rules of ``snapshot``.
    ``apply`` applies a change after ``restore``, or after the change before. After all changes since a snapshot, the
    outputs are byte for byte the outputs of the original operator.

    ``on_nothing``: set to True to be called also for an index whose inputs are all ``NOTHING``. Otherwise the output of
    the index is ``NOTHING``.

    ``allows_missing``: set to True if ``combine`` accepts inputs of which some are ``NOTHING``.
    `thalweg run --missing nothing` accepts no other operators.

    ``watermark_s``: no event before this time, in seconds, follows in any input. The runtime sets it before ``combine``
    to the earliest watermark of the inputs, or to None if an input has no watermark. ``combine`` may set another. The
    final value is sent with the output.

    ``late_rows``: number of rows that ``combine`` has left out so far because the rows were late. The records count
    late rows.
    """

    state_version: ClassVar[int] = 1
    reorderable: bool = False
    on_nothing: bool = False
    allows_missing: bool = False
    watermark_s: float | None = None
    late_rows: int = 0

    @abstractmethod
    def combine(self, inputs: Sequence[In], index: int) -> Out | Nothing:
        """Return output partition ``index`` from the input partitions of the index, or ``NOTHING``.

        ``inputs`` are in the order of the node's inputs. Arrays are read-only, so work on a copy. If a producer gives
        ``NOTHING``, the input is ``NOTHING``, and ``In`` includes ``Nothing``. Raise OperatorError if the inputs cannot
        be combined.
        """

    def snapshot(self) -> bytes:
        """Return the operator's present state as bytes. A stateless operator returns empty bytes.

        The runtime calls ``snapshot`` between two calls of ``combine``, possibly several times. The operator may
        continue afterwards on the same host, so ``snapshot`` must not change later outputs. Preferably the state is
        empty before the first partition. Equal states should give equal bytes. The state is sent to other hosts, so it
        must be data only, never a pickle.
        """
        return b""

    def restore(self, state: bytes) -> None:
        """Set the operator's state to a result of ``snapshot``, possibly an empty one.

        The runtime calls ``restore`` once, before the first ``combine``, on a new operator with the same params. From
        then on the outputs are, byte for byte, the outputs of the operator of the snapshot. Raise OperatorError if the
        bytes are no state of this operator. The operator is then discarded.
        """
        if state:
            raise OperatorError(
                f"operator {type(self).__name__} is stateless but was given {len(state)} bytes of state;"
                " override restore() along with snapshot()"
            )

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        """Return a hint for planners: the expected bytes of an output. Default: the bytes of the largest input."""
        return max(input_sizes, default=0.0)

    def compute_s(self, input_sizes: Sequence[float]) -> float:
        """Return a hint for planners: the expected seconds of one ``combine`` for inputs of these bytes. Default: 0."""
        return 0.0


Operator.snapshot.keeps_nothing = True  # type: ignore[attr-defined]  # an override has state


class Source(ABC, Generic[Out]):
    """Leaf of a dataflow: produces the partitions 0, 1, 2, … of one site.

    ``length``: number of partitions if known in advance, else None.

    ``watermark_s``: no event before this time, in seconds, follows. ``produce`` sets the value that is sent with the
    returned partition. The value of the last partition is ``math.inf``.

    ``replayable``: the same index always gives the same value, also from a new object with the same params. Set to
    False for a source of measured or pushed values. No reference is computed of such a source.

    ``waits``: set to True if ``produce`` waits for data from elsewhere. When the run is over, ``abandon`` is called,
    possibly from another thread and during a call of ``produce``.

    ``local``: the constructor may need a device or a folder of its host. Set to False if the constructor needs neither,
    and ``Client.check`` constructs the source anywhere.
    """

    length: int | None = None
    replayable: bool = True
    waits: bool = False
    local: bool = True
    watermark_s: float | None = None

    @abstractmethod
    def produce(self, index: int) -> Out | Nothing | None:
        """Return partition ``index``, or ``NOTHING`` for an index without a value, or None after the end of the stream.

        Indices are requested once, in order. A recovery repeats indices, and a run over several trees uses any order.
        Raise OperatorError if the partition cannot be produced.
        """

    def abandon(self) -> None:  # most sources have nothing to end
        """End the wait of a source that ``waits``, because the run is over.

        A call of ``produce`` under way must return or raise.
        """

    def partition_bytes(self, index: int) -> int | None:
        """Return the bytes of partition ``index`` without producing it. None: past the end.

        Simulations of sizes only use it. Raise OperatorError if the source does not know the sizes in advance.
        """
        raise OperatorError(f"source {type(self).__name__} does not tell the sizes of its partitions in advance")

    def size_bytes(self) -> float:
        """Return a hint for planners: the expected bytes of a partition. Default: 0 (transfers cost nothing)."""
        return 0.0
