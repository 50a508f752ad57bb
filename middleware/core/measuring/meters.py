"""Load of a host and figures of its nodes, counted in runs whose planner needs them. Pure.

Rules:

R1. The figures of a node are means. At first every partition has the same weight. Later a new partition has the weight
    ``GAIN``. A repeated partition counts once.
R2. The load is the share of the cores' time taken by calls of operators, smoothed over the readings of the load.
    Sources do not count, because their calls wait for disks and devices.
"""

from __future__ import annotations

import math

from thalweg.middleware.network.figures import HostFigures, NodeFigures
from thalweg.middleware.protocol.run_id import RunId

GAIN = 0.1  # weight of a new partition
LOAD_GAIN = 0.5  # weight of a new reading of the load
LOOK_S = 1.0  # a reading within this time returns the same load


class _Mean:
    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count, self.value = 0, 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) * max(1 / self.count, GAIN)  # R1: first the mean of all, then of the latest


class _Meter:
    """Counters of one node: means of the input sizes, the output size, the interval of outputs and the call time."""

    __slots__ = ("call_s", "gap_s", "inputs", "made", "made_s", "output")

    def __init__(self) -> None:
        self.made, self.made_s = -1, math.nan
        self.gap_s, self.output, self.call_s = _Mean(), _Mean(), _Mean()
        self.inputs: dict[str, tuple[int, _Mean]] = {}  # by producer: the latest index, and the bytes


class Meters:
    """Meters of one host: its load, and figures of nodes in every run whose planner needs them."""

    def __init__(self, declared: HostFigures) -> None:
        self._declared = declared
        self.runs: dict[RunId, dict[str, _Meter]] = {}
        self._busy_s = self._load = 0.0
        self._looked_s = math.nan

    def took(self, run: RunId, node: str, producer: str, index: int, size_bytes: int) -> None:
        """Count the arrival of an input partition for a local node."""
        meters = self.runs.get(run)
        if meters is None:
            return
        inputs = meters.setdefault(node, _Meter()).inputs
        latest, mean = inputs.get(producer) or (-1, _Mean())
        if index > latest:
            mean.add(size_bytes)
            inputs[producer] = index, mean

    def made(self, run: RunId, node: str, index: int, size_bytes: int, duration_s: float, now: float) -> None:
        """Count an output partition of a local node, with the duration of the call."""
        meters = self.runs.get(run)
        if meters is None:
            return
        meter = meters.setdefault(node, _Meter())
        if index <= meter.made:
            return
        if meter.made_s < now:
            meter.gap_s.add(now - meter.made_s)
        meter.made, meter.made_s = index, now
        meter.output.add(size_bytes)
        meter.call_s.add(duration_s)
        if meter.inputs:  # R2: a source waits for devices in its calls
            self._busy_s += duration_s

    def of(self, run: RunId, node: str) -> NodeFigures | None:
        """Return the figures of a node. None: the node has not made its second partition yet."""
        meter = self.runs.get(run, {}).get(node)
        if meter is None or not meter.gap_s.value:
            return None
        inputs = {producer: mean.value for producer, (_, mean) in meter.inputs.items()}
        call_s = meter.call_s.value * self._declared.speed
        return NodeFigures(1 / meter.gap_s.value, meter.output.value, inputs, call_s, meter.output.count)

    def host(self, now: float) -> HostFigures:
        """Return the figures of the host, with its load until ``now``."""
        declared = self._declared
        if not now - self._looked_s < LOOK_S:
            past_s = (now - self._looked_s) * declared.cores
            if past_s > 0:
                self._load += (min(1.0, self._busy_s / past_s) - self._load) * LOAD_GAIN
            self._looked_s, self._busy_s = now, 0.0
        load, room = self._load, (declared.memory_bytes, declared.bandwidth_bps)
        return HostFigures(declared.speed, declared.cores, load, *room)

    def drop(self, run: RunId) -> None:
        """Stop counting for an ended run."""
        self.runs.pop(run, None)

    def keep(self, run: RunId, nodes: set[str]) -> None:
        """Begin or continue to count for a run. Nodes outside ``nodes`` have left the host, and are forgotten."""
        self.runs[run] = {name: meter for name, meter in self.runs.get(run, {}).items() if name in nodes}
