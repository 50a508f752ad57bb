"""Limits of a host, and options of its measurements of the network. All defaults are in this module, and only here."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.loading import MAX_PICTURE_BYTES
from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.network.forecasting import make_forecaster
from thalweg.middleware.network.place import DIMENSIONS
from thalweg.middleware.protocol.messages import DEFAULT_PARTITION_BYTES, MAX_AXES, MAX_PARTITION_BYTES

S_THRES = 16_384  # bytes; Ranganathan et al., section 4
T_THRES = 40.0  # seconds; section 4: a little less than half the time between changes by 10 %
NEWS_BYTES = 1024  # section 4
PROBE_PATIENCE_S = 10.0  # longest time that a probe delays the next probe


class MonitorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a host's measurements of the network. Seconds are emulated seconds, whatever the time scale.

    - ``max_age_s``: age up to which an estimate of a link counts.
    - ``news_bytes``: largest size of the estimates that are piggybacked on one message.
    - ``change``: relative change of an estimate after which a host is notified again.
    - ``forecaster``: name in ``network.forecasting.FORECASTERS``.
    - ``best_of``: the forecaster gets the fastest of the last ``best_of`` samples. A busy processor makes a link seem
      slower, and hardly anything makes a link seem faster.
    - ``sample_interval_s``: at most one passive sample of a link is used in this time.
    - ``probe_train``: a probe is a train of messages. If False, a probe is a single message of 16 KB (see ``prober``).
    - ``sound_interval_s``: time between two latency measurements by a host, if latencies are needed.
    - ``max_links``: number of links that a host remembers.
    - ``dimensions``: dimensions of network coordinates, the same on all hosts.

    Raises UsageError for a value out of its range or an unknown forecaster.
    """

    max_age_s: float = T_THRES
    news_bytes: int = NEWS_BYTES
    change: float = 0.1
    forecaster: str = "best"
    best_of: int = 2
    sample_interval_s: float = 0.1
    probe_train: bool = True
    sound_interval_s: float = T_THRES / 8
    max_links: int = 16_384
    dimensions: int = DIMENSIONS

    def __post_init__(self) -> None:
        make_forecaster(self.forecaster)
        for name in ("max_age_s", "change", "max_links", "best_of", "sound_interval_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name} of the monitor is {getattr(self, name)}; give a number above 0")
        if not 1 <= self.dimensions <= MAX_AXES:
            raise UsageError(f"dimensions of the monitor is {self.dimensions}; give 1 to {MAX_AXES}")
        for name in ("news_bytes", "sample_interval_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} of the monitor is {getattr(self, name)}; give 0 or more")


class CoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a host. Times are in seconds of the shell's clock, which a time scale may dilate.

    Waits:

    - ``patience``: factor of ``liveness_s``, ``detect_s``, ``stall_s`` and ``lease_s`` before a silent host or client
      is
      given up. The times without the factor say how soon the host checks.
    - ``stall_s``: time in which no byte of a transfer gets through to a host that answers.
    - ``detect_s``: silence of a host of a run with failover, if answers come regularly.
    - ``guest_s``: time that other consumers of a node wait for a subscriber before it is dismissed. 0: no limit.
    - ``late_s``: how late a message of a run that is over may arrive.
    - ``handoff_s``, ``barrier_s``: wait for the host that an operator is to move to, and for the votes on a proposal.
    - ``probe_s``: wait of a planner for measurements of links (see ``PlanReady``). If partitions take longer, it is
      longer.
    - ``place_s``: wait for a planner that places the operators of lost hosts.
    - ``idle_s``: time without a message to a host before its connections are closed.

    Room:

    - ``max_operators``, ``max_runs``, ``max_nodes``: operators and runs on the host, and nodes of one run. An
      ``Install``
      has at most ``frames.MAX_CONTROL_BYTES`` besides.
    - ``max_past_runs``: see ``core.hosting.ended_runs``.
    - ``max_threads``: threads that call the code of nodes.
    - ``max_partition_bytes``: a partition of the host's runs, on whichever host it is made.
    - ``max_passing``: known hosts without a common run, such as hosts that probe before a run.
    - ``max_transfers``: transfers of several chunks that are arriving.
    - ``max_picture_bytes``: memory of a picture that a source decodes or generates.

    ``capacity``: figures of the host's processor, for planners that ask. Raises UsageError if ``max_state_bytes`` or
    ``max_partition_bytes`` is above ``MAX_PARTITION_BYTES``.
    """

    retry_s: float = 0.5
    retry_max_s: float = 8.0
    ping_s: float = 2.0
    liveness_s: float = 15.0
    detect_s: float = 3.0
    stall_s: float = 12.0
    lease_s: float = 60.0
    guest_s: float = 5.0
    patience: float = 1.0
    late_s: float = 60.0
    handoff_s: float = 10.0
    barrier_s: float = 10.0
    probe_s: float = 10.0
    place_s: float = 1.0
    max_operators: int = 1000
    max_runs: int = 1000
    max_nodes: int = 20_000
    max_past_runs: int = 32_768
    max_threads: int = 64
    max_state_bytes: int = 64 * 1024 * 1024
    max_partition_bytes: int = DEFAULT_PARTITION_BYTES
    max_sockets: int = 2048
    max_passing: int = 1024
    max_connections: int = 4096
    max_unread_bytes: int = 48 * 1024 * 1024
    max_transfers: int = 1024
    max_transfer_bytes: int = 1024 * 1024 * 1024
    idle_s: float = 300.0
    max_picture_bytes: int = MAX_PICTURE_BYTES
    monitor: MonitorConfig = MonitorConfig()
    capacity: HostFigures = HostFigures()

    def __post_init__(self) -> None:
        for name in ("max_state_bytes", "max_partition_bytes"):
            if getattr(self, name) > MAX_PARTITION_BYTES:
                raise UsageError(
                    f"the limit {name}={getattr(self, name)} is over {MAX_PARTITION_BYTES}, the most there is"
                )

    def dilated(self, time_scale: float) -> CoreConfig:
        """Return the same limits of wall-clock time for a clock that runs ``time_scale`` times as fast."""
        times = {name: value for name, value in msgspec.structs.asdict(self).items() if name.endswith("_s")}
        return msgspec.structs.replace(self, **{name: value * time_scale for name, value in times.items()})

    def limited(self, settings: Iterable[str]) -> CoreConfig:
        """Return the limits with the changes of ``settings``, each written as ``NAME=VALUE``.

        Raises UsageError for an unknown name or an invalid value.
        """
        known = {
            name: value for name, value in msgspec.structs.asdict(self).items() if not isinstance(value, msgspec.Struct)
        }
        changed: dict[str, float] = {}
        for setting in settings:
            name, _, text = setting.partition("=")
            if name not in known:
                raise UsageError(f"unknown limit {name!r}; {nearest(name, sorted(known))}")
            try:
                changed[name] = value = type(known[name])(text)
            except ValueError:
                value = math.nan
            if not 0 <= value < math.inf:
                raise UsageError(f"the limit {setting!r} is not {name}=NUMBER; give a number that is not negative")
        return msgspec.structs.replace(self, **changed)
