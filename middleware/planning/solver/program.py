"""Linear and mixed-integer programs, solved by HiGHS.

HiGHS is imported when the first program is made: the import takes a tenth of a second, and few plans need HiGHS.
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
    """Error: a program has no solution."""


class SearchLimits(msgspec.Struct, frozen=True):
    """Limits of the search for a proof. Raises UsageError for a value out of range.

    - ``time_limit_s``: seconds after which the search ends.
    - ``gap``: a solution is accepted if its distance to the bound is at most this share of the solution's cost.
    """

    time_limit_s: float = math.inf
    gap: float = 0.0

    def __post_init__(self) -> None:
        if not self.time_limit_s > 0:
            raise UsageError(f"the time limit is {self.time_limit_s} s; give seconds above 0")
        if not 0 <= self.gap < 1:
            raise UsageError(f"the gap is {self.gap}; it is a share, at least 0 and below 1")


class Solution(msgspec.Struct, frozen=True):
    """Solution of a program: the ``value`` of the objective, with ``variables``.

    - ``bound``: a value that no solution can beat. nan: a linear program was not solved in time.
    - ``gap``: distance between value and bound, relative to the value.
    - ``optimal``: False if the time limit ended the search.
    """

    value: float
    variables: Floats
    bound: float
    gap: float
    optimal: bool


@cache
def _silent() -> type[Any]:
    """Return a HiGHS class that prints nothing on standard output.

    HiGHS itself may print from the moment at which callbacks are enabled.
    """
    import highspy

    class Silent(highspy.Highs):
        def enableCallbacks(self) -> None:  # called by the constructor of Highs
            self.setOptionValue("output_flag", False)
            highspy.Highs.enableCallbacks(self)

    return Silent


class Program:
    """Linear program, or mixed-integer program if variables are ``integer``: variables, rows and an objective.

    - ``maximise``: maximise the objective. Without it, the objective is minimised.
    - ``gap``: relative distance to the bound at which a solution is good enough.
    - ``time_limit_s``: seconds for one ``solve``, after which the best solution so far is returned.

    Rows may be added after a ``solve``. The next ``solve`` goes on from the solution before. Source: HiGHS, Huangfu and
    Hall (2018), Parallelizing the dual revised simplex method, Math. Prog. Comp. 10.
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
        """Add ``count`` variables between 0 and ``high``, with ``cost`` in the objective, and return their columns.

        ``high`` and ``cost`` have the form (count,), or are one value for all variables.
        """
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
        """Set the cost of variables in the objective from now on."""
        costs = np.array(np.broadcast_to(cost, len(columns)), dtype=np.float64)
        self._highs.changeColsCost(len(columns), columns.astype(np.int32), costs)

    def row(self, columns: Indices, values: Floats, *, low: float = -math.inf, high: float = math.inf) -> None:
        """Add the row ``low`` <= the sum of ``values`` times the variables of ``columns`` <= ``high``."""
        self._highs.addRow(low, high, len(columns), columns.astype(np.int32), values)

    def rows(self, at: Indices, columns: Indices, values: Floats, *, low: Floats | float, high: Floats | float) -> None:
        """Add several rows ``low`` <= … <= ``high``, with bounds of the form (rows,), or one bound for all rows.

        ``at``, ``columns`` and ``values`` have an item for every entry: the number of the row, from 0, the variable,
        and the factor. Every row has an entry.
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
        """Begin the next ``solve`` with these variables, if they are a solution."""
        everything = np.arange(self._count, dtype=np.int32)
        self._highs.setSolution(self._count, everything, np.asarray(variables, dtype=np.float64))

    def write(self, path: str) -> None:
        """Write the program to a file, in the format that the file's ending names, such as ``.mps``.

        Raise UsageError if the file cannot be written.
        """
        if self._highs.writeModel(path) == self._library.HighsStatus.kError:
            raise UsageError(f"the program cannot be written to {path}; name a file in an existing folder, as odp.mps")

    @property
    def took_s(self) -> float:
        """Seconds that HiGHS has spent on the program until now."""
        return float(self._highs.getRunTime())

    def solve(self) -> Solution:
        """Solve the program, and return the best solution.

        Raise NoSolutionError if the program has no solution. Raise PlannerError if no solution was found in time, or if
        the solver failed.
        """
        self._highs.run()
        states = self._library.HighsModelStatus
        if self._highs.getModelStatus() in (states.kSolveError, states.kUnbounded, states.kUnboundedOrInfeasible):
            # in rare cases presolve fails: without presolve the status is right
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
