"""The configuration of ``thalweg run``, defaults and all."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard

import msgspec

from thalweg.emulation.scenarios.deeds import deeds_of, read_stand_ins
from thalweg.emulation.uml.files import NEEDED, inside_uml
from thalweg.emulation.units import bytes_per_s, parse_rate, seconds, share, size_bytes
from thalweg.experiments.command import Option, flag
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
TESTBEDS = ("netns", "docker", "loopback", "sim")

PLANNED = "planned"  # the workload of a plan file
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
    """Whether ``--scenario`` names a file, and not one of the scenarios that there are."""
    return scenario is not None and (scenario.endswith(".toml") or "/" in scenario)


def host_names(servers: int) -> list[str]:
    """The image servers ``h1`` …; the client is not among them."""
    return [f"h{i + 1}" for i in range(servers)]


def file_name(label: str) -> str:
    """A placement's name as that of a file."""
    return label.replace("/", "_").replace(":", "_")


def pool_folder(folder: Path) -> str:
    """The folder of traces that ``folder`` is, or that a collection of data sets takes by default."""
    sets = folder / "bandwidth"
    if not sets.is_dir():
        return str(folder)
    preferred = sets / DEFAULT_DATA_SET
    return str(preferred if preferred.is_dir() else sets)


Image = Annotated[str | None, Option("Docker: what hosts run.", shown="that of `testbed build`")]
Kernel = Annotated[
    Literal["host", "uml"],
    Option("Netns: host, this machine's own; uml: a User-Mode Linux kernel, which has delays and needs no root."),
]
Latency = Annotated[
    str | None,
    Option(
        "Round trips between hosts, of which a link's delay is half: a CSV file (square, or src,dst,rtt_ms) or the name"
        " of a data set. It names the hosts, or sites that are drawn for them.",
        shown="no delays",
        metavar="FILE|NAME",
    ),
]
NoDelay = Annotated[bool, Option("Leave out delays, jitter, loss and the like: rates only.")]
Allow = Annotated[tuple[str, ...], Option("Package of your own whose code may be named.")]


def runs_elsewhere(kernel: str, testbed: str) -> bool:
    """Whether this command line is to be run again, inside a User-Mode Linux kernel (``uml.run_thalweg_inside``).

    Raises UsageError for a kernel that does not go with ``testbed``, CapabilityError on another system than Linux.
    """
    if kernel == "uml" and testbed != "netns":
        raise UsageError(f"--kernel uml goes with netns, and this testbed is {testbed}; leave one of them out")
    if kernel == "uml":
        check_linux(NEEDED)
    return kernel == "uml" and not inside_uml()


class RunConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One workload on one testbed under one or more placements. ``images``: of other workloads partitions.

    Rates in bit/s and times in seconds of the emulated network. The sizes of images are those of the paper
    (Ranganathan et al., section 4: Normal, mean 128 KB, 25 %). Options of placements that move operators are None
    where they were not given; their defaults are those of ``middleware.protocol.adaptation``. Of a scenario file
    ``no_delay`` leaves its rates and cuts alone.
    """

    workload: Annotated[
        Literal["composition", "plates", "planned"],
        Option(
            "composition: images, combined in a tree; plates: cameras' records, filtered, joined and counted; planned:"
            " the nodes of a plan file."
        ),
    ] = "composition"
    plan: Annotated[
        str | None,
        Option(
            "A plan file: what is run, on the hosts of its scenario, and where, as `thalweg provision` writes one; or"
            " where operators are under --placement fixed.",
            typed=Path,
            parse=str,
            metavar="FILE",
            shown="none",
        ),
    ] = None
    testbed: Annotated[
        str,
        Option("netns: shaped network namespaces; docker: shaped containers; loopback: unshaped; sim: virtual time."),
    ] = "netns"
    image: Image = None
    kernel: Kernel = "host"
    interface: Annotated[
        Literal["single", "independent", "shared"] | None,
        Option(
            "Sim: independent, links as tc shapes them; shared, a host's interface_rate is what all shares that it"
            " sends and receives; single, a host sends or receives one message at a time.",
            shown="independent",
        ),
    ] = None
    bytes: Annotated[bool, Option("Sim: real images through real operators, not sizes only.")] = False
    validate: Annotated[bool, Option("Sim: check every host's invariants after each event.")] = False
    servers: Annotated[
        int,
        Option("Servers of images, or cameras, beside the client.", shown="8; plates: 4; or a scenario file's hosts"),
    ] = 8
    placements: Annotated[
        tuple[str, ...],
        Option(
            "Placement algorithm: download-all, one-shot, exhaustive, thalweg-once, fixed (operators stay); global,"
            " local, cost-space, cost-space-local, random-moves (they move); thalweg, random-reshapes (the tree changes"
            " as well); or package.module:Planner. Give it several times to compare.",
            flag="--placement",
        ),
    ] = ("download-all", "one-shot", "thalweg")
    images: Annotated[
        int,
        Option(
            "Composites, or partitions of every sink, to deliver under each placement.",
            also=("--partitions",),
            shown="60; plates: 240",
        ),
    ] = 60
    rate: Annotated[
        float | None, Option("Plates: partitions a second that each camera gives, emulated.", shown=f"{PLATES_RATE:g}")
    ] = None
    tree: Annotated[str, Option("Order of combination: binary, left-deep, star.")] = "binary"
    rule: Annotated[str, Option("Pixel selection: max, min, latest, or package.module:function @as_rule.")] = "max"
    seed: Annotated[int, Option("Of images, link assignment and generated traces.")] = 1
    traces: Annotated[
        str | None,
        Option(
            "Folder of bandwidth traces, or a collection with bandwidth/NAME; generated ones without.",
            typed=Path,
            parse=pool_folder,
            envvar="THALWEG_TRACES",
        ),
    ] = None
    link_mean_bps: Annotated[
        float | None,
        Option(
            "Scale the pool by one constant to this mean rate, e.g. 0.2mbit.",
            flag="--link-mean",
            shown="as it is; plates: 0.2mbit",
            unit=parse_rate,
        ),
    ] = None
    time_scale: Annotated[
        float,
        Option(
            "Emulated seconds per second: rates × N, periods ÷ N.",
            shown="1; plates: 30; uml: what it carries with ease",
        ),
    ] = 1.0
    view: Annotated[
        Literal["probe", "truth"],
        Option(
            "What planners know before a run, on testbed sim also while it goes on: probe, or truth (the emulator's"
            " own values)."
        ),
    ] = "probe"
    cost: Annotated[str, Option("What planners minimise: expected-period, period, or critical-path (the paper's).")] = (
        "expected-period"
    )
    period_s: Annotated[
        float | None,
        Option(
            "Emulated time between decisions of global, local, thalweg and cost-space.",
            flag="--period",
            unit=seconds,
            shown=f"{PAPER_PERIOD_S:g}; thalweg and cost-space: {PERIOD_S:g}",
        ),
    ] = None
    k: Annotated[int | None, Option("Random hosts that local considers besides neighbours.", shown="0")] = None
    gate: Annotated[bool | None, Option("Local: only operators on the critical path move.", shown="gate")] = None
    measured: Annotated[
        bool,
        Option(
            "Global, thalweg and planners of your own that are asked again: sizes, rates and computing times as they"
            " are measured while data flows, not as operators say."
        ),
    ] = False
    hysteresis: Annotated[
        float | None,
        Option("Global and local: move when the gain of a period exceeds this many times the move's cost.", shown="0"),
    ] = None
    saving: Annotated[
        float | None,
        Option(
            "Cost-space and cost-space-local: the least share of the usage that a move saves.",
            unit=share,
            shown="0.05; local: 0.2",
        ),
    ] = None
    displacement_s: Annotated[
        float | None,
        Option(
            "Cost-space-local: how far an operator's place moves before a host is looked for.",
            flag="--displacement",
            unit=seconds,
            shown="20ms",
        ),
    ] = None
    load_s: Annotated[
        float | None,
        Option(
            "Cost-space and cost-space-local: how much farther from all others a host is whose load is 1.",
            flag="--load-distance",
            unit=seconds,
            shown="0",
        ),
    ] = None
    stripes: Annotated[
        str | None,
        Option(
            "Thalweg: over so many trees at once, each partition over the one that asks next; auto: as many as repay."
            " Operators with state run once, at the client.",
            metavar="N|auto",
            shown="1",
        ),
    ] = None
    ahead: Annotated[
        str,
        Option(
            "Partitions under way over each edge of the tree: more than one for links with long delays, and as much"
            " more memory on hosts; auto: as many as the links that it begins over need, 1 where delays are short.",
            metavar="N|auto",
        ),
    ] = "1"
    moves: Annotated[
        int | None,
        Option(
            "Random-moves and random-reshapes (tests): after so many moves they stop.",
            shown="500; random-reshapes: 0",
        ),
    ] = None
    reshapes: Annotated[
        int | None, Option("Random-reshapes (a test): after so many changes of the tree it stops.", shown="500")
    ] = None
    forecaster: Annotated[
        str | None,
        Option(
            "What a link's next rate is taken to be: last, mean, median, exponential, best.",
            shown="the monitor's own",
        ),
    ] = None
    scenario: Annotated[
        str | None,
        Option(
            "A scenario file (FILE.toml), or collapse:"
            f" {COLLAPSE_AT_S:g} s into every placement, all links of the host that one-shot gives most operators fall"
            f" to {COLLAPSE_FACTOR:.0%} of their rate, for {COLLAPSE_S:g} s.",
            shown="none",
        ),
    ] = None
    kill: Annotated[
        tuple[str, ...],
        Option(
            "Kill the process of a server at that emulated second: h3@40. It is started again 5 s later (wall clock),"
            " or h3@40:restart=20, or restart=never; the run goes on. Several times for several.",
            metavar="HOST@S",
        ),
    ] = ()
    drain: Annotated[
        tuple[str, ...],
        Option(
            "Have the process of a server end at that emulated second when its operators have moved away: h3@40, or"
            " h3@40:restart=20 to have it started again. Several times for several.",
            metavar="HOST@S",
        ),
    ] = ()
    join: Annotated[
        tuple[str, ...],
        Option(
            "Start the process of a server at that emulated second; it is not there before. Several times for several.",
            metavar="HOST@S",
        ),
    ] = ()
    stand_in: Annotated[
        tuple[str, ...],
        Option("Servers that have a server's images, too, and give them where it is lost: h3=h4.", metavar="HOST=HOST"),
    ] = ()
    missing: Annotated[
        Missing,
        Option(
            "What operators do about the images of a server that is lost, for which no other stands in: wait for its"
            " return; or go on with nothing in their place, until it is back.",
            shown="wait, or a scenario file's",
        ),
    ] = "wait"
    spares: Annotated[int, Option("Servers besides that have no images: operators may be there.")] = 0
    checkpoint: Annotated[
        int | None,
        Option("Partitions between two replicas of an operator's state, where the run outlives its hosts.", shown="16"),
    ] = None
    collapse_at_s: Annotated[
        float | None,
        Option("When the collapse begins, emulated.", flag="--collapse-at", unit=seconds, shown=f"{COLLAPSE_AT_S:g}"),
    ] = None
    networks: Annotated[
        tuple[str, ...],
        Option(
            "Of a scenario file's networks, those that partitions may take besides net, which all hosts share; net: no"
            " other. Several times for several.",
            flag="--network",
            metavar="NAME",
            shown="all",
        ),
    ] = ()
    wanted_hz: Annotated[
        float | None,
        Option(
            "Of a scenario file's networks: composites, or partitions, a second that are wanted, emulated; links take"
            " the cheapest network that keeps this.",
            flag="--wanted",
            shown="as many as sources give and links carry",
        ),
    ] = None
    hops: Annotated[
        int,
        Option(
            "Of a scenario file's networks: rented links that a partition takes one after the other at most, over hosts"
            " that pass it on; 1: no host does."
        ),
    ] = HOPS
    no_delay: NoDelay = False
    latency: Latency = None
    operator: Annotated[
        str,
        Option(
            "What combines: composite; with state: running, join, best-of-last, or mixed (these in turn); or"
            " package.module:Class."
        ),
    ] = "composite"
    startup_s: Annotated[
        float,
        Option("Message start-up cost that planners reckon with; on sim messages take it.", shown="0", unit=seconds),
    ] = 0.0
    disk_bytes_per_s: Annotated[
        float | None,
        Option(
            "Disk bandwidth that planners reckon with, bytes/s; on sim reading takes it.",
            flag="--disk-rate",
            shown="free",
            unit=bytes_per_s,
        ),
    ] = None
    pixel_s: Annotated[
        float | None,
        Option(
            "Composition time a pixel that planners reckon with; on sim composing takes it.",
            shown="measured",
            unit=seconds,
        ),
    ] = None
    image_bytes: Annotated[int, Option("Mean size of the synthetic images, as 128kb.", unit=size_bytes)] = 131_072
    image_deviation: Annotated[float, Option("Its relative standard deviation.")] = 0.25
    dtype: Annotated[Literal["uint8", "uint16"], Option("Of the synthetic images' pixels.")] = "uint8"
    bands: Annotated[int, Option("Bands of the synthetic images.")] = 1
    folder: Annotated[
        str | None, Option("Your own images (PNG, JPEG, TIFF): one subfolder a server.", typed=Path, parse=str)
    ] = None
    skip_corrupt: Annotated[bool, Option("Leave out images that cannot be read.")] = False
    allow: Allow = ()
    limits: Annotated[
        tuple[str, ...],
        Option(
            "A limit of all hosts and of the client, as max_partition_bytes=1000000; docs/embedding.md lists all."
            " Several times for several.",
            flag="--limit",
            metavar="NAME=VALUE",
        ),
    ] = ()
    call_timeout_s: Annotated[
        float | None,
        Option(
            "Wall-clock seconds that a call of a source's or operator's own code may take, or its loading: one that"
            " takes longer ends the run.",
            flag="--call-timeout",
            shown="any",
        ),
    ] = None
    pictures: Annotated[int, Option("How many composites to keep as PNG.")] = 12
    prove: Annotated[bool, Option("Measure every link before the run.")] = True

    @property
    def all_servers(self) -> list[str]:
        """All hosts but the client."""
        return host_names(self.servers + self.spares)

    @property
    def befalling(self) -> list[tuple[str, str]]:
        """What befalls hosts' processes, by option (``scenarios.deeds``)."""
        said = {"kill": self.kill, "drain": self.drain, "join": self.join}
        return [(option, text) for option, texts in said.items() for text in texts]

    @property
    def depth(self) -> int | Literal["auto"]:
        """Partitions under way over each edge."""
        return "auto" if self.ahead == "auto" else int(self.ahead)

    def failover(self, sites: Mapping[str, str]) -> Failover:
        """How a run outlives its hosts, where one is killed; ``sites``: what is at one fails together."""
        every = Failover().every if self.checkpoint is None else self.checkpoint
        return Failover(every=every, domains=dict(sites))

    def pictured(self, index: int) -> bool:
        """Whether the composite of that index is kept as a picture; those that are spread evenly over all."""
        return bool(self.pictures) and index % max(1, -(-self.images // self.pictures)) == 0

    def check(self) -> RunConfig:
        """Return self, or raise UsageError naming the option that is out of range."""
        if self.testbed not in TESTBEDS:
            raise UsageError(f"unknown --testbed {self.testbed!r}; there are {', '.join(TESTBEDS)}")
        if not 1 <= self.servers <= MAX_SERVERS:
            raise UsageError(f"--servers is {self.servers}; a testbed has addresses for 1 to {MAX_SERVERS} servers")
        for workload, names in OF_WORKLOADS.items():
            for field in msgspec.structs.fields(self) if workload != self.workload else ():
                if field.name in names and getattr(self, field.name) != field.default:
                    raise UsageError(
                        f"{flag(RunConfig, field.name)} goes with --workload {workload}, and this is {self.workload}"
                    )
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise UsageError(f"--rate is {self.rate:g}; give partitions a second, above 0")
        if self.images < 1:
            raise UsageError(f"--images is {self.images}; it must be at least 1")
        if not self.placements:
            raise UsageError("no --placement was given; try --placement one-shot")
        if (self.workload == PLANNED or "fixed" in self.placements) and self.plan is None:
            what = f"--workload {PLANNED}" if self.workload == PLANNED else "--placement fixed"
            raise UsageError(f"{what} is told what to do by a plan file; add --plan FILE")
        if self.plan is not None and self.workload != PLANNED and "fixed" not in self.placements:
            raise UsageError("--plan says where operators are under --placement fixed; add that")
        for name in self.placements:
            if self.placements.count(name) > 1:
                raise UsageError(f"--placement {name} is given twice; each is run once")
        if not (math.isfinite(self.time_scale) and self.time_scale > 0):
            raise UsageError(f"--time-scale is {self.time_scale}; it must be above 0")
        if self.link_mean_bps is not None and self.testbed == "loopback":
            raise UsageError("--link-mean shapes links, and the loopback testbed has none; use --testbed netns")
        if self.traces is not None and self.testbed == "loopback":
            raise UsageError("--traces shapes links, and the loopback testbed has none; use --testbed netns")
        for option, given, testbed in (
            ("--image", self.image is not None, "docker"),
            ("--kernel uml", self.kernel == "uml", "netns"),
            ("--interface", self.interface is not None, "sim"),
            ("--bytes", self.bytes, "sim"),
            ("--validate", self.validate, "sim"),
        ):
            if given and self.testbed != testbed:
                raise UsageError(f"{option} goes with --testbed {testbed}, and this run is on {self.testbed}")
        if self.testbed == "loopback" and self.view == "truth":
            raise UsageError("--view truth asks an emulator, and loopback is none; use --testbed netns")
        described = is_scenario_file(self.scenario)
        if self.scenario not in (None, "collapse") and not described:
            raise UsageError(f"unknown --scenario {self.scenario!r}; there is collapse, or a file that ends in .toml")
        if self.collapse_at_s is not None and self.scenario != "collapse":
            raise UsageError("--collapse-at says when --scenario collapse begins, and that is not given")
        said_of = {
            "--network": bool(self.networks), "--wanted": self.wanted_hz is not None, "--hops": self.hops != HOPS,
        }  # fmt: skip
        for option, said in said_of.items():
            if said and not described:
                raise UsageError(f"{option} is about a scenario file's networks, and no such file is given")
        if self.wanted_hz is not None and not 0 < self.wanted_hz < math.inf:
            raise UsageError(f"--wanted is {self.wanted_hz:g}; give partitions a second, above 0")
        if not 1 <= self.hops <= MAX_HOPS:
            raise UsageError(f"--hops is {self.hops}; give 1, for links from host to host, to {MAX_HOPS}")
        if self.no_delay and not described:
            raise UsageError("--no-delay leaves out a scenario file's delays, and no such file is given")
        if self.latency is not None and described:
            raise UsageError("--latency gives links delays, and a scenario file says them itself (latency); take one")
        if self.latency is not None and self.testbed == "loopback":
            raise UsageError("--latency gives links delays, and the loopback testbed has none; use --testbed sim")
        if self.testbed == "loopback" and self.scenario is not None:
            raise UsageError(f"--scenario {self.scenario} changes links, and loopback has none; use --testbed netns")
        if self.spares and described:
            raise UsageError("--spares adds servers, and a scenario file says which there are (hosts); leave one out")
        if not 0 <= self.spares <= MAX_SERVERS - self.servers:
            raise UsageError(f"--spares is {self.spares}; there are {MAX_SERVERS} servers at most, and no fewer than 0")
        deeds_of(self.befalling, self.all_servers, self.time_scale)
        read_stand_ins(self.stand_in, self.all_servers)
        if self.checkpoint is not None and self.checkpoint < 1:
            raise UsageError(f"--checkpoint is {self.checkpoint}; give partitions, at least 1")
        if self.stripes not in (None, "auto") and re.fullmatch("[0-9]{1,9}", self.stripes) is None:
            raise UsageError(f"--stripes is {one_line(self.stripes)!r}; give a number of trees, or auto")
        if self.missing == "nothing" and self.stripes not in (None, "1"):
            raise UsageError("--missing nothing goes with one tree, and --stripes asks for several; leave one out")
        if self.missing == "nothing" and "random-reshapes" in self.placements:
            raise UsageError("--missing nothing keeps every operator's inputs, and random-reshapes changes them")
        if self.ahead != "auto" and not (re.fullmatch("[0-9]{1,9}", self.ahead) and 1 <= int(self.ahead) <= MOST_AHEAD):
            raise UsageError(f"--ahead is {one_line(self.ahead)}; give partitions, 1 to {MOST_AHEAD}, or auto")
        if self.forecaster is not None:
            make_forecaster(self.forecaster)
        if self.image_bytes < 1024 or self.image_bytes > 64 * 1024 * 1024:
            raise UsageError(f"--image-bytes is {self.image_bytes}; it must be from 1024 to 67108864")
        CoreConfig().limited(self.limits)
        if self.call_timeout_s is not None and not 0 < self.call_timeout_s < math.inf:
            raise UsageError(f"--call-timeout is {self.call_timeout_s:g}; give seconds above 0")
        if self.pictures < 0:
            raise UsageError(f"--pictures is {self.pictures}; it must be at least 0")
        return self
