"""Answer to a provisioning problem: its loads on machines, servers and links, its cost, and its violated constraints.

The constraints of the paper (section 2.3), by number:

- (1) A machine computes its operators ρ times a second.
- (2) The card of a machine carries the fetched objects, and the streams from and to other machines.
- (3) The card of a server carries everything that is fetched from the server.
- (4) The link from a server to a machine carries the objects fetched over it.
- (5) The link between two machines carries the streams of both directions.

Constraints of this project:

- (0) Every needed object is fetched from a server that holds it. No class has more machines than there are.
- (6) Without ``overlap``, an operator receives, computes and sends in turn within 1/ρ. The ``Period`` of the same
  placement is at least this time (``planning.costs.period``).

A machine fetches an object once, however many of its operators need the object.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import msgspec
import numpy as np

from thalweg.experiments.provisioning.instance import GB, SLACK, Flags, Floats, Indices, ProvisioningInstance
from thalweg.middleware.errors import PlacementError

NOWHERE = -1  # instead of a server: the machine does not fetch the object


class Answer(msgspec.Struct, frozen=True, dict=True):
    """Rented machines, numbered from 0, with their operators, classes and servers.

    - ``machine_of``: (n,) the machine of every operator (a).
    - ``class_of``: (m,) the class of every machine.
    - ``server_of``: (m, k) the server from which a machine fetches an object, or ``NOWHERE`` (download).
    """

    machine_of: Indices
    class_of: Indices
    server_of: Indices

    @property
    def machines(self) -> int:
        """Number of rented machines."""
        return len(self.class_of)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Operators on every machine."""
        return tuple(tuple(np.flatnonzero(self.machine_of == at).tolist()) for at in range(self.machines))


class MachineLoads(msgspec.Struct, frozen=True):
    """Loads of machines, servers and links by an answer.

    - ``mop_s``: (m,) of machines (1). ``card_bytes_s``: (m,) of machines' cards (2).
    - ``server_bytes_s``: (l,) of servers' cards (3). ``server_link_bytes_s``: (l, m) of servers' links (4).
    - ``link_bytes_s``: (m, m) from a machine to another. A link carries both directions (5).
    """

    mop_s: Floats
    card_bytes_s: Floats
    server_bytes_s: Floats
    server_link_bytes_s: Floats
    link_bytes_s: Floats


class Violation(msgspec.Struct, frozen=True):
    """Violated constraint: its number, its place, and the load and the capacity there, in ``unit``."""

    constraint: int
    where: str
    asked: float
    there_is: float
    unit: str

    @property
    def over(self) -> float:
        """Load beyond the capacity."""
        return self.asked - self.there_is

    def __str__(self) -> str:
        if not self.constraint:
            return self.where
        fault = f"{self.where} has {self.there_is:,.6g} {self.unit}"
        return f"{fault}, {self.over:,.6g} short of {self.asked:,.6g} ({self.constraint})"


def needed(instance: ProvisioningInstance, machine_of: Indices, machines: int) -> Flags:
    """Return for every machine and object, (m, k), whether the machine has to fetch the object."""
    needs = np.zeros((machines, len(instance.objects)), dtype=bool)
    np.logical_or.at(needs, machine_of, instance.needs)
    return needs


def loads(instance: ProvisioningInstance, answer: Answer) -> MachineLoads:
    """Return the load of an answer on every machine, server and link. ``violations`` checks the answer's form."""
    machine, count = answer.machine_of, answer.machines
    links = np.zeros((count, count))
    ends = machine[:-1], machine[instance.parent[:-1]]
    np.add.at(links, ends, instance.sent_bytes_s[:-1])
    np.fill_diagonal(links, 0.0)  # a stream within a machine is free
    fetched = np.zeros((len(instance.servers), count))
    at, leaf = np.nonzero(answer.server_of >= 0)
    np.add.at(fetched, (answer.server_of[at, leaf], at), instance.rate_bytes_s[leaf])
    return MachineLoads(
        mop_s=np.bincount(machine, instance.asked_mop_s, count).astype(np.float64, copy=False),
        card_bytes_s=fetched.sum(axis=0) + links.sum(axis=0) + links.sum(axis=1),
        server_bytes_s=fetched.sum(axis=1),
        server_link_bytes_s=fetched,
        link_bytes_s=links,
    )


def in_turn_s(instance: ProvisioningInstance, answer: Answer) -> Floats:
    """Return (n,) the seconds that an operator takes for a result if it receives, computes and sends in turn (6).

    A transfer has the full rate of the slowest of its link and the cards at both ends. An operator has a core of its
    own. The root's result leaves its machine.
    """
    machine, classes, parent = answer.machine_of, answer.class_of, instance.parent[:-1]
    cards = instance.card_bytes_s[classes]
    took = instance.work_mop / instance.core_mop_s[classes[machine]]
    source, target = machine[:-1], machine[parent]
    rates = np.minimum(instance.machine_link_bytes_s[classes[source], classes[target]], cards[source])
    sent = _seconds(instance.output_bytes[:-1] * (source != target), np.minimum(rates, cards[target]))
    took[:-1] += sent
    np.add.at(took, parent, sent)
    took[-1:] += _seconds(instance.output_bytes[-1:], cards[machine[-1:]])
    node, leaf = np.nonzero(instance.needs)
    server = answer.server_of[machine[node], leaf]
    rates = np.minimum(instance.server_link_bytes_s[server, classes[machine[node]]], cards[machine[node]])
    rates = np.minimum(rates, instance.server_card_bytes_s[server])
    np.add.at(took, node, _seconds(instance.object_bytes[leaf], rates))
    return took


def _seconds(size_bytes: Floats, rates: Floats) -> Floats:
    """Return the transfer times of sizes. At a rate of 0, the time of a size above 0 is infinite."""
    endless = np.where(size_bytes > 0, np.inf, 0.0)
    return np.divide(size_bytes, rates, out=endless, where=rates > 0)


def violations(instance: ProvisioningInstance, answer: Answer) -> list[Violation]:
    """Return the violated constraints of an answer, by number. Empty: the answer sustains the throughput.

    Raises PlacementError if the arrays do not fit the problem.
    """
    _check_form(instance, answer)
    return [*_undone(instance, answer), *_overloads(instance, answer, loads(instance, answer))]


def require(instance: ProvisioningInstance, answer: Answer) -> Answer:
    """Return the answer, or raise PlacementError with the first constraint that it violates."""
    for violation in violations(instance, answer)[:1]:
        raise PlacementError(f"the machines do not sustain the throughput: {violation}")
    return answer


def cost(instance: ProvisioningInstance, answer: Answer) -> float:
    """Return the cost of an answer: prices of machines, and of their bytes in ``egress.paid_s`` seconds."""
    machines, egress = float(instance.price[answer.class_of].sum()), instance.egress
    if egress is None:
        return machines
    asked, classes = loads(instance, answer), answer.class_of
    per_s = float((asked.server_link_bytes_s * egress.from_servers[:, classes]).sum())
    per_s += float((asked.link_bytes_s * egress.between[np.ix_(classes, classes)]).sum())
    results = instance.throughput_hz * float(instance.output_bytes[-1])
    per_s += results * float(egress.results[classes[answer.machine_of[-1]]])
    return machines + per_s * egress.paid_s / GB


def _check_form(instance: ProvisioningInstance, answer: Answer) -> None:
    n, m, k = instance.count, answer.machines, len(instance.objects)
    for field, form, least, end in (
        ("machine_of", (n,), 0, m),
        ("class_of", (m,), 0, len(instance.classes)),
        ("server_of", (m, k), NOWHERE, len(instance.servers)),
    ):
        values: Indices = getattr(answer, field)
        if values.shape != form:
            raise PlacementError(f"{field} of the answer has the form {values.shape}; it must be {form}")
        if values.size and not (values.min() >= least and values.max() < end):
            raise PlacementError(
                f"{field} of the answer goes from {values.min()} to {values.max()}, not {least}…{end - 1}"
            )


def _undone(instance: ProvisioningInstance, answer: Answer) -> Iterator[Violation]:
    names = machine_names(instance, answer)
    fetched = answer.server_of >= 0
    for machine, leaf in np.argwhere(needed(instance, answer.machine_of, answer.machines) & ~fetched).tolist():
        yield Violation(0, f"{names[machine]} does not fetch object {instance.objects[leaf]!r}", 1, 0, "")
    for machine, leaf in np.argwhere(fetched).tolist():
        server = answer.server_of[machine, leaf]
        if not instance.holds[leaf, server]:
            fault = (
                f"{names[machine]} fetches object {instance.objects[leaf]!r} from server {instance.servers[server]!r}"
            )
            yield Violation(0, f"{fault}, which does not hold it", 1, 0, "")
    rented = np.bincount(answer.class_of, minlength=len(instance.classes))
    for kind in np.flatnonzero(rented > instance.limit).tolist():
        fault = f"{rented[kind]} machines of class {instance.classes[kind]!r} are rented"
        yield Violation(
            0, f"{fault}; there are {instance.limit[kind]:g}", float(rented[kind]), instance.limit[kind], ""
        )


def _overloads(instance: ProvisioningInstance, answer: Answer, asked: MachineLoads) -> Iterator[Violation]:
    names, classes = machine_names(instance, answer), answer.class_of
    servers = [f"server {name!r}" for name in instance.servers]
    # both directions share one link
    both = np.triu(asked.link_bytes_s + asked.link_bytes_s.T)
    for number, load, limits, unit, of in (
        (1, asked.mop_s, instance.speed_mop_s[classes], "Mop/s", names),
        (2, asked.card_bytes_s, instance.card_bytes_s[classes], "bytes/s", [f"the card of {name}" for name in names]),
        (3, asked.server_bytes_s, instance.server_card_bytes_s, "bytes/s", [f"the card of {name}" for name in servers]),
        (4, asked.server_link_bytes_s, instance.server_link_bytes_s[:, classes], "bytes/s", (servers, names)),
        (5, both, instance.machine_link_bytes_s[np.ix_(classes, classes)], "bytes/s", (names, names)),
    ):
        for at in map(tuple, np.argwhere(load > limits * (1 + SLACK)).tolist()):
            where = f"the link from {of[0][at[0]]} to {of[1][at[1]]}" if isinstance(of, tuple) else of[at[0]]
            yield Violation(number, where, float(load[at]), float(limits[at]), unit)
    if not instance.overlap:
        took_s, limit_s = in_turn_s(instance, answer), 1 / instance.throughput_hz
        for node in np.flatnonzero(took_s > limit_s * (1 + SLACK)).tolist():
            where = f"operator {instance.operators[node]!r} on {names[answer.machine_of[node]]}"
            yield Violation(6, where, float(took_s[node]), limit_s, "s")


def machine_names(instance: ProvisioningInstance, answer: Answer) -> list[str]:
    """Return the names of the machines: ``m1 (class)`` and so on."""
    return [f"m{at + 1} ({instance.classes[kind]})" for at, kind in enumerate(answer.class_of.tolist())]
