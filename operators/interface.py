"""What an embedder writes: operators, which combine partitions, and sources, which produce them.

A partition's value is a numpy array, ``bytes``, Arrow records or plain data. An operator in ten lines:

    import numpy as np
    from numpy.typing import NDArray
    from thalweg.operators import Operator

    Image = NDArray[np.uint8]

    class Mean(Operator[Image, Image]):                       # what its inputs are, and what it makes of them
        def __init__(self, weight: float = 0.5) -> None:      # the params of Code("my.module:Mean", params)
            self.weight = weight

        def combine(self, inputs: Sequence[Image], index: int) -> Image:
            first, second = inputs
            return (self.weight * first + (1 - self.weight) * second).astype(first.dtype)

The runtime calls one node's methods from a worker thread, one call at a time. A value never changes: inputs are
``bytes`` and read-only arrays, which may be kept, and what is returned may be a buffer that is used again (see
docs/explanation/memory.md for what is copied).
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
    from typing import TypeVar  # which knows defaults from Python 3.13 on

    In, Out = TypeVar("In"), TypeVar("Out")

Array = NDArray[np.generic]
Value = Array | bytes


class Operator(ABC, Generic[In, Out]):
    """An inner node: combines the partitions of one index into one.

    An operator that remembers something from index to index overrides ``snapshot`` and ``restore``; the
    pair moves it to another host with identical outputs. One that does not is stateless, and done.

    ``state_version``: which states ``restore`` understands. Raise it whenever a release changes what
    ``snapshot`` returns; a host refuses a state of another version before it calls ``restore``.

    ``reorderable``: set it to True where combining is associative and commutative *to the byte*: any tree of such
    operators over the same inputs, in any order and with any number of inputs each, then gives the same output, and a
    planner may choose the tree. Sums of floats are not (they round).

    One with state is reorderable only if it also has ``merge(states: Sequence[bytes]) -> bytes``: the state of one
    operator that has seen all that those had seen that these one or more snapshots (some perhaps empty) were taken of.
    When the tree changes after partition *k*, the last operator of the new one begins with the merged states of all
    the old ones as after *k*, and the others begin anew. So what it has made after any number of partitions may
    depend on nothing but what all the operators have seen by then: not on which of them saw it, nor on how often (an
    operator has seen what comes to it from those below), nor on when those below it began. A maximum so far, a set, a
    sketch are like that: merging is associative, commutative and idempotent. A count or a mean is not. Without
    ``merge`` an operator with state keeps its inputs.

    One with much state, of which little changes, may also have ``delta() -> bytes | None`` and ``apply(delta: bytes)``,
    for the replicas that it leaves with other hosts (docs/explanation/replicas-and-generations.md). ``delta``: what
    has changed since ``snapshot`` or ``delta`` was last called, or the operator was made or restored; None where
    that is more than the state, or not known: then a snapshot is taken. Called as ``snapshot`` is; what it has told
    it need not tell again. ``apply``: take over such a change, after ``restore``, or after the change before it.
    With all changes that followed on a snapshot the outputs are, byte for byte, those of the operator that told
    them.

    ``on_nothing``: set it to True to be called also for an index all of whose inputs are ``NOTHING``; else the output
    is ``NOTHING`` there.

    ``allows_missing``: set it to True where ``combine`` does with inputs of which some are ``NOTHING``: `thalweg run
    --missing nothing` takes no other operators.

    ``watermark_s``: no event before this time, in seconds, follows in any input: the earliest of what the inputs say,
    None where one does not. It is set before ``combine``, which may set another; what it is then goes with the output.

    ``late_rows``: how many rows ``combine`` has left out so far, as they came after their time; counted by the records.
    """

    state_version: ClassVar[int] = 1
    reorderable: bool = False
    on_nothing: bool = False
    allows_missing: bool = False
    watermark_s: float | None = None
    late_rows: int = 0

    @abstractmethod
    def combine(self, inputs: Sequence[In], index: int) -> Out | Nothing:
        """The output partition ``index`` from the input partitions of that index, or ``NOTHING``.

        ``inputs`` stand in the order of the node's inputs. Arrays are read-only: work on a copy. Some are ``NOTHING``
        where a producer gives that (then ``In`` includes ``Nothing``). Raises OperatorError when they cannot be
        combined.
        """

    def snapshot(self) -> bytes:
        """The state as of now; empty for a stateless operator, and best for one that has seen nothing yet.

        Called between two calls of ``combine``, never during one, perhaps several times, and the operator may go on
        afterwards (it stayed): taking a snapshot changes nothing. Equal states should give equal bytes.
        The state travels to other hosts: data only, never a pickle.
        """
        return b""

    def restore(self, state: bytes) -> None:
        """Take over a state that ``snapshot`` returned, perhaps an empty one.

        Called once, before any ``combine``, on an operator newly constructed with the same params. From then on
        its outputs are, byte for byte, those of the operator that the snapshot was taken of. Raises OperatorError
        when the state is not one of this operator's; the operator is thrown away then.
        """
        if state:
            raise OperatorError(
                f"operator {type(self).__name__} is stateless but was given {len(state)} bytes of state;"
                " override restore() along with snapshot()"
            )

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        """Hint for planners: the output's expected size, given the inputs' in bytes. Default: the largest."""
        return max(input_sizes, default=0.0)

    def compute_s(self, input_sizes: Sequence[float]) -> float:
        """Hint for planners: the expected seconds of one ``combine``, given the inputs' bytes. Default: 0."""
        return 0.0


Operator.snapshot.keeps_nothing = True  # type: ignore[attr-defined]  # who overrides it has state


class Source(ABC, Generic[Out]):
    """A leaf: produces the partitions 0, 1, 2, … of one site.

    ``length`` is the number of partitions where it is known in advance, else None. ``watermark_s``: what ``produce``
    sets it to goes with what it returns: no event before this time, in seconds, follows; ``math.inf`` with the last.

    ``replayable``: asking for the same index again, also of another object with the same params, gives the same value.
    Set it to False where that is not so, as for what is measured or pushed: no reference is computed of such a source.

    ``waits``: set it to True where ``produce`` waits for what comes from elsewhere; ``abandon`` is called when nobody
    wants it any more, perhaps during a call, from another thread.

    ``local``: its constructor may need what only its host has, as a device or a folder. Set it to False where that is
    not so, and ``Client.check`` constructs it anywhere.
    """

    length: int | None = None
    replayable: bool = True
    waits: bool = False
    local: bool = True
    watermark_s: float | None = None

    @abstractmethod
    def produce(self, index: int) -> Out | Nothing | None:
        """Partition ``index``, ``NOTHING`` when it has no value, or None when the stream has ended before it.

        Asked for once for each index in a run, in order. Raises OperatorError when it cannot be had.
        """

    def abandon(self) -> None:  # most have nothing to end
        """The run is over, of a source that ``waits``: a call that is under way shall return, or raise."""

    def partition_bytes(self, index: int) -> int | None:
        """Bytes of partition ``index``, without producing it, for simulations of sizes only; None past the end.

        Raises OperatorError in a source that cannot tell.
        """
        raise OperatorError(f"source {type(self).__name__} does not tell the sizes of its partitions in advance")

    def size_bytes(self) -> float:
        """Hint for planners: the expected size of a partition in bytes. Default: 0 (transfers cost nothing)."""
        return 0.0
