"""``thalweg testbed plan``: the hosts, links and events of a scenario file, before a launch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from thalweg.emulation.links.shape import RATE_FLOOR_BPS
from thalweg.emulation.links.units import format_rate, format_time, seconds
from thalweg.emulation.scenarios.file import Scenario, read_scenario
from thalweg.experiments.cli.console import JsonOption, new_table, output, print_json
from thalweg.experiments.cli.options import number, quantity
from thalweg.experiments.networks.plan import LinkPlan, Plan, make_plan
from thalweg.middleware.errors import UsageError, counted, require
from thalweg.middleware.network.view import NET

TEXTS = ("to", "kind", "site", "preset", "event", "who", "what", "follows", "more")  # columns of texts
EVENTS = 40  # events that are listed, the first ones
LISTED = 90  # links that are listed; beyond that, every host has a line


def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Scenario file.", show_default=False)],
    out: Annotated[Path | None, typer.Option(metavar="PNG", help="Draw the plan into this picture.")] = None,
    until_s: Annotated[
        float | None, quantity(seconds, "--until", "End of the time line: 10min.", shown="after all events")
    ] = None,
    time_scale: Annotated[
        float | None, number(float, "--time-scale", "Time scale, in place of the file's.", show_default="the file's")
    ] = None,
    seed: Annotated[
        int | None, number(int, "--seed", "Seed, in place of the file's.", show_default="the file's")
    ] = None,
    whole: Annotated[
        bool,
        typer.Option(
            "--all", "--links", help=f"List all links and events, also more than {LISTED} and {EVENTS} of them."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check a scenario file, and show its hosts, links and events.

    The plan also shows the traffic that this machine must carry. Nothing is launched, and root is not needed.

    Example: thalweg testbed plan docs/examples/campus.toml --out campus.png
    """
    if out is not None:
        require("matplotlib")
    result = make_plan(read_scenario(file, time_scale=time_scale, seed=seed), _beyond(until_s))
    if out is not None:
        from thalweg.experiments.views.plan_figure import draw_plan

        draw_plan(result, out)
    if as_json:
        print_json(as_object(result, file, out))
    else:
        _print(result, whole=whole)
        if out is not None:
            print(f"drawn: {out}")


def _beyond(until_s: float | None) -> float | None:
    if until_s is not None and until_s <= 0:
        raise UsageError(f"--until is {until_s:g} s; the time line must be longer than 0 s")
    return until_s


def as_object(found: Plan, file: Path, out: Path | None) -> dict[str, Any]:
    """Return the plan as fields of the JSON, in emulated seconds and bit/s. Only the figures of ``wall`` are real."""
    scenario = found.scenario
    return {
        "scenario": scenario.name,
        "file": str(file),
        "time_scale": scenario.time_scale,
        "seed": scenario.seed,
        "layer": scenario.layer,
        "duration_s": scenario.duration_s,
        "needs_netem": scenario.needs_netem,
        "hosts": list(scenario.hosts.values()),
        **({"networks": scenario.networks} if scenario.networks else {}),
        "links": found.links,
        "events": found.events,
        "changes": len(found.timeline.changes),
        "until_s": found.until_s,
        "wall": found.wall,
        "out": None if out is None else str(out),
    }


# --- for people ---------------------------------------------------------------------------------------


def _print(found: Plan, *, whole: bool) -> None:
    console = output()
    scenario = found.scenario
    counts = "IP packets" if scenario.layer == 3 else "Ethernet frames"
    console.print(
        f"{scenario.name}: {len(scenario.hosts)} hosts, {len(scenario.links)} links, seed {scenario.seed}; rates count"
        f" {counts}\n",
        soft_wrap=True,
    )
    console.print(_hosts_table(scenario))
    if scenario.networks:
        console.print(_networks_table(scenario))
    if whole or len(found.links) <= LISTED:
        console.print(_links_table(found.links))
        console.print("emulated; rate: the mean; delay: one way\n", soft_wrap=True)
    else:
        console.print(_by_host(found))
        console.print(
            "emulated; the means of a host's links, and the least and the most of any of them at any time; --links"
            " lists them all\n",
            soft_wrap=True,
        )
    if found.events:
        most = len(found.events) if whole else EVENTS
        console.print(_events_table(found, most))
        if (more := len(found.events) - most) > 0:
            console.print(f"and {counted(more, 'event')} more; --all lists them\n", soft_wrap=True)
    for line in (*_machine(found), *(f"note: {note}" for note in scenario.notes)):
        console.print(line, soft_wrap=True)


def _hosts_table(scenario: Scenario) -> Table:
    table = new_table("host", "site", "preset", "interface", "up", "down", "cpus", "memory", left=TEXTS)
    for host in scenario.hosts.values():
        limits = (host.interfaces_bps, host.up_bps or {}, host.down_bps or {})
        memory = "" if host.memory_bytes is None else f"{host.memory_bytes / 2**20:.4g} MiB"
        site = f"{host.site or ''}{' (drawn)' if host.drawn else ''}"
        cpus = "" if host.cpus is None else f"{host.cpus:g}"
        table.add_row(host.name, site, host.preset or "", *map(_rates_text, limits), cpus, memory)
    return _without_empty(table)


def _rates_text(limits_bps: Mapping[str, float]) -> str:
    """Return the rates of a host's interfaces. A further network, which only some hosts share, is named."""
    return ", ".join(f"{format_rate(bps)}{'' if via == NET else f' ({via})'}" for via, bps in limits_bps.items())


def _networks_table(scenario: Scenario) -> Table:
    """Return the table of the networks, with prices in dollars (``Tariff``)."""
    table = new_table("network", "kind", "links", "$ a GB", "$ a link and hour", "$ a Gbit/s port and hour", left=TEXTS)
    for via, network in scenario.networks.items():
        count = sum(link.via == via for link in scenario.links)
        prices = (f"{price:g}" if price else "" for price in (network.per_gb, network.per_hour, network.per_port_hour))
        table.add_row(via, network.kind, str(count), *prices)
    return _without_empty(table)


def _links_table(links: list[LinkPlan]) -> Table:
    table = new_table("from", "to", "rate", "least", "most", "delay", "jitter", "loss", "more", "follows", left=TEXTS)
    for row in links:
        spread = (format_rate(row.min_bps), format_rate(row.max_bps)) if row.min_bps < row.max_bps else ("", "")
        jitter = "" if not row.jitter_s else f"{format_time(row.jitter_s)} {row.distribution}"
        table.add_row(
            row.src, row.link.goal, format_rate(row.mean_bps), *spread, format_time(row.delay_s) if row.delay_s else "",
            jitter, _share(row.loss), _more(row), row.follows or "",
        )  # fmt: skip
    return _without_empty(table)


def _more(one: LinkPlan) -> str:
    shares = [f"{key} {_share(value)}" for key in ("duplicate", "reorder", "corrupt") if (value := getattr(one, key))]
    if one.loss_burst:
        shares.append(f"bursts of {one.loss_burst:.3g} lost")
    burst = [f"burst {one.burst_bytes} bytes"] if one.burst_bytes else []
    queues = [f"{key} {value}" for key, value in (("queue", one.queue), ("MTU", one.mtu)) if value]
    return ", ".join([*shares, *burst, *queues])


def _by_host(found: Plan) -> Table:
    """Return a table with a line for every host, about the links to its peers."""
    table = new_table("from", "to", "rate", "least", "most", "delay", "least", "most", "loss, most", left=TEXTS)
    for name in found.scenario.hosts:
        mine = [row for row in found.links if row.src == name]
        if not mine:
            continue
        delays = [row.delay_s for row in mine]
        texts = [format_time(value) for value in (sum(delays) / len(delays), min(delays), max(delays))]
        table.add_row(
            name, f"{len(mine)} hosts", format_rate(sum(row.mean_bps for row in mine) / len(mine)),
            format_rate(min(row.min_bps for row in mine)), format_rate(max(row.max_bps for row in mine)),
            *(texts if max(delays) else ("", "", "")), _share(max(row.loss for row in mine)),
        )  # fmt: skip
    return _without_empty(table)


def _events_table(found: Plan, most: int) -> Table:
    table = new_table("at", "until", "event", "who", "what", "links", "times", left=TEXTS)
    for event in found.events[:most]:
        until = "for good" if event.until_s is None else format_time(event.until_s)
        if event.until_s is None and event.kind in ("flap", "churn"):
            until = f"{format_time(found.scenario.duration_s)} (duration)"
        times = sum(map(len, event.spans.values()))
        often = f"{times} until {format_time(found.until_s)}" if event.kind in ("flap", "churn") else ""
        table.add_row(format_time(event.at_s), until, event.kind, event.who, event.what, str(event.links), often)
    return _without_empty(table)


def _machine(found: Plan) -> list[str]:
    """Return lines about the load on this machine, and about the change to make if the load is too high."""
    scenario, wall = found.scenario, found.wall
    scale = scenario.time_scale
    lines = []
    if scale != 1:
        lines.append(f"time scale {scale:g}: {format_time(found.until_s)} of network in"
                     f" {format_time(found.until_s / scale)} on the wall, at {scale:g} times the rates")  # fmt: skip
    text = f"all links full at once: {format_rate(wall.full_bps)} of real traffic; this machine carries about"
    text += f" {format_rate(wall.carries_bps)}"
    if wall.full_bps > wall.carries_bps:
        most = scale * wall.carries_bps / wall.full_bps
        text += f", so at most {wall.carries_bps / wall.full_bps:.0%} of them can be busy at a time; all of them from"
        text += f" time_scale {most:.2g} down"
    lines.append(text)
    if wall.too_slow:
        lines.append(
            f"{wall.too_slow} links fall to {format_rate(wall.least_bps)} on the wall, and get"
            f" {format_rate(RATE_FLOOR_BPS)}, which is the least that a testbed sets: raise time_scale or link_mean"
        )
    if wall.too_fast:
        lines.append(
            f"{wall.too_fast} links rise to {format_rate(wall.most_bps)} on the wall, more than a testbed takes:"
            " lower time_scale or link_mean"
        )
    if scenario.needs_netem:
        lines.append(
            "kernel: needs netem, for delay, jitter, loss and the like (thalweg doctor says whether it is there)"
        )
    else:
        lines.append("kernel: needs no netem, there are rates and outages only")
    return lines


def _share(value: float) -> str:
    return f"{100 * value:.3g} %" if value else ""


def _without_empty(table: Table) -> Table:
    """Remove the columns without a text from a table, and return the table."""
    for column in [column for column in table.columns if not any(map(str, column._cells))]:
        table.columns.remove(column)
    for place, column in enumerate(table.columns):
        column._index = place  # by its index, rich knows the last column, which has no space on its right
    return table
