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
            metavar="[ID]",
            help="Which one, by its id, its name or what only that begins with; all of yours by default.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Take testbeds down, and remove what crashed ones left; nothing to do is no error, an unknown ID is.

    Example: thalweg testbed down
    """
    removed = detached.take_down(identity)
    say(as_json, {"removed": removed}, "\n".join(f"removed {one}" for one in removed) or "nothing to remove")
