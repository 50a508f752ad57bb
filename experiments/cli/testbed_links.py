"""``thalweg testbed status`` and ``verify``: what is up, and what its links are asked and deliver."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.proofs.proof import RATE_FROM_BPS, STALLED, LinkProof, LinkSample, failures
from thalweg.emulation.testbeds import detached
from thalweg.emulation.testbeds.netns import SUBNET
from thalweg.emulation.testbeds.shaped import ShapedTestbed
from thalweg.emulation.uml import kernel as uml
from thalweg.emulation.units import format_rate
from thalweg.experiments.cli.console import JsonOption, end, output, print_json
from thalweg.experiments.cli.uml_option import KernelOption, runs_elsewhere
from thalweg.experiments.networks.setup import (
    ContainerLimits,
    ImageOption,
    NoDelayOption,
    described,
    make_testbed,
    read,
)
from thalweg.middleware.errors import TestbedError, ThalwegError, UsageError
from thalweg.middleware.network.view import Link

LOOK_S, LOOK_STEP_S = 1.0, 0.1  # how long `status --links` watches the links' counters

IdOption = Annotated[str | None, typer.Option("--id", help="Which testbed; needed when several are up.")]


class Carried(msgspec.Struct):
    """What a link carried while it was watched; ``delivered_bps`` only of the time in which packets waited for it."""

    carried_bps: float = 0.0
    delivered_bps: float | None = None


def status(
    links: Annotated[
        bool, typer.Option("--links", help="Watch every link for a second: what it is asked, and what it carries.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """List the testbeds that are up, and those that crashed.

    Example: thalweg testbed status --links
    """
    rows = [_row(state, links=links) for state in detached.known_testbeds()]
    if json:
        print_json({"testbeds": rows})
        return
    if not rows:
        typer.echo("no testbed is up")
    for row in rows:
        typer.echo(f"{row['id']}  {row['backend']}  {len(row['hosts'])} hosts  {_what(row)}")
        for host, why in row.get("ended", {}).items():
            typer.echo(f"  {host}: {why}")
        if row.get("shapes"):
            _shapes_table(row["shapes"])


def _row(state: detached.TestbedState, *, links: bool) -> dict[str, Any]:
    """What is known of a testbed; of a living one also its links, and hosts that have ended."""
    row: dict[str, Any] = {"id": state.id, "backend": state.backend, "alive": False, "hosts": list(state.hosts)}
    if not state.alive:
        return row
    try:
        client = detached.connect(state)
    except TestbedError:
        return row
    client.close()
    try:
        testbed = detached.attach(state)
    except ThalwegError as error:  # such as an engine that does not answer
        return row | {"alive": True, "links": 0, "replaying": False, "refusal": str(error), "processes": []}
    try:
        answer = testbed.status()
        shapes = testbed.shapes
        row |= {
            "alive": True,
            "links": len(shapes),
            "replaying": answer["replaying"],
            "refusal": answer["refusal"],
            "processes": answer["processes"],
            "ended": {host: why for host in state.hosts if (why := testbed.fate(host))},
        }
        if "replay" in answer:
            row["replay"] = answer["replay"]
        if links:
            watched = _watch(testbed)
            row["shapes"] = [
                {
                    "src": a,
                    "dst": b,
                    **msgspec.to_builtins(shape),
                    **msgspec.to_builtins(watched.get(Link(a, b), Carried())),
                }
                for (a, b), shape in shapes.items()
            ]
    finally:
        testbed.down()
    return row


def _what(row: Mapping[str, Any]) -> str:
    if not row["alive"]:
        return f"crashed; remove it with: thalweg testbed down {row['id']}"
    text = f"{row['links']} links{' replaying' if row['replaying'] else ''}, {len(row['processes'])} processes"
    if row["refusal"]:
        text += f"; {row['refusal']}"
    late = row.get("replay")
    return f"{text}; {lateness(late)}" if late and late["steps"] else text


def _watch(testbed: ShapedTestbed) -> dict[Link, Carried]:
    testbed.start_sampling(LOOK_STEP_S)
    threading.Event().wait(LOOK_S)  # nothing is waited for but time itself
    testbed.stop_sampling()
    return carried(testbed.samples())


def carried(samples: Iterable[LinkSample]) -> dict[Link, Carried]:
    """Each link's mean over the samples, and over those in which packets waited at both ends."""
    by_link: dict[Link, list[LinkSample]] = {}
    for one in samples:
        by_link.setdefault(Link(one.src, one.dst), []).append(one)
    found = {}
    for link, seen in by_link.items():
        full = [one.delivered_bps for one in seen if one.backlogged]
        steps = LOOK_S / LOOK_STEP_S
        found[link] = Carried(
            sum(one.delivered_bps for one in seen) / max(steps, len(seen)), sum(full) / len(full) if full else None
        )
    return found


def verify(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="A scenario file: bring it up, verify it as it is at first, take it down."
        ),
    ] = None,
    identity: IdOption = None,
    backend: Annotated[str, typer.Option(help="With a file: netns or docker.")] = "netns",
    kernel: KernelOption = "host",
    no_delay: NoDelayOption = False,
    image: ImageOption = None,
    json: JsonOption = False,
) -> None:
    """Fill every link and compare what it delivers with what it was asked; exit status 1 if one is off.

    A link is off when its rate is wrong by over 5 %, its delay by over 2 ms and 10 %, or its losses are not those that
    99 % of such links would have. A replay is stopped for it, and started over after it.

    Example: thalweg testbed verify
    """
    if runs_elsewhere(kernel, backend):
        if file is None:
            raise UsageError("--kernel uml goes with a scenario file; a testbed that is up has its kernel already")
        raise typer.Exit(uml.run_thalweg_inside())
    late: Mapping[str, Any] | None = None
    if file is not None:
        if identity is not None:
            raise UsageError("a scenario file is brought up for this; leave out --id")
        setup = described(read(file, no_delay=no_delay), begin=False)
        name = str(file)
        with make_testbed(setup, backend, SUBNET, ContainerLimits(image)) as testbed:
            setup.prepare(testbed)
            proofs = testbed.prove()
    else:
        name = (state := detached.choose(identity)).id
        testbed = detached.attach(state)
        try:
            answer = testbed.status()
            late = answer.get("replay")
            for host in state.hosts:
                if why := testbed.fate(host):
                    raise TestbedError(f"host {host!r} cannot be verified: {why}; take the testbed down and up again")
            if answer["replaying"]:
                testbed.stop_replay()
            try:
                proofs = testbed.prove()
            finally:
                if answer["replaying"]:
                    testbed.restart_replay()
        finally:
            testbed.down()
    if not proofs:
        raise UsageError(f"testbed {name} has no shaped links; bring it up with --rate, --traces or a scenario file")
    _report(name, proofs, late, json=json, delay_emulated=testbed.delay_emulated)


def _report(
    name: str, proofs: list[LinkProof], late: Mapping[str, Any] | None, *, json: bool, delay_emulated: bool
) -> None:
    """The proofs, and exit status 1 when a link is off."""
    checked = [one for one in proofs if one.asked_bps >= RATE_FROM_BPS]
    worst = max((abs(one.error) for one in checked), default=0.0)
    off = failures(proofs)
    if json:
        links = {
            "checked": len(checked),
            "worst_rate_error": worst,
            "worst_delay_error_s": max(map(delay_error_s, proofs), default=0.0),
            "loss_off": sum(not one.loss_ok for one in proofs),
            "stalled": max((one.stalled for one in proofs), default=0.0),
            "delay_emulated": delay_emulated,
        }
        more = {"replay": late} if late is not None else {}
        print_json({"id": name, "links": links, **more, "proofs": proofs})
    else:
        _proofs_table(proofs)
        typer.echo(f"{len(checked)} of {len(proofs)} links asked for 0.5 Mbit/s or more; worst error {worst:.2%}")
        slowest = max(proofs, key=lambda one: one.stalled)
        if slowest.stalled >= STALLED:
            where = f"{slowest.src} → {slowest.dst}"
            typer.echo(
                f"the machine let nothing pass for up to {slowest.stalled:.0%} of the time ({where}): it is busy"
            )
        if late is not None and late["steps"]:
            typer.echo(f"replay: {lateness(late)}")
    end(off)


def delay_error_s(one: LinkProof) -> float:
    """How far a link's delay is from the one asked; 0 where none was measured."""
    return 0.0 if one.delivered_delay_s is None else abs(one.delivered_delay_s - one.asked_delay_s)


def lateness(late: Mapping[str, Any]) -> str:
    """How long after their time the steps of a replay took effect."""
    median, tail, most = (late[key] * 1e3 for key in ("lag_p50_s", "lag_p99_s", "lag_max_s"))
    return f"{late['steps']:,.0f} changes, late by {median:.1f} ms (median), {tail:.1f} (99 %), {most:.1f} (most)"


def _proofs_table(proofs: list[LinkProof]) -> None:
    netem = any(one.delivered_delay_s is not None for one in proofs)
    columns = ["from", "to", "asked", "delivered", "error"]
    if netem:
        columns += ["delay, ms", "jitter, ms", "lost (99 % of links)"]
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for one in sorted(proofs, key=lambda one: -abs(one.error)):
        error = f"{one.error:+.2%}" if one.asked_bps else ""
        row = [one.src, one.dst, format_rate(one.asked_bps), format_rate(one.delivered_bps), error]
        if one.delivered_delay_s is not None:
            row.append(f"{one.asked_delay_s * 1e3:g} → {one.delivered_delay_s * 1e3:.1f}")
            jitter = one.delivered_jitter_s if one.asked_jitter_s else None
            row.append("" if jitter is None else f"{one.asked_jitter_s * 1e3:g} → {jitter * 1e3:.1f}")
            row.append(f"{one.asked_loss:.3g} → {one.lost}/{one.sent} ({one.lost_low}–{one.lost_high})")
        table.add_row(*row)
    output().print(table)


def _shapes_table(shapes: Iterable[Mapping[str, Any]]) -> None:
    table = Table("from", "to", "asked", "delay", "loss", "carries", "delivers when full", box=None, pad_edge=False)
    for one in shapes:
        shape = LinkShape(one["rate_bps"], one["delay_s"], one["jitter_s"], one["loss"], cut=one["cut"])
        full = one["delivered_bps"]
        table.add_row(
            one["src"],
            one["dst"],
            "cut" if shape.cut else format_rate(shape.rate_bps),
            delay_text(shape.delay_s, shape.jitter_s),
            f"{shape.loss:.2%}" if shape.loss else "",
            format_rate(one["carried_bps"]) if one["carried_bps"] else "",
            "" if full is None else format_rate(full),
        )
    output().print(table)


def delay_text(delay_s: float, jitter_s: float) -> str:
    """``20 ms ± 2``; empty without a delay."""
    if not delay_s and not jitter_s:
        return ""
    return f"{delay_s * 1e3:g} ms" + (f" ± {jitter_s * 1e3:g}" if jitter_s else "")
