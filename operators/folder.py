"""Source of the user's own images: the PNG, JPEG and TIFF files of a folder, one partition each."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from thalweg.middleware.errors import OperatorError
from thalweg.middleware.loading import ALLOWED, MAX_PICTURE_BYTES, data_path
from thalweg.middleware.platform.files import open_regular
from thalweg.operators.interface import Source

Image = NDArray[Any]

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".tif", ".tiff"))
FORMATS = ("PNG", "JPEG", "TIFF")
_TILE_WIDTH, _TILE_LENGTH = 322, 323  # tags of TIFF 6.0, section 15
_ORIENTATION = 274  # tag of EXIF 2.3, section 4.6.4
_STRIP_PIXELS = 1 << 20
SIZE_SAMPLE = 64  # headers read for size_bytes; more would make a large folder slow to start

_log = logging.getLogger(__name__)
_opening = threading.Lock()  # warnings.catch_warnings is process-wide


class ImageFolderSource(Source):
    """Source of the images of a folder, sorted by name, numbers in names by value (``img2.png`` before ``img10.png``).

    Values are (height, width) or (height, width, bands), uint8. 16-bit grey images keep their 16 bits. Palettes and
    other colour spaces become RGB, and an alpha band is dropped. Of a file with several pages the first counts. Images
    are turned as their EXIF orientation says.

    ``folder`` is read once, at construction. On a host it must be within a folder that the host permits
    (``thalweg host --data-root``, ``LocalCluster(data_roots=…)``). The same holds for files to which links in it lead.
    ``skip_corrupt``: leave out files that cannot be decoded, so partitions number the good files. Each omitted file is
    logged and is in ``skipped``. ``length`` is then None.

    Raise OperatorError for a missing or empty folder. ``produce`` raises OperatorError for an unusable file.
    """

    def __init__(self, folder: str, skip_corrupt: bool = False) -> None:
        self.folder = data_path(folder)
        self.skip_corrupt = skip_corrupt
        try:
            paths = [path for path in self.folder.iterdir() if path.suffix.lower() in SUFFIXES]
        except OSError as error:
            raise OperatorError(f"image folder {folder}: {error.strerror}; name a folder this host can read") from None
        self.files = sorted((path for path in paths if path.is_file()), key=_natural)
        for link in filter(Path.is_symlink, self.files):
            data_path(str(link))
        if not self.files:
            raise OperatorError(f"image folder {folder} holds no image; put {', '.join(sorted(SUFFIXES))} files there")
        self.length = None if skip_corrupt else len(self.files)
        self.skipped: list[Path] = []
        self._good: list[int] = []  # with skip_corrupt: numbers of the decoded files, by partition
        self._size: float | None = None
        self._most_bytes = ALLOWED.get().max_picture_bytes

    def produce(self, index: int) -> Image | None:
        """Return image ``index``. None: after the last image.

        Raise OperatorError that names a corrupt file.
        """
        if index < 0:
            raise OperatorError(f"image folder {self.folder}: partition {index} was requested; partitions start at 0")
        if not self.skip_corrupt:
            return read_image(self.files[index], self._most_bytes) if index < len(self.files) else None
        if index < len(self._good):
            return read_image(self.files[self._good[index]], self._most_bytes)
        while (position := len(self._good) + len(self.skipped)) < len(self.files):
            try:
                image = read_image(self.files[position], self._most_bytes)
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
        """Return the mean bytes of the decoded images, from the headers of up to 64 files. 0: no header can be read."""
        if self._size is None:
            step = -(-len(self.files) // SIZE_SAMPLE)
            sizes = [size for path in self.files[::step] if (size := _header_bytes(path))]
            self._size = sum(sizes) / len(sizes) if sizes else 0.0
        return self._size


class CorruptImageError(OperatorError):
    """Error of a file that is no readable image of the supported formats."""


def read_image(path: Path, most_bytes: int = MAX_PICTURE_BYTES) -> Image:
    """Return the image of one file as an array. ImageFolderSource describes the array.

    Raise CorruptImageError if the file cannot be decoded. Raise OperatorError if the file cannot be read, or if its
    header tells that decoding takes more than ``most_bytes``. The same holds for pixels that uint8 or uint16 cannot
    hold.
    """
    try:
        with open_regular(path) as file:
            return _decode(file, path, most_bytes)
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
    try:
        from PIL import Image as pillow  # here, so host processes without pictures do not load it
        from PIL import UnidentifiedImageError
    except ModuleNotFoundError:
        raise OperatorError("images need pillow, which is not installed here: pip install pillow") from None
    try:
        with _opening, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns at half of the pixels that it refuses
            return pillow.open(file, formats=FORMATS)
    except UnidentifiedImageError:  # its text would name the open file
        raise ValueError("it is no image of a known format, or is cut short") from None
    except pillow.DecompressionBombError:
        raise OperatorError(
            f"image {path} has more than {2 * (pillow.MAX_IMAGE_PIXELS or 0)} pixels, which may be a decompression"
            " bomb; cut it into smaller images"
        ) from None


def _decode(file: BinaryIO, path: Path, most_bytes: int) -> Image:
    image = _open(file, path)
    if _bits_lost(image):
        raise OperatorError(
            f"image {path} has several bands of 16 bits, which Pillow cannot read;"
            " save it with 8 bits, or each band as a grey image"
        )
    mode: str = image.mode
    if mode == "F":
        raise OperatorError(f"image {path} has floating-point pixels; save it with 8 or 16 bits")
    width, height = image.size
    tags = getattr(image, "tag_v2", {})  # of a TIFF: a tile may be larger than the picture
    pixels = max(width * height, tags.get(_TILE_WIDTH, 0) * tags.get(_TILE_LENGTH, 0))
    size_bytes = pixels * (1 if mode in ("1", "L", "P") else 4)  # largest memory that Pillow needs
    if size_bytes > most_bytes:
        raise OperatorError(
            f"image {path} of {width}x{height} pixels takes {size_bytes} bytes to decode, over max_picture_bytes="
            f"{most_bytes}; cut it into smaller images, or raise that limit (thalweg host --limit)"
        )
    kind = _kind(mode)
    out: Image = np.empty((height, width, 3) if kind == "RGB" else (height, width), np.uint16 if not kind else np.uint8)
    image.load()
    step = max(1, _STRIP_PIXELS // max(1, width))
    for top in range(0, height, step):  # in strips, so intermediate arrays stay small
        strip = image.crop((0, top, width, min(height, top + step)))
        part = np.asarray(strip if not kind or mode == kind else strip.convert(kind))
        if mode == "I" and (part.min() < 0 or part.max() > 0xFFFF):
            raise OperatorError(f"image {path} has pixels beyond 16 bits; save it with 8 or 16 bits")
        out[top : top + step] = part
    with contextlib.suppress(Exception):  # damaged tags beside good pixels
        out = _upright(out, image.getexif().get(_ORIENTATION))
    return out


def _upright(pixels: Image, orientation: object) -> Image:
    """Return an image turned as the EXIF tag says. Without a valid tag, the image is unchanged."""
    if orientation not in range(2, 9):
        return pixels
    if orientation in range(5, 9):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):  # bottom to top
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):  # right to left
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)


def _kind(mode: str) -> str:
    """Return the mode to which pixels of a mode are converted: L, RGB, or empty for 16 bits."""
    if mode == "I" or mode.startswith("I;16"):
        return ""
    return "L" if mode in ("1", "L", "LA", "La") else "RGB"


def _bits_lost(image: Any) -> bool:
    """Return whether Pillow would silently cut 16-bit bands to 8, by its decoder's raw mode."""
    if image.mode in ("I", "L") or image.mode.startswith("I;16"):
        return False
    return any(re.search(r";16[BLNS]*'", repr(tile[3])) for tile in image.tile)  # a name, or a tuple that begins so


def _header_bytes(path: Path) -> int:
    """Return the bytes of the decoded image by its header alone. 0: the header cannot be read."""
    try:
        with open_regular(path) as file:
            image = _open(file, path)
            pixels = int(image.size[0] * image.size[1])
            mode = str(image.mode)
    except Exception:  # only a hint: produce() reports the error of the file
        return 0
    return pixels * {"": 2, "L": 1, "RGB": 3}[_kind(mode)]


def _natural(path: Path) -> tuple[tuple[tuple[int, int, str], ...], str]:
    parts = re.split(r"(\d+)", path.name.lower())
    key = tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts if part)
    return key, path.name
