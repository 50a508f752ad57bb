"""``thalweg doctor``: the capabilities of this machine, and how to add missing capabilities."""

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
            help="Check that control messages, partitions and large messages reach the host at this endpoint.",
            show_default=False,
        ),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Secret certificate to dial the host of --to with.", show_default=False),
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

    With --to, show instead which kinds of messages reach a host.

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
        machine = probe()
        rows = (*machine.listed(), _extra("records"), _extra("analysis"), java.result())
    if as_json:
        body = {
            row.name.replace(" ", "_").replace("-", "_"): {"works": row.works, "detail": row.detail} for row in rows
        }
        more = {"cpus": machine.cpus, "memory_bytes": machine.memory_bytes}
        print_json({"capabilities": body, **more})
        return
    table = Table("what", "for", "works", "found, or what to do", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        mark = Text("yes", "green") if row.works else Text("no", "yellow")
        table.add_row(row.name, MEANING[row.name], mark, row.detail)
    output().print(table)
    print(f"{machine.cpus} processors, {machine.memory_bytes / 2**30:.1f} GiB of memory")


def _show_reached(to: str, keys: Keys | None, *, as_json: bool) -> None:
    """Print whether messages of every kind reach the host ``to``. Exit with status 1 if a kind does not pass."""
    name, _, endpoint = to.rpartition("=")
    results = []
    for result in reach(endpoint, name or None, keys):
        results.append(result)
        if not as_json:
            print(
                f"{result.what}, {result.endpoint}: {'passes' if result.passes else 'does not pass'}, {result.detail}"
            )
    if as_json:
        print_json({"to": to, "reached": [result._asdict() for result in results]})
    if not all(result.passes for result in results):
        raise typer.Exit(1)


def _extra(name: str) -> Capability:
    """Return the capability of an extra. If libraries are missing, the detail names the command to install them."""
    if names := absent(EXTRAS[name]):
        return Capability(name, False, f"{', '.join(names)} not installed; {install(name)}")
    return Capability(name, True, "its libraries are installed")


def _java() -> Capability:
    try:
        path, version = find_java()
    except CapabilityError as error:
        return Capability("java", False, str(error))
    return Capability("java", True, f"Java {version} at {path}")
