"""Messages between the launcher of a run and the client's worker: JSON, one object a line.

The launcher sends the job, and the worker answers ``ready``. For every placement, the launcher sends ``go``, and the
worker answers ``planned``, ``delivered`` …, ``done`` (for a plan made ahead, only ``planned``). ``failed`` is the
worker's last message. The launcher reports hosts that have ended or are back at any time.
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
    """Job of the worker: configuration, dataflow and endpoints of a run.

    ``options``: options of every placement's strategy. ``addresses``: the hosts' control endpoints. ``records``,
    ``pictures``: folders as the client's host sees them. ``failover``: failover of the run. ``ends``: endpoints of the
    client for bulk in further networks. ``tariffs``: prices of networks. ``rented``: rented links and their rates, in
    bit/s.
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
    """Report that the process on ``host`` has ended. ``how`` is a phrase that follows the host's name."""

    host: str
    how: str


class There(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Report that a process on ``host`` listens at ``control``."""

    host: str
    control: str


class Go(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Request to start ``placement`` now, or with ``ahead`` only to plan it.

    ``truth``: true rates of the links in bit/s, if planners know them.
    """

    placement: str
    truth: list[tuple[tuple[str, ...], float]] | None = None
    ahead: bool = False


Told = Go | Ended | There


class Said(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Message of the worker. The ``event`` determines which fields are set."""

    event: str
    placement: str = ""
    index: int = -1
    message: str = ""
    usage: bool = False
    detail: dict[str, Any] = {}


def say(said: Said) -> None:
    """Write one message to standard output."""
    os.write(1, msgspec.json.encode(said) + b"\n")
