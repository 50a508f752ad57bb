"""``thalweg doctor``: what this machine can do, and what to do about what it cannot."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from rich.table import Table
from rich.text import Text

from thalweg.emulation.capabilities import Capability, probe
from thalweg.experiments.cli.console import JsonOption, output, print_json
from thalweg.experiments.records.spark import find_java
from thalweg.middleware.errors import EXTRAS, CapabilityError, absent, install

MEANING = {
    "netns": "emulated WAN in network namespaces",
    "netem": "delays on links",
    "user namespaces": "the same without root",
    "docker": "emulated WAN in containers",
    "user-mode linux": "delays without a kernel's netem",
    "records": "Arrow records between hosts",
    "analysis": "runs, tables, plots, sweeps",
    "java": "sweeps, and several runs at once, on Spark",
}


def doctor(
    as_json: JsonOption = False,
) -> None:
    """Show what this machine can do, and how to add what is missing.

    Example: thalweg doctor
    """
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
