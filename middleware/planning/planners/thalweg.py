"""Our own planner: the tree's shape and its placement together, for the shortest period.

A pipeline's rate is bounded by its busiest interface, link or processor (see ``period``), and where combining is
associative and commutative the order is free. So the planner looks for the tree over hosts whose busiest resource
is least busy (``shapes.search``), and only where operators do not say that they may be reordered does it keep the
tree it was given and move its operators (``OneShot``, by the same cost).

Knowledge is fetched in two steps. Nobody knows anything at first, so that as many links are asked for as tell good
from bad: all of a small network, of a larger one those from each host to a few others. Then the planner takes unknown
links for as fast as good ones among those known, and asks for what the tree it finds would use: only these can change
the decision. It ends when such a tree has none, or ``probes`` are used up.

Hosts without sources are left out of trees that are chosen: their only use would be to pass results on.

A stream may go over several trees at once (``stripes``). They are planned together before a run (``striping``), and one
at a time while data flows, each with what the others keep busy below it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Literal

import msgspec
import numpy as np

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.dataflow import Placement
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.outlook import Outlook
from thalweg.middleware.network.view import LinksNeeded, NetworkView
from thalweg.middleware.planning.costs.critical_path import CriticalPath
from thalweg.middleware.planning.costs.expected_period import LARGEST_PLAIN_SHAPE, ExpectedPeriod
from thalweg.middleware.planning.costs.model import CostModel
from thalweg.middleware.planning.costs.period import Period
from thalweg.middleware.planning.planners.frame import Frame
from thalweg.middleware.planning.planners.one_shot import OneShot
from thalweg.middleware.planning.planners.planner import plan_at
from thalweg.middleware.planning.planners.striping import MOST_TREES, several
from thalweg.middleware.planning.problem.loads import Interface
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.problem import Problem
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.planning.shapes.host_tree import Joining, freedom, host_tree, shaped
from thalweg.middleware.planning.shapes.knowledge import Knowledge, transfers
from thalweg.middleware.planning.shapes.search import LoadedTree, search_tree
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.middleware.protocol.messages import PROBE_BYTES

PERIOD_S = 60.0  # of looks while data flows
HORIZON_S = 300.0
GAIN = 0.05  # of the present cost; less is not worth a change
PROBES_AGAIN = 1.0  # a look, for each host
ROUNDS_AGAIN = 3  # of probes, a look
AGAIN_SHARE = 8  # of the looks, to begin with the present tree
LEAST_DOUBT = 0.1  # that a probe is worth: it may well move a forecast by 10 %


class Thalweg(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shape and placement for the shortest period (see the module).

    - ``interface``: what a host sends and receives at once, as ``Period``'s; a cost model of periods that the
      planner is called with says it itself and is used instead
    - ``shape``: of the norm that is minimised (see ``ExpectedPeriod``, whose own is used where it is the model)
    - ``joining``: how a host combines its inputs (see ``shaped``)
    - ``looks``: how many trees are looked at; None: as many as take about 20 ms at 8 servers and 200 ms at 32
    - ``probes``: how many pairs of hosts may be measured before the run; None: six a host
    - ``period_s``: seconds between looks for a better plan while data flows; None: planned once
    - ``horizon_s``: for how many seconds ahead links are forecast then
    - ``gain``: the least part of the present cost that a change must save (and see ``GlobalMoves``)
    - ``probes_again``: how many pairs of hosts may be measured in a look, for each host
    - ``seed``: of the search
    - ``stripes``: over how many trees a stream goes at once, where its tree may be chosen; ``auto``: as many as repay

    Raises UsageError for a shape that is not above 1 and at most 32, a gain of 1 or more, numbers below 0, and stripes
    below 1 or above 64.
    """

    compared: ClassVar[bool] = True
    reshapes: ClassVar[bool] = True

    interface: Interface = "single"
    shape: float = 2.0
    joining: Joining = "pairs"
    looks: int | None = None
    probes: int | None = None
    period_s: float | None = PERIOD_S
    horizon_s: float = HORIZON_S
    gain: float = GAIN
    probes_again: float = PROBES_AGAIN
    seed: int = 0
    stripes: int | Literal["auto"] = 1

    def __post_init__(self) -> None:
        if not 1 < self.shape <= LARGEST_PLAIN_SHAPE:
            raise UsageError(
                f"the shape of thalweg is {self.shape}; it must be above 1, at most {LARGEST_PLAIN_SHAPE:g}"
            )
        for option in ("looks", "probes", "probes_again"):
            if (value := getattr(self, option)) is not None and value < 0:
                raise UsageError(f"{option} of thalweg is {value}; it must be at least 0")
        if self.stripes != "auto" and not 1 <= self.stripes <= MOST_TREES:
            raise UsageError(f"stripes of thalweg is {self.stripes}; give 1 to {MOST_TREES} trees, or auto")
        _ = self.adaptation  # which checks the rest

    @property
    def adaptation(self) -> GlobalMoves | None:
        """How it is asked again while data flows."""
        if self.period_s is None:
            return None
        return GlobalMoves(self.period_s, 1.0, self.gain, self.horizon_s)

    def plan(self, task: Task, model: CostModel) -> Plan:
        model, current = self.goes_by(model), task.current
        free = freedom(task)
        if free is None:
            return self._placed(task, model)
        frame = Frame(free, task, model, self.shape)
        looks = frame.looks if self.looks is None else self.looks
        if isinstance(task.view, Outlook):
            here = None if current is None else host_tree(task.dataflow, current)
            return self._as_plan(frame, model, self._again(frame, looks, task.view, frame.parents(here)))
        if self.stripes == 1 or current is not None or task.beside:
            return self._as_plan(frame, model, self._first(frame, looks, task.view))
        return self._several(frame, model, looks, task.view)

    def _as_plan(self, frame: Frame, model: CostModel, found: _Found) -> Plan:
        task, current = frame.task, frame.task.current
        reshaped, placement = shaped(task, frame.free, frame.tree(found.parent), self.joining)
        problem = Problem(reshaped)
        where = problem.where(placement)
        problem.require(where)
        original = Problem(task)
        start = original.at_sink() if current is None else original.where(current)
        initial_ns = math.nan if original.missing(start) else model.at(original, start).lower_ns
        result = plan_at(model.at(problem, where), initial_ns=initial_ns, evaluated=found.spent)
        return msgspec.structs.replace(result, hints=reshaped.hints, judged=found.judged)

    def _several(self, frame: Frame, model: CostModel, looks: int, view: NetworkView) -> Plan:
        """The best trees together by what is known; asks for what should be known first.

        One tree is what ``_first`` finds.
        """
        knowledge = Knowledge(frame.names, view, self.probes)
        if wanted := knowledge.first():
            raise LinksNeeded(wanted)
        loads = frame.loads(knowledge.transfers(frame.costs))
        alone, spent = search_tree(loads, looks, self.seed)
        trees = several(loads, alone, self.stripes, looks)
        for parent in trees.parents:
            if wanted := knowledge.open(parent):
                raise LinksNeeded(wanted)
        plans = [self._as_plan(frame, model, _Found(parent, spent + trees.spent)) for parent in trees.parents]
        if len(plans) == 1:
            return plans[0]
        period_s = 1 / plain_sum(trees.rates)
        plans = [
            msgspec.structs.replace(plan, cost_s=period_s, share=rate * period_s)
            for plan, rate in zip(plans, trees.rates, strict=True)
        ]
        return msgspec.structs.replace(plans[0], beside=tuple(plans[1:]))

    def _first(self, frame: Frame, looks: int, view: NetworkView) -> _Found:
        """The best tree by what is known; asks for what should be known first."""
        knowledge = Knowledge(frame.names, view, self.probes)
        if wanted := knowledge.first():
            raise LinksNeeded(wanted)
        parent, spent = search_tree(frame.loads(knowledge.transfers(frame.costs)), looks, self.seed)
        if wanted := knowledge.open(parent):
            raise LinksNeeded(wanted)
        return _Found(parent, spent)

    def _again(self, frame: Frame, looks: int, view: Outlook, here: list[int] | None) -> _Found:
        """The best tree by forecasts, and what it saves over ``here``; asks first for links that may change the choice.

        What a probe is worth: by how much hanging a host at that link's other end would lower the cost, on average over
        what the probe may show, and for how long (knowledge gradient; Frazier, Powell and Dayanik 2008). It is made
        if that is more time than the probe takes of the two hosts.
        """
        names = frame.names
        rates = np.array(view.rates_bps(names))
        doubt = np.array([[view.doubt[a, b] if a != b else 0.0 for b in names] for a in names])
        per_byte = np.divide(8.0, rates, out=np.full(rates.shape, math.inf), where=rates > 0)
        loads = frame.loads(transfers(per_byte, frame.costs))
        starts = [] if here is None else [here]
        parent, spent = search_tree(loads, looks // AGAIN_SHARE, self.seed, starts)
        tree = LoadedTree(loads, parent)
        cost = frame.seconds(tree.cost)
        present = math.inf if here is None else frame.seconds(LoadedTree(loads, here).cost)
        present, cost = frame.judged(present, cost)
        if self.probes_left(view, names, frame.task.share) > 0:
            changes = cost < present * (1 - self.gain)
            new = set(enumerate(parent)) - set(enumerate(here or [])) - {(0, 0)} if changes else set()
            worth = tree.value_of_knowing(doubt, frame.costs.startup_s)
            took = PROBE_BYTES * (per_byte + per_byte.T)
            pairs = ((a, b) for a in range(len(names)) for b in range(a))
            savings = {pair: (worth[pair], took[pair]) for pair in pairs}
            self.request_links(view, names, savings, new, frame.task.share)
        return _Found(parent, spent, None if here is None else (present, cost))

    def probes_left(self, view: Outlook, hosts: Sequence[str], share: float = 1.0) -> int:
        """How many pairs of hosts may still be measured in this look, for a tree with this share of the stream."""
        asked = len({frozenset(link) for link in view.asked})
        return math.ceil(round(self.probes_again * len(hosts)) * share) - asked if view.rounds < ROUNDS_AGAIN else 0

    def request_links(
        self,
        view: Outlook,
        hosts: Sequence[str],
        worth: Mapping[tuple[int, int], tuple[float, float]],
        new: Iterable[tuple[int, int]],
        share: float = 1.0,
    ) -> None:
        """Raise LinksNeeded for links whose probe saves more time than it takes, and for those not well known that a
        change would go over.

        ``worth``: of pairs of hosts' numbers, the larger first, the part of the time that is saved, and a probe's
        seconds. ``new``: links by hosts' numbers.
        """
        asking = {pair: self.horizon_s * part / took for pair, (part, took) in worth.items() if took}
        asking = {pair: ratio for pair, ratio in asking.items() if ratio > 1}
        asking |= {(max(a, b), min(a, b)): math.inf for a, b in new if view.doubt[hosts[a], hosts[b]] > LEAST_DOUBT}
        wanted = [(a, b) for a, b in asking if (hosts[a], hosts[b]) not in view.asked]
        wanted.sort(key=lambda pair: (-asking[pair], pair))
        if wanted:  # both ways: one probe measures them
            chosen = [(hosts[a], hosts[b]) for a, b in wanted[: self.probes_left(view, hosts, share)]]
            raise LinksNeeded([*chosen, *((b, a) for a, b in chosen)])

    def goes_by(self, model: CostModel) -> Period | ExpectedPeriod:
        """The cost model that plans are made and told by: the given one, if it is of periods."""
        return model if isinstance(model, Period | ExpectedPeriod) else Period(self.interface)

    def _placed(self, task: Task, model: CostModel) -> Plan:
        """The best of two searches that keep the tree: by periods alone, and by periods from where the critical path
        leads, as a largest load has plateaus that single moves do not leave. While data flows also of one from where
        operators are, whose cost is then what a change is judged by."""
        alone = OneShot().plan(task, model)
        path = OneShot().plan(task, CriticalPath())
        after = OneShot(start="current").plan(task.but(current=path.placement), model)
        best = min(alone, after, key=lambda plan: plan.cost_s)
        looks = alone.evaluated + path.evaluated + after.evaluated
        initial_s = alone.initial_cost_s
        if task.current is not None:
            here = OneShot(start="current").plan(task, model)
            best = min(here, best, key=lambda plan: plan.cost_s)
            if isinstance(task.view, Outlook) and best.cost_s < here.initial_cost_s * (1 - self.gain):
                self._request_links_of_change(task, task.view, best.placement, task.current)
            looks, initial_s = looks + here.evaluated, here.initial_cost_s
        steps = (*path.steps, *after.steps) if best is after else best.steps
        links = alone.links_used | path.links_used | after.links_used
        return msgspec.structs.replace(best, initial_cost_s=initial_s, evaluated=looks, links_used=links, steps=steps)

    def _request_links_of_change(self, task: Task, view: Outlook, then: Placement, now: Placement) -> None:
        """Ask for links that are not well known, and that only one of two placements would use."""
        number = {host: i for i, host in enumerate(task.hosts)}
        used = [{(number[where[a]], number[where[b]]) for a, b in task.dataflow.edges} for where in (then, now)]
        changed = {(a, b) for a, b in used[0] ^ used[1] if a != b}
        if self.probes_left(view, task.hosts) > 0:
            self.request_links(view, task.hosts, {}, changed)


class _Found(msgspec.Struct, frozen=True):
    """A tree as the parent of every host, how many were looked at, and what the present one and it cost."""

    parent: list[int]
    spent: int
    judged: tuple[float, float] | None = None
