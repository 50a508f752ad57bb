"""Interface of planners, and calls of planners. A planner is a pure function of a task and a cost model.

A planner never waits and never measures. If the decision depends on an unknown link, the planner raises LinksNeeded
with the links. ``asking`` calls it again when they are known. A planner is deterministic: ties go to the host that
stands first in ``task.hosts``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Sequence
from typing import Any, Protocol

import msgspec

from thalweg.middleware.errors import PlannerError, ThalwegError, UsageError, nearest, one_line
from thalweg.middleware.network.networks import links_of
from thalweg.middleware.network.view import NET, LinksNeeded
from thalweg.middleware.planning.costs.model import CostModel, Position, evaluate
from thalweg.middleware.planning.problem.choice import GAIN, choose, routes_of, with_all_networks
from thalweg.middleware.planning.problem.plan import Plan, Step
from thalweg.middleware.planning.problem.priced import cheaper, dollars
from thalweg.middleware.planning.problem.problem import NS_PER_S, Problem
from thalweg.middleware.planning.problem.routes import is_route
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.protocol.adaptation import NEEDS, Adaptation, GlobalMoves, Need, SpaceMoves


class Planner(Protocol):
    """Interface of a planner: a method ``plan``, and optional attributes.

    - ``needs``: names of ``adaptation.NEEDS``. Hosts measure these figures besides bandwidth, and exchange them, while
      data flows.
    - ``compared``: if true, a plan is carried out while data flows only if the run's cost model finds it better than
      the present placement (``adaptation.worth_moving``). Otherwise, every plan that changes something is carried out.
    """

    def plan(self, task: Task, model: CostModel) -> Plan:
        """Return a plan with the host of every node.

        Raises LinksNeeded for links that have to be measured first, UsageError for a task that cannot be planned.
        """


def ask_planner(planner: Planner, task: Task, model: CostModel) -> Plan:
    """Return the plan of a planner, which may be a user's own.

    An unexpected error or result becomes a PlannerError that names the planner. Before a run, networks are chosen for a
    plan without routes. While data flows, the caller chooses networks, by the present rates of links (``choice``).
    """
    plan = _asked(planner, with_all_networks(task) if task.networks else task, model)
    if not task.networks:
        return plan
    if plan.routes or task.current is not None:
        return _with_routes(_name(planner), plan, task)
    if not plan.beside:
        plan = _cheapest(planner, task, model, plan)
    choice = choose(task, plan.dataflow, plan.placement, plan.hints)
    return msgspec.structs.replace(plan, routes=routes_of(choice))


def _name(planner: Planner) -> str:
    kind = type(planner)
    return f"planner {kind.__module__}:{kind.__qualname__}"


def _asked(planner: Planner, task: Task, model: CostModel) -> Plan:
    """Return a planner's plan if hosts can carry it out. Otherwise raise PlannerError that names the planner."""
    name = _name(planner)
    try:
        plan: object = planner.plan(task, model)
    except (LinksNeeded, ThalwegError):
        raise
    except Exception as error:
        why = wrong_form(planner) or f"failed: {type(error).__name__}: {one_line(error)}"
        raise PlannerError(f"{name} {why}") from error
    if not isinstance(plan, Plan):
        raise PlannerError(f"{name} returned {type(plan).__name__}; return a PlanResult")
    if plan.bought or (plan.routes and not task.networks):
        extras = "things to rent" if plan.bought else "routes, where there is one network"
        raise PlannerError(f"{name} returned a plan with {extras}, which hosts cannot carry out; leave them out")
    return plan


def _cheapest(planner: Planner, task: Task, model: CostModel, fastest: Plan) -> Plan:
    """Return the plan that keeps the wanted rate at the least price: the fastest one, or one of ``priced``."""
    best, least = fastest, math.inf
    for other in cheaper(task):
        least = dollars(task, fastest) if best is fastest else least
        plan = _asked(planner, other, model)
        price = dollars(task, plan)
        if price < least * (1 - GAIN):
            problem = Problem(with_all_networks(task).but(dataflows=(plan.dataflow,), hints=plan.hints or task.hints))
            cost_s = evaluate(model, problem, plan.placement)
            best, least = msgspec.structs.replace(plan, cost_s=cost_s, initial_cost_s=fastest.initial_cost_s), price
    return best


def _with_routes(name: str, plan: Plan, task: Task) -> Plan:
    """Return a plan with the planner's own routes. Raise PlannerError for a route that hosts cannot take."""
    agreed = links_of(task.networks)
    for link, route in plan.routes.items():
        fault = f"{name} returned the route {[tuple(hop) for hop in route]} for {tuple(link)}"
        if len(route) == 1 and (route[0].hosts != link.hosts or route[0].via not in {NET, *task.networks}):
            raise PlannerError(
                f"{fault}; a route of one link is between these hosts, over one of {sorted({NET, *task.networks})}"
            )
        if len(route) != 1 and not is_route(link, route):
            raise PlannerError(
                f"{fault}; a route over relays leads from the first host to the second, and meets no host twice"
            )
        hosts = {*task.hosts, *plan.placement.values()}
        for hop in route if len(route) > 1 else ():
            if hop not in agreed or not hosts.issuperset(hop.hosts):
                raise PlannerError(f"{fault}; relays pass on over rented links between the run's hosts, not {hop.text}")
    return plan


def needs_of(planner: object) -> tuple[Need, ...]:
    """Return the measurements that a planner needs besides bandwidth. Raise UsageError for an unknown need."""
    needs = getattr(planner, "needs", ())
    kind = type(planner)
    if isinstance(needs, str) or not isinstance(needs, Collection):
        raise UsageError(f"needs of planner {kind.__qualname__} is {needs!r}; make that a set of {', '.join(NEEDS)}")
    for need in needs:
        if need not in NEEDS:
            raise UsageError(
                f"planner {kind.__qualname__} needs {need!r}, which no host measures; {nearest(need, NEEDS)}"
            )
    return tuple(need for need in NEEDS if need in needs)


def is_compared(planner: object) -> bool:
    """Return whether a planner asks for the comparison of its plans with the present placement."""
    return bool(getattr(planner, "compared", False))


def needs_while(adaptation: Adaptation | None, planner: object) -> tuple[Need, ...]:
    """Return the measurements besides bandwidth that hosts make while operators move by ``adaptation``.

    ``planner``: the planner while data flows.
    """
    if isinstance(adaptation, SpaceMoves):
        return ("work", "coordinates")
    return needs_of(planner) if isinstance(adaptation, GlobalMoves) else ()


class MeasuredHintsPlanner(msgspec.Struct, frozen=True):
    """Planner that wraps ``planner`` so that hints contain measurements of hosts and nodes once the run has begun."""

    planner: Planner

    @property
    def needs(self) -> tuple[Need, ...]:
        """Measurements that the wrapped planner needs, and those of hosts and work."""
        return tuple({*needs_of(self.planner), "hosts", "work"})

    @property
    def compared(self) -> bool:
        """Return whether the wrapped planner asks for the comparison of its plans with the present placement."""
        return is_compared(self.planner)

    def plan(self, task: Task, model: CostModel) -> Plan:
        return self.planner.plan(task, model)


def wrong_form(planner: Any) -> str:
    """Return the change that a planner's ``plan`` needs to take a task and a cost model; empty if it takes both."""
    form = inspect.signature(planner.plan)
    try:
        form.bind(None, None)
    except TypeError:
        fault = f"has plan({', '.join(form.parameters)}); make that plan(task, model), with task.dataflow, task.hosts,"
        return f"{fault} task.view, task.current, task.hints and task.costs"
    return ""


def plan_at(position: Position, *, initial_ns: float, evaluated: int, steps: Sequence[Step] = ()) -> Plan:
    """Return the plan of a search that ended at ``position``. Every link of the position must be known."""
    problem = position.problem
    return Plan(
        problem.placement(position.where),
        problem.dataflow,
        position.lower_ns / NS_PER_S,
        initial_ns / NS_PER_S,
        problem.names_of(position.critical()),
        evaluated,
        problem.links_read(),
        tuple(steps),
    )
