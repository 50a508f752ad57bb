"""Trials of sweeps: the unit that is run once, its outcome, and the functions of an executor.

Executors import this module and the code of a trial, but nothing that writes Parquet or draws.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, ClassVar

import msgspec

from thalweg.experiments.command import clipped
from thalweg.middleware.errors import ThalwegError, one_line
from thalweg.middleware.platform.python import append_folders

REASON_CHARS = 300  # of a failure, because errors of planners may contain whole tables


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a trial, as columns. ``failed``: reason of a failure, None after success."""

    failed: str | None = None


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that an outcome depends on. The same trial has the same outcome on every machine.

    ``pool`` and ``pool_seed``: draw of the trial. Pools of one name are alike, and figures are means over pools.
    ``configuration``: number in the draw. Arms are compared on the same configuration. ``outcome``: class of the
    result. ``function``: import path of the function from trial to outcome.
    """

    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str]

    pool: str = "paper"
    pool_seed: int = 0
    configuration: int = 0

    @property
    def key(self) -> str:
        """Identifier of the trial in results: 32 hex digits over all fields."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:32]

    @property
    def kind(self) -> tuple[object, ...]:
        """Key of trials that take about equally long."""
        return ()

    @property
    def codes(self) -> tuple[str, ...]:
        """Import paths of a user's own code that the trial needs."""
        return ()

    @property
    def says(self) -> str:
        """Name of the trial in messages about failures."""
        return type(self).__name__.lower()


class Arm(msgspec.Struct, frozen=True, order=True):
    """One way to run every configuration. Its fields are fields of the trial.

    The first field is compared (a placement, a heuristic): the *series*. The remaining fields are *factors*. A factor
    is None if it does not apply or was not given.
    """

    @property
    def series(self) -> str:
        return str(getattr(self, self.__struct_fields__[0]))

    @property
    def name(self) -> str:
        """Name of the series for readers."""
        return self.series

    @property
    def rank(self) -> int:
        """First sort key in lists of arms."""
        return 0


def run_encoded(function: str, trial: type[Trial], encoded: bytes) -> tuple[bytes, float]:
    """Run one trial (JSON) with the function at an import path. Return its outcome (JSON), and the seconds taken.

    If the function raises an exception, the outcome has the type and text in ``failed``, in one line.
    """
    begun = time.perf_counter()
    try:
        result = find(function)(msgspec.json.decode(encoded, type=trial))
        if not isinstance(result, trial.outcome):
            raise TypeError(f"{function} gave {type(result).__name__}, not {trial.outcome.__name__}")
        text = msgspec.json.encode(result)
    except (Exception, SystemExit) as error:  # a user's planner may raise anything, also by sys.exit()
        took = {"wall_s": time.perf_counter() - begun} if "wall_s" in trial.outcome.__struct_fields__ else {}
        text = msgspec.json.encode(trial.outcome(failed=said(error), **took))
    return text, time.perf_counter() - begun


def cannot_import(paths: Sequence[str], _: int = 0) -> str | None:
    """Import each ``module:attribute``. Return the problem with the first that fails, or None."""
    for path in paths:
        try:
            find(path)
        except Exception as error:  # importing runs the module, which may raise anything
            return f"{path}: {said(error)}"
    return None


@cache
def find(path: str) -> Callable[[Trial], Any]:
    """Return the object at ``module:attribute``."""
    append_folders()  # executors start without an entry point of ours
    module, _, attribute = path.partition(":")
    function: Callable[[Trial], Any] = getattr(import_module(module), attribute)
    return function


def said(error: BaseException) -> str:
    """Return an error as ``Type: text`` in one line of limited length. A ThalwegError is its text alone."""
    text = one_line(error) if isinstance(error, ThalwegError) else f"{type(error).__name__}: {one_line(error)}"
    return clipped(text, REASON_CHARS)
