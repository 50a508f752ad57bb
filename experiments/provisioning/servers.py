"""Choice of the server for every object that a machine needs: the cheapest with capacity on links and cards.

If the cheapest servers lack capacity, or an operator would take too long in turn (6), the choice is made anew. Without
egress prices, Server-Selection-Intelligent is tried. Then the solver finds servers if there are any.
"""

from __future__ import annotations

import math
from contextlib import suppress

import msgspec
import numpy as np

from thalweg.experiments.provisioning.answer import NOWHERE, Answer, in_turn_s, needed
from thalweg.experiments.provisioning.instance import SLACK, Flags, Floats, Indices, ProvisioningInstance
from thalweg.experiments.provisioning.selection import Selection
from thalweg.middleware.errors import PlannerError
from thalweg.middleware.planning.solver.program import Program

SECONDS = 10.0  # time limit of the solver
LATE = 2.0  # longest time, as a share of the time between results
TIES = 1e-9  # weight of the rate, which decides between equal prices


def served_from(instance: ProvisioningInstance, machine_of: Indices, class_of: Indices) -> Indices | None:
    """Return (m, k) the server of every object that a machine needs, or None if no servers are found.

    ``machine_of``: (n,) by operator. ``class_of``: (m,) by machine.
    """
    needs = needed(instance, machine_of, len(class_of))
    prices = np.where(instance.holds, 0.0, math.inf)[None]  # (1 or m, k, l)
    if (egress := instance.egress) is not None:
        prices = prices + egress.from_servers[:, class_of].T[:, None]
    if not instance.overlap:  # of equally cheap servers, the fastest
        links = np.minimum(instance.server_link_bytes_s[:, class_of], instance.server_card_bytes_s[:, None])
        most = float(links[np.isfinite(links)].max(initial=0.0)) or 1.0
        prices = prices - TIES * np.minimum(links / most, 1.0).T[:, None]
    chosen = np.where(needs, np.broadcast_to(prices, (*needs.shape, prices.shape[2])).argmin(axis=2), NOWHERE)
    if _kept(instance, Answer(machine_of, class_of, chosen)):
        return chosen
    if egress is None:
        with suppress(PlannerError):
            answer = Answer(machine_of, class_of, Selection(instance, needs, class_of).chosen())
            if _kept(instance, answer):
                return answer.server_of
    return _by_program(instance, machine_of, class_of, needs, prices)


def _kept(instance: ProvisioningInstance, answer: Answer) -> bool:
    """Return whether servers' cards (3) and links (4) carry the fetched objects, in time for every operator (6)."""
    server_of, class_of = answer.server_of, answer.class_of
    fetched = np.zeros((len(instance.servers), len(server_of)))
    at, leaf = np.nonzero(server_of >= 0)
    np.add.at(fetched, (server_of[at, leaf], at), instance.rate_bytes_s[leaf])
    links = instance.server_link_bytes_s[:, class_of]
    cards = instance.server_card_bytes_s
    fits = (fetched <= links * (1 + SLACK)).all() and (fetched.sum(axis=1) <= cards * (1 + SLACK)).all()
    in_turn = instance.overlap or (in_turn_s(instance, answer) * instance.throughput_hz <= 1 + SLACK).all()
    return bool(fits and in_turn)


def fetching(instance: ProvisioningInstance, class_of: Indices) -> Floats:
    """Return (k, l, m) the shares of 1/ρ for an object from a server to machines of classes, at most ``LATE``."""
    links = np.minimum(instance.server_link_bytes_s[:, class_of], instance.server_card_bytes_s[:, None])
    rates = np.minimum(links, instance.card_bytes_s[class_of])
    asked = instance.throughput_hz * instance.object_bytes[:, None, None]
    shares = np.divide(asked, rates, out=np.where(asked * np.ones_like(rates) > 0, LATE, 0.0), where=rates > 0)
    capped: Floats = np.where(instance.holds[:, :, None], np.minimum(shares, LATE), LATE)
    return capped


def _by_program(
    instance: ProvisioningInstance, machine_of: Indices, class_of: Indices, needs: Flags, prices: Floats
) -> Indices | None:
    machine, leaf = np.nonzero(needs)
    row, server = np.nonzero(instance.holds[leaf])
    unit = float(instance.rate_bytes_s.max()) or 1.0
    rates = instance.rate_bytes_s[leaf[row]] / unit
    program = Program(time_limit_s=SECONDS)
    own = np.broadcast_to(prices, (*needs.shape, prices.shape[2]))[machine[row], leaf[row], server] * rates
    chosen = program.variables(len(row), high=1.0, cost=own / (float(abs(own).max()) or 1.0), integer=True)
    program.rows(row, chosen, np.ones(len(row)), low=1.0, high=1.0)
    pairs = server * len(needs) + machine[row]
    for of, limits in (
        (server, instance.server_card_bytes_s),
        (pairs, instance.server_link_bytes_s[:, class_of].ravel()),
    ):
        where, at = np.unique(of, return_inverse=True)
        program.rows(at, chosen, rates, low=-math.inf, high=limits[where] / unit)
    if not instance.overlap:  # (6), as shares of the time between results
        free = msgspec.structs.replace(instance, object_bytes=0 * instance.object_bytes)
        took = in_turn_s(free, Answer(machine_of, class_of, np.where(needs, 0, NOWHERE))) * instance.throughput_hz
        shares = fetching(instance, class_of)[leaf[row], server, machine[row]]
        for node in np.flatnonzero(instance.needs.any(axis=1)).tolist():
            its = (machine[row] == machine_of[node]) & instance.needs[node, leaf[row]]
            program.row(chosen[its], shares[its], high=1.0 - float(took[node]))
    try:
        selected = program.solve().variables[chosen] > 0.5
    except PlannerError:
        return None
    server_of = np.full(needs.shape, NOWHERE, dtype=np.intp)
    server_of[machine[row[selected]], leaf[row[selected]]] = server[selected]
    return server_of if _kept(instance, Answer(machine_of, class_of, server_of)) else None
