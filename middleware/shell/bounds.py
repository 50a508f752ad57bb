"""Bounds of unread data on connections of a host. The sockets and the guard of the host enforce the bounds."""

from __future__ import annotations

ANSWERS_UNREAD, ANSWER_BYTES = 8, 64 * 1024  # messages and bytes that wait on each dealer, by its options
OVERHEAD_BYTES = 64  # most overhead of a message on the wire; a surplus is forgotten at the next check
GLANCE_S = 0.02  # longest time between two checks of the memory while connections are calm
EARLY_S = GLANCE_S / 2  # a thread that is awake checks this much sooner, as waking up costs more
