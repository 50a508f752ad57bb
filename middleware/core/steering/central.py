"""Placement decisions for all operators of a run at once, at its client: the global algorithm.

Rules:

R1. No planning stops the flow. The planner itself runs outside the core (``RequestPlan`` … ``PlanReady``). Unknown
    links that it needs are probed meanwhile. The planner is called again when the links are known, or have been awaited
    long enough.
R2. *Global* (Ranganathan et al., section 2.2): once a period the client plans from the present placement, with
    estimates of the monitor and with probes. The result is proposed to the barrier. While a proposal is under way, the
    client does not plan.
R3. A link is awaited for the time of two recent partitions, because a probe may wait for a partition at each end. Two
    requests take at most one period or one horizon together. A link without a measurement after both counts as slow for
    one horizon, unless it is measured after all. The assumed rate is no sample.
R4. Planners know only the hosts of the run. A subscriber's sink counts as if it were at the client.
R5. A plan may name other networks between hosts. These are proposed with the moves of the plan, or alone if the moves
    are not worth their cost. A planner that looks ahead also gets the estimates of links over networks other than the
    shared network.
R6. If a run has lost a host, the planner is asked once before the next generation begins. It chooses hosts for the
    operators of lost hosts, by the known figures. The remaining operators stay. The client waits for the planner for
    ``place_s``. If the planner fails, or its answer is unusable, a fixed rule holds (``recovery``).
R7. If a host reports that nothing arrives over a route with relays, plans avoid the route for a period (at least
    ``max_age_s``). If the report is repeated soon afterwards, the time doubles. Links of the route may still carry
    their full rate (``route_choice``, R7).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Set

import msgspec
from msgspec import UNSET

from thalweg.middleware.core.barrier.proposer import SAME, Proposer
from thalweg.middleware.core.context.notes import (
    ChangedOver,
    HostLost,
    LatencyMeasured,
    LinkMeasured,
    Notes,
    PartitionDelivered,
    Started,
)
from thalweg.middleware.core.context.outbox import RunContext, Timer
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.measuring.prober import SHARE_WAITING, TRIES, too_slow_bps
from thalweg.middleware.core.moving.departures import Departures
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.host_services import HostServices
from thalweg.middleware.core.parts.part import Need, Part, RunBeginning, RunParts
from thalweg.middleware.core.routes.route_choice import LONGEST, route_fields
from thalweg.middleware.core.steering.gossip import Gossip
from thalweg.middleware.dataflow import Dataflow, Placement
from thalweg.middleware.network.history import History, PlanningHistory, Variability
from thalweg.middleware.network.place import Place
from thalweg.middleware.network.view import Latency, Link, LinkEstimate
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import GlobalMoves

PATIENT = 2.0  # times the interval between partitions: time for which the next measurement is awaited
LATELY = 8  # number of recent partitions whose interval counts
UNHEARD = Latency(math.inf, 0)  # latency of a link without an answer


class _InVain(msgspec.Struct, frozen=True):
    """Link that was requested at ``asked_s`` and not measured by ``given_up_s``, with its assumed rate (R3)."""

    rate_bps: float
    asked_s: float
    given_up_s: float


class _Shunned(msgspec.Struct, frozen=True):
    """Time until which plans avoid an impassable route, and the length of this period (R7)."""

    until_s: float
    for_s: float


class _Search:
    """Planning under way: its knowledge of the network, and the measurements that it waits for."""

    def __init__(self, now: float, view: dict[Link, LinkEstimate], places: dict[str, Place]) -> None:
        self.begun_s = now
        self.view, self.places = view, places
        self.waiting: frozenset[Link] = frozenset()
        self.asked: frozenset[Link] = frozenset()
        self.latencies: dict[Link, Latency] = {}  # answers to requests
        self.sounded = 0  # number of requested latencies
        self.unheard: frozenset[Link] = frozenset()  # links whose latency is awaited
        self.asked_s = now  # time of the first request for these links
        self.tries = 0
        self.rounds = 0

    @property
    def waits(self) -> bool:
        """Return whether the planning waits for a measurement."""
        return bool(self.waiting or self.unheard)


class CentralSteering(Part):
    """Global algorithm at the client: periodic planning for one run of the local application."""

    NEEDED_FOR = Need.PLANNING

    @classmethod
    def of(cls, parts: RunParts) -> CentralSteering:
        return cls(
            parts.context,
            parts.shared,
            parts.get(Tree),
            parts.get(Directory),
            parts.get(Departures),
            parts.get(Proposer),
            parts.get(Gossip),
        )

    def __init__(
        self,
        context: RunContext,
        shared: HostServices,
        tree: Tree,
        directory: Directory,
        departures: Departures,
        proposer: Proposer,
        gossip: Gossip,
    ) -> None:
        self._out, self._limits, self._install = context.out, context.limits, context.install
        self._monitor, self._prober, self._latency_prober = shared.monitor, shared.prober, shared.latency_prober
        self._tree, self._directory = tree, directory
        self._departures, self._proposer, self._gossip = departures, proposer, gossip
        self._plans, self._options = False, GlobalMoves()
        self._looks = 0  # number of plannings so far
        self._search: _Search | None = None
        self._overdue = False  # a period has ended while a proposal was under way
        self._variability: Variability | None = None  # by the last answer of the planner
        self._delivered_s: deque[float] = deque(maxlen=LATELY + 1)  # times of the last deliveries, or of the start
        self._in_vain: dict[Link, _InVain] = {}
        self._shunned: dict[tuple[Link, ...], _Shunned] = {}

    def on_run_begun(self, beginning: RunBeginning) -> None:
        """Prepare planning, if the local application leads the run.

        A planner that looks ahead gets a history of measurements, which begins with the known estimates.
        """
        event = beginning.request
        if event is None:
            return
        now = self._out.now
        known, since_s = dict(event.known), -math.inf  # measurements before ``since_s`` do not count
        if event.install.afresh:
            since_s = now
            known = {link: msgspec.structs.replace(estimate, measured_at_s=now) for link, estimate in known.items()}
        if isinstance(event.adaptation, GlobalMoves):
            self._plans, self._options = True, event.adaptation
        if self._options.horizon_s is not None:
            known |= self._monitor.view(now)
            history = History(known, most=self._monitor.config.max_links, since_s=since_s)
            self._monitor.keep_history(self._out.run, history)

    def on_run_over(self, _: str) -> None:
        """Stop the history of measurements of the run."""
        self._monitor.drop_history(self._out.run)

    def on_started(self, _: Started) -> None:
        """Begin the first period, as every host that is needed has installed the run."""
        if self._plans:
            self._delivered_s.append(self._out.now)
            self._out.wake(Timer.PLAN, self._out.now + self._options.period_s)

    # --- global ---------------------------------------------------------------------------------------

    @property
    def _history(self) -> History | None:
        """Return the history of measurements since the start of the run; None if the planner does not look ahead."""
        return self._monitor.histories.get(self._out.run)

    def on_timer(self) -> Notes:
        """Begin a planning at the end of a period.

        If measurements are late, request them again or plan without them.
        """
        if not self._plans:
            return
        if self._search is not None:
            yield from self._give_up_waiting(self._search)
        elif self._proposer.proposal is not None:
            self._overdue = True  # R2: planning waits for the end of the proposal
        else:
            view = {} if self._history is not None else self._monitor.view(self._out.now)
            self._search = _Search(self._out.now, view, self._gossip.places())
            self._plan(self._search)

    def _wait(self) -> None:
        """Set the time until which the requested measurements are awaited (R3)."""
        options, times_s, now = self._options, self._delivered_s, self._out.now
        apart_s = (now - times_s[0]) / max(1, len(times_s) - 1)
        most_s = (options.horizon_s or options.period_s) / TRIES
        least_s = min(self._limits.probe_s, SHARE_WAITING * options.period_s)
        self._out.wake(Timer.PLAN, now + max(least_s, min(most_s, PATIENT * apart_s)))

    def _slow(self, history: History) -> dict[Link, LinkEstimate]:
        """Return assumed estimates of links requested in vain within the horizon, and not measured since (R3)."""
        horizon_s = self._options.horizon_s
        assert horizon_s is not None
        for link, vain in list(self._in_vain.items()):
            over = vain.given_up_s + horizon_s <= self._out.now
            if over or history.latest_s(link) > vain.asked_s:
                del self._in_vain[link]
        return {link: LinkEstimate(vain.rate_bps, count=0) for link, vain in self._in_vain.items()}

    def _plan(self, search: _Search) -> None:
        out, directory, history = self._out, self._directory, self._history
        dataflow, where = self._as_without_guests()
        past, view = None, search.view
        if history is not None:
            known = history.samples(), out.now, search.asked, search.rounds
            past = PlanningHistory(*known, self._variability, history.latest())
            view = self._slow(history)
            lost = directory.peers.keys() - directory.hosts
            estimates = {**search.view, **self._monitor.view(out.now)}
            # R5: the planner also gets the estimates of links over other networks
            view |= {link: estimate for link, estimate in estimates.items() if len(link) > 2}
            ends = [Link(a, b) for a in sorted(directory.peers) for b in sorted(lost) if a != b]
            view |= dict.fromkeys([*ends, *(Link(b, a) for a, b in ends)], LinkEstimate(0.0, count=0))
        out.emit(  # R1: the planner runs elsewhere, and the flow goes on
            e.RequestPlan(
                out.run,
                where,
                dict(view),
                dict(self._departures.state_bytes),
                None if dataflow is self._install.dataflow else dataflow,
                past,
                recording=past is not None and out.recording,
                latencies={**self._gossip.latencies(), **search.latencies},
                hosts=self._gossip.hosts(),
                nodes=self._gossip.nodes(),
                places=search.places,
                ways=directory.routes.table,
                shunned=frozenset(route for route, shunned in self._shunned.items() if out.now < shunned.until_s),
            )
        )

    def on_impassable(self, sender: str, message: m.Impassable) -> None:
        """Exclude a route from plans for a time, because nothing arrives over it by the report of ``sender`` (R7)."""
        now, route = self._out.now, m.links_over(sender, message.target, message.hops)
        before = self._shunned.get(route)
        named = self._directory.routes.names(sender, message.target, message.hops)
        if not named or (before is not None and now < before.until_s):
            return
        for_s = max(self._options.period_s, self._monitor.config.max_age_s)  # the sender avoids the route for as long
        if before is not None and now < before.until_s + 2 * before.for_s:
            for_s = min(LONGEST * for_s, 2 * before.for_s)
        self._shunned = {
            links: shunned for links, shunned in self._shunned.items() if now < shunned.until_s + 2 * shunned.for_s
        }
        self._shunned[route] = _Shunned(now + for_s, for_s)
        self._out.record(
            "fault", peer=sender, duration_s=for_s, detail={"what": "route left", **route_fields(message.hops)}
        )

    def request_recovery_plan(self, install: m.Install, there: Set[str]) -> bool:
        """Ask the planner where operators of lost hosts go in the next generation (R6).

        Return whether the planner was asked.

        ``there``: the hosts that take part in the next generation.
        """
        out, gossip, directory = self._out, self._gossip, self._directory
        flow, where = install.dataflow, {entry.node: entry.host for entry in install.locations}
        free = [name for name in flow.operators if flow.by_name[name].pinned is None]
        lost = {name for name in free if directory.locations[name].host not in there}
        if not (self._plans and lost):
            return False
        fixed = {name: msgspec.structs.replace(flow.by_name[name], pinned=where[name]) for name in {*free} - lost}
        away = [name for name in flow.sinks if where[name] != out.host]  # R4: subscribers' sinks count as at the client
        fixed |= {name: msgspec.structs.replace(flow.by_name[name], pinned=out.host) for name in away}
        where |= dict.fromkeys(away, out.host)
        out.emit(
            e.RequestRecoveryPlan(
                out.run,
                where,
                self._monitor.ever(),
                dataflow=Dataflow(tuple([fixed.get(node.name, node) for node in flow.nodes])),
                latencies=gossip.latencies(),
                hosts=gossip.hosts(),
                nodes=gossip.nodes(),
                places=gossip.places(),
                there=tuple([host for host in directory.peers if host in there]),
            )
        )
        out.wake(Timer.PLACE, out.now + self._limits.place_s)
        return True

    def _as_without_guests(self) -> tuple[Dataflow, Placement]:
        """Return the dataflow and the placement with the sinks of subscribers pinned at the client (R4)."""
        flow, here, guests = self._tree.dataflow, self._out.host, self._directory.subscribers
        where = self._directory.where(flow.by_name)
        if away := {name for name, host in where.items() if host in guests}:
            pinned = {name: msgspec.structs.replace(flow.by_name[name], pinned=here) for name in away}
            flow = Dataflow(tuple([pinned.get(node.name, node) for node in flow.nodes]))
        return flow, where | dict.fromkeys(away, here)

    def on_planned(self, event: e.PlanReady) -> Notes:
        search, hosts = self._search, self._directory.hosts
        if search is None:
            return
        if event.variability is not None:
            self._variability = event.variability
        unknown = event.needs - search.view.keys()
        gone = {link for link in unknown if not hosts.issuperset(link[:2])}
        search.view |= dict.fromkeys(gone, LinkEstimate(0.0, count=0))  # a lost host cannot be probed
        unknown -= gone
        unheard = frozenset[Link]() if event.latencies is UNSET else event.latencies - search.latencies.keys()
        silent = {link for link in unheard if not hosts.issuperset(link)}
        search.latencies |= dict.fromkeys(silent, UNHEARD)
        unheard -= silent
        if (gone or silent) and not (unknown or unheard):
            self._plan(search)
            return
        if unknown or unheard:
            search.rounds += 1
            search.tries = 1
            search.asked_s = self._out.now
            search.asked |= unknown
            search.sounded += len(unheard)
            search.waiting, search.unheard = unknown, unheard
            yield from self._request_measurements(search)
            self._wait()
            return
        self._search = None
        self._looks += 1
        self._record(search, event, self._propose(event))
        if self._looks == self._options.looks:
            return
        after = search.begun_s + self._options.period_s
        self._out.wake(Timer.PLAN, max(after, self._out.now))

    def _propose(self, event: e.PlanReady) -> str:
        """Propose a plan to the barrier. Return why the plan is dropped, or an empty text."""
        placement, directory = event.placement or {}, self._directory
        ways = None if event.ways is UNSET else event.ways  # R5: the plan may name other networks
        left = {*placement.values()} - (directory.hosts - directory.vacating)
        if left:  # the planner may not know yet of a host that is lost or leaves
            return f"host {min(left)!r} has no part in the run, or is to leave it"
        if not event.worth:
            dropped = str(event.detail.get("why", "")) or "it is not worth its moves"
            return dropped if ways is None else self._proposer.propose({}, "other networks", ways=ways) and dropped
        if event.dataflow is not None:
            return self._proposer.propose(placement, "a better plan", event.dataflow, event.free, ways)
        where = directory.where(directory.locations)
        # R4: the plan has sinks of subscribers at the client, which is no move
        still = directory.senders if directory.subscribers else {}
        moves = {name: host for name, host in placement.items() if where.get(name, host) != host and name not in still}
        if not moves:
            return SAME if ways is None else self._proposer.propose({}, "other networks", ways=ways)
        return self._proposer.propose(moves, "a better plan", ways=ways)

    def _probe(self, links: frozenset[Link]) -> Notes:
        pairs = self._history is not None  # a planner that looks ahead needs both directions
        return self._prober.measure(self._out.run, self._directory.reachable(), links, pairs=pairs)

    def _request_measurements(self, search: _Search) -> Notes:
        """Request the bandwidths and latencies that a planning waits for."""
        yield from self._probe(search.waiting)
        self._latency_prober.measure(self._out.run, self._directory.reachable(), search.unheard)

    def on_measured(self, note: LinkMeasured) -> None:
        """Add a measured bandwidth to the planning under way, and continue if it was the last missing measurement."""
        search = self._search
        if search is None or not search.waiting:
            return
        search.view[note.link] = note.estimate
        if note.link in search.waiting:
            search.waiting -= {note.link}
            self._go_on(search)

    def on_sounded(self, note: LatencyMeasured) -> None:
        """Add a measured latency to the planning under way, and continue if it was the last missing measurement."""
        search = self._search
        answered = set() if search is None else {note.link, Link(note.link.target, note.link.source)} & search.unheard
        if search is not None and answered:
            search.latencies |= dict.fromkeys(answered, note.latency)
            search.unheard -= answered
            self._go_on(search)

    def _go_on(self, search: _Search) -> None:
        if search.waits:
            self._wait()  # after one measurement, more may follow soon
        else:
            self._plan(search)

    def on_lost(self, note: HostLost) -> None:
        """Mark the awaited links of a lost host as unusable, and continue the planning if no measurement is missing."""
        search = self._search
        if search is None:
            return
        gone = {link for link in search.waiting if note.host in link[:2]}
        silent = {link for link in search.unheard if note.host in link}
        if not (gone or silent):
            return
        search.view |= dict.fromkeys(gone, LinkEstimate(0.0, count=0))
        search.latencies |= dict.fromkeys(silent, UNHEARD)
        search.waiting -= gone
        search.unheard -= silent
        if not search.waits:
            self._plan(search)

    def _give_up_waiting(self, search: _Search) -> Notes:
        """Request missing measurements again. After the last request, plan with assumed slow links (R3).

        A link in use counts with its last known estimate. A host that is too busy with partitions for a probe has just
        measured its link passively.
        """
        if not search.waits:
            return
        if search.tries < TRIES:
            search.tries += 1
            yield from self._request_measurements(search)
            self._wait()
            return
        slow_bps = too_slow_bps(self._out.now - search.asked_s)
        slow = LinkEstimate(slow_bps, count=0)
        in_use = self._in_use(self._directory.where(self._directory.locations))
        for link in search.waiting:
            latest = self._monitor.latest(link) if link in in_use else None
            search.view[link] = slow if latest is None else latest
            if self._history is not None and latest is None:
                self._in_vain[link] = _InVain(slow_bps, search.asked_s, self._out.now)
        search.latencies |= dict.fromkeys(search.unheard, UNHEARD)
        search.waiting = search.unheard = frozenset()
        self._plan(search)

    def _in_use(self, where: Placement) -> set[Link]:
        """Return the links that the dataflow uses with the placement ``where``."""
        nodes, table = self._tree.dataflow.nodes, self._directory.routes.table
        over = {(way.source, way.target): way for way in table}
        pairs = {(where[producer], where[node.name]) for node in nodes for producer in node.inputs}
        return {link for pair in pairs for link in (over[pair].links[0] if pair in over else (Link(*pair),))}

    def _record(self, search: _Search, event: e.PlanReady, dropped: str) -> None:
        now, here = self._out.now, self._directory.where(self._tree.dataflow.by_name)
        links = {
            ">".join(tuple(link)): [estimate.rate_bps, estimate.count, estimate.spread_bps, _age_s(estimate, now)]
            for link, estimate in sorted(search.view.items())
        }
        placement = {**here, **(event.placement or {})} if event.dataflow is None else event.placement
        detail = {
            "placement": placement,
            "decision": "stay" if dropped else "propose",
            **({"dropped": dropped} if dropped else {}),
            **({"failed": event.failed} if event.failed else {}),
            **({"differs": True} if placement != here else {}),
            "probed": len(search.asked),
            **({"sounded": search.sounded} if search.sounded else {}),
            "rounds": search.rounds,
            "links": links,
            **self._decisive(search, here, here if event.dataflow is not None else placement),
            **event.detail,
        }
        self._out.record("plan", duration_s=now - search.begun_s, detail=detail)

    def _decisive(self, search: _Search, here: Placement, there: Placement | None) -> dict[str, object]:
        """Return a field of the record: known latencies of links in use with the present placement or the plan."""
        known = {**self._gossip.latencies(), **search.latencies}
        both = {Link(b, a): latency for (a, b), latency in known.items()} | known
        links = sorted((self._in_use(here) | self._in_use(there or here)) & both.keys())
        figures = {f"{a}>{b}": [both[Link(a, b)].latency_s, both[Link(a, b)].count] for a, b in links}
        return {"latencies": figures} if figures else {}

    def on_changed_over(self, _: ChangedOver) -> Notes:
        """Begin the planning that was due while a proposal was under way (R2)."""
        if self._overdue:
            self._overdue = False
            yield from self.on_timer()

    def on_delivered(self, _: PartitionDelivered) -> None:
        """Record the time of a delivery. The intervals between deliveries limit the wait for links (R3)."""
        if self._delivered_s:
            self._delivered_s.append(self._out.now)

    HANDLERS = Handlers(
        messages={m.Impassable: on_impassable},
        events={e.PlanReady: on_planned},
        notes={
            PartitionDelivered: on_delivered,
            ChangedOver: on_changed_over,
            Started: on_started,
            HostLost: on_lost,
            LinkMeasured: on_measured,
            LatencyMeasured: on_sounded,
        },
        timers={Timer.PLAN: on_timer},
    )


def _age_s(estimate: LinkEstimate, now: float) -> float | None:
    return now - estimate.measured_at_s if estimate.count else None
