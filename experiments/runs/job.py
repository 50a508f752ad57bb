"""What the launcher of a run and the client's worker say to each other: JSON, one object a line.

The job goes in and ``ready`` comes out; then for every placement ``go`` goes in, and ``planned``, ``delivered`` …,
``done`` come out (for a plan made ahead, ``planned`` alone). ``failed`` is the last that a worker says.
"""

from __future__ import annotations

from typing import Any

import msgspec

from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.planning import CostParameters
from thalweg.middleware.protocol.limits import MonitorConfig


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the worker is to do.

    ``addresses`` are the hosts' control endpoints; ``strategies`` has the options of every placement's.
    """

    dataflow: Dataflow
    addresses: dict[str, str]
    listen: str
    insecure: bool
    allow: tuple[str, ...]
    time_scale: float
    images: int
    pictures: int
    cost: str
    cost_options: dict[str, Any]
    strategies: dict[str, dict[str, Any]]
    monitor: MonitorConfig
    costs: CostParameters
    records: str
    pictures_to: str


class Go(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Start ``placement`` now, or with ``ahead`` plan for it and no more.

    ``truth``: the emulator's own (source, target, bit/s), when planners are to have it.
    """

    placement: str
    truth: list[tuple[str, str, float]] | None = None
    ahead: bool = False


class Word(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the worker says; which fields are set depends on ``event``."""

    event: str
    placement: str = ""
    index: int = -1
    message: str = ""
    usage: bool = False
    detail: dict[str, Any] = {}
