"""Short texts about processes on hosts: the command, and how it ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from thalweg.middleware.errors import one_line


def short_command(words: Sequence[str], most: int) -> str:
    """Return a command in one line of at most ``most`` characters, without the folder of its program."""
    text = one_line(" ".join([os.path.basename(words[0]), *words[1:]])) if words else ""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def ending(status: int) -> str:
    """Return how a process has ended, as ``with 1`` or ``by SIGTERM``.

    ``status``: as in subprocess, so ``-signal`` if a signal has ended the process.
    """
    if status >= 0:
        return f"with {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:  # a signal without a name
        return f"by signal {-status}"
