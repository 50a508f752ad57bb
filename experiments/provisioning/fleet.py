"""Machines while a heuristic buys and sells them: the operators of every machine, and checks of what else fits.

- R1: A stream to an operator without a machine is not counted. Otherwise no operator with big inputs could begin.
- R2: A stream between two machines is counted on both cards. An operator may overload neither card.
- R3: A machine may be traded in for another class at any time. So a load fits if some class carries it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from thalweg.experiments.provisioning.instance import SLACK, ProvisioningInstance
from thalweg.middleware.arithmetic import plain_sum


class OperatorGroup:
    """Group of operators: Mop/s, the needed objects as bits, and bytes/s to and from other machines."""

    __slots__ = ("links", "mop_s", "objects", "operators")

    def __init__(self) -> None:
        self.operators: list[int] = []
        self.mop_s = 0.0
        self.objects = 0
        self.links: dict[int, float] = {}


class Fleet:
    """Bought machines by number, and the machine of every operator (``at``)."""

    def __init__(self, instance: ProvisioningInstance) -> None:
        self.instance = instance
        self.machines: dict[int, OperatorGroup] = {}
        self.at: list[int | None] = [None] * instance.count
        self.sold = 0
        self._next = 0
        self._asked_mop_s = instance.asked_mop_s.tolist()
        self._sent = instance.sent_bytes_s.tolist()
        self._objects = [plain_sum(1 << leaf for leaf in set(leaves)) for leaves in instance.leaves]
        self._rates = instance.rate_bytes_s.tolist()
        self._fetched: dict[int, float] = {}
        parents = instance.parent.tolist()
        # neighbours of every operator in the tree, with the bytes/s between both
        self.beside: list[list[tuple[int, float]]] = [
            [(child, self._sent[child]) for child in children] + ([(parent, sent)] if parent >= 0 else [])
            for children, parent, sent in zip(instance.children, parents, self._sent, strict=True)
        ]
        slack = 1 + SLACK
        self._link = float(instance.machine_link_bytes_s.max()) * slack
        rows = zip((instance.speed_mop_s * slack).tolist(), (instance.card_bytes_s * slack).tolist(), strict=True)
        self._largest: list[tuple[float, float]] = []  # speed and card of classes that no other class exceeds in both
        for speed, card in sorted(rows, reverse=True):
            if not self._largest or card > self._largest[-1][1]:
                self._largest.append((speed, card))

    def free(self, among: Iterable[int]) -> list[int]:
        """Return the operators of ``among`` that have no machine."""
        return [node for node in among if self.at[node] is None]

    # --- what fits ------------------------------------------------------------------------------

    def fits(self, operators: Sequence[int], machine: int | None = None) -> bool:
        """Return whether free operators fit on ``machine``. None: together on a new machine."""
        used_mop_s = 0.0 if machine is None else self.machines[machine].mop_s
        if used_mop_s + plain_sum([self._asked_mop_s[node] for node in operators]) > self._largest[0][0]:
            return False  # checked first, as the most common reason
        added = self._together(operators)
        parts = [added] if machine is None else [added, self.machines[machine]]
        if not self._carried(parts, {machine} if machine is not None else set()):
            return False
        for other, sent in added.links.items():  # R2: the stream is counted on the other machine's card as well
            if other != machine and not self._some_class(self.machines[other], sent):
                return False
        return True

    def joins(self, machines: Iterable[int]) -> bool:
        """Return whether the operators of these machines fit on one machine."""
        distinct = set(machines)
        return self._carried([self.machines[machine] for machine in distinct], distinct)

    def _together(self, operators: Sequence[int]) -> OperatorGroup:
        part = OperatorGroup()
        part.operators = list(operators)
        for node in operators:
            part.mop_s += self._asked_mop_s[node]
            part.objects |= self._objects[node]
            for other, sent in self.beside[node]:
                machine = self.at[other]
                if machine is not None:  # R1: a stream to an operator without a machine is not counted
                    part.links[machine] = part.links.get(machine, 0.0) + sent
        return part

    def _carried(self, parts: Sequence[OperatorGroup], own: set[int]) -> bool:
        mop_s = plain_sum([part.mop_s for part in parts])
        if mop_s > self._largest[0][0]:
            return False
        objects, links = 0, dict[int, float]()
        for part in parts:
            objects |= part.objects
            for other, sent in part.links.items():
                if other not in own:
                    links[other] = links.get(other, 0.0) + sent
        if links and max(links.values()) > self._link:
            return False
        return self._class_for(mop_s, self._fetch(objects) + plain_sum(links.values()))

    def _some_class(self, part: OperatorGroup, more: float) -> bool:
        return self._class_for(part.mop_s, self._fetch(part.objects) + plain_sum(part.links.values()) + more)

    def _class_for(self, mop_s: float, card: float) -> bool:
        return any(mop_s <= speed and card <= most for speed, most in self._largest)  # R3: some class carries it

    def _fetch(self, objects: int) -> float:
        rate_bytes_s = self._fetched.get(objects)
        if rate_bytes_s is None:
            rate_bytes_s = plain_sum(rate for at, rate in enumerate(self._rates) if objects >> at & 1)
            self._fetched[objects] = rate_bytes_s
        return rate_bytes_s

    # --- buying and selling ---------------------------------------------------------------------

    def put(self, operators: Sequence[int], machine: int | None = None) -> int:
        """Put free operators on ``machine``, None for a new machine, and return its number."""
        added = self._together(operators)
        if machine is None:
            machine, self._next = self._next, self._next + 1
            self.machines[machine] = OperatorGroup()
        self._add(added, machine)
        return machine

    def join(self, machines: Sequence[int]) -> int:
        """Move the operators of machines to the first of the machines, and return it. Sell the remaining machines."""
        first, *rest = dict.fromkeys(machines)
        for other in rest:
            self.put(self.sell(other), first)
        return first

    def sell(self, machine: int) -> list[int]:
        """Sell a machine, and return its operators, which are free afterwards."""
        gone = self.machines.pop(machine)
        for other in gone.links:
            del self.machines[other].links[machine]
        for node in gone.operators:
            self.at[node] = None
        self.sold += 1
        return gone.operators

    def _add(self, added: OperatorGroup, machine: int) -> None:
        part = self.machines[machine]
        part.operators += added.operators
        part.mop_s += added.mop_s
        part.objects |= added.objects
        for node in added.operators:
            self.at[node] = machine
        for other, sent in added.links.items():
            if other != machine:
                for links, end in ((part.links, other), (self.machines[other].links, machine)):
                    links[end] = links.get(end, 0.0) + sent
