"""The user's own images: the PNG, JPEG and TIFF files of a folder, one partition each."""

from __future__ import annotations

import logging
import re
import threading
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from thalweg.middleware.errors import OperatorError
from thalweg.operators.interface import Source

Image = NDArray[Any]

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".tif", ".tiff"))
FORMATS = ("PNG", "JPEG", "TIFF")
SIZE_SAMPLE = 64  # headers read for size_bytes; more would make a large folder slow to start

_log = logging.getLogger(__name__)
_opening = threading.Lock()  # warnings.catch_warnings is process-wide


class ImageFolderSource(Source):
    """Images sorted by name, numbers in names by value (``img2.png`` before ``img10.png``).

    Values are (height, width) or (height, width, bands), uint8; 16-bit grey images keep their 16 bits.
    Palettes become RGB, other colour spaces too, and an alpha band is dropped. Of a file with several pages
    the first counts. Pixels are taken as stored (no rotation by EXIF).

    ``folder`` is read once, at construction. ``skip_corrupt``: leave out files that cannot be decoded (each is
    logged and named in ``skipped``), so that partitions number the good ones; ``length`` is None then.

    Raises OperatorError for a missing or empty folder, and from ``produce`` for a file that cannot be used.
    """

    def __init__(self, folder: str, skip_corrupt: bool = False) -> None:
        self.folder = Path(folder).expanduser()
        self.skip_corrupt = skip_corrupt
        try:
            found = [path for path in self.folder.iterdir() if path.suffix.lower() in SUFFIXES]
        except OSError as error:
            raise OperatorError(f"image folder {folder}: {error.strerror}; name a folder this host can read") from None
        self.files = sorted((path for path in found if path.is_file()), key=_natural)
        if not self.files:
            raise OperatorError(f"image folder {folder} holds no image; put {', '.join(sorted(SUFFIXES))} files there")
        self.length = None if skip_corrupt else len(self.files)
        self.skipped: list[Path] = []
        self._good: list[int] = []  # with skip_corrupt: the files that were decoded, partition by partition
        self._size: float | None = None

    def produce(self, index: int) -> Image | None:
        """Image ``index``, or None after the last. Raises OperatorError that names the file that is corrupt."""
        if index < 0:
            raise OperatorError(f"image folder {self.folder}: partition {index} asked; they start at 0")
        if not self.skip_corrupt:
            return read_image(self.files[index]) if index < len(self.files) else None
        if index < len(self._good):
            return read_image(self.files[self._good[index]])
        while (position := len(self._good) + len(self.skipped)) < len(self.files):
            try:
                image = read_image(self.files[position])
            except CorruptImageError as error:
                _log.warning("skipped: %s", error)
                self.skipped.append(self.files[position])
                continue
            self._good.append(position)
            if index < len(self._good):
                return image
        if not self._good:
            raise OperatorError(f"image folder {self.folder}: all {len(self.files)} images are corrupt")
        return None

    def size_bytes(self) -> float:
        """Mean size of the decoded images in bytes, from the headers of up to 64 files; 0 if none can be read."""
        if self._size is None:
            step = -(-len(self.files) // SIZE_SAMPLE)
            sizes = [size for path in self.files[::step] if (size := _header_bytes(path))]
            self._size = sum(sizes) / len(sizes) if sizes else 0.0
        return self._size


class CorruptImageError(OperatorError):
    """A file that is not a readable image of the formats supported."""


def read_image(path: Path) -> Image:
    """The image of one file as an array; see ImageFolderSource for what it holds.

    Raises CorruptImageError for a file that cannot be decoded, OperatorError for one that cannot be read, is too
    large for Pillow's decompression-bomb limit, or has pixels that uint8 or uint16 cannot hold.
    """
    try:
        with path.open("rb") as file:
            return _decode(file, path)
    except OperatorError:
        raise
    except (PermissionError, FileNotFoundError) as error:
        raise OperatorError(f"image {path}: {error.strerror}; make it readable on this host") from None
    except MemoryError:
        raise OperatorError(f"image {path} does not fit into memory; make it smaller") from None
    except Exception as error:  # Pillow's decoders let nearly any exception out on a damaged file
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorruptImageError(
            f"image {path} is corrupt ({text}); repair or remove it, or skip such files with"
            " skip_corrupt=true (--skip-corrupt)"
        ) from None


def _open(file: BinaryIO, path: Path) -> Any:
    from PIL import Image as pillow  # so that host processes without pictures do not carry it

    try:
        with _opening, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            return pillow.open(file, formats=FORMATS)
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
        raise OperatorError(
            f"image {path} has more than {pillow.MAX_IMAGE_PIXELS} pixels, which may be a decompression bomb;"
            " cut it into smaller images, or raise PIL.Image.MAX_IMAGE_PIXELS"
        ) from None


def _decode(file: BinaryIO, path: Path) -> Image:
    image = _open(file, path)
    if _bits_lost(image):
        raise OperatorError(
            f"image {path} has several bands of 16 bits, which Pillow cannot read;"
            " save it with 8 bits, or each band as a grey image"
        )
    mode = image.mode
    if mode == "F":
        raise OperatorError(f"image {path} has floating-point pixels; save it with 8 or 16 bits")
    if mode == "I" or mode.startswith("I;16"):
        wide = np.asarray(image)
        if mode == "I" and (wide.min() < 0 or wide.max() > 0xFFFF):
            raise OperatorError(f"image {path} has pixels beyond 16 bits; save it with 8 or 16 bits")
        return np.ascontiguousarray(wide, np.uint16)
    if mode in ("1", "L", "LA", "La"):
        return np.array(image if mode == "L" else image.convert("L"))
    return np.array(image if mode == "RGB" else image.convert("RGB"))


def _bits_lost(image: Any) -> bool:
    """Whether Pillow would silently cut 16-bit bands to 8: its decoder's raw mode says so."""
    if image.mode in ("I", "L") or image.mode.startswith("I;16"):
        return False
    return any(re.search(r";16[BLNS]*'", repr(tile[3])) for tile in image.tile)  # a name, or a tuple that begins so


def _header_bytes(path: Path) -> int:
    """Size of the decoded image in bytes by its header alone; 0 when that cannot be read."""
    try:
        with path.open("rb") as file:
            image = _open(file, path)
            pixels = int(image.size[0] * image.size[1])
            mode = str(image.mode)
    except Exception:  # a hint: produce() will say what is wrong with the file
        return 0
    if mode == "I" or mode.startswith("I;16"):
        return pixels * 2
    return pixels * (1 if mode in ("1", "L", "LA", "La") else 3)


def _natural(path: Path) -> tuple[tuple[tuple[int, int, str], ...], str]:
    parts = re.split(r"(\d+)", path.name.lower())
    key = tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part)
    return key, path.name
