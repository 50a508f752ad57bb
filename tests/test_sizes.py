"""Sizes of test runs: the tests that a size leaves out. No step and no fault of a matrix is left out."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from long_runs import PARTS, ROOT
from sizes import EVERY, SIZES, SMALL, cells_left_out

STEPS, FAULTS = [f"step {n}" for n in range(9)], [f"fault {n}" for n in range(15)]


class Cell:
    """Test of a matrix, with the attributes that the selection of a size reads."""

    def __init__(self, test: str, step: str, fault: str) -> None:
        self.nodeid = f"{test}[{step}-{fault}]"
        self.callspec = self
        self.params = {
            "step": step,
            "fault": fault,
            "expected": "odd" if (step, fault) == (STEPS[1], FAULTS[4]) else "",
        }

    def get_closest_marker(self, name: str) -> str | None:
        return name if name == "matrix" else None


def cells(test: str, faults: list[str]) -> list[Any]:
    return [Cell(test, step, fault) for step, fault in itertools.product(STEPS, faults)]


@pytest.mark.parametrize("columns", [1, 2, 5, 6, 10, 15])
def test_every_row_and_column_and_outcome_of_a_matrix_stays(columns: int) -> None:
    matrix = cells("test_a", FAULTS[:columns])
    left = set(matrix) - cells_left_out(matrix, "usual")
    for name in ("step", "fault", "expected"):
        assert {cell.params[name] for cell in left} == {cell.params[name] for cell in matrix}
    assert len(left) <= max(SMALL, len(matrix) / EVERY["usual"] + len(STEPS) + columns)


def test_every_file_that_the_long_run_names_exists() -> None:
    named = {word for part in PARTS for word in part.command if word.startswith("tests/")}
    assert len(named) > 5
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


def test_the_long_size_leaves_out_nothing_and_small_matrices_run_whole() -> None:
    matrix = cells("test_a", FAULTS) + cells("test_b", FAULTS[:1])
    assert cells_left_out(matrix, "long") == set()
    assert all(cell.nodeid.startswith("test_a") for cell in cells_left_out(matrix, "usual"))
    assert SIZES["long"].without == frozenset()


def test_a_larger_size_leaves_out_fewer_marks() -> None:
    assert SIZES["long"].without < SIZES["usual"].without < SIZES["quick"].without
