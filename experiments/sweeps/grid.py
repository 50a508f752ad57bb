"""Content of ``sweep.toml``: the arms of a sweep, and the configurations on which every arm runs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from thalweg.experiments.sweeps.trial import Arm, Trial
from thalweg.middleware.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1  # of a sweep's folder; increased when older versions would misread a new folder
FIRST_POOL = 1001  # small seeds were used to calibrate the generator, and larger seeds give the reported results
PLACE = ("pool", "pool_seed", "configuration")
ABOUT = ("format", "versions")  # fields that do not identify a sweep


class PlacementResult(msgspec.Struct, frozen=True, kw_only=True):
    """Results of an arm over the configurations. A figure without data is None.

    ``mean_interarrival_s``: mean over the configurations of the mean inter-arrival time. ``median_speedup``: median of
    the speed-up over download-all on the same configuration.
    """

    runs: int
    failed: int
    mean_interarrival_s: float | None = None
    median_speedup: float | None = None


class Sweep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Grid of arms on many configurations.

    ``figure``: the paper's figure that the sweep is for, if any. ``configurations``: total number, spread evenly over
    ``pools`` draws of the pool named ``pool``, with seeds from ``first_pool``. ``traces``: source of measured pools.
    ``parameters``: further fields of the trial that are not at their defaults.
    """

    trial: ClassVar[type[Trial]]
    swept: ClassVar[tuple[str, ...]] = PLACE  # fields of the trial that are no parameters

    figure: str | None = None
    pool: str = "paper"
    pools: int = 10
    first_pool: int = FIRST_POOL
    configurations: int = 300
    traces: str | None = None
    parameters: dict[str, Any] = {}
    format: int = FORMAT
    versions: dict[str, str] = {}

    def arms(self) -> Sequence[Arm]:
        """Return the arms in which every configuration is run."""
        raise NotImplementedError  # a struct cannot be abstract

    def summarize(self, results: pa.Table) -> dict[str, PlacementResult]:
        """Return the results of the arms by label: number of trials, number of failures, and figures."""
        arms = self.arms()
        by_arm: dict[Arm, list[dict[str, Any]]] = {arm: [] for arm in arms}
        for result in results.to_pylist():
            by_arm.setdefault(self.arm_of(result), []).append(result)
        measured = self.measured(by_arm)
        return {
            self.label(arm, by_arm): PlacementResult(
                runs=len(rows), failed=sum(row["failed"] is not None for row in rows), **measured.get(arm, {})
            )
            for arm, rows in by_arm.items()
        }

    def arm_of(self, row: Mapping[str, Any]) -> Arm:
        """Return the arm of a row of results."""
        kind = type(self.arms()[0])
        return kind(**{name: row[name] for name in kind.__struct_fields__})

    def measured(self, found: Mapping[Any, Sequence[Mapping[str, Any]]]) -> dict[Any, dict[str, float | None]]:
        """Return further fields of ``PlacementResult`` by arm, from the arm's rows."""
        return {}

    def label(self, arm: Any, among: Iterable[Any]) -> str:
        """Return the name of an arm among several arms: the values of the fields."""
        return ", ".join(str(value) for value in msgspec.structs.astuple(arm) if value not in (None, ""))

    @property
    def name(self) -> str:
        return "sweep" if self.figure is None else f"fig{self.figure}" if self.figure.isdecimal() else self.figure

    @property
    def id(self) -> str:
        """Identifier of the sweep's content, the same on every machine."""
        return f"{self.name}-{hashlib.sha256(msgspec.json.encode(self.settled(), order='sorted')).hexdigest()[:8]}"

    def settled(self) -> dict[str, Any]:
        """Return the content of the sweep as a flat mapping, with the defaults of parameters."""
        tree: dict[str, Any] = msgspec.to_builtins(self)
        for name in ABOUT:
            del tree[name]
        del tree["parameters"]
        settled: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(tree | self.all_parameters()))
        return settled  # JSON makes tuples and lists equal

    def all_parameters(self) -> dict[str, Any]:
        """Return the parameters, defaults included."""
        defaults = msgspec.to_builtins(self.trial())
        return {name: self.parameters.get(name, value) for name, value in defaults.items() if name not in self.swept}

    def check(self) -> Sweep:
        """Return self, or raise UsageError naming a value that is out of range or unknown."""
        if self.configurations < 1 or self.pools < 1:
            raise UsageError(f"--configurations {self.configurations} over --pools {self.pools}: give at least 1 each")
        if self.configurations < self.pools:
            raise UsageError(
                f"--configurations {self.configurations} cannot be spread over {self.pools} pools; give --pools 1"
                f" to {self.configurations}"
            )
        if self.first_pool < 0:
            raise UsageError(f"--first-pool is {self.first_pool}; it must be at least 0")
        for name in self.parameters:
            if name in self.swept or name not in self.trial.__struct_fields__:
                raise UsageError(f"a sweep has no parameter {name!r}")
        return self

    def given(self, arm: Arm) -> dict[str, Any]:
        """Return the fields of a trial that are the same on all configurations."""
        return {**msgspec.structs.asdict(arm), **self.parameters}

    def trial_of(self, pool_seed: int, configuration: int, arm: Arm) -> Trial:
        """Return the trial of one configuration and arm. Raise UsageError for a parameter that does not fit."""
        place = {"pool": self.pool, "pool_seed": pool_seed, "configuration": configuration}
        try:
            return msgspec.convert({**place, **self.given(arm)}, self.trial)
        except msgspec.ValidationError as error:
            raise UsageError(f"an option does not fit: {error}; see thalweg sweep --help") from None

    def trials(self) -> list[Trial]:
        """Return every trial once, configuration by configuration, so that trials of one network can share a plan."""
        whole, rest = divmod(self.configurations, self.pools)
        arms = self.arms()
        return [
            self.trial_of(self.first_pool + number, configuration, arm)
            for number in range(self.pools)
            for configuration in range(whole + (number < rest))
            for arm in arms
        ]


class PaperSweep(Sweep, frozen=True, kw_only=True):
    """Sweep of a paper's own trials. ``study``: the paper's folder. ``listed``: fields of the arms.

    A subclass for a paper sets ``trial`` and ``arm``.
    """

    arm: ClassVar[type[Arm]]

    study: str
    listed: tuple[dict[str, Any], ...]

    def arms(self) -> Sequence[Arm]:
        return [msgspec.convert(fields, self.arm) for fields in self.listed]
