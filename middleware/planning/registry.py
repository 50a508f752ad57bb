"""Planners and cost models by name: built in, from an installed package's entry point, or by import path.

A researcher's planner is any class with ``plan`` (see :class:`Planner`), used as ``--planner package.module:Class``
or registered by its package under the entry-point groups ``thalweg.planners`` and ``thalweg.cost_models``. Names come
from the user's own command line or configuration, never off the wire.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, cast

import msgspec

from thalweg.middleware.errors import UsageError
from thalweg.middleware.planning.costs import CostModel, CriticalPath
from thalweg.middleware.planning.expected_period import ExpectedPeriod
from thalweg.middleware.planning.period import Period
from thalweg.middleware.planning.planners import DownloadAll, Exhaustive, OneShot, Planner

PLANNERS: Mapping[str, type[Planner]] = {
    "download-all": DownloadAll,
    "one-shot": OneShot,
    "exhaustive": Exhaustive,
}
COST_MODELS: Mapping[str, type[CostModel]] = {
    "critical-path": CriticalPath,
    "period": Period,
    "expected-period": ExpectedPeriod,
}


def get_planner(name: str, **options: Any) -> Planner:
    """The planner of that name or import path, made with ``options``.

    Raises UsageError for an unknown name or option, naming the nearest known.
    """
    planner = _make("planner", PLANNERS, "thalweg.planners", name, options)
    if not callable(getattr(planner, "plan", None)):
        raise UsageError(f"{name!r} is no planner: it has no method plan")
    return cast(Planner, planner)


def get_cost_model(name: str, **options: Any) -> CostModel:
    """The cost model of that name or import path; errors as :func:`get_planner`."""
    model = _make("cost model", COST_MODELS, "thalweg.cost_models", name, options)
    if not callable(getattr(model, "at", None)):
        raise UsageError(f"{name!r} is no cost model: it has no method at")
    return cast(CostModel, model)


def nearest(word: str, known: list[str]) -> str:
    """``; did you mean 'x'?`` with the known word nearest to ``word``, or the list of all."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known) or 'none'}"


def _make(what: str, built_in: Mapping[str, type[Any]], group: str, name: str, options: dict[str, Any]) -> object:
    factory = _find(what, built_in, group, name)
    known = list(inspect.signature(factory).parameters)
    for option in options:
        if option not in known:
            raise UsageError(f"{what} {name!r} has no option {option!r}{nearest(option, known)}")
    try:
        if isinstance(factory, type) and issubclass(factory, msgspec.Struct):
            return msgspec.convert(options, factory)
        return factory(**options)
    except (TypeError, ValueError, msgspec.ValidationError) as error:
        raise UsageError(f"{what} {name!r} cannot be made with {options}: {error}") from error


def _find(what: str, built_in: Mapping[str, type[Any]], group: str, name: str) -> Any:
    if name in built_in:
        return built_in[name]
    installed = {entry.name: entry for entry in entry_points(group=group)}
    module_name, colon, attribute = name.partition(":")
    try:
        if name in installed:
            return installed[name].load()
        if colon:
            return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"{what} {name!r} cannot be imported: {error}") from error
    raise UsageError(f"unknown {what} {name!r}{nearest(name, [*built_in, *installed])}, or package.module:Class")
