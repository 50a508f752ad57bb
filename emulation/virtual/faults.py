"""Plans of the faults of the virtual WAN (``faulty``): kinds of single faults, and the drawing of faults from a seed.

A fault of a message names the message: the *n*-th of its kind from one host to another. So the name keeps its meaning,
more or less, when other faults are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Annotated

import msgspec

from thalweg.middleware.dataflow import MOST_AHEAD

LONGEST_S = 60.0  # longest delay of a late message
LARGE_BYTES = 700  # a demand without piggybacked measurements is smaller, a partition larger
AHEAD = (1, 1, 1, 2, 4)  # partitions under way over an edge
GRAY = 0.6  # share of the seeds with gray faults: a link loses a part of its messages
LONG_GRAY = 0.3  # share of the gray faults that last long enough for a host to be given up
GRAY_FOR_GOOD = 0.2  # share of the gray faults that never end
EARLY = -2.0, -0.3  # powers of ten: 0.01 to 0.5 s; hosts join a run within 0.1 to 0.3 s

At = Annotated[float, msgspec.Meta(ge=0)]
Span = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Number = Annotated[int, msgspec.Meta(ge=1)]


class _Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag=str.lower):
    """Base of all faults. Seconds are those of the virtual clock.

    The tag names the fault in plan files. The tag is the class name, or the tag that the class sets: a ``Cut`` is a
    ``partition`` of the network, a ``Storm`` its ``weather``.
    """

    @property
    def kind(self) -> str:
        """Tag of the fault, by which a plan file names the fault."""
        return str(type(self).__struct_config__.tag)


class _OfMessage(_Fault, frozen=True):
    """Base of the faults of one message.

    The message is the ``number``-th ``message`` (``Demand``, ``Partition``, …) from ``source`` to ``target``.
    """

    source: str
    target: str
    message: str
    number: Number


class Drop(_OfMessage, frozen=True):
    """Loss of the message."""


class Duplicate(_OfMessage, frozen=True):
    """Second arrival of the message, ``after_s`` after the first."""

    after_s: Span


class Delay(_OfMessage, frozen=True):
    """Delay of the message by ``for_s``. Messages that are sent in this time overtake the message."""

    for_s: Span


class Unconfirmed(_OfMessage, frozen=True):
    """Missing confirmation of a bulk message that arrives: its sender is notified of a failed transfer."""


class _OfLink(_Fault, frozen=True):
    """Base of the faults of one direction of a link, from ``source`` to ``target``.

    Without ``for_s`` the fault lasts for good. ``via``: the only network with the fault. Empty: all networks have it.
    """

    source: str
    target: str
    at_s: At
    for_s: Span | None = None
    via: str = ""

    @property
    def until_s(self) -> float:
        """Time at which the fault ends. Infinity: never."""
        return math.inf if self.for_s is None else self.at_s + self.for_s


class Outage(_OfLink, frozen=True):
    """Loss of every message of the link."""


class BulkOutage(_OfLink, frozen=True, tag="bulk-outage"):
    """Loss of the link's partitions, states and probes.

    Control messages pass, as if a firewall opened one port of two.
    """


class LargeOutage(_OfLink, frozen=True, tag="large-outage"):
    """Loss of the link's messages above ``above_bytes``, as on a path whose MTU is smaller than its ends know."""

    above_bytes: Annotated[int, msgspec.Meta(ge=0)] = LARGE_BYTES


class Cut(_Fault, frozen=True, tag="partition"):
    """Separation of ``hosts`` from the remaining hosts, in both directions."""

    hosts: tuple[str, ...]
    at_s: At
    for_s: Span


class Crash(_Fault, frozen=True):
    """Crash of ``host``: the host loses everything, and restarts after ``restart_after_s``, or never."""

    host: str
    at_s: At
    restart_after_s: Span | None = None


class Stop(_Fault, frozen=True):
    """Pause of ``host``: the host does nothing for ``for_s``, then continues, as after SIGSTOP and SIGCONT."""

    host: str
    at_s: At
    for_s: Span


class Slow(_Fault, frozen=True):
    """Slowdown of ``host``: computing, and taking up a message, takes ``factor`` times as long.

    Of several slowdowns of a host the largest factor counts.
    """

    host: str
    factor: Annotated[float, msgspec.Meta(ge=1)]
    at_s: At
    for_s: Span


class Storm(_Fault, frozen=True, tag="weather"):
    """Faults of random messages: shares that are lost, arrive twice, arrive late, or are not confirmed.

    ``delay_s``: mean delay.
    """

    drop: Share = 0.0
    duplicate: Share = 0.0
    delay: Share = 0.0
    unconfirmed: Share = 0.0
    delay_s: Span = 0.5


class Late(_Fault, frozen=True):
    """Shares of the messages that arrive twice, or late, at a random time within ``within_s``.

    Many of these messages arrive after the run's end.
    """

    duplicate: Share = 0.0
    delay: Share = 0.0
    within_s: Span = LONGEST_S


class Hostility(_Fault, frozen=True, tag="hostile"):
    """Messages of a hostile host, ``host``, outside the run (``virtual.hostile``): one every ``every_s``."""

    host: str
    at_s: At
    for_s: Span
    every_s: Span


Kind = tuple[str, str, str]  # source, target and kind of a message
OfMessage = Drop | Duplicate | Delay | Unconfirmed
OfLink = Outage | BulkOutage | LargeOutage
Fault = OfMessage | OfLink | Cut | Crash | Stop | Slow | Storm | Late | Hostility
OVER_ALL = Storm | Late  # faults that are drawn for every message


class FaultPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Faults of one trial, whose tree, or ``graph``, is drawn from ``seed``.

    ``lasting``: the run has failover. ``spares``: sources have stand-ins, and operators may continue without some
    sources, as the seed draws. ``ahead``: partitions under way over an edge. ``stripes``: the stream goes over several
    trees. ``networks``: further networks join the hosts.
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
        """Return the hosts of the run that the plan's faults name."""
        rows = [msgspec.structs.asdict(fault) for fault in self.faults if not isinstance(fault, Hostility)]
        named = {row[key] for row in rows for key in ("source", "target", "host") if key in row}
        return named.union(*(row.get("hosts", ()) for row in rows))

    @property
    def over_s(self) -> float:
        """Time at which the last fault with a time is over. For a fault without an end, its start counts."""
        rows = [msgspec.structs.asdict(fault) for fault in self.faults]
        lasts = [(row, row.get("for_s") or row.get("restart_after_s") or 0.0) for row in rows if "at_s" in row]
        return max((row["at_s"] + lasts_s for row, lasts_s in lasts), default=0.0)


def draw_plan(
    seed: int, hosts: Sequence[str], duration_s: float, *, graph: bool = False, lasting: bool = False
) -> FaultPlan:
    """Draw the faults of a run on ``hosts`` (the client is last) of about ``duration_s``: from few faults to very many.

    ``lasting``: the run has failover and stand-ins, and perhaps several partitions under way.
    """
    dice = Random(f"{seed} faults")
    names = list(hosts)
    faults = [*_draw_storm(dice), *_draw_cuts(dice, names, duration_s), *_draw_crashes(dice, names, duration_s)]
    for _ in range(dice.choice([0, 0, 1, 2])):
        factor = round(10 ** dice.uniform(0.3, 1.7), 1)
        slow, at_s = dice.choice(names), _draw_time(dice, duration_s)
        faults.append(Slow(slow, factor, at_s, round(dice.uniform(1.0, duration_s), 2)))
    dice = Random(f"{seed} for good")  # a generator of its own, so that all other draws stay the same
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
    """Return the duration of a cut: mostly too short for a host to be given up, sometimes long enough."""
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
    """Return crashes of one or two hosts, or nothing. The client (the last name) crashes less often."""
    if dice.random() >= 0.3:
        return []
    faults: list[Fault] = []
    for host in dice.sample(names, dice.choice([1, 1, 2])):
        if host != names[-1] or dice.random() < 0.5:
            back_s: float | None
            if host != names[-1] and dice.random() < 0.25:  # while the host joins the run; the host is back soon
                at_s, back_s = round(10 ** dice.uniform(*EARLY), 3), round(dice.uniform(0.02, 1.0), 3)
            else:
                at_s = _draw_time(dice, duration_s)
                back_s = None if dice.random() < 0.4 else round(10 ** dice.uniform(-1, 1.5), 2)
            faults.append(Crash(host, at_s, back_s))
            if back_s is not None and host != names[-1] and dice.random() < 0.3:  # a copy for the old process
                after_s = round(at_s + back_s + dice.uniform(0.0, 0.5), 3)
                faults.append(Duplicate(names[-1], host, "Install", 1, after_s))
    return faults


def _draw_losses(dice: Random, names: Sequence[str], duration_s: float) -> list[Fault]:
    """Return faults that a run with failover has to survive: crashes of hosts, and a host that stops."""
    faults: list[Fault] = []
    for _ in range(dice.choice([1, 1, 2, 3])):
        at_s = _draw_time(dice, duration_s)
        for host in dice.sample(names[:-1], min(dice.choice([1, 1, 1, 2]), len(names) - 1)):
            faults.append(Crash(host, at_s, None if dice.random() < 0.25 else round(10 ** dice.uniform(-1, 1.3), 2)))
    if dice.random() < 0.4:
        faults.append(Stop(dice.choice(names[:-1]), _draw_time(dice, duration_s), _draw_cut_s(dice)))
    return faults


def draw_gray(seed: int, hosts: Sequence[str], duration_s: float, networks: Sequence[str] = ()) -> tuple[OfLink, ...]:
    """Draw faults that a host which only sends pings does not see.

    Bulk alone is lost, or large messages alone, or one direction of a link. A fault concerns one link, both directions
    of a link, every link to a host (a closed port), or every link from a host. ``networks``: names of the networks that
    a fault may be limited to.
    """
    dice = Random(f"{seed} gray")
    if dice.random() >= GRAY:
        return ()
    faults: list[OfLink] = []
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        host, *peers = dice.sample([*hosts], len(hosts))
        links = dice.choice([
            [(host, peers[0])],
            [(host, peers[0]), (peers[0], host)],
            [(peer, host) for peer in peers],
            [(host, peer) for peer in peers],
        ])  # fmt: skip
        kind = dice.choice([BulkOutage, BulkOutage, LargeOutage, Outage])
        at_s, via = round(dice.uniform(0.0, duration_s), 2), dice.choice(["", *networks])
        for_s = dice.uniform(20.0, 90.0) if dice.random() < LONG_GRAY else dice.expovariate(0.2) + 0.1
        lasts_s = None if dice.random() < GRAY_FOR_GOOD else round(for_s, 2)
        faults += [kind(source, target, at_s, lasts_s, via) for source, target in links]
    return tuple(faults)
