"""Requests of a launcher to a supervisor: lines of JSON, in which ``op`` names the operation beside its fields."""

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
SAMPLED_S = (0.005, 3600.0)  # limits of the interval of samples. A sample reads the counters of every link
PROVEN_S = 3600.0  # the longest round of a proof
PART_BYTES = 2 * 1024 * 1024  # figures in one request. In JSON they are a third longer
MAX_PART_BYTES = 8 * 1024 * 1024
MAX_GIVEN_BYTES = 1 << 30  # limit of the figures of a whole divided request
MIN_STEP_S = 0.001  # least mean interval of the steps of a schedule

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Descriptors = Annotated[int, msgspec.Meta(ge=0, le=3)]
Name = Annotated[str, msgspec.Meta(max_length=255)]
Hosts = Annotated[dict[Name, Annotated[str, msgspec.Meta(max_length=64)]], msgspec.Meta(max_length=MAX_HOSTS)]
PrefixLength = Annotated[int, msgspec.Meta(ge=1, le=30)]
Layer = Annotated[int, msgspec.Meta(ge=2, le=3)]
Pid = Annotated[int, msgspec.Meta(ge=1, le=2**22)]  # pid_max: proc_sys_kernel(5)
Words = Annotated[list[str], msgspec.Meta(min_length=1)]
Lines = Annotated[int, msgspec.Meta(ge=0, le=65_535)]  # lines or columns of a terminal: ioctl_tty(2)
Figures = Annotated[bytes, msgspec.Meta(max_length=MAX_PART_BYTES)]

AnyLink = Annotated[tuple[str, ...], msgspec.Meta(min_length=2, max_length=3)]
"""A ``Link`` in a message: its hosts, and its network unless that is the common network."""


class Request(
    msgspec.Struct,
    kw_only=True,
    tag_field="op",
    tag=lambda name: re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower(),
    forbid_unknown_fields=True,
):
    """Base of all requests. ``SupervisorClient.call`` sets both fields.

    ``id``: number of the request, which the answer repeats. ``fds``: number of descriptors that are sent with the line.
    """

    id: Count = 0
    fds: Descriptors = 0


class Head(msgspec.Struct):
    """Fields of a request that are read first, to find the operation."""

    id: Count
    op: str
    fds: Descriptors = 0


# --- the testbed ------------------------------------------------------------------------------------


class Build(Request):
    """Request to create hosts, by name and IPv4 address, in a subnet. ``layer``: rates count bytes of layer 2 or 3.

    ``networks``: by further network, the addresses of its hosts, in a subnet of the same size. ``ipv6``: hosts also
    have IPv6 addresses. ``control_band``: urgent packets go first on their link. ``private``: folders of which every
    host has its own copy, by absolute paths without symbolic links.
    """

    hosts: Hosts
    prefix_length: PrefixLength
    layer: Layer
    networks: dict[Name, Hosts] = {}
    ipv6: bool = True
    control_band: bool = False
    private: Sequence[str] = ()


class Plug(NamedTuple):
    """Interface of a running host: IPv4 address, hardware address, network, and IPv6 address if there is one."""

    ip: str
    mac: str
    via: str = NET
    ip6: str = ""


class Container(NamedTuple):
    """Running host: name, number of its first process here, and interfaces. The common network comes first."""

    name: str
    pid: Pid
    plugs: list[Plug]


class Attach(Request):
    """Request to use running containers as hosts.

    ``prefix_length``: of the subnet of every network. The remaining fields are those of ``Build``.
    """

    hosts: Annotated[list[Container], msgspec.Meta(max_length=MAX_HOSTS)]
    prefix_length: PrefixLength
    layer: Layer
    control_band: bool = False


class OwnContainers(Request):
    """Request to remove the containers of this testbed at the end."""


class Probe(Request):
    """Request for the capabilities of the kernel in this namespace."""


class Detach(Request):
    """Request to stay when the launcher's connection closes. ``logs``: folder for the output of launched processes."""

    logs: str


class Status(Request):
    """Request for processes, shapes of links, rates of hosts and the state of a replay.

    ``of``: the links whose shapes are returned, None for all. ``strangers``: also count frames from unknown addresses.
    """

    of: Sequence[AnyLink] | None = None
    strangers: bool = True


class Down(Request):
    """Request to end the testbed."""


# --- links ------------------------------------------------------------------------------------------


class ShapeLinks(Request, tag="shape"):
    """Request to set up links, or to change links in place."""

    links: list[tuple[AnyLink, LinkShape]]


class AlterLinks(Request, tag="alter"):
    """Request to change some figures of links' own shapes. The remaining figures stay.

    A link that has no shape yet needs ``rate_bps`` or ``cut``.
    """

    links: Sequence[AnyLink]
    figures: ShapeFigures


class LimitHosts(Request):
    """Request to set the total sending and receiving rates of hosts in a network, in bit/s. None removes a limit."""

    up_bps: dict[str, float | None] = {}
    down_bps: dict[str, float | None] = {}
    via: str = NET


class SetCarrier(Request):
    """Request to set the ports of hosts' cables to a network up or down."""

    hosts: Sequence[str]
    up: bool
    via: str = NET


class Reset(Request):
    """Request to reset the TCP connections from the sources to the targets of links."""

    links: Sequence[AnyLink]


class HostLine(NamedTuple):
    """Access line of a host: the preset, and the longest queue before the host's sending rate."""

    preset: Name
    queue: Queue


class SetLines(Request):
    """Request to record the access lines of hosts in a network, None for no line. No rate changes."""

    lines: dict[Name, HostLine | None]
    via: str = NET


class Steps(NamedTuple):
    """Schedule of one link's rates, in float64. ``rates_bps[k]`` holds from ``times_s[k]`` on, in wall time.

    The schedule starts again after ``period_s``.
    """

    link: AnyLink
    times_s: Figures
    rates_bps: Figures
    period_s: float


class Replay(Request):
    """Request to load schedules.

    ``more``: further schedules follow in the next request, which may continue the last schedule. Nothing is loaded
    until the last request has arrived.
    """

    schedules: list[Steps]
    more: bool = False


class ReplayChange(Request):
    """Request to apply effects to links that have a schedule.

    ``rows``: (seconds after a start, number of the schedule, number of the effect), in float64. ``more``: further
    effects and rows follow in the next request, and the numbers of effects continue. Nothing is changed until the last
    request.
    """

    effects: list[Effect]
    rows: Figures
    more: bool = False


class ReplayCarriers(Request):
    """Request to remove and restore the carriers of hosts during a replay.

    ``changes``: seconds after a start, host, network, and whether the carrier is up.
    """

    changes: list[tuple[float, str, str, bool]]


class ReplayStart(Request):
    """Request to start the replay, or to restart it."""


class ReplayStop(Request):
    """Request to stop the replay. Links keep their shapes."""


class ReplayStatistics(Request):
    """Request for the number of applied steps of the replay, and for their lags."""


class SampleStart(Request):
    """Request to sample the links for this connection."""

    interval_s: Annotated[float, msgspec.Meta(ge=SAMPLED_S[0], le=SAMPLED_S[1])]


class SampleStop(Request):
    """Request to end the sampling after a last sample."""


class Samples(Request):
    """Request for the samples since the last request."""


class Record(Request):
    """Request for one part of the record of the testbed, counted from 0, and the number of parts.

    All parts are of the moment at which this connection asked for part 0.
    """

    part: Count


class Prove(Request):
    """Request to fill links, each for ``seconds`` (None: as long as needed), and to measure what the links deliver.

    ``flows``: also measure by TCP. ``every_kind``: send frames of every kind, also while the links are cut for a
    moment.
    """

    links: list[AnyLink]
    seconds: Annotated[float, msgspec.Meta(gt=0, le=PROVEN_S)] | None
    flows: bool = False
    every_kind: bool = False


# --- processes --------------------------------------------------------------------------------------


class Spawn(Request):
    """Request to start a process on a host. The three descriptors are the standard streams of the process.

    ``terminal``: lines and columns, if the streams are a terminal that is to control the process. ``own_folders``: the
    process has its host's own folders. Otherwise it has the machine's folders at the same paths.
    """

    host: str
    argv: Words
    env: dict[str, str]
    cwd: str
    terminal: tuple[Lines, Lines] | None = None
    own_folders: bool = True


class Launch(Request):
    """Request to start a process on a host that outlives the connection. Its output goes to a log."""

    host: str
    argv: Words
    env: dict[str, str]
    cwd: str


class Launched(Request):
    """Request for the list of launched processes."""


class LaunchedProcess(msgspec.Struct):
    """Launched process. ``status`` is None while the process runs. ``log`` is a file on its host."""

    pid: int
    host: str
    argv: list[str]
    log: str
    status: int | None = None


class Resize(Request):
    """Request to change the lines and columns of a process's terminal."""

    pid: Pid
    size: tuple[Lines, Lines]


class Signal(Request):
    """Request to send a signal to a process that this supervisor has started."""

    pid: Pid
    signal: Annotated[int, msgspec.Meta(ge=1, le=64)]


ERRORS: dict[str, type[ThalwegError]] = {"capability": CapabilityError, "usage": UsageError, "testbed": TestbedError}
"""Classes of errors by their name in an answer. The supervisor uses the first class that fits."""
KINDS: dict[str, type[Request]] = {str(kind.__struct_config__.tag): kind for kind in Request.__subclasses__()}
