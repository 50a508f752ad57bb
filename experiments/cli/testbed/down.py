"""``thalweg testbed down``: take testbeds down."""

from __future__ import annotations

from typing import Annotated

import typer

from thalweg.emulation.testbeds import detached
from thalweg.experiments.cli.console import JsonOption, say


def down(
    identity: Annotated[
        str | None,
        typer.Argument(
            metavar="ID",
            help="Id or name of a testbed, or the beginning of one. Without it, all of yours are taken down.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Take testbeds down, and remove what crashed ones left.

    Exit status 0 if there is nothing to do, 2 for an unknown ID.

    Example: thalweg testbed down
    """
    removed = detached.take_down(identity)
    say(as_json, {"removed": removed}, "\n".join(f"removed {one}" for one in removed) or "nothing to remove")
