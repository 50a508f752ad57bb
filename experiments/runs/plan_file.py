"""Plan files (TOML): the nodes and hosts of a plan that was made before a run.

``nodes`` are synthetic work (``operators.busy``): sources that serve objects, and operators with a given processor time
and output size. A file with only a ``placement`` places the operators of a different workload. Hosts are named as in
the ``scenario``, a file beside the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from thalweg.emulation.links.units import format_rate
from thalweg.emulation.scenarios.file import Scenario, read_scenario
from thalweg.experiments.networks.described import adopt_file, roles
from thalweg.experiments.networks.traced import carried_bps
from thalweg.experiments.problems.reading import naming, read_problem
from thalweg.experiments.run_config import CLIENT, PLANNED, RunConfig, is_scenario_file
from thalweg.experiments.runs.base_workload import Workload
from thalweg.middleware.dataflow import Code, Dataflow, Node, Placement, check_placement
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.platform import usable_processors

FIXED = "fixed"
SINK = "results"
IDLE = 0.1  # a machine that is busy for a smaller share of the time does not limit the throughput


class PlannedNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Source (no ``inputs``) or operator on ``host``, with the ``bytes`` of a partition.

    ``compute_s``: time for a partition on a host of speed 1. ``rate``: a source's partitions per second. ``object``:
    sources of the same object give the same partitions. The default is the node's name.
    """

    name: str
    host: str
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    inputs: tuple[str, ...] = ()
    compute_s: Annotated[float, msgspec.Meta(ge=0, lt=1e9)] = 0.0
    rate: float | None = None
    object: str = ""


class PlanFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Content of a plan file, as the module describes."""

    scenario: str | None = None
    nodes: tuple[PlannedNode, ...] = ()
    placement: dict[str, str] = {}


class GivenPlan:
    """Plan file and its scenario, with hosts as a run names them."""

    def __init__(self, path: Path, scenario: Path | None = None) -> None:
        """Read the files. ``scenario`` replaces the file's scenario. Raise UsageError for unsuitable files."""
        self.path = path
        self.file = read_problem(path, PlanFile)
        if bool(self.file.nodes) == bool(self.file.placement):
            raise UsageError(f"{path} needs either nodes, or a placement of another workload's operators")
        if self.file.nodes and not any(node.inputs for node in self.file.nodes):
            raise UsageError(f"{path} has no operator; give a node inputs")
        if scenario is None and self.file.scenario is not None:
            scenario = path.parent / self.file.scenario
        self.scenario_path = scenario
        self.scenario: Scenario | None = None
        if scenario is not None:
            self.scenario = naming(path, lambda: read_scenario(scenario))
        self._roles: Mapping[str, str] = {} if self.scenario is None else roles(self.scenario, str(scenario))

    def host(self, name: str) -> str:
        """Return a run's name for a host of the plan. Without a scenario, the name stays.

        Raises UsageError for a host that the scenario does not have.
        """
        if self.scenario is None:
            return name
        if name not in self._roles:
            raise UsageError(f"{self.path} names host {name!r}, which {self.scenario_path} does not have;"
                             f" {nearest(name, self._roles)}")  # fmt: skip
        return self._roles[name]

    @property
    def placement(self) -> Placement:
        """Host of every operator."""
        hosts = self.file.placement or {node.name: node.host for node in self.file.nodes if node.inputs}
        return {name: self.host(host) for name, host in hosts.items()}

    def dataflow(self, *, busy: bool = True, time_scale: float = 1.0, length: int | None = None) -> Dataflow:
        """Return the graph of the nodes. Nodes that are not ``busy`` give the same outputs without computing.

        Raises UsageError if a run cannot have the graph.
        """
        nodes = []
        for node in self.file.nodes:
            key, size = node.object or node.name, node.bytes
            if node.inputs:
                params = {"key": key, "size_bytes": size, "seconds": node.compute_s / time_scale * busy}
                nodes.append(Node(node.name, "operator", node.inputs, Code("thalweg.operators.busy:Busy", params)))
            else:
                code = Code("thalweg.operators.busy:Filled", {"key": key, "size_bytes": size, "length": length})
                nodes.append(Node(node.name, "source", (), code, self.host(node.host), rate=node.rate))
        consumed = {name for node in nodes for name in node.inputs}
        roots = tuple(node.name for node in nodes if node.name not in consumed)
        if len(roots) != 1:
            raise UsageError(
                f"{self.path}: the client takes the only node that feeds no other node; here these are {list(roots)}"
            )
        try:
            return _ahead(Dataflow((*nodes, Node(SINK, "sink", roots, None, CLIENT))).validate())
        except UsageError as error:
            raise type(error)(f"{self.path}: {error}") from None

    def check(self, testbed: str) -> None:
        """Raise UsageError if ``testbed`` cannot keep the plan's demands on processors or links."""
        hosts = {} if self.scenario is None else self.scenario.hosts
        if not self.file.nodes or testbed == "sim":
            return
        where = check_placement(self.dataflow(), self.placement, [*self._roles.values(), CLIENT])
        hz = max((node.rate for node in self.file.nodes if node.rate is not None), default=1.0)
        computing: dict[str, float] = {}
        for node in self.file.nodes:
            if node.inputs:
                computing[node.host] = computing.get(node.host, 0.0) + node.compute_s * hz
        cpus = {name: hosts[name].cpus or 1.0 for name in computing if name in hosts}
        if testbed != "docker":
            name = max(computing, key=lambda name: computing[name] / cpus.get(name, 1.0))
            busy = computing[name] / cpus.get(name, 1.0)
            if busy > IDLE:
                raise UsageError(f"host {name} of {self.path} computes {busy:.0%} of the time, and {testbed} keeps no"
                                 " host to its processors; use --testbed docker or sim")  # fmt: skip
        elif sum(cpus.values()) > processors():
            raise UsageError(f"the hosts of {self.path} that compute have {sum(cpus.values()):g} processors together,"
                             f" and this machine {processors():g}; use --testbed sim")  # fmt: skip
        sizes = {node.name: node.bytes for node in self.file.nodes}
        moved = {(name, where[taker]) for name, taker in self.dataflow().edges if where[name] != where[taker]}
        bps = 8 * hz * sum(sizes[name] for name, _ in moved)
        if bps > carried_bps():
            raise UsageError(f"{self.path} sends {format_rate(bps)}, and this machine carries about"
                             f" {format_rate(carried_bps())}; use --testbed sim")  # fmt: skip


def _ahead(dataflow: Dataflow) -> Dataflow:
    """Return the dataflow with nodes that keep outputs for consumers at different levels of the graph.

    Otherwise an operator that combines an object with a value made from the object would block until that value exists.
    """
    nodes = []
    for node in dataflow.nodes:
        levels = [dataflow.level[name] for name in dataflow.consumers[node.name]]
        nodes.append(msgspec.structs.replace(node, ahead=1 + max(levels, default=0) - min(levels, default=0)))
    return Dataflow(tuple(nodes))


def processors() -> float:
    """Return the number of processors that this process may use."""
    return float(usable_processors())


def given_plan(config: RunConfig) -> GivenPlan:
    """Return the plan of a run's configuration."""
    assert config.plan is not None
    described = is_scenario_file(config.scenario)
    return GivenPlan(Path(config.plan), Path(str(config.scenario)) if described else None)


def adopt_plan(given: dict[str, Any], path: str) -> None:
    """Set workload, placement, scenario, servers and time scale of a run's options from a plan file.

    Raises UsageError if the options contradict the file, or the testbed cannot keep the plan.
    """
    scenario = given.get("scenario")
    plan = GivenPlan(Path(path), Path(scenario) if is_scenario_file(scenario) else None)
    if plan.file.nodes and given.setdefault("workload", PLANNED) != PLANNED:
        raise UsageError(f"--workload {given['workload']}: {path} has nodes of its own; leave --workload out")
    if "placements" not in given:
        given["placements"] = [FIXED]
    testbed = given.get("testbed", "netns")
    plan.check(testbed)
    if plan.file.nodes and testbed == "sim":
        given.setdefault("interface", "shared")
    if plan.scenario_path is not None and testbed != "loopback":
        given["scenario"] = str(plan.scenario_path)
        adopt_file(given, given["scenario"])
    elif plan.scenario is not None:
        given.setdefault("servers", len(roles(plan.scenario, str(plan.scenario_path))) - 1)


class Planned(Workload):
    """Workload of a plan file's nodes."""

    sized = True

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self.plan = given_plan(config)

    def dataflow(self) -> Dataflow:
        return self.plan.dataflow(time_scale=self.config.time_scale, length=self.config.images)

    def reference(self) -> Dataflow:
        return self.plan.dataflow(busy=False, length=self.config.images)
