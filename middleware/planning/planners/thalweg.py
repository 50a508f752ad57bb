"""Planner ``thalweg``: shape and placement of a tree together, for the shortest period.

The rate of a pipeline is bounded by its busiest interface, link or processor (see ``period``). If combining is
associative and commutative, the order is free. So the planner searches for the tree over hosts whose busiest resource
is least busy (``shapes.search``). If operators do not declare that they may be reordered, the planner keeps the given
tree and moves its operators (``OneShot``, by the same cost).

Knowledge is fetched in two steps. At first nothing is known. The planner asks for as many links as are needed to tell
good from bad. In a small network these are all links, in a larger network the links from each host to a few others.
Then the planner takes unknown links to be as fast as good known links, and asks for the links that the best tree would
use. Only these can change the decision. The search ends when such a tree has no unknown links, or when ``probes`` are
used up.

Hosts without sources are left out of chosen trees. Their only use would be to pass results on.

A stream may go over several trees at once (``stripes``). The trees are planned together before a run (``striping``).
While data flows, they are planned one at a time, with the loads of the remaining trees below.
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
from thalweg.middleware.network.view import Link, LinksNeeded, NetworkView
from thalweg.middleware.planning.costs.critical_path import CriticalPath
from thalweg.middleware.planning.costs.expected_period import LARGEST_PLAIN_SHAPE, ExpectedPeriod
from thalweg.middleware.planning.costs.model import CostModel
from thalweg.middleware.planning.costs.period import Period
from thalweg.middleware.planning.mixtures.choice import Chooser
from thalweg.middleware.planning.planners.frame import Frame
from thalweg.middleware.planning.planners.one_shot import OneShot
from thalweg.middleware.planning.planners.planner import plan_at
from thalweg.middleware.planning.planners.striping import several
from thalweg.middleware.planning.problem.loads import Interface
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.problem import Problem
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.planning.shapes.host_tree import Joining, freedom, host_tree, shaped
from thalweg.middleware.planning.shapes.knowledge import Knowledge, transfers
from thalweg.middleware.planning.shapes.search import LoadedTree, search_tree
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.middleware.protocol.messages import PROBE_BYTES
from thalweg.middleware.protocol.stripes import MOST_STRIPES

PERIOD_S = 60.0  # between replannings while data flows
HORIZON_S = 300.0
GAIN = 0.05  # least share of the present cost that is worth a change
PROBES_AGAIN = 1.0  # probes in a replanning, for each host
ROUNDS_AGAIN = 3  # rounds of probes in a replanning
AGAIN_SHARE = 8  # divisor of ``looks`` in a replanning, which begins with the present tree
LEAST_DOUBT = 0.1  # doubt that is worth a probe: the probe may well move a forecast by 10 %


class Thalweg(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Planner of shape and placement for the shortest period (see the module).

    - ``interface``: capacity of a host to send and receive at once, as in ``Period``. A given cost model of periods is
      used with its own interface instead.
    - ``shape``: shape of the norm that is minimised. If the model is ``ExpectedPeriod``, its shape is used.
    - ``joining``: how a host combines its inputs (see ``shaped``).
    - ``looks``: number of trees to evaluate. None: as many as take about 20 ms at 8 servers and 200 ms at 32.
    - ``probes``: most pairs of hosts that may be measured before the run. None: six for each host, or 20 with
      independent links.
    - ``period_s``: seconds between replannings while data flows. None: planned once.
    - ``horizon_s``: number of seconds for which links are forecast in a replanning.
    - ``gain``: least share of the present cost that a change must save (see also ``GlobalMoves``).
    - ``probes_again``: most pairs of hosts that may be measured in a replanning, for each host.
    - ``seed``: seed of the search.
    - ``stripes``: number of trees over which a stream goes at once, if its tree may be chosen. ``auto``: as many as
      repay.

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
        if self.stripes != "auto" and not 1 <= self.stripes <= MOST_STRIPES:
            raise UsageError(f"stripes of thalweg is {self.stripes}; give 1 to {MOST_STRIPES} trees, or auto")
        _ = self.adaptation  # the property checks ``period_s``, ``gain`` and ``horizon_s``

    @property
    def adaptation(self) -> GlobalMoves | None:
        """Options of replanning while data flows. None: planned once."""
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
        """Return the plans of the best trees together, by known links.

        A result of one tree is the result of ``_first``. Raises LinksNeeded for links that should be known first.
        """
        knowledge = self._knowledge(frame, view)
        loads = frame.loads(knowledge.transfers(frame.costs))
        alone, spent = search_tree(loads, looks, self.seed)
        if self.stripes == "auto":
            choice = Chooser(loads, self.joining, frame.costs.startup_s, frame.task.partitions).choose(alone, looks)
            parents, shares, period_s, spent = choice.parents, choice.shares, choice.period_s, spent + choice.spent
        else:
            trees = several(loads, alone, self.stripes, looks)
            parents, spent, period_s = trees.parents, spent + trees.spent, 1 / plain_sum(trees.rates)
            shares = [rate * period_s for rate in trees.rates]
        for parent in parents:
            if wanted := knowledge.open(parent):
                raise _needed(frame, wanted)
        plans = [self._as_plan(frame, model, _Found(parent, spent)) for parent in parents]
        if len(plans) == 1:
            return plans[0]
        plans = [
            msgspec.structs.replace(plan, cost_s=period_s, share=share)
            for plan, share in zip(plans, shares, strict=True)
        ]
        return msgspec.structs.replace(plans[0], beside=tuple(plans[1:]))

    def _knowledge(self, frame: Frame, view: NetworkView) -> Knowledge:
        """Return the known links before a run. Raise LinksNeeded for links that should be known first."""
        knowledge = Knowledge(frame.names, view, self.probes, at_once=frame.interface == "independent")
        if wanted := knowledge.first():
            raise _needed(frame, wanted)
        return knowledge

    def _first(self, frame: Frame, looks: int, view: NetworkView) -> _Found:
        """Return the best tree by known links. Raise LinksNeeded for links that should be known first."""
        knowledge = self._knowledge(frame, view)
        parent, spent = search_tree(frame.loads(knowledge.transfers(frame.costs)), looks, self.seed)
        if wanted := knowledge.open(parent):
            raise _needed(frame, wanted)
        return _Found(parent, spent)

    def _again(self, frame: Frame, looks: int, view: Outlook, here: list[int] | None) -> _Found:
        """Return the best tree by forecasts, with its cost and the cost of the present tree ``here``.

        Raises LinksNeeded for links that may change the choice. The value of a probe is the saving if a host is hung at
        the far end of the link, for the time of the horizon. The saving is the average over the possible results of the
        probe (knowledge gradient; Frazier, Powell and Dayanik 2008). A probe is made if it saves more time than it
        takes of the two hosts.
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
        """Return the number of pairs of hosts that may still be measured in this replanning.

        ``share``: the tree's share of the stream.
        """
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
        """Raise LinksNeeded for links that are worth a probe, if there are any.

        A link is worth a probe if the probe saves more time than it takes. So is a link that a change would use and
        that is not well known. ``worth``: by pair of hosts' numbers, the larger first, the share of the time that is
        saved, and the seconds of a probe. ``new``: links that a change would use, by hosts' numbers.
        """
        asking = {pair: self.horizon_s * part / took for pair, (part, took) in worth.items() if took}
        asking = {pair: ratio for pair, ratio in asking.items() if ratio > 1}
        asking |= {(max(a, b), min(a, b)): math.inf for a, b in new if view.doubt[hosts[a], hosts[b]] > LEAST_DOUBT}
        wanted = [(a, b) for a, b in asking if (hosts[a], hosts[b]) not in view.asked]
        wanted.sort(key=lambda pair: (-asking[pair], pair))
        if wanted:  # both directions: one probe measures both
            chosen = [(hosts[a], hosts[b]) for a, b in wanted[: self.probes_left(view, hosts, share)]]
            raise LinksNeeded([*chosen, *((b, a) for a, b in chosen)])

    def goes_by(self, model: CostModel) -> Period | ExpectedPeriod:
        """Return the cost model of plans: the given model if it is a model of periods, else ``Period``."""
        return model if isinstance(model, Period | ExpectedPeriod) else Period(self.interface)

    def _placed(self, task: Task, model: CostModel) -> Plan:
        """Return the best plan of several searches that keep the tree.

        The first search goes by periods alone. The second goes by periods from the result of a search by the critical
        path. The largest load has plateaus, which single moves do not leave. While data flows, a third search begins at
        the present placement, whose cost is the one by which a change is judged.
        """
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
        """Raise LinksNeeded for links that are not well known, and that only one of two placements would use."""
        number = {host: i for i, host in enumerate(task.hosts)}
        used = [{(number[where[a]], number[where[b]]) for a, b in task.dataflow.edges} for where in (then, now)]
        changed = {(a, b) for a, b in used[0] ^ used[1] if a != b}
        if self.probes_left(view, task.hosts) > 0:
            self.request_links(view, task.hosts, {}, changed)


def _needed(frame: Frame, links: Iterable[Link]) -> LinksNeeded:
    """Return the exception for links that have to be measured before a run."""
    return LinksNeeded(links, at_once=frame.interface == "independent")


class _Found(msgspec.Struct, frozen=True):
    """Result of a search: a tree as the parent of every host, and the number of trees that were evaluated.

    ``judged``: costs of the present tree and of the found tree. None: no present tree, or no forecasts.
    """

    parent: list[int]
    spent: int
    judged: tuple[float, float] | None = None
