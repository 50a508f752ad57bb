"""What operators take of a host's processor, memory and bandwidth, as far as that is known.

An operator computes ``rate · seconds of a call``; it holds two partitions of its own and the next of each input; over
the network go its inputs and its outputs. A resource of which a host says nothing, or which depends on a rate that
nobody knows, does not count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from thalweg.middleware.network.figures import Taking
from thalweg.middleware.planning.problem.problem import Problem


def combined(takings: Iterable[Taking]) -> Taking:
    """What several operators take on one host."""
    rows = [msgspec.structs.astuple(taking) for taking in takings]
    return Taking(*map(sum, zip(*rows, strict=True)))


def takings(problem: Problem) -> dict[int, Taking]:
    """What each operator that may be placed takes, by its number."""
    task, by_node = problem.task, {}
    dataflow, hints = problem.dataflow, task.hints
    for node, name in enumerate(problem.names):
        if problem.movable[node]:
            measured = hints.input_bytes.get(name, {})
            inputs = [
                measured.get(producer, hints.output_bytes[producer]) for producer in dataflow.by_name[name].inputs
            ]
            output = hints.output_bytes[name]
            paces = [dataflow.by_name[upstream].rate or math.inf for upstream in dataflow.below(name)]
            rate_hz = hints.rates_hz.get(name, min(paces, default=math.inf))
            rate_hz = rate_hz if math.isfinite(rate_hz) else 0.0
            call_s, consumers = hints.compute_s.get(name, 0.0), len(dataflow.consumers[name])
            by_node[node] = Taking.of(rate_hz, call_s, inputs, output, consumers)
    return by_node
