"""Verbs of ``thalweg``, with a line of help for each verb. A verb is imported when it runs."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from thalweg.experiments.cli.commands import Verb, group

RUNS, PLANNING, EMULATION = "Runs", "Planning", "Emulated networks"
DEPLOYMENT, MACHINE = "Real machines", "This machine"
# The daemon reads its options itself, also -h.
UNREAD = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": list[str]()}

VERBS = {
    "run": Verb("run:run", "Run one workload on one testbed under one or more placements.", RUNS),
    "analyze": Verb("analyze:analyze", "Make tables and plots of run folders, or the figures of sweeps.", RUNS),
    "report": Verb("report:report", "Write one HTML page about any number of runs and sweeps.", RUNS),
    "compare": Verb("compare:compare", "Compare simulated runs with emulated runs of the same seeds.", RUNS),
    "sweep": Verb("sweep:sweep", "Simulate many network configurations on Spark.", RUNS),
    "testbed": Verb("testbed.app:app", "Launch an emulated WAN and use it.", EMULATION),
    "traces": Verb("traces:app", "List, describe, import and generate bandwidth traces.", EMULATION),
    "place": Verb("place:place", "Solve a placement problem from a file.", PLANNING),
    "provision": Verb("provision:provision", "Find the cheapest machines for a tree of operators.", PLANNING),
    "host": Verb("verbs:host", "Run a host daemon, or end one when its operators have moved away.", DEPLOYMENT, UNREAD),
    "keys": Verb("keys:app", "Manage the certificates of hosts and clients.", DEPLOYMENT),
    "doctor": Verb("doctor:doctor", "Show what this machine can do, and how to add what is missing.", MACHINE),
    "bench": Verb("bench:app", "Measure performance side by side with alternatives.", MACHINE),
}

app = group(
    "thalweg",
    """Combine data over a wide-area network with operators that move, and emulate that network from real traces.

    See what this machine can do: thalweg doctor

    Bring up an emulated WAN for any program: thalweg testbed up --hosts 9 --rate 10mbit

    Compare two placements in virtual time, and read the result: thalweg run --testbed sim --placement one-shot
    --placement thalweg --images 60 --out runs/a
    """,
    VERBS,
    add_completion=True,
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # takes as long to import as the rest of --help

        print(f"thalweg {version('thalweg')}")
        raise typer.Exit


@app.callback()
def _all(
    asked: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    if debug:
        os.environ["THALWEG_DEBUG"] = "1"


def host(context: typer.Context) -> None:
    """Run a host daemon, or end one when its operators have moved away."""
    from thalweg.experiments.cli.host import execute

    raise typer.Exit(execute(context.args))
