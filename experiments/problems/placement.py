"""Placement files for ``thalweg place``: hosts, links and a dataflow to place on them.

``docs/examples/placement.toml`` documents the form of the files, and is such a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from thalweg.emulation.scenarios.delays import read_delays
from thalweg.experiments.problems.reading import latency_s, naming, rate_bps, read_problem
from thalweg.middleware.dataflow import TREES, Code, Dataflow, Node, Placement
from thalweg.middleware.errors import UsageError, nearest
from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.network.networks import Network
from thalweg.middleware.network.tariffs import TARIFFS, Kind, Tariff
from thalweg.middleware.network.view import NET, Latency, Link, LinkEstimate, NetworkView, Pair, links_between
from thalweg.middleware.planning import Answers, CostParameters, Hints, Quality, Task, propagate_hints
from thalweg.middleware.planning.odp.tasks import objective_of

_CODE = Code("unused")  # the operators are only planned for, never run


class OperatorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Model of an operator: the size of its output, and its time of computation."""

    output: Literal["max", "sum"] | float = "max"  # of the inputs' bytes, or a number of bytes
    compute_s: float = 0.0
    compute_s_per_byte: float = 0.0  # of output, added to compute_s
    reorderable: bool = False  # associative and commutative to the byte: the tree's shape is free

    def output_size_bytes(self, input_sizes: Sequence[float], /) -> float:
        if isinstance(self.output, str):
            return max(input_sizes) if self.output == "max" else sum(input_sizes)
        return self.output

    def compute_seconds(self, input_sizes: Sequence[float], /) -> float:
        return self.compute_s + self.compute_s_per_byte * self.output_size_bytes(input_sizes)

    @property
    def answers(self) -> Answers:
        return Answers(self.output_size_bytes, self.compute_seconds, self.reorderable)


class NodeSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Node of a tree that no builder makes. Without inputs it is a source, which needs ``host`` and ``bytes``.

    - ``operator``: replaces the dataflow's operator for this node. ``host``: pins the node.
    - ``state``: bytes that move with the node from its host in the file's placement.
    - ``demand``: C_i. ``candidates``: hosts on which the node may be.
    - ``takes``: by input, the bytes of a partition from there, if not all.
    """

    name: str
    inputs: tuple[str, ...] = ()
    host: str | None = None
    bytes: float | None = None
    operator: OperatorSpec | None = None
    state: float = 0.0
    demand: float | None = None
    candidates: tuple[str, ...] | None = None
    takes: dict[str, float] = {}


class HostSpec(HostFigures, frozen=True, forbid_unknown_fields=True):
    """Host: figures of its processor, its room C_u for operators, and its availability A_u."""

    capacity: float | None = None
    availability: float = 1.0


class DataflowSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dataflow: either ``tree`` over ``sources``, or ``nodes``.

    - ``sources``: by host, the bytes of a partition, in the order of combination.
    - ``sinks``: by name, the nodes that the client takes. By default, sink ``sink`` takes the only node that is no
      input.
    - ``rate_hz``: partitions a second. ``demand``: C_i of operators by default. ``demands``: C_i of single nodes.
    """

    tree: str | None = None
    sources: dict[str, float] = {}
    nodes: tuple[NodeSpec, ...] = ()
    sinks: dict[str, tuple[str, ...]] = {}
    operator: OperatorSpec = OperatorSpec()
    rate_hz: float = 1.0
    demand: float = 1.0
    demands: dict[str, float] = {}


class NetworkSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prices of a network in dollars, as in scenario files. Without prices, those of its ``kind`` apply."""

    kind: Kind | None = None
    price_per_gb: float | None = None
    price_per_hour: float | None = None
    price_per_port_hour: float | None = None
    source: str = ""

    def tariff(self, name: str) -> Tariff:
        kind = self.kind or ("public" if name == NET else "dedicated")
        prices = self.price_per_gb, self.price_per_hour, self.price_per_port_hour
        if name == NET and kind != "public":
            raise UsageError(
                f"network {NET!r} joins all hosts, so it is public; give rented links a network of their own"
            )
        if any(price is not None and not 0 <= price < math.inf for price in prices):
            raise UsageError(f"network {name!r} has an impossible price; give dollars, 0 or more")
        if kind == "public" and (self.price_per_hour or self.price_per_port_hour):
            raise UsageError(f"network {name!r} is public, where no link is rented; give price_per_gb alone")
        if prices == (None, None, None):
            return TARIFFS[kind]
        per_gb, per_hour, per_port_hour = (price or 0.0 for price in prices)
        return Tariff(kind, per_gb, per_hour, per_port_hour, self.source)


class LinkSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Link from host ``src`` to host ``dst``. ``rate``: in tc's notation, or bits per second. ``both``: also back.

    ``network``: network of the link, by default the network of all hosts. ``latency``: time of an empty message, as
    ``"20ms"`` or seconds. ``bandwidth``: B_uv, the rate that placements may use. ``availability``: A_uv. Figures may be
    left out.
    """

    src: str
    dst: str
    rate: str | float | None = None
    both: bool = False
    latency: str | float | None = None
    bandwidth: str | float | None = None
    availability: float = 1.0
    network: str = NET


class PlacementFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Placement file. ``hosts``: in the order that breaks ties. ``client``: host of the sink, by default the first.

    - ``default_rate``: of links that are not listed.
    - ``latency``: round trips between all hosts, a file or data set. Half of a round trip is a latency.
    - ``default_latency``: of further links that are not listed.
    - ``capacities``: speed, cores, load, room and availability of hosts.
    - ``placement``: current hosts of operators, for planners that start from it.
    - ``networks``: further networks between hosts, with their prices and the prices of ``net``, the network of all
      hosts.
    - ``objective``: weights by metric. ``availability``: whether operators or hosts count for the metric.
    """

    hosts: tuple[str, ...]
    dataflow: DataflowSpec
    client: str | None = None
    links: tuple[LinkSpec, ...] = ()
    default_rate: str | float | None = None
    latency: str | None = None
    default_latency: str | float | None = None
    capacities: dict[str, HostSpec] = {}
    costs: CostParameters = CostParameters()
    placement: dict[str, str] = {}
    networks: dict[str, NetworkSpec] = {}
    objective: dict[str, float] = {}
    availability: Literal["operators", "hosts"] = "operators"


def load_placement(path: Path) -> Task:
    """Return the task of a placement file. Raise UsageError naming the file and the key, host or node that is wrong."""
    spec = read_problem(path, PlacementFile)
    return naming(path, lambda: _task(spec, path.parent))


def _task(spec: PlacementFile, folder: Path) -> Task:
    if not spec.hosts:
        raise UsageError("hosts is empty; name at least one")
    client = spec.hosts[0] if spec.client is None else spec.client
    if client not in spec.hosts:
        raise UsageError(f"client {client!r} is not among the hosts; {nearest(client, spec.hosts)}")
    dataflow, hints = _dataflow(spec.dataflow, client)
    dataflow.validate(spec.hosts)
    if not (math.isfinite(spec.dataflow.rate_hz) and spec.dataflow.rate_hz > 0):
        raise UsageError(f"dataflow.rate_hz is {spec.dataflow.rate_hz}; give partitions a second, above 0")
    hints = msgspec.structs.replace(hints, rates_hz={node.name: spec.dataflow.rate_hz for node in dataflow.nodes})
    current: Placement | None = None
    if spec.placement:
        current = {node.name: node.pinned for node in dataflow.nodes if node.pinned} | spec.placement
    for host in spec.capacities:
        if host not in spec.hosts:
            raise UsageError(f"capacities name unknown host {host!r}; {nearest(host, spec.hosts)}")
    hints = hints.measured({}, {host: HostFigures(of.speed, of.cores, of.load) for host, of in spec.capacities.items()})
    quality = _quality(spec, dataflow)
    view, rented = _view(spec, folder)
    networks = {
        name: Network(tariff, rented.get(name, {}) if tariff.kind == "dedicated" else None)
        for name, tariff in _tariffs(spec).items()
    }
    if networks.keys() == {NET}:
        raise UsageError(f"networks has {NET!r} alone; give another one with links of its own, or leave it out")
    return Task((dataflow,), spec.hosts, view, hints, spec.costs, current, quality, networks)


def _tariffs(spec: PlacementFile) -> dict[str, Tariff]:
    return {name: network.tariff(name) for name, network in spec.networks.items()}


def _quality(spec: PlacementFile, dataflow: Dataflow) -> Quality:
    objective_of(spec.objective or "response")
    demand = {node.name: spec.dataflow.demand for node in dataflow.nodes if node.kind == "operator"}
    demand |= {node.name: node.demand for node in spec.dataflow.nodes if node.demand is not None}
    ends = [(link, pair) for link in spec.links for pair in _pairs(link) if pair.via == NET]
    return Quality(
        demand | spec.dataflow.demands,
        {node.name: node.candidates for node in spec.dataflow.nodes if node.candidates is not None},
        {host: of.capacity for host, of in spec.capacities.items() if of.capacity is not None},
        {host: of.availability for host, of in spec.capacities.items()},
        {pair: link.availability for link, pair in ends},
        {pair: rate_bps(link.bandwidth, _name(link)) / 8 for link, pair in ends if link.bandwidth is not None},
        {node.name: node.state for node in spec.dataflow.nodes},
        spec.objective,
        spec.availability,
    ).check(dataflow, spec.hosts)


def _pairs(link: LinkSpec) -> list[Link]:
    forward = Link(link.src, link.dst, link.network)
    return [forward, forward.back][: 1 + link.both]


def _name(link: LinkSpec) -> str:
    return f"the link {link.src} to {link.dst}" + (f" over {link.network}" if link.network != NET else "")


def _dataflow(spec: DataflowSpec, client: str) -> tuple[Dataflow, Hints]:
    if (spec.tree is None) == (not spec.nodes):
        raise UsageError("dataflow needs either tree and sources, or nodes")
    return _of_nodes(spec, client) if spec.tree is None else _of_tree(spec, spec.tree, client)


def _of_tree(spec: DataflowSpec, tree: str, client: str) -> tuple[Dataflow, Hints]:
    """Return the dataflow that the builder of a tree makes of the sources, and its hints."""
    if spec.sinks:
        raise UsageError("dataflow.sinks goes with nodes; a tree has one sink, which takes its last operator")
    if tree not in TREES:
        raise UsageError(f"unknown tree {tree!r}; {nearest(tree, list(TREES))}")
    dataflow = TREES[tree](dict.fromkeys(spec.sources, _CODE), _CODE, client)
    sizes = {f"source@{host}": size for host, size in spec.sources.items()}
    return dataflow, propagate_hints(dataflow, sizes, lambda _: spec.operator.answers)


def _of_nodes(spec: DataflowSpec, client: str) -> tuple[Dataflow, Hints]:
    """Return the dataflow of the nodes that the file lists, and its hints."""
    if spec.sources:
        raise UsageError("dataflow.sources goes with tree; with nodes, a source is a node with host and bytes")
    nodes = [_node(node) for node in spec.nodes]
    sinks = spec.sinks or {"sink": (_only_root(nodes),)}
    if named := next((node.name for node in nodes if node.name in sinks), ""):
        raise UsageError(f"the name {named!r} stands for the client; give the node another")
    ends = (Node(name, "sink", inputs, None, client) for name, inputs in sinks.items())
    dataflow = Dataflow((*nodes, *ends)).validate()
    own = {node.name: node.operator or spec.operator for node in spec.nodes}
    sizes = {node.name: node.bytes for node in spec.nodes if node.bytes is not None}
    hints = propagate_hints(dataflow, sizes, lambda node: own[node.name].answers)
    for node in spec.nodes:
        for name in node.takes:
            if name not in node.inputs:
                raise UsageError(
                    f"node {node.name!r} takes from {name!r}, which is none of its inputs; name it in inputs"
                )
    takes = {node.name: node.takes for node in spec.nodes if node.takes}
    return dataflow, msgspec.structs.replace(hints, input_bytes=takes).check(dataflow)


def _node(spec: NodeSpec) -> Node:
    """Return the source or operator that a node of the file stands for."""
    if spec.inputs and spec.bytes is not None:
        raise UsageError(f"node {spec.name!r} has inputs and bytes; an operator's output follows from operator")
    if not spec.inputs and spec.operator is not None:
        raise UsageError(f"node {spec.name!r} has operator but no inputs; give it inputs, or bytes for a source")
    return Node(spec.name, "operator" if spec.inputs else "source", spec.inputs, _CODE, spec.host)


def _only_root(nodes: Sequence[Node]) -> str:
    """Return the name of the only node that is no input. Raise UsageError if there are several or none."""
    inputs = {name for node in nodes for name in node.inputs}
    roots = [node.name for node in nodes if node.name not in inputs]
    if len(roots) != 1:
        fault = f"the client takes the only node that feeds no other node; here these are {roots}"
        raise UsageError(f"{fault}; name what it takes in [dataflow.sinks]")
    return roots[0]


def _view(spec: PlacementFile, folder: Path) -> tuple[NetworkView, dict[str, dict[Pair, float]]]:
    """Return the view of the links, and the rates of rented links by network."""
    tariffs = _tariffs(spec)
    rented: dict[str, dict[Pair, float]] = {}
    rates: dict[Link, float] = {}
    delays_s: dict[Link, float] = {}
    if spec.latency is not None:
        delays_s, _ = read_delays(spec.latency, spec.hosts, 1, folder)
    listed: set[Link] = set()
    for link in spec.links:
        _check_link(link, spec.hosts, tariffs)
        for pair in _pairs(link):
            if pair in listed:
                raise UsageError(f"{_name(LinkSpec(*pair.hosts, network=pair.via))} is given twice")
            listed.add(pair)
            if link.rate is not None and _is_rented(link, tariffs):
                rented.setdefault(pair.via, {})[pair.hosts] = rate_bps(link.rate, _name(link))
            elif link.rate is not None:
                rates[pair] = rate_bps(link.rate, _name(link))
            if link.latency is not None:
                delays_s[pair] = latency_s(link.latency, _name(link))
    if spec.default_rate is not None:
        default = rate_bps(spec.default_rate, "default_rate")
        public = [name for name, tariff in tariffs.items() if tariff.kind == "public"]
        for via in dict.fromkeys((NET, *public)):
            for pair in links_between(spec.hosts, via):
                rates.setdefault(pair, default)
    if spec.default_latency is not None:
        default_s = latency_s(spec.default_latency, "default_latency")
        for pair in links_between(spec.hosts):
            delays_s.setdefault(pair, delays_s.get(Link(*pair[::-1]), default_s))
    estimates = {pair: LinkEstimate(rate) for pair, rate in rates.items()}
    return NetworkView(estimates, {pair: Latency(delay_s) for pair, delay_s in delays_s.items()}), rented


def _is_rented(link: LinkSpec, tariffs: Mapping[str, Tariff]) -> bool:
    """Return whether a link belongs to a network whose links are rented."""
    return link.network != NET and tariffs[link.network].kind == "dedicated"


def _check_link(link: LinkSpec, hosts: Sequence[str], tariffs: Mapping[str, Tariff]) -> None:
    """Raise UsageError if a link's ends or network are wrong, or its figures do not fit a rented link."""
    for host in (link.src, link.dst):
        if host not in hosts:
            raise UsageError(f"a link names unknown host {host!r}; {nearest(host, hosts)}")
    if link.network not in (NET, *tariffs):
        known = [NET, *tariffs]
        raise UsageError(f"{_name(link)}: there is no such network; {nearest(link.network, known)}, or add"
                         f" [networks.{link.network}]")  # fmt: skip
    agreed_alone = link.rate is not None and link.latency is None and link.bandwidth is None
    if _is_rented(link, tariffs) and not agreed_alone:
        raise UsageError(f"{_name(link)} is rented: give the agreed rate, and no other figure")
    if link.src == link.dst:
        raise UsageError(f"a link leads from {link.src!r} to itself; that takes no time, leave it out")
