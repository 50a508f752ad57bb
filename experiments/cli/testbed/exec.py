"""``thalweg testbed exec`` and ``thalweg testbed logs``: commands on hosts."""

from __future__ import annotations

from typing import Annotated

import typer

from thalweg.experiments.cli.testbed import running

IdOption = Annotated[
    str | None, typer.Option("--id", help="Which testbed, if several are up: its id or name, or what it begins with.")
]


def execute(
    words: Annotated[list[str] | None, typer.Argument(metavar="HOST -- CMD…", help="Where, and the command.")] = None,
    identity: IdOption = None,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Leave it running; `testbed logs` shows what it writes.")
    ] = False,
    everywhere: Annotated[bool, typer.Option("--all", help="On all hosts at once: exec --all -- CMD…")] = False,
) -> None:
    """Run a command on a host of a testbed; its exit status becomes ours, of several the highest.

    On a terminal it has one too, so that a shell has job control: exec h1 -- bash

    Example: thalweg testbed exec h1 -- ip address
    """
    raise typer.Exit(running.execute(running.asked(words or [], identity, stay=detach, everywhere=everywhere)))


def logs(
    host: Annotated[str | None, typer.Argument(metavar="HOST", help="All hosts by default.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with the last one, until it ends.")] = False,
    identity: IdOption = None,
) -> None:
    """Print what processes that `exec -d` has started have written, the first first.

    Example: thalweg testbed logs h1 -f
    """
    raise typer.Exit(running.logs(host, identity, follow=follow))
