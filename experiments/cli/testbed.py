"""``thalweg testbed``: bring an emulated WAN up, use it, take it down."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from thalweg.emulation.containers.image import DEFAULT_BASE
from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.testbeds import detached
from thalweg.emulation.testbeds.netns import SUBNET
from thalweg.experiments.cli.console import JsonOption, say
from thalweg.experiments.cli.testbed_links import IdOption, status, verify
from thalweg.experiments.cli.testbed_plan import plan
from thalweg.experiments.cli.uml_option import KernelOption, runs_elsewhere
from thalweg.experiments.networks.setup import (
    ContainerLimits,
    ImageOption,
    NoDelayOption,
    constant,
    described,
    host_names,
    make_testbed,
    read,
    traced,
    unshaped,
)
from thalweg.middleware.errors import UsageError

app = typer.Typer(name="testbed", no_args_is_help=True, help="Launch an emulated WAN and use it.")
app.command("status")(status)
app.command("verify")(verify)
app.command("plan")(plan)


@app.command("up")
def up(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A scenario file: hosts, links and events.")
    ] = None,
    backend: Annotated[str, typer.Option(help="netns: network namespaces; docker: containers.")] = "netns",
    kernel: KernelOption = "host",
    hosts: Annotated[int | None, typer.Option(help="How many: client, h1, h2, …", show_default="9")] = None,
    rate: Annotated[str | None, typer.Option(help="The same rate on every link, as tc writes it: 10mbit.")] = None,
    delay: Annotated[float, typer.Option(metavar="SECONDS", help="One way, on every link; needs netem.")] = 0.0,
    jitter: Annotated[float, typer.Option(metavar="SECONDS", help="How far delays vary; needs netem.")] = 0.0,
    loss: Annotated[float, typer.Option(metavar="SHARE", help="Of packets, 0.01 for 1 %; needs netem.")] = 0.0,
    traces: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Replay traces of this folder, one drawn for every link.")
    ] = None,
    time_scale: Annotated[
        float | None,
        typer.Option(help="Replay this many times faster, at rates as much higher.", show_default="1, or the file's"),
    ] = None,
    link_mean: Annotated[str | None, typer.Option(metavar="RATE", help="Scale the traces to this mean rate.")] = None,
    seed: Annotated[int | None, typer.Option(help="Draws the traces.", show_default="1, or the file's")] = None,
    subnet: Annotated[str, typer.Option(help="Addresses of the hosts, seen only inside; docker: or another.")] = SUBNET,
    layer: Annotated[
        int | None,
        typer.Option(help="What rates count: 3 IP packets, 2 Ethernet frames.", show_default="3, or the file's"),
    ] = None,
    no_delay: NoDelayOption = False,
    image: ImageOption = None,
    idle: Annotated[
        bool, typer.Option("--idle", help="Docker: containers run nothing of ours (else each runs thalweg host).")
    ] = False,
    cpus: Annotated[float, typer.Option(help="Docker: processors a host may use.")] = 1.0,
    memory: Annotated[int, typer.Option(metavar="MIB", help="Docker: memory a host may use.")] = 512,
    json: JsonOption = False,
) -> None:
    """Bring up a testbed that stays until `testbed down`: of a scenario file, or of options.

    With neither a file nor --rate nor --traces its links are unshaped.

    Example: thalweg testbed up --hosts 9 --rate 10mbit
    """
    if runs_elsewhere(kernel, backend):
        raise typer.Exit(_up_in_uml())
    started = time.monotonic()
    shape = LinkShape(0.0) if no_delay else LinkShape(0.0, delay, jitter, loss)
    if file is not None:
        mine = {"hosts": hosts, "rate": rate, "traces": traces, "link-mean": link_mean, "layer": layer}
        for option, given in {**mine, "delay": delay, "jitter": jitter, "loss": loss}.items():
            if given:
                raise UsageError(f"--{option} and the scenario file {file} exclude each other; say it in the file")
        setup = described(read(file, time_scale=time_scale, seed=seed, no_delay=no_delay))
    else:
        names, counted = host_names(9 if hosts is None else hosts), 3 if layer is None else layer
        if rate is not None and traces is not None:
            raise UsageError("--rate and --traces exclude each other; give one of them")
        if rate is not None:
            setup = constant(names, rate, shape, counted)
        elif traces is not None:
            scale, drawn = 1.0 if time_scale is None else time_scale, 1 if seed is None else seed
            setup = traced(names, traces, shape, counted, time_scale=scale, link_mean=link_mean, seed=drawn)
        elif delay or jitter or loss:
            raise UsageError("--delay, --jitter and --loss go with --rate or --traces; without them links are unshaped")
        else:
            setup = unshaped(names, counted)
    testbed = make_testbed(setup, backend, subnet, ContainerLimits(image, cpus, memory, idle))
    state = detached.launch(testbed, setup.prepare)
    names, links = setup.names, setup.links
    seconds = time.monotonic() - started
    text = f"testbed {state.id}: {len(names)} hosts ({names[0]} … {names[-1]}), {links} shaped links,"
    text += f" up in {seconds:.2f} s"
    if state.subnet != subnet:
        text += f"\nnote: the subnet {subnet} is in use here; the hosts are in {state.subnet}"
    value = {"id": state.id, "hosts": dict(testbed.hosts), "links": links, "seconds": seconds}
    say(json, {**value, "delay_emulated": testbed.delay_emulated, "subnet": state.subnet}, text)


@app.command("build")
def build(
    image: Annotated[
        str | None, typer.Option("--image", help="Name of the image.", show_default="thalweg:VERSION")
    ] = None,
    base_image: Annotated[
        str | None,
        typer.Option(
            help="What it is built on: Python 3.11 or newer with venv.",
            show_default=f"that of --make-base, or {DEFAULT_BASE}",
        ),
    ] = None,
    make_base: Annotated[
        bool, typer.Option("--make-base", help="Make the base first, from Debian packages with mmdebstrap.")
    ] = False,
    wheelhouse: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Wheels to take instead of fetching them with pip.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Build the image that docker hosts run, without a network, from wheels that pip fetches first.

    Example: thalweg testbed build --base-image debian-with-python
    """
    from thalweg.emulation.containers import image as docker_image

    started = time.monotonic()
    built = docker_image.build(
        image, base_image, wheelhouse=wheelhouse, make_base=make_base, tell=lambda what: typer.echo(what, err=True)
    )
    seconds = time.monotonic() - started
    text = f"image {built.image}: {built.size_bytes / 1e6:.0f} MB on {built.base}, built in {seconds:.1f} s"
    say(json, {**msgspec.to_builtins(built), "seconds": seconds}, f"{text}\nnext: thalweg testbed up --backend docker")


def _up_in_uml() -> int:
    """This command line in a User-Mode Linux kernel that stays up; its exit status."""
    from thalweg.emulation.uml.keeper import launch
    from thalweg.emulation.uml.kernel import own_command_line

    status, said = launch(own_command_line())
    typer.echo(said, nl=False)
    return status


@app.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def execute(
    host: Annotated[str, typer.Argument(help="The host to run on: client, h1, …")],
    command: Annotated[list[str], typer.Argument(metavar="-- CMD…", help="The command and its arguments.")],
    identity: IdOption = None,
) -> None:
    """Run a command on a host of a testbed; its exit status becomes ours.

    Example: thalweg testbed exec h1 -- ip address
    """
    words = command[1:] if command[0] == "--" else command
    testbed = detached.attach(detached.choose(identity))
    try:
        if testbed.backend == "docker" and os.isatty(0) and os.isatty(1):
            from thalweg.experiments.cli.terminal import run_on_terminal

            raise typer.Exit(_status(run_on_terminal(testbed, host, words)))
        process = testbed.run(host, words)
        previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for number in previous:
                signal.signal(number, lambda got, _: process.send_signal(got))
            code = process.wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
    finally:
        testbed.down()
    raise typer.Exit(_status(code))


def _status(code: int) -> int:
    """An exit status as a shell has it."""
    return code if code >= 0 else 128 - code


@app.command("down")
def down(
    identity: Annotated[str | None, typer.Argument(metavar="[ID]", help="Which one; all of yours by default.")] = None,
    json: JsonOption = False,
) -> None:
    """Take testbeds down, and remove what crashed ones left; nothing to do is not an error.

    Example: thalweg testbed down
    """
    removed = detached.take_down(identity)
    say(json, {"removed": removed}, "\n".join(f"removed {one}" for one in removed) or "nothing to remove")
