"""The limits within which a host works, and how it watches the network. Their defaults stand here, and nowhere else."""

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
PROBE_PATIENCE_S = 10.0  # for so long a probe holds up the next


class MonitorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a host watches the network. Seconds are emulated ones, whatever the time scale.

    ``forecaster``: a name of ``network.forecasting.FORECASTERS``. It is given the fastest of the last
    ``best_of`` samples: a host that has to wait for its processor makes a link look slower, and hardly anything makes
    one look faster. Of a link's passive samples one in ``sample_interval_s`` is taken. ``probe_train``: see ``prober``.
    Where latencies are wanted, a host sounds another every ``sound_interval_s``. ``dimensions``: of coordinates, the
    same on all hosts.
    Raises UsageError for a figure out of its range or an unknown forecaster.
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
    """Limits of a host: times in seconds of the shell's (possibly dilated) clock, and room.

    ``patience``: so many times ``liveness_s`` and ``lease_s`` may pass before whoever is silent is given up; they say
    how soon that is looked into. ``stall_s``: for so long no byte of a transfer may get through to a host that answers.
    ``detect_s``: how long a host of a run that outlives it may be silent, where answers come regularly.
    ``guest_s``: how long other consumers of a node here wait for a subscriber before it is dismissed; 0: as
    long as it takes. ``late_s``: how late a message may come; see ``core.hosting.ended_runs`` for ``max_past_runs``.
    ``handoff_s``, ``barrier_s``: how long a host that an operator shall come to, or a vote, is waited for; ``probe_s``:
    how long a planner waits for links to be measured, unless partitions take longer (see ``PlanReady``); ``place_s``:
    how long it is waited for itself where operators of lost hosts are to go.
    ``max_operators`` run here at most, of all runs. A partition of its runs has at most ``max_partition_bytes``,
    wherever it is made. Hosts of no run, which probe before one, are ``max_passing`` at most; a line that nothing was
    sent on for ``idle_s`` is hung up. ``max_transfers`` of several chunks may be under way to this host. A picture that
    a source decodes or generates takes at most ``max_picture_bytes``. ``max_runs`` go on here at most, each of at most
    ``max_nodes`` (an ``Install`` has ``frames.MAX_CONTROL_BYTES`` besides). ``max_threads`` make calls of their code.
    ``capacity``: what the host says of its processor to planners that ask.
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
        """The same limits of wall-clock time on a clock that runs ``time_scale`` times as fast."""
        times = {name: value for name, value in msgspec.structs.asdict(self).items() if name.endswith("_s")}
        return msgspec.structs.replace(self, **{name: value * time_scale for name, value in times.items()})

    def limited(self, settings: Iterable[str]) -> CoreConfig:
        """The same with others of ``NAME=VALUE``; UsageError for an unknown name, or a value that is none."""
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
