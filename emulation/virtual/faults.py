"""Plans of what is to go wrong in the virtual WAN (``faulty``): single faults, and how a seed draws many.

A fault of a message names it: the *n*-th of its kind from one host to another, so that the name means much the same
when other faults are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Annotated

import msgspec

from thalweg.middleware.dataflow import MOST_AHEAD

LONGEST_S = 60.0  # that a message is late
LARGE_BYTES = 700  # a demand has less unless measurements are piggybacked, a partition more
AHEAD = (1, 1, 1, 2, 4)  # partitions under way over an edge
GRAY = 0.6  # of the seeds: part of what some link carries is lost
LONG_GRAY = 0.3  # of these faults: they last long enough for somebody to be given up
GRAY_FOR_GOOD = 0.2  # of these faults: they never end
EARLY = -2.0, -0.3  # powers of ten: 0.01 to 0.5 s; hosts take their part in a run within 0.1 to 0.3 s

At = Annotated[float, msgspec.Meta(ge=0)]
Span = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Number = Annotated[int, msgspec.Meta(ge=1)]


class _Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag=str.lower):
    """Base of all faults. Seconds are those of the virtual clock.

    The tag, by which plans in files name a fault, is the class name or what the class says: a ``Cut`` is a
    ``partition`` of the network, a ``Storm`` its ``weather``.
    """

    @property
    def kind(self) -> str:
        """The tag."""
        return str(type(self).__struct_config__.tag)


class _OfMessage(_Fault, frozen=True):
    """What befalls the ``number``-th ``message`` (``Demand``, ``Partition``, …) from ``source`` to ``target``."""

    source: str
    target: str
    message: str
    number: Number


class Drop(_OfMessage, frozen=True):
    """It is lost."""


class Duplicate(_OfMessage, frozen=True):
    """It comes again, ``after_s`` later."""

    after_s: Span


class Delay(_OfMessage, frozen=True):
    """It comes ``for_s`` late: those sent after it come before it."""

    for_s: Span


class Unconfirmed(_OfMessage, frozen=True):
    """It, a bulk one, arrives, but its sender is told that the transfer failed."""


class _OfLink(_Fault, frozen=True):
    """Base of the faults of one direction of a link, from ``source`` to ``target``.

    Without ``for_s`` the fault lasts for good. ``via``: the only network that has it. Without it all networks have it.
    """

    source: str
    target: str
    at_s: At
    for_s: Span | None = None
    via: str = ""

    @property
    def until_s(self) -> float:
        """The time at which the fault ends."""
        return math.inf if self.for_s is None else self.at_s + self.for_s


class Outage(_OfLink, frozen=True):
    """The link loses every message."""


class BulkOutage(_OfLink, frozen=True, tag="bulk-outage"):
    """The link loses partitions, states and probes. Control messages pass, as if a firewall opened one port of two."""


class LargeOutage(_OfLink, frozen=True, tag="large-outage"):
    """The link loses messages of more than ``above_bytes``, as a path does whose MTU is smaller than its ends know."""

    above_bytes: Annotated[int, msgspec.Meta(ge=0)] = LARGE_BYTES


class Cut(_Fault, frozen=True, tag="partition"):
    """``hosts`` are cut off from all others, in both directions."""

    hosts: tuple[str, ...]
    at_s: At
    for_s: Span


class Crash(_Fault, frozen=True):
    """``host`` loses everything, and is back ``restart_after_s`` later, or never."""

    host: str
    at_s: At
    restart_after_s: Span | None = None


class Stop(_Fault, frozen=True):
    """``host`` does nothing, and ``for_s`` later goes on where it was, as after SIGSTOP and SIGCONT."""

    host: str
    at_s: At
    for_s: Span


class Slow(_Fault, frozen=True):
    """``host`` takes ``factor`` times as long to compute and to take up a message; of several the largest counts."""

    host: str
    factor: Annotated[float, msgspec.Meta(ge=1)]
    at_s: At
    for_s: Span


class Storm(_Fault, frozen=True, tag="weather"):
    """Of all messages so many are lost, come twice, come late, or are not confirmed; ``delay_s`` is the mean delay."""

    drop: Share = 0.0
    duplicate: Share = 0.0
    delay: Share = 0.0
    unconfirmed: Share = 0.0
    delay_s: Span = 0.5


class Late(_Fault, frozen=True):
    """Of all messages so many come twice, or late, at any time within ``within_s``: many after the run's end."""

    duplicate: Share = 0.0
    delay: Share = 0.0
    within_s: Span = LONGEST_S


class Hostility(_Fault, frozen=True, tag="hostile"):
    """Host ``host``, which is none of the run's, says what it should not (``virtual.hostile``) every ``every_s``."""

    host: str
    at_s: At
    for_s: Span
    every_s: Span


Kind = tuple[str, str, str]  # of messages: source, target, what they are
OfMessage = Drop | Duplicate | Delay | Unconfirmed
OfLink = Outage | BulkOutage | LargeOutage
Fault = OfMessage | OfLink | Cut | Crash | Stop | Slow | Storm | Late | Hostility
OVER_ALL = Storm | Late  # of these faults are no single ones


class FaultPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to go wrong in the trial that ``seed`` draws, of a tree or of a ``graph``.

    ``lasting``: the run outlives its hosts. ``spares``: sources have stand-ins, and operators may go on without some,
    as the seed draws. ``ahead``: partitions under way over an edge. ``stripes``: the stream goes over several trees.
    ``networks``: hosts are joined by further networks.
    """

    seed: Annotated[int, msgspec.Meta(ge=0)]
    faults: tuple[Fault, ...] = ()
    graph: bool = False
    lasting: bool = False
    spares: bool = False
    ahead: Annotated[int, msgspec.Meta(ge=1, le=MOST_AHEAD)] = 1
    stripes: bool = False
    networks: bool = False

    def __post_init__(self) -> None:
        if self.stripes and (self.graph or self.networks):
            raise ValueError("a stream over several trees has neither a graph nor several networks")

    def hosts(self) -> set[str]:
        """All of the run's that its faults name."""
        told = [msgspec.structs.asdict(fault) for fault in self.faults if not isinstance(fault, Hostility)]
        named = {each[key] for each in told for key in ("source", "target", "host") if key in each}
        return named.union(*(each.get("hosts", ()) for each in told))

    @property
    def over_s(self) -> float:
        """When the last fault that has a time is over; of one that never ends, when it begins."""
        told = [msgspec.structs.asdict(fault) for fault in self.faults]
        lasts = [(each, each.get("for_s") or each.get("restart_after_s") or 0.0) for each in told if "at_s" in each]
        return max((each["at_s"] + lasts_s for each, lasts_s in lasts), default=0.0)


def draw_plan(
    seed: int, hosts: Sequence[str], duration_s: float, *, graph: bool = False, lasting: bool = False
) -> FaultPlan:
    """A plan for a run on ``hosts`` (the client is last) of about ``duration_s``, from a light shower to the worst.

    ``lasting``: for one that outlives its hosts, with stand-ins, and perhaps several partitions under way.
    """
    dice = Random(f"{seed} faults")
    names = list(hosts)
    faults = [*_draw_storm(dice), *_draw_cuts(dice, names, duration_s), *_draw_crashes(dice, names, duration_s)]
    for _ in range(dice.choice([0, 0, 1, 2])):
        factor = round(10 ** dice.uniform(0.3, 1.7), 1)
        slow, at_s = dice.choice(names), _draw_time(dice, duration_s)
        faults.append(Slow(slow, factor, at_s, round(dice.uniform(1.0, duration_s), 2)))
    dice = Random(f"{seed} for good")  # of its own, so that all else is as it would be without
    if dice.random() < 0.06:
        source, target = dice.sample(names, 2)
        faults.append(Outage(source, target, _draw_time(dice, duration_s)))
    dice = Random(f"{seed} late")
    if dice.random() < 0.25:
        faults.append(Late(round(dice.uniform(0.02, 0.3), 3), round(dice.uniform(0.0, 0.05), 3)))
        for host in names[:-1]:
            faults.append(Duplicate(names[-1], host, "Install", 1, round(dice.uniform(1.0, LONGEST_S), 3)))
    dice = Random(f"{seed} lasting")
    spares, lasting = lasting, dice.random() < 0.3 or lasting
    if lasting:
        faults += _draw_losses(dice, names, duration_s)
    dice = Random(f"{seed} hostile")
    if dice.random() < 0.2:
        every_s = round(10 ** dice.uniform(-2, 0), 3)
        faults.append(Hostility("stranger", round(dice.uniform(0.0, 5.0), 2), 2 * duration_s, every_s))
    ahead = Random(f"{seed} ahead").choice(AHEAD) if spares else 1
    return FaultPlan(seed, tuple(faults), graph, lasting, spares, ahead)


def _draw_time(dice: Random, duration_s: float) -> float:
    """Return the time at which a fault begins."""
    return round(dice.uniform(0.0, duration_s), 2)


def _draw_cut_s(dice: Random) -> float:
    """Return how long a cut lasts: mostly too short for any host to be given up, sometimes long enough."""
    return round(dice.uniform(50.0, 90.0) if dice.random() < 0.12 else dice.expovariate(0.5) + 0.1, 2)


def _draw_storm(dice: Random) -> list[Fault]:
    """Return a storm, or nothing."""
    level = dice.choice([0.0, 0.05, 0.15, 0.3, 0.4])
    if not level:
        return []
    drop, duplicate, delay, unconfirmed = (round(level * dice.random(), 3) for _ in range(4))
    return [Storm(drop, duplicate, delay, unconfirmed, round(10 ** dice.uniform(-2, 0.7), 3))]


def _draw_cuts(dice: Random, names: Sequence[str], duration_s: float) -> list[Fault]:
    """Return outages of links, and partitions of the network."""
    faults: list[Fault] = []
    for _ in range(dice.choice([0, 0, 1, 2, 4])):
        source, target = dice.sample(names, 2)
        faults.append(Outage(source, target, _draw_time(dice, duration_s), _draw_cut_s(dice)))
    for _ in range(dice.choice([0, 0, 1, 2])):
        several = tuple(sorted(dice.sample(names, dice.randint(1, len(names) - 1))))
        faults.append(Cut(several, _draw_time(dice, duration_s), _draw_cut_s(dice)))
    return faults


def _draw_crashes(dice: Random, names: Sequence[str], duration_s: float) -> list[Fault]:
    """Return crashes of one host or two, or nothing. The client (the last name) crashes less often."""
    if dice.random() >= 0.3:
        return []
    faults: list[Fault] = []
    for host in dice.sample(names, dice.choice([1, 1, 2])):
        if host != names[-1] or dice.random() < 0.5:
            back_s: float | None
            if host != names[-1] and dice.random() < 0.25:  # as it takes its part in the run, and back soon
                at_s, back_s = round(10 ** dice.uniform(*EARLY), 3), round(dice.uniform(0.02, 1.0), 3)
            else:
                at_s = _draw_time(dice, duration_s)
                back_s = None if dice.random() < 0.4 else round(10 ** dice.uniform(-1, 1.5), 2)
            faults.append(Crash(host, at_s, back_s))
            if back_s is not None and host != names[-1] and dice.random() < 0.3:  # a copy for what it was before
                after_s = round(at_s + back_s + dice.uniform(0.0, 0.5), 3)
                faults.append(Duplicate(names[-1], host, "Install", 1, after_s))
    return faults


def _draw_losses(dice: Random, names: Sequence[str], duration_s: float) -> list[Fault]:
    """Return faults that a run which outlives its hosts has to survive: crashes of hosts, and a host that stops."""
    faults: list[Fault] = []
    for _ in range(dice.choice([1, 1, 2, 3])):
        at_s = _draw_time(dice, duration_s)
        for host in dice.sample(names[:-1], min(dice.choice([1, 1, 1, 2]), len(names) - 1)):
            faults.append(Crash(host, at_s, None if dice.random() < 0.25 else round(10 ** dice.uniform(-1, 1.3), 2)))
    if dice.random() < 0.4:
        faults.append(Stop(dice.choice(names[:-1]), _draw_time(dice, duration_s), _draw_cut_s(dice)))
    return faults


def draw_gray(seed: int, hosts: Sequence[str], duration_s: float, networks: Sequence[str] = ()) -> tuple[OfLink, ...]:
    """Draw faults that a host which only asks "are you there?" does not see.

    Bulk alone is lost, large messages alone, or one direction of a link. The links are one, both directions of one, all
    that lead to a host (a closed port), or all that leave it. ``networks``: names of those that a fault may be of.
    """
    dice = Random(f"{seed} gray")
    if dice.random() >= GRAY:
        return ()
    faults: list[OfLink] = []
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        one, *others = dice.sample([*hosts], len(hosts))
        links = dice.choice([
            [(one, others[0])],
            [(one, others[0]), (others[0], one)],
            [(other, one) for other in others],
            [(one, other) for other in others],
        ])  # fmt: skip
        kind = dice.choice([BulkOutage, BulkOutage, LargeOutage, Outage])
        at_s, via = round(dice.uniform(0.0, duration_s), 2), dice.choice(["", *networks])
        for_s = dice.uniform(20.0, 90.0) if dice.random() < LONG_GRAY else dice.expovariate(0.2) + 0.1
        lasts_s = None if dice.random() < GRAY_FOR_GOOD else round(for_s, 2)
        faults += [kind(source, target, at_s, lasts_s, via) for source, target in links]
    return tuple(faults)
