"""Linear programs: a second attempt when the solver's presolve fails, and programs without an optimum."""

from __future__ import annotations

from typing import Any

import pytest

from thalweg.middleware.errors import PlannerError
from thalweg.middleware.planning.solver.program import NoSolutionError, Program


def small() -> Program:
    """Return a program with the optimum 2, at 2 of one whole variable."""
    program = Program()
    (column,) = columns = program.variables(1, high=9.0, cost=1.0, integer=True)
    program.row(columns, columns * 0 + 1.0, low=1.5)
    assert column == 0
    return program


@pytest.mark.parametrize("wrong", ["kSolveError", "kUnbounded", "kUnboundedOrInfeasible"])
def test_a_program_is_solved_again_without_presolve_after_a_wrong_status(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = small()
    solver, status = program._highs, program._highs.getModelStatus
    asked: list[Any] = []

    def first_wrong() -> Any:
        asked.append(solver.getOptionValue("presolve")[1])
        return getattr(program._library.HighsModelStatus, wrong) if len(asked) == 1 else status()

    monkeypatch.setattr(solver, "getModelStatus", first_wrong)
    solution = program.solve()
    assert (solution.value, solution.optimal) == (2.0, True)
    assert asked == ["choose", "off"]


def test_a_program_without_an_optimum_raises_an_error() -> None:
    free = Program()
    free.variables(1, cost=-1.0)
    with pytest.raises(PlannerError, match="the solver ended as Unbounded"):
        free.solve()
    narrow = Program()
    columns = narrow.variables(1, high=1.0)
    narrow.row(columns, columns * 0 + 1.0, low=2.0)
    with pytest.raises(NoSolutionError, match="the solver ended as Infeasible"):
        narrow.solve()
