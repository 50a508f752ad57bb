"""Cheapest answer with a given number of machines, as a mixed-integer program for HiGHS.

The program of the paper (section 5) has |N|⁴·|C|² variables. Here, x_it says whether unit *i* is on machine *t*, and
z_to which option of a menu *t* has. The lowest unit of a machine represents the machine. The units that ask for most
are the lowest.

P1. Machines of a kind are in the order of their lowest units. A unit is on a machine only if a lower unit is on the
    machine before. So one of all numberings of the same groups is left.
P2. in_et says whether both ends of stream *e* are on *t*. It is at most x of either end. As units are a tree, a machine
    in use has at least one unit more than streams that stay. Its outgoing traffic is the traffic of its units, less
    twice the streams that stay.
P3. D_kt says whether *t* fetches object *k*. It is at least x of every unit that needs the object. A machine fetches
    every object.
P4. The cost lies between the known bound for the number of machines and the best known answer, less the gap.
P5. Servers (3), (4) and links between machines (5) are left out until an answer breaks them. A bound without them is
    also a bound with them. With their rows, d_klt says whether *t* fetches *k* from server *l*. y_etu says whether
    stream *e* goes from *t* to *u*. Then Σ_u y_etu = x of its one end on *t* and Σ_t y_etu = x of the other on *u*.
P6. HiGHS accepts a violation of a millionth. Groups that break a constraint by so little, or cost more, are forbidden
    by a row, and the next best groups are searched.
P7. Cost and time of a stream depend on the kinds of its machines. f_eab says whether stream *e* goes from kind *a* to
    kind *b*. Its sums are x of the ends by kind. The part that stays on a machine is subtracted. Objects come from the
    fastest server until an answer breaks this. Then the added time of another server counts with d_klt.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from thalweg.experiments.provisioning.answer import Answer
from thalweg.experiments.provisioning.instance import SLACK, Floats
from thalweg.experiments.provisioning.parts import ProblemUnits, Turns
from thalweg.experiments.provisioning.servers import LATE
from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.errors import PlannerError
from thalweg.middleware.planning.solver.program import NoSolutionError, Program

PROVEN = 1e-6  # share of a cost; the precision of HiGHS
SCALE = 1_000.0  # value of the known cost in the program

Terms = Iterable[tuple[int, float]]


class ProgramResult(msgspec.Struct, frozen=True):
    """Cheapest answer below a cost, or None. ``bound``: lower bound of the cost with so many machines.

    ``proven``: False if the time limit ended the search. ``took_s``: duration of the search.
    """

    best: tuple[float, Answer] | None
    bound: float
    proven: bool
    took_s: float


class Counted:
    """Program of the answers with ``least`` to ``most`` machines.

    ``bound``: known lower bound of the cost. ``below``: cost that answers have to beat, inf if none is known. ``gap``:
    least share by which they have to beat it.
    """

    def __init__(
        self, parts: ProblemUnits, least: int, most: int, bound: float, below: float, gap: float = 0.0
    ) -> None:
        self.parts, self.bound, self.below, self.gap = parts, bound, below, gap
        self.least, self.most = least, most
        self.servers = self.links = False  # P5: without rows until an answer breaks them
        self.forbidden: list[list[int]] = []  # P6: excluded groups: by unit, its machine
        self.order = sorted(range(parts.count), key=lambda unit: (-parts.mop_s[unit], unit))
        self.slots = [
            (kind, number)
            for kind, of in enumerate(parts.kinds)
            for number in range(int(min(most, of.limit, parts.count)))
        ]
        known = below if math.isfinite(below) else bound
        self.scale = SCALE / known if known > 0 else 1.0

    def solve(self, time_limit_s: float = math.inf) -> ProgramResult:
        """Return the cheapest answer below the known cost, or the best that is found in time."""
        took_s, best = 0.0, None
        while True:
            built = _Built(self, time_limit_s - took_s)
            try:
                solution = built.program.solve()
            except NoSolutionError:
                return ProgramResult(
                    best, max(self.bound, self.below * (1 - self.gap)), True, took_s + built.program.took_s
                )
            except PlannerError:
                return ProgramResult(best, self.bound, False, took_s + built.program.took_s)
            took_s += built.program.took_s
            self.bound = max(self.bound, min(self.below, solution.bound / self.scale))
            group_of = built.group_of(solution.variables)
            candidate = self.parts.answer(group_of, [kind for kind, _ in self.slots])
            if candidate is not None and candidate[0] < self.below:
                best, self.below = candidate, candidate[0]
            if candidate is not None and candidate[0] <= solution.value / self.scale * (1 + PROVEN):
                return ProgramResult(best, min(candidate[0], self.bound), solution.optimal, took_s)
            if not self.links and self._overfull(group_of):  # P5: the answer overloads a link between machines
                self.links = True
            elif not self.servers:
                self.servers = True
            else:
                self.forbidden.append(group_of)

    def _overfull(self, group_of: Sequence[int]) -> bool:
        sums: dict[tuple[int, int], float] = {}
        for unit, other, sent in self.parts.streams:
            first, second = sorted((group_of[unit], group_of[other]))
            sums[first, second] = sums.get((first, second), 0.0) + sent * (first != second)
        return any(sent > self.link(first, second) for (first, second), sent in sums.items())

    def link(self, one: int, two: int) -> float:
        """Return the bytes/s of the link between two machines."""
        return self.parts.link[self.slots[one][0]][self.slots[two][0]]


class _Built:
    """Variables and rows of a program for HiGHS."""

    def __init__(self, of: Counted, time_limit_s: float) -> None:
        self._of, self._parts = of, of.parts
        self.program = Program(gap=of.gap, time_limit_s=max(time_limit_s, 0.0))
        parts, slots = of.parts, of.slots
        instance = parts.instance
        self._speed = max(kind.speeds[-1] for kind in parts.kinds)
        traffic = float(instance.rate_bytes_s.sum()) + 2 * plain_sum(sent for *_, sent in parts.streams)
        self._card = min(max(kind.cards[-1] for kind in parts.kinds), traffic) or 1.0
        self._rates = instance.rate_bytes_s.tolist()
        self._wanted = sorted({leaf for objects in parts.objects for leaf in objects})
        self._costs: list[tuple[int, float]] = []
        self._x = np.full((parts.count, len(slots)), -1, dtype=np.intp)
        for rank, unit in enumerate(of.order):  # P1: machine n of a kind has none of the n lowest units
            for slot, (kind, number) in enumerate(slots):
                if rank >= number and parts.mop_s[unit] <= parts.kinds[kind].speeds[-1] * (1 + SLACK):
                    self._x[unit, slot] = self._new(integer=True)
        self._used = [self._new(integer=True) for _ in slots]
        self._stays: dict[tuple[int, int], int] = {}
        self._fetches: dict[tuple[int, int], int] = {}
        for slot in range(len(slots)):
            self._machine(slot)
        self._everything()
        if parts.priced or parts.turns is not None:
            self._between_kinds()
        if of.links:
            self._links()
        if of.servers:
            self._servers()
        self._bounds()

    def group_of(self, variables: Floats) -> list[int]:
        """Return the machine of every unit in a solution."""
        groups: list[int] = np.where(self._x >= 0, variables[self._x], -1.0).argmax(axis=1).tolist()
        return groups

    # --- helpers ----------------------------------------------------------------------------------

    def _new(self, *, integer: bool = False) -> int:
        return int(self.program.variables(1, high=1.0, integer=integer)[0])

    def _row(self, terms: Terms, low: float = -math.inf, high: float = math.inf) -> None:
        sums: dict[int, float] = {}
        for column, value in terms:
            sums[column] = sums.get(column, 0.0) + value
        self.program.row(np.array(list(sums), dtype=np.intp), np.array(list(sums.values())), low=low, high=high)

    def _units(self, slot: int) -> list[int]:
        return [unit for unit in self._of.order if self._x[unit, slot] >= 0]

    def _pays(self, column: int, price: float) -> None:
        if price:
            self._costs.append((column, price))

    # --- rows -------------------------------------------------------------------------------------

    def _machine(self, slot: int) -> None:
        """Add the units, streams and objects of a machine (P1 to P3)."""
        used, units = self._used[slot], self._units(slot)
        x = {unit: int(self._x[unit, slot]) for unit in units}
        for unit in units:
            self._row([(x[unit], 1.0), (used, -1.0)], high=0.0)
        self._row([(used, 1.0), *((column, -1.0) for column in x.values())], high=0.0)
        _, number = self._of.slots[slot]
        if number:
            self._order_machines(slot, x)
        carries = [*self._add_options(slot, x), *self._add_streams(slot, x), *self._add_objects(slot, x)]
        self._row(carries, high=0.0)

    def _order_machines(self, slot: int, x: Mapping[int, int]) -> None:
        """Let a unit be on a machine only if a lower unit is on the machine before (P1)."""
        before: list[tuple[int, float]] = []
        for unit in self._of.order:
            if unit in x:
                self._row([(x[unit], 1.0), *before], high=0.0)
            if self._x[unit, slot - 1] >= 0:
                before.append((int(self._x[unit, slot - 1]), -1.0))

    def _add_options(self, slot: int, x: Mapping[int, int]) -> list[tuple[int, float]]:
        """Add a machine's options and the limit of its speed, and return its card's capacity as terms below 0."""
        parts, (kind, _) = self._parts, self._of.slots[slot]
        asks, carries = list[tuple[int, float]](), list[tuple[int, float]]()
        for menu in parts.kinds[kind].menus:
            chosen = [self._new(integer=True) for _ in menu]
            self._row([(self._used[slot], -1.0), *((column, 1.0) for column in chosen)], low=0.0, high=0.0)
            for column, (speed, card, price) in zip(chosen, menu, strict=True):
                asks.append((column, -speed / self._speed))
                carries.append((column, -min(card, self._card) / self._card))
                self._pays(column, price)
        self._row([*asks, *((x[unit], parts.mop_s[unit] / self._speed) for unit in x)], high=0.0)
        return carries

    def _add_streams(self, slot: int, x: Mapping[int, int]) -> list[tuple[int, float]]:
        """Add the streams that stay on a machine (P2), and return the load of its streams on its card."""
        carries, stays = list[tuple[int, float]](), list[int]()
        for stream, (unit, other, sent) in enumerate(self._parts.streams):
            share = sent / self._card
            carries += [(x[end], share) for end in (unit, other) if end in x]
            if unit in x and other in x:
                self._stays[stream, slot] = column = self._new()
                stays.append(column)
                carries.append((column, -2.0 * share))
                for end in (unit, other):
                    self._row([(column, 1.0), (x[end], -1.0)], high=0.0)
        units = ((column, -1.0) for column in x.values())
        self._row([(self._used[slot], 1.0), *((column, 1.0) for column in stays), *units], high=0.0)
        return carries

    def _add_objects(self, slot: int, x: Mapping[int, int]) -> list[tuple[int, float]]:
        """Add the objects that the units on a machine need (P3), and return their load on its card."""
        parts, (kind, _) = self._parts, self._of.slots[slot]
        carries: list[tuple[int, float]] = []
        for leaf in self._wanted:
            users = [unit for unit in x if leaf in parts.objects[unit]]
            if users:
                self._fetches[leaf, slot] = column = self._new()
                carries.append((column, self._rates[leaf] / self._card))
                self._pays(column, parts.fetched[leaf][kind])
                for unit in users:
                    self._row([(x[unit], 1.0), (column, -1.0)], high=0.0)
        return carries

    def _everything(self) -> None:
        """Require a machine for every unit, a fetch of every object, and the wanted number of machines."""
        of, slots = self._of, self._of.slots
        for row in self._x:
            self._row([(int(column), 1.0) for column in row if column >= 0], low=1.0, high=1.0)
        for leaf in self._wanted:  # P3: some machine fetches the object
            fetches = [self._fetches[leaf, slot] for slot in range(len(slots)) if (leaf, slot) in self._fetches]
            self._row([(column, 1.0) for column in fetches], low=1.0)
        self._row([(column, 1.0) for column in self._used], low=of.least, high=of.most)
        for group_of in of.forbidden:  # P6: the same groups are not found again
            terms = [(int(self._x[unit, slot]), 1.0) for unit, slot in enumerate(group_of)]
            self._row(terms, high=len(terms) - 1.0)

    def _between_kinds(self) -> None:
        """Add the cost of streams between machines of two kinds, and the time that transfers take (P7)."""
        parts, slots = self._parts, self._of.slots
        self._takes: list[list[tuple[int, float]]] = [[] for _ in range(parts.count)]
        kinds = range(len(parts.kinds))
        of_kind = [[slot for slot, (kind, _) in enumerate(slots) if kind == sought] for sought in kinds]

        def on(unit: int, kind: int) -> list[tuple[int, float]]:
            return [(int(self._x[unit, slot]), -1.0) for slot in of_kind[kind] if self._x[unit, slot] >= 0]

        for kind in kinds:
            for column, _ in on(parts.count - 1, kind):
                self._pays(column, parts.results[kind])
        for stream, (unit, other, _) in enumerate(parts.streams):
            goes = [[self._new() for _ in kinds] for _ in kinds]
            for kind in kinds:
                self._row([*((column, 1.0) for column in goes[kind]), *on(unit, kind)], low=0.0, high=0.0)
                self._row([*((row[kind], 1.0) for row in goes), *on(other, kind)], low=0.0, high=0.0)
                for to in kinds:
                    self._add_transfer(goes[kind][to], stream, kind, to)
            for slot, (kind, _) in enumerate(slots):
                if (stream, slot) in self._stays:
                    self._add_transfer(self._stays[stream, slot], stream, kind, kind, -1.0)
        if parts.turns is not None:
            self._bound_turns(parts.turns)

    def _add_transfer(self, column: int, stream: int, kind: int, to: int, times: float = 1.0) -> None:
        """Add the cost and time of a stream between machines of two kinds (P7). ``times``: -1 subtracts both."""
        parts = self._parts
        unit, other, sent = parts.streams[stream]
        self._pays(column, times * sent * parts.between[kind][to])
        if parts.turns is not None:
            took = min(sent * parts.turns.per_byte[kind][to], LATE)
            for end in (unit, other):
                self._takes[end].append((column, times * took))

    def _bound_turns(self, turns: Turns) -> None:
        """Limit the time that every unit takes to compute and transfer in turn (P7)."""
        for unit, terms in enumerate(self._takes):
            for slot, (kind, _) in enumerate(self._of.slots):
                if self._x[unit, slot] >= 0:
                    terms.append((int(self._x[unit, slot]), turns.own[unit][kind]))
            self._row(terms, high=1.0)

    def _links(self) -> None:
        """Add the links between machines, and the streams on every link (P5)."""
        slots = range(len(self._of.slots))
        sums: dict[tuple[int, int], list[tuple[int, float]]] = {}
        for stream, (unit, other, sent) in enumerate(self._parts.streams):
            goes = {(source, target): self._new() for source in slots for target in slots if source != target}
            goes |= {(slot, slot): self._stays[stream, slot] for slot in slots if (stream, slot) in self._stays}
            for slot in slots:
                for end, at in ((unit, 0), (other, 1)):
                    own = [(column, 1.0) for pair, column in goes.items() if pair[at] == slot]
                    if self._x[end, slot] >= 0:
                        own.append((int(self._x[end, slot]), -1.0))
                    self._row(own, low=0.0, high=0.0)
            for (source, target), column in goes.items():
                if source != target:
                    share = sent / self._of.link(source, target) if self._of.link(source, target) else math.inf
                    sums.setdefault((min(source, target), max(source, target)), []).append((column, min(share, 2.0)))
        for terms in sums.values():
            self._row(terms, high=1.0)

    def _servers(self) -> None:
        """Add the servers from which objects come, with the limits of their links and cards (P5)."""
        parts, instance = self._parts, self._parts.instance
        cards: list[list[tuple[int, float]]] = [[] for _ in instance.servers]
        for slot, (kind, _) in enumerate(self._of.slots):
            one_of = parts.kinds[kind].classes[0]
            links: list[list[tuple[int, float]]] = [[] for _ in instance.servers]
            more: list[list[tuple[int, float]]] = [[] for _ in instance.objects]
            for leaf in self._wanted:
                if (leaf, slot) not in self._fetches:
                    continue
                servers = np.flatnonzero(instance.holds[leaf]).tolist()
                chosen = [self._new(integer=True) for _ in servers]
                fetches = (self._fetches[leaf, slot], -1.0)
                self._row([fetches, *((column, 1.0) for column in chosen)], low=0.0, high=0.0)
                for server, column in zip(servers, chosen, strict=True):
                    links[server].append((column, self._rates[leaf]))
                    cards[server].append((column, self._rates[leaf]))
                    self._pays(column, parts.fetch_cost(leaf, server, kind) - parts.fetched[leaf][kind])
                    if parts.turns is not None:
                        more[leaf].append((column, parts.turns.more[leaf][server][kind]))
            # P7: the row binds only if the unit is on this machine
            for unit in self._units(slot) if parts.turns is not None else ():
                slower = [term for leaf in parts.objects[unit] for term in more[leaf]]
                big_m = LATE * len(parts.objects[unit])
                self._row([*self._takes[unit], *slower, (int(self._x[unit, slot]), big_m)], high=1.0 + big_m)
            for terms, most in zip(links, instance.server_link_bytes_s[:, one_of].tolist(), strict=True):
                self._at_most(terms, most)
        for terms, most in zip(cards, instance.server_card_bytes_s.tolist(), strict=True):
            self._at_most(terms, most)

    def _at_most(self, terms: Sequence[tuple[int, float]], most: float) -> None:
        if plain_sum(rate for _, rate in terms) > most:
            unit = most or 1.0
            self._row([(column, rate / unit) for column, rate in terms], high=most / unit)

    def _bounds(self) -> None:
        """Set the objective, and keep the cost between the known bound and the best known answer (P4)."""
        of = self._of
        costs: dict[int, float] = {}
        for column, price in self._costs:
            costs[column] = costs.get(column, 0.0) + price * of.scale
        self.program.price(np.array(list(costs), dtype=np.intp), np.array(list(costs.values())))
        below = of.below * of.scale * (1 - max(of.gap, PROVEN))
        self._row(costs.items(), low=of.bound * of.scale * (1 - PROVEN), high=below)
