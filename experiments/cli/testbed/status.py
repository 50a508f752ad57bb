"""``thalweg testbed status``: testbeds that are up, with the settings and the traffic of their links."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
import typer

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.links.units import format_rate
from thalweg.emulation.links.words import delay_text, loss_text, rate_text
from thalweg.emulation.proofs.proof import LinkSample
from thalweg.emulation.testbeds import detached, known
from thalweg.emulation.testbeds.netns import host_addresses
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.experiments.cli.console import JsonOption, print_json
from thalweg.middleware.errors import TestbedError, ThalwegError, counted
from thalweg.middleware.network.view import Link, link_of

LISTED = 9  # hosts that are listed
LOOK_S, LOOK_STEP_S = 1.0, 0.1  # time and step in which `status --links` reads the links' counters


class Carried(msgspec.Struct):
    """Rates of a link while the link was watched. ``delivered_bps`` counts only intervals in which packets waited."""

    carried_bps: float = 0.0
    delivered_bps: float | None = None


def status(
    links: Annotated[
        bool, typer.Option("--links", help="Watch every link for a second, and show its settings and traffic.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the testbeds that are up, and those that crashed.

    Example: thalweg testbed status --links
    """
    rows = [_row(state, links=links) for state in known.known_testbeds()]
    if as_json:
        print_json({"testbeds": rows})
        return
    if not rows:
        print("no testbed is up")
    for row in rows:
        print(f"{row['id']}  {row['backend']}  {len(row['hosts'])} hosts  {_what(row)}")
        print(f"  {addresses_text(row['hosts'])}")
        for via, addresses in row.get("networks", {}).items():
            print(f"  {via}: {addresses_text(addresses)}")
        for host, why in row.get("ended", {}).items():
            print(f"  {host}: {why}")
        for key, does in (("up_bps", "sends"), ("down_bps", "receives")):
            for host, bps in row.get(key, {}).items():
                print(f"  {host} {does} at most {format_rate(bps)} in all")
        if row.get("unplugged"):
            print(f"  no carrier: {', '.join(row['unplugged'])}")
        if row.get("private"):
            print(f"  each host has its own {', '.join(row['private'])}")
        for host, preset in row.get("lines", {}).items():
            print(f"  {host} has the preset {preset}")
        for host, frames in row.get("strangers", {}).items():
            print(f"  {host}: {counted(frames, 'frame')} from hardware addresses that no host has, which were dropped")
        if row.get("shapes"):
            _shapes_table(row["shapes"])


def _row(state: known.TestbedState, *, links: bool) -> dict[str, Any]:
    """Return the JSON row of a testbed. A testbed that is up also has links, and hosts that have ended."""
    row: dict[str, Any] = {"id": state.id, "backend": state.backend, "alive": False}
    row["hosts"] = host_addresses(state.hosts, state.subnet)
    if not state.alive:
        return row
    try:
        client = known.connect(state)
    except TestbedError:
        return row
    client.close()
    try:
        testbed = detached.attach(state)
    except ThalwegError as error:  # such as an engine that does not answer
        return row | {"alive": True, "links": 0, "replaying": False, "refusal": str(error), "processes": []}
    with testbed:
        answer = testbed.status(None if links else ())
        row |= {
            "alive": True,
            "links": answer["links"] if "links" in answer else len(testbed.shapes),  # old versions send none
            "replaying": answer["replaying"],
            "refusal": answer["refusal"],
            "processes": answer["processes"],
            "ended": {host: why for host in state.hosts if (why := testbed.fate(host))},
        }
        for key in ("strangers", "up_bps", "down_bps", "lines", "unplugged", "private"):
            if answer.get(key):
                row[key] = answer[key]
        if testbed.networks:
            row["networks"] = dict(testbed.networks)
        if "replay" in answer:
            row["replay"] = answer["replay"]
        if links:
            watched = _watch(testbed)
            row["shapes"] = [
                {**link.row, **shape._asdict(), **msgspec.to_builtins(watched.get(link, Carried()))}
                for link, shape in testbed.shapes.items()
            ]
    return row


def addresses_text(addresses: Mapping[str, str]) -> str:
    """Return hosts with addresses. Of many hosts, whose addresses are consecutive, return the first and the last."""
    pairs = [f"{name} {address}" for name, address in addresses.items()]
    return ", ".join(pairs) if len(pairs) <= LISTED else f"{pairs[0]} … {pairs[-1]}"


def _what(row: Mapping[str, Any]) -> str:
    if not row["alive"]:
        return f"crashed; remove it with: thalweg testbed down {row['id']}"
    text = f"{row['links']} links{' replaying' if row['replaying'] else ''}, {len(row['processes'])} processes"
    if row["refusal"]:
        text += f"; {row['refusal']}"
    late = row.get("replay")
    return f"{text}; {lateness(late)}" if late and late["steps"] else text


def _watch(testbed: Testbed) -> dict[Link, Carried]:
    testbed.start_sampling(LOOK_STEP_S)
    threading.Event().wait(LOOK_S)  # the wait ends by time alone
    testbed.stop_sampling()
    return carried(testbed.samples())


def carried(samples: Iterable[LinkSample]) -> dict[Link, Carried]:
    """Return the mean rate of each link over all samples, and over the samples in which packets waited at both ends."""
    by_link: dict[Link, list[LinkSample]] = {}
    for sample in samples:
        by_link.setdefault(sample.link, []).append(sample)
    rates = {}
    for link, seen in by_link.items():
        full = [sample.delivered_bps for sample in seen if sample.backlogged]
        steps = LOOK_S / LOOK_STEP_S
        rates[link] = Carried(
            sum(sample.delivered_bps for sample in seen) / max(steps, len(seen)),
            sum(full) / len(full) if full else None,
        )
    return rates


def lateness(late: Mapping[str, Any]) -> str:
    """Return a text about the delay with which the steps of a replay took effect."""
    median, tail, most = (late[key] * 1e3 for key in ("lag_p50_s", "lag_p99_s", "lag_max_s"))
    return f"{late['steps']:,.0f} changes, late by {median:.1f} ms (median), {tail:.1f} (99 %), {most:.1f} (most)"


def _shapes_table(shapes: Iterable[Mapping[str, Any]]) -> None:
    """Print a row for each link. For tens of thousands of rows, a table that measures cells would take minutes."""
    rows = [("from", "to", "asked", "delay", "loss", "carries", "delivers when full")]
    for shape in shapes:
        full = shape["delivered_bps"]
        rows.append(
            (
                shape["src"],
                link_of(shape).goal,
                rate_text(LinkShape(shape["rate_bps"], cut=shape["cut"])),
                delay_text(shape["delay_s"], shape["jitter_s"]),
                loss_text(LinkShape(0.0, loss=shape["loss"], loss_burst=shape["loss_burst"])),
                format_rate(shape["carried_bps"]) if shape["carried_bps"] else "",
                "" if full is None else format_rate(full),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
