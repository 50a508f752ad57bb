"""A person's terminal, lent to a process in a container."""

from __future__ import annotations

import os
import signal
import termios
import tty
from collections.abc import Sequence

from thalweg.emulation.supervisor.client import Command
from thalweg.emulation.testbeds.docker import DockerTestbed
from thalweg.emulation.testbeds.testbed import Testbed


def run_on_terminal(testbed: Testbed, host: str, words: Sequence[str]) -> int:
    """Run a command with our terminal, raw while it runs, and as it was afterwards; its exit status."""
    assert isinstance(testbed, DockerTestbed)
    before = termios.tcgetattr(0)
    environment = {"TERM": os.environ.get("TERM", "xterm")}
    process = testbed.execute(host, Command(words, environment), terminal=True)

    def fit(*_: object) -> None:
        size = os.get_terminal_size(1)
        process.resize(size.lines, size.columns)

    previous = signal.signal(signal.SIGWINCH, fit)
    try:
        tty.setraw(0)
        fit()
        return process.wait()
    finally:
        signal.signal(signal.SIGWINCH, previous)
        termios.tcsetattr(0, termios.TCSADRAIN, before)
