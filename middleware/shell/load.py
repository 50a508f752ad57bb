"""What this process takes of the machine."""

from __future__ import annotations

import psutil


class HostLoad:
    """CPU share since the last sample (1.0 is one core) and resident memory in bytes."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()

    def sample(self) -> tuple[float, int]:
        return self._process.cpu_percent() / 100.0, self._process.memory_info().rss
