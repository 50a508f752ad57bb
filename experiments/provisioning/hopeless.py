"""Reasons why no machines sustain a throughput: least loads by constraint, whatever is rented.

The numbers are those of ``answer``.

- (1) An operator asks for more than the largest machine computes.
- (2), (3), (4) No machine's card, no server's card or no link carries an object.
- (3) The cards of all servers together do not carry all objects.
- (5) Operators that no link between machines lets apart fit on no machine together.
- (6) An operator alone takes too long in turn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from thalweg.experiments.provisioning.heuristics import HEURISTICS, rented
from thalweg.experiments.provisioning.instance import SLACK, Floats, ProvisioningInstance
from thalweg.experiments.provisioning.parts import parts_of
from thalweg.middleware.errors import PlannerError, UsageError

ENOUGH = 1e9


def why_not(instance: ProvisioningInstance, where: str) -> None:
    """Raise UsageError with the first reason why no machines suffice. Some reasons are not detected."""
    for reason in _reasons(instance):
        raise UsageError(f"{where}: {reason}")


def in_the_way(instance: ProvisioningInstance) -> str:
    """Return a line with the constraints without which, one at a time, a heuristic would find machines."""
    ways: dict[int, tuple[str, dict[str, Any]]] = {
        1: ("what machines compute (1)", {"speed_mop_s": instance.speed_mop_s * ENOUGH}),
        2: ("the cards of machines (2)", {"card_bytes_s": instance.card_bytes_s + np.inf}),
        3: ("the cards of servers (3)", {"server_card_bytes_s": instance.server_card_bytes_s + np.inf}),
        4: ("the links from servers (4)", {"server_link_bytes_s": instance.server_link_bytes_s + np.inf}),
        5: ("the links between machines (5)", {"machine_link_bytes_s": instance.machine_link_bytes_s + np.inf}),
        6: ("what an operator does at once (6)", {"overlap": True}),
    }
    if instance.overlap:
        del ways[6]
    constraints = [
        constraint for constraint, fields in ways.values() if _is_found(msgspec.structs.replace(instance, **fields))
    ]
    if not constraints:
        return "more than one constraint stands in the way"
    return f"there would be some if there were no limit to {' or '.join(constraints)}"


def _is_found(instance: ProvisioningInstance) -> bool:
    for heuristic in HEURISTICS:
        with contextlib.suppress(PlannerError):
            rented(instance, heuristic)
            return True
    return False


def _reasons(instance: ProvisioningInstance) -> Iterator[str]:
    if not (instance.limit >= 1).any():
        yield "there are no machines: the count of every one is below 1"
    wanted = f"{instance.throughput_hz:g} results a second"
    speed, largest = float(instance.speed_mop_s.max()), instance.classes[int(instance.speed_mop_s.argmax())]
    for node in np.flatnonzero(instance.asked_mop_s > speed * (1 + SLACK)).tolist():
        asked = float(instance.asked_mop_s[node])
        reason = f"operator {instance.operators[node]!r} asks for {asked:,.6g} Mop/s at {wanted}"
        yield f"{reason}, {asked - speed:,.6g} more than the largest machine computes ({largest}, {speed:,.6g}) (1)"
    used = instance.needs.any(axis=0)
    for number, most, bottleneck in (
        (2, float(instance.card_bytes_s.max()), "the card of any machine"),
        (3, np.where(instance.holds, instance.server_card_bytes_s, -1.0).max(axis=1), "the card of any of its servers"),
        (4, np.where(instance.holds, instance.server_link_bytes_s.max(axis=1), -1.0).max(axis=1), "any link from one"),
    ):
        limits: Floats = np.broadcast_to(most, used.shape)
        for at in np.flatnonzero(used & (instance.rate_bytes_s > limits * (1 + SLACK))).tolist():
            asked, limit = float(instance.rate_bytes_s[at]), float(limits[at])
            reason = f"object {instance.objects[at]!r} takes {asked:,.6g} bytes/s"
            yield f"{reason}, {asked - limit:,.6g} more than {bottleneck} carries ({limit:,.6g}) ({number})"
    asked, limit = float(instance.rate_bytes_s[used].sum()), float(instance.server_card_bytes_s.sum())
    if asked > limit * (1 + SLACK):
        reason = f"all objects together take {asked:,.6g} bytes/s, {asked - limit:,.6g} more than all servers' cards"
        yield f"{reason} carry ({limit:,.6g}) (3)"
    parts = parts_of(instance)
    for unit, asked in enumerate(parts.mop_s):
        if asked > speed * (1 + SLACK):
            names = [repr(name) for name, its in zip(instance.operators, parts.unit_of, strict=True) if its == unit]
            reason = f"operators {', '.join(names)} exchange more than any link or card (5) carries"
            yield f"{reason}, and together ask for {asked:,.6g} Mop/s, {asked - speed:,.6g} more than the largest (1)"
    if not instance.overlap:
        core, period_s = float(instance.core_mop_s.max()), 1 / instance.throughput_hz
        for node, took_s in enumerate((instance.work_mop / core).tolist()):
            if took_s > period_s * (1 + SLACK):
                reason = f"operator {instance.operators[node]!r} computes {took_s:,.6g} s on one processor at best"
                more = f"{took_s - period_s:,.6g} more than there are between two results"
                yield f"{reason}, {more} ({period_s:,.6g} s) (6)"
