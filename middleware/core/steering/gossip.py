"""What hosts of a run find out and tell each other beside the flow, where its planner asks for it (``Install.news``).

Rules:

R1. Every ``sound_interval_s`` a host sounds another (``latency_prober``), and tells it what it knows of itself, of its
    own links and of the nodes that are there: the client every second time, as it is the client that plans, and all
    others in turn.
R2. Hosts begin at different times, so that none is sounded by all at once.
R3. Of a node only the host where it is is believed, as far as this one knows where that is. What a node was when it was
    elsewhere counts until it is measured anew. Of one that the run does not have any more all is forgotten.
R4. Where coordinates are wanted it sounds some hosts in turn instead of all (``place.neighbours``), and they tell
    each other where they and others are (``coordinate_table``).
R5. The stripes of a stream take turns: with so many of them each sounds as many times less often.
"""

from __future__ import annotations

from collections.abc import Iterable

from thalweg.middleware.core.context.outbox import RunContext, Timer
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.measuring.latency_prober import PiggybackedFigures
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.host_services import HostServices
from thalweg.middleware.core.parts.part import Need, Part, RunBeginning, RunParts
from thalweg.middleware.network.figures import HostFigures, NodeFigures
from thalweg.middleware.network.forecasting import HORIZON_S
from thalweg.middleware.network.place import Place, neighbours
from thalweg.middleware.network.view import Latency, Link
from thalweg.middleware.protocol import messages as m


class Gossip(Part):
    """A host's part in one run."""

    NEEDED_FOR = Need.GOSSIP

    @classmethod
    def of(cls, parts: RunParts) -> Gossip:
        return cls(parts.context, parts.shared, parts.get(Tree), parts.get(Directory), parts.get(Flow))

    def __init__(self, context: RunContext, shared: HostServices, tree: Tree, directory: Directory, flow: Flow) -> None:
        self._out, self._client = context.out, context.install.client
        news = context.install.news
        self._needs = frozenset(news) if isinstance(news, tuple) else frozenset[str]()
        self._latency_prober, self._coordinate_table, self._meters = (
            shared.latency_prober,
            shared.coordinate_table,
            shared.meters,
        )
        self._tree, self._directory, self._flow = tree, directory, flow
        self._interval_s = shared.monitor.config.sound_interval_s
        self._told: dict[str, NodeFigures] = {}  # of nodes elsewhere
        self._turn = self._first = 0
        self._stream = context.out.run.asked_as
        self._neighbours: tuple[frozenset[str], list[str]] = frozenset(), []  # of those hosts

    def on_run_begun(self, beginning: RunBeginning) -> None:
        """The run begins here."""
        if not self._needs:
            return
        hosts = sorted(self._directory.hosts)
        share = (hosts.index(self._out.host) + 1) / len(hosts)
        # R5: the stripes of a stream take turns
        self._turn = self._latency_prober.take_turn(self._stream, self._out.run)
        # R2: not all hosts begin at once
        self._out.wake(Timer.SOUND, self._out.now + self._interval_s * (share + self._turn))
        if self._needs & {"hosts", "work"}:
            self._meters.keep(self._out.run, set())

    def on_run_over(self, _: str) -> None:
        """The run is over."""
        self._meters.drop(self._out.run)
        self._latency_prober.drop_turn(self._stream, self._out.run)

    def on_timer(self) -> None:
        """It is time to sound the next one."""
        out, hosts, situated = self._out, self._others(), "coordinates" in self._needs
        nodes = self._measured()
        # R3: nodes that have left the run are forgotten
        self._told = {name: figures for name, figures in self._told.items() if name in self._tree.dataflow.by_name}
        if hosts:
            turn, self._turn = self._turn, self._turn + 1
            client = self._client != out.host and self._client in self._directory.hosts
            host = hosts[turn // (2 if client else 1) % len(hosts)]
            if turn % 2 == 0 and client:  # R1: the client plans, so every second message goes there
                host = self._client
            latencies = self._latency_prober.latest() if "latency" in self._needs else ()
            self._latency_prober.sound(
                out.run, host, PiggybackedFigures(latencies, self._news(nodes)), situated=situated
            )
        if "hosts" in self._needs:
            me = self._meters.host(out.now)
            out.record("load", value=me.load, detail={"speed": me.speed, "cores": me.cores})
        for name, figures in nodes.items():
            detail = {"input_bytes": figures.input_bytes, "count": figures.count}
            if any(figures.input_bytes.values()):
                detail["selectivity"] = figures.selectivity
            size = round(figures.output_bytes)
            out.record(
                "work", node=name, value=figures.rate_hz, size_bytes=size, duration_s=figures.call_s, detail=detail
            )
        turns = self._latency_prober.turns.get(self._stream, ())
        # R5: with more stripes each sounds less often
        out.wake(Timer.SOUND, out.now + self._interval_s * max(1, len(turns)))

    def _others(self) -> list[str]:
        """Those that are sounded in turn."""
        hosts = self._directory.hosts
        if "coordinates" not in self._needs:
            return sorted(hosts - {self._out.host})
        if self._neighbours[0] != hosts:
            self._neighbours = frozenset(hosts), neighbours(self._out.host, hosts)  # R4: only some hosts are sounded
        return self._neighbours[1]

    def _measured(self) -> dict[str, NodeFigures]:
        """Of the nodes that are here."""
        if "work" not in self._needs:
            return {}
        run, here = self._out.run, self._flow.nodes
        self._meters.keep(run, set(here))
        return {name: figures for name in here if (figures := self._meters.of(run, name)) is not None}

    def _news(self, nodes: dict[str, NodeFigures]) -> tuple[m.NodeReport, ...]:
        """What is told of them: of some at a time, where there are many."""
        names = list(nodes)
        first = self._first % len(names) if len(names) > m.MAX_TOLD else 0
        self._first += m.MAX_TOLD
        reports = []
        for name in (names[first:] + names[:first])[: m.MAX_TOLD]:
            figures, inputs = nodes[name], self._flow.nodes[name].node.inputs
            sizes = tuple([round(figures.input_bytes.get(producer, 0.0)) for producer in inputs[: m.MAX_TOLD]])
            rate, call_us = round(figures.rate_hz * 1e6), min(round(figures.call_s * 1e6), m.LONGEST_US)
            reports.append(m.NodeReport(name, rate, round(figures.output_bytes), call_us, figures.count, sizes))
        return tuple(reports)

    def handle_reports(self, sender: str, nodes: Iterable[m.NodeReport]) -> None:
        """What another host says of nodes that are there."""
        for report in nodes:
            node, where = self._tree.dataflow.by_name.get(report.node), self._directory.locations.get(report.node)
            if node is None or where is None or where.host != sender:
                continue  # R3: only the host of a node is believed about the node
            sizes = dict(zip(node.inputs, map(float, report.input_bytes), strict=False))
            figures = report.rate_micro_hz / 1e6, float(report.output_bytes), sizes, report.call_us / 1e6, report.count
            self._told[report.node] = NodeFigures(*figures)

    # --- what is known --------------------------------------------------------------------------------

    def latencies(self) -> dict[Link, Latency]:
        """Of all links that anything is known of: lately, where a few are asked for again as they are needed."""
        return self._latency_prober.view(HORIZON_S) if "coordinates" in self._needs else self._latency_prober.view()

    def places(self) -> dict[str, Place]:
        """Of the run's hosts, this one among them, where the planner needs them."""
        return self._coordinate_table.known(sorted(self._directory.hosts)) if "coordinates" in self._needs else {}

    def hosts(self) -> dict[str, HostFigures]:
        """Of the run's hosts, this one among them, where the planner needs them."""
        if "hosts" not in self._needs:
            return {}
        known = {**self._latency_prober.hosts, self._out.host: self._meters.host(self._out.now)}
        return {name: known[name] for name in sorted(self._directory.hosts) if name in known}

    def nodes(self) -> dict[str, NodeFigures]:
        """Of the run's nodes, wherever they are."""
        known = {**self._told, **self._measured()}
        return {name: known[name] for name in self._tree.dataflow.by_name if name in known}

    HANDLERS = Handlers(
        timers={Timer.SOUND: on_timer},
    )
