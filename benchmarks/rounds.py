"""Alternating rounds: sides of a comparison take turns in one run, so that what else the machine does hits all.

Every side is started before the first round and warmed up in each of its rounds; only what follows is timed. The
processor time that it takes is that of this process and all that it has started, of which those of other sides wait:
where a machine has much else to do, it tells more than a rate.
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
    """No progress shown."""


class Side(Protocol):
    """One contender, up and waiting."""

    def stream(self, partitions: int) -> Iterable[Any]:
        """The next ``partitions`` partitions' values (uint8, any buffer), as the sink gets them."""
        ...


class Round(msgspec.Struct, frozen=True):
    """One round of one side: partitions per second after the warm-up, the digest of all its partitions, and
    milliseconds of processors for a timed one.
    """

    per_s: float
    digest: str
    cpu_ms: float = 0.0


def processor_s() -> float:
    """What this process has taken of processors so far, with those that it has started and that go on, in seconds."""
    pids = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
    return sum(map(processes.processor_s, pids))


def play(side: Side, partitions: int, warm_up: int) -> Round:
    """One round: ``warm_up`` partitions, then ``partitions`` timed ones; the digest is taken off the clock.

    Raises RunError when the side delivers another number of partitions.
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


def median_cpu_ms(played: Sequence[Round]) -> float:
    """The median of a side's processor time for a partition, in milliseconds."""
    return statistics.median(each.cpu_ms for each in played)


def median_cpu_ratio(ours: Sequence[Round], theirs: Sequence[Round]) -> float:
    """The median over rounds of our processor time for a partition by theirs in the same round."""
    return statistics.median(a.cpu_ms / b.cpu_ms for a, b in zip(ours, theirs, strict=True))


def median_ratio(ours: Sequence[Round], theirs: Sequence[Round]) -> float:
    """The median over rounds of our rate by theirs in the same round."""
    return statistics.median(a.per_s / b.per_s for a, b in zip(ours, theirs, strict=True))
