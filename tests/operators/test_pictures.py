"""PNG files and contact sheets hold the pictures they were given."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from thalweg.middleware.errors import OperatorError
from thalweg.operators import contact_sheet, write_image
from thalweg.operators.pictures import colour


def test_images_are_written_pixel_for_pixel(tmp_path):
    deep = (np.arange(12, dtype=np.uint16) * 5000).reshape(3, 4)
    rgb = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    for name, pixels in [("grey", (deep >> 8).astype(np.uint8)), ("deep", deep), ("rgb", rgb)]:
        path = tmp_path / "made" / f"{name}.png"
        write_image(pixels, path)
        with Image.open(path) as image:
            np.testing.assert_array_equal(np.asarray(image), pixels)
    with pytest.raises(OperatorError, match="no PNG of float64 2x2"):
        write_image(np.zeros((2, 2)), tmp_path / "x.png")
    (tmp_path / "file").write_text("")
    with pytest.raises(OperatorError, match=r"the picture .* cannot be written: "):
        write_image(rgb, tmp_path / "file" / "x.png")


def test_a_contact_sheet_shows_every_picture(tmp_path):
    solid = [np.full((30, 40, 3), shade, np.uint8) for shade in (10, 90, 170)]
    contact_sheet([solid, solid[::-1]], ["a", "b", "all"], tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as image:
        pixels = np.asarray(image)
    for shade in (10, 90, 170):
        shown = (pixels == shade).all(axis=2).sum()
        assert shown > 2 * 0.95 * 200 * 150
    mixed = [np.zeros((5, 9), np.uint8), np.full((50, 20, 2), 4000, np.uint16)]
    contact_sheet([mixed, mixed[:1]], ["a", "b"], tmp_path / "mixed.png")
    with Image.open(tmp_path / "mixed.png") as image:
        assert image.width > 400
    with pytest.raises(OperatorError, match="needs a label"):
        contact_sheet([solid], ["a"], tmp_path / "x.png")
    with pytest.raises(OperatorError, match="contact sheet of 0 rows"):
        contact_sheet([], [], tmp_path / "x.png")


def test_colours_tell_cloud_water_and_vegetation_apart():
    cloud, water, forest = colour(np.array([[0, 30, 240]], np.uint8))[0].astype(int)
    assert cloud.min() > 240
    assert water.argmax() == 2
    assert forest.argmax() == 1
    deep = colour(np.array([[0, 65535]], np.uint16))
    np.testing.assert_array_equal(deep, colour(np.array([[0, 255]], np.uint8)))
