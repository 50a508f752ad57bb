"""What a testbed's record consists of besides samples, on both sides of its supervisor.

Times are those of the supervisor's clock, ``time.monotonic()``. No input or output.
"""

from __future__ import annotations

import msgspec

from thalweg.emulation.kernel.names import end_name
from thalweg.emulation.links.shape import LinkShape


class Process(msgspec.Struct, array_like=True):
    """A process on a host. ``cpu_s``: of one that has ended, with the children that it waited for.

    ``stays``: it does not end with who started it. ``status`` is None while it runs, and ``-signal`` as in subprocess.
    ``tail``: the last lines of its log, if it has one.
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
    """A link was changed, by ``by``: shape, set, cut, restore, play, event or verify.

    Changes of one request, or of one moment of a replay, have the same ``number``. ``link``: its number. ``before``:
    None at its first setting.
    """

    number: int
    at_s: float
    by: str
    link: int
    before: LinkShape | None
    after: LinkShape

    @property
    def of_rate_alone(self) -> bool:
        """Whether it is a step of a replay that opens or closes nothing."""
        before, after = self.before, self.after
        # the rate is the first field; a copy with the other rate takes four times as long
        return before is not None and before[1:] == after[1:] and not self.opens_or_closes

    @property
    def opens_or_closes(self) -> bool:
        """Whether packets pass since, and did not before, or the other way round."""
        return (self.before is None or self.before.passes) is not self.after.passes


class HostChange(msgspec.Struct, array_like=True):
    """The rate of all that a host sends (``up``) or receives (``down``) was changed; None: no limit."""

    at_s: float
    host: str
    via: str
    direction: str
    rate_bps: float | None

    @property
    def name(self) -> str:
        """The host, or ``HOST.NETWORK`` where not all hosts share that network."""
        return end_name((self.host, self.via) if self.via else self.host)


class Happening(msgspec.Struct, array_like=True):
    """Something went on for a time: ``play`` of a scenario or trace, ``verify``, the ``end`` of a host, its lost
    ``carrier``, or a ``reset`` of connections.
    """

    kind: str
    begin_s: float
    end_s: float | None = None
    note: str = ""


class Head(msgspec.Struct):
    """The record without its samples. ``began_s``, ``now_s``: on the supervisor's clock. ``rows``: of samples.

    ``left_out``: how many older entries are missing, by what they are. ``joined_s``: the time up to which older samples
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
