"""Partitions as pictures: PNG files, and sheets that show the sites' images beside their composite.

Pillow is imported when a picture is made, so host processes do not load it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.middleware.errors import OperatorError
from thalweg.operators.composition import describe

Image = NDArray[Any]

_INK = (28, 33, 40)
_PAPER = (250, 250, 248)
_MARK = (201, 84, 27)
_CELL_WIDTH = 200

# Value of 255 -> colour; below 18 the synthetic scenes have clouds (0 = no data), up to 60 water, then land.
_VEGETATION = [
    (0, (248, 249, 251)),
    (16, (205, 212, 220)),
    (17, (13, 40, 84)),
    (46, (52, 128, 172)),
    (62, (126, 196, 205)),
    (64, (168, 146, 118)),
    (92, (222, 202, 156)),
    (130, (204, 204, 120)),
    (170, (128, 174, 84)),
    (210, (58, 132, 62)),
    (255, (16, 76, 44)),
]


def write_image(value: Image, path: str | os.PathLike[str]) -> None:
    """Write (height, width) uint8 or uint16, or (height, width, 3) uint8, as a PNG, pixel for pixel.

    Raise OperatorError for any other array, or if the file cannot be written.
    """
    from PIL import Image as pillow

    grey = value.ndim == 2 and value.dtype in (np.uint8, np.uint16)
    colour = value.ndim == 3 and value.shape[2] == 3 and value.dtype == np.uint8
    if not (grey or colour) or value.size == 0:
        raise OperatorError(
            f"there is no PNG of {describe(value)}; give uint8 or uint16 (height, width) or uint8 (height, width, 3)"
        )
    _save(pillow.fromarray(np.ascontiguousarray(value)), path)


def colour(image: Image, white: float | None = None) -> NDArray[np.uint8]:
    """Return an RGB picture (height, width, 3) of an image of one or more bands for the eye.

    One band gets the colours of vegetation. Of several bands, the first three are red, green and blue. With two bands,
    the second is also blue. ``white``: value that is shown as 255, by default the dtype's largest.
    """
    largest = white or float(np.iinfo(image.dtype).max)
    eight = image if image.dtype == np.uint8 and largest == 255 else _to_eight(image, largest)
    if eight.ndim == 3 and eight.shape[2] > 1:
        bands = [min(band, eight.shape[2] - 1) for band in range(3)]
        return np.ascontiguousarray(eight[..., bands], np.uint8)
    flat = eight if eight.ndim == 2 else eight[..., 0]
    picture: NDArray[np.uint8] = _vegetation()[flat]
    return picture


def contact_sheet(rows: Sequence[Sequence[Image]], labels: Sequence[str], path: str | os.PathLike[str]) -> None:
    """Write a PNG of pictures in rows under the column headings ``labels``. Each picture is fitted into an equal cell.

    ``rows``: for instance one row for each partition, with a column for each site and the composite last. The last
    column is set apart. 16-bit images are shown relative to their largest value in the sheet. Raise OperatorError for
    an empty sheet, rows longer than ``labels``, or a file that cannot be written.
    """
    from PIL import Image as pillow
    from PIL import ImageDraw, ImageFont

    if not rows or not any(rows) or any(len(row) > len(labels) for row in rows):
        raise OperatorError(f"a contact sheet of {len(rows)} rows needs a label for every column")
    wide = [image for row in rows for image in row if image.dtype != np.uint8]
    white = max((float(image.max()) for image in wide), default=0.0) or None
    ratio = max(image.shape[0] / image.shape[1] for row in rows for image in row)
    cell_height = max(round(_CELL_WIDTH * min(ratio, 2.0)), 1)
    font, margin, gap, heading = ImageFont.load_default(14), 24, 8, 28
    lefts = [margin + column * (_CELL_WIDTH + gap) for column in range(len(labels))]
    if len(labels) > 1:
        lefts[-1] += 2 * gap
    height = heading + len(rows) * (cell_height + gap) - gap + 2 * margin
    sheet = pillow.new("RGB", (lefts[-1] + _CELL_WIDTH + margin, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    for left, text in zip(lefts, labels, strict=True):
        fill = _MARK if left == lefts[-1] else _INK
        draw.text((left, margin + heading - 9), text, fill=fill, font=font, anchor="ls")
    for line, row in enumerate(rows):
        y = margin + heading + line * (cell_height + gap)
        for left, image in zip(lefts, row, strict=False):
            picture = pillow.fromarray(colour(image, white if image.dtype != np.uint8 else None))
            scale = min(_CELL_WIDTH / picture.width, cell_height / picture.height)
            size = max(round(picture.width * scale), 1), max(round(picture.height * scale), 1)
            x = left + (_CELL_WIDTH - size[0]) // 2
            sheet.paste(picture.resize(size, pillow.Resampling.LANCZOS), (x, y + (cell_height - size[1]) // 2))
            if left == lefts[-1]:
                box = (left - 3, y - 3, left + _CELL_WIDTH + 2, y + cell_height + 2)
                draw.rectangle(box, outline=_MARK, width=2)
    _save(sheet, path)


def _to_eight(image: Image, white: float) -> NDArray[np.uint8]:
    scaled = image.astype(np.float32) * np.float32(255 / white)
    np.clip(scaled, 0, 255, out=scaled)
    return scaled.astype(np.uint8)


def _vegetation() -> NDArray[np.uint8]:
    places, colours = zip(*_VEGETATION, strict=True)
    bands = [np.interp(np.arange(256), places, band) for band in zip(*colours, strict=True)]
    return np.stack(bands, axis=1).round().astype(np.uint8)


def _save(picture: Any, path: str | os.PathLike[str]) -> None:
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        picture.save(target, format="PNG")
    except OSError as error:
        raise OperatorError(f"the picture {target} cannot be written: {error.strerror or error}") from None
