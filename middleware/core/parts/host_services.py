"""Services of a host that all of its runs share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.context.outbox import Alarm
from thalweg.middleware.core.measuring.coordinate_table import CoordinateTable
from thalweg.middleware.core.measuring.latency_prober import LatencyProber
from thalweg.middleware.core.measuring.meters import Meters
from thalweg.middleware.core.measuring.monitor import Monitor
from thalweg.middleware.core.measuring.prober import Prober
from thalweg.middleware.core.measuring.silence import Suspicions
from thalweg.middleware.core.parts.replica_table import ReplicaTable
from thalweg.middleware.protocol.run_id import RunId


class RunOnHost(Protocol):
    """A run of a host, as parts of other runs see it."""

    @property
    def operators(self) -> int:
        """How many of its operators are here or on their way."""


class HostServices(msgspec.Struct, frozen=True):
    """What the host knows of links and of silent hosts, the alarm for what is to be repeated, and its runs."""

    monitor: Monitor
    prober: Prober
    latency_prober: LatencyProber
    coordinate_table: CoordinateTable
    meters: Meters
    silence: Suspicions
    retries: Alarm
    replicas: ReplicaTable
    runs: Mapping[RunId, RunOnHost]

    @property
    def occupied(self) -> int:
        """How many operators are here or on their way, of all runs."""
        return plain_sum(run.operators for run in self.runs.values())
