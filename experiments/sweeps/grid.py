"""What is swept: the arms in which every configuration is run, and the configurations, as ``sweep.toml`` holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from thalweg.experiments.sweeps.trial import Arm, Trial
from thalweg.middleware.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1  # of a sweep's folder; raised when an older reader would misread it
FIRST_POOL = 1001  # the pools that the generator was calibrated on have small seeds; what is reported has others
PLACE = ("pool", "pool_seed", "configuration")
ABOUT = ("format", "versions")  # does not make it another sweep


class PlacementResult(msgspec.Struct, frozen=True, kw_only=True):
    """One way of running all configurations: the mean over them of the mean inter-arrival time, and the median of
    its speed-up over download-all on the same configuration. None where there is nothing to tell from.
    """

    runs: int
    failed: int
    mean_interarrival_s: float | None = None
    median_speedup: float | None = None


class Sweep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Some arms on many configurations.

    ``figure``: the paper's figure it is for, if any. ``configurations`` is their number in all, spread evenly over
    ``pools`` draws of the pool named ``pool``, with seeds from ``first_pool``. ``traces``: where measured pools come
    from. ``parameters``: the other fields of the trial, where they are not its defaults.
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
        """The ways in which every configuration is run."""
        raise NotImplementedError  # a struct cannot be abstract

    def summarize(self, results: pa.Table) -> dict[str, PlacementResult]:
        """What came of each arm, by its label: how many trials there are, how many failed, and what was measured."""
        arms = self.arms()
        found: dict[Arm, list[dict[str, Any]]] = {arm: [] for arm in arms}
        for one in results.to_pylist():
            found.setdefault(self.arm_of(one), []).append(one)
        measured = self.measured(found)
        return {
            self.label(arm, found): PlacementResult(
                runs=len(each), failed=sum(one["failed"] is not None for one in each), **measured.get(arm, {})
            )
            for arm, each in found.items()
        }

    def arm_of(self, row: Mapping[str, Any]) -> Arm:
        """The arm that a row of the results is of."""
        kind = type(self.arms()[0])
        return kind(**{name: row[name] for name in kind.__struct_fields__})

    def measured(self, found: Mapping[Any, Sequence[Mapping[str, Any]]]) -> dict[Any, dict[str, float | None]]:
        """What else is told of arms, by the fields of ``PlacementResult``, from the rows of each."""
        return {}

    def label(self, arm: Any, among: Iterable[Any]) -> str:
        """An arm's name among others: its fields."""
        return ", ".join(str(value) for value in msgspec.structs.astuple(arm) if value not in (None, ""))

    @property
    def name(self) -> str:
        return "sweep" if self.figure is None else f"fig{self.figure}" if self.figure.isdecimal() else self.figure

    @property
    def id(self) -> str:
        """Of what is swept: the same for the same sweep, anywhere."""
        return f"{self.name}-{hashlib.sha256(msgspec.json.encode(self.settled(), order='sorted')).hexdigest()[:8]}"

    def settled(self) -> dict[str, Any]:
        """What makes it this sweep, flat, with the values that parameters have by default."""
        tree: dict[str, Any] = msgspec.to_builtins(self)
        for name in ABOUT:
            del tree[name]
        del tree["parameters"]
        settled: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(tree | self.all_parameters()))
        return settled  # tuples and lists are alike

    def all_parameters(self) -> dict[str, Any]:
        """Given or not."""
        defaults = msgspec.to_builtins(self.trial())
        return {name: self.parameters.get(name, value) for name, value in defaults.items() if name not in self.swept}

    def check(self) -> Sweep:
        """Return self, or raise UsageError naming what is out of range or unknown."""
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
        """The fields of a trial that are the same on all configurations."""
        return {**msgspec.structs.asdict(arm), **self.parameters}

    def trial_of(self, pool_seed: int, configuration: int, arm: Arm) -> Trial:
        """One configuration run in one way; raises UsageError for a parameter that does not fit."""
        place = {"pool": self.pool, "pool_seed": pool_seed, "configuration": configuration}
        try:
            return msgspec.convert({**place, **self.given(arm)}, self.trial)
        except msgspec.ValidationError as error:
            raise UsageError(f"an option does not fit: {error}; see thalweg sweep --help") from None

    def trials(self) -> list[Trial]:
        """Every trial of it, once, configuration by configuration: those of one network are planned alike."""
        whole, rest = divmod(self.configurations, self.pools)
        arms = self.arms()
        return [
            self.trial_of(self.first_pool + number, configuration, arm)
            for number in range(self.pools)
            for configuration in range(whole + (number < rest))
            for arm in arms
        ]


class PaperSweep(Sweep, frozen=True, kw_only=True):
    """The sweep of a paper's own trials: ``study`` is the paper's folder, ``listed`` are its arms' fields, one by one.

    A paper says its ``trial`` and ``arm``.
    """

    arm: ClassVar[type[Arm]]

    study: str
    listed: tuple[dict[str, Any], ...]

    def arms(self) -> Sequence[Arm]:
        return [msgspec.convert(fields, self.arm) for fields in self.listed]
