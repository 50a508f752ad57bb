"""Planner ``local``: one period of the local algorithm, with every operator's decision, by the known links.

While data flows, hosts decide one after the other (``core.steering``). A planner can make the same decisions at once.
Waves begin at the level farthest from the sink. In each wave, every operator on the critical path chooses among its
neighbours' hosts by the cost of its own neighbourhood. The planner shows the result of the algorithm without a run, and
needs few links.

Source: Ranganathan, Acharya, Saltz (1998), section 2.3.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from thalweg.middleware.core.flow.epochs import waves_of
from thalweg.middleware.core.steering.neighbourhood import Decision, Neighbourhood, candidates, decide, links_between
from thalweg.middleware.dataflow import Placement
from thalweg.middleware.network.view import Link, LinksNeeded, Pair
from thalweg.middleware.planning.costs.critical_path import CriticalPath
from thalweg.middleware.planning.costs.model import CostModel
from thalweg.middleware.planning.planners.one_shot import OneShot
from thalweg.middleware.planning.planners.planner import plan_at
from thalweg.middleware.planning.problem.plan import Plan, Step
from thalweg.middleware.planning.problem.problem import NS_PER_S, Problem
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.protocol.adaptation import LocalCost, LocalMoves


class Local(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Planner that plays one period of the local algorithm, from the current placement or from one-shot's plan.

    ``k``, ``gate``, ``seed``, ``cost``: as in ``LocalMoves``. The given cost model only computes the costs of the
    placements. A step may raise this cost, as a better neighbourhood need not be better for the whole graph (section
    5). With the gate, only operators move that are on the critical path at the beginning of their wave.
    """

    compared: ClassVar[bool] = True

    k: int = 0
    gate: bool = True
    seed: int = 0
    cost: LocalCost = "critical-path"

    def __post_init__(self) -> None:
        self._options()

    def _options(self) -> LocalMoves:
        return LocalMoves(k=self.k, gate=self.gate, seed=self.seed, cost=self.cost)

    def plan(self, task: Task, model: CostModel) -> Plan:
        dataflow, current, evaluated = task.dataflow.validate(task.hosts), task.current, 1
        if current is None:
            start = OneShot().plan(task, model)
            current, evaluated = start.placement, start.evaluated
        problem = Problem(task)
        where = problem.where(current)
        problem.require(where)
        initial_ns = model.at(problem, where).lower_ns
        steps: list[Step] = []
        wave_of, waves = waves_of(dataflow)
        for wave in range(waves):
            placement = problem.placement(where)
            critical = problem.names_of(CriticalPath().at(problem, where).critical())
            moving = [name for name, of in wave_of.items() if of == wave and problem.movable[problem.index[name]]]
            moving = [name for name in moving if not self.gate or name in critical]
            decisions = {name: self._decide(problem, placement, name, wave) for name in moving}
            if needs := frozenset[Link]().union(*[decision.needs for decision in decisions.values()]):
                raise LinksNeeded(needs)
            for name, decision in decisions.items():
                evaluated += len(decision.costs) - 1
                if decision.move:
                    where = where.copy()
                    where[problem.index[name]] = problem.host_index[decision.best]
                    cost_s = model.at(problem, where).lower_ns / NS_PER_S
                    steps.append(Step(name, placement[name], decision.best, cost_s))
        position = model.at(problem, where)
        return plan_at(position, initial_ns=initial_ns, evaluated=evaluated, steps=steps)

    def _decide(self, problem: Problem, placement: Placement, name: str, epoch: int) -> Decision:
        """Return the decision of the host of operator ``name``, from the links of the neighbourhood alone."""
        dataflow, hints, costs = problem.dataflow, problem.task.hints, problem.task.costs
        producers = dataflow.by_name[name].inputs
        consumers_hosts = [placement[consumer] for consumer in dataflow.consumers[name]]
        producers_hosts = [placement[producer] for producer in producers]
        hosts = candidates(
            self._options(), name, epoch, producers_hosts, consumers_hosts, placement[name], problem.hosts
        )
        inputs = [(placement[producer], hints.output_bytes[producer]) for producer in producers]
        outputs = [(host, hints.output_bytes[name]) for host in consumers_hosts]
        rates_bps = dict[Pair, float]()
        for source, target in links_between(hosts, inputs, outputs):
            problem.read[problem.host_index[source], problem.host_index[target]] = True
            rate_bps = problem.task.view.rate_bps(source, target)
            if rate_bps is not None:
                rates_bps[source, target] = rate_bps
        return decide(
            self._options(),
            hosts,
            placement[name],
            Neighbourhood(
                inputs,
                outputs,
                rates_bps,
                hints.compute_s.get(name, 0.0) * costs.compute_factor,
                startup_s=costs.startup_s,
                host_compute_factor={host: problem.task.compute_factor(host) for host in problem.hosts},
                cores=costs.cores,
            ),
        )
