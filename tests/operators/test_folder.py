"""Folders of images: pixels as stored in each format, order by number, and errors that name corrupt files."""

from __future__ import annotations

import itertools
import re
import sys

import numpy as np
import pytest
from PIL import Image, ImageOps

from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import OperatorError, UsageError
from thalweg.middleware.loading import Allowed, check_roots, load_code
from thalweg.operators import ImageFolderSource

GREY = np.arange(60, dtype=np.uint8).reshape(6, 10)
COLOUR = np.random.default_rng(1).integers(0, 255, (6, 10, 3), dtype=np.uint8)
DEEP = (np.arange(60, dtype=np.uint16) * 1000).reshape(6, 10)


@pytest.mark.parametrize("suffix", ["png", "tiff", "TIF"])
@pytest.mark.parametrize("pixels", [GREY, COLOUR, DEEP], ids=["grey", "colour", "16bit"])
def test_lossless_formats_come_back_exactly(tmp_path, suffix, pixels):
    Image.fromarray(pixels).save(tmp_path / f"a.{suffix}")
    source = ImageFolderSource(str(tmp_path))
    image = source.produce(0)
    np.testing.assert_array_equal(image, pixels)
    assert image.dtype == pixels.dtype
    assert image.flags.c_contiguous
    assert source.size_bytes() == pixels.nbytes
    assert source.produce(1) is None


@pytest.mark.parametrize("skip_corrupt", [False, True])
def test_no_image_counts_as_corrupt_without_pillow(tmp_path, monkeypatch, skip_corrupt):
    Image.fromarray(GREY).save(tmp_path / "a.png")
    source = ImageFolderSource(str(tmp_path), skip_corrupt=skip_corrupt)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(OperatorError, match=r"^images need pillow, which is not installed here: pip install pillow$"):
        source.produce(0)
    assert source.skipped == []


def test_a_big_endian_16_bit_tiff_is_read_exactly(tmp_path):
    Image.fromarray(DEEP.astype(">u2")).save(tmp_path / "a.tif")
    image = ImageFolderSource(str(tmp_path)).produce(0)
    assert image.dtype == np.uint16
    np.testing.assert_array_equal(image, DEEP)


def test_a_jpeg_is_decoded_close_to_the_original(tmp_path):
    smooth = np.linspace(0, 255, 64 * 48).reshape(48, 64).astype(np.uint8)
    Image.fromarray(smooth).save(tmp_path / "a.jpg", quality=95)
    Image.fromarray(np.stack([smooth] * 3, axis=2)).save(tmp_path / "b.JPEG", quality=95)
    source = ImageFolderSource(str(tmp_path))
    assert np.abs(source.produce(0).astype(int) - smooth).max() < 12
    assert source.produce(1).shape == (48, 64, 3)
    assert source.size_bytes() == smooth.size * 2


def test_alpha_is_dropped_and_palettes_and_two_levels_become_plain_pixels(tmp_path):
    opaque = np.dstack([COLOUR, np.full((6, 10), 128, np.uint8)])
    Image.fromarray(opaque).save(tmp_path / "1.png")
    Image.fromarray(COLOUR).quantize(64).save(tmp_path / "2.png")
    Image.fromarray(GREY > 30).save(tmp_path / "3.png")
    Image.fromarray(np.dstack([GREY, GREY])).save(tmp_path / "4.png")
    alpha, palette, bilevel, grey_alpha = map(ImageFolderSource(str(tmp_path)).produce, range(4))
    np.testing.assert_array_equal(alpha, COLOUR)
    assert palette.shape == (6, 10, 3)
    np.testing.assert_array_equal(bilevel, np.where(GREY > 30, 255, 0))
    assert bilevel.dtype == np.uint8
    np.testing.assert_array_equal(grey_alpha, GREY)


def test_order_is_natural_and_other_files_are_left_out(tmp_path):
    for position, name in enumerate(["b1.png", "img2.png", "img10.png", "Img11.png", "img10b.png"]):
        Image.fromarray(np.full((1, 1), position, np.uint8)).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / "folder.png").mkdir()
    source = ImageFolderSource(str(tmp_path))
    assert [path.name for path in source.files] == [
        "b1.png",
        "img2.png",
        "img10.png",
        "img10b.png",
        "Img11.png",
    ]
    assert source.length == 5
    assert source.produce(3)[0, 0] == 4


@pytest.fixture
def damaged(tmp_path):
    """Write six files, of which 1, 3 and 5 are damaged in different ways."""
    for number in (0, 1, 2, 4):
        noise = np.random.default_rng(number).integers(0, 255, (40, 50), dtype=np.uint8)
        noise[0, 0] = number
        Image.fromarray(noise).save(tmp_path / f"{number}.png")
    whole = (tmp_path / "1.png").read_bytes()
    (tmp_path / "1.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "3.jpg").write_bytes(b"")
    (tmp_path / "5.tif").write_bytes(b"II*\x00" + b"\xff" * 40)
    return tmp_path


def test_a_corrupt_file_is_named_with_the_option_that_skips_corrupt_files(damaged):
    source = ImageFolderSource(str(damaged))
    for index, name in [(1, "1.png"), (3, "3.jpg"), (5, "5.tif")]:
        with pytest.raises(OperatorError, match="is corrupt") as caught:
            source.produce(index)
        text = str(caught.value)
        assert name in text
        assert "--skip-corrupt" in text
        assert "\n" not in text
    assert source.produce(2)[0, 0] == 2


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 1, 3), (3, 2, 1, 0)])
def test_corrupt_files_are_skipped_on_request(damaged, caplog, order):
    source = ImageFolderSource(str(damaged), skip_corrupt=True)
    assert source.length is None
    got = {index: source.produce(index) for index in order}
    assert [got[index][0, 0] for index in (0, 1, 2)] == [0, 2, 4]
    assert got[3] is None
    assert [path.name for path in source.skipped] == ["1.png", "3.jpg", "5.tif"]
    assert len(caplog.records) == 3
    assert source.size_bytes() == 2000  # the truncated file's header is intact


def test_a_folder_of_only_corrupt_files_is_an_error(tmp_path):
    (tmp_path / "a.png").write_bytes(b"not an image")
    source = ImageFolderSource(str(tmp_path), skip_corrupt=True)
    with pytest.raises(OperatorError, match="all 1 images are corrupt"):
        source.produce(0)
    assert source.size_bytes() == 0.0


def test_a_missing_folder_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(OperatorError, match=r"nowhere: No such file or directory; name a folder"):
        ImageFolderSource(str(tmp_path / "nowhere"))
    with pytest.raises(OperatorError, match="holds no image"):
        ImageFolderSource(str(tmp_path))


def test_a_decompression_bomb_is_neither_decoded_nor_skipped(tmp_path, monkeypatch):
    Image.fromarray(GREY).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    for skip in (False, True):
        source = ImageFolderSource(str(tmp_path), skip_corrupt=skip)
        with pytest.raises(OperatorError, match=r"a\.png has more than 40 pixels"):
            source.produce(0)


def test_a_picture_over_the_limit_of_the_host_is_refused_by_the_header_alone(tmp_path):
    Image.fromarray(GREY).save(tmp_path / "a.png")
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:45])  # the header, and no pixel
    code = Code("image_folder", {"folder": str(tmp_path), "skip_corrupt": True})
    source = load_code(code, Allowed(max_picture_bytes=GREY.size - 1))
    with pytest.raises(OperatorError, match=f"over max_picture_bytes={GREY.size - 1}; cut it"):
        source.produce(0)


def test_only_folders_that_the_host_allows_are_read(tmp_path):
    allowed, private = tmp_path / "given", tmp_path / "kept"
    for folder in (allowed, private):
        folder.mkdir()
        Image.fromarray(GREY).save(folder / "a.png")
    (allowed / "way").symlink_to(private)

    def load(folder: str) -> ImageFolderSource:
        roots = check_roots([allowed])
        return load_code(Code("image_folder", {"folder": folder}), Allowed(data_roots=roots))

    assert load(f"{allowed}").length == load(f"{private}/../given/").length == 1
    for folder in (
        private,
        allowed / "../kept",
        allowed / "way",
        f"{allowed}x",
        "/etc",
        "~",
        ".",
        "",
        tmp_path / "none",
    ):
        with pytest.raises(OperatorError, match=re.escape(f"this host gives only files in {allowed} to read")):
            load(str(folder))
    (allowed / "b.png").symlink_to(private / "a.png")
    with pytest.raises(OperatorError, match=r"b\.png': this host gives only"):
        load(f"{allowed}")
    with pytest.raises(OperatorError, match="gives no folder to read; start it with --data-root FOLDER"):
        load_code(Code("image_folder", {"folder": f"{allowed}"}), Allowed(data_roots=()))
    with pytest.raises(UsageError, match=r"none' is not a folder"):
        check_roots([tmp_path / "none"])


def test_pixels_that_do_not_fit_are_refused_not_cut(tmp_path):
    Image.fromarray(GREY.astype(np.float32)).save(tmp_path / "1.tif")
    Image.fromarray(GREY.astype(np.int32) + 70_000).save(tmp_path / "2.tif")
    (tmp_path / "3.png").write_bytes(rgb16_png())
    source = ImageFolderSource(str(tmp_path))
    for index, text in enumerate(["floating-point", "beyond 16 bits", "several bands of 16 bits"]):
        with pytest.raises(OperatorError, match=text):
            source.produce(index)


def rgb16_png() -> bytes:
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 2, 1, 16, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(13))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("suffix", "orientation"),
    [
        *itertools.product(["png", "jpg", "tif"], [None, 0, *range(1, 10)]),
        ("png", "damaged"),
        ("jpg", "damaged"),
    ],
)
def test_images_are_rotated_by_their_orientation_tags(tmp_path, suffix, orientation):
    """Compare with Pillow, which rotates a whole image at once. A value that is no orientation rotates nothing."""
    tags = Image.Exif()
    if orientation == "damaged":
        exif = b"Exif\0\0nonsense"
    else:
        if orientation is not None:
            tags[274] = orientation
        exif = tags.tobytes()
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(COLOUR).save(path, exif=exif)
    with Image.open(path) as stored:
        expected = np.asarray(ImageOps.exif_transpose(stored) if orientation != "damaged" else stored)
    image = ImageFolderSource(str(tmp_path)).produce(0)
    np.testing.assert_array_equal(image, expected)
    assert image.flags.c_contiguous
    if orientation in range(5, 9):
        assert image.shape == (10, 6, 3)


def test_the_error_for_a_file_that_is_no_image_names_the_path(tmp_path):
    (tmp_path / "notes.png").write_text("this is text")
    with pytest.raises(OperatorError) as caught:
        ImageFolderSource(str(tmp_path)).produce(0)
    assert str(caught.value) == (
        f"image {tmp_path / 'notes.png'} is corrupt (it is no image of a known format, or is cut short); repair or"
        " remove it, or skip such files with skip_corrupt=true (--skip-corrupt)"
    )
