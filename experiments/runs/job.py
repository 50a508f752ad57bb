"""What the launcher of a run and the client's worker say to each other: JSON, one object a line.

The job goes in and ``ready`` comes out; then for every placement ``go`` goes in, and ``planned``, ``delivered`` …,
``done`` come out (for a plan made ahead, ``planned`` alone). ``failed`` is the last that a worker says. At any time it
is told of hosts that have ended, and that are there again.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from thalweg.experiments.run_config import RunConfig
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.network.tariffs import Tariff
from thalweg.middleware.protocol.messages import Failover


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the worker is to do, and where.

    ``options`` are those of every placement's strategy; ``addresses`` are the hosts' control endpoints;
    ``records`` and ``pictures`` folders as the client's host sees them. ``failover``: how the run outlives its hosts.
    ``ends``: where the client listens for bulk in further networks; ``tariffs`` and ``rented``: what networks cost, and
    the links of those that are rented, bit/s.
    """

    config: RunConfig
    dataflow: Dataflow
    options: dict[str, dict[str, Any]]
    addresses: dict[str, str]
    listen: str
    records: str
    pictures: str
    failover: Failover | None = None
    ends: dict[str, str] = {}
    tariffs: dict[str, Tariff] = {}
    rented: list[tuple[tuple[str, ...], float]] = []


class Ended(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """The process on ``host`` has ended: ``how`` goes on its name."""

    host: str
    how: str


class There(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """A process on ``host`` listens at ``control``."""

    host: str
    control: str


class Go(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Start ``placement`` now, or with ``ahead`` plan for it and no more.

    ``truth``: the emulator's own links and their bit/s, when planners are to have it.
    """

    placement: str
    truth: list[tuple[tuple[str, ...], float]] | None = None
    ahead: bool = False


Told = Go | Ended | There


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
