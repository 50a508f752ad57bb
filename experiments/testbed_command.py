"""``thalweg testbed``: bring an emulated WAN up, use it, take it down."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from thalweg.emulation import netns_detached as detached
from thalweg.emulation.netns import SUBNET, NetnsTestbed
from thalweg.emulation.rates import format_rate, parse_rate
from thalweg.emulation.testbed import LinkProof, LinkShape
from thalweg.middleware.errors import TestbedError, UsageError

WIDTH = 110
PROOF_LIMIT = 0.05  # what a link may be off by, wherever at least PROOF_FROM_BPS was asked
PROOF_FROM_BPS = 0.5e6

app = typer.Typer(name="testbed", no_args_is_help=True, help="Launch an emulated WAN and use it.")

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
IdOption = Annotated[str | None, typer.Option("--id", help="Which testbed; needed when several are up.")]


def host_names(count: int) -> list[str]:
    """``client``, then ``h1``, ``h2``, …"""
    if count < 1:
        raise UsageError(f"--hosts is {count}; a testbed needs at least one host")
    return ["client", *(f"h{i}" for i in range(1, count))]


def _say(json: bool, value: Any, text: str) -> None:
    typer.echo(msgspec.json.encode(value).decode() if json else text)


@app.command("up")
def up(
    backend: Annotated[str, typer.Option(help="Only netns outlives its launcher.")] = "netns",
    hosts: Annotated[int, typer.Option(help="How many: client, h1, h2, …")] = 9,
    rate: Annotated[str | None, typer.Option(help="The same rate on every link, as tc writes it: 10mbit.")] = None,
    delay: Annotated[float, typer.Option(metavar="SECONDS", help="One way, on every link; needs netem.")] = 0.0,
    traces: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Replay traces of this folder, one drawn for every link.")
    ] = None,
    time_scale: Annotated[float, typer.Option(help="Replay this many times faster, at rates as much higher.")] = 1.0,
    link_mean: Annotated[str | None, typer.Option(metavar="RATE", help="Scale the traces to this mean rate.")] = None,
    seed: Annotated[int, typer.Option(help="Draws the traces.")] = 1,
    subnet: Annotated[str, typer.Option(help="Addresses of the hosts, seen only inside.")] = SUBNET,
    layer: Annotated[int, typer.Option(help="What rates count: 3 IP packets, 2 Ethernet frames.")] = 3,
    json: JsonOption = False,
) -> None:
    """Bring up a testbed that stays until `testbed down`; with neither --rate nor --traces its links are unshaped.

    Example: thalweg testbed up --hosts 9 --rate 10mbit
    """
    if backend != "netns":
        raise UsageError(f"testbed {backend!r} cannot be kept up; there is netns (loopback needs no launching)")
    if rate is not None and traces is not None:
        raise UsageError("--rate and --traces exclude each other; give one of them")
    started = time.monotonic()
    names = host_names(hosts)
    pairs = [(a, b) for a in names for b in names if a != b]
    shape = LinkShape(parse_rate(rate), delay) if rate is not None else None
    assigned = _assigned(traces, names, link_mean, seed) if traces is not None else None

    def prepare(testbed: NetnsTestbed) -> None:
        if shape is not None:
            testbed.shape(dict.fromkeys(pairs, shape))
        elif assigned is not None:
            testbed.replay(assigned, time_scale, sample_interval_s=None).start()

    testbed = NetnsTestbed(names, subnet=subnet, layer=layer)
    state = detached.launch(testbed, prepare)
    links = len(pairs) if shape is not None or assigned is not None else 0
    seconds = time.monotonic() - started
    text = f"testbed {state.id}: {hosts} hosts ({names[0]} … {names[-1]}), {links} shaped links, up in {seconds:.2f} s"
    value = {"id": state.id, "hosts": dict(testbed.hosts), "links": links, "seconds": seconds}
    _say(json, {**value, "delay_emulated": testbed.delay_emulated}, text)


def _assigned(folder: Path, names: list[str], link_mean: str | None, seed: int) -> dict[tuple[str, str], Any]:
    from thalweg.emulation.trace_files import load_pool
    from thalweg.emulation.trace_pool import assign_traces, scale_pool

    pool = load_pool(folder)
    return assign_traces(pool if link_mean is None else scale_pool(pool, parse_rate(link_mean)), names, seed)


@app.command("status")
def status(json: JsonOption = False) -> None:
    """List the testbeds that are up, and those that crashed.

    Example: thalweg testbed status
    """
    rows: list[dict[str, Any]] = []
    for state in detached.known_testbeds():
        row: dict[str, Any] = {
            "id": state.id,
            "backend": state.backend,
            "alive": state.alive,
            "hosts": list(state.hosts),
        }
        if state.alive:
            try:
                client = detached.connect(state)
            except TestbedError:
                row["alive"] = False
            else:
                answer = client.call("status")
                client.close()
                row |= {
                    "links": len(answer["rates"]),
                    "replaying": answer["replaying"],
                    "processes": answer["processes"],
                }
        rows.append(row)
    if json:
        _say(True, {"testbeds": rows}, "")
    elif not rows:
        typer.echo("no testbed is up")
    for row in [] if json else rows:
        if row["alive"]:
            what = f"{row['links']} links{' replaying' if row['replaying'] else ''}, {len(row['processes'])} processes"
        else:
            what = f"crashed; remove it with: thalweg testbed down {row['id']}"
        typer.echo(f"{row['id']}  {row['backend']}  {len(row['hosts'])} hosts  {what}")


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
    raise typer.Exit(code if code >= 0 else 128 - code)


@app.command("down")
def down(
    identity: Annotated[str | None, typer.Argument(metavar="[ID]", help="Which one; all of yours by default.")] = None,
    json: JsonOption = False,
) -> None:
    """Take testbeds down, and remove what crashed ones left; nothing to do is not an error.

    Example: thalweg testbed down
    """
    removed = detached.take_down(identity)
    _say(json, {"removed": removed}, "\n".join(f"removed {one}" for one in removed) or "nothing to remove")


@app.command("verify")
def verify(identity: IdOption = None, json: JsonOption = False) -> None:
    """Fill every link and compare what it delivers with what it was asked; exit status 1 if one is off by over 5 %.

    A replay is stopped for it, and started over after it.

    Example: thalweg testbed verify
    """
    state = detached.choose(identity)
    testbed = detached.attach(state)
    try:
        client = detached.connect(state)
        try:
            replaying = client.call("status")["replaying"]
            if replaying:
                client.call("replay_stop")
                testbed.recall((a, b, rate) for a, b, rate in client.call("status")["rates"])
            try:
                proofs = testbed.prove()
            finally:
                if replaying:
                    client.call("replay_start")
        finally:
            client.close()
    finally:
        testbed.down()
    if not proofs:
        raise UsageError(f"testbed {state.id} has no shaped links; bring it up with --rate or --traces")
    checked = [one for one in proofs if one.asked_bps >= PROOF_FROM_BPS]
    worst = max((abs(one.error) for one in checked), default=0.0)
    if json:
        links = {"checked": len(checked), "worst_rate_error": worst, "delay_emulated": testbed.delay_emulated}
        typer.echo(msgspec.json.encode({"id": state.id, "links": links, "proofs": proofs}).decode())
    else:
        _table(proofs)
        typer.echo(f"{len(checked)} of {len(proofs)} links asked for 0.5 Mbit/s or more; worst error {worst:.2%}")
    if worst > PROOF_LIMIT:
        raise typer.Exit(1)


def _table(proofs: list[LinkProof]) -> None:
    table = Table("from", "to", "asked", "delivered", "error", box=None, pad_edge=False, header_style="bold")
    for one in sorted(proofs, key=lambda one: -abs(one.error)):
        table.add_row(one.src, one.dst, format_rate(one.asked_bps), format_rate(one.delivered_bps), f"{one.error:+.2%}")
    console = Console()
    (console if console.is_terminal else Console(width=int(os.environ.get("COLUMNS", WIDTH)))).print(table)
