"""The embedder's side: ``Client(cluster).run(dataflow, placement=…)`` and the partitions it yields."""

from __future__ import annotations

import contextlib
import itertools
import math
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from thalweg.middleware.client.cluster import LocalCluster, fate_of
from thalweg.middleware.client.feeds import Channel, Feed, fill
from thalweg.middleware.client.hello import say_hello
from thalweg.middleware.client.leaving import keep_in_mind
from thalweg.middleware.client.replanning import MEASURED, Search, ask_hints
from thalweg.middleware.client.run import Run
from thalweg.middleware.client.stream import Home, Offered, Wanted
from thalweg.middleware.client.subscription import Subscription, read_ticket, refuse_own
from thalweg.middleware.core.monitoring.prober import BEFORE_RUNS
from thalweg.middleware.core.relocation.shape import MAX_NAME
from thalweg.middleware.core.relocation.sharing import join, shared
from thalweg.middleware.dataflow import FIXED, Dataflow, Placement, check_codes, check_placement, sinks_at
from thalweg.middleware.errors import (
    HostAbsentError,
    HostLostError,
    PlacementError,
    ProtocolError,
    RunError,
    UsageError,
    expect,
    nearest,
    shown,
    warn_dropped,
    words,
)
from thalweg.middleware.loading import DEFAULT_ALLOW, check_roots, reorderable
from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.network.place import Place, neighbours
from thalweg.middleware.network.view import Latency, Link, LinkEstimate, NetworkView, Pair
from thalweg.middleware.planning import (
    CostModel,
    CostParameters,
    Hints,
    Planner,
    ProbedPlan,
    Task,
    get_cost_model,
    get_planner,
    get_strategy,
    plan_with_probes,
)
from thalweg.middleware.planning.planners.planner import needs_of, needs_while
from thalweg.middleware.planning.registry import AGAIN
from thalweg.middleware.planning.usage.reuse import too_far
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import Adaptation, ByHosts, GlobalMoves
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.shell.descriptors import OF_A_PEER, OWN, check_free
from thalweg.middleware.shell.endpoints import listen_among
from thalweg.middleware.shell.security import Keys, check_open
from thalweg.middleware.shell.shell import Shell, ShellConfig

PROBE_S = 10.0  # wall-clock seconds without any news after which missing probes are asked for again
PROBE_TRIES = 3


Measured = TypeVar("Measured", LinkEstimate, Latency, Place)


class Client:
    """An application's own host in a cluster: the sink is here, and operators may be.

    Args:
        hosts: a ``LocalCluster``, or for each host's name the control endpoint it listens on.
        name: this host's name in placements; by default that of its certificate, or ``client``.
        listen: where the other hosts reach this one; by default beside them, on loopback, or at this machine's address
            on the way to them.
        allow: packages, beside Thalweg's own, whose code dataflows may name.
        data_roots: folders whose files sources at this client may read.
        keys: this client's own secret certificate (``thalweg keys new``); needed over TCP unless ``insecure``.
        members: the folder of public certificates; by default ``members`` beside ``keys``.
        limits: how soon demands are repeated and silent hosts given up, in wall-clock seconds.

    Raises HostAbsentError when a host does not answer within ``HELLO_S``, UsageError for names that do not match,
    CapabilityError where this process may open too few files.
    """

    def __init__(
        self,
        hosts: LocalCluster | Mapping[str, str],
        *,
        name: str | None = None,
        listen: str | None = None,
        advertise: str | None = None,
        allow: Collection[str] = (),
        data_roots: Collection[str | Path] = (),
        keys: Path | None = None,
        members: Path | None = None,
        insecure: bool = False,
        time_scale: float | None = None,
        records: Path | str | None = None,
        limits: CoreConfig | None = None,
    ) -> None:
        if not isinstance(hosts, LocalCluster):
            expect(hosts, Mapping, "the hosts are a LocalCluster, or a mapping of names to endpoints")
            words((*hosts, *hosts.values()), "names and endpoints of hosts are texts")
        expect(CoreConfig() if limits is None else limits, CoreConfig, "limits of a client are a CoreConfig")
        self._allow = (*DEFAULT_ALLOW, *words(allow, "packages to allow are a collection of names"))
        addresses = hosts.addresses if isinstance(hosts, LocalCluster) else hosts
        ended = hosts.poll() if isinstance(hosts, LocalCluster) else {}
        scale = time_scale
        if scale is None:
            scale = hosts.time_scale if isinstance(hosts, LocalCluster) else 1.0
        if keys is None and isinstance(hosts, LocalCluster):
            keys, insecure = hosts.certificate(name or "client"), insecure or hosts.insecure
        self._keys = None if keys is None else Keys.load(Path(keys), members, "client")
        name = name or ("client" if self._keys is None else self._keys.own.name)
        if name in addresses:
            raise UsageError(f"the client cannot be called {name!r}: a host has that name")
        listen = listen_among(addresses.values(), listen, advertise)
        check_open(self._keys, listen, insecure=insecure)
        if ended and len(ended) == len(addresses):
            host, status = next(iter(ended.items()))
            raise HostAbsentError(f"no host of the cluster is left: {host!r} {fate_of(status)}", host=host)
        check_free(f"a client of a cluster of {len(addresses)}", OWN + OF_A_PEER * len(addresses))
        self._peers = say_hello({host: addresses[host] for host in addresses if host not in ended}, self._keys)
        self._gone: dict[str, str] = {}  # hosts that have ended, and how
        self._closing = ""  # why nothing can be begun any more
        self._runs: weakref.WeakValueDictionary[str, Run[Any]] = weakref.WeakValueDictionary()  # who drops one ends it
        self._subscriptions: weakref.WeakValueDictionary[int, Subscription[Any]] = weakref.WeakValueDictionary()
        self._feeds: set[Channel] = set()  # which may be closed, and not yet taken from
        self._news = threading.Condition()  # of what is reported, and of what is forgotten
        self._open: set[str] = set()
        self._reports: dict[type[Any], dict[Link, Any]] = {LinkEstimate: {}, Latency: {}, Place: {}}
        self._figures: dict[str, HostFigures] = {}
        config = ShellConfig(
            name=name,
            listen=listen,
            advertise=advertise,
            time_scale=scale,
            allow=self._allow,
            data_roots=check_roots(data_roots),
            records=None if records is None else str(records),
            insecure=insecure,
            core=limits or CoreConfig(),
        )
        self.shell = Shell(config, _weak(self._on_application), self._keys)
        self._peers[name] = self.shell.me
        self._numbers = itertools.count()
        keep_in_mind(self)
        if isinstance(hosts, LocalCluster):
            hosts.tell_ends(self.lost)

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts an operator can be placed on, without those that are lost; this client is the last."""
        return tuple(host for host in self._peers if host not in self._gone)

    @property
    def name(self) -> str:
        return self.shell.config.name

    def plan(
        self,
        dataflow: Dataflow,
        planner: str | Planner = "one-shot",
        *,
        model: str | CostModel = "critical-path",
        costs: CostParameters | None = None,
        hints: Hints | None = None,
        view: NetworkView | None = None,
    ) -> ProbedPlan:
        """Compute a placement for ``dataflow`` on this cluster, probing the links that the planner asks for.

        Args:
            planner, model: registered names, import paths, or objects of your own.
            costs: what resources cost; by default only the network does, measured as it is.
            hints: sizes and times of the nodes; by default the nodes' own code is asked.
            view: what is known already; links it holds are not probed.

        Raises UsageError for unknown names, HostAbsentError when a host that the dataflow needs is lost, HostLostError
        for a link that cannot be measured, RunError when the client is closed.
        """
        dataflow = self._begin(dataflow)
        planner = get_planner(planner) if isinstance(planner, str) else planner
        task = self._task(dataflow, hints, costs).but(view=view or NetworkView({}))
        if "hosts" in needs_of(planner):
            self.latencies([(self.name, host) for host in self.hosts])
            own = {self.name: self.shell.config.core.capacity}
            task = task.but(hints=task.hints.measured({}, {**self._figures, **own}))
        return plan_with_probes(
            planner,
            task,
            get_cost_model(model) if isinstance(model, str) else model,
            self.probe,
            sound=self.latencies,
            find=self._find,
        )

    def _begin(self, dataflow: Dataflow) -> Dataflow:
        """Something is to be done with a dataflow: what, if it can be."""
        self._check_open()
        expect(dataflow, Dataflow, "what runs is a Dataflow")
        check_codes(dataflow)
        dataflow.validate(self._peers.keys() | self._gone)
        self._check_there({node.name: node.pinned for node in dataflow.nodes if node.pinned})
        return sinks_at(dataflow, self.name)

    def _begin_here(self, dataflow: Dataflow) -> Dataflow:
        """The same of one whose sinks are to be here."""
        dataflow = self._begin(dataflow)
        for sink in dataflow.sinks:
            if dataflow.by_name[sink].pinned != self.name:
                raise UsageError(f"sink {sink!r} is pinned to another host than this client {self.name!r}")
        return dataflow

    def _placed(self, dataflow: Dataflow, placement: Mapping[str, str]) -> Placement:
        """A placement, completed, where it can be."""
        for sink in dataflow.sinks:
            if (where := placement.get(sink, self.name)) != self.name:
                raise PlacementError(f"the sink {sink!r} is placed on {where!r}; it is at the client")
        sinks = dict.fromkeys(dataflow.sinks, self.name)
        full = check_placement(dataflow, sinks | dict(placement), self._peers.keys() | self._gone)
        self._check_there(full)
        return full

    def _check_open(self) -> None:
        if self._closing:
            raise RunError(self._closing, host=self.name)

    def _check_there(self, placement: Mapping[str, str]) -> None:
        for node, host in placement.items():
            if how := self._gone.get(host):
                raise HostAbsentError(f"host {host!r}, where {node!r} is to be, {how}", node=node, host=host)

    def _task(self, dataflow: Dataflow, hints: Hints | None, costs: CostParameters | None) -> Task:
        """What is to be planned, before anything is known of the network."""
        known = hints or ask_hints(dataflow, self._allow)
        return Task((dataflow,), self.hosts, NetworkView({}), known, costs or MEASURED)

    def run(
        self,
        dataflow: Dataflow,
        placement: Mapping[str, str] | str = "thalweg",
        *,
        adaptation: Adaptation | None = None,
        planner: Planner = AGAIN,
        partitions: int | None = None,
        label: str = "",
        model: str | CostModel = "critical-path",
        costs: CostParameters | None = None,
        hints: Hints | None = None,
        epoch_s: float | None = None,
        known: Mapping[Link, LinkEstimate] | None = None,
        call_timeout_s: float | None = None,
        strict: bool = False,
        nothing: bool = False,
        subscribers: Collection[str] = (),
    ) -> Run[Any]:
        """Start ``dataflow`` and return its partitions as an iterator, blocking or asynchronous.

        Args:
            dataflow: the graph; its sinks must be pinned to this client (or not at all).
            placement: a host for every node that is not pinned, or the name of what is to compute it: a planner, or
                one that also moves operators while the run goes on, ``global``, ``local`` or ``thalweg``. Where
                operators are ``reorderable``, ``thalweg`` may run another tree than ``dataflow``, and change it
                between two partitions: ``Run.dataflow``.
            adaptation: how operators move while the run goes on (GlobalMoves, LocalMoves, SpaceMoves); None: as the
                name of the placement says, or not unless ``Run.move`` is called.
            planner: what plans while data flows under GlobalMoves; default: one-shot from the present placement.
            partitions: how many every sink is to deliver; None: until a source ends.
            strict: that sources end after different numbers of partitions is a RunError, after the last that all have.
            nothing: deliver ``NOTHING`` for indices without a value, which are skipped otherwise.
            subscribers: names of other clients that may :meth:`subscribe` to its nodes; see ``Run.allow``.
            label: stands in the run's records.
            model, costs, hints: what planning goes by, at the start and later, as for :meth:`plan`.
            epoch_s: the Unix time from which the run's records count; default: now.
            known: what links carry as the run begins, for placements that go on by what was measured. They begin anew
                then, as when an emulator starts its traces again: what hosts have measured before is forgotten, also
                by other runs on them.
                Default: what planning, and whatever ran before, has measured, as old as it is.
            call_timeout_s: how many wall-clock seconds a call of an operator's or source's own code may take, or its
                loading; one that takes longer ends the run. Default: any.

        Raises DataflowError, PlacementError, UsageError for what no message can carry, HostAbsentError when a host that
        the run needs is lost, RunError when the client is closed; while iterating RunError, which names the node or
        host at fault.
        """
        dataflow = self._begin_here(dataflow)
        expect(label, str, "the label of a run is a text")
        allowed = words(subscribers, "subscribers are a collection of names of clients")
        expect(adaptation, Adaptation | None, "an adaptation is GlobalMoves, LocalMoves or SpaceMoves")
        expect(1 if partitions is None else partitions, int, "partitions are a whole number")
        if partitions is not None and partitions < 1:
            raise UsageError(f"partitions must be at least 1, not {partitions}")
        expect(1.0 if call_timeout_s is None else call_timeout_s, int | float, "call_timeout_s is a number of seconds")
        if call_timeout_s is not None and not 0 < call_timeout_s < math.inf:
            raise UsageError(f"call_timeout_s is {call_timeout_s!r}; give seconds above 0, or None for no limit")
        placement = _placement(placement)
        measured: Mapping[Link, LinkEstimate] = {} if known is None else known
        name = label
        if isinstance(placement, str):
            name = label or placement
            strategy = get_strategy(placement)
            if strategy.driver is not None:
                raise UsageError(f"{placement!r} is moved from outside, by thalweg run; an application calls Run.move")
            if adaptation is None:
                adaptation, planner = strategy.adaptation, strategy.again
            plan = self.plan(dataflow, strategy.initial, model=model, costs=costs, hints=hints)
            result = plan.result
            if known is None:
                measured = plan.view.estimates
            if result.dataflow != dataflow:  # the planner chose the tree as well
                dataflow, hints = result.dataflow.validate(self._peers), result.hints
            placement = result.placement
        needs = needs_while(adaptation, planner)
        full = self._placed(dataflow, placement)
        run_id = f"{secrets.token_hex(6)}-{next(self._numbers)}"
        install = m.Install(
            run=run_id,
            dataflow=dataflow,
            locations=tuple(m.Location(node, host, 1) for node, host in full.items()),
            peers=tuple(self._peers[host] for host in self.hosts),
            client=self.name,
            partitions=partitions,
            label=label,
            epoch_s=time.time() if epoch_s is None else epoch_s,
            moves=adaptation if isinstance(adaptation, ByHosts) else None,
            news=needs or isinstance(adaptation, Adaptation),
            afresh=known is not None,
            call_timeout_s=call_timeout_s,
        )
        _check_told(install)
        search = None
        if isinstance(adaptation, GlobalMoves):
            search = Search(
                self._task(dataflow, hints, costs),
                get_cost_model(model) if isinstance(model, str) else model,
                adaptation,
                planner,
                name or "global",
            )
        run: Run[Any] = Run(self._home(), run_id, full, dataflow, search, strict=strict, nothing=nothing)
        with self._news:
            self._check_open()
            self._runs[run_id] = run
            self._open.add(run_id)
        free = FIXED
        if isinstance(adaptation, GlobalMoves):
            free = reorderable((dataflow.by_name[name].code for name in dataflow.operators), self._allow)
        self.shell.tell(e.RunRequested(install, adaptation, free.codes, tuple(measured.items()), free.merging))
        if allowed:
            run.allow(*allowed)
        for host, how in list(self._gone.items()):  # meanwhile, perhaps
            self.shell.tell(e.PeerLost(run_id, host, how))
        return run

    def _home(self) -> Home:
        tell, me = self.shell.tell, self.shell.me
        return Home(self.name, lambda: self.hosts, self._allow, tell, self._closed, self._prepare, me)

    def subscribe(
        self, run: Run[Any] | str, node: str, *, strict: bool = False, nothing: bool = False
    ) -> Subscription[Any]:
        """The partitions of one node of another client's run, as an iterator, blocking or asynchronous.

        Args:
            run: what that client has as ``Run.ticket``, or the run itself where that client is in this process.
            node: the name of one of its nodes; of a sink all that it takes.
            strict, nothing: as for :meth:`run`.

        They begin with a partition on which the run's hosts agree (``first_index``), and go straight from the node's
        host to this client, each once and in order. One that nobody takes from holds up the run.

        Waits until the run's client has answered. Raises HostAbsentError when it does not, UsageError for what is no
        ticket, and a run of this client's own; while iterating RunError, where the run is over, has no such node, or
        its client does not let this one subscribe, or any more.
        """
        self._check_open()
        ticket = read_ticket(run.ticket if isinstance(run, Run) else run)
        expect(node, str, "a node is named by a text")
        if not 0 < len(node) <= MAX_NAME:
            raise UsageError(f"a node's name has 1 to {MAX_NAME} characters, and {shown(node)} has {len(node)}")
        if ticket.owner.name == self.name:
            refuse_own(self.name)
        try:
            say_hello({ticket.owner.name: ticket.owner.control}, self._keys)
        except HostAbsentError as error:
            told = f"run {ticket.run} cannot be subscribed to, as its client is not there: {error}"
            raise HostAbsentError(told, host=ticket.owner.name) from None
        subscription: Subscription[Any] = Subscription(self._home(), ticket, node, strict=strict, nothing=nothing)
        with self._news:
            self._check_open()
            self._subscriptions[subscription.number] = subscription
            self._open.add(ticket.run)
        subscription.begin(ticket.owner)
        return subscription

    def _prepare(self, offered: Offered, tree: tuple[Dataflow, Placement]) -> Wanted:
        """A query that is to begin in a run that is ``tree``: what it does not share is placed."""
        dataflow, hints = self._begin_here(offered.dataflow), offered.hints
        present, where = tree
        there = {name: where[each] for name, each in shared(present, dataflow).items()}
        apart: dict[str, float] = {}
        expect(0 if offered.radius_s is None else offered.radius_s, int | float, "radius_s is a number of seconds")
        if offered.radius_s is not None:
            hints = hints or ask_hints(dataflow, self._allow)
            apart = too_far(self._task(dataflow, hints, None), there, self.coordinates(), offered.radius_s)
            there = {name: where[each] for name, each in shared(present, dataflow, apart).items()}
        given = _placement(offered.placement)
        if isinstance(given, str):
            strategy = get_strategy(given)
            if strategy.driver is not None or strategy.adaptation is not None:
                raise UsageError(
                    f"{given!r} moves operators while a run goes on, which is for a run to say as it begins, for all of"
                    " its queries; attach one with a planner's name, as 'one-shot', or a mapping"
                )
        if offered.hints is None and set(there) >= {*dataflow.operators}:
            given = {} if isinstance(given, str) else given
        elif isinstance(given, str):
            hints = hints or ask_hints(dataflow, self._allow)
            still = [msgspec.structs.replace(node, pinned=there.get(node.name, node.pinned)) for node in dataflow.nodes]
            plan = self.plan(Dataflow(tuple(still)), strategy.initial, hints=hints).result
            if [node.inputs for node in plan.dataflow.nodes] != [node.inputs for node in still]:
                raise UsageError(f"{given!r} chooses the tree as well, which a query cannot; attach it with a mapping")
            given = plan.placement
        full = self._placed(dataflow, {**given, **there})
        grafts = join(present, dataflow, full, 0, (), apart).grafts
        _check_told(m.Propose("run", 1, (), m.Shape(grafts, ())))
        return Wanted(dataflow, full, hints, apart)

    def push(self, values: Any = None, *, name: str = "feed", ahead: int = 8) -> Feed:
        """A source of what this process pushes: pin its ``code`` to this client, ``{client.name: feed.code}``.

        Args:
            values: an iterable, an asynchronous one (where an event loop runs), or a ``queue.Queue`` that ends with
                None, to be pushed as there is room; None: the application calls ``put`` and ``close`` itself.
            name: stands in errors. ahead: how many values wait at most; who pushes more waits.

        Raises UsageError for something else than that.
        """
        feed = Feed(name, ahead)
        self._feeds = {each for each in self._feeds if not each.over} | {feed.channel}
        if values is not None:
            fill(feed, values)
        return feed

    def probe(self, links: Iterable[Pair]) -> dict[Link, LinkEstimate]:
        """Measure the bandwidth of these directed links (a 16 KB round trip per pair of hosts).

        Returns estimates in bit/s of emulated time, also of the opposite directions, which come for free.
        Raises UsageError for an unknown host, HostLostError naming a link that could not be measured, RunError when the
        client is closed; all of them also while it waits.
        """
        return self._measure(links, LinkEstimate)

    def latencies(self, links: Iterable[Pair]) -> dict[Link, Latency]:
        """How long empty messages take over these links, one way: half of the shortest of three round trips or more.

        Returns seconds of emulated time, with spread and time; of a pair of hosts one measurement stands for both
        directions. Raises as :meth:`probe`.
        """
        return self._measure(links, Latency)

    def coordinates(self, hosts: Iterable[str] | None = None) -> dict[str, Place]:
        """Where these hosts are in a space in which distances are about latencies; by default all of this cluster.

        Each measures to some others (``network.place.neighbours``), all at the same time, unless it has lately.
        Raises as :meth:`probe`.
        """
        names = tuple(self.hosts if hosts is None else words(hosts, "hosts are names"))
        return self._find([Link(host, other) for host in names for other in neighbours(host, self.hosts)])

    def _find(self, links: Iterable[Pair]) -> dict[str, Place]:
        """Have the hosts at the beginning of these links find where they are, by measuring to their ends."""
        return {link.source: place for link, place in self._measure(links, Place).items()}

    def _measure(self, links: Iterable[Pair], kind: type[Measured]) -> dict[Link, Measured]:
        """Have links measured."""
        reports: dict[Link, Measured] = self._reports[kind]
        pairs = [words(link, "a link is a pair of hosts") for link in links]
        if odd := next((pair for pair in pairs if len(pair) != 2), None):
            raise UsageError(f"a link is a pair of hosts, not {shown(odd)}")
        asked = wanted = {Link(a, b) for a, b in pairs if a != b}
        if unknown := sorted({host for link in wanted for host in link} - self._peers.keys() - self._gone.keys()):
            raise UsageError(f"there is no host {unknown[0]!r}; {nearest(unknown[0], self._peers)}")

        def vain() -> bool:
            return bool(self._closing) or any(host in self._gone for link in wanted for host in link)

        both = wanted | {Link(b, a) for a, b in wanted}
        if kind is Latency:  # one direction is as good as the other
            asked = wanted = {link for link in wanted if link.source < link.target or Link(*link[::-1]) not in wanted}
        elif kind is Place:
            both = wanted = {Link(link.source, link.source) for link in wanted}
        with self._news:
            for link in wanted if kind is LinkEstimate else both:
                reports.pop(link, None)
            for _ in range(PROBE_TRIES):
                if not vain():
                    still = {link for link in asked if not {link, Link(link.source, link.source)} & reports.keys()}
                    self._ask_probes(still, latency=kind is Latency, coordinates=kind is Place)
                known = -1
                while known < len(reports):
                    known = len(reports)
                    if self._news.wait_for(lambda: vain() or wanted <= reports.keys(), PROBE_S):
                        self._check_open()
                        for host in sorted({host for link in wanted for host in link} & self._gone.keys()):
                            how = self._gone[host]
                            raise HostLostError(f"no link of host {host!r} can be measured: it {how}", host=host)
                        return {link: reports[link] for link in both if link in reports}
            source, target = min(wanted - reports.keys())
        if kind is Place:
            raise HostLostError(f"host {source!r} did not find its coordinates; is it still there?")
        raise HostLostError(f"the link from {source!r} to {target!r} could not be measured; is {source!r} still there?")

    def _ask_probes(self, links: set[Link], *, latency: bool, coordinates: bool) -> None:
        by_source: dict[str, list[m.Peer]] = {}
        for a, b in sorted(links):
            if coordinates or not (b in by_source and self._peers[a] in by_source[b]):  # the echo measures it
                by_source.setdefault(a, []).append(self._peers[b])
        for source, targets in by_source.items():
            there = tuple(targets), self.shell.me
            asked = e.ProbesRequested(BEFORE_RUNS, self._peers[source], *there, latency, coordinates)
            self.shell.tell(asked)

    def lost(self, host: str, how: str = "went away") -> None:
        """Tell the client that a host is gone for good: runs that need it end at once, and later ones do without it.

        A client of a ``LocalCluster`` is told by that. ``how`` goes on a sentence that begins with the host's name.
        """
        with self._news:
            self._gone.setdefault(host, how)
            self._news.notify_all()
        for run_id in list(self._runs):
            self.shell.tell(e.PeerLost(run_id, host, self._gone[host]))

    def close(self) -> None:
        """End all runs, and what waits in ``plan`` and ``probe``, and leave the cluster; idempotent."""
        self._close_to(f"the client {self.name!r} is closed; make another")
        try:
            for run in list(self._runs.values()):
                run.close_all()
            for each in list(self._subscriptions.values()):
                each.close()
            for channel in self._feeds:
                channel.abandon(self._closing)
            self._wait_for_ends(1.5)
            for run_id in list(self._open):  # which others still take the rest of
                self.shell.tell(e.RunAbandoned(run_id))
            self._wait_for_ends(0.5)
        finally:  # also where somebody is tired of waiting
            self.shell.close()

    def _wait_for_ends(self, wall_s: float) -> None:
        with self._news:
            self._news.wait_for(lambda: not self._open or not self.shell.alive, wall_s)

    def forked(self) -> None:
        self._news, self._open = threading.Condition(), set()  # what other threads held there, nobody lets go of here
        self._closing = f"the client {self.name!r} is that of the process that was forked; make one here"
        self.shell.forked()
        for each in (*self._runs.values(), *self._subscriptions.values()):
            each.forked(self._closing)
        for channel in self._feeds:
            channel.news, channel.unwanted = threading.Condition(), self._closing
            channel.awaiting.clear()

    def _close_to(self, why: str) -> None:
        with self._news:
            self._closing = self._closing or why
            self._news.notify_all()

    def __del__(self) -> None:
        shell = getattr(self, "shell", None)
        if shell is not None and shell.alive and not sys.is_finalizing():
            with contextlib.suppress(RuntimeError):  # this process may have no more threads
                threading.Thread(target=shell.close, daemon=True).start()  # this may be one of the shell's own
            warn_dropped(f"the client {self.name!r}", self)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- in the I/O thread ------------------------------------------------------------------------------

    def _on_application(self, command: e.Command) -> None:
        match command:
            case e.Report(source, target) if not {source, target} <= self._peers.keys():
                pass  # of hosts that nobody asked for
            case e.Report(source, target, estimate):
                with self._news:
                    self._reports[type(estimate)][Link(source, target)] = estimate
                    if command.host is not None:
                        self._figures[target] = command.host
                    self._news.notify_all()
            case e.Forgotten(run):
                with self._news:
                    self._open.discard(run)
                    self._news.notify_all()
            case e.Fail("", reason):
                self._close_to(reason)
                for each in (*self._runs.values(), *self._subscriptions.values()):
                    each.take(e.Fail(each.id, reason, host=self.name))
            case (
                e.Ready(run)
                | e.Deliver(run)
                | e.Fail(run)
                | e.Placed(run)
                | e.TreeChanged(run)
                | e.Attached(run)
                | e.Plan(run)
            ):
                if (concerned := self._runs.get(run)) is not None:
                    concerned.take(command)
                for subscription in [each for each in self._subscriptions.values() if each.id == run]:
                    subscription.take(command)

    def _closed(self, run: str) -> None:
        self._runs.pop(run, None)
        self.shell.tell(e.RunAbandoned(run))


def _placement(placement: Mapping[str, str] | str) -> Mapping[str, str] | str:
    if not isinstance(placement, str):
        expect(placement, Mapping, "a placement is a mapping of nodes to hosts, or the name of what computes one")
        words((*placement, *placement.values()), "a placement maps names of nodes to names of hosts")
    return placement


def _check_told(message: m.Message) -> None:
    """What a host would refuse is refused here."""
    try:
        frames.decode_control(frames.encode(message))
    except (ProtocolError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"the run cannot be told to the hosts: {error}") from None


def _weak(method: Callable[[e.Command], None]) -> Callable[[e.Command], None]:
    """A client's method for its shell, whose threads do not keep the client: one that is dropped is closed."""
    reference = weakref.WeakMethod(method)

    def call(command: e.Command) -> None:
        if (method := reference()) is not None:
            method(command)

    return call
