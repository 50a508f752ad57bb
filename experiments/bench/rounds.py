"""Alternating rounds: sides of a comparison take turns in one run, so that what else the machine does hits all.

Every side is started before the first round and warmed up in each of its rounds; only what follows is timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from thalweg.experiments.bench.workload import VARIANTS, digest_of
from thalweg.middleware.errors import RunError

Progress = Callable[[str], None]


def silent(step: str) -> None:
    """No progress shown."""


class Side(Protocol):
    """One contender, up and waiting."""

    def stream(self, partitions: int) -> Iterable[Any]:
        """The next ``partitions`` partitions' values (uint8, any buffer), as the sink gets them."""
        ...


class Round(msgspec.Struct, frozen=True):
    """One round of one side: partitions per second after the warm-up, and the digest of all its partitions."""

    per_s: float
    digest: str


def play(side: Side, partitions: int, warm_up: int) -> Round:
    """One round: ``warm_up`` partitions, then ``partitions`` timed ones; the digest is taken off the clock.

    Raises RunError when the side delivers another number of partitions.
    """
    values: list[Any] = []
    begun = time.perf_counter()
    for value in side.stream(warm_up + partitions):
        values.append(value)
        if len(values) == warm_up:
            begun = time.perf_counter()
    took = time.perf_counter() - begun
    if len(values) != warm_up + partitions:
        raise RunError(f"a side of the benchmark delivered {len(values)} of {warm_up + partitions} partitions")
    return Round(partitions / took, digest_of(values))


class Plan(msgspec.Struct, frozen=True):
    """How many partitions of a side's round are timed, and how many before them are not."""

    partitions: int
    warm_up: int

    @property
    def total(self) -> int:
        """All partitions of a round: rounded up to a multiple of ``VARIANTS``, so that rounds begin alike."""
        return self.partitions + self.warm_up + -(self.partitions + self.warm_up) % VARIANTS


def alternate(
    sides: Mapping[str, Side], plans: Mapping[str, Plan], rounds: int, progress: Progress = silent
) -> dict[str, list[Round]]:
    """``rounds`` rounds of every side in turn, each as its plan says."""
    played: dict[str, list[Round]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, side in sides.items():
            progress(f"round {number + 1} of {rounds}: {name}")
            plan = plans[name]
            played[name].append(play(side, plan.total - plan.warm_up, plan.warm_up))
    return played


def median_per_s(played: Sequence[Round]) -> float:
    """The median rate of a side's rounds."""
    return statistics.median(each.per_s for each in played)


def median_ratio(ours: Sequence[Round], theirs: Sequence[Round]) -> float:
    """The median over rounds of our rate by theirs in the same round."""
    return statistics.median(a.per_s / b.per_s for a, b in zip(ours, theirs, strict=True))
