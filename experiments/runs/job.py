"""What the launcher of a run and the client's worker say to each other: JSON, one object a line.

The job goes in and ``ready`` comes out; then for every placement ``go`` goes in, and ``planned``, ``delivered`` …,
``done`` come out (for a plan made ahead, ``planned`` alone). ``failed`` is the last that a worker says.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from thalweg.experiments.runs.config import RunConfig
from thalweg.middleware.dataflow import Dataflow


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the worker is to do, and where.

    ``addresses`` are the hosts' control endpoints; ``records`` and ``pictures`` folders as the client's host sees them.
    """

    config: RunConfig
    dataflow: Dataflow
    addresses: dict[str, str]
    listen: str
    records: str
    pictures: str


class Go(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Start ``placement`` now, or with ``ahead`` plan for it and no more.

    ``truth``: the emulator's own (source, target, bit/s), when planners are to have it.
    """

    placement: str
    truth: list[tuple[str, str, float]] | None = None
    ahead: bool = False


class Said(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the worker says; which fields are set depends on ``event``."""

    event: str
    placement: str = ""
    index: int = -1
    message: str = ""
    usage: bool = False
    detail: dict[str, Any] = {}


def say(said: Said) -> None:
    """One line out."""
    os.write(1, msgspec.json.encode(said) + b"\n")
