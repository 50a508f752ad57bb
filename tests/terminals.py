"""A terminal, with somebody who types at it and reads what it shows."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import sys
import termios
import time
from types import TracebackType
from typing import Self

from patience import patience

THALWEG = (sys.executable, "-m", "thalweg")
WAIT_S = 30.0
CTRL_C, CTRL_Z = "\x03", "\x1a"


class Terminal:
    """``thalweg`` with some words, on a pseudo-terminal that controls it."""

    def __init__(self, *words: str, size: tuple[int, int] = (24, 80)) -> None:
        self._ours, theirs = os.openpty()
        self.resize(size)
        self.before = termios.tcgetattr(theirs)
        self._slave = theirs
        self.process = subprocess.Popen(
            [*THALWEG, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._slave)

    def resize(self, size: tuple[int, int]) -> None:
        termios.tcsetwinsize(self._ours, size)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, wanted: str) -> str:
        """What is shown from now on, up to and with ``wanted``."""
        shown, stop = "", time.monotonic() + patience(WAIT_S)
        while wanted not in shown:
            assert select.select([self._ours], [], [], max(0.0, stop - time.monotonic()))[0], shown
            shown += os.read(self._ours, 1 << 16).decode()
        return shown

    def begin(self) -> None:
        """Wait for the shell, and have it tell when it is ready; it echoes nothing more."""
        self.until("# ")
        self.ask("stty -echo; PS1='READY''> '")

    def ask(self, command: str) -> list[str]:
        """Give the shell a command, or a key, and read the lines that come of it."""
        self.type(command if command in (CTRL_C, CTRL_Z) else f"{command}\n")
        return self.until("READY> ").split("\r\n")[:-1]

    @property
    def restored(self) -> bool:
        """Whether the terminal is as it was."""
        return termios.tcgetattr(self._slave) == self.before
