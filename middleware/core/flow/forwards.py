"""Forwarding of consumers' messages from host to host, with a limit."""

from __future__ import annotations

import msgspec

from thalweg.middleware.protocol import messages as m

MAX_FORWARDS = 8  # if a message is forwarded more often, locations run in a circle


def forwarded(message: m.Demand | m.SkipTo) -> m.Demand | m.SkipTo:
    """Return a consumer's message as this host forwards it, without the location and news of the consumer."""
    if isinstance(message, m.SkipTo):
        return msgspec.structs.replace(message, forwards=message.forwards + 1, version=0)
    return msgspec.structs.replace(message, forwards=message.forwards + 1, version=0, news=None, commit=None)
