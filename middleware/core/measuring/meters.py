"""What a host counts of its own work, in runs whose planner asks for it: the load, and figures of each node. Pure.

Rules:

R1. A node's figures are means, of all partitions at first and then of the latest: each counts for ``GAIN``. What comes
    twice counts once.
R2. The load is the share of the cores' time that calls of operators took, smoothed likewise over the times that it is
    asked for; sources wait in their calls for disks and devices, and do not count.
"""

from __future__ import annotations

import math

from thalweg.middleware.network.figures import HostFigures, NodeFigures
from thalweg.middleware.protocol.run_id import RunId

GAIN = 0.1  # of a partition
LOAD_GAIN = 0.5  # of a look
LOOK_S = 1.0  # looks that come sooner tell the same


class _Mean:
    __slots__ = ("count", "value")

    def __init__(self) -> None:
        self.count, self.value = 0, 0.0

    def add(self, value: float) -> None:
        self.count += 1
        self.value += (value - self.value) * max(1 / self.count, GAIN)  # R1: first the mean of all, then of the latest


class _Meter:
    """What is counted of one node."""

    __slots__ = ("call_s", "gap_s", "inputs", "made", "made_s", "output")

    def __init__(self) -> None:
        self.made, self.made_s = -1, math.nan
        self.gap_s, self.output, self.call_s = _Mean(), _Mean(), _Mean()
        self.inputs: dict[str, tuple[int, _Mean]] = {}  # by producer: the latest index, and the bytes


class Meters:
    """A host's: of all its runs that want it."""

    def __init__(self, declared: HostFigures) -> None:
        self._declared = declared
        self.runs: dict[RunId, dict[str, _Meter]] = {}
        self._busy_s = self._load = 0.0
        self._looked_s = math.nan

    def took(self, run: RunId, node: str, producer: str, index: int, size_bytes: int) -> None:
        """A partition has come for a node that is here."""
        meters = self.runs.get(run)
        if meters is None:
            return
        inputs = meters.setdefault(node, _Meter()).inputs
        latest, mean = inputs.get(producer) or (-1, _Mean())
        if index > latest:
            mean.add(size_bytes)
            inputs[producer] = index, mean

    def made(self, run: RunId, node: str, index: int, size_bytes: int, duration_s: float, now: float) -> None:
        """A node's code has made a partition."""
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
        """What is known of a node; None before its second partition."""
        meter = self.runs.get(run, {}).get(node)
        if meter is None or not meter.gap_s.value:
            return None
        inputs = {producer: mean.value for producer, (_, mean) in meter.inputs.items()}
        call_s = meter.call_s.value * self._declared.speed
        return NodeFigures(1 / meter.gap_s.value, meter.output.value, inputs, call_s, meter.output.count)

    def host(self, now: float) -> HostFigures:
        """This host, with its load until now."""
        declared = self._declared
        if not now - self._looked_s < LOOK_S:
            past_s = (now - self._looked_s) * declared.cores
            if past_s > 0:
                self._load += (min(1.0, self._busy_s / past_s) - self._load) * LOAD_GAIN
            self._looked_s, self._busy_s = now, 0.0
        load, room = self._load, (declared.memory_bytes, declared.bandwidth_bps)
        return HostFigures(declared.speed, declared.cores, load, *room)

    def drop(self, run: RunId) -> None:
        """Count nothing of a run any more, as it is over."""
        self.runs.pop(run, None)

    def keep(self, run: RunId, nodes: set[str]) -> None:
        """Forget what has left this host."""
        self.runs[run] = {name: meter for name, meter in self.runs.get(run, {}).items() if name in nodes}
