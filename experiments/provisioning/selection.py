"""Choice of the server for every fetch of a machine (section 6.2), and of the cheapest class that carries the load.

The paper leaves two questions open. Servers are compared by the remaining capacity of both their links and their cards.
If only one machine with a choice is left, it is served like every machine before.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from thalweg.experiments.provisioning.answer import (
    NOWHERE,
    Answer,
    cost,
    in_turn_s,
    loads,
    needed,
    violations,
)
from thalweg.experiments.provisioning.instance import SLACK, Flags, Indices, ProvisioningInstance
from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.errors import PlannerError


class NoServerError(PlannerError):
    """Lack of capacity of servers, or of their links, for a needed object."""


def at_random(instance: ProvisioningInstance, needs: Flags, random: np.random.Generator) -> Indices:
    """Return (m, k) a random server for every object that a machine needs: Server-Selection-Random (6.2.1)."""
    liked = random.random((*needs.shape, len(instance.servers))) * instance.holds
    return np.where(needs, liked.argmax(axis=2), NOWHERE)


class Selection:
    """Choice of servers by remaining capacity of cards and links: Server-Selection-Intelligent (6.2.2).

    ``needs``: (m, k) whether a machine fetches an object. ``class_of``: (m,) by machine, for the rates of links.
    """

    def __init__(self, instance: ProvisioningInstance, needs: Flags, class_of: Indices) -> None:
        self.instance = instance
        self.server_of = np.full(needs.shape, NOWHERE, dtype=np.intp)
        self._rates = instance.rate_bytes_s.tolist()
        self._cards = (instance.server_card_bytes_s * (1 + SLACK)).tolist()
        self._links = (instance.server_link_bytes_s[:, class_of].T * (1 + SLACK)).tolist()  # by machine
        self._holders = [np.flatnonzero(row).tolist() for row in instance.holds]
        self._open = [np.flatnonzero(row).tolist() for row in needs.T]  # by object, the machines without a server

    def chosen(self) -> Indices:
        """Return (m, k) the servers. Raise NoServerError for the first object that no server can send."""
        wanted = [leaf for leaf, machines in enumerate(self._open) if machines]
        for leaf in wanted:
            if len(self._holders[leaf]) == 1:
                self._serve(leaf, self._holders[leaf])
        for server in np.flatnonzero(self.instance.holds[wanted].sum(axis=0) == 1).tolist() if wanted else []:
            for leaf in wanted:
                if server in self._holders[leaf]:
                    self._serve(leaf, [server], all_of_them=False)
        while left := [leaf for leaf in wanted if self._open[leaf]]:
            leaf = max(left, key=self._pressing)
            self._serve(leaf, self._holders[leaf])
        return self.server_of

    def _pressing(self, what: int) -> float:
        """Return the number of machines that need an object, per server that has capacity left for the object."""
        able = plain_sum(self._cards[server] >= self._rates[what] for server in self._holders[what])
        return len(self._open[what]) / able if able else float("inf")

    def _serve(self, what: int, servers: list[int], all_of_them: bool = True) -> None:
        rate, still = self._rates[what], list[int]()
        for machine in self._open[what]:
            room, server = max((min(self._cards[at], self._links[machine][at]), -at) for at in servers)
            if room >= rate:
                self._cards[-server] -= rate
                self._links[machine][-server] -= rate
                self.server_of[machine, what] = -server
            elif all_of_them:
                raise NoServerError(
                    f"no server that holds object {self.instance.objects[what]!r} can send it to one more machine"
                )
            else:
                still.append(machine)
        self._open[what] = still


def equipped(instance: ProvisioningInstance, machine_of: Indices, server_of: Indices, *, chosen: bool = True) -> Answer:
    """Return the answer in which every machine has the cheapest available class that carries its load.

    ``chosen``: whether servers are chosen, so that their links count. Machines with most work choose first. Raises
    PlannerError if no class carries a load.
    """
    count, order = len(server_of), np.argsort(instance.price, kind="stable").tolist()
    asked = loads(instance, Answer(machine_of, np.zeros(count, dtype=np.intp), server_of))
    speed, card = (instance.speed_mop_s * (1 + SLACK)).tolist(), (instance.card_bytes_s * (1 + SLACK)).tolist()
    mop_s, carried, left = asked.mop_s.tolist(), asked.card_bytes_s.tolist(), instance.limit.tolist()
    # links that are equal for all classes do not matter for the choice
    both = asked.link_bytes_s + asked.link_bytes_s.T
    between, from_servers = instance.machine_link_bytes_s, instance.server_link_bytes_s
    unlike = bool((between != between[0, 0]).any() or (from_servers != from_servers[:, :1]).any())
    class_of = np.full(count, -1, dtype=np.intp)
    for machine in np.argsort(-asked.mop_s, kind="stable").tolist():
        for kind in order:
            if mop_s[machine] <= speed[kind] and carried[machine] <= card[kind] and left[kind] >= 1:
                if unlike:
                    settled = np.flatnonzero(class_of >= 0)
                    between = instance.machine_link_bytes_s[kind, class_of[settled]]
                    servers = instance.server_link_bytes_s[:, kind]
                    if (both[machine, settled] > between * (1 + SLACK)).any():
                        continue
                    if chosen and (asked.server_link_bytes_s[:, machine] > servers * (1 + SLACK)).any():
                        continue
                class_of[machine] = kind
                left[kind] -= 1
                break
        else:
            demand = f"{mop_s[machine]:,.6g} Mop/s and a card of {carried[machine]:,.6g} bytes/s"
            raise PlannerError(f"no machine that is left has {demand}, and links for them")
    return Answer(machine_of, class_of, server_of)


def served(instance: ProvisioningInstance, machine_of: Indices, random: np.random.Generator | None = None) -> Answer:
    """Return the answer for operators on machines, with servers (random or intelligent) and downgraded classes.

    Raises PlannerError if no answer is found, and NoServerError if servers lack capacity.
    """
    machines = int(machine_of.max()) + 1
    needs = needed(instance, machine_of, machines)
    if random is not None:
        return in_time(instance, equipped(instance, machine_of, at_random(instance, needs, random)))
    first = equipped(instance, machine_of, _fetched_from_any(instance, needs), chosen=False)
    server_of = Selection(instance, needs, first.class_of).chosen()
    return in_time(instance, equipped(instance, machine_of, server_of))


def in_time(instance: ProvisioningInstance, answer: Answer) -> Answer:
    """Return the answer with better machines where operators receive, compute and send too long in turn (6).

    Every step changes the class of one machine, so that most excess time is removed for the price and the remaining
    constraints are kept. Then machines are traded in for cheaper ones that suffice. Raises PlannerError if no change
    helps.
    """
    if instance.overlap:
        return answer
    excess_s = _excess_s(instance, answer)
    while excess_s > 0:
        best: tuple[float, Answer] | None = None
        for other in _changed(instance, answer):
            less_s = excess_s - _excess_s(instance, other)
            more = cost(instance, other) - cost(instance, answer)
            if less_s > 0 and (best is None or more / less_s < best[0]) and _kept(instance, other):
                best = more / less_s, other
        if best is None:
            worst = max(violations(instance, answer), key=lambda violation: violation.over)
            raise PlannerError(f"no machine is fast enough for what is received, computed and sent in turn: {worst}")
        answer = best[1]
        excess_s = _excess_s(instance, answer)
    while cheaper := [
        candidate for candidate in _changed(instance, answer) if cost(instance, candidate) < cost(instance, answer)
    ]:
        feasible = [candidate for candidate in cheaper if not violations(instance, candidate)]
        if not feasible:
            break
        answer = min(feasible, key=lambda candidate: cost(instance, candidate))
    return answer


def _excess_s(instance: ProvisioningInstance, answer: Answer) -> float:
    return float(np.maximum(in_turn_s(instance, answer) * instance.throughput_hz - 1 - SLACK, 0.0).sum())


def _kept(instance: ProvisioningInstance, answer: Answer) -> bool:
    """Return whether an answer keeps every constraint except (6)."""
    return all(violation.constraint == 6 for violation in violations(instance, answer))


def _changed(instance: ProvisioningInstance, answer: Answer) -> Iterator[Answer]:
    """Yield the answers with another class of one machine."""
    for machine, own in enumerate(answer.class_of.tolist()):
        for kind in range(len(instance.classes)):
            if kind != own:
                classes = answer.class_of.copy()
                classes[machine] = kind
                yield Answer(answer.machine_of, classes, answer.server_of)


def _fetched_from_any(instance: ProvisioningInstance, needs: Flags) -> Indices:
    """Return (m, k) the first server that holds an object. The load of a card does not depend on the server."""
    return np.where(needs, instance.holds.argmax(axis=1), NOWHERE)
