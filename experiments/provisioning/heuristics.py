"""Seven heuristics of Benoit et al. (2008), section 6, that choose the operators of every machine.

A heuristic fills a ``Fleet``. Then servers are selected, and every machine gets the cheapest class that carries its
load. The following rules decide what the paper leaves open.

- R1: If an operator does not fit on a new machine alone, the machine is bought for it and the child or parent that
  exchanges most with it. If this neighbour is on a machine, the machine is sold, which frees its operators.
- R2: A heuristic that has sold more than ``SALES`` machines by R1 goes round in circles, and fails.
- R3: If the paper names no order, operators are put on a machine by falling work.
- R4: Subtree-Bottom-Up goes from the leaves to the root. It tries an operator with its children together, then with a
  single child by falling streams, then alone.
- R5: Object-Greedy, Object-Grouping and Object-Availability group an operator that needs objects with free operators
  alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from thalweg.experiments.provisioning.answer import Answer, require
from thalweg.experiments.provisioning.fleet import Fleet
from thalweg.experiments.provisioning.instance import ProvisioningInstance
from thalweg.experiments.provisioning.selection import NoServerError, served
from thalweg.middleware.errors import PlacementError, PlannerError, nearest

SALES = 20  # on the paper's trees, no successful heuristic sold more than 6
Heuristic = Callable[[Fleet, np.random.Generator], None]


def rented(instance: ProvisioningInstance, heuristic: str, seed: int = 0) -> Answer:
    """Return the answer of a heuristic. Raise PlannerError (NoServerError) with the reason if no answer is found.

    ``seed``: of Random and its servers.
    """
    if heuristic not in HEURISTICS:
        raise PlannerError(f"{heuristic!r} is no heuristic; {nearest(heuristic, HEURISTICS)}")
    random = np.random.default_rng(seed)
    fleet = Fleet(instance)
    try:
        HEURISTICS[heuristic](fleet, random)
        number = {machine: at for at, machine in enumerate(fleet.machines)}
        machine_of = np.array([number[machine] for machine in fleet.at if machine is not None], dtype=np.intp)
        return require(instance, served(instance, machine_of, random if heuristic == "random" else None))
    except (PlannerError, PlacementError) as error:
        kind = NoServerError if isinstance(error, NoServerError) else PlannerError
        raise kind(f"{heuristic} finds no machines: {error}") from None


def _at_random(fleet: Fleet, random: np.random.Generator) -> None:
    free = list(range(fleet.instance.count))
    while free:
        _begun(fleet, free[int(random.integers(len(free)))])
        free = fleet.free(range(fleet.instance.count))


def _comp_greedy(fleet: Fleet, random: np.random.Generator) -> None:
    _by_work(fleet)


def _comm_greedy(fleet: Fleet, random: np.random.Generator) -> None:
    instance = fleet.instance
    parents = instance.parent.tolist()
    for child in np.argsort(-instance.sent_bytes_s[:-1], kind="stable").tolist():
        ends = [child, parents[child]]
        machines = {machine for machine in (fleet.at[end] for end in ends) if machine is not None}
        free = fleet.free(ends)
        if not free and len(machines) == 2:  # (iii) both ends are on machines: one machine for all, if one carries all
            if fleet.joins(machines):
                fleet.join(sorted(machines))
        elif len(free) == 2:  # (i) both ends are free: one machine, or one for each
            for together in [ends] if fleet.fits(ends) else [[end] for end in ends]:
                fleet.put(together)
        elif free:  # (ii) one end is free: it goes to the other end's machine, or to a new one
            (machine,) = machines
            fleet.put(free, machine if fleet.fits(free, machine) else None)
    for alone in fleet.free(range(instance.count)):  # a tree of one operator has no stream
        fleet.put([alone])


def _object_greedy(fleet: Fleet, random: np.random.Generator) -> None:
    instance = fleet.instance
    most = [max((instance.rate_bytes_s[at] for at in leaves), default=0.0) for leaves in instance.leaves]
    order = sorted(_almost_leaves(instance), key=lambda node: (-most[node], -instance.work_mop[node]))
    inner = [node for node in _falling(instance) if not instance.leaves[node]]
    while free := fleet.free(order):
        machine = _begun(fleet, free[0], sells=False)
        _fill(fleet, machine, [*free[1:], *inner])
    _by_work(fleet)


def _subtree_bottom_up(fleet: Fleet, random: np.random.Generator) -> None:
    sent = fleet.instance.sent_bytes_s
    # R4: children come before their parents, so leaves are first
    for node, children in enumerate(fleet.instance.children):
        own = fleet.put([node])
        falling = (fleet.at[child] for child in sorted(children, key=lambda child: -sent[child]))
        below = list(dict.fromkeys(machine for machine in falling if machine is not None))
        for together in (below, *([machine] for machine in below)):
            if fleet.joins([own, *together]):
                fleet.join([own, *together])
                break


def _object_grouping(fleet: Fleet, random: np.random.Generator) -> None:
    instance = fleet.instance
    popularity = instance.needs.sum(axis=0)
    liked = (instance.needs @ popularity).tolist()
    order = sorted(_almost_leaves(instance), key=lambda node: -liked[node])
    inner = [node for node in _falling(instance) if not instance.leaves[node]]
    while free := fleet.free(order):
        machine = _begun(fleet, free[0], sells=False)
        same = [node for node in free[1:] if set(instance.leaves[node]) & set(instance.leaves[free[0]])]
        _fill(fleet, machine, [*same, *inner])
    _by_work(fleet)


def _object_availability(fleet: Fleet, random: np.random.Generator) -> None:
    instance = fleet.instance
    for leaf in np.argsort(instance.holds.sum(axis=1), kind="stable").tolist():
        users = [node for node in _falling(instance) if leaf in instance.leaves[node]]
        while free := fleet.free(users):
            _fill(fleet, _begun(fleet, free[0], sells=False), free[1:])
    _by_work(fleet)


HEURISTICS: Mapping[str, Heuristic] = {
    "random": _at_random,
    "comp-greedy": _comp_greedy,
    "comm-greedy": _comm_greedy,
    "object-greedy": _object_greedy,
    "subtree-bottom-up": _subtree_bottom_up,
    "object-grouping": _object_grouping,
    "object-availability": _object_availability,
}


# --- shared steps ---------------------------------------------------------------------------------------


def _falling(instance: ProvisioningInstance) -> list[int]:
    """Return the operators by falling work."""
    order: list[int] = np.argsort(-instance.work_mop, kind="stable").tolist()
    return order


def _almost_leaves(instance: ProvisioningInstance) -> list[int]:
    """Return the operators that need objects (al-operators)."""
    return [node for node, leaves in enumerate(instance.leaves) if leaves]


def _fill(fleet: Fleet, machine: int, nodes: Iterable[int]) -> None:
    """Put the free operators of ``nodes`` that fit on a machine, in order. An added operator never makes room."""
    for node in nodes:
        if fleet.at[node] is None and fleet.fits([node], machine):
            fleet.put([node], machine)


def _by_work(fleet: Fleet) -> None:
    """Put the free operators on machines as Comp-Greedy does: begin a machine with most work, then fill it."""
    order = _falling(fleet.instance)
    while free := fleet.free(order):
        _fill(fleet, _begun(fleet, free[0]), free[1:])


def _begun(fleet: Fleet, node: int, sells: bool = True) -> int:
    """Buy a machine for an operator, alone or with the neighbour that exchanges most with it (R1)."""
    together, name = [node], fleet.instance.operators[node]
    if not fleet.fits(together):
        # R5: a heuristic that begins with objects groups with free operators alone
        beside = [(sent, other) for other, sent in fleet.beside[node] if sells or fleet.at[other] is None]
        if not beside:
            raise PlannerError(f"no machine can be bought for operator {name!r}, and none beside it is free")
        _, other = max(beside)
        if (held := fleet.at[other]) is not None:
            fleet.sell(held)
        if fleet.sold > SALES:  # R2: the heuristic goes round in circles
            raise PlannerError(f"machines are sold again and again for operator {name!r}")
        together = [node, other]
        if not fleet.fits(together):
            neighbour = fleet.instance.operators[other]
            raise PlannerError(f"no machine can be bought for operators {name!r} and {neighbour!r} together")
    return fleet.put(together)
