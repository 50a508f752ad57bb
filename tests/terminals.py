"""Pseudo-terminal for tests, with typed input and displayed output."""

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
    """Process of ``thalweg`` with a pseudo-terminal as its controlling terminal."""

    def __init__(self, *words: str, size: tuple[int, int] = (24, 80)) -> None:
        self._ours, slave = os.openpty()
        self.resize(size)
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        self.process = subprocess.Popen(
            [*THALWEG, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
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
        """Return the output from now on, up to and including ``wanted``."""
        shown, stop = "", time.monotonic() + patience(WAIT_S)
        while wanted not in shown:
            assert select.select([self._ours], [], [], max(0.0, stop - time.monotonic()))[0], shown
            shown += os.read(self._ours, 1 << 16).decode()
        return shown

    def begin(self) -> None:
        """Wait for the shell, then set a prompt without an echo of typed text."""
        self.until("# ")
        self.ask("stty -echo; PS1='READY''> '")

    def ask(self, command: str) -> list[str]:
        """Type a command or a key into the shell, and return the lines of output."""
        self.type(command if command in (CTRL_C, CTRL_Z) else f"{command}\n")
        return self.until("READY> ").split("\r\n")[:-1]

    @property
    def restored(self) -> bool:
        """Return whether the terminal has its first settings again."""
        return termios.tcgetattr(self._slave) == self.before
