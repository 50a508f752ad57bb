"""``thalweg testbed set``, ``cut``, ``restore``, ``reset`` and ``play``: changes of links of a testbed that is up."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import typer

from thalweg.emulation.links import units
from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.links.words import shape_text
from thalweg.emulation.presets.table import preset_name
from thalweg.emulation.wan import Testbed
from thalweg.experiments.cli.console import JsonOption, say
from thalweg.experiments.cli.options import takes
from thalweg.experiments.cli.testbed.exec import IdOption
from thalweg.experiments.command import Option
from thalweg.experiments.names import preset_names
from thalweg.middleware.errors import UsageError, counted
from thalweg.middleware.network.view import NET, Link

SHOWN = 12  # links that are listed; the others are counted
AnySource = Annotated[
    str | None,
    typer.Argument(metavar="A", help="Host that the link leads from. Without it: every link.", show_default=False),
]
Target = Annotated[
    str | None,
    typer.Argument(
        metavar="B", help="Host that the link leads to. Without it: all links of A, both ways.", show_default=False
    ),
]
Network = Annotated[
    str | None,
    typer.Option(
        "--network", metavar="NAME", help="Change links of this network of the testbed.", show_default="the common one"
    ),
]
Both = Annotated[bool, typer.Option("--both", help="Change the link from B to A as well.")]


class SetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """New settings of a link. A setting that is not given stays."""

    preset: Annotated[
        str | None,
        Option(
            "Access line of host A, or path that the links are. Other options replace its figures.",
            names=preset_names,
            unit=preset_name,
            metavar="NAME",
        ),
    ] = None
    rate: Annotated[float | None, Option("Rate: 10mbit.", unit=units.rate_bps)] = None
    delay: Annotated[float | None, Option("One-way delay: 20ms. Needs netem.", unit=units.seconds)] = None
    jitter: Annotated[float | None, Option("Variation of the delay: 2ms. Needs netem.", unit=units.seconds)] = None
    loss: Annotated[
        str | None,
        Option("Packets that are lost: 1%, or 1%,burst=5 for bursts. Needs netem.", metavar="LOSS"),
    ] = None
    queue: Annotated[
        str | None,
        Option(
            "Length of the queue: 100ms of the rate, 64kb, or packets; or fq_codel, codel, pie, red.", metavar="QUEUE"
        ),
    ] = None
    mtu: Annotated[
        str | None,
        Option("Longest packet in bytes: 1400, or 1400,silent if senders get no notice of longer ones.", metavar="MTU"),
    ] = None
    up_rate: Annotated[
        str | None,
        Option("Rate of all that host A sends together: 1mbit, or unlimited.", metavar="RATE"),
    ] = None
    down_rate: Annotated[
        str | None,
        Option("Rate of all that host A receives together: 8mbit, or unlimited.", metavar="RATE"),
    ] = None
    carrier: Annotated[
        Literal["up", "down"] | None,
        Option("Carrier of host A's interface: down takes its plug out, up puts it in again."),
    ] = None


class Ends(NamedTuple):
    """Links of a verb: the link of two hosts, with ``both`` in both directions, all links of a host, or all links."""

    source: str | None
    target: str | None
    both: bool


def _ends(
    source: AnySource = None,
    target: Target = None,
    both: Both = False,
    network: Network = None,
    identity: IdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Declare the parameters of every verb on links."""


def on_links(act: Callable[..., None]) -> Callable[..., None]:
    """Return the verb that calls ``act`` with a testbed, links and the parameters of ``act``, and prints the links."""
    _, _, *own = inspect.signature(act, eval_str=True).parameters.values()

    @functools.wraps(act)
    def verb(*given: Any, network: str | None, identity: str | None, as_json: bool, **words: Any) -> None:
        ends = Ends(*(words.pop(name) for name in Ends._fields))
        with Testbed.attach(identity) as attached:
            bed = attached.on(NET if network is None else network)
            act(bed, ends, *given, **words)
            _tell(bed, ends, as_json=as_json)

    parameters = [*own, *inspect.signature(_ends, eval_str=True).parameters.values()]
    vars(verb)["__signature__"] = inspect.Signature(parameters)
    verb.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return verb


@takes(SetOptions)
@on_links
def change(bed: Testbed, ends: Ends, options: SetOptions) -> None:
    """Change links of a testbed that is up.

    Links are changed in place. Settings that are not given stay.

    Example: thalweg testbed set client h1 --rate 2mbit

    A host behind a Starlink terminal: thalweg testbed set h1 --preset starlink

    A host with limits of its own: thalweg testbed set h1 --up-rate 1mbit --down-rate 8mbit
    """
    bed.set(*ends[:2], both=ends.both, **msgspec.structs.asdict(options))


@on_links
def cut(bed: Testbed, ends: Ends) -> None:
    """Cut links of a testbed that is up.

    A link that is cut carries nothing. Packets under way are lost. At least one host has to be given.

    Example: thalweg testbed cut client h1 --both
    """
    if ends.source is None:
        raise UsageError("cut needs to know which links: name a host, or two")
    bed.cut(ends.source, ends.target, both=ends.both)


def reset(
    source: Annotated[
        str | None,
        typer.Argument(metavar="A", help="Host whose connections end. Without it: all hosts.", show_default=False),
    ] = None,
    target: Annotated[
        str | None,
        typer.Argument(metavar="B", help="Host at the other end. Without it: any other host.", show_default=False),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option("--network", metavar="NAME", help="Connections over this network.", show_default="the common one"),
    ] = None,
    identity: IdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reset TCP connections of a testbed that is up.

    Programs on A get the error ECONNABORTED. The reset travels over the link from A to B, and programs on B get
    ECONNRESET. New connections are not affected.

    Example: thalweg testbed reset client h1
    """
    with Testbed.attach(identity) as attached:
        bed = attached.on(NET if network is None else network)
        count = bed.reset(source, target)
        say(as_json, {"id": bed.id, "reset": count}, f"{counted(count, 'connection')} reset")


@on_links
def restore(bed: Testbed, ends: Ends) -> None:
    """Undo cuts of links.

    The links get the settings that they had before.

    Example: thalweg testbed restore
    """
    bed.restore(*ends[:2], both=ends.both)


@on_links
def play(
    bed: Testbed,
    ends: Ends,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Scenario file (.toml), or trace.", show_default=False)
    ] = None,
    stop: Annotated[bool, typer.Option("--stop", help="Stop the play. Links stay as they are.")] = False,
) -> None:
    """Play a scenario or a trace on a testbed that is up.

    A trace sets the rates, delays or losses of the links given. If a scenario or trace is being played, it ends. The
    hosts of a scenario must be hosts of the testbed.

    Example: thalweg testbed play docs/examples/campus.toml
    """
    if (file is None) is not stop:
        raise UsageError("give a FILE to play, or --stop to stop what is being played")
    if file is None:
        bed.stop()
    else:
        bed.play(file, *ends[:2], both=ends.both)


def _tell(bed: Testbed, ends: Ends, *, as_json: bool) -> None:
    """Print the present settings of the named links."""
    source, target, both = ends
    if source is not None and target is not None:
        shown = [*bed.shapes_of(bed.named(source, target, both=both)).items()]
    else:
        shown = [(link, shape) for link, shape in bed.links.items() if source is None or source in link[:2]]
    rows = [{**link.row, **shape._asdict()} for link, shape in shown]
    unplugged = bed.unplugged
    text = _text(shown) + (f"\nno carrier: {', '.join(unplugged)}" if unplugged else "")
    say(as_json, {"id": bed.id, "links": rows, "unplugged": unplugged}, text)


def _text(links: Iterable[tuple[Link, LinkShape]]) -> str:
    lines = [f"{link.text}: {shape_text(shape)}" for link, shape in links]
    more = len(lines) - SHOWN
    return "\n".join(lines[:SHOWN] + [f"and {counted(more, 'link')} more"] * (more > 0)) or "no link is shaped"
