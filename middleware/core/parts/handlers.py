"""Record of the methods by which a part of a run handles messages and events. ``PartTable`` is made of records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Handlers(NamedTuple):
    """Methods of a part by the kind of thing handled.

    ``messages``, ``events`` and ``notes``: by class. ``timers``: by ``Timer``. ``transfers``: for ends of transfers, by
    the class of the message that was sent in chunks.
    """

    messages: Mapping[type[Any], Any] = {}
    events: Mapping[type[Any], Any] = {}
    notes: Mapping[type[Any], Any] = {}
    timers: Mapping[str, Any] = {}
    transfers: Mapping[type[Any], Any] = {}
