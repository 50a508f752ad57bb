"""What operators take of a host's processor, memory and bandwidth, as far as that is known, and what a host lacks.

An operator computes ``rate · seconds of a call``; it holds two partitions of its own and the next of each input; over
the network go its inputs and its outputs. A resource of which a host says nothing, or which depends on a rate that
nobody knows, does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.planning.problem.problem import Problem


class Taking(msgspec.Struct, frozen=True):
    """Of an operator, or of several together: seconds a second on a host of speed 1, bytes, and bit/s."""

    processor: float = 0.0
    memory_bytes: float = 0.0
    bandwidth_bps: float = 0.0


def combined(takings: Iterable[Taking]) -> Taking:
    """What several operators take on one host."""
    rows = [msgspec.structs.astuple(each) for each in takings]
    return Taking(*map(sum, zip(*rows, strict=True)))


def takings(problem: Problem) -> dict[int, Taking]:
    """What each operator that may be placed takes, by its number."""
    task, found = problem.task, {}
    dataflow, hints = problem.dataflow, task.hints
    for node, name in enumerate(problem.names):
        if problem.movable[node]:
            measured = hints.input_bytes.get(name, {})
            inputs = [measured.get(one, hints.output_bytes[one]) for one in dataflow.by_name[name].inputs]
            output = hints.output_bytes[name]
            paces = [dataflow.by_name[each].rate or math.inf for each in dataflow.below(name)]
            rate_hz = hints.rates_hz.get(name, min(paces, default=math.inf))
            rate_hz = rate_hz if math.isfinite(rate_hz) else 0.0
            moved = rate_hz * 8 * (sum(inputs) + output * len(dataflow.consumers[name]))
            found[node] = Taking(rate_hz * hints.compute_s.get(name, 0.0), sum(inputs) + 2 * output, moved)
    return found


def lacks(host: HostFigures, taking: Taking) -> str:
    """What a host is short of for these, and by how much; empty where nothing is."""
    free = host.speed * host.cores * (1 - host.load)
    if taking.processor > free:
        return (
            f"{taking.processor - free:.3g} of a processor: it has {free:.3g} to spare of {host.speed * host.cores:g}"
        )
    for what, unit, has, takes in (
        ("memory", "bytes", host.memory_bytes, taking.memory_bytes),
        ("bandwidth", "bit/s", host.bandwidth_bps, taking.bandwidth_bps),
    ):
        if 0 < has < takes:
            return f"{takes - has:.4g} {unit} of {what}: it has {has:.4g}, and {takes:.4g} are taken"
    return ""
