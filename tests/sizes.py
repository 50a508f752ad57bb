"""Three sizes of a test run: ``pytest --size quick``, ``usual`` and ``long``, which ``make`` calls.

The mark ``long`` means a test that is too long for every change. The mark ``matrix`` means a test of many cells. The
usual size runs some cells of every row and every column. The quick size runs no matrix, and collects only folders of
pure code. Without ``--size`` every requested test runs, whatever its marks.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from patience import slowness


class Size(NamedTuple):
    """Marks of the tests that a size leaves out, and processor time of the tests that run, in seconds.

    ``processor_s`` was measured on the machine of ``patience.REFERENCE_S``. None: the time depends on the request.
    """

    without: frozenset[str]
    processor_s: float | None


TESTS = Path(__file__).parent
QUICK = ("middleware", "operators", "emulation", "test_docs.py", "test_architecture.py", "test_sizes.py")
NOT_QUICK = (
    *("middleware/client", "middleware/shell", "middleware/core/failover", "middleware/core/moving"),
    *("emulation/virtual", "emulation/uml", "emulation/containers"),
)
"""Folders below QUICK whose tests run processes, containers, or long worlds."""
QUICK_WITHOUT = frozenset({"long", "matrix", "netns", "netem", "docker", "uml", "spark", "timed"})
SIZES = {
    "quick": Size(QUICK_WITHOUT, 130.0),
    "usual": Size(frozenset({"long"}), 600.0),
    "long": Size(frozenset(), None),
}
BUSY_SHARE = 0.85  # share of the processors that tests use, as some tests wait


EVERY = {"usual": 12}  # one of so many cells of a matrix stays
SMALL = 10  # a test of fewer cells runs whole


def cells_left_out(items: Sequence[pytest.Item], size: str) -> set[pytest.Item]:
    """Return the cells of matrices that a size leaves out.

    One of ``EVERY`` cells of a test stays. Every value of every parameter stays in at least one cell, so every step and
    every fault is tried at every change.
    """
    if (every := EVERY.get(size, 1)) == 1:
        return set()
    matrices = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("matrix") is not None:
            matrices[item.nodeid.partition("[")[0]].append(item)
    left_out = set()
    for cells in matrices.values():
        if len(cells) < SMALL:
            continue
        tried = set[tuple[str, str]]()
        for number, cell in sorted(enumerate(cells), key=lambda entry: entry[0] % every):
            values = {(name, repr(value)) for name, value in cell.callspec.params.items()}  # type: ignore[attr-defined]
            if number % every == 0 or not values <= tried:
                tried |= values
            else:
                left_out.add(cell)
    return left_out


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Have the quick size collect only tests of pure code and of texts."""
    if config.getoption("size") != "quick" or not collection_path.is_relative_to(TESTS):
        return None
    inner = collection_path.relative_to(TESTS).as_posix()
    inside = any(f"{inner}/".startswith(f"{part}/") or f"{part}/".startswith(f"{inner}/") for part in QUICK)
    return None if inside and inner not in NOT_QUICK else True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--size", choices=list(SIZES), help="run the tests of this size, as make test-quick and others do")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: too long for every change; make test-long runs it")
    config.addinivalue_line("markers", "matrix: make test runs one of twelve cells, make test-long all of them")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (name := config.getoption("size")) is None:
        return
    without = SIZES[name].without
    left_out = {item for item in items if any(mark.name in without for mark in item.iter_markers())}
    left_out |= cells_left_out(items, name)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_report_header(config: pytest.Config) -> str | None:
    name = config.getoption("size")
    processor_s = SIZES[name].processor_s if name else None
    if processor_s is None:
        return None
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    minutes = processor_s * slowness() / min(processors, 4) / BUSY_SHARE / 60
    return f"size {name}: about {max(1, round(minutes))} min on this machine, if nothing else runs on it"
