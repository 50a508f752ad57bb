"""What a host may use of the machine where nobody says it."""

from __future__ import annotations

CPUS = 1.0
MEMORY_BYTES = 512 << 20
