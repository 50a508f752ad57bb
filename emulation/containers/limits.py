"""Options of containers: the image, and the limits of what a container may use of the machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from thalweg.middleware.errors import UsageError

CPUS = 1.0
MEMORY_BYTES = 512 << 20
LEAST_CPUS, MOST_CPUS, LEAST_MEMORY_BYTES = 0.01, 1024, 6 << 20


class Containers(msgspec.Struct, frozen=True):
    """Options of a testbed's containers. ``image``: None for the image of this version.

    ``cpus``, ``memory_bytes``: limits of every host, or by host. ``mounts``: folders that hosts can read at their own
    path. ``serve``: every container runs ``thalweg host``. Without it a container idles until ``run`` is called.
    ``same_code``: refuse an image of a different state of Thalweg.
    """

    image: str | None = None
    cpus: float | Mapping[str, float] = CPUS
    memory_bytes: int | Mapping[str, int] = MEMORY_BYTES
    mounts: Sequence[Path] = ()
    serve: bool = False
    same_code: bool = False

    def cpus_of(self, host: str) -> float:
        return self.cpus[host] if isinstance(self.cpus, Mapping) else self.cpus

    def memory_of(self, host: str) -> int:
        return self.memory_bytes[host] if isinstance(self.memory_bytes, Mapping) else self.memory_bytes

    def check(self, hosts: Iterable[str]) -> None:
        """Raise UsageError for limits with which no container runs."""
        for name in hosts:
            if not LEAST_CPUS <= self.cpus_of(name) <= MOST_CPUS:
                raise UsageError(f"host {name!r} may use {self.cpus_of(name):g} processors; give it 0.01 or more")
            if self.memory_of(name) < LEAST_MEMORY_BYTES:
                raise UsageError(f"host {name!r} has {self.memory_of(name)} bytes of memory; give it 6 MiB or more")
