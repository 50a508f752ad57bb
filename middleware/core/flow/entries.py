"""Entries of the tables of ``flow`` and ``demands``."""

from __future__ import annotations

import msgspec

from thalweg.middleware.core.flow.actions import Output, RunCode
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.protocol.run_id import NO_RUN, RunId


class Pending(msgspec.Struct):
    """Demand that another host has not answered, or a ``SkipTo`` (``skips``).

    An ``index`` of ``LAST`` stands for None in the ``SkipTo``.
    """

    index: int
    due_s: float
    interval_s: float
    asked_s: float  # time of the first demand
    skips: bool = False


class Expected(msgspec.Struct):
    """Operator that is to come to this host, and to begin with partition ``index``.

    ``depth``: number of partitions whose inputs may come before the operator. ``early``: the inputs that have come, by
    partition and producer.
    """

    index: int
    depth: int
    early: dict[int, dict[str, Output]] = {}

    def takes(self, index: int) -> bool:
        """Return whether an input for partition ``index`` has to wait for the operator."""
        return self.index <= index < self.index + self.depth


class CarriedOver(msgspec.Struct, frozen=True):
    """Operator that continues in the next generation of a run.

    ``run``: a call of the operator's code that is still to be made. ``called``: the run that called the code, if the
    code has not returned.
    """

    node: NodeCore
    run: RunCode | None = None
    called: RunId = NO_RUN
