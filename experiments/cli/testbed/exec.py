"""``thalweg testbed exec`` and ``thalweg testbed logs``: commands on hosts."""

from __future__ import annotations

from typing import Annotated

import typer

from thalweg.experiments.cli import execution

IdOption = Annotated[
    str | None,
    typer.Option("--id", metavar="ID", help="Id or name of the testbed, or the beginning of one, if several are up."),
]


def execute(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="HOST -- CMD…", help="Host, and the command to run there.")
    ] = None,
    identity: IdOption = None,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Leave the command running. `testbed logs` shows its output.")
    ] = False,
    everywhere: Annotated[
        bool, typer.Option("--all", help="Run the command on all hosts at once: exec --all -- CMD…")
    ] = False,
) -> None:
    """Run a command on a host of a testbed.

    The exit status is the command's. With --all it is the highest of all hosts. On a terminal the command has a
    terminal too, so a shell has job control.

    Example: thalweg testbed exec h1 -- ip address

    A shell on a host: thalweg testbed exec h1 -- bash
    """
    raise typer.Exit(execution.execute(execution.asked(words or [], identity, stay=detach, everywhere=everywhere)))


def logs(
    host: Annotated[str | None, typer.Argument(metavar="HOST", help="Host. Without it, all hosts.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow the last process until it ends.")] = False,
    identity: IdOption = None,
) -> None:
    """Print the output of processes that `exec -d` started.

    The oldest process comes first.

    Example: thalweg testbed logs h1 -f
    """
    raise typer.Exit(execution.logs(host, identity, follow=follow))
