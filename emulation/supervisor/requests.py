"""What a launcher asks of a supervisor: a line of JSON, its operation named by ``op``, its fields beside that."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec

from thalweg.emulation.links.effects import Effect
from thalweg.emulation.links.shape import LinkShape, Queue, ShapeFigures
from thalweg.middleware.errors import CapabilityError, TestbedError, ThalwegError, UsageError
from thalweg.middleware.network.view import NET

MAX_HOSTS = 1023  # ports of one Linux bridge (BR_PORT_BITS)
SAMPLED_S = (0.005, 3600.0)  # between two samples: every link's counters are read each time
PROVEN_S = 3600.0  # a round of a proof, at most
PART_BYTES = 2 * 1024 * 1024  # of figures in one request: a line of JSON has a third more
MAX_PART_BYTES = 8 * 1024 * 1024
MAX_GIVEN_BYTES = 1 << 30  # of figures of all parts together
MIN_STEP_S = 0.001  # between two steps of a schedule, on average

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Descriptors = Annotated[int, msgspec.Meta(ge=0, le=3)]
Name = Annotated[str, msgspec.Meta(max_length=255)]
Hosts = Annotated[dict[Name, Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(max_length=MAX_HOSTS)]
PrefixLength = Annotated[int, msgspec.Meta(ge=1, le=30)]
Layer = Annotated[int, msgspec.Meta(ge=2, le=3)]
Pid = Annotated[int, msgspec.Meta(ge=1, le=2**22)]  # pid_max: proc_sys_kernel(5)
Words = Annotated[list[str], msgspec.Meta(min_length=1)]
Lines = Annotated[int, msgspec.Meta(ge=0, le=65_535)]  # of a terminal, or columns: ioctl_tty(2)
Figures = Annotated[bytes, msgspec.Meta(max_length=MAX_PART_BYTES)]

AnyLink = Annotated[tuple[str, ...], msgspec.Meta(min_length=2, max_length=3)]
"""A ``Link`` as it travels: its hosts, and its network unless all share that."""


class Request(
    msgspec.Struct,
    kw_only=True,
    tag_field="op",
    tag=lambda name: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(),
    forbid_unknown_fields=True,
):
    """``id`` names the answer; ``fds`` counts the descriptors that travel beside the line. The connection sets both."""

    id: Count = 0
    fds: Descriptors = 0


class Head(msgspec.Struct):
    """What is read of a line first, to say of which operation it is."""

    id: Count
    op: str
    fds: Descriptors = 0


# --- the testbed ------------------------------------------------------------------------------------


class Build(Request):
    """Make hosts, by name and IPv4 address, in a subnet. ``layer``: what rates count, 2 or 3.

    ``networks``: the hosts' addresses in every further one, by its name, in subnets as large. ``ipv6``: hosts have
    addresses of IPv6 too. ``control_band``: what is marked as urgent goes before all else on its link. ``private``:
    folders, by absolute paths without links, of which each host has its own.
    """

    hosts: Hosts
    prefix_length: PrefixLength
    layer: Layer
    networks: dict[Name, Hosts] = {}
    ipv6: bool = True
    control_band: bool = False
    private: Sequence[str] = ()


class Plug(NamedTuple):
    """An interface of a host that runs already: its address, hardware address, network, and IPv6 address if any."""

    ip: str
    mac: str
    via: str = NET
    ip6: str = ""


class Container(NamedTuple):
    """A host that runs already: its name, its first process's number here, and its interfaces, the common one first."""

    name: str
    pid: Pid
    plugs: list[Plug]


class Attach(Request):
    """Take containers for hosts. ``prefix_length``: of every network's subnet; the rest as for ``Build``."""

    hosts: Annotated[list[Container], msgspec.Meta(max_length=MAX_HOSTS)]
    prefix_length: PrefixLength
    layer: Layer
    control_band: bool = False


class OwnContainers(Request):
    """Remove this testbed's containers at the end."""


class Probe(Request):
    """Try what this namespace's kernel can do."""


class Detach(Request):
    """Stay when the launcher's connection closes. ``logs``: the folder for what launched processes write."""

    logs: str


class Status(Request):
    """Return processes, shapes, rates of hosts and the state of a replay.

    ``of``: the links whose shapes are wanted; None for all. ``strangers``: count frames from unknown addresses as well.
    """

    of: Sequence[AnyLink] | None = None
    strangers: bool = True


class Down(Request):
    """End."""


# --- links ------------------------------------------------------------------------------------------


class ShapeLinks(Request, tag="shape"):
    """Set links up, or change them where they stand."""

    links: list[tuple[AnyLink, LinkShape]]


class AlterLinks(Request, tag="alter"):
    """Change some figures of links' own shapes, and leave the others.

    A link that is not shaped yet needs a rate, unless it is cut.
    """

    links: Sequence[AnyLink]
    figures: ShapeFigures


class LimitHosts(Request):
    """Set the total sending and receiving rates of hosts in a network, in bit/s. None removes a limit."""

    up_bps: dict[str, float | None] = {}
    down_bps: dict[str, float | None] = {}
    via: str = NET


class SetCarrier(Request):
    """Set the ports of hosts' cables to a network up or down."""

    hosts: Sequence[str]
    up: bool
    via: str = NET


class Reset(Request):
    """Reset the TCP connections from the sources to the targets of links."""

    links: Sequence[AnyLink]


class HostLine(NamedTuple):
    """The access line of a host: its preset, and what waits at most before the host's sending rate."""

    preset: Name
    queue: Queue


class SetLines(Request):
    """Note the access lines of hosts in a network. None: the host has none. Rates are set by other requests."""

    lines: dict[Name, HostLine | None]
    via: str = NET


class Steps(NamedTuple):
    """A link's schedule: from when on it has which rate, in float64, and after how long that starts over; wall time."""

    link: AnyLink
    times_s: Figures
    rates_bps: Figures
    period_s: float


class Replay(Request):
    """Load schedules. ``more``: others follow, which may go on the last one; nothing is loaded until all are there."""

    schedules: list[Steps]
    more: bool = False


class ReplayChange(Request):
    """Let effects befall scheduled links. ``rows``: (seconds, number of the schedule, of the effect), in float64.

    ``more``: other effects and rows follow, whose numbers go on; nothing is changed until all are there.
    """

    effects: list[Effect]
    rows: Figures
    more: bool = False


class ReplayCarriers(Request):
    """Let hosts lose their carrier and get it back: seconds after a start, the host, its network, whether it is up."""

    changes: list[tuple[float, str, str, bool]]


class ReplayStart(Request):
    """Begin, or begin anew."""


class ReplayStop(Request):
    """Leave the links as they are."""


class ReplayStatistics(Request):
    """Say how the replay has kept time."""


class SampleStart(Request):
    """Sample the links for this connection."""

    interval_s: Annotated[float, msgspec.Meta(ge=SAMPLED_S[0], le=SAMPLED_S[1])]


class SampleStop(Request):
    """Take a last sample."""


class Samples(Request):
    """Give the samples since the last time."""


class Record(Request):
    """Return a part of the record of the testbed, counted from 0, and the number of parts.

    All parts are of the moment at which this connection asked for part 0.
    """

    part: Count


class Prove(Request):
    """Fill links, ``seconds`` each, and measure what they deliver; None: as long as it takes. ``flows``: by TCP too.

    ``every_kind``: send frames of every kind, also while the links are cut for a moment.
    """

    links: list[AnyLink]
    seconds: Annotated[float, msgspec.Meta(gt=0, le=PROVEN_S)] | None
    flows: bool = False
    every_kind: bool = False


# --- processes --------------------------------------------------------------------------------------


class Spawn(Request):
    """Start a process on a host; the three descriptors are its standard streams.

    ``terminal``: lines and columns of the terminal that they are, which is to control the process; None: they are none.
    ``own_folders``: it has the folders of its host's own; otherwise those of the machine in their place.
    """

    host: str
    argv: Words
    env: dict[str, str]
    cwd: str
    terminal: tuple[Lines, Lines] | None = None
    own_folders: bool = True


class Launch(Request):
    """Start a process on a host that stays when the connection closes; what it writes goes into a log."""

    host: str
    argv: Words
    env: dict[str, str]
    cwd: str


class Launched(Request):
    """Tell of the processes that were launched."""


class LaunchedProcess(msgspec.Struct):
    """One of them: ``status`` is None while it runs, ``log`` a file on its host."""

    pid: int
    host: str
    argv: list[str]
    log: str
    status: int | None = None


class Resize(Request):
    """Say that a process's terminal has other lines and columns."""

    pid: Pid
    size: tuple[Lines, Lines]


class Signal(Request):
    """Send a signal to a process that this supervisor has started."""

    pid: Pid
    signal: Annotated[int, msgspec.Meta(ge=1, le=64)]


ERRORS: dict[str, type[ThalwegError]] = {"capability": CapabilityError, "usage": UsageError, "testbed": TestbedError}
"""What a refusal is at the supervisor and again at the launcher, by its name on the way; the first that fits."""
KINDS: dict[str, type[Request]] = {str(kind.__struct_config__.tag): kind for kind in Request.__subclasses__()}
