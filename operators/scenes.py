"""Synthetic satellite scenes: one ground truth, seen by each site through its own clouds.

The truth is a vegetation index (or, with several bands, a natural-colour picture) of a fractal coast. Its vegetation
fades slowly with the index and returns. Clouds *lower* the value. Clear pixels have at least ``CLEAR_MIN`` of 255, and
clouded pixels less. The thickest part of a cloud is 0, "no data". So the maximum of all sites' images clears the
picture, as in AVHRR compositing. The rule "latest" does the same, less well.

Every value depends on (seed, site, index) alone, in any order, process and machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from thalweg.middleware.errors import OperatorError
from thalweg.middleware.loading import ALLOWED
from thalweg.operators.interface import Source
from thalweg.operators.noise import F32, fractal, hash_key, lattice, nearest, uniform, upsample

Image = NDArray[Any]
SceneDtype = Literal["uint8", "uint16"]

CLEAR_MIN = 18  # of 255; clouds stay below, the ground at or above
CLOUD_MAX = 15
SMALLEST = 1 / 8  # the least bytes of an image, as a fraction of the mean: 3.5 deviations below at 25 %
YEAR = 360  # images until the vegetation is back where it began
_BASE = (576, 768)  # pixels of the truth; a larger image repeats pixels
_CLOUD_GRID = (108, 144)
_TERRAIN, _MOISTURE, _WARP, _CLOUDS, _SIZE = range(5)  # purposes of hash keys


class SceneSource(Source):
    """Source of the images of one site. The module's docstring describes the images.

    ``site`` of ``sites`` (0-based): sites with one ``seed`` share the ground truth and differ in clouds and sizes.
    ``length``: number of images. An image's bytes are drawn from Normal(``mean_bytes``, ``relative_deviation`` of the
    mean), but at least an eighth of the mean. An image is 4 wide to 3 high. ``dtype`` is ``"uint8"`` or ``"uint16"``.
    ``bands`` = 1 gives (height, width), more give (height, width, bands). The first three bands are red, green and
    blue.

    Raise OperatorError for parameters out of range. Source of the sizes: Ranganathan et al., section 4 (hurricane
    images of 15 web sites).
    """

    local = False

    def __init__(
        self,
        site: int,
        sites: int,
        seed: int,
        length: int = 180,
        mean_bytes: float = 131_072,
        relative_deviation: float = 0.25,
        dtype: SceneDtype = "uint8",
        bands: int = 1,
    ) -> None:
        if not 0 <= site < sites:
            raise OperatorError(f"scenes: site {site} of {sites} sites; number them from 0 to {sites - 1}")
        if dtype not in ("uint8", "uint16"):
            raise OperatorError(f"scenes: dtype {dtype!r}; use uint8 or uint16")
        if not 1 <= bands <= 16:
            raise OperatorError(f"scenes: {bands} bands; give 1 to 16")
        if length < 0:
            raise OperatorError(f"scenes: length {length}; give the number of images, 0 or more")
        if not 0 <= relative_deviation <= 1:
            raise OperatorError(f"scenes: relative_deviation {relative_deviation}; give 0 to 1 (0.25 = 25 %)")
        if not 256 <= mean_bytes <= 1 << 30:
            raise OperatorError(f"scenes: mean_bytes {mean_bytes}; give 256 bytes to 1 GiB")
        self.site = site
        self.sites = sites
        self.seed = seed
        self.length: int = length
        self.mean_bytes = mean_bytes
        self.relative_deviation = relative_deviation
        self.dtype: SceneDtype = dtype
        self.bands = bands
        self._most_bytes = ALLOWED.get().max_picture_bytes

    def produce(self, index: int) -> Image | None:
        """Return the image of time ``index`` as this site sees it. None: ``index`` is at least ``length``.

        Raise OperatorError if the image is too large.
        """
        if index < 0:
            raise OperatorError(f"scenes: partition {index} of site {self.site} was requested; partitions start at 0")
        if index >= self.length:
            return None
        shape = self.shape(index)
        size_bytes = math.prod(shape) * np.dtype(self.dtype).itemsize
        if size_bytes > self._most_bytes:
            raise OperatorError(
                f"scenes: image {index} would have {size_bytes} bytes, over max_picture_bytes={self._most_bytes};"
                " ask for a smaller mean_bytes, or raise that limit (thalweg host --limit)"
            )
        truth = ground_truth(self.seed, shape, index, self.dtype)
        field = _weather(hash_key(self.seed, _CLOUDS, self.site, index))
        for strip in _strips(*shape[:2]):
            clouds, clear = _clouds(field, shape[:2], self.dtype, strip)
            if self.bands > 1:
                clouds, clear = clouds[..., None], clear[..., None]
            part = truth[strip]
            part &= clear
            part |= clouds
        return truth

    def partition_bytes(self, index: int) -> int | None:
        """Return the size of an image in bytes. None: after the last image."""
        return math.prod(self.shape(index)) * np.dtype(self.dtype).itemsize if index < self.length else None

    def size_bytes(self) -> float:
        """Return the mean size of an image in bytes."""
        return float(self.mean_bytes)

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of image ``index``, without making the image."""
        size = self.mean_bytes
        if self.relative_deviation:
            deviate = NormalDist().inv_cdf(uniform(self.seed, _SIZE, self.site, index))
            size *= max(1 + self.relative_deviation * deviate, SMALLEST)
        pixels = size / (self.bands * np.dtype(self.dtype).itemsize)
        height = max(round(math.sqrt(pixels * 3 / 4)), 1)
        width = max(round(pixels / height), 1)
        return (height, width) if self.bands == 1 else (height, width, self.bands)


def ground_truth(seed: int, shape: tuple[int, ...], index: int = 0, dtype: SceneDtype = "uint8") -> Image:
    """Return the cloudless scene of ``seed`` at time ``index``, as a new array of ``shape``.

    ``shape``: (height, width) or (height, width, bands). Every size shows the same ground by nearest neighbour.
    """
    bands = shape[2] if len(shape) == 3 else 1
    summer, fading = _truth(seed, bands, dtype)
    rows, columns = nearest(_BASE[0], shape[0]), nearest(_BASE[1], shape[1])
    season = abs((index + YEAR // 2) % YEAR - YEAR // 2) * 255 // (YEAR // 2)  # 0 at index 0, 255 half a year on
    wide = np.uint16 if dtype == "uint8" else np.uint32
    out: Image = np.empty((bands, shape[0], shape[1]), dtype)
    for band in range(bands):
        for strip in _strips(*shape[:2]):
            out[band, strip] = summer[band].take(columns, axis=1).take(rows[strip], axis=0)
            if season:
                loss = fading[band].take(columns, axis=1).take(rows[strip], axis=0)
                scaled = loss.astype(wide)
                scaled *= wide(season)
                scaled >>= wide(8)
                out[band, strip] -= scaled.astype(dtype)
    return out[0] if len(shape) == 2 else np.ascontiguousarray(out.transpose(1, 2, 0))


def _weather(key: int) -> F32:
    """Return a field that is above 0 where the sky is cloudy, over half of the field."""
    field = fractal(key, *_CLOUD_GRID, cells=3, octaves=4, gain=0.6)
    grain = lattice(hash_key(key, 99), *_CLOUD_GRID)
    grain *= np.float32(0.06)
    field += grain
    flat = field.reshape(-1)
    field -= np.partition(flat, flat.size // 2)[flat.size // 2]
    return field


def _clouds(field: F32, shape: tuple[int, ...], dtype: SceneDtype, strip: slice) -> tuple[Image, Image]:
    """Return the clouds of a strip of the picture, and a mask.

    The clouds are 0 where the sky is clear. The mask has all bits set there.
    """
    scale = 1 if dtype == "uint8" else 257
    unsigned = np.dtype(dtype).type
    thickness = upsample(field, shape[0], shape[1], part=strip)
    cloudy: Image = (thickness > 0).astype(unsigned)
    thickness *= np.float32(-150 * scale)  # some tenth of the field's range from thinnest to thickest
    thickness += np.float32(CLOUD_MAX * scale)
    np.clip(thickness, 0, CLOUD_MAX * scale, out=thickness)
    clouds: Image = thickness.astype(unsigned) * cloudy
    return clouds, cloudy - unsigned(1)  # 0 - 1 sets all bits


@lru_cache(maxsize=2)  # 0.9 MB a band in uint8; sources of one seed in a process share it
def _truth(seed: int, bands: int, dtype: SceneDtype) -> tuple[Image, Image]:
    """Return for each band, at the base resolution, midsummer's values and the loss in winter."""
    height, moisture, shade = _terrain(seed)
    scale = 1 if dtype == "uint8" else 257
    summer = np.empty((bands, *_BASE), dtype)
    fading = np.empty((bands, *_BASE), dtype)
    for band in range(bands):
        for strip in _strips(*_BASE, 48 * _BASE[1]):
            kind = band if bands > 1 else 3
            high, loss = _band(kind, height[strip], moisture[strip], shade[strip])
            np.clip(high, CLEAR_MIN, 255, out=high)
            loss = np.clip(loss, 0, high - np.float32(CLEAR_MIN))
            summer[band, strip] = (high * np.float32(scale)).astype(dtype)
            fading[band, strip] = (loss * np.float32(scale)).astype(dtype)
    summer.flags.writeable = fading.flags.writeable = False
    return summer, fading


def _strips(rows: int, columns: int, pixels: int = 1 << 20) -> Iterator[slice]:
    """Yield the rows in strips, so intermediate arrays stay small beside a host process and a large picture."""
    step = max(1, pixels // columns)
    for first in range(0, rows, step):
        yield slice(first, first + step)


def _terrain(seed: int) -> tuple[F32, F32, F32]:
    """Return the height above the sea in about (-1, 1), moisture in about (0, 1), and the light on slopes."""
    key = hash_key(seed, _TERRAIN)
    rows, columns = _BASE
    height = fractal(key, rows, columns, cells=3, octaves=8, gain=0.53)
    # Value noise shows its grid. Reading it at places shifted by further noise makes coasts and valleys.
    reach = np.float32(rows * 0.32)
    down = fractal(hash_key(seed, _WARP, 0), rows, columns, cells=4, octaves=5)
    down -= np.float32(0.5)
    down *= reach
    across = fractal(hash_key(seed, _WARP, 1), rows, columns, cells=4, octaves=5)
    across -= np.float32(0.5)
    across *= reach
    flat = height.reshape(-1)
    height = down  # overwritten strip by strip with the heights at the shifted places
    for strip in _strips(rows, columns, 48 * columns):
        row = down[strip] + np.arange(rows, dtype=np.float32)[strip, None]
        column = across[strip] + np.arange(columns, dtype=np.float32)
        place = np.clip(row, 0, rows - 1).astype(np.intp)
        place *= columns
        place += np.clip(column, 0, columns - 1).astype(np.intp)
        height[strip] = flat.take(place)
    del flat, across
    sample = height[::4, ::4].reshape(-1)
    sea = np.partition(sample, sample.size * 2 // 5)[sample.size * 2 // 5]  # two fifths are water
    height -= sea
    height *= np.float32(3)
    moisture = fractal(hash_key(seed, _MOISTURE), rows, columns, cells=2, octaves=6, gain=0.55)
    moisture -= np.float32(0.5)
    moisture *= np.float32(2.2)
    moisture += np.float32(0.5)
    shade = np.zeros_like(height)
    shade[1:, 1:] = (height[1:, 1:] - height[:-1, :-1]) * np.float32(6)
    np.clip(shade, -1, 1, out=shade)
    return height, moisture, shade


def _band(band: int, height: F32, moisture: F32, shade: F32) -> tuple[F32, F32]:
    """Return midsummer's values (of 255) and the winter's loss in one band: 0 red, 1 green, 2 blue, 3 vegetation, …"""
    f = np.float32
    land = height > 0
    wet = np.clip(moisture, 0, 1)
    rise = np.clip(height, 0, 1)
    depth = np.clip(-height, 0, 1)
    green = wet * (f(1) - rise * f(0.9))
    # (bare ground, forest, peak, shallow sea, deep sea) of 255
    colours = [
        (205, 44, 235, 62, 20),
        (178, 106, 232, 130, 44),
        (128, 40, 230, 150, 92),
        (84, 240, 70, 46, 20),
    ]
    if band < 4:
        bare, forest, peak, shallow, deep = map(f, colours[band])
    else:
        bare, forest, peak, shallow, deep = (f(40 + hash_key(band, part) % 180) for part in range(5))
    ground = bare + (forest - bare) * green
    cap = np.clip((rise - f(0.55)) * f(4), 0, 1)
    ground += (peak - ground) * cap
    ground += shade * f(34)
    water = shallow + (deep - shallow) * np.clip(depth * f(2.2), 0, 1)
    loss = green * (f(1) - cap) * abs(forest - bare) * f(0.45 if forest > bare else 0.1)
    if band == 3:
        np.maximum(ground, f(64), out=ground)  # above any water, as in a real index
        np.minimum(loss, ground - f(64), out=loss)
    return np.where(land, ground, water), np.where(land, loss, f(0))
