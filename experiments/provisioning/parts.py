"""Provisioning problem for searches: units of operators that stay together, and kinds of machines that are alike.

- R1: If operators exchange more than any link between machines, or any card, carries, they are on one machine and are
  one *unit*. Units are a tree.
- R2: Classes without a limit that have the same links and egress are one *kind*. Only speed, card and price tell the
  classes apart, so a machine is of the cheapest class that carries its load. A limited class is a kind of its own,
  shared with equal classes. Without ``overlap`` the time of an operator depends on the class. Then every class is a
  kind, and every operator is a unit. A single class is left out if a class without a limit, of the same links and
  egress, beats it.
- R3: If prices are those of a processor plus those of a card, and all pairs can be had, both are chosen separately.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import msgspec
import numpy as np

from thalweg.experiments.provisioning.answer import Answer, cost, needed, violations
from thalweg.experiments.provisioning.instance import GB, SLACK, Floats, Indices, ProvisioningInstance
from thalweg.experiments.provisioning.servers import LATE, fetching, served_from

Option = tuple[float, float, float]  # Mop/s, bytes/s and price of a machine, or of a part of one (R3)


class Kind:
    """Machines that differ in speed, card and price alone, and their number (``limit``).

    ``menus``: lists of options, of which a machine has one each (R3). ``cheapest``: by speed and card, the cheapest
    class.
    """

    def __init__(self, instance: ProvisioningInstance, classes: Sequence[int]) -> None:
        self.classes = tuple(classes)
        self.limit = float(instance.limit[self.classes,].sum())
        rows = instance.speed_mop_s.tolist(), instance.card_bytes_s.tolist(), instance.price.tolist()
        speed, card, price = rows
        self.speeds = sorted({speed[machine_class] for machine_class in classes})
        self.cards = sorted({card[machine_class] for machine_class in classes})
        self.cheapest = [
            [
                min(
                    (
                        machine_class
                        for machine_class in classes
                        if speed[machine_class] >= least and card[machine_class] >= narrowest
                    ),
                    key=lambda machine_class: (price[machine_class], machine_class),
                    default=-1,
                )
                for narrowest in self.cards
            ]
            for least in self.speeds
        ]
        self.prices = [
            [price[machine_class] if machine_class >= 0 else math.inf for machine_class in row] for row in self.cheapest
        ]
        self.menus = self._menus()

    def _menus(self) -> list[list[Option]]:
        prices = np.array(self.prices)
        first, rest = prices[:, :1], prices[:1] - prices[0, 0]
        # R3: every price is the price of a processor plus the price of a card
        if np.isfinite(prices).all() and np.allclose(first + rest, prices, rtol=1e-12, atol=0.0):
            processors = [(speed, 0.0, own) for speed, own in zip(self.speeds, prices[:, 0].tolist(), strict=True)]
            cards = [(0.0, card, more) for card, more in zip(self.cards, rest[0].tolist(), strict=True)]
            return [processors, cards]
        best = {machine_class for row in self.cheapest for machine_class in row if machine_class >= 0}
        places = [(i, j) for i in range(len(self.speeds)) for j in range(len(self.cards))]
        return [
            [
                (self.speeds[i], self.cards[j], self.prices[i][j])
                for i, j in places
                if self.cheapest[i][j] in best and not self._beaten(i, j)
            ]
        ]

    def _beaten(self, i: int, j: int) -> bool:
        """Return whether a larger machine costs no more."""
        price = self.prices[i][j]
        larger = [row[j] for row in self.prices[i + 1 : i + 2]] + self.prices[i][j + 1 : j + 2]
        return not math.isfinite(price) or min(larger, default=math.inf) <= price

    def class_for(self, mop_s: float, card: float) -> int:
        """Return the cheapest class that carries a load, or -1."""
        i = bisect_left(self.speeds, mop_s / (1 + SLACK))
        j = bisect_left(self.cards, card / (1 + SLACK))
        return self.cheapest[i][j] if i < len(self.speeds) and j < len(self.cards) else -1


class Turns(msgspec.Struct, frozen=True):
    """Times of operators in turn (6), as shares of the time between results. Units are operators here.

    - ``own``: of every operator on every kind, to compute, to fetch from the fastest servers, and to send the root's
      result.
    - ``per_byte``: (kinds, kinds) of 1 byte/s of a stream between two kinds.
    - ``more``: (k, l, kinds) added by fetching from a server instead of the fastest.
    """

    own: list[list[float]]
    per_byte: list[list[float]]
    more: list[list[list[float]]]


class ProblemUnits(msgspec.Struct, frozen=True):
    """Units and kinds of a problem. The consumer of a unit comes after the unit, and the last unit has none.

    - ``unit_of``: (n,) the unit of every operator. ``mop_s``, ``objects``: work and objects of every unit.
    - ``streams``: (unit, its consumer, bytes/s).
    - ``link``: bytes/s between machines of two kinds.
    - ``between``: cost of 1 byte/s between two kinds. ``fetched``: cost of every object for a kind, from its cheapest
      server. ``results``: cost of results for a kind. Costs are for the time that prices are for.
    """

    instance: ProvisioningInstance
    unit_of: tuple[int, ...]
    mop_s: list[float]
    objects: list[tuple[int, ...]]
    streams: list[tuple[int, int, float]]
    kinds: list[Kind]
    link: list[list[float]]
    between: list[list[float]]
    fetched: list[list[float]]
    results: list[float]
    turns: Turns | None = None

    @property
    def count(self) -> int:
        """Number of units."""
        return len(self.mop_s)

    @property
    def priced(self) -> bool:
        """Return whether traffic has a price."""
        return self.instance.egress is not None

    def fetch_cost(self, what: int, server: int, kind: int) -> float:
        """Return the cost of fetching an object from a server to a machine of a kind."""
        egress = self.instance.egress
        if egress is None:
            return 0.0
        price = float(egress.from_servers[server, self.kinds[kind].classes[0]])
        return price * float(self.instance.rate_bytes_s[what]) * egress.paid_s / GB

    def answer(self, group_of: Sequence[int], kind_of: Sequence[int]) -> tuple[float, Answer] | None:
        """Choose servers and classes for groups of units. Return the cost and the answer, or None if none fits.

        ``group_of``: by unit. ``kind_of``: by group, the kind of its machine.
        """
        instance = self.instance
        groups = sorted(set(group_of))
        number = {group: at for at, group in enumerate(groups)}
        machine_of = np.array([number[group_of[unit]] for unit in self.unit_of], dtype=np.intp)
        classes = self._classes(machine_of, [kind_of[group] for group in groups])
        if classes is None:
            return None
        servers = served_from(instance, machine_of, classes)
        if servers is None:
            return None
        answer = Answer(machine_of, classes, servers)
        return None if violations(instance, answer) else (cost(instance, answer), answer)

    def _classes(self, machine_of: Indices, kinds: Sequence[int]) -> Indices | None:
        instance, count = self.instance, len(kinds)
        mop_s = np.bincount(machine_of, instance.asked_mop_s, count)
        card = needed(instance, machine_of, count) @ instance.rate_bytes_s
        ends = np.stack((machine_of[:-1], machine_of[instance.parent[:-1]]))
        apart = ends[0] != ends[1]
        for end in ends:
            card += np.bincount(end[apart], instance.sent_bytes_s[:-1][apart], count)
        left = instance.limit.copy()
        classes = np.full(count, -1, dtype=np.intp)
        for at, kind in enumerate(kinds):
            choice = self.kinds[kind].class_for(float(mop_s[at]), float(card[at]))
            if choice >= 0 and left[choice] < 1:  # another class of the kind
                choice = next(
                    (machine_class for machine_class in self.kinds[kind].classes if left[machine_class] >= 1), -1
                )
            if choice < 0:
                return None
            left[choice] -= 1
            classes[at] = choice
        return classes

    def groups(self, answer: Answer) -> tuple[list[int], list[int]] | None:
        """Return the machine of every unit and the kind of every machine. None: the answer splits a unit."""
        kind_of = {machine_class: at for at, kind in enumerate(self.kinds) for machine_class in kind.classes}
        group_of = [-1] * self.count
        for unit, machine in zip(self.unit_of, answer.machine_of.tolist(), strict=True):
            if group_of[unit] not in (-1, machine):
                return None
            group_of[unit] = machine
        return group_of, [kind_of[machine_class] for machine_class in answer.class_of.tolist()]


def parts_of(instance: ProvisioningInstance) -> ProblemUnits:
    """Return the units and kinds of a problem."""
    kinds = _kinds(instance)
    one_of = [kind.classes[0] for kind in kinds]
    unit_of = _units(instance)
    count, rates = max(unit_of) + 1, instance.rate_bytes_s
    mop_s = np.bincount(unit_of, instance.asked_mop_s, count)
    objects = [np.flatnonzero(row).tolist() for row in needed(instance, np.array(unit_of, dtype=np.intp), count)]
    ends = ((node, unit_of[node], unit_of[parent]) for node, parent in enumerate(instance.parent[:-1].tolist()))
    between, fetched = np.zeros((len(kinds), len(kinds))), np.zeros((len(rates), len(kinds)))
    results = np.zeros(len(kinds))
    if (egress := instance.egress) is not None:
        paid = egress.paid_s / GB
        between = egress.between[np.ix_(one_of, one_of)] * paid
        from_servers = egress.from_servers[:, one_of]
        prices = np.where(instance.holds[:, :, None], from_servers, math.inf)
        prices[~np.any(instance.needs, axis=0)] = 0.0  # an unused object may be on no server
        fetched = prices.min(axis=1) * rates[:, None] * paid
        results = egress.results[one_of] * (instance.throughput_hz * float(instance.output_bytes[-1]) * paid)
    return ProblemUnits(
        instance,
        tuple(unit_of),
        mop_s.tolist(),
        [tuple(row) for row in objects],
        [(unit, other, float(instance.sent_bytes_s[node])) for node, unit, other in ends if unit != other],
        kinds,
        instance.machine_link_bytes_s[np.ix_(one_of, one_of)].tolist(),
        between.tolist(),
        fetched.tolist(),
        results.tolist(),
        None if instance.overlap else _turns(instance, one_of),
    )


def _turns(instance: ProvisioningInstance, classes: Sequence[int]) -> Turns:
    """Return the times of operators on machines of these classes, at most ``LATE``."""
    rho, cards = instance.throughput_hz, instance.card_bytes_s[list(classes)]
    links = instance.machine_link_bytes_s[np.ix_(classes, classes)]
    per_byte = _inverse(np.minimum(links, np.minimum.outer(cards, cards)))
    servers = fetching(instance, np.array(classes, dtype=np.intp))
    fetches = servers.min(axis=1)
    own = np.outer(instance.asked_mop_s, 1 / instance.core_mop_s[list(classes)]) + instance.needs @ fetches
    own[-1] += rho * float(instance.output_bytes[-1]) * _inverse(cards)
    return Turns(np.minimum(own, LATE).tolist(), per_byte.tolist(), (servers - fetches[:, None]).tolist())


def _inverse(rates: Floats) -> Floats:
    inverse: Floats = np.divide(1.0, rates, out=np.full(rates.shape, LATE), where=rates > 0)
    return inverse


def _units(instance: ProvisioningInstance) -> list[int]:
    """Return the unit of every operator: operators stay together if no link or card carries their stream (R1)."""
    card = instance.card_bytes_s
    if not instance.overlap:
        return list(range(instance.count))
    cards = np.minimum(card[:, None], card)
    carried = float(np.minimum(instance.machine_link_bytes_s, cards).max()) * (1 + SLACK)
    root = list(range(instance.count))
    for node in range(instance.count - 2, -1, -1):
        if instance.sent_bytes_s[node] > carried:
            root[node] = root[int(instance.parent[node])]
    number = {representative: at for at, representative in enumerate(sorted(set(root)))}
    return [number[representative] for representative in root]


def _kinds(instance: ProvisioningInstance) -> list[Kind]:
    """Return the kinds: classes that only speed, card and price tell apart, or single classes (R2)."""
    links = instance.machine_link_bytes_s
    figures = [instance.server_link_bytes_s.T, links, links.T]
    if (egress := instance.egress) is not None:
        figures += [egress.from_servers.T, egress.between, egress.between.T, egress.results[:, None]]
    profiles = [row.tobytes() for row in np.concatenate(figures, axis=1)]
    own = np.stack((instance.speed_mop_s, instance.core_mop_s, instance.card_bytes_s, -instance.price), axis=1)
    endless = np.isinf(instance.limit)
    alike: dict[tuple[bytes, bytes], list[int]] = {}
    for at, profile in enumerate(profiles):
        if instance.limit[at] < 1:
            continue
        if instance.overlap and endless[at]:
            alike.setdefault((profile, b""), []).append(at)
        elif not any(
            endless[other]
            and profiles[other] == profile
            and (own[other] >= own[at]).all()
            and (own[other] > own[at]).any()
            for other in range(len(profiles))
        ):
            alike.setdefault((profile, own[at].tobytes()), []).append(at)
    return [Kind(instance, classes) for classes in alike.values()]
