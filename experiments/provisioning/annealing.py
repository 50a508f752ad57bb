"""Simulated annealing over groups of units that share a machine, from an answer or from one machine for every unit.

A step moves a unit, alone or with its tree on the same machine, or exchanges two units or two trees. Or a step merges
two machines, splits a machine, or changes its kind. Only the touched machines are priced again. A rejected step is
undone.

- R1: Shortages of machines, links and operators' time are allowed. A shortage costs ``PENALTY`` times the highest price
  of a machine, for every share that is short. If the speed or card of a machine is short, ``ANY`` is added to the
  share.
- R2: An answer counts if it keeps all constraints. Steps do not see the constraints of servers. After ``REFUSALS``
  answers that failed by servers alone, no more are tried.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from thalweg.experiments.provisioning.answer import Answer
from thalweg.experiments.provisioning.instance import SLACK
from thalweg.experiments.provisioning.parts import ProblemUnits
from thalweg.middleware.arithmetic import plain_sum

PENALTY, ANY = 2.0, 0.1
REFUSALS = 300
HOT, COLD = 0.15, 0.002  # first and last temperature, as shares of the highest price of a machine
STEPS = 1_500  # of a run, for every unit
RUNS = 4

Move = list[tuple[int, int]]  # units with their new machines


def anneal(
    parts: ProblemUnits, seed: int = 0, starts: Sequence[Answer] = (), *, steps: int = STEPS, runs: int = RUNS
) -> tuple[float, Answer] | None:
    """Return the lowest cost that was found, with its answer. None: no answer kept all constraints.

    ``starts``: answers to begin from, one a run. Further runs begin with a machine for every unit. ``steps``: of a run,
    for every unit.
    """
    best: tuple[float, Answer] | None = None
    for run in range(runs):
        begun = parts.groups(starts[run]) if run < len(starts) else None
        candidate = Walk(parts, random.Random(f"{seed} {run}"), begun).best(steps * parts.count, best)
        best = candidate or best
    return best


class Walk:
    """Placement of units on machines that changes step by step, with its cost."""

    def __init__(
        self, parts: ProblemUnits, chance: random.Random, start: tuple[Sequence[int], Sequence[int]] | None = None
    ) -> None:
        self.parts, self._chance, self._count = parts, chance, parts.count
        self._kinds, self._priced, self._between = parts.kinds, parts.priced, parts.between
        self._rates, self._objects, self._mop_s = parts.instance.rate_bytes_s.tolist(), parts.objects, parts.mop_s
        self._near: list[list[tuple[int, float, bool]]] = [[] for _ in range(parts.count)]
        self._below: list[list[int]] = [[] for _ in range(parts.count)]
        for unit, other, sent in parts.streams:
            self._near[unit].append((other, sent, True))
            self._near[other].append((unit, sent, False))
            self._below[other].append(unit)
        self._limited = plain_sum(sent for *_, sent in parts.streams) > min(map(min, parts.link))
        finite = (price for kind in parts.kinds for row in kind.prices for price in row if price < math.inf)
        dearest = max(finite, default=0.0)  # inf: no machine has such a speed and card together
        self._dear = dearest or 1.0
        group_of, kind_of = start or self._apart()
        self._left = [kind.limit for kind in parts.kinds]
        self._kind = [0] * self._count
        self._at = list(group_of)
        self._on: list[set[int]] = [set() for _ in range(self._count)]
        self._asked, self._card, self._paid = ([0.0] * self._count for _ in range(3))
        self._held = [[0] * len(self._rates) for _ in range(self._count)]
        self._links: dict[tuple[int, int], float] = {}
        self._short = self._moving = self._late = 0.0
        self._turn = [0.0] * self._count
        self._fill(kind_of)
        self._price = [self._price_of(group) for group in range(self._count)]
        self._refused = 0

    def _apart(self) -> tuple[list[int], list[int]]:
        """Return the machine of every unit and the kind of every machine, for a start with a machine for every unit.

        The fastest kinds come first. If machines are too few, units share them.
        """
        order = sorted(range(len(self._kinds)), key=lambda kind: -self._kinds[kind].speeds[-1])
        kinds = [kind for kind in order for _ in range(int(min(self._kinds[kind].limit, self._count)))][: self._count]
        return [unit % len(kinds) for unit in range(self._count)], kinds

    def _fill(self, kind_of: Sequence[int]) -> None:
        for group, kind in enumerate(kind_of):
            self._kind[group] = kind
        for unit, group in enumerate(self._at):
            self._on[group].add(unit)
            self._asked[group] += self._mop_s[unit]
            for leaf in self._objects[unit]:
                self._held[group][leaf] += 1
        for group, held in enumerate(self._held):
            if self._on[group]:
                self._left[self._kind[group]] -= 1
            fetched = self.parts.fetched
            self._card[group] = plain_sum(self._rates[leaf] for leaf, times in enumerate(held) if times)
            self._paid[group] = plain_sum(fetched[leaf][self._kind[group]] for leaf, times in enumerate(held) if times)
        for unit, other, sent in self.parts.streams:
            source, target = self._at[unit], self._at[other]
            if source != target:
                self._card[source] += sent
                self._card[target] += sent
                self._moving += sent * self._between[self._kind[source]][self._kind[target]]
                self._carry(source, target, sent)
        self._retime(range(self._count))

    # --- cost -----------------------------------------------------------------------------------

    def _price_of(self, group: int) -> float:
        """Return the cost of a machine: its price, egress of its objects, and penalties for its shortages (R1)."""
        if not self._on[group]:
            return 0.0
        kind = self._kinds[self._kind[group]]
        asked, card, speeds, cards = self._asked[group], self._card[group], kind.speeds, kind.cards
        i, j = bisect_left(speeds, asked / (1 + SLACK)), bisect_left(cards, card / (1 + SLACK))
        lacks = 0.0
        if i == len(speeds):
            lacks += asked / speeds[-1] - 1 + ANY
            i -= 1
        if j == len(cards):
            lacks += card / (cards[-1] or 1.0) - 1 + ANY
            j -= 1
        price = kind.prices[i][j]
        if price == math.inf:  # no class has both such a speed and such a card
            lacks, price = lacks + ANY, self._dear
        return price + self._paid[group] + PENALTY * lacks * self._dear

    @property
    def _together(self) -> float:
        """Cost of streams and results, and the penalty for overloaded links and late operators."""
        results = self.parts.results[self._kind[self._at[-1]]] if self._priced else 0.0
        return self._moving + results + PENALTY * (self._short + self._late) * self._dear

    def _carry(self, one: int, two: int, more: float) -> None:
        """Add traffic to the link between two machines, and update the shortage of links."""
        key = (one, two) if one < two else (two, one)
        was = self._links.get(key, 0.0)
        now = self._links[key] = was + more
        most = self.parts.link[self._kind[one]][self._kind[two]] * (1 + SLACK)
        if now > most or was > most:
            self._short += (max(0.0, now - most) - max(0.0, was - most)) / (most or 1.0)

    def _retime(self, units: Iterable[int]) -> None:
        """Recompute the times of units in turn, and the sum of times beyond the limit (6)."""
        turns = self.parts.turns
        if turns is None:
            return
        at, kinds = self._at, self._kind
        for unit in units:
            kind, group = kinds[at[unit]], at[unit]
            took = turns.own[unit][kind]
            for other, sent, _ in self._near[unit]:
                if at[other] != group:
                    took += sent * turns.per_byte[kind][kinds[at[other]]]
            was, self._turn[unit] = self._turn[unit], took
            self._late += max(0.0, took - 1 - SLACK) - max(0.0, was - 1 - SLACK)

    # --- steps ----------------------------------------------------------------------------------

    def _shift(self, unit: int, group: int) -> None:
        at, card, was = self._at, self._card, self._at[unit]
        limited, priced = self._limited, self._priced
        for other, sent, up in self._near[unit]:
            peer = at[other]
            if peer == was:
                card[was] += sent
                card[group] += sent
                if limited:
                    self._carry(was, group, sent)
            elif peer == group:
                card[was] -= sent
                card[group] -= sent
                if limited:
                    self._carry(was, group, -sent)
            else:
                card[was] -= sent
                card[group] += sent
                if limited:
                    self._carry(was, peer, -sent)
                    self._carry(group, peer, sent)
            if priced:
                self._moving += sent * (self._per_byte(group, peer, up) - self._per_byte(was, peer, up))
        old, held, rates = self._held[was], self._held[group], self._rates
        for leaf in self._objects[unit]:
            old[leaf] -= 1
            held[leaf] += 1
            if not old[leaf]:
                card[was] -= rates[leaf]
                self._paid[was] -= self.parts.fetched[leaf][self._kind[was]]
            if held[leaf] == 1:
                card[group] += rates[leaf]
                self._paid[group] += self.parts.fetched[leaf][self._kind[group]]
        self._asked[was] -= self._mop_s[unit]
        self._asked[group] += self._mop_s[unit]
        self._on[was].discard(unit)
        self._on[group].add(unit)
        at[unit] = group
        if self.parts.turns is not None:
            self._retime((unit, *(other for other, *_ in self._near[unit])))

    def _per_byte(self, one: int, two: int, up: bool) -> float:
        if one == two:
            return 0.0
        a, b = (one, two) if up else (two, one)
        return self._between[self._kind[a]][self._kind[b]]

    def _rehost(self, group: int, kind: int) -> None:
        """Change the kind of a machine, and the costs and times that depend on it."""
        for unit in self._on[group]:
            for other, sent, up in self._near[unit]:
                peer = self._at[other]
                if peer != group:
                    self._moving -= sent * self._per_byte(group, peer, up)
                    self._carry(group, peer, -sent)
        was, self._kind[group] = self._kind[group], kind
        for unit in self._on[group]:
            for other, sent, up in self._near[unit]:
                peer = self._at[other]
                if peer != group:
                    self._moving += sent * self._per_byte(group, peer, up)
                    self._carry(group, peer, sent)
        for unit in self._on[group]:
            self._retime((unit, *(other for other, *_ in self._near[unit])))
        fetched = self.parts.fetched
        for leaf, times in enumerate(self._held[group]):
            if times:
                self._paid[group] += fetched[leaf][kind] - fetched[leaf][was]

    def _tree(self, unit: int) -> list[int]:
        """Return a unit and the connected units below it on the same machine."""
        tree = [unit]
        for member in tree:
            tree += [below for below in self._below[member] if self._at[below] == self._at[unit]]
        return tree

    def _new(self) -> int:
        """Return an empty machine of a kind with machines left, or -1. One of several kinds is drawn."""
        group = next((group for group, on in enumerate(self._on) if not on), -1)
        if group >= 0 and len(self._kinds) > 1:
            free = [kind for kind, left in enumerate(self._left) if left >= 1]
            if not free:
                return -1
            self._kind[group] = self._chance.choice(free)
        elif group >= 0 and self._left[0] < 1:
            return -1
        return group

    def _beside(self, unit: int) -> int:
        near = self._near[unit]
        return self._at[near[int(self._chance.random() * len(near))][0]] if near else self._at[unit]

    def _step(self) -> Move:
        chance, at = self._chance.random, self._at
        unit, other, draw = int(chance() * self._count), int(chance() * self._count), chance()
        group = at[unit]
        if draw < 0.65:  # move a unit or a tree
            where = chance()
            to = self._beside(unit) if where < 0.6 else at[other] if where < 0.92 else self._new()
            if to in (-1, group):
                return []
            return [(unit, to)] if draw < 0.45 else [(member, to) for member in self._tree(unit)]
        if draw < 0.85:  # exchange two units or trees
            to = at[other]
            if to == group:
                return []
            if draw < 0.78:
                return [(unit, to), (other, group)]
            return [(member, to) for member in self._tree(unit)] + [(member, group) for member in self._tree(other)]
        if draw < 0.92:  # merge two machines
            to = self._beside(unit) if chance() < 0.5 else at[other]
            return [] if to == group else [(member, to) for member in sorted(self._on[group])]
        return self._part(unit)

    def _part(self, unit: int) -> Move:
        """Return the moves that split the machine of a unit into two. Empty: the machine stays whole."""
        chance, group = self._chance.random, self._at[unit]
        if len(self._on[group]) < 2 or (to := self._new()) < 0:
            return []
        if chance() < 0.5:
            return [(member, to) for member in self._tree(unit)]
        return [(member, to) for member in sorted(self._on[group]) if chance() < 0.5]

    # --- the search -----------------------------------------------------------------------------

    def best(self, steps: int, known: tuple[float, Answer] | None = None) -> tuple[float, Answer] | None:
        """Return the cheapest answer that is found in ``steps`` steps and costs less than ``known``, or None."""
        hot, cold = HOT * self._dear, COLD * self._dear
        cools, heat, chance = (cold / hot) ** (1 / max(steps, 1)), hot, self._chance.random
        kinds, several = len(self._kinds), len(self._kinds) > 1
        price, best = self._price, known
        least = known[0] if known else math.inf
        now = plain_sum(price) + self._together
        if (candidate := self._answer(now, least)) is not None:
            best, least = candidate, candidate[0]
        for _ in range(steps):
            heat *= cools
            if several and chance() < 0.1:
                group, kind = self._at[int(chance() * self._count)], int(chance() * kinds)
                now += self._try_kind(group, kind, heat)
            else:
                now += self._try(self._step(), heat)
            if now < least * (1 - SLACK) and (candidate := self._answer(now, least)) is not None:
                best, least = candidate, candidate[0]
        return best if best is not known else None

    def _answer(self, now: float, least: float) -> tuple[float, Answer] | None:
        """Return the present answer, if it keeps all constraints and costs less than ``least`` (R2)."""
        if now >= least or self._refused >= REFUSALS or not self._kept():
            return None
        candidate = self.parts.answer(self._at, self._kind)
        self._refused += candidate is None
        return candidate if candidate is not None and candidate[0] < least else None

    def _kept(self) -> bool:
        """Return whether the placement keeps all constraints that steps see."""
        if self._short > SLACK or self._late > SLACK:
            return False
        machines = ((self._kinds[self._kind[group]], group) for group, on in enumerate(self._on) if on)
        return all(kind.class_for(self._asked[group], self._card[group]) >= 0 for kind, group in machines)

    def _taken(self, more: float, heat: float) -> bool:
        return more <= 0 or self._chance.random() < math.exp(-more / heat)

    def _try(self, moves: Move, heat: float) -> float:
        """Make a step, and return the change of the cost. The change is 0 if the step is not accepted."""
        if not moves:
            return 0.0
        at, price, on = self._at, self._price, self._on
        back = [(unit, at[unit]) for unit, _ in moves]
        touched = {group for _, group in moves} | {group for _, group in back}
        used = {group for group in touched if on[group]}
        was = self._together
        for unit, group in moves:
            self._shift(unit, group)
        more, prices = self._together - was, []
        for group in touched:
            prices.append((group, self._price_of(group)))
            more += prices[-1][1] - price[group]
        if self._taken(more, heat):
            for group, value in prices:
                price[group] = value
                self._left[self._kind[group]] += (group in used) - bool(on[group])
            return more
        for unit, group in reversed(back):
            self._shift(unit, group)
        return 0.0

    def _try_kind(self, group: int, kind: int, heat: float) -> float:
        """Change a machine's kind, or swap the kinds of two machines, and return the change of the cost.

        The change is 0 if the machines keep their kinds.
        """
        was = self._kind[group]
        if was == kind:
            return 0.0
        before = self._together
        swaps = next((machine for machine, on in enumerate(self._on) if on and self._kind[machine] == kind), -1)
        if self._left[kind] >= 1:
            changes = [(group, kind)]
        elif swaps >= 0:
            changes = [(group, kind), (swaps, was)]
        else:
            return 0.0
        for machine, to in changes:
            self._rehost(machine, to)
        values = [self._price_of(machine) for machine, _ in changes]
        more = self._together - before + plain_sum(values) - plain_sum(self._price[machine] for machine, _ in changes)
        if self._taken(more, heat):
            for (machine, _), value in zip(changes, values, strict=True):
                self._price[machine] = value
            if len(changes) == 1:
                self._left[was] += 1
                self._left[kind] -= 1
            return more
        for machine, to in ((group, was), (swaps, kind))[: len(changes)]:
            self._rehost(machine, to)
        return 0.0
