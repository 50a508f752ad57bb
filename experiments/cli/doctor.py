"""``thalweg doctor``: what this machine can do, and what to do about what it cannot."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from thalweg.emulation.capabilities import Capability, probe
from thalweg.experiments.cli.console import JsonOption, output, print_json
from thalweg.experiments.records.spark import find_java
from thalweg.middleware.client.membership.reachability import reach
from thalweg.middleware.errors import EXTRAS, CapabilityError, UsageError, absent, install
from thalweg.middleware.shell.security import Keys

MEANING = {
    "netns": "emulated WAN in network namespaces",
    "netem": "delays on links",
    "managed queues": "queues that keep themselves short",
    "host rates": "rates of all that a host sends",
    "user namespaces": "the same without root",
    "docker": "emulated WAN in containers",
    "user-mode linux": "delays without a kernel's netem",
    "records": "Arrow records between hosts, reports of testbeds",
    "analysis": "runs, tables, plots, sweeps",
    "java": "sweeps, and several runs at once, on Spark",
}


def doctor(
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="[NAME=]ENDPOINT",
            help="Check what reaches the host there: control messages, partitions, large messages.",
            show_default=False,
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Secret certificate to dial that host with.", show_default=False),
    ] = None,
    members: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the public certificates of all members.",
            show_default="members, beside --keys",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what this machine can do, and how to add what is missing.

    With --to it shows what reaches another host instead.

    Example: thalweg doctor

    Before a run, from the machine of the client and of each host: thalweg doctor --to tcp://192.0.2.7:7800
    """
    if to is not None:
        _show_reached(to, None if keys is None else Keys.load(keys, members), as_json=as_json)
        return
    if keys is not None or members is not None:
        raise UsageError("--keys and --members are for --to; give --to NAME=ENDPOINT")
    with ThreadPoolExecutor() as pool:
        java = pool.submit(_java)
        found = probe()
        rows = (*found.listed(), _extra("records"), _extra("analysis"), java.result())
    if as_json:
        body = {
            row.name.replace(" ", "_").replace("-", "_"): {"works": row.works, "detail": row.detail} for row in rows
        }
        more = {"cpus": found.cpus, "memory_bytes": found.memory_bytes}
        print_json({"capabilities": body, **more})
        return
    table = Table("what", "for", "works", "found, or what to do", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        mark = Text("yes", "green") if row.works else Text("no", "yellow")
        table.add_row(row.name, MEANING[row.name], mark, row.detail)
    output().print(table)
    print(f"{found.cpus} processors, {found.memory_bytes / 2**30:.1f} GiB of memory")


def _show_reached(to: str, keys: Keys | None, *, as_json: bool) -> None:
    """Print one line for each kind of message. Exit with status 1 if one does not pass."""
    name, _, endpoint = to.rpartition("=")
    found = []
    for each in reach(endpoint, name or None, keys):
        found.append(each)
        if not as_json:
            print(f"{each.what}, {each.endpoint}: {'passes' if each.passes else 'does not pass'}, {each.detail}")
    if as_json:
        print_json({"to": to, "reached": [each._asdict() for each in found]})
    if not all(each.passes for each in found):
        raise typer.Exit(1)


def _extra(name: str) -> Capability:
    """Return whether an extra's libraries are installed, and what installs those that are missing."""
    if names := absent(EXTRAS[name]):
        return Capability(name, False, f"{', '.join(names)} not installed; {install(name)}")
    return Capability(name, True, "its libraries are installed")


def _java() -> Capability:
    try:
        path, version = find_java()
    except CapabilityError as error:
        return Capability("java", False, str(error))
    return Capability("java", True, f"Java {version} at {path}")
