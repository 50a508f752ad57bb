"""Image composition by pixel selection: each pixel of the result is one of the corresponding pixels of the images.

The images are (height, width) or (height, width, bands), uint8 or uint16. The smaller image is expanded to the larger
by nearest neighbour. The result has the larger's size (Ranganathan et al., section 4, after NOAA/NASA's AVHRR
Pathfinder). Pathfinder selects the maximum, because clouds lower a vegetation index.

Trees whose leaves are in the same order have these results in common.

- The result's *size*: the size of the image with most pixels, the first on a tie.
- The result's *pixels* for maximum, minimum and latest, if all images have one size. Sizes whose height and width
  divide those of every larger image also suffice. With a key band equal keys choose the first image, which is
  associative too.

For arbitrary sizes the pixels may differ between tree shapes, because expanding by way of a middle size selects other
neighbours than expanding at once. One tree always gives one result, wherever its operators run. A star gives the result
of the left-deep tree of the same order.

Maximum and minimum per band are also commutative on equal sizes, and idempotent.

With ``fit="nested"`` maximum and minimum are associative and commutative on *any* sizes. Every tree over the same
images, in any order, then gives the same bytes, so the operator is ``reorderable``. The result is as high as the
highest image and as wide as the widest. A middle size changes nothing (see ``nested``). The cost is accuracy: at 400
pixels a pixel is within two of its nearest neighbour.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from thalweg.middleware.errors import OperatorError
from thalweg.middleware.loading import OPERATORS, find_code, registered
from thalweg.middleware.parcels import NOTHING, Nothing
from thalweg.operators.interface import Operator, Value
from thalweg.operators.noise import nearest

Image = NDArray[Any]
Rule = Callable[[Image, Image], Image]
Fit = Literal["nearest", "nested"]

# Measured: one 131,072-pixel uint8 composition of unequal sizes takes 0.05 ms on a 2-core virtual machine
# (0.005 ms when the sizes are equal), which is 0.4 ns a pixel. The paper's machines of 1998 took 7 µs.
SECONDS_PER_PIXEL = 0.4e-9
PAPER_SECONDS_PER_PIXEL = 7e-6  # Ranganathan et al., section 4

SELECT: Mapping[str, np.ufunc] = {"max": np.maximum, "min": np.minimum}
LATEST = "latest"
RULES = (*SELECT, LATEST)
PARAMETERS = {"rule", "bytes_per_pixel", "seconds_per_pixel"}  # parameters of every operator that combines images
_nearest = lru_cache(maxsize=256)(nearest)  # a few KB each: some 1 MB at most
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, odd: its multiples modulo 2^64 are all different


def nested(length: int, target: int) -> NDArray[np.intp]:
    """Return, for each of ``target`` pixels, the index of the pixel that contains it in a line of ``length`` pixels.

    ``length`` is at most ``target``. A line of n pixels is the unit interval cut at the first n multiples of the golden
    ratio, modulo 1. A longer line has the same cuts and more, so pixels only ever split, and a middle size gives the
    same result. The cuts are about as even as possible for every n (Knuth, TAOCP 3, 6.4, theorem S).
    """
    cuts = np.arange(target, dtype=np.uint64) * np.uint64(_GOLDEN)
    index: NDArray[np.intp] = np.sort(cuts[:length]).searchsorted(np.sort(cuts), side="right") - 1
    return index


_nested = lru_cache(maxsize=256)(nested)


def expand(image: Image, shape: Sequence[int], fit: Fit = "nearest") -> Image:
    """Return the image resampled to ``shape`` = (height, width), by nearest neighbour (pixel centres) or ``nested``.

    If the size is right already, return the image itself.
    """
    height, width = image.shape[:2]
    source_of = _nearest if fit == "nearest" else _nested
    if width != shape[1]:
        columns = source_of(width, shape[1])
        if image.ndim == 2:
            image = image.take(columns, axis=1)
        else:  # whole rows of single values: three times as fast as taking pixels of odd size
            bands = image.shape[2]
            columns = (columns[:, None] * bands + np.arange(bands)).reshape(-1)
            flat = image.reshape(height, width * bands).take(columns, axis=1)
            image = flat.reshape(height, shape[1], bands)
    if height != shape[0]:
        image = image.take(source_of(height, shape[0]), axis=0)
    return image


def common_size(one: Sequence[int], other: Sequence[int], fit: Fit = "nearest") -> tuple[int, ...]:
    """Return the size (height, width) to which images of these two shapes are expanded.

    This is the size of the larger image, the first on a tie. With fit nested, it is as high and as wide as either.
    """
    if fit == "nested":
        return tuple(map(max, one[:2], other[:2]))
    return tuple(max(one[:2], other[:2], key=math.prod))


def _choose(mask: NDArray[np.bool_], chosen: Image, other: Image) -> Image:
    """Return ``chosen`` where the mask is true, else ``other``.

    Bitwise operations are ten times as fast as np.where.
    """
    if mask.ndim < chosen.ndim:
        mask = np.repeat(mask, chosen.shape[2], axis=1).reshape(chosen.shape)
    bits = np.negative(mask.view(np.uint8) if chosen.dtype.itemsize == 1 else mask.astype(chosen.dtype))
    out: Image = chosen ^ other
    out &= bits
    out ^= other
    return out


class Composite(Operator):
    """Operator that composes two or more images, from the first input to the last.

    ``rule``:
        ``"max"``, ``"min"``: the larger or smaller value, band by band. With ``key_band``, the whole pixel of the image
        whose value in that band is the larger or smaller (the earlier image on a tie).
        ``"latest"``: the pixel of the last input that has data there (not zero in every band).
        A vectorised ``function(a, b)`` of two read-only images of equal size. It returns the composed image (same shape
        and dtype), or a boolean mask that is true where ``b`` is chosen. The mask is (height, width) or of the images'
        shape. The function is named by an import path, as ``"thalweg.operators.composition:brightest"``. It is defined
        under ``as_rule`` in an allowed package. A class of your own in such a package may also pass a function:

            class Greener(Composite):                       # Code("my.module:Greener")
                def __init__(self) -> None:
                    super().__init__(lambda a, b: b[..., 1] > a[..., 1])

    ``seconds_per_pixel``: time that ``compute_s`` gives planners. The default was measured on a small machine, and
    ``7e-6`` is the paper's time. ``bytes_per_pixel``: bytes of all bands together, for the same hint.

    ``fit``: expansion of images of different sizes. ``"nearest"`` expands the smaller image by nearest neighbour. With
    ``"nested"``, max and min without ``key_band`` are reorderable (see the module).

    Raise OperatorError for a rule that cannot be used. ``combine`` raises OperatorError for values that are not images,
    or differ in dtype or number of bands.
    """

    allows_missing = True

    def __init__(
        self,
        rule: str | Rule = "max",
        key_band: int | None = None,
        seconds_per_pixel: float = SECONDS_PER_PIXEL,
        bytes_per_pixel: int = 1,
        fit: Fit = "nearest",
    ) -> None:
        if fit not in get_args(Fit):
            raise OperatorError(f"composite: unknown fit {fit!r}; use {' or '.join(get_args(Fit))}")
        if key_band is not None and rule not in ("max", "min"):
            raise OperatorError(f"composite: key_band goes with rule max or min, not {rule!r}; leave it out")
        if not seconds_per_pixel >= 0 or bytes_per_pixel < 1:
            raise OperatorError(
                f"composite: seconds_per_pixel={seconds_per_pixel} and bytes_per_pixel={bytes_per_pixel}"
                " must be at least 0 and 1"
            )
        self.rule = rule if isinstance(rule, str) else getattr(rule, "__name__", "function")
        self.key_band = key_band
        self.seconds_per_pixel = seconds_per_pixel
        self.bytes_per_pixel = bytes_per_pixel
        self.fit = fit
        self._select = self._selector(rule)
        as_here = type(self).combine is Composite.combine  # a subclass may combine in another way
        self.reorderable = as_here and fit == "nested" and isinstance(self._select, np.ufunc)

    def combine(self, inputs: Sequence[Value | Nothing], index: int) -> Image:
        """Return the composite of the inputs that are not ``NOTHING``, in memory of its own.

        The class lists the errors.
        """
        present = [(position, value) for position, value in enumerate(inputs) if value is not NOTHING]
        images = [self._checked(value, position, index) for position, value in present]
        if not images:
            raise OperatorError("composite: no input; give the operator at least one")
        result = images[0]
        for image in images[1:]:
            if image.dtype != result.dtype or image.shape[2:] != result.shape[2:]:
                raise OperatorError(
                    f"composite ({self.rule}): partition {index} joins images {describe(result)} and"
                    f" {describe(image)}; give all sources one dtype and number of bands"
                )
            size = common_size(result.shape, image.shape, self.fit)
            first, second = expand(result, size, self.fit), expand(image, size, self.fit)
            if isinstance(self._select, np.ufunc):  # overwrite our own array: fresh pages cost more than pixels
                target = first if first is not images[0] else second if second is not image else None
                result = self._select(first, second, out=target)
            else:
                result = self._select(first, second)
        if any(np.may_share_memory(result, image) for image in images):
            result = result.copy()
        return np.ascontiguousarray(result)

    def compute_s(self, input_sizes: Sequence[float]) -> float:
        """Return ``seconds_per_pixel`` for every pixel of each pairwise composition."""
        pixels = 0.0
        largest = 0.0
        for position, size in enumerate(input_sizes):
            largest = max(largest, size / self.bytes_per_pixel)
            pixels += largest if position else 0.0
        return pixels * self.seconds_per_pixel

    def _checked(self, value: Value, position: int, index: int) -> Image:
        if not isinstance(value, np.ndarray):
            raise OperatorError(
                f"composite ({self.rule}): input {position} of partition {index} is {type(value).__name__},"
                " not an image; use a source of arrays"
            )
        if not is_image(value):
            raise OperatorError(
                f"composite ({self.rule}): input {position} of partition {index} is {describe(value)};"
                " images are uint8 or uint16, (height, width) or (height, width, bands)"
            )
        if self.key_band is not None and not 0 <= self.key_band < (value.shape[2] if value.ndim == 3 else 1):
            raise OperatorError(
                f"composite ({self.rule}): key_band={self.key_band}, but input {position} of partition"
                f" {index} is {describe(value)}; choose one of its bands"
            )
        return value

    def _selector(self, rule: str | Rule) -> Rule | np.ufunc:
        if not isinstance(rule, str):
            return _checked(self.rule, rule)
        if rule == LATEST:
            return _latest
        if rule in SELECT:
            return SELECT[rule] if self.key_band is None else self._by_key
        if ":" not in rule:
            raise OperatorError(
                f"composite: unknown rule {rule!r}; use {', '.join(RULES)} or an import path package.module:function"
            )
        return _checked(rule, load_rule(rule))

    def _by_key(self, a: Image, b: Image) -> Image:
        key_a, key_b = (a, b) if a.ndim == 2 else (a[..., self.key_band], b[..., self.key_band])
        return _choose(key_b > key_a if self.rule == "max" else key_b < key_a, b, a)


def _latest(a: Image, b: Image) -> Image:
    if b.ndim == 2:
        return _choose(b != 0, b, a)
    mask = b[..., 0] != 0
    for band in range(1, b.shape[2]):  # band by band: any(axis=2) over a short axis is ten times slower
        mask |= b[..., band] != 0
    return _choose(mask, b, a)


def _checked(name: str, function: Rule) -> Rule:
    """Return a user's rule with a check of its results."""

    def select(a: Image, b: Image) -> Image:
        result = function(_read_only(a), _read_only(b))
        if isinstance(result, np.ndarray):
            if result.dtype == np.bool_ and result.shape in (a.shape, a.shape[:2]):
                return _choose(np.ascontiguousarray(result), b, a)
            if result.dtype == a.dtype and result.shape == a.shape:
                return result
        raise OperatorError(
            f"composite: rule {name} returned {describe(result)} for images {describe(a)};"
            " return an image like them, or a boolean mask that chooses the second"
        )

    return select


def as_rule(function: Rule) -> Rule:
    """Mark a function of two images as a ``rule`` that a dataflow may name. Use it as a decorator."""
    function.composes_images = True  # type: ignore[attr-defined]  # functions may have attributes
    return function


@as_rule
def brightest(a: Image, b: Image) -> Image:
    """Return a mask that is true where ``b`` has the greater sum over its bands. The first image wins a tie.

    Example of a rule that chooses whole pixels.
    """
    if a.ndim == 2:
        return b > a
    mask: Image = b.sum(axis=2, dtype=np.uint32) > a.sum(axis=2, dtype=np.uint32)
    return mask


def load_rule(path: str) -> Rule:
    """Return the function at ``package.module:function``, which an allowed package defines and marks with ``as_rule``.

    A dataflow's parameters arrive over the network, so a rule is as restricted as an operator's import path. Raise
    OperatorError if the path is not allowed, cannot be imported, or names no rule.
    """
    rule = find_code(path)
    if isinstance(rule, type) or not getattr(rule, "composes_images", False):
        raise OperatorError(f"composite: {path!r} is no rule; define a function of two images there, under @as_rule")
    function: Rule = rule
    return function


def _read_only(image: Image) -> Image:
    view = image.view()
    view.flags.writeable = False
    return view


def image_operators() -> dict[str, type[Any]]:
    """Return the registered operators that combine images by a rule, by name. These operators have all ``PARAMETERS``.

    An operator that cannot be imported here, because its library is absent, is left out.
    """
    operators: dict[str, type[Any]] = {}
    for name, point in registered().items():
        if point.group == OPERATORS:
            with suppress(Exception):
                kind = point.load()
                if PARAMETERS.issubset(inspect.signature(kind).parameters):
                    operators[name] = kind
    return operators


def is_image(value: object) -> bool:
    """Return whether ``Composite`` accepts a value: uint8 or uint16, not empty.

    The shape must be (height, width) or (height, width, bands).
    """
    return (
        isinstance(value, np.ndarray)
        and value.dtype in (np.uint8, np.uint16)
        and value.ndim in (2, 3)
        and value.size > 0
    )


def describe(value: Value, dtype: np.dtype[Any] | None = None) -> str:
    """Return a short text for a value: dtype and shape of an array, as ``uint8 480x640``.

    ``dtype`` replaces the array's.
    """
    if not isinstance(value, np.ndarray):
        return type(value).__name__
    return f"{dtype or value.dtype} {'x'.join(map(str, value.shape))}"
