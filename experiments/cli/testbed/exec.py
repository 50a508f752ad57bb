"""``thalweg testbed exec``: run a command on a host."""

from __future__ import annotations

import os
import signal
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from thalweg.emulation.supervisor.client import Command
from thalweg.emulation.testbeds import detached
from thalweg.emulation.testbeds.testbed import Testbed

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
            status = _run_on_terminal(testbed, host, words)
        else:
            process = testbed.run(host, words)
            with _handling(lambda number, _: process.send_signal(number), signal.SIGINT, signal.SIGTERM):
                status = process.wait()
    raise typer.Exit(status if status >= 0 else 128 - status)  # as a shell has it


def _run_on_terminal(testbed: Testbed, host: str, words: Sequence[str]) -> int:
    """Run a command in a container with our terminal, raw while it runs, and as it was afterwards; its exit status."""
    from thalweg.emulation.testbeds.docker import DockerTestbed

    assert isinstance(testbed, DockerTestbed)
    before = termios.tcgetattr(0)
    environment = {"TERM": os.environ.get("TERM", "xterm")}
    process = testbed.execute(host, Command(words, environment), terminal=True)

    def fit(*_: object) -> None:
        size = os.get_terminal_size(1)
        process.resize(size.lines, size.columns)

    with _handling(fit, signal.SIGWINCH):
        try:
            tty.setraw(0)
            fit()
            return process.wait()
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextmanager
def _handling(handler: Callable[[int, Any], object], *numbers: signal.Signals) -> Iterator[None]:
    """What happens on these signals, while the context lasts."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in previous.items():
            signal.signal(number, former)
