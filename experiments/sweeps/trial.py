"""A trial: what is run once for a sweep, what comes of it, and what an executor does for it.

Executors import this module and what a trial runs, nothing that writes Parquet or draws.
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

REASON_CHARS = 300  # of a failure; planners may raise with whole tables in their text


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial came to, in columns; ``failed``: why it did not, None when it did."""

    failed: str | None = None


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that an outcome depends on; the same trial has the same outcome wherever it is run.

    ``pool`` and ``pool_seed``: which draw the trial is of; pools of one name are alike, and figures are means over
    them. ``configuration``: its number in that draw; arms are compared on the same one. ``outcome`` and ``function``:
    what it comes to, and the import path of what takes the trial and gives that.
    """

    outcome: ClassVar[type[Outcome]]
    function: ClassVar[str]

    pool: str = "paper"
    pool_seed: int = 0
    configuration: int = 0

    @property
    def key(self) -> str:
        """What results are recognised by: 32 hex digits over all fields."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()[:32]

    @property
    def kind(self) -> tuple[object, ...]:
        """Trials of a kind take about as long as each other."""
        return ()

    @property
    def codes(self) -> tuple[str, ...]:
        """Import paths of a user's own code that it needs."""
        return ()

    @property
    def says(self) -> str:
        """What its failure is told with."""
        return type(self).__name__.lower()


class Arm(msgspec.Struct, frozen=True, order=True):
    """One way to run every configuration; its fields are fields of the trial.

    The first field is what is compared (a placement, a heuristic): the *series*. The others are *factors*; one is None
    where it does not apply or was not given.
    """

    @property
    def series(self) -> str:
        return str(getattr(self, self.__struct_fields__[0]))

    @property
    def name(self) -> str:
        """The series as readers know it."""
        return self.series

    @property
    def rank(self) -> int:
        """Arms are listed by it first."""
        return 0


def run_encoded(function: str, trial: type[Trial], encoded: bytes) -> tuple[bytes, float]:
    """Run one trial (JSON) with the function at an import path: its outcome (JSON), and seconds taken.

    What the function raises is the outcome: ``failed`` says type and text in one line.
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
    """Import each ``module:attribute``; what went wrong with the first that fails, or None."""
    for path in paths:
        try:
            find(path)
        except Exception as error:  # importing runs the module, which may raise anything
            return f"{path}: {said(error)}"
    return None


@cache
def find(path: str) -> Callable[[Trial], Any]:
    """What stands at ``module:attribute``."""
    append_folders()  # executors have no entry of ours
    module, _, attribute = path.partition(":")
    found: Callable[[Trial], Any] = getattr(import_module(module), attribute)
    return found


def said(error: BaseException) -> str:
    """``Type: text``, in one line and not too long; the text alone where it is written for people."""
    text = one_line(error) if isinstance(error, ThalwegError) else f"{type(error).__name__}: {one_line(error)}"
    return clipped(text, REASON_CHARS)
