"""Linear and mixed-integer programs, which HiGHS solves.

HiGHS is imported when a program is first made: it takes a tenth of a second to load, and few plans need it.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.middleware.errors import PlannerError, UsageError

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]


class NoSolutionError(PlannerError):
    """A program that has no solution."""


class SearchLimits(msgspec.Struct, frozen=True):
    """How long to look for a proof: ``time_limit_s``, and a solution is taken whose ``gap`` to the bound, as a share of
    its cost, is so small. Raises UsageError for what cannot be.
    """

    time_limit_s: float = math.inf
    gap: float = 0.0

    def __post_init__(self) -> None:
        if not self.time_limit_s > 0:
            raise UsageError(f"the time limit is {self.time_limit_s} s; give seconds above 0")
        if not 0 <= self.gap < 1:
            raise UsageError(f"the gap is {self.gap}; it is a share, at least 0 and below 1")


class Solution(msgspec.Struct, frozen=True):
    """``value`` of the objective with ``variables``, and ``bound``: what no solution can beat.

    ``gap``: how far they are apart, relative to the value; ``optimal``: False where the time limit ended the search.
    """

    value: float
    variables: Floats
    bound: float
    gap: float
    optimal: bool


@cache
def _silent() -> type[Any]:
    """HiGHS that says nothing on standard output, as it else may from the moment at which it has callbacks."""
    import highspy

    class Silent(highspy.Highs):
        def enableCallbacks(self) -> None:  # which its constructor calls
            self.setOptionValue("output_flag", False)
            highspy.Highs.enableCallbacks(self)

    return Silent


class Program:
    """A linear program, with ``integer`` variables a mixed-integer one: variables, rows, an objective.

    - ``maximise``: the objective; else it is minimised
    - ``gap``: relative; a solution so near to the bound is good enough
    - ``time_limit_s``: seconds for one ``solve``, after which the best solution so far is taken

    Rows may be added after a ``solve``, which then goes on from the solution before. Source: HiGHS, Huangfu and Hall
    (2018), Parallelizing the dual revised simplex method, Math. Prog. Comp. 10.
    """

    def __init__(self, *, maximise: bool = False, gap: float = 0.0, time_limit_s: float = math.inf) -> None:
        import highspy

        self._highs = highs = _silent()()
        self._library = highspy
        highs.setOptionValue("output_flag", False)
        highs.setOptionValue("threads", 1)
        highs.setOptionValue("mip_rel_gap", gap)
        highs.setOptionValue("time_limit", time_limit_s)
        highs.changeObjectiveSense(highspy.ObjSense.kMaximize if maximise else highspy.ObjSense.kMinimize)
        self._count, self._integers = 0, False

    def variables(
        self, count: int, *, high: Floats | float = math.inf, cost: Floats | float = 0.0, integer: bool = False
    ) -> Indices:
        """Add so many variables between 0 and ``high``, with ``cost`` in the objective ((count,) or for all)."""
        columns = np.arange(self._count, self._count + count)
        self._count += count
        self._highs.addVars(count, np.zeros(count), np.array(np.broadcast_to(high, count), dtype=np.float64))
        self.price(columns, cost)
        if integer and count:
            self._integers = True
            kinds = np.full(count, int(self._library.HighsVarType.kInteger), dtype=np.uint8)
            self._highs.changeColsIntegrality(count, columns.astype(np.int32), kinds)
        return columns

    def price(self, columns: Indices, cost: Floats | float) -> None:
        """What variables cost in the objective from now on."""
        costs = np.array(np.broadcast_to(cost, len(columns)), dtype=np.float64)
        self._highs.changeColsCost(len(columns), columns.astype(np.int32), costs)

    def row(self, columns: Indices, values: Floats, *, low: float = -math.inf, high: float = math.inf) -> None:
        """Add ``low`` <= the sum of ``values`` times the variables of ``columns`` <= ``high``."""
        self._highs.addRow(low, high, len(columns), columns.astype(np.int32), values)

    def rows(self, at: Indices, columns: Indices, values: Floats, *, low: Floats | float, high: Floats | float) -> None:
        """Add the rows ``low`` <= … <= ``high`` ((rows,) or for all): ``values`` of the variables ``columns``, in those
        rows, from 0, that ``at`` says. Every row has an entry.
        """
        if not len(at):
            return
        order, count = np.argsort(at, kind="stable"), int(at.max()) + 1
        starts = np.searchsorted(at[order], np.arange(count)).astype(np.int32)
        least, most = (np.array(np.broadcast_to(bound, count), dtype=np.float64) for bound in (low, high))
        self._highs.addRows(
            count, least, most, len(at), starts, columns[order].astype(np.int32), np.asarray(values[order], np.float64)
        )

    def start(self, variables: Floats) -> None:
        """Begin with this solution, if it is one."""
        everything = np.arange(self._count, dtype=np.int32)
        self._highs.setSolution(self._count, everything, np.asarray(variables, dtype=np.float64))

    def write(self, path: str) -> None:
        """Write the program to a file, in the form that its ending names, as ``.mps``; UsageError if that fails."""
        if self._highs.writeModel(path) == self._library.HighsStatus.kError:
            raise UsageError(f"the program cannot be written to {path}; name a file in an existing folder, as odp.mps")

    @property
    def took_s(self) -> float:
        """Seconds that its solving took until now."""
        return float(self._highs.getRunTime())

    def solve(self) -> Solution:
        """The best solution; NoSolutionError where there is none, PlannerError where none was found in time."""
        self._highs.run()
        states = self._library.HighsModelStatus
        if self._highs.getModelStatus() in (states.kSolveError, states.kUnbounded, states.kUnboundedOrInfeasible):
            # presolve has failed, which is seldom; without it the status is right
            self._highs.clearSolver()
            self._highs.setOptionValue("presolve", "off")
            self._highs.run()
        status, info = self._highs.getModelStatus(), self._highs.getInfo()
        optimal = status == self._library.HighsModelStatus.kOptimal
        feasible = info.primal_solution_status == self._library.SolutionStatus.kSolutionStatusFeasible
        in_time = status != self._library.HighsModelStatus.kTimeLimit
        if status == self._library.HighsModelStatus.kInfeasible:
            raise NoSolutionError(f"the solver ended as {self._highs.modelStatusToString(status)}")
        if not feasible or not (optimal or not in_time):
            why = "found no solution in time" if not in_time else f"ended as {self._highs.modelStatusToString(status)}"
            raise PlannerError(f"the solver {why}")
        value = float(info.objective_function_value)
        bound = float(info.mip_dual_bound) if self._integers else value if optimal else math.nan
        gap = abs(value - bound) / max(abs(value), 1e-12)
        return Solution(value, np.array(self._highs.getSolution().col_value), bound, gap, optimal)
