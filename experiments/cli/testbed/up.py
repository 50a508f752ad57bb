"""``thalweg testbed up``: launch of an emulated WAN that stays up."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from thalweg.emulation.kernel.folders import read_private
from thalweg.emulation.links import units
from thalweg.emulation.links.shape import LinkShape, Queue, loss_figures
from thalweg.emulation.links.units import Loss, Mtu, parse_rate, seconds, size_bytes
from thalweg.emulation.presets.table import between, find_preset, preset_name
from thalweg.emulation.scenarios.file import HostSpec
from thalweg.emulation.scenarios.hosts import with_preset
from thalweg.emulation.scenarios.timeline import Timeline, compile_timeline
from thalweg.emulation.testbeds import detached
from thalweg.emulation.testbeds.netns import SUBNET
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.emulation.traces.pool import assign_traces, read_pool
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.experiments.cli.console import JsonOption, say, spinner
from thalweg.experiments.cli.options import takes
from thalweg.experiments.cli.testbed.status import addresses_text
from thalweg.experiments.command import Option, flag
from thalweg.experiments.names import preset_names
from thalweg.experiments.networks.described import read
from thalweg.experiments.networks.setup import ContainerLimits, backend_names, make_testbed, prepare
from thalweg.experiments.run_config import CLIENT, host_names, runs_elsewhere
from thalweg.middleware.errors import UsageError, counted
from thalweg.middleware.network.view import Link, links_between

HOSTS, LINKS, CONTAINERS = "Hosts", "Links", "Containers (--backend docker)"


def _mib(value: Any) -> int:
    """Return a size in MiB. A plain number counts MiB."""
    plain = isinstance(value, int) or str(value).strip().isdigit()
    return int(value) if plain else size_bytes(value) // 2**20


def _queue(value: Any) -> Queue:
    return Queue(*units.queue(value))


def _folders(value: Any) -> tuple[str, ...]:
    return read_private(str(value).split(","))


def _flat(given: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the folders of an option that is given several times, as one tuple."""
    return tuple(chain.from_iterable(given))


class UpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``testbed up``: hosts and links without a scenario file, and the backend. Rates are real."""

    name: Annotated[str | None, Option("Name of the testbed.", shown="made of the time", panel=HOSTS)] = None
    backend: Annotated[str, Option("Where the hosts run.", names=backend_names, panel=HOSTS)] = "netns"
    kernel: Annotated[
        Literal["host", "uml"],
        Option(
            "Netns: this machine's kernel, or a User-Mode Linux kernel, which emulates delays and needs no root.",
            panel=HOSTS,
        ),
    ] = "host"
    hosts: Annotated[int | None, Option("Number of hosts: client, h1, h2, …", shown="9", panel=HOSTS)] = None
    private: Annotated[
        tuple[str, ...],
        Option(
            "Folders that each host has for itself, empty at first: run,tmp. Otherwise hosts share the machine's.",
            typed=str,
            unit=_folders,
            parse=_flat,
            metavar="FOLDERS",
            shown="none",
            panel=HOSTS,
        ),
    ] = ()
    preset: Annotated[
        str | None,
        Option(
            "Access line of every host, or path that every link is. Other options replace its figures.",
            names=preset_names,
            unit=preset_name,
            metavar="NAME",
            panel=LINKS,
        ),
    ] = None
    rate_bps: Annotated[
        float | None,
        Option(
            "Rate of every link: 10mbit. Without --rate, --preset, --traces and FILE, links are not shaped.",
            flag="--rate",
            shown="unshaped",
            unit=parse_rate,
            panel=LINKS,
        ),
    ] = None
    delay_s: Annotated[
        float | None,
        Option("One-way delay of every link: 20ms. Needs netem.", flag="--delay", shown="0", unit=seconds, panel=LINKS),
    ] = None
    jitter_s: Annotated[
        float | None,
        Option("Variation of the delay: 2ms. Needs netem.", flag="--jitter", shown="0", unit=seconds, panel=LINKS),
    ] = None
    loss: Annotated[
        Loss | None,
        Option(
            "Packets that are lost: 1%, or 1%,burst=5 for bursts. Needs netem.",
            shown="0",
            unit=units.loss,
            metavar="LOSS",
            panel=LINKS,
        ),
    ] = None
    queue: Annotated[
        Queue | None,
        Option(
            "Length of a link's queue: 100ms of its rate, 64kb, 50 packets; or fq_codel, codel, pie, red.",
            shown="100ms",
            unit=_queue,
            metavar="QUEUE",
            panel=LINKS,
        ),
    ] = None
    mtu: Annotated[
        Mtu | None,
        Option(
            "Longest packet in bytes: 1400, or 1400,silent if senders get no notice of longer ones.",
            shown="1500",
            unit=units.mtu,
            metavar="MTU",
            panel=LINKS,
            common=False,
        ),
    ] = None
    traces: Annotated[
        Path | None, Option("Replay traces of this folder, one drawn for every link.", metavar="DIR", panel=LINKS)
    ] = None
    time_scale: Annotated[
        float | None,
        Option("Factor by which a replay is faster, and its rates are higher.", shown="1, or the file's", panel=LINKS),
    ] = None
    link_mean_bps: Annotated[
        float | None,
        Option("Scale the traces by one constant to this mean rate.", flag="--link-mean", unit=parse_rate, panel=LINKS),
    ] = None
    seed: Annotated[
        int | None, Option("Seed of the choice of traces for links.", shown="1, or the file's", panel=LINKS)
    ] = None
    subnet: Annotated[
        str,
        Option(
            "Addresses of the hosts, visible only to them. Docker may take another subnet.",
            metavar="CIDR",
            panel=LINKS,
            common=False,
        ),
    ] = SUBNET
    layer: Annotated[
        int | None,
        Option(
            "Layer that rates count: IP packets (3) or Ethernet frames (2).",
            shown="3, or the file's",
            panel=LINKS,
            common=False,
        ),
    ] = None
    no_delay: Annotated[
        bool, Option("Leave out delays, jitter, loss and the like, and keep the rates.", panel=LINKS)
    ] = False
    no_ipv6: Annotated[
        bool, Option("Give hosts IPv4 addresses alone.", shown="with IPv6", panel=LINKS, common=False)
    ] = False
    control_band: Annotated[
        bool,
        Option(
            "On every link, send packets marked for expedited forwarding first, as control messages are.",
            panel=LINKS,
            common=False,
        ),
    ] = False
    image: Annotated[
        str | None, Option("Image of the containers.", shown="that of testbed build", panel=CONTAINERS)
    ] = None
    idle: Annotated[
        bool, Option("Run nothing in the containers. Otherwise each runs thalweg host.", panel=CONTAINERS)
    ] = False
    cpus: Annotated[float, Option("Processors that a host may use.", panel=CONTAINERS)] = 1.0
    memory_mib: Annotated[
        int,
        Option(
            "Memory that a host may use: 512mb, or a number of MiB.",
            flag="--memory",
            metavar="SIZE",
            unit=_mib,
            panel=CONTAINERS,
        ),
    ] = 512

    @property
    def shape(self) -> LinkShape:
        """Shape of every link. Its rate is 0 if neither an option nor a preset gives a rate."""
        line = None if self.preset is None or not find_preset(self.preset).of_host else self.preset
        preset = {} if self.preset is None else between(self.preset, line)
        own = {name: getattr(self, name) for name in ("rate_bps", "delay_s", "jitter_s", "queue", "mtu")}
        losses = {} if self.loss is None else loss_figures(self.loss)
        settings: dict[str, Any] = {name: value for name, value in own.items() if value is not None}
        shape = LinkShape(**{"rate_bps": 0.0, **preset, **settings, **losses})
        return shape.rates_only() if self.no_delay else shape


IN_THE_FILE = (
    "hosts", "rate_bps", "traces", "link_mean_bps", "layer", "delay_s", "jitter_s", "loss", "queue", "mtu", "no_ipv6",
    "control_band", "private", "preset",
)  # fmt: skip


@takes(UpOptions)
def up(
    options: UpOptions,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Scenario file: hosts, links and events.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Bring up a testbed that stays until `testbed down`.

    The hosts and links come from a scenario file, or from options.

    Example: thalweg testbed up --hosts 9 --rate 10mbit

    Three phones, whose links have delays: thalweg testbed up --hosts 3 --preset 4g --kernel uml

    A scenario file, with its events: thalweg testbed up docs/examples/campus.toml

    Delays, where the kernel has no netem: thalweg testbed up --hosts 3 --rate 10mbit --delay 20ms --kernel uml
    """
    if options.name is not None:
        detached.check_name(options.name)
    if runs_elsewhere(options.kernel, options.backend):
        raise typer.Exit(_up_in_uml())
    started = time.monotonic()
    timeline = _of_options(options) if file is None else _of_file(file, options)
    limits = ContainerLimits(options.image, options.cpus, options.memory_mib, options.idle)
    testbed = make_testbed(timeline, options.backend, options.subnet, limits, options.name)
    links = len(timeline.links)

    def shape(bed: Testbed) -> None:
        say_now(f"shaping {counted(links, 'link')}")
        prepare(timeline, bed, tell=lambda done: say_now(f"shaped {done:,} of {counted(links, 'link')}"))

    with spinner(f"making {counted(len(timeline.hosts), 'host')}") as say_now:
        state = detached.launch(testbed, shape)
    took_s = time.monotonic() - started
    text = f"testbed {state.id}: {len(timeline.hosts)} hosts, {links} shaped links, up in {took_s:.2f} s"
    text += f"\n{addresses_text(testbed.hosts)}"
    if testbed.unnamed:
        text += (
            f"\nnote: hosts know each other by address only, because /etc/hosts is not ours here ({testbed.unnamed})"
        )
    if state.subnet != options.subnet:
        text += f"\nnote: the subnet {options.subnet} is in use here; the hosts are in {state.subnet}"
    value = {"id": state.id, "hosts": dict(testbed.hosts), "links": links, "seconds": took_s}
    say(as_json, {**value, "delay_emulated": testbed.delay_emulated, "subnet": state.subnet}, text)


def _of_file(file: Path, options: UpOptions) -> Timeline:
    for name in IN_THE_FILE:
        if getattr(options, name):
            option = flag(UpOptions, name)
            raise UsageError(f"{option} and the scenario file {file} exclude each other; say it in the file")
    scenario = read(file, time_scale=options.time_scale, seed=options.seed, no_delay=options.no_delay)
    for note in scenario.notes:
        print(f"note: {note}", file=sys.stderr)
    return compile_timeline(scenario)


def _of_options(options: UpOptions) -> Timeline:
    """Return the timeline of the options: unshaped hosts, the same rate on every link, or a trace on every link.

    The shape has the remaining settings, as real values.
    """
    count = 9 if options.hosts is None else options.hosts
    if count < 1:
        raise UsageError(f"--hosts is {count}; a testbed needs at least one host")
    names = [CLIENT, *host_names(count - 1)]
    links: dict[Link, LinkShape] = {}
    traces: dict[Link, BandwidthTrace] = {}
    scale = 1.0
    for name in ("rate_bps", "preset"):
        if getattr(options, name) is not None and options.traces is not None:
            raise UsageError(f"{flag(UpOptions, name)} and --traces exclude each other; give one of them")
    if options.rate_bps is not None or options.preset is not None:
        links = dict.fromkeys(links_between(names), options.shape)
    elif options.traces is not None:
        scale = 1.0 if options.time_scale is None else options.time_scale
        seed = 1 if options.seed is None else options.seed
        traces = assign_traces(read_pool(options.traces, seed, options.link_mean_bps), names, seed)
        emulated = options.shape.dilated(1 / scale)
        links = {link: emulated._replace(rate_bps=trace.rate_at(0.0)) for link, trace in traces.items()}
    elif options.delay_s or options.jitter_s or options.loss or options.queue or options.mtu:
        raise UsageError(
            "--delay, --jitter, --loss, --queue and --mtu go with --rate, --preset or --traces; without them links are"
            " unshaped"
        )
    hosts = {name: with_preset(HostSpec(name), options.preset, options.queue) for name in names}
    layer = 3 if options.layer is None else options.layer
    return Timeline(
        hosts=hosts, links=links, traces=traces, time_scale=scale, layer=layer,
        ipv6=not options.no_ipv6, control_band=options.control_band, private=options.private,
    )  # fmt: skip


def _up_in_uml() -> int:
    """Run this command line in a User-Mode Linux kernel that stays up, and return the exit status."""
    from thalweg.emulation.uml.keeper import launch
    from thalweg.emulation.uml.kernel import own_command_line

    return launch(own_command_line())
