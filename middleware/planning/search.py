"""What planning goes by that a network view does not tell, and the look for a better placement while data flows."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from thalweg.middleware import events as e
from thalweg.middleware.adaptation import GlobalMoves, migration_s, worth_moving
from thalweg.middleware.dataflow import Dataflow, Node, check_placement
from thalweg.middleware.errors import OperatorError, ThalwegError
from thalweg.middleware.loading import DEFAULT_ALLOW, load_code
from thalweg.middleware.network_view import LinksNeeded, NetworkView
from thalweg.middleware.planning.costs import CostModel, evaluate
from thalweg.middleware.planning.hints import CostParameters, Hints, SupportsHints, propagate_hints
from thalweg.middleware.planning.planners import Planner, ask_planner
from thalweg.middleware.planning.problem import Problem

MEASURED = CostParameters(startup_s=0.0, disk_bytes_per_s=math.inf)  # costs no probe measures are left out
TYPICAL_BYTES = 131_072.0  # mean image size of the paper, where a source cannot be asked; section 4


def ask_hints(dataflow: Dataflow, allow: Collection[str] = DEFAULT_ALLOW) -> Hints:
    """Sizes and compute times as the nodes' own code tells them, where this process can load it."""
    sizes: dict[str, float] = {}
    for name in dataflow.sources:
        code = dataflow.by_name[name].code
        assert code is not None
        try:
            sizes[name] = float(load_code(code, allow).size_bytes())
        except (OperatorError, AttributeError):  # its data lies on another host, or it gives no hint
            sizes[name] = TYPICAL_BYTES

    def operator_of(node: Node) -> SupportsHints:
        assert node.code is not None
        code = load_code(node.code, allow)
        return code if isinstance(code, SupportsHints) else _Unknown()

    return propagate_hints(dataflow, sizes, operator_of)


class _Unknown:
    """Stands in for an operator without hints: output like the largest input, in no time."""

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        return max(input_sizes)

    def compute_s(self, input_sizes: Sequence[float]) -> float:
        return 0.0


class Search(msgspec.Struct, frozen=True):
    """What a run's planner goes by, besides what is known of the network."""

    dataflow: Dataflow
    hosts: tuple[str, ...]
    hints: Hints
    costs: CostParameters
    model: CostModel
    options: GlobalMoves
    planner: Planner
    label: str = "global"

    def answer(self, command: e.Plan) -> e.Planned:
        """The plan, or the links it needs, or why there is neither: planner and cost model may be a user's own."""
        try:
            return self._answer(command)
        except LinksNeeded as needed:
            return e.Planned(command.run, needs=needed.links)
        except Exception as error:
            why = str(error) if isinstance(error, ThalwegError) else f"{type(error).__name__}: {error}"
            return e.Planned(command.run, detail={"planner": self.label, "why": why}, failed=why)

    def _answer(self, command: e.Plan) -> e.Planned:
        view = NetworkView(command.view)
        result = ask_planner(
            self.planner,
            self.dataflow,
            self.hosts,
            view,
            command.placement,
            hints=self.hints,
            costs=self.costs,
            model=self.model,
        )
        sink = self.dataflow.sink
        placement = {sink: command.placement[sink], **result.placement}
        placement = check_placement(self.dataflow, placement, self.hosts)
        now_s, then_s = result.initial_cost_s, result.cost_s
        if math.isnan(then_s) or math.isnan(now_s):
            problem = Problem(self.dataflow, self.hosts, view, self.hints, self.costs)
            now_s = evaluate(self.model, problem, command.placement).cost_s
            then_s = evaluate(self.model, problem, placement).cost_s
        moving_s = 0.0
        for node, host in placement.items():
            was = command.placement[node]
            if was != host:
                rate_bps = view.rate_bps(was, host)
                moving_s += migration_s(command.state_bytes.get(node, 0), math.inf if rate_bps is None else rate_bps)
        options = self.options
        worth = worth_moving(now_s, then_s, options.period_s, moving_s, options.hysteresis)
        why = "a better plan" if worth else "no better plan"
        if then_s < now_s and not worth:
            why = f"it does not repay {moving_s:.3g} s of moving"
        detail: dict[str, Any] = {"planner": self.label, "why": why}
        figures = {"predicted_s": then_s, "current_s": now_s}
        detail |= {key: value for key, value in figures.items() if math.isfinite(value)}
        return e.Planned(command.run, placement, worth=worth, detail=detail)
