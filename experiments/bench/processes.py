"""Python processes of a benchmark's other sides, which end with this one."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

from thalweg.middleware.client.cluster import host_environment, wait_ready_lines

START_S = 30.0


class Pythons:
    """Named processes that print a line of JSON when ready, take lines on standard input, and end when it closes."""

    def __init__(self) -> None:
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, module: str, role: str, spec: dict[str, Any]) -> None:
        """``python -m module role spec``, with ``spec`` as JSON."""
        self._processes[name] = subprocess.Popen(
            [sys.executable, "-m", module, role, json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=host_environment(),
            start_new_session=True,
        )

    def ready(self) -> dict[str, dict[str, str]]:
        """What each process said; HostLostError for one that ended or stays silent for ``START_S``."""
        pipes = {name: process.stdout.fileno() for name, process in self._processes.items() if process.stdout}
        return wait_ready_lines(pipes, START_S)

    def tell(self, name: str, line: Any) -> None:
        """Write a line of JSON to a process."""
        stream = self._processes[name].stdin
        assert stream is not None
        stream.write(json.dumps(line).encode() + b"\n")
        stream.flush()

    def close(self) -> None:
        """Close their standard inputs, and wait; idempotent."""
        for process in self._processes.values():
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        for process in self._processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self._processes.clear()
