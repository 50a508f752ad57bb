"""Services of a host, shared by the runs on the host."""

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
    """Run of a host, as seen by parts of other runs."""

    @property
    def operators(self) -> int:
        """Number of operators of the run on this host or on the way here."""


class HostServices(msgspec.Struct, frozen=True):
    """Services of a host for runs: measurements, suspicions, the alarm for retries, replicas, and the table of runs."""

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
        """Number of operators on this host or on the way here, summed over the runs."""
        return plain_sum(run.operators for run in self.runs.values())
