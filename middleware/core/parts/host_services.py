"""What all runs on a host share."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from thalweg.middleware.core.context.outbox import Alarm
from thalweg.middleware.core.measuring.coordinate_table import CoordinateTable
from thalweg.middleware.core.measuring.latency_prober import LatencyProber
from thalweg.middleware.core.measuring.meters import Meters
from thalweg.middleware.core.measuring.monitor import Monitor
from thalweg.middleware.core.measuring.prober import Prober
from thalweg.middleware.core.measuring.silence import Suspicions
from thalweg.middleware.protocol import messages as m


class HostServices(msgspec.Struct, frozen=True):
    """What the host knows of links and of silent hosts, the alarm for what is to be repeated, and its room.

    ``occupied``: how many operators are here or on their way, of all runs. ``replicas_of``: those that it keeps of a
    run, whatever its generation.
    """

    monitor: Monitor
    prober: Prober
    latency_prober: LatencyProber
    coordinate_table: CoordinateTable
    meters: Meters
    silence: Suspicions
    retries: Alarm
    occupied: Callable[[], int]
    replicas_of: Callable[[m.Install], dict[str, dict[int, m.Checkpoint]]]
