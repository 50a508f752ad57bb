"""Figures of hosts and nodes that the hosts of a run exchange, if the run's planner needs them (``Install.news``).

Rules:

R1. Every ``sound_interval_s`` a host sounds another host (``latency_prober``). The sounding carries figures of the
    host, of its links and of its nodes. Every second sounding goes to the client, which plans. The remaining soundings
    go to the other hosts in turn.
R2. Hosts begin at different times, so that no host is sounded by all at once.
R3. Figures of a node are accepted only from the node's host, as far as the receiver knows the location. Figures from a
    former host count until the node is measured again. When a node leaves the run, its figures are forgotten.
R4. If coordinates are needed, a host sounds some hosts in turn instead of all (``place.neighbours``), and the hosts
    exchange coordinates (``coordinate_table``).
R5. The stripes of a stream take turns. With *n* stripes each stripe sounds 1/*n* as often.
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
    """Exchange of figures between one host and the other hosts of one run."""

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
        self._told: dict[str, NodeFigures] = {}  # reported figures, of nodes on other hosts
        self._turn = self._first = 0
        self._stream = context.out.run.asked_as
        self._neighbours: tuple[frozenset[str], list[str]] = frozenset(), []  # run's hosts, neighbours among them

    def on_run_begun(self, beginning: RunBeginning) -> None:
        """Set the time of the first sounding (R2, R5), and begin to measure nodes, if the planner needs figures."""
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
        """Stop measuring nodes of the run, and leave the soundings to other stripes."""
        self._meters.drop(self._out.run)
        self._latency_prober.drop_turn(self._stream, self._out.run)

    def on_timer(self) -> None:
        """Sound the next host, with figures of the local host and its nodes (R1). Record the figures."""
        out, hosts, situated = self._out, self._others(), "coordinates" in self._needs
        nodes = self._measured()
        # R3: nodes that have left the run are forgotten
        self._told = {name: figures for name, figures in self._told.items() if name in self._tree.dataflow.by_name}
        if hosts:
            turn, self._turn = self._turn, self._turn + 1
            client = self._client != out.host and self._client in self._directory.hosts
            host = hosts[turn // (2 if client else 1) % len(hosts)]
            if turn % 2 == 0 and client:  # R1: the client plans, so every second sounding goes there
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
        # R5: with more stripes, each stripe sounds less often
        out.wake(Timer.SOUND, out.now + self._interval_s * max(1, len(turns)))

    def _others(self) -> list[str]:
        """Return the hosts to sound in turn: the other hosts of the run, or some of them (R4)."""
        hosts = self._directory.hosts
        if "coordinates" not in self._needs:
            return sorted(hosts - {self._out.host})
        if self._neighbours[0] != hosts:
            self._neighbours = frozenset(hosts), neighbours(self._out.host, hosts)  # R4: only some hosts are sounded
        return self._neighbours[1]

    def _measured(self) -> dict[str, NodeFigures]:
        """Return the figures of nodes on the local host; empty if the planner needs no figures of nodes."""
        if "work" not in self._needs:
            return {}
        run, here = self._out.run, self._flow.nodes
        self._meters.keep(run, set(here))
        return {name: figures for name in here if (figures := self._meters.of(run, name)) is not None}

    def _news(self, nodes: dict[str, NodeFigures]) -> tuple[m.NodeReport, ...]:
        """Return figures of nodes in message form. If there are many nodes, each message has the next ones in turn."""
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
        """Store figures that ``sender`` reports of nodes on itself (R3)."""
        for report in nodes:
            node, where = self._tree.dataflow.by_name.get(report.node), self._directory.locations.get(report.node)
            if node is None or where is None or where.host != sender:
                continue  # R3: only the host of a node is believed about the node
            sizes = dict(zip(node.inputs, map(float, report.input_bytes), strict=False))
            figures = report.rate_micro_hz / 1e6, float(report.output_bytes), sizes, report.call_us / 1e6, report.count
            self._told[report.node] = NodeFigures(*figures)

    # --- known figures --------------------------------------------------------------------------------

    def latencies(self) -> dict[Link, Latency]:
        """Return the known latencies of links.

        If coordinates are needed, only latencies of the last ``HORIZON_S`` count. A planner then requests the few
        latencies that it lacks.
        """
        return self._latency_prober.view(HORIZON_S) if "coordinates" in self._needs else self._latency_prober.view()

    def places(self) -> dict[str, Place]:
        """Return the known coordinates of the run's hosts; empty if the planner needs no coordinates."""
        return self._coordinate_table.known(sorted(self._directory.hosts)) if "coordinates" in self._needs else {}

    def hosts(self) -> dict[str, HostFigures]:
        """Return the known figures of the run's hosts; empty if the planner needs no figures of hosts."""
        if "hosts" not in self._needs:
            return {}
        known = {**self._latency_prober.hosts, self._out.host: self._meters.host(self._out.now)}
        return {name: known[name] for name in sorted(self._directory.hosts) if name in known}

    def nodes(self) -> dict[str, NodeFigures]:
        """Return the known figures of the run's nodes, on every host."""
        known = {**self._told, **self._measured()}
        return {name: known[name] for name in self._tree.dataflow.by_name if name in known}

    HANDLERS = Handlers(
        timers={Timer.SOUND: on_timer},
    )
