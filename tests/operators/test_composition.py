"""Composition compared with a loop over pixels, and the algebra that the documentation promises."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import OperatorError
from thalweg.middleware.loading import load_code
from thalweg.operators import Composite
from thalweg.operators.composition import PAPER_SECONDS_PER_PIXEL, brightest, expand, nested
from thalweg.operators.noise import nearest

DTYPES = st.sampled_from([np.uint8, np.uint16])
BANDS = st.sampled_from([(), (1,), (2,), (3,)])
SIDES = st.integers(1, 9)


@st.composite
def images(draw, count=2, equal=False):
    """Draw ``count`` read-only images of the same dtype and bands, with few distinct values so that ties happen."""
    dtype, bands = draw(DTYPES), draw(BANDS)
    top = draw(st.sampled_from([2, np.iinfo(dtype).max]))
    size = draw(st.tuples(SIDES, SIDES))
    out = []
    for _ in range(count):
        shape = (*(size if equal else draw(st.tuples(SIDES, SIDES))), *bands)
        image = draw(arrays(dtype, shape, elements=st.integers(0, top)))
        image.flags.writeable = False
        out.append(image)
    return out


def naive(a, b, rule, key_band=None):
    """Return the composite of two images, computed pixel by pixel in Python integers."""
    height, width = (a if a.shape[0] * a.shape[1] >= b.shape[0] * b.shape[1] else b).shape[:2]
    out = np.zeros((height, width, *a.shape[2:]), a.dtype)
    for y in range(height):
        for x in range(width):
            p, q = (
                np.atleast_1d(
                    image[
                        int((y + 0.5) * image.shape[0] / height + 1e-9),
                        int((x + 0.5) * image.shape[1] / width + 1e-9),
                    ]
                )
                for image in (a, b)
            )
            if rule == "latest":
                pixel = q if any(int(v) for v in q) else p
            elif key_band is not None:
                better = q[key_band] > p[key_band] if rule == "max" else q[key_band] < p[key_band]
                pixel = q if better else p
            else:
                pixel = [{"max": max, "min": min}[rule](int(v), int(w)) for v, w in zip(p, q, strict=True)]
            out[y, x] = pixel if a.ndim == 3 else pixel[0]
    return out


@given(images(), st.sampled_from(["max", "min", "latest"]), st.booleans())
def test_a_composite_equals_a_loop_over_pixels_and_leaves_the_inputs_unchanged(pair, rule, by_key):
    key = pair[0].shape[2] - 1 if by_key and rule != "latest" and pair[0].ndim == 3 else None
    before = [image.copy() for image in pair]
    result = Composite(rule, key_band=key).combine(pair, 0)
    np.testing.assert_array_equal(result, naive(*pair, rule, key))
    assert result.dtype == pair[0].dtype
    assert result.flags.c_contiguous
    assert result.flags.writeable
    for image, copy in zip(pair, before, strict=True):
        np.testing.assert_array_equal(image, copy)
        assert not np.may_share_memory(result, image)


@given(images(count=4, equal=True), st.sampled_from(["max", "min", "latest"]), st.booleans())
def test_composites_of_equal_sizes_do_not_depend_on_the_tree(four, rule, by_key):
    key = 0 if by_key and rule != "latest" else None
    composite = Composite(rule, key_band=key)

    def pair(a, b):
        return composite.combine([a, b], 0)

    star = composite.combine(four, 0)
    np.testing.assert_array_equal(star, reduce(pair, four))
    np.testing.assert_array_equal(star, pair(pair(four[0], four[1]), pair(four[2], four[3])))
    np.testing.assert_array_equal(pair(four[0], four[0]), four[0])
    if rule != "latest" and key is None:
        np.testing.assert_array_equal(star, composite.combine(four[::-1], 0))


@given(images(count=3), st.sampled_from(["max", "min", "latest"]))
def test_a_star_equals_the_left_deep_tree_and_all_trees_give_the_same_size(three, rule):
    composite = Composite(rule)
    left = composite.combine([composite.combine(three[:2], 0), three[2]], 0)
    right = composite.combine([three[0], composite.combine(three[1:], 0)], 0)
    np.testing.assert_array_equal(composite.combine(three, 0), left)
    assert left.shape == right.shape == max(three, key=lambda image: image.shape[0] * image.shape[1]).shape


@given(images(count=1), st.tuples(SIDES, SIDES, SIDES, SIDES), st.integers(0, 2), st.data())
def test_composites_of_sizes_with_whole_ratios_do_not_depend_on_the_tree(one, factors, where, data):
    small = one[0]
    height, width = small.shape[0] * factors[0], small.shape[1] * factors[1]
    shapes = [(height, width), (height * factors[2], width * factors[3])]
    inputs = [data.draw(arrays(small.dtype, (*shape, *small.shape[2:]))) for shape in shapes]
    inputs.insert(where, small)
    composite = Composite()
    left = composite.combine([composite.combine(inputs[:2], 0), inputs[2]], 0)
    right = composite.combine([inputs[0], composite.combine(inputs[1:], 0)], 0)
    np.testing.assert_array_equal(left, right)


@st.composite
def groupings(draw, count):
    """Draw an order of ``count`` inputs and a tree over the inputs, as nested lists of indices."""
    parts: list = list(draw(st.permutations(range(count))))
    while len(parts) > 1:
        width = draw(st.integers(2, len(parts)))
        start = draw(st.integers(0, len(parts) - width))
        parts[start : start + width] = [parts[start : start + width]]
    return parts[0]


@given(st.data(), st.integers(2, 6), st.sampled_from(["max", "min"]))
def test_a_reorderable_composite_gives_the_same_bytes_in_every_order_and_grouping(data, count, rule):
    inputs = data.draw(images(count=count))
    composite = Composite(rule, fit="nested")
    assert composite.reorderable

    def value(tree):
        return inputs[tree] if isinstance(tree, int) else composite.combine([value(part) for part in tree], 0)

    star = composite.combine(inputs, 0)
    assert star.shape[:2] == (max(i.shape[0] for i in inputs), max(i.shape[1] for i in inputs))
    np.testing.assert_array_equal(value(data.draw(groupings(count))), star)
    assert value(data.draw(groupings(count))).dtype == star.dtype


def test_only_nested_minimum_and_maximum_are_reorderable_and_an_unknown_fit_is_refused():
    class Mine(Composite):
        def combine(self, inputs, index):
            return super().combine(inputs[:2], index)

    assert Composite(fit="nested").reorderable and Composite("min", fit="nested").reorderable
    for other in (
        Composite(),
        Composite("latest", fit="nested"),
        Composite("max", key_band=0, fit="nested"),
        Composite(lambda a, b: b > a, fit="nested"),
        Mine(fit="nested"),
        load_code(Code("running", {})),
        load_code(Code("thalweg.operators.array_join:ArrayJoin", {})),
    ):
        assert not other.reorderable
    small, middle, large = (np.arange(n, dtype=np.uint8).reshape(1, n) for n in (2, 3, 4))
    usual = Composite()  # not reorderable: a middle size leads to other pixels
    assert not np.array_equal(
        usual.combine([usual.combine([small, middle * 0], 0), large * 0], 0),
        usual.combine([small, usual.combine([middle * 0, large * 0], 0)], 0),
    )
    with pytest.raises(OperatorError, match="unknown fit 'best'; use nearest or nested"):
        Composite(fit="best")


@pytest.mark.parametrize("length", [1, 7, 300, 418])
def test_nested_pixels_split_in_order_and_lie_near_their_nearest_neighbours(length):
    for target in (length, length + 1, length * 4 // 3, 2 * length, 700):
        index = nested(length, target)
        assert index[0] == 0 and index[-1] == length - 1
        assert set(np.diff(index).tolist()) <= {0, 1}
        off = np.abs(index - nearest(length, target))
        assert off.max(initial=0) <= 3 and off.mean() < 1


def test_an_expansion_takes_the_pixel_under_the_centre_of_every_new_pixel():
    small = np.array([[1, 2], [3, 4]], np.uint8)
    expected = [[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4, 4]]
    np.testing.assert_array_equal(expand(small, (4, 4)), expected)
    assert expand(small, (2, 2)) is small
    coloured = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    np.testing.assert_array_equal(expand(coloured, (2, 3)), coloured[:, [0, 1, 1]])


def test_strided_and_read_only_inputs_are_composed_into_new_memory():
    wide = np.arange(64, dtype=np.uint8).reshape(8, 8)
    buffer = np.frombuffer(bytes(16), np.uint8).reshape(4, 4)
    np.testing.assert_array_equal(Composite().combine([wide[::2, ::2], buffer], 0), wide[::2, ::2])
    copied = Composite().combine([buffer], 0)
    assert not np.may_share_memory(copied, buffer)


def test_a_function_may_be_the_rule_but_may_not_change_images_or_their_shape():
    a = np.array([[[9, 0], [1, 1]]], np.uint8)
    b = np.array([[[1, 9], [0, 1]]], np.uint8)
    by_path = load_code(Code("composite", {"rule": "thalweg.operators.composition:brightest"}))
    np.testing.assert_array_equal(by_path.combine([a, b], 0), [[[1, 9], [1, 1]]])
    per_value = Composite(lambda a, b: b > a)
    np.testing.assert_array_equal(per_value.combine([a, b], 0), np.maximum(a, b))
    mean = Composite(lambda a, b: a // 2 + b // 2)
    np.testing.assert_array_equal(mean.combine([a, b], 0), [[[4, 4], [0, 0]]])
    second = Composite(lambda a, b: b).combine([a, b], 0)
    second += 1
    np.testing.assert_array_equal(b, [[[1, 9], [0, 1]]])
    assert brightest(a[..., 0], b[..., 0]).dtype == np.bool_

    def spoil(a, b):
        a[:] = 0
        return a

    with pytest.raises(ValueError, match="read-only"):
        Composite(spoil).combine([a.copy(), b.copy()], 0)
    with pytest.raises(OperatorError, match=r"rule wrong returned float64 2 for images uint8 1x2x2"):
        Composite(wrong).combine([a, b], 0)


def wrong(a, b):
    return np.zeros(2)


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([np.zeros((2, 3), np.uint8), np.zeros((4, 5), np.uint16)], "uint8 2x3 and uint16 4x5"),
        ([np.zeros((2, 3, 3), np.uint8), np.zeros((4, 5, 4), np.uint8)], "uint8 2x3x3 and uint8 4x5x4"),
        ([np.zeros((2, 3), np.uint8), np.zeros((2, 3, 1), np.uint8)], "uint8 2x3 and uint8 2x3x1"),
        ([np.zeros((2, 3), np.uint8), b"abc"], "input 1 of partition 7 is bytes"),
        ([np.zeros((2, 3)), np.zeros((2, 3))], "float64 2x3"),
        ([np.zeros((0, 3), np.uint8)], "uint8 0x3"),
        ([np.zeros(3, np.uint8)], "uint8 3;"),
        ([], "no input"),
    ],
)
def test_inputs_that_cannot_be_composed_are_refused_in_one_line(inputs, text):
    with pytest.raises(OperatorError, match="composite") as caught:
        Composite().combine(inputs, 7)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"rule": "mx"}, "unknown rule 'mx'"),
        ({"rule": "os:system"}, "does not allow code from 'os'"),
        ({"rule": "thalweg.operatorsx:f"}, "does not allow code from"),
        ({"rule": "thalweg.operators.composition:find_code"}, "comes from 'thalweg.middleware.loading'"),
        ({"rule": "thalweg.operators.composition:nothing"}, "cannot be imported"),
        ({"rule": "thalweg.operators.composition:Composite"}, "is no rule; define a function of two images"),
        ({"rule": "thalweg.operators.reference:digest"}, "is no rule"),
        ({"rule": "thalweg.operators.composition:_latest"}, "is private"),
        ({"rule": "latest", "key_band": 0}, "key_band goes with"),
        ({"seconds_per_pixel": -1.0}, "must be at least"),
        ({"seconds_per_pixel": float("nan")}, "must be at least"),
    ],
)
def test_parameters_that_cannot_be_used_are_refused(params, text):
    with pytest.raises(OperatorError, match=text):
        load_code(Code("composite", params))


def test_a_key_band_that_the_images_lack_is_refused():
    with pytest.raises(OperatorError, match="key_band=3"):
        Composite(key_band=3).combine([np.zeros((2, 2, 3), np.uint8)] * 2, 0)


def test_a_composite_gives_hints_of_size_and_time_and_refuses_a_state():
    composite = Composite(seconds_per_pixel=PAPER_SECONDS_PER_PIXEL, bytes_per_pixel=2)
    assert composite.output_size_bytes([100.0, 300.0, 200.0]) == 300.0
    assert composite.compute_s([100.0, 300.0, 200.0]) == pytest.approx(300 * 7e-6)
    assert composite.compute_s([100.0]) == 0.0
    composite.restore(composite.snapshot())
    with pytest.raises(OperatorError, match="stateless"):
        composite.restore(b"x")
