"""The embedder's side: ``Client(cluster).run(dataflow, placement=…)`` and the partitions it yields."""

from __future__ import annotations

import contextlib
import itertools
import logging
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
from thalweg.middleware.client.journal import Journal
from thalweg.middleware.client.leaving import keep_in_mind
from thalweg.middleware.client.replanning import MEASURED, Search, ask_hints, first_ways
from thalweg.middleware.client.run import Run
from thalweg.middleware.client.stream import Home, Offered, Wanted
from thalweg.middleware.client.subscription import Subscription, read_ticket, refuse_own
from thalweg.middleware.core.monitoring.prober import BEFORE_RUNS
from thalweg.middleware.core.relocation.recovery import resumed
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
from thalweg.middleware.network.networks import Network, check_networks, where_joined
from thalweg.middleware.network.place import Place, neighbours
from thalweg.middleware.network.view import NET, Latency, Link, LinkEstimate, NetworkView, Pair
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
from thalweg.middleware.protocol.generations import base_of
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
        hosts: a ``LocalCluster``, or for each host's name the control endpoint it listens on. One that is down is no
            error: it takes no part until :meth:`add_host`.
        name: this host's name in placements; by default that of its certificate, or ``client``.
        listen: where the other hosts reach this one; by default beside them, on loopback, or at this machine's address
            on the way to them.
        allow: packages, beside Thalweg's own, whose code dataflows may name.
        data_roots: folders whose files sources at this client may read.
        keys: this client's own secret certificate (``thalweg keys new``); needed over TCP unless ``insecure``.
        members: the folder of public certificates; by default ``members`` beside ``keys``.
        joins: hosts that say that they are there (``thalweg host --join``) take part, as by :meth:`add_host`.
        journal: a folder in which this client writes down what another needs to go on with its runs (:meth:`resume`),
            which all outlive their hosts then.
        limits: how soon demands are repeated and silent hosts given up, in wall-clock seconds.
        networks: further networks that this machine is joined to, by name, and where the client listens for bulk in
            each (``tcp://ADDRESS:*``); those of a ``LocalCluster`` by default.

    Raises HostAbsentError when no host answers within ``HELLO_S``, UsageError for names that do not match,
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
        joins: bool = False,
        journal: Path | str | None = None,
        time_scale: float | None = None,
        records: Path | str | None = None,
        limits: CoreConfig | None = None,
        networks: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(hosts, LocalCluster):
            expect(hosts, Mapping, "the hosts are a LocalCluster, or a mapping of names to endpoints")
            words((*hosts, *hosts.values()), "names and endpoints of hosts are texts")
        expect(CoreConfig() if limits is None else limits, CoreConfig, "limits of a client are a CoreConfig")
        self._allow = (*DEFAULT_ALLOW, *words(allow, "packages to allow are a collection of names"))
        self._addresses = addresses = dict(hosts.addresses if isinstance(hosts, LocalCluster) else hosts)
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
        if networks is None:
            networks = hosts.ends_of("client") if isinstance(hosts, LocalCluster) else {}
        expect(networks, Mapping, "networks are a mapping of names to endpoints")
        words((*networks, *networks.values()), "names of networks and endpoints are texts")
        if ended and len(ended) == len(addresses):
            host, status = next(iter(ended.items()))
            raise HostAbsentError(f"no host of the cluster is left: {host!r} {fate_of(status)}", host=host)
        check_free(f"a client of a cluster of {len(addresses)}", OWN + OF_A_PEER * len(addresses))
        self._gone: dict[str, str] = {}  # hosts that have ended, or are not there, and how
        there = {host: addresses[host] for host in addresses if host not in ended}
        self._peers = say_hello(there, self._keys, down=self._gone)
        self._journal = None if journal is None else Journal(Path(journal))
        self._joins, self._joining = joins, set[str]()  # names of hosts that are being added
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
            networks=dict(networks),
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

    @property
    def endpoint(self) -> str:
        """Where hosts reach this client: ``thalweg host --join ENDPOINT``."""
        return self.shell.me.control

    def plan(
        self,
        dataflow: Dataflow,
        planner: str | Planner = "one-shot",
        *,
        model: str | CostModel = "critical-path",
        costs: CostParameters | None = None,
        hints: Hints | None = None,
        view: NetworkView | None = None,
        networks: Mapping[str, Network] | None = None,
    ) -> ProbedPlan:
        """Compute a placement for ``dataflow`` on this cluster, probing the links that the planner asks for.

        Args:
            planner, model: registered names, import paths, or objects of your own.
            costs: what resources cost; by default only the network does, measured as it is.
            hints: sizes and times of the nodes; by default the nodes' own code is asked.
            view: what is known already; links it holds are not probed.
            networks: as for :meth:`run`; the plan's ``routes`` then say over which network links go.

        Raises UsageError for unknown names, HostAbsentError when a host that the dataflow needs is lost, HostLostError
        for a link that cannot be measured, RunError when the client is closed.
        """
        task = self._task(self._begin(dataflow), hints, costs).but(view=view or NetworkView({}))
        return self._plan(planner, task.but(networks=self._joined(networks, None)), model)

    def _plan(self, planner: str | Planner, task: Task, model: str | CostModel) -> ProbedPlan:
        planner = get_planner(planner) if isinstance(planner, str) else planner
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
        failover: m.Failover | None = None,
        start: int = 0,
        networks: Mapping[str, Network] | None = None,
        wanted_hz: float | None = None,
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
            networks: further networks that its partitions may take, and what these, and ``net``, which all share, cost.
                Between two hosts they take the cheapest that keeps the wanted rate, otherwise the fastest; while the
                run goes on, under GlobalMoves, they change networks as links do. A link that fails is left for another.
            wanted_hz: partitions a second that are wanted; default: as many as sources give, and links carry.
            model, costs, hints: what planning goes by, at the start and later, as for :meth:`plan`.
            epoch_s: the Unix time from which the run's records count; default: now.
            known: what links carry as the run begins, for placements that go on by what was measured. They begin anew
                then, as when an emulator starts its traces again: what hosts have measured before is forgotten, also
                by other runs on them.
                Default: what planning, and whatever ran before, has measured, as old as it is.
            call_timeout_s: how many wall-clock seconds a call of an operator's or source's own code may take, or its
                loading; one that takes longer ends the run. Default: any.
            failover: how the run outlives its hosts: where one is lost that it needs, it goes on without, each
                partition once, from replicas of operators' states on others. None: the run ends.
            start: the partition to begin with, as if the sources had none before; sets ``failover``, too.

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
        asked, networks = networks or {}, self._joined(networks, wanted_hz)
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
            task = self._task(self._begin(dataflow), hints, costs)
            plan = self._plan(strategy.initial, task.but(networks=networks, wanted_hz=wanted_hz), model)
            result = plan.result
            if known is None:
                measured = plan.view.estimates
            if result.dataflow != dataflow:  # the planner chose the tree as well
                dataflow, hints = result.dataflow.validate(self._peers), result.hints
            placement = result.placement
        needs = needs_while(adaptation, planner)
        full = self._placed(dataflow, placement)
        ways: tuple[m.Way, ...] = ()
        if networks or isinstance(adaptation, GlobalMoves):
            task = self._task(dataflow, hints, costs).but(networks=networks, wanted_hz=wanted_hz)
        if networks:
            ways, view = first_ways(task.but(view=NetworkView(measured)), full, self.probe)
            measured = view.estimates if known is None else measured
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
        _check_start(start)
        if failover is not None or self._journal is not None or start:
            install = m.Lasting.of(install, self._checked(failover or m.Failover()))
            if start:
                first = tuple([m.Start(node.name, start) for node in dataflow.nodes])
                most = None if partitions is None else start + partitions
                install = msgspec.structs.replace(install, starts=first, partitions=most)
        _check_told(install)
        search = None
        if isinstance(adaptation, GlobalMoves):
            search = Search(
                task,
                get_cost_model(model) if isinstance(model, str) else model,
                adaptation,
                planner,
                name or "global",
            )
        run: Run[Any] = Run(self._home(), run_id, full, dataflow, search, strict=strict, nothing=nothing)
        run.ways, run.networks = ways, asked
        with self._news:
            self._check_open()
            self._runs[run_id] = run
            self._open.add(run_id)
        free = FIXED
        if isinstance(adaptation, GlobalMoves):
            free = reorderable((dataflow.by_name[name].code for name in dataflow.operators), self._allow)
        run._first, run._journal = start, self._journal
        asks = e.RunRequested if self._journal is None else e.KeptRunRequested
        self.shell.tell(asks(install, adaptation, free.codes, tuple(measured.items()), free.merging))
        if allowed:
            run.allow(*allowed)
        for host, how in list(self._gone.items()):  # meanwhile, perhaps
            self.shell.tell(e.PeerLost(run_id, host, how))
        return run

    def resume(
        self, run: str | None = None, *, start: int | None = None, strict: bool = False, nothing: bool = False
    ) -> Run[Any]:
        """Go on with a run that a client of this name has begun, and written down in this client's journal.

        It begins with the first partition that the application has not had (``Run.commit``), from replicas of
        operators' states where hosts still have them: they keep the run for as long as a client may be silent
        (``lease_s``). Later all is made again from the first partition on, and what the application has had is not
        handed out.

        Args:
            run: its ``Run.id``; None: the only one there is that is not over.
            start: the partition to begin with, where the application knows itself what it has had.
            strict, nothing: as for :meth:`run`.

        Operators stay where they are, unless hosts decide (LocalMoves, SpaceMoves) or ``Run.move`` is called; queries
        that were attached are not. Raises UsageError for a run that is over, or not in the journal, and without one.
        """
        self._check_open()
        if self._journal is None:
            raise UsageError("a run is resumed from a journal; give the client that of the one before: journal=DIR")
        known = self._journal.runs()
        folder, left = self._journal.folder, [name for name, each in known.items() if not each.over]
        if run is None and len(left) != 1:
            raise UsageError(
                f"the journal {folder} has {len(left)} runs that are not over; say which: {', '.join(left)}"
            )
        run_id = left[0] if run is None else run
        if run_id not in known:
            raise UsageError(f"the journal {folder} has no run {shown(run_id)}; {nearest(str(run_id), known)}")
        found = known[run_id]
        kept, flow = found.kept, found.kept.install.dataflow
        here = self._runs.get(run_id)
        if here is not None and not here._over:
            raise UsageError(f"run {run_id} goes on in this client; take its partitions there")
        if start is not None:
            _check_start(start)
        if kept.install.client != self.name:
            raise UsageError(
                f"run {run_id} is of client {kept.install.client!r}, and this is {self.name!r}; take its name"
            )
        after = {sink: found.next_of(sink) if start is None else start for sink in flow.sinks}
        most = kept.install.partitions
        if found.over or (most is not None and min(after.values()) >= most):
            raise UsageError(f"run {run_id} is over: nothing of it is left to be had")
        if found.said:
            logging.getLogger("thalweg").warning("client %r: %s", self.name, found.said)
        install = resumed(kept, after, {host: self._peers[host] for host in self.hosts}, self.name)
        where = {entry.node: entry.host for entry in install.locations}
        again: Run[Any] = Run(self._home(), run_id, where, flow, None, strict=strict, nothing=nothing)
        again._first, again._journal = min(after.values()), self._journal
        with self._news:
            self._check_open()
            self._runs[run_id] = again
            self._open.add(run_id)
        self.shell.tell(e.KeptRunRequested(install, None, kept=kept))
        return again

    def _checked(self, failover: m.Failover) -> m.Failover:
        """Replicas that there can be."""
        expect(failover, m.Failover, "how a run outlives its hosts is a Failover")
        known = self._peers.keys() | self._gone
        if unknown := next((host for host in failover.domains if host not in known), None):
            raise UsageError(f"domains: there is no host {unknown!r}; {nearest(unknown, known)}")
        if failover.replicas >= len(self.hosts):
            raise UsageError(
                f"{failover.replicas} replicas of each state are more than the other hosts of {len(self.hosts)};"
                f" ask for {len(self.hosts) - 1} at most, or for more hosts"
            )
        return failover

    def _joined(self, networks: Mapping[str, Network] | None, wanted_hz: float | None) -> dict[str, Network]:
        """The networks of a run, where hosts have them."""
        expect({} if networks is None else networks, Mapping, "networks are a mapping of names to what they are")
        for network in (networks or {}).values():
            expect(network, Network, "what a network is, a Network says")
        expect(1.0 if wanted_hz is None else wanted_hz, int | float, "wanted_hz is a number of partitions a second")
        if wanted_hz is not None and not 0 < wanted_hz < math.inf:
            raise UsageError(
                f"wanted_hz is {wanted_hz!r}; give partitions a second, or None for as many as there can be"
            )
        joined = {host: peer.ends for host, peer in self._peers.items()}
        check_networks(networks or {}, joined, self._gone)
        return where_joined(networks or {}, joined)

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

    def push(self, values: Any = None, *, name: str = "feed", ahead: int = 8, replay: int = 0) -> Feed:
        """A source of what this process pushes: pin its ``code`` to this client, ``{client.name: feed.code}``.

        Args:
            values: an iterable, an asynchronous one (where an event loop runs), or a ``queue.Queue`` that ends with
                None, to be pushed as there is room; None: the application calls ``put`` and ``close`` itself.
            name: stands in errors. ahead: how many values wait at most; who pushes more waits.
            replay: how many values that have been taken are kept, for a run that outlives its hosts (``failover``).

        Raises UsageError for something else than that.
        """
        feed = Feed(name, ahead, replay)
        self._feeds = {each for each in self._feeds if not each.over} | {feed.channel}
        if values is not None:
            fill(feed, values)
        return feed

    def probe(self, links: Iterable[Pair]) -> dict[Link, LinkEstimate]:
        """Measure the bandwidth of these directed links (a 16 KB round trip per pair of hosts).

        A link over another network than the one that all share is a ``Link`` with the name of that, or a triple.

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
        if odd := next((pair for pair in pairs if not 2 <= len(pair) <= (3 if kind is LinkEstimate else 2)), None):
            raise UsageError(f"a link is a pair of hosts, not {shown(odd)}")
        asked = wanted = {Link(*pair) for pair in pairs if pair[0] != pair[1]}
        if unknown := sorted({host for link in wanted for host in link.hosts} - self._peers.keys() - self._gone.keys()):
            raise UsageError(f"there is no host {unknown[0]!r}; {nearest(unknown[0], self._peers)}")
        for link in wanted:
            for host in link.hosts:
                if host in self._peers and link.via not in (ends := self._peers[host].ends):
                    raise UsageError(
                        f"host {host!r} is not joined to a network {link.via!r}; {nearest(link.via, ends)}"
                    )

        def vain() -> bool:
            return bool(self._closing) or any(host in self._gone for link in wanted for host in link.hosts)

        both = wanted | {Link(link.target, link.source, link.via) for link in wanted}
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
                        for host in sorted({host for link in wanted for host in link.hosts} & self._gone.keys()):
                            how = self._gone[host]
                            raise HostLostError(f"no link of host {host!r} can be measured: it {how}", host=host)
                        return {link: reports[link] for link in both if link in reports}
            link = min(wanted - reports.keys())
        source, target = link.hosts
        if kind is Place:
            raise HostLostError(f"host {source!r} did not find its coordinates; is it still there?")
        where = f"from {source!r} to {target!r}" + ("" if link.via == NET else f" over {link.via!r}")
        raise HostLostError(f"the link {where} could not be measured; is {source!r} still there?")

    def _ask_probes(self, links: set[Link], *, latency: bool, coordinates: bool) -> None:
        by_source: dict[tuple[str, str], list[m.Peer]] = {}
        for link in sorted(links):
            (a, b), via = link.hosts, link.via
            if coordinates or self._peers[a] not in by_source.get((b, via), ()):  # the echo measures it
                by_source.setdefault((a, via), []).append(self._peers[b])
        for (source, via), targets in by_source.items():
            there = tuple(targets), self.shell.me
            asked = e.ProbesRequested(BEFORE_RUNS, self._peers[source], *there, latency, coordinates, via)
            self.shell.tell(asked)

    def add_host(self, name: str, endpoint: str | None = None) -> None:
        """Have a host take part: in later runs, and in those that go on, whose operators may move there from now on.

        Partitions may take all networks of a run that it is joined to; one whose links were agreed on may name a host
        that was down as the run began. ``endpoint``: where it listens; by default where it did, for one that was down,
        or has been started again.

        Raises HostAbsentError when it does not answer, UsageError for a name that is not its own, or no endpoint,
        RunError when the client is closed.
        """
        self._check_open()
        (name,) = words([name], "a host is named by a text")
        address = endpoint or self._addresses.get(name)
        if name == self.name:
            raise UsageError(f"{name!r} is this client itself")
        if address is None:
            raise UsageError(f"where does host {name!r} listen? Say its endpoint, as tcp://192.0.2.7:7800")
        peer = say_hello({name: address}, self._keys)[name]
        with self._news:
            self._addresses[name] = address
            others = {host: each for host, each in self._peers.items() if host not in (name, self.name)}
            self._peers = {**others, name: peer, self.name: self.shell.me}
            self._gone.pop(name, None)
        joined = {host: each.ends for host, each in self._peers.items()}
        for run in list(self._runs.values()):
            run.joined(self.hosts, where_joined(run.networks, joined))
            self.shell.tell(e.PeerJoined(run.id, peer))

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
            if self._journal is not None:
                self._journal.close()

    def _wait_for_ends(self, wall_s: float) -> None:
        with self._news:
            self._news.wait_for(lambda: not self._open or not self.shell.alive, wall_s)

    def forked(self) -> None:
        self._news, self._open = threading.Condition(), set()  # what other threads held there, nobody lets go of here
        self._closing = f"the client {self.name!r} is that of the process that was forked; make one here"
        self.shell.forked()
        if self._journal is not None:
            self._journal.forked()
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
                    self._reports[type(estimate)][Link(source, target, command.via)] = estimate
                    if command.host is not None:
                        self._figures[target] = command.host
                    self._news.notify_all()
            case e.Enlisted(peer):
                self._take_in(peer)
            case e.Parted(_, host):
                with self._news:
                    self._gone.setdefault(host, "was drained")
            case e.Keep(run, kept):
                if self._journal is not None:
                    self._journal.keep(run, kept)
            case e.Forgotten(run, follows):
                with self._news:
                    if not follows:
                        self._open.discard(base_of(run))
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
                if (concerned := self._runs.get(base_of(run))) is not None:
                    concerned.take(command)
                for subscription in [each for each in self._subscriptions.values() if each.id == run]:
                    subscription.take(command)

    def _take_in(self, peer: m.Peer) -> None:
        """A host has said that it is there."""
        name, known = peer.name, self._peers.get(peer.name)
        there = known is not None and known.instance == peer.instance and name not in self._gone
        if not self._joins or there or name == self.name or name in self._joining or self._closing:
            return
        self._joining.add(name)

        def add() -> None:
            try:
                with contextlib.suppress(HostAbsentError, UsageError, RunError):  # it says so again
                    self.add_host(name, peer.control)
            finally:
                self._joining.discard(name)

        threading.Thread(target=add, name="thalweg-join", daemon=True).start()

    def _closed(self, run: str) -> None:
        self._runs.pop(run, None)
        self.shell.tell(e.RunAbandoned(run))


def _placement(placement: Mapping[str, str] | str) -> Mapping[str, str] | str:
    if not isinstance(placement, str):
        expect(placement, Mapping, "a placement is a mapping of nodes to hosts, or the name of what computes one")
        words((*placement, *placement.values()), "a placement maps names of nodes to names of hosts")
    return placement


def _check_start(start: int) -> None:
    expect(start, int, "the partition to start with is a whole number")
    if start < 0:
        raise UsageError(f"start is {start}; give the first partition, from 0 on")


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
