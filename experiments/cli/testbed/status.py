"""``thalweg testbed status``: what is up, and what its links are asked and carry."""

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

LISTED = 9  # hosts
LOOK_S, LOOK_STEP_S = 1.0, 0.1  # how long `status --links` watches the links' counters


class Carried(msgspec.Struct):
    """What a link carried while it was watched; ``delivered_bps`` only of the time in which packets waited for it."""

    carried_bps: float = 0.0
    delivered_bps: float | None = None


def status(
    links: Annotated[
        bool, typer.Option("--links", help="Watch every link for a second: its settings, and what it carries.")
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
    """What is known of a testbed; of a living one also its links, and hosts that have ended."""
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
            "links": answer["links"] if "links" in answer else len(testbed.shapes),  # as of an earlier version
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
    """Hosts and where they are; of many, whose addresses follow each other, the first and the last."""
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
    threading.Event().wait(LOOK_S)  # nothing is waited for but time itself
    testbed.stop_sampling()
    return carried(testbed.samples())


def carried(samples: Iterable[LinkSample]) -> dict[Link, Carried]:
    """Each link's mean over the samples, and over those in which packets waited at both ends."""
    by_link: dict[Link, list[LinkSample]] = {}
    for one in samples:
        by_link.setdefault(one.link, []).append(one)
    found = {}
    for link, seen in by_link.items():
        full = [one.delivered_bps for one in seen if one.backlogged]
        steps = LOOK_S / LOOK_STEP_S
        found[link] = Carried(
            sum(one.delivered_bps for one in seen) / max(steps, len(seen)), sum(full) / len(full) if full else None
        )
    return found


def lateness(late: Mapping[str, Any]) -> str:
    """How long after their time the steps of a replay took effect."""
    median, tail, most = (late[key] * 1e3 for key in ("lag_p50_s", "lag_p99_s", "lag_max_s"))
    return f"{late['steps']:,.0f} changes, late by {median:.1f} ms (median), {tail:.1f} (99 %), {most:.1f} (most)"


def _shapes_table(shapes: Iterable[Mapping[str, Any]]) -> None:
    """Print a row for each link. A table that measures its cells would take minutes for tens of thousands of rows."""
    rows = [("from", "to", "asked", "delay", "loss", "carries", "delivers when full")]
    for one in shapes:
        full = one["delivered_bps"]
        rows.append(
            (
                one["src"],
                link_of(one).goal,
                rate_text(LinkShape(one["rate_bps"], cut=one["cut"])),
                delay_text(one["delay_s"], one["jitter_s"]),
                loss_text(LinkShape(0.0, loss=one["loss"], loss_burst=one["loss_burst"])),
                format_rate(one["carried_bps"]) if one["carried_bps"] else "",
                "" if full is None else format_rate(full),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
