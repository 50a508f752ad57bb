"""Operators with state, compared with plain loops and moved at every position of a sequence."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from thalweg.middleware.dataflow import Code, complete_binary_tree, left_deep_tree
from thalweg.middleware.errors import OperatorError
from thalweg.middleware.loading import load_code
from thalweg.operators import ArrayJoin, BestOfLast, Composite, Operator, Running, SceneSource, digest, reference_run
from thalweg.operators.array_join import SAMPLES
from thalweg.operators.composition import expand
from thalweg.operators.states import pack

SIDES = st.integers(1, 9)
ARRAY_JOIN = "thalweg.operators.array_join:ArrayJoin"
STATEFUL = ("running", ARRAY_JOIN, "best-of-last")

RULES = st.sampled_from([{"rule": "max"}, {"rule": "min"}, {"rule": "latest"}, {"rule": "max", "key_band": 0}])
WINDOWS = st.integers(1, 4)
MAKERS = st.one_of(
    st.builds(
        lambda aggregate, rule: Code("running", {"aggregate": aggregate, **rule}),
        st.sampled_from(["max", "min", "mean", "count"]),
        RULES,
    ),
    st.builds(lambda window, rule: Code("best-of-last", {"window": window, **rule}), WINDOWS, RULES),
    st.builds(
        lambda window, how, tiles, levels, rule: Code(
            ARRAY_JOIN, {"window": window, "how": how, "tiles": tiles, "levels": levels, **rule}
        ),
        WINDOWS,
        st.sampled_from(["left", "inner"]),
        st.sampled_from([1, 2, 3]),
        st.sampled_from([1, 2, 256]),
        RULES,
    ),
)


@st.composite
def sequences(draw, inputs=None, bands=None):
    """Draw partitions of several inputs: read-only images of different sizes, with the same dtype and bands."""
    dtype = draw(st.sampled_from([np.uint8, np.uint16]))
    bands = draw(st.sampled_from([(), (1,), (3,)])) if bands is None else bands
    top = draw(st.sampled_from([2, np.iinfo(dtype).max]))
    inputs = draw(st.integers(1, 3)) if inputs is None else inputs
    out = []
    for _ in range(draw(st.integers(1, 6))):
        partition = []
        for _ in range(inputs):
            shape = (*draw(st.tuples(SIDES, SIDES)), *bands)
            image = draw(arrays(dtype, shape, elements=st.integers(0, top)))
            image.flags.writeable = False
            partition.append(image)
        out.append(partition)
    return out


KEYS = st.sampled_from([0.0, -0.0, 1.0, 2.5, -7.0, float("nan"), float("inf")])
TABLE_CODES = st.builds(
    lambda window, how: Code(ARRAY_JOIN, {"on": "rows", "window": window, "how": how}),
    WINDOWS,
    st.sampled_from(["left", "inner"]),
)


@st.composite
def table_sequences(draw):
    columns = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    return [
        [draw(arrays(np.float64, (draw(st.integers(0, 4)), width), elements=KEYS)) for width in columns]
        for _ in range(draw(st.integers(1, 5)))
    ]


def outputs(operator, sequence, first=0):
    return [digest(operator.combine(inputs, first + at)) for at, inputs in enumerate(sequence)]


def moved(code, operator):
    """Return the operator as a move to a different host restores it."""
    state = operator.snapshot()
    assert operator.snapshot() == state
    arrived = load_code(code)
    arrived.restore(state)
    assert arrived.snapshot() == state
    return arrived


def check_moves(code, sequence):
    """Check that a move at one position, a snapshot without a move, and moves at all indices give the same outputs."""
    undisturbed = outputs(load_code(code), sequence)
    for place in range(len(sequence) + 1):
        operator = load_code(code)
        before = outputs(operator, sequence[:place])
        arrived = moved(code, operator)
        assert before + outputs(arrived, sequence[place:], place) == undisturbed
        assert before + outputs(operator, sequence[place:], place) == undisturbed  # it stayed
        assert arrived.snapshot() == operator.snapshot()
    nomad = load_code(code)
    for index, inputs in enumerate(sequence):
        nomad = moved(code, nomad)
        assert digest(nomad.combine(inputs, index)) == undisturbed[index]


@given(MAKERS, sequences())
def test_outputs_stay_identical_if_the_operator_moves_at_every_position(code, sequence):
    check_moves(code, sequence)


@given(TABLE_CODES, table_sequences())
def test_outputs_of_a_join_of_tables_stay_identical_if_the_operator_moves(code, sequence):
    check_moves(code, sequence)


@given(
    st.one_of(
        st.sampled_from([Code("running", {"aggregate": a}) for a in ("max", "min", "mean", "count")]),
        st.just(Code("best-of-last", {"window": 3, "rule": "min"})),
    ),
    st.sampled_from([np.int8, np.int32, np.uint32, np.float32, np.float64]),
    st.data(),
)
def test_outputs_of_plain_arrays_stay_identical_if_the_operator_moves(code, dtype, data):
    shape = data.draw(st.sampled_from([(1,), (5,), (2, 3), (2, 1, 2, 2)]))
    elements = st.integers(-9, 9) if np.dtype(dtype).kind != "u" else st.integers(0, 9)
    array = arrays(dtype, shape, elements=elements)
    check_moves(code, data.draw(st.lists(st.lists(array, min_size=2, max_size=2), min_size=1, max_size=5)))


@given(MAKERS, sequences())
def test_operators_leave_inputs_unchanged_and_share_no_memory_with_inputs_or_outputs(code, sequence):
    """Overwrite inputs and outputs after each call. Later outputs stay the same."""
    undisturbed = outputs(load_code(code), sequence)
    operator = load_code(code)
    for index, inputs in enumerate(sequence):
        lent = [image.copy() for image in inputs]
        result = operator.combine(lent, index)
        assert digest(result) == undisturbed[index]
        assert result.flags.writeable
        assert result.flags.c_contiguous
        for image, original in zip(lent, inputs, strict=True):
            np.testing.assert_array_equal(image, original)
            assert not np.may_share_memory(result, image)
            image[:] = ~image
        result[:] = ~result


@given(MAKERS, sequences())
def test_the_output_is_as_large_as_the_composite(code, sequence):
    operator = load_code(code)
    for index, inputs in enumerate(sequence):
        result, plain = operator.combine(inputs, index), Composite().combine(inputs, index)
        assert (result.dtype, result.shape) == (plain.dtype, plain.shape)


@given(sequences(), RULES, st.sampled_from(["max", "min", "mean", "count"]))
def test_running_is_the_aggregate_of_all_composites(sequence, rule, aggregate):
    operator, composite = Running(aggregate, **rule), Composite(**rule)
    total = None
    for index, inputs in enumerate(sequence):
        image = composite.combine(inputs, index)
        new = (image != 0).astype(object) if aggregate == "count" else image.astype(object)
        if total is None:
            total = new
        else:
            size = max(total.shape[:2], image.shape[:2], key=math.prod)
            total, new = expand(total, size), expand(new, size)
            total = (
                np.where((new > total) == (aggregate == "max"), new, total)
                if aggregate in ("max", "min")
                else (total + new)
            )
        expected = expand(total, image.shape[:2])
        if aggregate == "mean":
            expected = (2 * expected + index + 1) // (2 * (index + 1))  # half up
        np.testing.assert_array_equal(operator.combine(inputs, index), expected.astype(image.dtype))


@given(sequence=sequences(), rule=st.sampled_from(["max", "min"]), data=st.data())
def test_nested_running_gives_the_same_bytes_although_the_tree_changes(sequence, rule, data):
    """Feed an upper and two lower operators different inputs over time. After a change the upper has all states."""
    code = Code("running", {"aggregate": rule, "rule": rule, "fit": "nested"})
    single, last, states = load_code(code), None, []
    assert single.reorderable
    for index, partition in enumerate(sequence):
        if last is None or data.draw(st.booleans()):
            last, lower = load_code(code), [load_code(code), load_code(code)]
            if states:
                split = data.draw(st.integers(1, len(states)))
                merged = last.merge([last.merge(states[:split]), *states[split:]])
                last.restore(merged)
            groups = data.draw(st.lists(st.integers(0, 2), min_size=len(partition), max_size=len(partition)))
        inputs = [image for image, group in zip(partition, groups, strict=True) if group == 2]
        for number, operator in enumerate(lower):
            below = [image for image, group in zip(partition, groups, strict=True) if group == number]
            inputs += [operator.combine(below, index)] if below else []
        assert digest(last.combine(inputs, index)) == digest(single.combine(partition, index))
        states = data.draw(st.permutations([last.snapshot(), *(operator.snapshot() for operator in lower)]))


def test_nested_running_is_as_large_as_all_inputs_so_far_and_refuses_floats():
    operator = load_code(Code("running", {"fit": "nested"}))
    assert operator.merge([b"", b""]) == b""
    assert operator.combine([np.ones((2, 5), np.uint8)], 0).shape == (2, 5)
    assert operator.combine([np.ones((4, 3), np.uint8)], 1).shape == (4, 5)
    with pytest.raises(OperatorError, match="partition 2 is float64 3; fit='nested' is for integers"):
        operator.combine([np.ones(3)], 2)
    with pytest.raises(OperatorError, match="states merge with fit='nested' only"):
        load_code(Code("running")).merge([b""])
    bands, plain = load_code(Code("running", {"fit": "nested"})), load_code(Code("running", {"fit": "nested"}))
    bands.combine([np.ones((2, 2, 3), np.uint8)], 0)
    plain.combine([np.ones((2, 2), np.uint8)], 0)
    with pytest.raises(OperatorError, match="is uint8 2x2, and earlier partitions were uint8 2x2x3"):
        operator.merge([bands.snapshot(), plain.snapshot()])


def test_running_sums_and_counts_do_not_overflow():
    white, black = np.full((2, 3), 255, np.uint8), np.zeros((2, 3), np.uint8)
    mean, count = Running("mean"), Running("count")
    for index in range(300):
        mean = moved(Code("running", {"aggregate": "mean"}), mean)
        count = moved(Code("running", {"aggregate": "count"}), count)
        assert mean.combine([white, black], index).tolist() == [[255] * 3] * 2
        assert count.combine([white, black], index).tolist() == [[min(index + 1, 255)] * 3] * 2
    assert len(mean.snapshot()) < 1.2 * len(count.snapshot()) + 4 * white.size
    for index in range(300, 600):
        last = mean.combine([black], index)
    assert last.tolist() == [[128] * 3] * 2  # 127.5, half up


@given(sequences(), RULES, WINDOWS)
def test_best_of_last_is_the_composite_of_the_last_composites(sequence, rule, window):
    operator, composite = BestOfLast(window, **rule), Composite(**rule)
    last = deque(maxlen=window)
    for index, inputs in enumerate(sequence):
        last.append(composite.combine(inputs, index))
        expected = expand(composite.combine(list(last), index), last[-1].shape[:2])
        np.testing.assert_array_equal(operator.combine(inputs, index), expected)


def tile_key(image, row, column, tiles, levels):
    """Return the level of the mean of a tile's samples, computed in Python integers."""
    sample = expand(image, (tiles * SAMPLES, tiles * SAMPLES))
    values = sample[row * SAMPLES : (row + 1) * SAMPLES, column * SAMPLES : (column + 1) * SAMPLES].reshape(-1).tolist()
    return sum(values) * levels // (len(values) * (np.iinfo(image.dtype).max + 1))


@given(sequences(), WINDOWS, st.sampled_from(["left", "inner"]), st.sampled_from([1, 2, 3]), st.sampled_from([2, 256]))
def test_a_join_of_tiles_equals_a_join_pixel_by_pixel(sequence, window, how, tiles, levels):
    operator = ArrayJoin(how=how, window=window, tiles=tiles, levels=levels)
    for index, inputs in enumerate(sequence):
        result = operator.combine(inputs, index)
        past = [[sequence[index - lag][i] for lag in range(min(window, index + 1))] for i in range(len(inputs))]
        size = result.shape[:2]
        for y in range(size[0]):
            for x in range(size[1]):
                row, column = (int(np.floor((at + 0.5) * tiles / n + 1e-9)) for at, n in zip((y, x), size, strict=True))
                match = None
                for candidate in past[0]:
                    key = tile_key(candidate, row, column, tiles, levels)
                    matches = [
                        next((image for image in images if tile_key(image, row, column, tiles, levels) == key), None)
                        for images in past[1:]
                    ]
                    if all(image is not None for image in matches):
                        match = [candidate, *matches]
                        break
                chosen = match or ([inputs[0]] if how == "left" else [np.zeros_like(inputs[0])])
                pixels = [expand(image, size)[y, x] for image in chosen]
                np.testing.assert_array_equal(result[y, x], np.max(pixels, axis=0))


@given(table_sequences(), WINDOWS, st.sampled_from(["left", "inner"]))
def test_a_join_of_rows_equals_a_join_with_dictionaries(sequence, window, how):
    operator = ArrayJoin("rows", how, window)
    for index, inputs in enumerate(sequence):
        latest = []
        for position in range(len(inputs)):
            rows = {}
            for partition in sequence[max(0, index - window + 1) : index + 1]:
                for row in partition[position].tolist():
                    if not math.isnan(row[0]):
                        rows[row[0]] = row
            latest.append(rows)
        expected = []
        for key in sorted(latest[0]):
            if how == "inner" and any(key not in rows for rows in latest):
                continue
            columns = zip(latest[1:], (table.shape[1] for table in inputs[1:]), strict=True)
            tail = [value for rows, width in columns for value in rows.get(key, [0.0] * width)[1:]]
            expected.append(latest[0][key] + tail)
        width = 1 + sum(table.shape[1] - 1 for table in inputs)
        np.testing.assert_array_equal(operator.combine(inputs, index), np.array(expected).reshape(-1, width))


def test_a_join_matches_late_tiles_within_the_window():
    """A tile of the second input matches a tile of the first from two partitions ago, but not from three."""
    dark, light, grey = (np.full((2, 2), value, np.uint8) for value in (10, 200, 100))
    join = ArrayJoin(how="inner", window=3, tiles=1)
    pairs = [(light, dark), (grey, dark), (grey, light), (grey, light), (dark, grey)]
    assert [join.combine(pair, index).max() for index, pair in enumerate(pairs)] == [0, 0, 200, 0, 100]


@given(MAKERS, sequences(), MAKERS)
def test_a_state_is_refused_by_a_different_operator_or_by_different_params(code, sequence, other):
    operator = load_code(code)
    outputs(operator, sequence)
    state = operator.snapshot()
    if state and code != other and {"key_band": None, **code.params} != {"key_band": None, **other.params}:
        with pytest.raises(OperatorError, match=r"the state belongs to|the state was made with other params"):
            load_code(other).restore(state)


@given(st.one_of(st.tuples(MAKERS, sequences()), st.tuples(TABLE_CODES, table_sequences())), st.data())
def test_a_damaged_state_is_refused_or_is_a_different_valid_state(made, data):
    """Sizes, order and bounds are checked: an accepted state works, and its snapshot has the same bytes."""
    code, sequence = made
    operator = load_code(code)
    outputs(operator, sequence)
    state = operator.snapshot()
    if not state:
        return
    damaged = bytearray(state)
    for _ in range(data.draw(st.integers(1, 2))):
        damaged[data.draw(st.integers(0, len(state) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(1, len(state) - 1)))
    arrived = load_code(code)
    try:
        arrived.restore(bytes(damaged[:cut]))
    except OperatorError:
        pass
    else:
        assert cut is None
        assert arrived.snapshot() == damaged
        with contextlib.suppress(OperatorError):  # the damaged state may be of images with other bands
            result = arrived.combine(sequence[-1], len(sequence))
            assert result.shape[1:] == operator.combine(sequence[-1], len(sequence)).shape[1:]


ONE = np.ones((2, 2), np.uint8)
NONE = np.zeros(0, np.uint8)  # the dtype of the aggregated images


@pytest.mark.parametrize(
    ("operator", "counts", "held", "text"),
    [
        (Running("mean"), {"partitions": 1}, [NONE, ONE.astype(np.uint16) * 256], "mean of 1 partitions is over 255"),
        (Running("count"), {"partitions": 1}, [NONE, ONE * 2], "count of 1 partitions is over 1"),
        (Running("mean"), {"partitions": 1}, [NONE, ONE], "uint8 2x2 is not the mean of 1 partitions of uint8"),
        (Running(), {"partitions": 1}, [NONE, ONE[:0]], "uint8 0x2 is not the max"),
        (Running(), {"partitions": 0}, [NONE, ONE], "cannot have 0 partitions in 2 arrays"),
        (Running(), {"partitions": 1}, [ONE], "cannot have 1 partitions in 1 arrays"),
        (Running(), {"partitions": 1}, [ONE, ONE], "cannot have 1 partitions in 2 arrays"),
        (Running("mean"), {"partitions": 1}, [np.zeros(0, np.int64), ONE], "no exact mean of int64"),
        (BestOfLast(2), {}, [ONE, ONE], "the state has 2 images; window=2 keeps at most one less"),
        (BestOfLast(), {}, [], "the state has 0 images"),
        (BestOfLast(), {}, [ONE, ONE.astype(np.uint16)], "a state cannot have uint8 2x2 and uint16 2x2"),
        (BestOfLast(), {}, [ONE[:0]], "a state cannot have uint8 0x2"),
        (ArrayJoin(), {"inputs": 0}, [], "0 partitions of 0 inputs"),
        (ArrayJoin(), {"inputs": 2}, [ONE] * 3, "3 partitions of 2 inputs"),
        (ArrayJoin(), {"inputs": 2}, [ONE] * 8, "8 partitions of 2 inputs"),
        (ArrayJoin(), {"inputs": 1}, [ONE * 1.0], "an array of the state is float64 2x2; images"),
        (
            ArrayJoin(),
            {"inputs": 2},
            [ONE, ONE.astype(np.uint16)],
            "the state brings together uint8 2x2 and uint16 2x2",
        ),
        (ArrayJoin("rows"), {"inputs": 1}, [ONE], "not in the order of their keys, each key once"),
        (ArrayJoin("rows"), {"inputs": 1}, [np.array([[2, 0], [1, 0]])], "not in the order of their keys"),
        (ArrayJoin("rows"), {"inputs": 1}, [np.array([[math.nan, 0]])], "not in the order of their keys"),
        (ArrayJoin("rows"), {"inputs": 1}, [ONE[:1], ONE[:1, :1]], "the state brings together uint8 1x2 and uint8 1x1"),
    ],
)
def test_a_well_formed_state_that_the_operator_cannot_have_is_refused(operator, counts, held, text):
    with pytest.raises(OperatorError, match=text) as caught:
        operator.restore(pack(operator.name, 1, operator.params, counts, held))
    assert str(caught.value).startswith(f"{operator.name}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", STATEFUL)
def test_a_fresh_operator_has_an_empty_state_and_restores_an_empty_state(name):
    operator = load_code(Code(name, {"rule": "max", "bytes_per_pixel": 2, "seconds_per_pixel": 7e-6}))
    assert operator.state_version == Operator.state_version == 1
    assert operator.snapshot() == b""
    operator.restore(b"")
    assert operator.snapshot() == b""
    image = np.arange(6, dtype=np.uint16).reshape(2, 3)
    np.testing.assert_array_equal(operator.combine([image], 0), image)
    state = operator.snapshot()
    assert image.nbytes < len(state) < image.nbytes + 300
    assert operator.compute_s([100.0, 300.0]) > Composite("max", None, 7e-6, 2).compute_s([100.0, 300.0])
    assert operator.output_size_bytes([100.0, 300.0]) == 300.0


@pytest.mark.parametrize("code", [Code("running"), Code(ARRAY_JOIN), Code("best-of-last")], ids=STATEFUL)
def test_a_failed_combine_leaves_the_state_unchanged(code):
    operator = load_code(code)
    image = np.full((3, 4), 7, np.uint8)
    for index in range(2):
        operator.combine([image, image], index)
    state = operator.snapshot()
    for bad in (
        [image.astype(np.uint16)] * 2,
        [image, image.astype(np.uint16)],
        [np.stack([image] * 3, axis=2)] * 2,
        [image, b"abc"],
        [image, image.astype(np.float32)],
        [image[:0], image],
        [],
    ):
        with pytest.raises(OperatorError) as caught:
            operator.combine(bad, 2)
        assert "\n" not in str(caught.value)
        assert operator.snapshot() == state


@pytest.mark.parametrize(
    ("make", "inputs", "text"),
    [
        (lambda: Running(rule="latest"), [np.zeros(3)], "rule 'latest' and key_band are for images"),
        (Running, [np.zeros(3), np.zeros(4)], "joins float64 3 and float64 4"),
        (Running, [np.zeros(3, complex)], "complex128 3; give images, or arrays of"),
        (Running, [np.zeros(())], "give images, or arrays of"),
        (lambda: Running("mean"), [np.zeros(3, np.int64)], "no exact mean of int64"),
        (ArrayJoin, [np.zeros((2, 2))], "input 0 of partition 5 is float64 2x2; images are"),
        (ArrayJoin, [b"abc"], "input 0 of partition 5 is bytes"),
        (lambda: ArrayJoin("rows"), [np.zeros(3)], "tables are"),
        (lambda: ArrayJoin("rows"), [np.zeros((3, 0))], "tables are"),
        (
            lambda: ArrayJoin("rows"),
            [np.zeros((3, 1)), np.zeros((3, 1), np.int32)],
            "brings together float64 1x1 and int32 1x1",
        ),
        (ArrayJoin, [], "no input"),
        (BestOfLast, [], "no input"),
    ],
)
def test_inputs_that_cannot_be_combined_are_refused(make, inputs, text):
    with pytest.raises(OperatorError, match=text):
        make().combine(inputs, 5)


def test_inputs_that_do_not_fit_earlier_inputs_are_refused():
    join = ArrayJoin()
    image = np.zeros((2, 2), np.uint8)
    join.combine([image, image], 0)
    with pytest.raises(OperatorError, match="partition 1 has 1 inputs, and earlier partitions had 2"):
        join.combine([image], 1)
    running = Running("mean")
    running.combine([image], 0)
    with pytest.raises(OperatorError, match="partition 1 is uint16 2x2, and earlier partitions were uint8 2x2"):
        running.combine([image.astype(np.uint16)], 1)
    plain = BestOfLast()
    plain.combine([np.zeros(3)], 0)
    with pytest.raises(OperatorError, match="partition 1 is float64 4, and earlier partitions were float64 3"):
        plain.combine([np.zeros(4)], 1)


@pytest.mark.parametrize(
    ("use", "params", "text"),
    [
        ("running", {"aggregate": "median"}, "aggregate 'median'; use max, min, mean, count"),
        ("running", {"rule": "mx"}, "unknown rule 'mx'"),
        ("best-of-last", {"window": 0}, "window=0; give 1 to 1024"),
        ("best-of-last", {"window": 2.5}, "window=2.5"),
        (ARRAY_JOIN, {"window": True}, "window=True"),
        (ARRAY_JOIN, {"on": "pixels"}, "on='pixels'"),
        (ARRAY_JOIN, {"how": "outer"}, "how='outer'"),
        (ARRAY_JOIN, {"tiles": 0}, "tiles=0; give 1 to 256"),
        (ARRAY_JOIN, {"levels": 1000}, "levels=1000"),
        (ARRAY_JOIN, {"windw": 3}, "windw"),
    ],
)
def test_parameters_that_cannot_be_used_are_refused(use, params, text):
    with pytest.raises(OperatorError, match=text):
        load_code(Code(use, params))


def evaluate(dataflow, count, rng=None):
    """Evaluate a dataflow as ``reference_run`` does. With ``rng``, a restored copy replaces each operator at random."""
    codes = {name: node.code for name, node in dataflow.by_name.items() if node.code is not None}
    running = {name: load_code(code) for name, code in codes.items()}
    for index in range(count):
        values = {}
        for name in dataflow.upward:
            node = dataflow.by_name[name]
            if node.kind == "source":
                values[name] = running[name].produce(index)
            elif name in running:
                if rng is not None and rng.random() < 0.5:
                    running[name] = moved(codes[name], running[name])
                values[name] = running[name].combine([values[producer] for producer in node.inputs], index)
        yield digest(values[dataflow.by_name[dataflow.sinks[0]].inputs[0]])


@pytest.mark.parametrize("tree", [complete_binary_tree, left_deep_tree])
@pytest.mark.parametrize("name", STATEFUL)
def test_a_tree_of_operators_that_move_gives_the_values_of_the_reference_run(tree, name):
    shared = {"sites": 4, "seed": 4, "mean_bytes": 3000}
    sources = {f"h{site}": Code("scenes", {"site": site, **shared}) for site in range(4)}
    flow = tree(sources, Code(name, {"rule": "max", "bytes_per_pixel": 1}))
    expected = [digest(value) for value in reference_run(flow, 8)]
    assert expected == [digest(value) for value in reference_run(flow, 8)]
    assert len(set(expected)) == 8
    assert list(evaluate(flow, 8, np.random.default_rng(5))) == expected
    stateless = [digest(value) for value in reference_run(tree(sources, Code("composite")), 8)]
    assert expected[0] == stateless[0] or name == ARRAY_JOIN
    assert all(a != b for a, b in zip(expected[2:], stateless[2:], strict=True))


@pytest.mark.parametrize("name", STATEFUL)
def test_a_lost_state_shows_in_the_output(name):
    """An operator that starts afresh in the middle gives other outputs, so a lost state does not go unnoticed."""
    sources = [SceneSource(site, 2, 4, mean_bytes=3000) for site in range(2)]
    sequence = [[source.produce(index) for source in sources] for index in range(8)]
    whole = outputs(load_code(Code(name)), sequence)
    assert outputs(load_code(Code(name)), sequence[4:], 4)[0] != whole[4]
    twice = load_code(Code(name, {"aggregate": "mean"} if name == "running" else {}))
    once = load_code(Code(name, {"aggregate": "mean"} if name == "running" else {}))
    a, b = outputs(once, sequence), outputs(twice, [*sequence[:5], sequence[4], *sequence[5:]])
    assert a[5:] != b[6:]


def test_states_stay_bounded():
    sources = [SceneSource(site, 2, 4, mean_bytes=3000) for site in range(2)]
    for name in STATEFUL:
        operator = load_code(Code(name))
        sizes = []
        for index in range(60):
            operator.combine([source.produce(index) for source in sources], index)
            sizes.append(len(operator.snapshot()))
        assert max(sizes[20:]) <= 1.5 * max(sizes[:20])
        if name == "running":
            assert all(before <= after for before, after in pairwise(sizes))
