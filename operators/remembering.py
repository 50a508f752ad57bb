"""Operators that keep composites as state: a running aggregate, and the best of the last partitions.

Both compose the inputs of a partition as ``Composite`` does, and then fold their state into the composite. The output
has the size of the partition's composite, however large other partitions were. So trees of these operators stay as
small as trees of composites. Besides images, both accept plain arrays (1 or more dimensions, integers or floats of at
most 8 bytes). The arrays must have one shape and dtype, and ``rule`` must be maximum or minimum without a key band.

Inputs that cannot be combined leave the state unchanged.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from thalweg.middleware.errors import OperatorError
from thalweg.operators.composition import (
    SECONDS_PER_PIXEL,
    SELECT,
    Composite,
    Fit,
    Rule,
    common_size,
    describe,
    expand,
    is_image,
)
from thalweg.operators.interface import Operator, Value
from thalweg.operators.states import Param, is_numeric, pack, unpack

Array = NDArray[Any]
Aggregate = Literal["max", "min", "mean", "count"]

MAX_WINDOW = 1024  # partitions in a state; more is a typing error, and gigabytes of state


class Remembering(Operator):
    """Base class of this package's operators that keep composites or images: composition, states and hints.

    ``counts``: names of the numbers in a state.
    """

    name: ClassVar[str]
    counts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, composite: Composite) -> None:
        self.composite = composite
        self.params: dict[str, Param] = {"rule": composite.rule, "key_band": composite.key_band}

    def compute_s(self, input_sizes: Sequence[float]) -> float:
        """Return ``seconds_per_pixel`` for every pixel of each pairwise composition, with the images in the state."""
        passes = self.passes(len(input_sizes)) * max(input_sizes, default=0.0) / self.composite.bytes_per_pixel
        return self.composite.compute_s(input_sizes) + passes * self.composite.seconds_per_pixel

    @abstractmethod
    def passes(self, inputs: int) -> float:
        """Return the passes over an output's pixels besides composing ``inputs``, for ``compute_s``."""

    def snapshot(self) -> bytes:
        """Return the state as bytes, empty without a state."""
        counts, arrays = self._kept()
        return pack(self.name, self.state_version, self.params, counts, arrays) if arrays else b""

    def restore(self, state: bytes) -> None:
        """Set the state to one of an operator with the same parameters. Raise OperatorError for other bytes."""
        if state:
            self._keep(*unpack(state, self.name, self.state_version, self.params, self.counts))

    @abstractmethod
    def _kept(self) -> tuple[dict[str, int], Sequence[Array]]:
        """Return the counts and arrays of the state, without arrays if the state is empty."""

    @abstractmethod
    def _keep(self, counts: dict[str, int], arrays: list[Array]) -> None:
        """Set the state to these counts and arrays. Raise OperatorError if they do not fit."""

    def _window(self, window: int) -> int:
        if isinstance(window, bool) or not isinstance(window, int) or not 1 <= window <= MAX_WINDOW:
            raise OperatorError(f"{self.name}: window={window!r}; give 1 to {MAX_WINDOW} partitions")
        return window

    def _compose(self, inputs: Sequence[Value], index: int) -> Array:
        """Return the composite of one partition's inputs, in memory that no input shares."""
        if not inputs or any(is_image(value) or not isinstance(value, np.ndarray) for value in inputs):
            return self.composite.combine(inputs, index)
        arrays: list[Array] = []
        for position, value in enumerate(inputs):
            assert isinstance(value, np.ndarray)
            if not is_numeric(value) or value.ndim == 0 or value.size == 0:
                raise OperatorError(
                    f"{self.name}: input {position} of partition {index} is {describe(value)};"
                    " give images, or arrays of integers or floats of at most 8 bytes"
                )
            arrays.append(value)
            if form(value.dtype, value.shape) != form(arrays[0].dtype, arrays[0].shape):
                raise OperatorError(
                    f"{self.name}: partition {index} joins {describe(arrays[0])} and {describe(value)};"
                    " arrays that are not images must be of one shape and dtype"
                )
        return self._fold(arrays)

    def _fold(self, arrays: Sequence[Array]) -> Array:
        """Return the composite of plain arrays of one form, as a new array."""
        if self.composite.rule not in SELECT or self.composite.key_band is not None:
            raise OperatorError(
                f"{self.name}: rule {self.composite.rule!r} and key_band are for images, not {describe(arrays[0])}"
            )
        result: Array = np.array(arrays[0], order="C")
        for array in arrays[1:]:
            SELECT[self.composite.rule](result, array, out=result)
        return result

    def _check_form(self, dtype: np.dtype[Any], past: Array, present: Array, index: int) -> None:
        """Raise OperatorError if ``present`` cannot be folded into ``past``, which keeps arrays of ``dtype``."""
        if form(dtype, past.shape) != form(present.dtype, present.shape):
            raise OperatorError(
                f"{self.name}: partition {index} is {describe(present)}, and earlier partitions were"
                f" {describe(past, dtype)}; give images of one dtype and number of bands, or arrays of one shape and"
                " dtype"
            )


class Running(Remembering):
    """Operator that aggregates the composites of all partitions so far, element by element.

    ``aggregate``: ``"max"``, ``"min"``, ``"mean"`` (rounded half up for integers), or ``"count"``: the number of
    partitions with data there (not 0), at most what the dtype holds. The output has the input's dtype. The other
    parameters are Composite's, for the inputs of one partition.

    The state has the size of the largest composite so far, to which smaller ones are expanded. For mean and count it
    has the smallest dtype that holds the sums, so it grows with the logarithm of the number of partitions.

    ``fit="nested"``, with ``aggregate`` and ``rule`` both max or both min and no ``key_band``, makes the operator
    reorderable, with states that merge. The output is the greatest (or least) of all inputs so far. It is as high and
    wide as anything so far, expanded as ``Composite`` does with this fit. Only images and arrays of integers are then
    accepted. For floats, -0.0 is no less than 0.0, so the output would depend on the order.

    Raise OperatorError for unusable parameters. ``combine`` raises OperatorError for inputs that cannot be composed or
    differ from earlier inputs. For a mean it also refuses plain integers of 8 bytes, whose sums no dtype holds.
    """

    name, counts = "running", ("partitions",)
    allows_missing = True

    def __init__(
        self,
        aggregate: Aggregate = "max",
        rule: str | Rule = "max",
        key_band: int | None = None,
        seconds_per_pixel: float = SECONDS_PER_PIXEL,
        bytes_per_pixel: int = 1,
        fit: Fit = "nearest",
    ) -> None:
        super().__init__(Composite(rule, key_band, seconds_per_pixel, bytes_per_pixel, fit))
        if aggregate not in get_args(Aggregate):
            raise OperatorError(f"running: aggregate {aggregate!r}; use {', '.join(get_args(Aggregate))}")
        self.nested = fit == "nested"
        if self.nested and (aggregate not in ("max", "min") or aggregate != rule or key_band is not None):
            raise OperatorError("running: fit='nested' goes with aggregate and rule both max or both min, no key_band")
        self.aggregate: Aggregate = aggregate
        self.params["aggregate"] = aggregate
        if self.nested:
            self.params["fit"] = fit
        self.reorderable = self.nested and type(self).combine is Running.combine
        self._partitions = 0
        self._past: Array | None = None  # the aggregate; mean: the sums
        self._dtype: np.dtype[Any] = np.dtype(np.uint8)  # of the composites, once there is a past

    def combine(self, inputs: Sequence[Value], index: int) -> Array:
        """Return the aggregate up to this partition, in the size of the partition's composite.

        With ``fit="nested"``, the aggregate has its own size.
        """
        present = self._compose(inputs, index)
        if self.nested and present.dtype.kind == "f":
            raise OperatorError(f"running: partition {index} is {describe(present)}; fit='nested' is for integers")
        if self._past is not None:
            self._check_form(self._dtype, self._past, present, index)
        count = self._partitions + 1
        kind = self._kind(present.dtype, count)
        past, added = self._past, present.astype(np.bool_) if self.aggregate == "count" else present
        past = added.astype(kind) if past is None else self._folded(past, added, kind, images=is_image(present))
        self._partitions, self._past, self._dtype = count, past, present.dtype
        if self.nested:
            return past.copy()
        return self._output(expand(past, present.shape[:2]) if is_image(present) else past)

    def _folded(self, past: Array, added: Array, kind: np.dtype[Any], *, images: bool) -> Array:
        """Return the aggregate of both arrays as ``kind``. Images get their common size."""
        if images:
            fit = self.composite.fit
            size = common_size(past.shape, added.shape, fit)
            past, added = expand(past, size, fit), expand(added, size, fit)
        folded: Array = SELECT.get(self.aggregate, np.add)(past, added, dtype=kind)
        return folded

    def merge(self, states: Sequence[bytes]) -> bytes:
        """Return the state of one operator that has seen everything that the operators of these states had seen.

        Raise OperatorError without ``fit="nested"``, or for states of other parameters.
        """
        if not self.nested:
            raise OperatorError("running: states merge with fit='nested' only")
        merged = self._empty()
        for state in filter(None, states):
            other = self._empty()
            other.restore(state)
            if merged._past is not None and other._past is not None:
                other._check_form(merged._dtype, merged._past, other._past, other._partitions)
                other._past = other._folded(merged._past, other._past, merged._dtype, images=is_image(other._past))
                other._partitions = max(merged._partitions, other._partitions)
            merged = other
        return merged.snapshot()

    def _empty(self) -> Running:
        """Return an operator with the same parameters and no state."""
        return Running(self.aggregate, self.composite.rule, fit=self.composite.fit)

    def _kept(self) -> tuple[dict[str, int], Sequence[Array]]:
        """Return the counts and arrays of the state. An empty array carries the composites' dtype."""
        arrays = [] if self._past is None else [np.empty(0, self._dtype), self._past]
        return {"partitions": self._partitions}, arrays

    def _keep(self, counts: dict[str, int], arrays: list[Array]) -> None:
        partitions = counts["partitions"]
        if not 1 <= partitions < 1 << 40 or len(arrays) != 2 or arrays[0].shape != (0,):
            raise OperatorError(f"running: a state cannot have {partitions} partitions in {len(arrays)} arrays")
        dtype, past = arrays[0].dtype, arrays[1]
        if past.ndim == 0 or past.size == 0 or past.dtype != self._kind(dtype, partitions):
            raise OperatorError(
                f"running: {describe(past)} is not the {self.aggregate} of {partitions} partitions of {dtype}"
            )
        if self.aggregate in ("mean", "count") and past.dtype.kind == "u":
            top = partitions if self.aggregate == "count" else partitions * _top(dtype)
            if int(past.max()) > top:
                raise OperatorError(f"running: the state's {self.aggregate} of {partitions} partitions is over {top}")
        self._partitions, self._past, self._dtype = partitions, past, dtype

    def passes(self, inputs: int) -> float:
        """Return 1, for the aggregation."""
        return 1.0

    def _kind(self, dtype: np.dtype[Any], partitions: int) -> np.dtype[Any]:
        """Return the dtype of the aggregate of so many partitions."""
        if self.aggregate == "count":
            return np.min_scalar_type(partitions)
        if self.aggregate != "mean":
            return dtype
        if dtype.kind == "u" and dtype.itemsize <= 2:
            return np.min_scalar_type(partitions * (_top(dtype) + 1))  # + 1: room to round
        if dtype.kind in "iu" and dtype.itemsize == 8:
            raise OperatorError(
                f"running: there is no exact mean of {dtype}; use integers of at most 4 bytes, or floats"
            )
        return np.dtype(np.float64)  # exact for 2**21 partitions of 4-byte integers

    def _output(self, past: Array) -> Array:
        """Return the aggregate in the composites' dtype, never the state's own array."""
        dtype = self._dtype
        if self.aggregate == "count":
            if dtype.kind in "iu" and self._partitions > _top(dtype):
                past = np.minimum(past, _top(dtype))
            return past.astype(dtype)
        if self.aggregate != "mean":
            return past.copy() if past is self._past else past
        if past.dtype.kind == "u":
            total: Array = past + past.dtype.type(self._partitions // 2)
            total //= past.dtype.type(self._partitions)
            return total.astype(dtype)
        mean = past / self._partitions
        if dtype.kind in "iu":
            np.floor(mean + 0.5, out=mean)
        return mean.astype(dtype)


class BestOfLast(Remembering):
    """Operator that composes the composites of the last ``window`` partitions, from the oldest to the present.

    With rule ``max``, an element is the greatest of the inputs in the last ``window`` partitions. With ``latest``, it
    is the last pixel with data. With ``key_band`` or a rule of your own, it is the preferred pixel. The other
    parameters are Composite's. The state is the last ``window`` - 1 composites, each in its own size.

    Raise OperatorError for unusable parameters. ``combine`` raises OperatorError for inputs that cannot be composed or
    differ from earlier inputs.
    """

    name = "best-of-last"
    allows_missing = True

    def __init__(
        self,
        window: int = 4,
        rule: str | Rule = "max",
        key_band: int | None = None,
        seconds_per_pixel: float = SECONDS_PER_PIXEL,
        bytes_per_pixel: int = 1,
    ) -> None:
        super().__init__(Composite(rule, key_band, seconds_per_pixel, bytes_per_pixel))
        self.window = self._window(window)
        self.params["window"] = window
        self._past: deque[Array] = deque(maxlen=window - 1)

    def combine(self, inputs: Sequence[Value], index: int) -> Array:
        """Return the best of this and the earlier partitions, in the size of the present composite."""
        present = self._compose(inputs, index)
        if self._past:
            self._check_form(self._past[0].dtype, self._past[0], present, index)
        if is_image(present):
            result = expand(self.composite.combine([*self._past, present], index), present.shape[:2])
        else:
            result = self._fold([*self._past, present])
        self._past.append(present)
        return result

    def _kept(self) -> tuple[dict[str, int], Sequence[Array]]:
        return {}, list(self._past)

    def _keep(self, counts: dict[str, int], arrays: list[Array]) -> None:
        if not 1 <= len(arrays) < self.window:
            raise OperatorError(
                f"best-of-last: the state has {len(arrays)} images; window={self.window} keeps at most one less"
            )
        first = arrays[0]
        for image in arrays:
            if not image.size or not image.ndim or form(image.dtype, image.shape) != form(first.dtype, first.shape):
                raise OperatorError(f"best-of-last: a state cannot have {describe(first)} and {describe(image)}")
        self._past.extend(arrays)

    def passes(self, inputs: int) -> float:
        """Return one pass for each composite in the state."""
        return self.window - 1.0


def form(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the properties that arrays must share to be folded: for images dtype and bands, else dtype and shape."""
    images = dtype in (np.uint8, np.uint16) and len(shape) in (2, 3)
    return (dtype, len(shape), shape[2:] if images else shape)


def _top(dtype: np.dtype[Any]) -> int:
    return int(np.iinfo(dtype).max)
