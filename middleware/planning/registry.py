"""Planners, cost models and strategies by name: built in, from an installed package's entry point, or by import path.

A researcher's planner is any class with ``plan`` (see ``Planner``). The option ``--planner package.module:Class``
selects the class, or a package registers the class under the entry-point group ``thalweg.planners``. The group of cost
models is ``thalweg.cost_models``. Names come from the user's own command line or configuration, never from a message. A
strategy names both the planner that begins a run and the manner in which operators move afterwards.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, cast

import msgspec

from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import UsageError, nearest, one_line
from thalweg.middleware.planning.costs.critical_path import CriticalPath, SerialisedCriticalPath
from thalweg.middleware.planning.costs.expected_period import ExpectedPeriod
from thalweg.middleware.planning.costs.model import CostModel
from thalweg.middleware.planning.costs.period import Period
from thalweg.middleware.planning.odp.tasks import QualityCost
from thalweg.middleware.planning.planners.cost_space import CostSpace
from thalweg.middleware.planning.planners.download_all import DownloadAll
from thalweg.middleware.planning.planners.exhaustive import Exhaustive
from thalweg.middleware.planning.planners.fixed import Fixed
from thalweg.middleware.planning.planners.local import Local
from thalweg.middleware.planning.planners.odp import Odp
from thalweg.middleware.planning.planners.one_shot import OneShot
from thalweg.middleware.planning.planners.planner import Planner, needs_of, needs_while, wrong_form
from thalweg.middleware.planning.planners.stars import Stars
from thalweg.middleware.planning.planners.thalweg import Thalweg
from thalweg.middleware.protocol.adaptation import Adaptation, GlobalMoves, LocalMoves, Need, SpaceMoves

MANY_LINKS = 1_000_000  # while data flows, a plan asks for all links that it may need at once: the network changes

AGAIN = OneShot(start="current", batch=MANY_LINKS)


class RandomMoves(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="random-moves"):
    """Options of a test driver that moves random operators from outside the run, until ``moves`` moves are done.

    The driver calls ``Run.move``. Raises UsageError for a negative number.
    """

    moves: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        if self.moves < 0:
            raise UsageError(f"moves is {self.moves}; give how many operators shall move, at least 0")


class RandomReshapes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="random-reshapes"):
    """Options of a test driver that changes the tree at random from outside the run, ``reshapes`` times.

    The driver calls ``Run.reshape``. In between, ``moves`` operators move, as under ``RandomMoves``. Raises UsageError
    for a negative number.
    """

    reshapes: int = 500
    moves: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for field, count in (("reshapes", self.reshapes), ("moves", self.moves)):
            if count < 0:
                raise UsageError(f"{field} is {count}; give how many there shall be, at least 0")


Driver = RandomMoves | RandomReshapes


class Strategy(msgspec.Struct, frozen=True):
    """Strategy of a run: the planner of the start, and how operators move afterwards (None: never).

    - ``again``: planner while data flows, from the present placement, if the adaptation is GlobalMoves.
    - ``driver``: options of the driver that moves operators from outside the run (``experiments.drivers``).
    """

    initial: Planner
    adaptation: Adaptation | None = None
    again: Planner = AGAIN
    driver: Driver | None = None

    @property
    def moving(self) -> Adaptation | Driver | None:
        """Options of the adaptation or driver that moves operators. None: operators stay."""
        return self.adaptation or self.driver

    def check(self, dataflow: Dataflow) -> None:
        """Raise UsageError if the strategy is for trees only, and the dataflow is no tree."""
        if isinstance(self.driver, RandomReshapes) and (why := dataflow.not_a_tree()):
            raise UsageError(f"random-reshapes changes trees, and {why}; use random-moves")

    @property
    def needs(self) -> tuple[Need, ...]:
        """Measurements besides bandwidth that hosts make while data flows, as a basis of moves."""
        return needs_while(self.adaptation, self.again)


PLANNERS: Mapping[str, type[Planner]] = {
    "download-all": DownloadAll,
    "fixed": Fixed,
    "one-shot": OneShot,
    "exhaustive": Exhaustive,
    "global": OneShot,
    "local": Local,
    "cost-space": CostSpace,
    "cost-space-once": CostSpace,
    "odp": Odp,
    "stars": Stars,
    "thalweg": Thalweg,
    "thalweg-once": Thalweg,
}
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "global": {"start": "current"},  # "the only modification is in the initialization step" (section 2.2)
    "thalweg-once": {"period_s": None},
    "cost-space-once": {"period_s": None},
}
# "The local algorithm uses the one-shot algorithm to compute a good initial placement" (section 2.3)
MOVERS: Mapping[str, tuple[Planner, type[Adaptation] | type[Driver]]] = {
    "global": (OneShot(), GlobalMoves),
    "local": (OneShot(), LocalMoves),
    "cost-space-local": (CostSpace(period_s=None), SpaceMoves),
    "random-moves": (DownloadAll(), RandomMoves),
    "random-reshapes": (DownloadAll(), RandomReshapes),
}
COST_MODELS: Mapping[str, type[CostModel]] = {
    "critical-path": CriticalPath,
    "serialised-critical-path": SerialisedCriticalPath,
    "period": Period,
    "expected-period": ExpectedPeriod,
    **dict.fromkeys(("objective", "response", "availability", "traffic", "usage", "energy"), QualityCost),
}


def planner_names() -> list[str]:
    """Return the names that ``get_planner`` knows: built-in planners, and planners of installed packages."""
    return _known(PLANNERS, "thalweg.planners")


def strategy_names() -> list[str]:
    """Return the names that ``get_strategy`` knows: built-in strategies, and planners of installed packages."""
    return _known({**PLANNERS, **MOVERS}, "thalweg.planners")


def cost_model_names() -> list[str]:
    """Return the names that ``get_cost_model`` knows: built-in cost models, and models of installed packages."""
    return _known(COST_MODELS, "thalweg.cost_models")


def needs_latencies(cost_model: str) -> bool:
    """Return whether a built-in cost model uses latencies. The result is False for an unknown name.

    Placement files give latencies. Runs do not measure latencies for a cost model.
    """
    return COST_MODELS.get(cost_model) is QualityCost


def get_planner(name: str, **options: Any) -> Planner:
    """Return the planner with a name or import path, made with ``options``.

    Raises UsageError for an unknown name or option, naming the nearest known.
    """
    planner = _make("planner", PLANNERS, "thalweg.planners", name, {**_DEFAULTS.get(name, {}), **options})
    if not callable(getattr(planner, "plan", None)):
        raise UsageError(f"{name!r} is no planner: it has no method plan")
    if why := wrong_form(planner):
        raise UsageError(f"planner {name!r} {why}")
    needs_of(planner)
    return cast(Planner, planner)


def get_strategy(name: str, **options: Any) -> Strategy:
    """Return the strategy with a name: an entry of ``MOVERS``, or a planner, after which operators stay.

    ``options`` are options of the adaptation (``GlobalMoves``, ``LocalMoves``, ``SpaceMoves``), of the driver
    (``RandomMoves``, ``RandomReshapes``), or of the planner. A planner may have an attribute ``adaptation``, a
    GlobalMoves. Such a planner is called again while data flows, with the present placement as ``current``. If the
    planner has the attributes ``initially`` and ``meanwhile``, ``initially`` plans the start and ``meanwhile`` plans
    while data flows. Raises UsageError for an unknown name or option, as ``get_planner``, and for an ``adaptation`` of
    another kind.
    """
    if name in MOVERS:
        initial, kind = MOVERS[name]
        mover = _make("strategy", {name: kind}, "", name, options)
        if isinstance(mover, RandomMoves | RandomReshapes):
            return Strategy(initial, driver=mover)
        return Strategy(initial, cast(Adaptation, mover))
    if name not in PLANNERS and ":" not in name:
        known = strategy_names()
        if name not in known:
            raise UsageError(f"unknown strategy {name!r}; {nearest(name, known)}, or package.module:Class")
    planner = get_planner(name, **options)
    adaptation = getattr(planner, "adaptation", None)
    if adaptation is not None and not isinstance(adaptation, GlobalMoves):
        raise UsageError(
            f"planner {name!r} has an adaptation that is no GlobalMoves; only a planner with GlobalMoves is called"
            " again"
        )
    initial, again = (cast(Planner, getattr(planner, attribute, planner)) for attribute in ("initially", "meanwhile"))
    return Strategy(initial, adaptation, again) if adaptation is not None else Strategy(planner)


def get_cost_model(name: str, **options: Any) -> CostModel:
    """Return the cost model with a name or import path, made with ``options``. Errors are as in ``get_planner``."""
    if COST_MODELS.get(name) is QualityCost:
        options = {"metric": name, **options}
    model = _make("cost model", COST_MODELS, "thalweg.cost_models", name, options)
    if not callable(getattr(model, "at", None)):
        raise UsageError(f"{name!r} is no cost model: it has no method at")
    return cast(CostModel, model)


def _make(what: str, built_in: Mapping[str, type[Any]], group: str, name: str, options: dict[str, Any]) -> object:
    factory = _find(what, built_in, group, name)
    known = list(inspect.signature(factory).parameters)
    for option in options:
        if option not in known:
            raise UsageError(f"{what} {name!r} has no option {option!r}; {nearest(option, known)}")
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
    except Exception as error:  # the import runs the module, so every error may occur
        text = one_line(error)
        text = text if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: {text}"
        raise UsageError(f"{what} {name!r} cannot be imported: {text}") from error
    raise UsageError(f"unknown {what} {name!r}; {nearest(name, _known(built_in, group))}, or package.module:Class")


def _known(built_in: Iterable[str], group: str) -> list[str]:
    """Return the names of the built-in objects, and the names of an entry-point group."""
    return list(dict.fromkeys([*built_in, *(entry.name for entry in entry_points(group=group))]))
