"""Digests of values, and the reference run in a single process."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from thalweg.middleware.dataflow import Code, Dataflow, complete_binary_tree, left_deep_tree, star_tree
from thalweg.middleware.errors import DataflowError, OperatorError
from thalweg.operators import (
    Composite,
    Operator,
    SceneSource,
    Source,
    digest,
    reference_run,
)


def scenes(sites, **params):
    shared = {"sites": sites, "seed": 4, "mean_bytes": 2000, **params}
    return {f"h{site}": Code("scenes", {"site": site, **shared}) for site in range(sites)}


def test_a_digest_tells_dtype_shape_and_bytes_apart():
    image = np.arange(6, dtype=np.uint8).reshape(2, 3)
    values = [image, image.reshape(3, 2), image.view(np.int8), image.tobytes(), image + 1, b"", image[:0]]
    digests = [digest(value) for value in values]
    assert len(set(digests)) == len(values)
    assert all(text.startswith("sha256:") and len(text) == 71 for text in digests)
    assert digest(np.asfortranarray(image)) == digest(image)
    assert digest(np.full((), 3.0)) != digest(np.ones(()))
    with pytest.raises(OperatorError, match="no digest of"):
        digest(np.array([object()]))
    with pytest.raises(OperatorError, match="type set does not travel"):
        digest({1})


@pytest.mark.parametrize("tree", [complete_binary_tree, left_deep_tree, star_tree])
def test_a_reference_run_equals_the_tree_evaluated_by_hand(tree):
    flow = tree(scenes(3), Code("composite"))
    parts = [SceneSource(site, 3, 4, mean_bytes=2000) for site in range(3)]
    composite = Composite()
    got = list(reference_run(flow, 4))
    assert len(got) == 4
    for index, value in enumerate(got):
        a, b, c = (part.produce(index) for part in parts)
        by_hand = composite.combine([composite.combine([a, b], index), c], index)
        np.testing.assert_array_equal(value, by_hand)


def test_a_reference_run_ends_with_the_first_source_that_ends():
    codes = scenes(2, length=5)
    codes["h1"].params["length"] = 3
    flow = star_tree(codes, Code("composite", {"rule": "latest"}))
    assert len(list(reference_run(flow))) == 3
    assert len(list(reference_run(flow, 2))) == 2
    assert list(reference_run(flow, 0)) == []
    assert len(list(islice(reference_run(flow), 1))) == 1


def test_a_reference_run_accepts_allowed_code_and_refuses_code_in_the_wrong_place(monkeypatch):
    import sys
    import types

    class Letters(Source):
        length = 3

        def produce(self, index):
            return b"abc"[index : index + 1] if index < 3 else None

    class Joined(Operator):
        def __init__(self):
            self.past = b""

        def combine(self, inputs, index):
            self.past += b"".join(inputs)
            return self.past

    module = types.ModuleType("embedders_module")
    module.Letters, module.Joined = Letters, Joined
    Letters.__module__ = Joined.__module__ = "embedders_module"  # as if it were defined there
    monkeypatch.setitem(sys.modules, "embedders_module", module)
    letters, joined = Code("embedders_module:Letters"), Code("embedders_module:Joined")
    flow = star_tree({"x": letters, "y": letters}, joined)
    assert list(reference_run(flow, allow=["embedders_module"])) == [b"aa", b"aabb", b"aabbcc"]
    assert Letters().size_bytes() == 0.0
    assert Joined().output_size_bytes([3.0, 4.0]) == 4.0
    with pytest.raises(OperatorError, match="does not allow code"):
        reference_run(flow)
    swapped = star_tree({"x": Code("composite")}, joined)
    with pytest.raises(OperatorError, match=r"'composite' cannot run as source: it has no produce"):
        reference_run(swapped)
    with pytest.raises(DataflowError, match="sink"):
        reference_run(Dataflow(()))
