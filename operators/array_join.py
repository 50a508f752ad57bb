"""Windowed join of arrays: the parts that agree between the last partitions of all inputs. Records have ``join``.

Two kinds of values have keys. Their outputs stay as small as the inputs, however long data flows.

``on="tiles"``, for images: an image is cut into a grid of tiles. A tile's key is its place and its mean value, rounded
to one of ``levels``. For each input, the tiles of the last ``window`` partitions can match. The output is one image, of
the size that ``Composite`` would give the partition. Each place has the composite of the newest matching tiles, one
from each input.

``on="rows"``, for tables: a row's key is column 0. For each input, the last row of a key in the last ``window``
partitions counts (equi-join of keyed streams). The output has one row for each key of the first input's window, by
ascending key. A row is the key, then the other columns of the first input, of the second, and so on.

Without a match, ``how="left"`` keeps the part of the first input: the newest tile, or a row whose missing columns are
0. ``how="inner"`` gives a tile of zeros, which is "no data" to every composite, or no row.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from thalweg.middleware.errors import OperatorError
from thalweg.operators.composition import SECONDS_PER_PIXEL, Composite, Rule, describe, expand, is_image
from thalweg.operators.interface import Value
from thalweg.operators.remembering import Remembering, form
from thalweg.operators.states import is_numeric

Array = NDArray[Any]
On = Literal["tiles", "rows"]
How = Literal["left", "inner"]

SAMPLES = 4  # pixels for a tile's mean, in each direction
MAX_TILES = 256
MAX_LEVELS = 256


class _Part(NamedTuple):
    """One partition of one input in the state."""

    values: Array  # the image; or the table, with rows by ascending key, each key once
    keys: Array  # keys of the tiles, (tiles, tiles); or of the rows


_Window = deque[_Part]  # partitions of one input, newest first


class ArrayJoin(Remembering):
    """Operator that joins its inputs over a window of partitions (see the module).

    ``window``: partitions of each input that can match, the present one included. ``tiles``: tiles in each direction.
    ``levels``: distinct keys of a place. Fewer levels match more often. The remaining parameters are Composite's, and
    compose matching tiles. The state is the last ``window`` - 1 partitions of every input.

    Raise OperatorError for unusable parameters. ``combine`` raises OperatorError for inputs that are not images or
    tables as ``on`` requires, or differ from earlier inputs.
    """

    name, counts = "array-join", ("inputs",)

    def __init__(
        self,
        on: On = "tiles",
        how: How = "left",
        window: int = 4,
        tiles: int = 16,
        levels: int = 16,
        rule: str | Rule = "max",
        key_band: int | None = None,
        seconds_per_pixel: float = SECONDS_PER_PIXEL,
        bytes_per_pixel: int = 1,
    ) -> None:
        super().__init__(Composite(rule, key_band, seconds_per_pixel, bytes_per_pixel))
        if on not in get_args(On) or how not in get_args(How):
            raise OperatorError(f"array-join: on={on!r} and how={how!r}; use tiles or rows, and left or inner")
        self.window = self._window(window)
        for value, text, most in ((tiles, "tiles", MAX_TILES), (levels, "levels", MAX_LEVELS)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise OperatorError(f"array-join: {text}={value!r}; give 1 to {most}")
        self.on: On = on
        self.how: How = how
        self.tiles = tiles
        self.levels = levels
        self.params |= {"on": on, "how": how, "window": window}
        if on == "tiles":
            self.params |= {"tiles": tiles, "levels": levels}
        self._past: list[_Window] = []  # one for each input, without the present partition; empty at first

    def combine(self, inputs: Sequence[Value], index: int) -> Array:
        """Return the join of the present partition of the inputs with the earlier partitions.

        Raise OperatorError if the number of inputs has changed.
        """
        if not inputs:
            raise OperatorError("array-join: no input; give the operator at least one")
        present = [self._part(value, f"input {position} of partition {index}") for position, value in enumerate(inputs)]
        past = self._past or [deque(maxlen=self.window - 1) for _ in present]
        if len(past) != len(present):
            raise OperatorError(
                f"array-join: partition {index} has {len(present)} inputs, and earlier partitions had {len(past)}"
            )
        windows = [deque([newest, *before]) for newest, before in zip(present, past, strict=True)]
        self._check(windows, f"partition {index}")
        result = self._join_tiles(windows, index) if self.on == "tiles" else self._join_rows(windows)
        for newest, before in zip(present, past, strict=True):
            before.appendleft(newest)
        self._past = past if self.window > 1 else []
        return result

    def _kept(self) -> tuple[dict[str, int], Sequence[Array]]:
        return {"inputs": len(self._past)}, [part.values for window in self._past for part in window]

    def _keep(self, counts: dict[str, int], arrays: list[Array]) -> None:
        inputs = counts["inputs"]
        length, odd = divmod(len(arrays), inputs or 1)
        if not inputs or odd or not 1 <= length < self.window:
            raise OperatorError(
                f"array-join: the state has {len(arrays)} partitions of {inputs} inputs; window={self.window} keeps at"
                " most one less of each input"
            )
        parts = [self._part(array, "an array of the state", owned=True) for array in arrays]
        if self.on == "rows" and any(
            part.values.tobytes() != array.tobytes() for part, array in zip(parts, arrays, strict=True)
        ):
            raise OperatorError("array-join: the rows of the state are not in the order of their keys, each key once")
        windows = [deque(parts[i * length : (i + 1) * length], maxlen=self.window - 1) for i in range(inputs)]
        self._check(windows, "the state")
        self._past = windows

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        """Return the expected bytes of an output.

        Tiles give the size of the largest input, and rows the sum, because their columns are side by side.
        """
        return max(input_sizes, default=0.0) if self.on == "tiles" else float(sum(input_sizes))

    def passes(self, inputs: int) -> float:
        """Return two passes for each input, as a picture is assembled from about two partitions."""
        return 2.0 * inputs

    def _part(self, value: Value, what: str, *, owned: bool = False) -> _Part:
        """Return the state's part for a value. The part and the value share no memory unless the value is ``owned``."""
        if self.on == "tiles":
            if not is_image(value):
                raise OperatorError(
                    f"array-join: {what} is {describe(value)}; images are uint8 or uint16, (height, width) or (height,"
                    " width, bands); for tables give on='rows'"
                )
            image = np.asarray(value) if owned else np.array(value, order="C")
            return _Part(image, self._tile_keys(image))
        if not is_numeric(value) or np.ndim(value) != 2 or np.shape(value)[1] == 0:
            raise OperatorError(
                f"array-join: {what} is {describe(value)}; tables are (rows, columns) of integers or floats, keys first"
            )
        table = np.asarray(value)
        table = table[table[:, 0] == table[:, 0]]  # NaN is no key
        _, last = np.unique(table[::-1, 0], return_index=True)
        table = np.ascontiguousarray(table[::-1][last])
        return _Part(table, table[:, 0])

    def _tile_keys(self, image: Array) -> Array:
        side = self.tiles * SAMPLES
        sample = expand(image, (side, side)).reshape(self.tiles, SAMPLES, self.tiles, -1)
        sums = sample.sum(axis=(1, 3), dtype=np.uint64)
        whole = sample[0, :, 0].size * (int(np.iinfo(image.dtype).max) + 1)
        keys: Array = sums * np.uint64(self.levels) // np.uint64(whole)
        return keys

    def _check(self, windows: Sequence[_Window], where: str) -> None:
        """Raise OperatorError if partitions of a join differ in dtype or number of bands.

        The tables of one input must also have one number of columns.
        """
        first = windows[0][0].values
        for window in windows:
            for part in window:
                like = first if self.on == "tiles" or part.values.dtype != first.dtype else window[0].values
                if self._form(part.values) != self._form(like):
                    raise OperatorError(
                        f"array-join: {where} brings together {describe(like)} and {describe(part.values)}; give all"
                        " one dtype, images one number of bands, and the tables of an input one number of columns"
                    )

    def _form(self, values: Array) -> tuple[Any, ...]:
        return (values.dtype, values.shape[1]) if self.on == "rows" else form(values.dtype, values.shape)

    def _join_tiles(self, windows: Sequence[_Window], index: int) -> Array:
        lags, unmatched = _match([[part.keys for part in window] for window in windows])
        size = max((window[0].values.shape[:2] for window in windows), key=math.prod)  # the first on a tie
        pictures = [_picture(window, lag, size) for window, lag in zip(windows, lags, strict=True)]
        result = self.composite.combine(pictures, index)
        if unmatched.any():
            _overwrite(result, pictures[0] if self.how == "left" else np.zeros_like(result), expand(unmatched, size))
        return result

    def _join_rows(self, windows: Sequence[_Window]) -> Array:
        first = _latest(windows[0])
        keep = np.ones(len(first), np.bool_)
        columns = [first]
        for window in windows[1:]:
            table = _latest(window)
            matched, present = _look_up(table, first[:, 0])
            columns.append(matched[:, 1:])
            keep &= present
        joined = np.concatenate(columns, axis=1)
        return joined if self.how == "left" else joined[keep]


def _match(keys: Sequence[Sequence[Array]]) -> tuple[list[Array], Array]:
    """Return for each input the lags of its matching tiles, and a mask of the places without a match (lag 0).

    A lag counts partitions back. ``keys``: keys of each input, newest first. The newest tile of the first input that
    matches a tile of every other input decides. Every other input contributes its newest match.
    """
    lags = [np.zeros(keys[0][0].shape, np.intp) for _ in keys]
    unmatched = np.ones(keys[0][0].shape, np.bool_)
    later_inputs = [np.stack(window) for window in keys[1:]]
    for lag, wanted in enumerate(keys[0]):
        equal = [window == wanted for window in later_inputs]
        here = unmatched.copy()
        for matches in equal:
            here &= matches.any(axis=0)
        lags[0][here] = lag
        for chosen, matches in zip(lags[1:], equal, strict=True):
            chosen[here] = matches.argmax(axis=0)[here]
        unmatched &= ~here
        if not unmatched.any():
            break
    return lags, unmatched


def _picture(window: _Window, lags: Array, size: tuple[int, ...]) -> Array:
    """Return an image of ``size`` with each tile from the partition that is ``lags`` back.

    The result may be the newest image itself.
    """
    picture = expand(window[0].values, size)
    chosen = lags != 0
    if chosen.any():
        if picture is window[0].values:
            picture = picture.copy()
        for lag in range(1, len(window)):
            mask = lags == lag
            if mask.any():
                _overwrite(picture, expand(window[lag].values, size), expand(mask, size))
    return picture


def _overwrite(image: Array, other: Array, mask: Array) -> None:
    np.copyto(image, other, where=mask if image.ndim == 2 else mask[..., None])


def _latest(window: _Window) -> Array:
    """Return the newest row of every key in the window, by ascending key."""
    rows = np.concatenate([part.values for part in window])
    _, newest = np.unique(rows[:, 0], return_index=True)
    latest: Array = rows[newest]
    return latest


def _look_up(table: Array, keys: Array) -> tuple[Array, Array]:
    """Return the rows of ``keys`` in a table by ascending key, and a mask of the keys that are present.

    The row of an absent key is zeros.
    """
    if len(table) == 0:
        return np.zeros((len(keys), table.shape[1]), table.dtype), np.zeros(len(keys), np.bool_)
    place = np.minimum(np.searchsorted(table[:, 0], keys), len(table) - 1)
    present = table[place, 0] == keys
    rows = table[place]
    rows[~present] = 0
    return rows, present
