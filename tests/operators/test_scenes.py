"""Synthetic scenes: reproducible anywhere, sized as in the paper, and cleared by composition."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import OperatorError
from thalweg.middleware.loading import load_code
from thalweg.operators import Composite, SceneSource, digest, ground_truth, scenes
from thalweg.operators.scenes import CLEAR_MIN

SITES = 8


def test_scenes_are_the_same_in_a_different_order_and_in_a_second_process():
    wanted = [(2, 5, "uint8", 1), (0, 0, "uint16", 1), (2, 4, "uint8", 3)]
    script = (
        "import sys\nfrom thalweg.operators import SceneSource, digest\n"
        f"for site, index, dtype, bands in {wanted}:\n"
        "    print(digest(SceneSource(site, 3, 11, dtype=dtype, bands=bands).produce(index)))\n"
        "assert 'numpy.random' not in sys.modules and 'PIL' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    here = [
        digest(SceneSource(site, 3, 11, dtype=dtype, bands=bands).produce(index))
        for site, index, dtype, bands in reversed(wanted)
    ]
    assert done.stdout.split() == here[::-1]


def test_a_scene_has_the_pinned_digest():
    """The digest pins the pixels: every processor and every version of numpy draws the same scene."""
    assert digest(SceneSource(1, 2, 42, mean_bytes=4096).produce(3)) == PINNED


PINNED = "sha256:55e1297e7af4281b38bb3196f9c6491d96ce25dab8aa9c7f85322bde04144e4f"


def test_scenes_differ_by_seed_site_and_index():
    kinds = [(1, 0, 0), (1, 1, 0), (1, 0, 1), (2, 0, 0)]
    digests = {digest(SceneSource(site, 2, seed, relative_deviation=0.0).produce(index)) for seed, site, index in kinds}
    assert len(digests) == len(kinds)


def test_sizes_are_normal_with_the_papers_mean_and_deviation():
    source = SceneSource(0, 1, 3, length=1000)
    shapes = [source.shape(index) for index in range(1000)]
    sizes = np.array([height * width for height, width in shapes], float)
    assert sizes.mean() == pytest.approx(131_072, rel=0.02)
    assert sizes.std() / sizes.mean() == pytest.approx(0.25, abs=0.02)
    inside = np.abs(sizes - sizes.mean()) < sizes.std()
    assert inside.mean() == pytest.approx(0.683, abs=0.04)
    assert all(width / height == pytest.approx(4 / 3, rel=0.02) for height, width in shapes)
    assert source.size_bytes() == 131_072


@pytest.mark.parametrize(("dtype", "bands"), [("uint8", 1), ("uint16", 1), ("uint8", 3), ("uint16", 2)])
def test_a_scene_has_the_requested_shape_and_type_and_the_stream_ends(dtype, bands):
    source = SceneSource(0, 2, 5, length=2, mean_bytes=60_000, dtype=dtype, bands=bands)
    image = source.produce(1)
    assert image.shape == source.shape(1)
    assert image.dtype == dtype
    assert image.ndim == (2 if bands == 1 else 3)
    assert image.flags.c_contiguous
    assert 20_000 < image.nbytes < 120_000
    assert source.produce(2) is None
    image[:] = 0  # a new array: the source's own is not touched
    assert source.produce(1).any()


@pytest.mark.parametrize(("dtype", "bands"), [("uint8", 1), ("uint16", 3)])
def test_a_site_sees_half_of_the_ground_and_all_sites_see_nearly_everything(dtype, bands):
    sources = [
        SceneSource(k, SITES, 7, mean_bytes=40_000, relative_deviation=0.0, dtype=dtype, bands=bands)
        for k in range(SITES)
    ]
    covered = []
    for index in range(0, 180, 20):
        images = [source.produce(index) for source in sources]
        truth = ground_truth(7, images[0].shape, index, dtype)
        for image in images:
            assert (image <= truth).all()
            assert (image < truth).mean() == pytest.approx(0.5, abs=0.03)
        by_max = Composite("max").combine(images, index)
        covered.append((by_max < truth).mean())
        error = np.abs(by_max.astype(float) - truth).mean() / truth.mean()
        assert error < 0.03
    assert np.mean(covered) < 0.01
    assert truth.min() >= CLEAR_MIN * (257 if dtype == "uint16" else 1)


def test_the_composite_of_scenes_of_different_sizes_shows_the_ground():
    sources = [SceneSource(k, SITES, 7) for k in range(SITES)]
    images = [source.produce(30) for source in sources]
    assert len({image.shape for image in images}) == SITES
    composite = Composite().combine(images, 30)
    truth = ground_truth(7, composite.shape, 30).astype(float)
    assert np.abs(composite - truth).mean() / truth.mean() < 0.06
    single = images[0].astype(float)
    assert np.abs(single - ground_truth(7, single.shape, 30)).mean() / truth.mean() > 0.3


def test_the_ground_changes_slowly_and_has_structure():
    first, next_one, winter = (ground_truth(9, (120, 160), index).astype(int) for index in (0, 1, 180))
    assert np.abs(first - next_one).max() <= 3
    assert (first - winter).mean() > 10
    assert first.std() > 30
    assert np.abs(np.diff(first, axis=1)).mean() < first.std() / 4  # neighbours resemble each other
    np.testing.assert_array_equal(ground_truth(9, (120, 160), 360), first)


def test_an_image_made_in_several_strips_has_the_pinned_digest_and_equals_the_image_made_at_once(
    monkeypatch: pytest.MonkeyPatch,
):
    source = SceneSource(1, 2, 42, mean_bytes=4e6, bands=3, relative_deviation=0)
    image = source.produce(90)
    assert len([*scenes._strips(*image.shape[:2])]) == 2
    assert digest(image) == "sha256:6cc210f759575b8fb94166a60936c166989d5fd3b58e04d94a597d6ad9a23ed5"
    monkeypatch.setattr(scenes, "_strips", lambda rows, columns, pixels=0: [slice(0, rows)])
    scenes._truth.cache_clear()
    np.testing.assert_array_equal(source.produce(90), image)


def test_an_image_over_the_limit_of_the_host_is_refused():
    code = Code("scenes", {"site": 0, "sites": 1, "seed": 1, "mean_bytes": float(1 << 30)})
    with pytest.raises(OperatorError, match="over max_picture_bytes=268435456; ask for a smaller mean"):
        load_code(code).produce(0)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"site": 2, "sites": 2}, "site 2 of 2"),
        ({"dtype": "float32"}, "use uint8 or uint16"),
        ({"bands": 0}, "0 bands"),
        ({"length": -1}, "length -1"),
        ({"relative_deviation": 1.5}, "relative_deviation 1.5"),
        ({"mean_bytes": 10}, "mean_bytes 10"),
    ],
)
def test_parameters_out_of_range_are_refused(params, text):
    with pytest.raises(OperatorError, match=text):
        SceneSource(**{"site": 0, "sites": 1, "seed": 1, **params})
    with pytest.raises(OperatorError, match="start at 0"):
        SceneSource(0, 1, 1).produce(-1)
