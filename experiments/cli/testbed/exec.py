"""``thalweg testbed exec``: run a command on a host."""

from __future__ import annotations

import os
import signal
from typing import Annotated

import typer

from thalweg.emulation.testbeds import detached

IdOption = Annotated[str | None, typer.Option("--id", help="Which testbed; needed when several are up.")]


def execute(
    host: Annotated[str, typer.Argument(help="The host to run on: client, h1, …")],
    command: Annotated[list[str], typer.Argument(metavar="-- CMD…", help="The command and its arguments.")],
    identity: IdOption = None,
) -> None:
    """Run a command on a host of a testbed; its exit status becomes ours.

    Example: thalweg testbed exec h1 -- ip address
    """
    words = command[1:] if command[0] == "--" else command
    with detached.attach(detached.choose(identity)) as testbed:
        if testbed.backend == "docker" and os.isatty(0) and os.isatty(1):
            from thalweg.experiments.cli.testbed.terminal import run_on_terminal

            raise typer.Exit(_status(run_on_terminal(testbed, host, words)))
        process = testbed.run(host, words)
        previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for number in previous:
                signal.signal(number, lambda got, _: process.send_signal(got))
            code = process.wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
    raise typer.Exit(_status(code))


def _status(code: int) -> int:
    """An exit status as a shell has it."""
    return code if code >= 0 else 128 - code
