"""Configuration of ``thalweg run``, with its defaults and checks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard

import msgspec

from thalweg.emulation.links.units import bytes_per_s, parse_rate, seconds, share, size_bytes
from thalweg.emulation.uml.files import NEEDED, inside_uml
from thalweg.experiments.command import FAULTS, LIMITS, NETWORK, PLACEMENT, SIMULATION, WORKLOAD, Option, flag
from thalweg.experiments.names import (
    TESTBEDS,
    forecaster_names,
    operator_names,
    placement_names,
    rule_names,
    run_cost_names,
    testbed_names,
    tree_names,
)
from thalweg.middleware.dataflow import MOST_AHEAD, Missing
from thalweg.middleware.errors import UsageError, one_line
from thalweg.middleware.network.forecasting import make_forecaster
from thalweg.middleware.planning.planners.thalweg import PERIOD_S
from thalweg.middleware.planning.problem.routes import HOPS
from thalweg.middleware.platform import check_linux
from thalweg.middleware.protocol.adaptation import PAPER_PERIOD_S
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.messages import MAX_HOPS, Failover

CLIENT = "client"
MAX_SERVERS = 250
DEFAULT_DATA_SET = "wanify_aws"  # of a collection: wide-area paths between eight cloud regions, all measured at once

PLANNED = "planned"  # the workload of a plan file
WORKLOADS: Mapping[str, str] = {
    "composition": "images, combined in a tree",
    "plates": "records of cameras, filtered, joined and counted",
    PLANNED: "the nodes of a plan file",
}
MIXED = "mixed"  # all operators with state, in turn
PLATES_RATE = 0.2  # partitions a second

OF_WORKLOADS: Mapping[str, tuple[str, ...]] = {
    "composition": (
        *("tree", "rule", "operator", "pixel_s", "image_bytes", "image_deviation", "dtype", "bands", "folder"),
        "skip_corrupt",
    ),
    "plates": ("rate",),
}
"""Options that go with one workload alone."""

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "plates": {"servers": 4, "images": 240, "time_scale": 30.0, "link_mean_bps": 0.2e6},
}
"""What ``thalweg run`` takes for a workload where nothing is said: twenty minutes of plates, in 40 seconds."""

# --- the scenario ``collapse`` (see ``networks.collapse``), emulated seconds

COLLAPSE_AT_S = 300.0  # in the middle of the first of the paper's planning periods (10 minutes, section 4)
COLLAPSE_FACTOR = 0.1
COLLAPSE_FLOOR = 0.05
"""At a mean of 0.2 Mbit/s, 10 kbit/s: an image takes two minutes and a probe 13 s. Much lower, and planners would spend
their period on waiting for probes, which is another experiment."""
COLLAPSE_S = 7200.0
"""Twelve such periods. It ends, because on links that are slow anyway a tree that stays would take a day for a hundred
images; those that a healthy tree delivers in twenty minutes are through before."""


def is_scenario_file(scenario: str | None) -> TypeGuard[str]:
    """Return whether ``--scenario`` names a file, and not a built-in scenario."""
    return scenario is not None and (scenario.endswith(".toml") or "/" in scenario)


def host_names(servers: int) -> list[str]:
    """Return the names of the image servers, ``h1`` and on, without the client."""
    return [f"h{i + 1}" for i in range(servers)]


def file_name(label: str) -> str:
    """Return a placement's name as a name of a file."""
    return label.replace("/", "_").replace(":", "_")


def pool_folder(folder: Path) -> str:
    """Return the folder of traces for ``folder``, which may be a collection of data sets.

    For a collection, it is the default data set, or without that the folder ``bandwidth``.
    """
    sets = folder / "bandwidth"
    if not sets.is_dir():
        return str(folder)
    preferred = sets / DEFAULT_DATA_SET
    return str(preferred if preferred.is_dir() else sets)


def workload_names() -> Mapping[str, str]:
    """Return the workloads, with the work of the hosts in each."""
    return WORKLOADS


def combining_names() -> dict[str, str]:
    """Return the values of ``--operator``, with a note on their state."""
    return {**operator_names(), MIXED: "those with state, in turn"}


Image = Annotated[
    str | None, Option("Docker: image of the hosts.", shown="that of testbed build", panel=NETWORK, common=False)
]
Kernel = Annotated[
    Literal["host", "uml"],
    Option(
        "Netns: this machine's kernel, or a User-Mode Linux kernel, which emulates delays and needs no root.",
        panel=NETWORK,
    ),
]
Latency = Annotated[
    str | None,
    Option(
        "Round trips between hosts, twice the delays of links: a CSV file (square, or src,dst,rtt_ms) or the name of a"
        " data set. Its names are those of hosts, or of sites that are drawn for hosts.",
        shown="no delays",
        metavar="FILE|NAME",
        panel=NETWORK,
        common=False,
    ),
]
NoDelay = Annotated[
    bool, Option("Leave out delays, jitter, loss and the like, and keep the rates.", panel=NETWORK, common=False)
]
Allow = Annotated[
    tuple[str, ...],
    Option(
        "Package of your own whose operators and rules may be named.", metavar="PACKAGE", panel=LIMITS, common=False
    ),
]


def runs_elsewhere(kernel: str, testbed: str) -> bool:
    """Return whether the command must run again inside a User-Mode Linux kernel (``uml.kernel.run_thalweg_inside``).

    Raise UsageError for a kernel that does not fit ``testbed``, and CapabilityError on a system other than Linux.
    """
    if kernel == "uml" and testbed != "netns":
        raise UsageError(f"--kernel uml goes with netns, and this testbed is {testbed}; leave one of them out")
    if kernel == "uml":
        check_linux(NEEDED)
    return kernel == "uml" and not inside_uml()


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configuration of one workload on one testbed under one or more placements.

    ``images``: number of images, or of another workload's partitions. Rates are in bit/s and times in seconds of the
    emulated network. Sizes of images are those of the paper (Ranganathan et al., section 4: Normal, mean 128 KB, 25 %).
    Options of moving placements are None unless given. Their defaults are in ``middleware.protocol.adaptation``.
    ``no_delay`` keeps only the rates and cuts of a scenario file.
    """

    workload: Annotated[
        Literal["composition", "plates", "planned"],
        Option("What the hosts compute.", names=workload_names, panel=WORKLOAD),
    ] = "composition"
    plan: Annotated[
        str | None,
        Option(
            "Plan file, such as `thalweg provision` writes. It sets workload, hosts and placement, or only the hosts of"
            " operators under --placement fixed.",
            typed=Path,
            parse=str,
            metavar="FILE",
            shown="none",
            panel=WORKLOAD,
        ),
    ] = None
    testbed: Annotated[str, Option("Where the hosts run.", names=testbed_names, panel=NETWORK)] = "netns"
    image: Image = None
    kernel: Kernel = "host"
    interface: Annotated[
        Literal["single", "independent", "shared"] | None,
        Option(
            "Sharing of a host's interface by its links. independent: no sharing, as tc shapes links. shared: all"
            " traffic of a host shares its interface_rate. single: a host sends or receives one message at a time.",
            shown="independent",
            panel=SIMULATION,
            common=False,
        ),
    ] = None
    bytes: Annotated[
        bool,
        Option(
            "Compose real images, not sizes only, in virtual time. Operators with state need this.",
            panel=SIMULATION,
        ),
    ] = False
    validate: Annotated[
        bool, Option("Check the invariants of every host after each event.", panel=SIMULATION, common=False)
    ] = False
    servers: Annotated[
        int,
        Option(
            "Number of servers of images, or of cameras, beside the client.",
            shown="8; plates: 4; scenario file: its hosts",
            least=1,
            panel=WORKLOAD,
        ),
    ] = 8
    placements: Annotated[
        tuple[str, ...],
        Option(
            "Placement algorithm. Give several to compare them.",
            flag="--placement",
            names=placement_names,
            own="package.module:Planner",
            panel=PLACEMENT,
        ),
    ] = ("download-all", "one-shot", "thalweg")
    images: Annotated[
        int,
        Option(
            "Number of images (plates: partitions of every sink) to deliver under each placement.",
            also=("--partitions",),
            shown="60; plates: 240",
            least=1,
            panel=WORKLOAD,
        ),
    ] = 60
    rate: Annotated[
        float | None,
        Option(
            "Plates: partitions per emulated second of each camera.",
            shown=f"{PLATES_RATE:g}",
            panel=WORKLOAD,
            common=False,
        ),
    ] = None
    tree: Annotated[str, Option("Shape of the tree that combines the images.", names=tree_names, panel=WORKLOAD)] = (
        "binary"
    )
    rule: Annotated[
        str,
        Option(
            "Rule that selects each pixel of a composed image.",
            names=rule_names,
            own="package.module:function",
            panel=WORKLOAD,
            common=False,
        ),
    ] = "max"
    seed: Annotated[
        int, Option("Seed of images, of generated traces, and of the choice of traces for links.", panel=WORKLOAD)
    ] = 1
    traces: Annotated[
        str | None,
        Option(
            "Folder of bandwidth traces, or of a collection with bandwidth/NAME. Without it, traces are generated.",
            metavar="DIR",
            typed=Path,
            parse=pool_folder,
            envvar="THALWEG_TRACES",
            panel=NETWORK,
        ),
    ] = None
    link_mean_bps: Annotated[
        float | None,
        Option(
            "Scale all traces by one constant to this mean rate: 0.2mbit.",
            flag="--link-mean",
            shown="unscaled; plates: 0.2mbit",
            unit=parse_rate,
            panel=NETWORK,
        ),
    ] = None
    time_scale: Annotated[
        float,
        Option(
            "Emulated seconds per second. Rates are multiplied by it, periods are divided.",
            shown="1; plates: 30; uml: what the kernel carries",
            panel=NETWORK,
        ),
    ] = 1.0
    view: Annotated[
        Literal["probe", "truth"],
        Option(
            "Rates of links that planners know before a run, and on testbed sim during it: results of probes, or the"
            " true rates of the emulator.",
            panel=PLACEMENT,
            common=False,
        ),
    ] = "probe"
    cost: Annotated[
        str,
        Option(
            "Cost model, which planners minimise.",
            names=run_cost_names,
            own="package.module:CostModel",
            panel=PLACEMENT,
        ),
    ] = "expected-period"
    period_s: Annotated[
        float | None,
        Option(
            "Emulated time between two decisions, for placements under which operators move.",
            flag="--period",
            unit=seconds,
            shown=f"{PAPER_PERIOD_S:g}; thalweg and cost-space: {PERIOD_S:g}",
            panel=PLACEMENT,
        ),
    ] = None
    k: Annotated[
        int | None,
        Option(
            "Local: number of random hosts that it considers besides the neighbours.",
            shown="0",
            panel=PLACEMENT,
            common=False,
        ),
    ] = None
    gate: Annotated[
        bool | None,
        Option("Local: move only operators on the critical path.", shown="--gate", panel=PLACEMENT, common=False),
    ] = None
    measured: Annotated[
        bool,
        Option(
            "Plan again from the sizes, rates and computing times that are measured while data flows, not from those"
            " that operators declare. For global, thalweg, and planners of yours that are asked again.",
            panel=PLACEMENT,
            common=False,
        ),
    ] = False
    hysteresis: Annotated[
        float | None,
        Option(
            "Global and local: move when the gain of a period exceeds this many times the cost of the move.",
            shown="0",
            panel=PLACEMENT,
            common=False,
        ),
    ] = None
    saving: Annotated[
        float | None,
        Option(
            "Cost-space and cost-space-local: least share of the network usage that a move saves.",
            unit=share,
            shown="0.05; cost-space-local: 0.2",
            panel=PLACEMENT,
            common=False,
        ),
    ] = None
    displacement_s: Annotated[
        float | None,
        Option(
            "Cost-space-local: distance that an operator's ideal place moves before a new host is sought.",
            flag="--displacement",
            unit=seconds,
            shown="20ms",
            panel=PLACEMENT,
            common=False,
        ),
    ] = None
    load_s: Annotated[
        float | None,
        Option(
            "Cost-space and cost-space-local: distance from all other hosts that a load of 1 adds to a host.",
            flag="--load-distance",
            unit=seconds,
            shown="0",
            panel=PLACEMENT,
            common=False,
        ),
    ] = None
    stripes: Annotated[
        str | None,
        Option(
            "Thalweg: number of trees that share the stream. Each partition goes over the tree that is ready first."
            " auto: as many trees as repay. Operators with state run once, at the client.",
            metavar="N|auto",
            shown="1",
            panel=PLACEMENT,
            common=False,
        ),
    ] = None
    ahead: Annotated[
        str,
        Option(
            "Partitions under way over each edge of the tree. Links with long delays or varying rates need more than"
            " one, and hosts then need as much more memory. auto: as many as the links at the start need, and at least"
            " four for a single tree.",
            metavar="N|auto",
            panel=PLACEMENT,
            common=False,
        ),
    ] = "1"
    moves: Annotated[
        int | None,
        Option(
            "Random-moves and random-reshapes: number of moves after which they stop.",
            shown="500; random-reshapes: 0",
            panel=PLACEMENT,
            common=False,
        ),
    ] = None
    reshapes: Annotated[
        int | None,
        Option(
            "Random-reshapes: number of changes of the tree after which it stops.",
            shown="500",
            panel=PLACEMENT,
            common=False,
        ),
    ] = None
    forecaster: Annotated[
        str | None,
        Option(
            "Method that estimates a link's next rate from measurements.",
            names=forecaster_names,
            shown="that of the monitor",
            panel=PLACEMENT,
            common=False,
        ),
    ] = None
    scenario: Annotated[
        str | None,
        Option(
            f"Scenario file with hosts, links and events; or collapse: after {COLLAPSE_AT_S:g} s, all links of the host"
            f" that one-shot gives most operators fall to {COLLAPSE_FACTOR:.0%} of their rate for {COLLAPSE_S:g} s.",
            metavar="FILE|collapse",
            shown="none",
            panel=NETWORK,
        ),
    ] = None
    kill: Annotated[
        tuple[str, ...],
        Option(
            "Kill a server's process at an emulated second: h3@40. The run goes on. The process is started again 5 s"
            " later (wall clock), or as given: h3@40:restart=20, or restart=never.",
            metavar="HOST@S",
            panel=FAULTS,
        ),
    ] = ()
    drain: Annotated[
        tuple[str, ...],
        Option(
            "End a server's process at an emulated second, after its operators have moved away: h3@40. To start it"
            " again: h3@40:restart=20.",
            metavar="HOST@S",
            panel=FAULTS,
        ),
    ] = ()
    join: Annotated[
        tuple[str, ...],
        Option(
            "Start a server's process only at an emulated second: h3@40.",
            metavar="HOST@S",
            panel=FAULTS,
        ),
    ] = ()
    stand_in: Annotated[
        tuple[str, ...],
        Option(
            "Server that has the images of a second server too, and delivers them if the second is lost: h3=h4.",
            metavar="HOST=HOST",
            panel=FAULTS,
            common=False,
        ),
    ] = ()
    missing: Annotated[
        Missing,
        Option(
            "Reaction of operators if a server without stand-in is lost: wait until it returns, or go on without its"
            " images until then.",
            shown="wait, or as the scenario file says",
            panel=FAULTS,
            common=False,
        ),
    ] = "wait"
    spares: Annotated[
        int,
        Option("Number of further servers without images, where operators may run.", panel=FAULTS, common=False),
    ] = 0
    checkpoint: Annotated[
        int | None,
        Option(
            "Partitions between two replicas of an operator's state, if the run outlives its hosts.",
            shown="16",
            panel=FAULTS,
            common=False,
        ),
    ] = None
    collapse_at_s: Annotated[
        float | None,
        Option(
            "Emulated time at which the collapse begins.",
            flag="--collapse-at",
            unit=seconds,
            shown=f"{COLLAPSE_AT_S:g}",
            panel=NETWORK,
            common=False,
        ),
    ] = None
    networks: Annotated[
        tuple[str, ...],
        Option(
            "Network of the scenario file that partitions may take, besides net, which all hosts share. net: no further"
            " network.",
            flag="--network",
            shown="all",
            panel=NETWORK,
            common=False,
        ),
    ] = ()
    wanted_hz: Annotated[
        float | None,
        Option(
            "Scenario files with several networks: wanted images, or partitions, per emulated second. Each"
            " link takes the cheapest network that keeps this rate.",
            flag="--wanted",
            shown="as many as sources give and links carry",
            panel=NETWORK,
            common=False,
        ),
    ] = None
    hops: Annotated[
        int,
        Option(
            "Scenario files with several networks: most rented links that a partition takes in a row, over hosts that"
            " pass it on. 1: no host does.",
            panel=NETWORK,
            common=False,
        ),
    ] = HOPS
    no_delay: NoDelay = False
    latency: Latency = None
    operator: Annotated[
        str,
        Option(
            "Operator that combines the images.",
            names=combining_names,
            own="package.module:Class",
            panel=WORKLOAD,
            common=False,
        ),
    ] = "composite"
    startup_s: Annotated[
        float,
        Option(
            "Start-up cost of a message that planners count. On testbed sim messages take it.",
            shown="0",
            unit=seconds,
            panel=PLACEMENT,
            common=False,
        ),
    ] = 0.0
    disk_bytes_per_s: Annotated[
        float | None,
        Option(
            "Disk bandwidth that planners count, in bytes/s. On testbed sim reading takes it.",
            flag="--disk-rate",
            shown="unlimited",
            unit=bytes_per_s,
            panel=PLACEMENT,
            common=False,
        ),
    ] = None
    pixel_s: Annotated[
        float | None,
        Option(
            "Computing time of a pixel that planners count. On testbed sim composing takes it.",
            shown="measured",
            unit=seconds,
            panel=PLACEMENT,
            common=False,
        ),
    ] = None
    image_bytes: Annotated[
        int,
        Option("Mean size of the synthetic images.", unit=size_bytes, shown="128kb", panel=WORKLOAD, common=False),
    ] = 131_072
    image_deviation: Annotated[
        float, Option("Relative standard deviation of their sizes.", panel=WORKLOAD, common=False)
    ] = 0.25
    dtype: Annotated[
        Literal["uint8", "uint16"], Option("Type of the pixels of synthetic images.", panel=WORKLOAD, common=False)
    ] = "uint8"
    bands: Annotated[int, Option("Bands of the synthetic images.", panel=WORKLOAD, common=False)] = 1
    folder: Annotated[
        str | None,
        Option(
            "Folder of your own images (PNG, JPEG, TIFF), with one subfolder for each server.",
            metavar="DIR",
            typed=Path,
            parse=str,
            panel=WORKLOAD,
            common=False,
        ),
    ] = None
    skip_corrupt: Annotated[bool, Option("Leave out images that cannot be read.", panel=WORKLOAD, common=False)] = False
    allow: Allow = ()
    limits: Annotated[
        tuple[str, ...],
        Option(
            "Limit of all hosts and of the client: max_partition_bytes=1000000."
            " docs/reference/limits.md lists all limits.",
            flag="--limit",
            metavar="NAME=VALUE",
            panel=LIMITS,
            common=False,
        ),
    ] = ()
    call_timeout_s: Annotated[
        float | None,
        Option(
            "Wall-clock seconds that a call of a source's or operator's code, or its loading, may take. A longer one"
            " ends the run.",
            flag="--call-timeout",
            metavar="SECONDS",
            shown="any time",
            panel=LIMITS,
            common=False,
        ),
    ] = None
    pictures: Annotated[int, Option("Number of composed images to keep as PNG files.", common=False)] = 12
    prove: Annotated[bool, Option("Measure every link before the run.", panel=NETWORK, common=False)] = True

    @property
    def all_servers(self) -> list[str]:
        """Names of all hosts except the client."""
        return host_names(self.servers + self.spares)

    @property
    def befalling(self) -> list[tuple[str, str]]:
        """Events of hosts' processes: pairs of an option and its value (``scenarios.process_events``)."""
        options = {"kill": self.kill, "drain": self.drain, "join": self.join}
        return [(option, text) for option, texts in options.items() for text in texts]

    @property
    def depth(self) -> int | Literal["auto"]:
        """Number of partitions under way over each edge."""
        return "auto" if self.ahead == "auto" else int(self.ahead)

    def failover(self, sites: Mapping[str, str]) -> Failover:
        """Return the failover options of a run in which hosts are killed. Hosts at one of ``sites`` fail together."""
        every = Failover().every if self.checkpoint is None else self.checkpoint
        return Failover(every=every, domains=dict(sites))

    def pictured(self, index: int) -> bool:
        """Return whether the composite of an index is kept as a picture. Pictures are evenly spread."""
        return bool(self.pictures) and index % max(1, -(-self.images // self.pictures)) == 0

    def check(self) -> RunConfig:
        """Return self. Raise UsageError with the name of an option that is out of range."""
        for refuses, says in (*VALUES, *TOGETHER):
            if refuses(self):
                raise UsageError(says(self))
        self._check_workload()
        self._check_testbed()
        self._check_scenario()
        from thalweg.emulation.scenarios.process_events import deeds_of, read_stand_ins  # the help page needs no import

        deeds_of(self.befalling, self.all_servers, self.time_scale)
        read_stand_ins(self.stand_in, self.all_servers)
        if self.forecaster is not None:
            make_forecaster(self.forecaster)
        CoreConfig().limited(self.limits)
        return self

    def _check_workload(self) -> None:
        """Raise UsageError for an option of another workload, and for a placement that is given twice."""
        for workload, names in OF_WORKLOADS.items():
            for field in msgspec.structs.fields(self) if workload != self.workload else ():
                if field.name in names and getattr(self, field.name) != field.default:
                    raise UsageError(
                        f"{flag(RunConfig, field.name)} goes with --workload {workload}, and this is {self.workload}"
                    )
        for name in self.placements:
            if self.placements.count(name) > 1:
                raise UsageError(f"--placement {name} is given twice; each is run once")

    def _check_testbed(self) -> None:
        """Raise UsageError for an option of another testbed."""
        for option, is_set, testbed in (
            ("--image", self.image is not None, "docker"),
            ("--kernel uml", self.kernel == "uml", "netns"),
            ("--interface", self.interface is not None, "sim"),
            ("--bytes", self.bytes, "sim"),
            ("--validate", self.validate, "sim"),
        ):
            if is_set and self.testbed != testbed:
                raise UsageError(f"{option} goes with --testbed {testbed}, and this run is on {self.testbed}")

    def _check_scenario(self) -> None:
        """Raise UsageError for an option that conflicts with a scenario file, or lacks one."""
        described = is_scenario_file(self.scenario)
        of_files = {
            "--network": bool(self.networks), "--wanted": self.wanted_hz is not None, "--hops": self.hops != HOPS,
        }  # fmt: skip
        for option, is_set in of_files.items():
            if is_set and not described:
                raise UsageError(f"{option} is about a scenario file's networks, and no such file is given")
        if self.no_delay and not described:
            raise UsageError("--no-delay leaves out a scenario file's delays, and no such file is given")
        if self.latency is not None and described:
            raise UsageError("--latency gives links delays, and a scenario file has its own (latency); leave one out")
        if self.spares and described:
            raise UsageError("--spares adds servers, and a scenario file lists its servers (hosts); leave one out")


Refusal = tuple[Callable[[RunConfig], bool], Callable[[RunConfig], str]]  # condition, and error message
# Values that an option cannot have.
VALUES: tuple[Refusal, ...] = (
    (
        lambda run: run.testbed not in TESTBEDS,
        lambda run: f"unknown --testbed {run.testbed!r}; there are {', '.join(TESTBEDS)}",
    ),
    (
        lambda run: not 1 <= run.servers <= MAX_SERVERS,
        lambda run: f"--servers is {run.servers}; a testbed has addresses for 1 to {MAX_SERVERS} servers",
    ),
    (
        lambda run: run.rate is not None and not 0 < run.rate < math.inf,
        lambda run: f"--rate is {run.rate:g}; give partitions a second, above 0",
    ),
    (lambda run: run.images < 1, lambda run: f"--images is {run.images}; it must be at least 1"),
    (lambda run: not run.placements, lambda run: "no --placement was given; try --placement one-shot"),
    (
        lambda run: not (math.isfinite(run.time_scale) and run.time_scale > 0),
        lambda run: f"--time-scale is {run.time_scale}; it must be above 0",
    ),
    (
        lambda run: run.scenario not in (None, "collapse") and not is_scenario_file(run.scenario),
        lambda run: f"unknown --scenario {run.scenario!r}; there is collapse, or a file that ends in .toml",
    ),
    (
        lambda run: run.wanted_hz is not None and not 0 < run.wanted_hz < math.inf,
        lambda run: f"--wanted is {run.wanted_hz:g}; give partitions a second, above 0",
    ),
    (
        lambda run: is_scenario_file(run.scenario) and not 1 <= run.hops <= MAX_HOPS,
        lambda run: f"--hops is {run.hops}; give 1, for links from host to host, to {MAX_HOPS}",
    ),
    (
        lambda run: not 0 <= run.spares <= MAX_SERVERS - run.servers,
        lambda run: f"--spares is {run.spares}; give 0 or more, and with --servers {MAX_SERVERS} at most",
    ),
    (
        lambda run: run.checkpoint is not None and run.checkpoint < 1,
        lambda run: f"--checkpoint is {run.checkpoint}; give partitions, at least 1",
    ),
    (
        lambda run: run.stripes not in (None, "auto") and re.fullmatch("[0-9]{1,9}", run.stripes) is None,
        lambda run: f"--stripes is {one_line(run.stripes)!r}; give a number of trees, or auto",
    ),
    (
        lambda run: (
            run.ahead != "auto" and not (re.fullmatch("[0-9]{1,9}", run.ahead) and 1 <= int(run.ahead) <= MOST_AHEAD)
        ),
        lambda run: f"--ahead is {one_line(run.ahead)}; give partitions, 1 to {MOST_AHEAD}, or auto",
    ),
    (
        lambda run: not 1024 <= run.image_bytes <= 64 * 1024 * 1024,
        lambda run: f"--image-bytes is {run.image_bytes}; it must be from 1024 to 67108864",
    ),
    (
        lambda run: run.call_timeout_s is not None and not 0 < run.call_timeout_s < math.inf,
        lambda run: f"--call-timeout is {run.call_timeout_s:g}; give seconds above 0",
    ),
    (lambda run: run.pictures < 0, lambda run: f"--pictures is {run.pictures}; it must be at least 0"),
)
# Options that do not go together.
TOGETHER: tuple[Refusal, ...] = (
    (
        lambda run: run.workload == PLANNED and run.plan is None,
        lambda run: f"--workload {PLANNED} needs a plan file; add --plan FILE, an option of thalweg run",
    ),
    (
        lambda run: "fixed" in run.placements and run.plan is None,
        lambda run: "--placement fixed needs a plan file; add --plan FILE, an option of thalweg run",
    ),
    (
        lambda run: run.plan is not None and run.workload != PLANNED and "fixed" not in run.placements,
        lambda run: "--plan sets the hosts of operators under --placement fixed; add --placement fixed",
    ),
    (
        lambda run: run.testbed == "loopback" and run.link_mean_bps is not None,
        lambda run: "--link-mean shapes links, and the loopback testbed has none; use --testbed netns",
    ),
    (
        lambda run: run.testbed == "loopback" and run.traces is not None,
        lambda run: "--traces shapes links, and the loopback testbed has none; use --testbed netns",
    ),
    (
        lambda run: run.testbed == "loopback" and run.view == "truth",
        lambda run: "--view truth asks an emulator, and loopback is none; use --testbed netns",
    ),
    (
        lambda run: run.testbed == "loopback" and run.latency is not None,
        lambda run: "--latency gives links delays, and the loopback testbed has none; use --testbed sim",
    ),
    (
        lambda run: run.testbed == "loopback" and run.scenario is not None,
        lambda run: f"--scenario {run.scenario} changes links, and loopback has none; use --testbed netns",
    ),
    (
        lambda run: run.collapse_at_s is not None and run.scenario != "collapse",
        lambda run: "--collapse-at is the begin of --scenario collapse, which is not given",
    ),
    (
        lambda run: run.missing == "nothing" and run.stripes not in (None, "1"),
        lambda run: "--missing nothing goes with one tree, and --stripes asks for several; leave one out",
    ),
    (
        lambda run: run.missing == "nothing" and "random-reshapes" in run.placements,
        lambda run: "--missing nothing keeps every operator's inputs, and random-reshapes changes them",
    ),
)
