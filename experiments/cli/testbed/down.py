"""``thalweg testbed down``: removal of testbeds."""

from __future__ import annotations

from typing import Annotated

import typer

from thalweg.emulation.testbeds import detached
from thalweg.emulation.testbeds.known import known_testbeds
from thalweg.experiments.cli.console import JsonOption, say
from thalweg.middleware.errors import UsageError


def down(
    identity: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="Id or name of a testbed, or the beginning of one. Without it, your only testbed is taken down.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Take all of your testbeds down.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Take testbeds down, and remove what crashed ones left.

    The exit status is 0 if there is nothing to do. It is 2 if ID is unknown, or if several testbeds are up and no ID is
    given.

    Example: thalweg testbed down

    All of them: thalweg testbed down --all
    """
    if everything and identity is not None:
        raise UsageError(f"--all takes all testbeds down; leave it out for {identity!r} alone")
    up = [state.id for state in known_testbeds() if state.alive]
    if identity is None and len(up) > 1 and not everything:
        raise UsageError(f"{len(up)} testbeds are up: {', '.join(up)}; name the one to take down, or give --all")
    removed = detached.take_down(identity)
    say(as_json, {"removed": removed}, "\n".join(f"removed {name}" for name in removed) or "nothing to remove")
