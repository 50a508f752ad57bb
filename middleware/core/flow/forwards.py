"""How often a message for a node is passed on from host to host."""

from __future__ import annotations

import msgspec

from thalweg.middleware.protocol import messages as m

MAX_FORWARDS = 8  # a chain of forwards longer than this means that locations run in a circle


def forwarded(message: m.Demand | m.SkipTo) -> m.Demand | m.SkipTo:
    """Return a consumer's message as this host passes it on. It does not say where the consumer is."""
    if isinstance(message, m.SkipTo):
        return msgspec.structs.replace(message, forwards=message.forwards + 1, version=0)
    return msgspec.structs.replace(message, forwards=message.forwards + 1, version=0, news=None, commit=None)
