"""Entries of the tables of ``flow`` and ``demands``."""

from __future__ import annotations

import msgspec

from thalweg.middleware.core.flow.actions import Output, RunCode
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.protocol.run_id import NO_RUN, RunId


class Pending(msgspec.Struct):
    """A demand that another host has not answered. ``skips``: it is a ``SkipTo``; ``LAST`` is its index None."""

    index: int
    due_s: float
    interval_s: float
    asked_s: float  # when it was demanded first
    skips: bool = False


class Expected(msgspec.Struct):
    """An operator that is to come here and begin with partition ``index``.

    ``early``: inputs for that, and ``depth`` - 1 later ones, by partition and producer, that have come before it.
    """

    index: int
    depth: int
    early: dict[int, dict[str, Output]] = {}

    def takes(self, index: int) -> bool:
        """Whether an input for that partition is to wait for it."""
        return self.index <= index < self.index + self.depth


class CarriedOver(msgspec.Struct, frozen=True):
    """Operator that goes on in the next generation of a run.

    ``run``: a call of its code that is still to be made. ``called``: the run that has called its code, which has not
    returned.
    """

    node: NodeCore
    run: RunCode | None = None
    called: RunId = NO_RUN
