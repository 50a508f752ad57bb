"""Entries of a testbed's record besides samples, as the supervisor sends them to clients.

Times are of the supervisor's clock, ``time.monotonic()``. The module does no input or output.
"""

from __future__ import annotations

import msgspec

from thalweg.emulation.kernel.names import end_name
from thalweg.emulation.links.shape import LinkShape


class Process(msgspec.Struct, array_like=True):
    """Process on a host, running or ended.

    ``cpu_s``: processor time. After the end it includes the children for which the process waited. ``stays``: the
    process outlives its starter. ``status``: exit status, ``-signal`` as in subprocess, None while the process runs.
    ``tail``: last lines of the log, if the process has one.
    """

    number: int
    pid: int
    host: str
    command: str
    begin_s: float
    end_s: float | None = None
    status: int | None = None
    cpu_s: float | None = None
    stays: bool = False
    tail: str = ""


class LinkChange(msgspec.Struct, array_like=True, gc=False):
    """Change of a link's shape. ``by``: the cause, which is shape, set, cut, restore, play, event or verify.

    Changes of one request, or of one moment of a replay, have the same ``number``. ``link``: number of the link.
    ``before``: None at the first setting.
    """

    number: int
    at_s: float
    by: str
    link: int
    before: LinkShape | None
    after: LinkShape

    @property
    def of_rate_alone(self) -> bool:
        """Return whether only the rate was changed, without a start or stop of all traffic."""
        before, after = self.before, self.after
        # the rate is the first field: a comparison by a copy with the same rate takes four times as long
        return before is not None and before[1:] == after[1:] and not self.opens_or_closes

    @property
    def opens_or_closes(self) -> bool:
        """Return whether the link starts or stops passing packets. Without a shape before, it passed them."""
        return (self.before is None or self.before.passes) is not self.after.passes


class HostChange(msgspec.Struct, array_like=True):
    """Change of the limit of a host's total sending (``up``) or receiving (``down``) rate. None: no limit."""

    at_s: float
    host: str
    via: str
    direction: str
    rate_bps: float | None

    @property
    def name(self) -> str:
        """Name of the host, or ``HOST.NETWORK`` in a network that not all hosts share."""
        return end_name((self.host, self.via) if self.via else self.host)


class Happening(msgspec.Struct, array_like=True):
    """Activity or incident of a testbed.

    ``kind``: ``play`` of a scenario or trace, ``verify``, ``end`` of a host, loss of a ``carrier``, or ``reset`` of
    connections.
    """

    kind: str
    begin_s: float
    end_s: float | None = None
    note: str = ""


class Head(msgspec.Struct):
    """Record without the samples. ``began_s``, ``now_s``: on the supervisor's clock. ``rows``: number of samples.

    ``left_out``: number of older entries that were removed, by kind. ``joined_s``: longest time for which old samples
    are joined. ``cost_s``: processor time of the readings.
    """

    began_s: float
    now_s: float
    links: list[tuple[str, ...]]
    changes: list[LinkChange]
    hosts: list[HostChange]
    processes: list[Process]
    happenings: list[Happening]
    left_out: dict[str, int]
    joined_s: float
    refusal: str
    rows: int
    cost_s: float
