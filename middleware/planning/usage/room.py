"""Use of a host's processor, memory and bandwidth by operators, as far as known.

An operator computes for ``rate · seconds of a call``. It holds two of its output partitions, and the next partition of
every input. The network carries the inputs and the outputs. A resource does not count if the host has not declared the
resource, or if its use depends on an unknown rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from thalweg.middleware.network.figures import Taking
from thalweg.middleware.planning.problem.problem import Problem


def combined(takings: Iterable[Taking]) -> Taking:
    """Return the sum of the resources that several operators use on one host."""
    rows = [msgspec.structs.astuple(taking) for taking in takings]
    return Taking(*map(sum, zip(*rows, strict=True)))


def takings(problem: Problem) -> dict[int, Taking]:
    """Return the use of resources by every movable operator, by the number of the node."""
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
