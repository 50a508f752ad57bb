"""Alternating rounds: the sides of a comparison take turns in one run, so other work of the machine affects every side.

Every side is started before the first round and warmed up in each of its rounds. Only the partitions after the warm-up
are timed. Processor time is that of this process and of every process that it has started. The other sides' processes
are idle then. On a busy machine, processor time is more reliable than a rate.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import psutil

from benchmarks.workload import VARIANTS, digest_of
from thalweg.middleware.errors import RunError
from thalweg.middleware.platform import processes

Progress = Callable[[str], None]


def silent(step: str) -> None:
    """Show no progress."""


class Side(Protocol):
    """Contender in a comparison, ready for its rounds."""

    def stream(self, partitions: int) -> Iterable[Any]:
        """Yield the values of the next ``partitions`` partitions (uint8, any buffer), as the sink gets the values."""
        ...


class Round(msgspec.Struct, frozen=True):
    """One round of one side: timed partitions per second, the digest of all partitions, and the processor time.

    ``cpu_ms``: milliseconds of processors for each timed partition.
    """

    per_s: float
    digest: str
    cpu_ms: float = 0.0


def processor_s() -> float:
    """Return the processor time so far of this process and of its living descendants, in seconds."""
    pids = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
    return sum(map(processes.processor_s, pids))


def play(side: Side, partitions: int, warm_up: int) -> Round:
    """Play one round: ``warm_up`` partitions, then ``partitions`` timed partitions.

    The digest is computed off the clock.

    Raise RunError if the side delivers another number of partitions.
    """
    values: list[Any] = []
    begun, begun_cpu = time.perf_counter(), processor_s()
    for value in side.stream(warm_up + partitions):
        values.append(value)
        if len(values) == warm_up:
            begun_cpu, begun = processor_s(), time.perf_counter()
    took, took_cpu = time.perf_counter() - begun, processor_s() - begun_cpu
    if len(values) != warm_up + partitions:
        raise RunError(f"a side of the benchmark delivered {len(values)} of {warm_up + partitions} partitions")
    return Round(partitions / took, digest_of(values), took_cpu / partitions * 1000)


class Plan(msgspec.Struct, frozen=True):
    """Number of partitions of a side's round that are timed, and number of partitions of its warm-up."""

    partitions: int
    warm_up: int

    @property
    def total(self) -> int:
        """Number of partitions of a round, rounded up to a multiple of ``VARIANTS``, so rounds begin alike."""
        return self.partitions + self.warm_up + -(self.partitions + self.warm_up) % VARIANTS


def alternate(
    sides: Mapping[str, Side], plans: Mapping[str, Plan], rounds: int, progress: Progress = silent
) -> dict[str, list[Round]]:
    """Play ``rounds`` rounds of every side in turn, each by the side's plan. Return the rounds by side."""
    played: dict[str, list[Round]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, side in sides.items():
            progress(f"round {number + 1} of {rounds}: {name}")
            plan = plans[name]
            played[name].append(play(side, plan.total - plan.warm_up, plan.warm_up))
    return played


def median_per_s(played: Sequence[Round]) -> float:
    """Return the median rate of a side's rounds."""
    return statistics.median(result.per_s for result in played)


def median_cpu_ms(played: Sequence[Round]) -> float:
    """Return the median of a side's processor time for a partition, in milliseconds."""
    return statistics.median(result.cpu_ms for result in played)


def median_cpu_ratio(ours: Sequence[Round], theirs: Sequence[Round]) -> float:
    """Return the median over rounds of our processor time for a partition, divided by theirs in the same round."""
    return statistics.median(a.cpu_ms / b.cpu_ms for a, b in zip(ours, theirs, strict=True))


def median_ratio(ours: Sequence[Round], theirs: Sequence[Round]) -> float:
    """Return the median over rounds of our rate divided by theirs in the same round."""
    return statistics.median(a.per_s / b.per_s for a, b in zip(ours, theirs, strict=True))
