"""Figures of hosts and of nodes, besides links: declared, or measured while data flows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.errors import UsageError, nearest

MAX_SPEED, MAX_CORES = 1000.0, 65_536
MOST = 2**53 - 1  # bytes of memory, or bit/s
CAPACITY = {"speed": float, "cores": int, "memory_bytes": int, "bandwidth_bps": int}  # figures that a host may declare


class HostFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Figures of a host: the speed of its processor (2: twice as fast as a usual one), its cores, and its load.

    ``cores``: the number of calls at once. ``load``: the share of the cores' time, 0 to 1, that recent calls of
    operators took. ``memory_bytes``, ``bandwidth_bps``: the amounts for operators, or 0 if undeclared.

    Raises UsageError for a speed outside 1 / ``MAX_SPEED`` to ``MAX_SPEED``, for cores outside 1 to ``MAX_CORES``, and
    for a negative value or no number.
    """

    speed: float = 1.0
    cores: int = 1
    load: float = 0.0
    memory_bytes: int = 0
    bandwidth_bps: int = 0

    def __post_init__(self) -> None:
        if not 1 / MAX_SPEED <= self.speed <= MAX_SPEED:
            raise UsageError(f"a host's speed is {self.speed}; give {1 / MAX_SPEED:g} to {MAX_SPEED:g}, 2 for twice")
        if not 1 <= self.cores <= MAX_CORES:
            raise UsageError(f"a host's cores are {self.cores}; give 1 to {MAX_CORES}")
        if not 0 <= self.load <= 1:
            raise UsageError(f"a host's load is {self.load}; it is a share, 0 to 1")
        for resource, value in (("memory", self.memory_bytes), ("bandwidth", self.bandwidth_bps)):
            if not 0 <= value <= MOST:
                raise UsageError(f"a host's {resource} is {value}; give 1 to {MOST:.0e}, or nothing")


class NodeFigures(msgspec.Struct, frozen=True):
    """Figures of a running node: means of its latest partitions.

    ``rate_hz``: partitions a second. ``output_bytes``: size of an output. ``input_bytes``: size of an input, by
    producer. ``call_s``: seconds of the code on a host of speed 1. ``count``: partitions so far, on the present host.
    """

    rate_hz: float
    output_bytes: float
    input_bytes: dict[str, float] = {}
    call_s: float = 0.0
    count: int = 1

    @property
    def selectivity(self) -> float:
        """Output bytes for each input byte, or nan without input."""
        input_bytes = plain_sum(self.input_bytes.values())
        return self.output_bytes / input_bytes if input_bytes else math.nan


class Taking(msgspec.Struct, frozen=True):
    """Resources that operators take: seconds a second on a host of speed 1, bytes of memory, and bit/s."""

    processor: float = 0.0
    memory_bytes: float = 0.0
    bandwidth_bps: float = 0.0

    @classmethod
    def of(cls, rate_hz: float, call_s: float, inputs: Iterable[float], output: float, consumers: int) -> Taking:
        """Return the resources of an operator with these partitions a second and bytes.

        0 partitions: the rate is unknown.
        """
        input_bytes = plain_sum(inputs)
        return cls(rate_hz * call_s, input_bytes + 2 * output, rate_hz * 8 * (input_bytes + output * consumers))


def lacks(host: HostFigures, taking: Taking) -> str:
    """Return the resource that a host lacks for ``taking``, with the amount.

    The text is empty if nothing is lacking.
    """
    free = host.speed * host.cores * (1 - host.load)
    if taking.processor > free:
        return (
            f"{taking.processor - free:.3g} of a processor: it has {free:.3g} to spare of {host.speed * host.cores:g}"
        )
    for resource, unit, has, takes in (
        ("memory", "bytes", host.memory_bytes, taking.memory_bytes),
        ("bandwidth", "bit/s", host.bandwidth_bps, taking.bandwidth_bps),
    ):
        if 0 < has < takes:
            return f"{takes - has:.4g} {unit} of {resource}: it has {has:.4g}, and {takes:.4g} are taken"
    return ""


def read_capacity(settings: Iterable[str]) -> HostFigures:
    """Return the figures that ``speed=2,cores=4`` declares, in one or several texts.

    Raise UsageError for anything else.
    """
    figures: dict[str, Any] = {}
    for setting in (part for text in settings for part in text.split(",") if part):
        name, _, value = setting.partition("=")
        if name not in CAPACITY:
            raise UsageError(f"a host's capacity has no {name!r}; {nearest(name, CAPACITY)}, as speed=2")
        try:
            figures[name] = CAPACITY[name](value)
        except ValueError:
            raise UsageError(f"the capacity {setting!r} is not {name}=NUMBER") from None
    return HostFigures(**figures)
