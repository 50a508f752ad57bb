"""Bounds of the data that waits on a host's connections. The host's sockets keep them, and its guard watches them."""

from __future__ import annotations

ANSWERS_UNREAD, ANSWER_BYTES = 8, 64 * 1024  # of each dealer, as its options say
OVERHEAD_BYTES = 64  # of a message on the wire, at most; what is taken for more is forgotten at the next look
GLANCE_S = 0.02  # at most between two glances at the process while all is calm: whether it has grown
EARLY_S = GLANCE_S / 2  # so much sooner who is awake glances: waking it up costs more
