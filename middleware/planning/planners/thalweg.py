"""Our own planner: the tree's shape and its placement together, for the shortest period.

A pipeline's rate is bounded by its busiest interface, link or processor (see ``period``), and where combining is
associative and commutative the order is free. So the planner looks for the tree over hosts whose busiest resource
is least busy (``shapes.search``), and only where operators do not say that they may be reordered does it keep the
tree it was given and move its operators (:class:`OneShot`, by the same cost).

Knowledge is fetched in two steps. Nobody knows anything at first, so that as many links are asked for as tell good
from bad: all of a small network, of a larger one those from each host to a few others. Then the planner takes unknown
links for as fast as good ones among those known, and asks for what the tree it finds would use: only these can change
the decision. It ends when such a tree has none, or ``probes`` are used up.

Hosts without sources are left out of trees that are chosen: their only use would be to pass results on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import ClassVar

import msgspec
import numpy as np

from thalweg.middleware.arithmetic import power
from thalweg.middleware.dataflow import Placement
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.outlook import Outlook
from thalweg.middleware.network.view import LinksNeeded, NetworkView
from thalweg.middleware.planning.costs.critical_path import CriticalPath
from thalweg.middleware.planning.costs.expected_period import LARGEST_PLAIN_SHAPE, ExpectedPeriod
from thalweg.middleware.planning.costs.model import CostModel
from thalweg.middleware.planning.costs.period import Period
from thalweg.middleware.planning.planners.one_shot import OneShot
from thalweg.middleware.planning.planners.planner import plan_at
from thalweg.middleware.planning.problem.loads import Floats, Interface
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.problem import Problem
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.planning.shapes.host_tree import Freedom, HostTree, Joining, freedom, host_tree, shaped
from thalweg.middleware.planning.shapes.knowledge import Knowledge, transfers
from thalweg.middleware.planning.shapes.search import Loads, Tree, search_tree
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

    - ``interface``: what a host sends and receives at once, as :class:`Period`'s; a cost model of periods that the
      planner is called with says it itself and is used instead
    - ``shape``: of the norm that is minimised (see :class:`ExpectedPeriod`, whose own is used where it is the model)
    - ``joining``: how a host combines its inputs (see :func:`shaped`)
    - ``looks``: how many trees are looked at; None: as many as take about 20 ms at 8 servers and 200 ms at 32
    - ``probes``: how many pairs of hosts may be measured before the run; None: six a host
    - ``period_s``: seconds between looks for a better plan while data flows; None: planned once
    - ``horizon_s``: for how many seconds ahead links are forecast then
    - ``gain``: the least part of the present cost that a change must save (and see :class:`GlobalMoves`)
    - ``probes_again``: how many pairs of hosts may be measured in a look, for each host
    - ``seed``: of the search

    Raises UsageError for a shape that is not above 1 and at most 32, a gain of 1 or more, and numbers below 0.
    """

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

    def __post_init__(self) -> None:
        if not 1 < self.shape <= LARGEST_PLAIN_SHAPE:
            raise UsageError(
                f"the shape of thalweg is {self.shape}; it must be above 1, at most {LARGEST_PLAIN_SHAPE:g}"
            )
        for what in ("looks", "probes", "probes_again"):
            if (value := getattr(self, what)) is not None and value < 0:
                raise UsageError(f"{what} of thalweg is {value}; it must be at least 0")
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
        frame = _Frame(self, free, task, model)
        if isinstance(task.view, Outlook):
            here = None if current is None else host_tree(task.dataflow, current)
            found = self._again(frame, task.view, frame.parents(here))
        else:
            found = self._first(frame, task.view)
        tree = HostTree(free.root, {frame.names[host]: frame.names[up] for host, up in enumerate(found.parent) if host})
        made, placement = shaped(task, free, tree, self.joining)
        problem = Problem(made)
        where = problem.where(placement)
        problem.require(where)
        given = Problem(task)
        start = given.at_sink() if current is None else given.where(current)
        initial_ns = math.nan if given.missing(start) else model.at(given, start).lower_ns
        result = plan_at(model.at(problem, where), initial_ns=initial_ns, evaluated=found.spent)
        return msgspec.structs.replace(result, hints=made.hints, judged=found.judged)

    def _first(self, frame: _Frame, view: NetworkView) -> _Found:
        """The best tree by what is known; asks for what should be known first."""
        knowledge = Knowledge(frame.names, view, self.probes)
        if wanted := knowledge.first():
            raise LinksNeeded(wanted)
        parent, spent = search_tree(frame.loads(knowledge.transfers(frame.costs)), frame.looks, self.seed)
        if wanted := knowledge.open(parent):
            raise LinksNeeded(wanted)
        return _Found(parent, spent)

    def _again(self, frame: _Frame, view: Outlook, here: list[int] | None) -> _Found:
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
        parent, spent = search_tree(loads, frame.looks // AGAIN_SHARE, self.seed, starts)
        tree = Tree(loads, parent)
        cost, present = frame.norm(tree), math.inf if here is None else frame.norm(Tree(loads, here))
        if self.probes_left(view, names) > 0:
            changes = cost < present * (1 - self.gain)
            new = set(enumerate(parent)) - set(enumerate(here or [])) - {(0, 0)} if changes else set()
            worth = tree.value_of_knowing(doubt, frame.costs.startup_s)
            took = PROBE_BYTES * (per_byte + per_byte.T)
            pairs = ((a, b) for a in range(len(names)) for b in range(a))
            self.ask_for(view, names, {pair: (worth[pair], took[pair]) for pair in pairs}, new)
        return _Found(parent, spent, None if here is None else (present, cost))

    def probes_left(self, view: Outlook, hosts: Sequence[str]) -> int:
        """How many pairs of hosts may still be measured in this look."""
        asked = len({frozenset(link) for link in view.asked})
        return round(self.probes_again * len(hosts)) - asked if view.rounds < ROUNDS_AGAIN else 0

    def ask_for(
        self,
        view: Outlook,
        hosts: Sequence[str],
        worth: Mapping[tuple[int, int], tuple[float, float]],
        new: Iterable[tuple[int, int]],
    ) -> None:
        """Raise LinksNeeded for links whose probe saves more time than it takes, and for those not well known that a
        change would go over.

        ``worth``: of pairs of hosts' numbers, the larger first, the part of the time that is saved, and a probe's
        seconds. ``new``: links by hosts' numbers.
        """
        asking = {pair: self.horizon_s * part / took for pair, (part, took) in worth.items() if took}
        asking = {pair: each for pair, each in asking.items() if each > 1}
        asking |= {(max(a, b), min(a, b)): math.inf for a, b in new if view.doubt[hosts[a], hosts[b]] > LEAST_DOUBT}
        wanted = [(a, b) for a, b in asking if (hosts[a], hosts[b]) not in view.asked]
        wanted.sort(key=lambda pair: (-asking[pair], pair))
        if wanted:  # both ways: one probe measures them
            chosen = [(hosts[a], hosts[b]) for a, b in wanted[: self.probes_left(view, hosts)]]
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
                self._ask_of_change(task, task.view, best.placement, task.current)
            looks, initial_s = looks + here.evaluated, here.initial_cost_s
        steps = (*path.steps, *after.steps) if best is after else best.steps
        links = alone.links_used | path.links_used | after.links_used
        return msgspec.structs.replace(best, initial_cost_s=initial_s, evaluated=looks, links_used=links, steps=steps)

    def _ask_of_change(self, task: Task, view: Outlook, then: Placement, now: Placement) -> None:
        """Ask for links that are not well known, and that only one of two placements would use."""
        number = {host: i for i, host in enumerate(task.hosts)}
        used = [{(number[where[a]], number[where[b]]) for a, b in task.dataflow.edges} for where in (then, now)]
        changed = {(a, b) for a, b in used[0] ^ used[1] if a != b}
        if self.probes_left(view, task.hosts) > 0:
            self.ask_for(view, task.hosts, {}, changed)


class _Found(msgspec.Struct, frozen=True):
    """A tree as the parent of every host, how many were looked at, and what the present one and it cost."""

    parent: list[int]
    spent: int
    judged: tuple[float, float] | None = None


class _Frame:
    """What a search for a tree goes by, besides links: hosts as numbers, the client first, and what they do."""

    def __init__(self, planner: Thalweg, free: Freedom, task: Task, model: Period | ExpectedPeriod) -> None:
        self.free, self.task, self.hints, self.costs = free, task, task.hints, task.costs
        self.names = [free.root, *(host for host in free.sources if host != free.root)]
        self.looks = _looks(len(self.names)) if planner.looks is None else planner.looks
        self.interface: Interface = "independent"
        self.shape = planner.shape
        if isinstance(model, ExpectedPeriod):
            self.shape = min(model.shape, LARGEST_PLAIN_SHAPE)
        else:
            self.interface = model.interface

    def loads(self, transfer_s: Callable[[float], Floats]) -> Loads:
        free, hints, costs, names = self.free, self.hints, self.costs, self.names
        factors = [costs.compute_factor * self.task.compute_factor(host) / self.task.cores(host) for host in names]

        sources = [free.sources.get(host, ()) for host in names]
        read = [sum(hints.disk_bytes.get(name, hints.output_bytes[name]) for name in own) for own in sources]

        @cache
        def seconds(inputs: tuple[float, ...]) -> float:
            return free.answers.compute_s(inputs) if len(inputs) > 1 else 0.0

        return Loads(
            transfer_s,
            [[hints.output_bytes[name] for name in own] for own in sources],
            free.answers.output_size_bytes,
            lambda host, inputs: factors[host] * seconds(tuple(inputs)),
            np.array(read) / costs.disk_bytes_per_s,
            interface=self.interface,
            shape=self.shape,
            joint=self.interface == "single",
        )

    def norm(self, tree: Tree) -> float:
        """Seconds: the norm that is minimised."""
        return power(tree.cost, 1 / self.shape)

    def parents(self, tree: HostTree | None) -> list[int] | None:
        """A tree over the same hosts as the parent of each; None for any other."""
        if tree is None or tree.root != self.names[0] or tree.parent.keys() != set(self.names[1:]):
            return None
        number = {name: host for host, name in enumerate(self.names)}
        return [0, *(number[tree.parent[name]] for name in self.names[1:])]


def _looks(hosts: int) -> int:
    """As many as make 60 steps at 9 hosts and 300 from 33 on: one looks at every host below every other, and takes
    0.3 to 0.6 ms there (on a 2-core virtual machine).
    """
    steps = min(10 * max(hosts - 3, 1), 300)
    return steps * hosts**2
