"""The embedder's side: ``Client(cluster).run(dataflow, placement=…)`` and the partitions it yields."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from thalweg.middleware.client.checks import (
    check_ahead,
    check_counts,
    check_mapping,
    check_start,
    check_told,
    joined_networks,
)
from thalweg.middleware.client.closed_at_exit import keep_in_mind, weakly
from thalweg.middleware.client.cluster import LocalCluster, addresses_of
from thalweg.middleware.client.codes import check_codes_here
from thalweg.middleware.client.command_dispatcher import CommandDispatcher
from thalweg.middleware.client.failover.journal import Journal, JournaledRun, RequestedNetworks, ResumableStream
from thalweg.middleware.client.flow.feeds import Feed, fill
from thalweg.middleware.client.flow.stream import ClientServices
from thalweg.middleware.client.measuring import MeasurementRequests
from thalweg.middleware.client.membership.hello import agree, identify_hosts
from thalweg.middleware.client.membership.host_registry import HostRegistry
from thalweg.middleware.client.moving.moves import Moves
from thalweg.middleware.client.open_streams import OpenStreams
from thalweg.middleware.client.queries.subscription import Subscription, read_ticket, refuse_own
from thalweg.middleware.client.resuming import (
    ResumedMoves,
    Resumer,
    ResumingClient,
    find,
    go_on,
    go_on_over,
    options_of,
)
from thalweg.middleware.client.run_planning import RunPlanning
from thalweg.middleware.client.runs.run import Run
from thalweg.middleware.client.steering.replanning import Replanner, first_ways
from thalweg.middleware.client.stripes.striped import StripedRun, run_of
from thalweg.middleware.client.stripes.stripes import (
    Stripes,
    all_of,
    check_stripes,
    located,
    request_of,
    strategy_of,
    trees_of,
)
from thalweg.middleware.core.reshaping.shape import MAX_NAME
from thalweg.middleware.dataflow import FIXED, Dataflow
from thalweg.middleware.errors import (
    HostAbsentError,
    RunError,
    UsageError,
    expect,
    printable,
    shown,
    warn_dropped,
    words,
)
from thalweg.middleware.grants import ALL
from thalweg.middleware.loading import DEFAULT_ALLOW, Allowed, check_roots, reorderable
from thalweg.middleware.network.networks import Network, where_joined
from thalweg.middleware.network.place import Place
from thalweg.middleware.network.view import Latency, Link, LinkEstimate, NetworkView, Pair
from thalweg.middleware.planning import (
    CostModel,
    CostParameters,
    Hints,
    Planner,
    ProbedPlan,
    Stripe,
    get_cost_model,
)
from thalweg.middleware.planning.planners.planner import needs_while
from thalweg.middleware.planning.problem.routes import HOPS
from thalweg.middleware.planning.registry import AGAIN
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import Adaptation, ByHosts, GlobalMoves
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import PROCESSES, RunId
from thalweg.middleware.shell.descriptors import OF_A_PEER, OWN, check_free
from thalweg.middleware.shell.endpoints import listen_among
from thalweg.middleware.shell.security import Keys, check_open
from thalweg.middleware.shell.shell import Shell, ShellConfig


class Client:
    """An application's own host in a cluster: the sink is here, and operators may be.

    Args:
        hosts: a ``LocalCluster``, or for each host's name the control endpoint it listens on. One that is down is no
            error: it takes no part until ``add_host``.
        name: this host's name in placements; by default that of its certificate, or ``client``.
        listen: where the other hosts reach this one; by default beside them, on loopback, or at this machine's address
            on the way to them.
        bulk_port: the port that partitions arrive on; by default the one above that of ``listen``.
        allow: packages, beside Thalweg's own, whose code dataflows may name.
        data_roots: folders whose files sources at this client may read.
        keys: this client's own secret certificate (``thalweg keys new``); needed over TCP unless ``insecure``.
        members: the folder of public certificates; by default ``members`` beside ``keys``.
        joins: hosts that say that they are there (``thalweg host --join``) take part, as by ``add_host``.
        journal: a folder in which this client writes down what another needs to go on with its runs (``resume``),
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
        bulk_port: int | None = None,
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
        expect(CoreConfig() if limits is None else limits, CoreConfig, "limits of a client are a CoreConfig")
        packages = (*DEFAULT_ALLOW, *words(allow, "packages to allow are a collection of names"))
        self._allow = Allowed(packages, own=True)
        addresses, running = addresses_of(hosts)
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
        check_free(f"a client of a cluster of {len(addresses)}", OWN + OF_A_PEER * len(addresses))
        self._registry = HostRegistry(name, addresses, running, self._keys)
        self._journal = None if journal is None else Journal(Path(journal))
        self._open_streams = OpenStreams(self._registry, Moves(weakly(self._queue_event)))
        join = weakly(self._join) if joins else None
        self._dispatcher = CommandDispatcher(self._registry, self._open_streams, self._journal, join)
        config = ShellConfig(
            name=name,
            listen=listen,
            advertise=advertise,
            bulk_port=bulk_port,
            time_scale=scale,
            allow={ALL: packages},
            data_roots={ALL: check_roots(data_roots)},
            records=None if records is None else str(records),
            insecure=insecure,
            core=limits or CoreConfig(),
            networks=dict(networks),
            of_application=True,
            process=printable(f"process {os.getpid()} on {socket.gethostname()}"),
        )
        self._process = 1 + secrets.randbelow(PROCESSES - 1)
        self.shell = Shell(config, weakly(self._on_application), self._keys)
        self.shell.speak(self._registry.version)
        self._registry.peers[name] = self.shell.me
        if self._journal is not None:
            self._journal.logbook = self.shell.logbook
        self._measuring = MeasurementRequests(self._registry, self.shell.queue_event, self.shell.me)
        self._planning = RunPlanning(self._registry, self._measuring, self._allow, config.core.capacity)
        self._numbers = itertools.count()
        keep_in_mind(self)
        if isinstance(hosts, LocalCluster):
            hosts.tell_ends(self.lost)
            hosts.tell_starts(self._restarted)

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts an operator can be placed on, without those that are lost; this client is the last."""
        return self._registry.hosts

    @property
    def name(self) -> str:
        """The client's name in placements and in the members of hosts."""
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
            planner: a registered name, an import path, or an object of your own.
            model: the cost model, in the same three ways.
            costs: what resources cost; by default only the network does, measured as it is.
            hints: sizes and times of the nodes; by default the nodes' own code is asked.
            view: what is known already; links it holds are not probed.
            networks: as for ``run``; the plan's ``routes`` then say over which network links go.

        Raises UsageError for unknown names, HostAbsentError when a host that the dataflow needs is lost, HostLostError
        for a link that cannot be measured, RunError when the client is closed.
        """
        task = self._planning.task(self._planning.begin(dataflow), hints, costs).but(view=view or NetworkView({}))
        return self._planning.plan(planner, task.but(networks=joined_networks(networks, None, self._registry)), model)

    def check(self, dataflow: Dataflow, placement: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Look at a dataflow, and at a placement if there is one, as ``run`` would, and construct the nodes' code.

        Nothing is begun, and no host is asked. Operators are constructed here, and sources that are here or whose
        class says that it needs nothing of its host (``Source.local``). Of other sources the class and the names of
        parameters are looked at.

        Returns the names of nodes that were not seen, as this client does not allow their package.

        Raises DataflowError, PlacementError or UsageError, which names the first node that is wrong.
        """
        dataflow = self._planning.begin_here(dataflow)
        if placement is not None:
            self._planning.placed(dataflow, placement)
        return check_codes_here(dataflow, self.name, self._allow)

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
        hops: int = HOPS,
        stripes: Stripes = 1,
        window: int | None = None,
        ahead: int | Literal["auto"] = 1,
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
            subscribers: names of other clients that may ``subscribe`` to its nodes; see ``Run.allow``.
            label: stands in the run's records.
            networks: further networks that its partitions may take, and what these, and ``net``, which all share, cost.
                Between two hosts they take the cheapest that keeps the wanted rate, otherwise the fastest; while the
                run goes on, under GlobalMoves, they change networks as links do. A link that fails is left for another.
            wanted_hz: partitions a second that are wanted; default: as many as sources give, and links carry.
            hops: rented links that one takes in turn at most, over hosts that pass it on; 1: no host does.
            model: the cost model of planning, at the start and later, as for ``plan``.
            costs: as for ``plan``, at the start and later.
            hints: as for ``plan``, at the start and later.
            epoch_s: the Unix time from which the run's records count; default: now.
            known: what links carry as the run begins, for placements that go on by what was measured. They begin anew
                then, as when an emulator starts its traces again: what hosts have measured before is forgotten, also
                by other runs on them.
                Default: what planning, and whatever ran before, has measured, as old as it is.
            call_timeout_s: how many wall-clock seconds a call of an operator's or source's own code may take, or its
                loading; one that takes longer ends the run. Default: any.
            failover: how the run outlives its hosts: where one is lost that it needs, it goes on without, each
                partition once, from replicas of operators' states on others. None: the run ends. A mapping may name
                hosts that are away as it begins, as if they were lost then.
            start: the partition to begin with, as if the sources had none before; sets ``failover``, too.
            stripes: over how many trees the stream goes at once, or ``"auto"``: as many as the planner finds worth it;
                or the trees themselves, of which ``dataflow`` and ``placement`` are the first. Partitions go to
                whichever tree asks next, and come in order (``StripedRun``). A placement that plans one tree is taken
                as often. Operators with state, and what is made of theirs, run once above the trees, at this client if
                nobody says where. Sources must give any index they are asked for.
            window: how many partitions of several trees wait at most for those before them; default: eight times as
                many as there are trees, which the client has memory for.
            ahead: how many partitions may be under way over each edge, 1 to 1024. A link with a long delay carries its
                rate only if as much is under way as goes over it in a round trip. Every node keeps up to so many
                outputs, and one more, and so many of each of its inputs: memory of hosts. More only delays changes of
                the placement, which come after all that is under way. ``"auto"``: as many as the links that it begins
                over need, by rates and latencies measured then (``Run.ahead`` says how many), 1 where delays are short.

        Raises DataflowError, PlacementError, UsageError for what no message can carry, HostAbsentError when a host that
        the run needs is lost, RunError when the client is closed; while iterating RunError, which names the node or
        host at fault.
        """
        lasting = failover is not None or self._journal is not None or bool(start)
        dataflow = self._planning.begin_here(dataflow, lasting=lasting)
        expect(label, str, "the label of a run is a text")
        allowed = words(subscribers, "subscribers are a collection of names of clients")
        expect(adaptation, Adaptation | None, "an adaptation is GlobalMoves, LocalMoves or SpaceMoves")
        check_counts(partitions, call_timeout_s)
        check_ahead(ahead)
        unsupported = {"networks": networks}
        parts = check_stripes(stripes, window, dataflow, self._allow, unsupported)
        check_start(start)
        asked, networks = networks or {}, joined_networks(networks, wanted_hz, self._registry, hops)
        over: dict[str, object] = {"networks": networks, "wanted_hz": wanted_hz, "hops": hops}
        placement = check_mapping(placement)
        placement_name = placement if isinstance(placement, str) else ""
        beside: Sequence[Stripe] = ()
        measured: Mapping[Link, LinkEstimate] = {} if known is None else known
        name = label
        if isinstance(placement, str):
            name = label or placement
            strategy = strategy_of(placement, stripes)
            if strategy.driver is not None:
                raise UsageError(f"{placement!r} is moved from outside, by thalweg run; an application calls Run.move")
            if adaptation is None:
                adaptation, planner = strategy.adaptation, strategy.again
            task = self._planning.task(self._planning.begin(dataflow, lasting=lasting), hints, costs)
            plan = self._planning.plan(strategy.initial, task.but(**over), model, stripes)
            result = plan.result
            if known is None:
                measured = plan.view.estimates
            if result.dataflow != dataflow:  # the planner chose the tree as well
                dataflow, hints = result.dataflow.validate(self._registry.peers), result.hints
            placement, (_, *beside) = result.placement, trees_of(result)
        needs = needs_while(adaptation, planner)
        full = self._planning.placed(dataflow, parts.rests(placement, self.name), lasting=lasting)
        going = self._planning.going(all_of(stripes, Stripe(dataflow, full, 1.0), beside), parts, lasting=lasting)
        graph, several = going.trees[0].dataflow, len(going.trees) > 1
        ways: tuple[m.RoutePreference, ...] = ()
        if networks or isinstance(adaptation, GlobalMoves):
            task = self._planning.task(graph, hints and hints.of(graph), costs).but(**over)
        if networks:
            ways, view = first_ways(task.but(view=NetworkView(measured)), full, self.probe)
            measured = view.estimates if known is None else measured
        run_id = f"{secrets.token_hex(6)}-{next(self._numbers)}"
        install = m.Install(
            run=RunId(run_id),
            dataflow=dataflow,
            locations=located(full),
            peers=tuple([self._registry.peers[host] for host in dict.fromkeys((*self.hosts, *full.values()))]),
            client=self.name,
            partitions=partitions,
            label=label,
            epoch_s=time.time() if epoch_s is None else epoch_s,
            moves=adaptation if isinstance(adaptation, ByHosts) else None,
            news=needs or isinstance(adaptation, Adaptation),
            afresh=known is not None,
            call_timeout_s=call_timeout_s,
        )
        depth = ahead if isinstance(ahead, int) else self._planning.depth(going.whole, hints, measured)
        install = msgspec.structs.replace(install, ahead=depth)
        above = self._planning.above(install, going, failover, start)
        if failover is not None or (lasting and not several):
            install = self._planning.outlasting(install, failover, 0 if several else start)
        check_told(install)
        search, free = None, FIXED
        if isinstance(adaptation, GlobalMoves):
            cost = get_cost_model(model) if isinstance(model, str) else model
            search = Replanner(task, cost, adaptation, planner, name or "global")
            free = reorderable((graph.by_name[name].code for name in graph.operators), self._allow)
        run = run_of(going, self._home(), run_id, search, strict=strict, nothing=nothing)
        run.ways, run.networks, run.ahead = ways, asked, depth
        self._open_streams.begin(run)
        run._first, run._journal = start, self._journal
        if self._journal is not None:
            self._journal.begun(run_id, placement_name, RequestedNetworks(dict(asked), wanted_hz, hops))
        if self._journal is not None and isinstance(run, StripedRun):
            end = None if partitions is None else start + partitions
            run.keep(
                ResumableStream(self.name, going.whole, start, end, window, depth, label, call_timeout_s, failover)
            )
        journaled = self._journal is not None and not several
        request = e.RunRequested(install, adaptation, free.codes, tuple(measured.items()), free.merging, journaled)
        if isinstance(run, StripedRun):
            run.began(request)
        self.shell.queue_event(request_of(request, going, window, start, above))
        if allowed:
            run.allow(*allowed)
        self._notify_absent_hosts(run_id)
        return run

    def resume(
        self,
        run: str | None = None,
        *,
        start: int | None = None,
        accept_loss: bool = False,
        strict: bool = False,
        nothing: bool = False,
        adaptation: GlobalMoves | None = None,
        planner: Planner = AGAIN,
        model: str | CostModel = "critical-path",
    ) -> Run[Any]:
        """Go on with a run that a client of this name has begun, and written down in this client's journal.

        It begins with the first partition that the application has not had (``Run.commit``), from replicas of
        operators' states where hosts still have them: they keep the run for as long as a client may be silent
        (``lease_s``). Later all is made again from the first partition on, and what the application has had is not
        handed out. A stream over several trees goes on as another run, of another ``Run.id``, over those of its trees
        whose hosts are there; what was remembered above them is made again from the first partition on.

        Args:
            run: its ``Run.id``; None: the only one there is that is not over.
            start: the partition to begin with, where the application knows itself what it has had.
            accept_loss: go on although the journal lacks entries of the run, after the last partition that is known to
                be committed. Later ones that were committed come again.
            strict: as for ``run``.
            nothing: as for ``run``.
            adaptation: how operators move from now on, as for ``run``. By default hosts decide, or the placement
                with whose name the run was begun.
            planner: as for ``run``. A planner that was an object of the application's must be given again.
            model: the cost model of later plans, as for ``run``.

        It has its further networks again, as far as hosts are there that are joined to them. Queries that were attached
        go on as well: ``Run.attached`` has them by their numbers, 1 for the first that was; one that nobody takes from
        holds up the others, so take from each, or ``detach`` it. Raises UsageError for a run that is over, or not in
        the journal, and without one; JournalGapError, with the missing partitions, where the journal has lost entries.
        """
        self._registry.check_open()
        run_id, record = find(self._journal, run, accept_loss=accept_loss, start=start)
        self._open_streams.check_not_here(run_id)
        if start is not None:
            check_start(start)
        if isinstance(record.kept, ResumableStream):
            return self._resume_stream(
                run_id, record, start,
                strict=strict, nothing=nothing, adaptation=adaptation, planner=planner, model=model,
            )  # fmt: skip
        moving = ResumedMoves(adaptation, planner, model)
        by = Resumer(self._registry, self._planning, self.probe, self._allow, self._process)
        on = go_on(run_id, record, start, moving, by)
        again: Run[Any] = Run(
            self._home(), run_id, on.where, on.install.dataflow, on.search, strict=strict, nothing=nothing
        )
        again._journal = self._journal
        again._take_up(on.queries, on.starts, record.left)
        again._first = min([on.starts[sink] for sink in again._sinks], default=0)
        if start is not None and self._journal is not None:  # another client begins there as well
            for sink in again._sinks:
                self._journal.had(run_id, sink, start - 1)
        again.ways, again.networks = on.ways, on.networks
        self._open_streams.begin(again)
        self.shell.queue_event(on.request(again._sinks))
        self._notify_absent_hosts(run_id)
        return again

    def _resume_stream(self, run_id: str, found: JournaledRun, start: int | None, **options: Any) -> Run[Any]:
        """Go on with a stream over several trees: as another run over them."""
        stream, journal = found.kept, self._journal
        assert isinstance(stream, ResumableStream)
        assert journal is not None
        on = go_on_over(run_id, found, start, ResumingClient(self.name, self.hosts, self._allow))
        first = on.trees[0]
        again = self.run(first.dataflow, first.placement, **options_of(stream, on, found.by, options))
        again.begin_after(on.had)
        if found.by:
            journal.begun(again.id, found.by)
        journal.over(run_id)
        return again

    def _notify_absent_hosts(self, run_id: str) -> None:
        """Tell a run that has begun of the hosts that are not there, or meanwhile are not any more."""
        for host, how in list(self._registry.gone.items()):
            self.shell.queue_event(e.PeerLost(RunId(run_id), host, how))

    def _home(self) -> ClientServices:
        tell, me = self.shell.queue_event, self.shell.me
        prepare, moves = self._planning.prepare, self._open_streams.moves
        return ClientServices(
            self.name, lambda: self.hosts, self._allow, tell, self._closed, prepare, me, moves, self.shell.logbook
        )

    def _queue_event(self, event: e.Event) -> None:
        self.shell.queue_event(event)

    def subscribe(
        self, run: Run[Any] | str, node: str, *, strict: bool = False, nothing: bool = False
    ) -> Subscription[Any]:
        """The partitions of one node of another client's run, as an iterator, blocking or asynchronous.

        Args:
            run: what that client has as ``Run.ticket``, or the run itself where that client is in this process.
            node: the name of one of its nodes; of a sink all that it takes.
            strict: as for ``run``.
            nothing: as for ``run``.

        They begin with a partition on which the run's hosts agree (``first_index``), and go straight from the node's
        host to this client, each once and in order. One that nobody takes from holds up the run.

        Waits until the run's client has answered. Raises HostAbsentError when it does not, UsageError for what is no
        ticket, and a run of this client's own; while iterating RunError, where the run is over, has no such node, or
        its client does not let this one subscribe, or any more.
        """
        self._registry.check_open()
        ticket = read_ticket(run.ticket if isinstance(run, Run) else run)
        expect(node, str, "a node is named by a text")
        if not 0 < len(node) <= MAX_NAME:
            raise UsageError(f"a node's name has 1 to {MAX_NAME} characters, and {shown(node)} has {len(node)}")
        if ticket.owner.name == self.name:
            refuse_own(self.name)
        try:
            speaks = {self.name: frames.SPEAKS}
            identify_hosts({ticket.owner.name: ticket.owner.control}, self._keys, speaks=speaks)
            self.shell.speak(agree(speaks), RunId(ticket.run))
        except HostAbsentError as error:
            why = f"run {ticket.run} cannot be subscribed to, as its client is not there: {error}"
            raise HostAbsentError(why, host=ticket.owner.name) from None
        subscription: Subscription[Any] = Subscription(self._home(), ticket, node, strict=strict, nothing=nothing)
        self._open_streams.subscribe(subscription)
        subscription.begin(ticket.owner)
        return subscription

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
        self._open_streams.feed(feed.channel)
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
        return self._measuring.probe(links)

    def latencies(self, links: Iterable[Pair]) -> dict[Link, Latency]:
        """How long empty messages take over these links, one way: half of the shortest of three round trips or more.

        Returns seconds of emulated time, with spread and time; of a pair of hosts one measurement stands for both
        directions. Raises as ``probe``.
        """
        return self._measuring.latencies(links)

    def coordinates(self, hosts: Iterable[str] | None = None) -> dict[str, Place]:
        """Where these hosts are in a space in which distances are about latencies; by default all of this cluster.

        Each measures to some others (``network.place.neighbours``), all at the same time, unless it has lately.
        Raises as ``probe``.
        """
        return self._measuring.coordinates(hosts)

    def add_host(self, name: str, endpoint: str | None = None) -> None:
        """Have a host take part: in later runs, and in those that go on, whose operators may move there from now on.

        Partitions may take all networks of a run that it is joined to; one whose links were agreed on may name a host
        that was down as the run began. ``endpoint``: where it listens; by default where it did, for one that was down,
        or has been started again.

        Raises HostAbsentError when it does not answer, UsageError for a name that is not its own, or no endpoint,
        RunError when the client is closed.
        """
        peer = self._registry.add(name, endpoint, tuple(self._open_streams.there))
        self.shell.speak(self._registry.version)
        for run in list(self._open_streams.runs.values()):
            run.joined(self.hosts, where_joined(run.networks, self._registry.ends))
            self.shell.queue_event(e.PeerJoined(RunId(run.id), peer))

    def lost(self, host: str, how: str = "went away") -> None:
        """Tell the client that a host is gone for good: runs that need it end at once, and later ones do without it.

        A client of a ``LocalCluster`` is told by that, and also when the host is started again. ``how`` goes on a
        sentence that begins with the host's name.
        """
        self._registry.lose(host, how)
        for run_id in list(self._open_streams.runs):
            self.shell.queue_event(e.PeerLost(RunId(run_id), host, self._registry.gone[host]))

    def _restarted(self, host: str, endpoint: str) -> None:
        """A host of the cluster has been started: it is taken back if this client had it before."""
        if host in self._registry.gone:
            with contextlib.suppress(HostAbsentError, UsageError, RunError):  # its runs greet it again and again
                self.add_host(host, endpoint)

    def close(self) -> None:
        """End all runs, and what waits in ``plan`` and ``probe``, and leave the cluster; idempotent."""
        self._registry.close_to(f"the client {self.name!r} is closed; make another")
        try:
            self._open_streams.close(self.shell)
        finally:  # also where somebody is tired of waiting
            self.shell.close()
            if self._journal is not None:
                self._journal.close()

    def forked(self) -> None:
        """Give everything up in a process that was forked from that of the client."""
        self._registry.news = threading.Condition()  # what other threads held there, nobody lets go of here
        self._registry.closing = f"the client {self.name!r} is that of the process that was forked; make one here"
        self.shell.forked()
        if self._journal is not None:
            self._journal.forked()
        self._open_streams.forked()

    def __del__(self) -> None:
        shell = getattr(self, "shell", None)
        if shell is not None and shell.alive and not sys.is_finalizing():
            self._open_streams.moves.close(f"the client {self.name!r} was dropped and not closed")
            with contextlib.suppress(RuntimeError):  # this process may have no more threads
                threading.Thread(target=shell.close, daemon=True).start()  # this may be one of the shell's own
            warn_dropped(f"the client {self.name!r}", self)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- in the I/O thread ------------------------------------------------------------------------------

    def _on_application(self, command: e.Command) -> None:
        if isinstance(command, e.Report):
            self._measuring.take(command)
        else:
            self._dispatcher.take(command)

    def _join(self, peer: m.Peer) -> None:
        self.add_host(peer.name, peer.control)

    def _closed(self, run: str) -> None:
        self._open_streams.runs.pop(run, None)
        self.shell.queue_event(e.RunAbandoned(RunId(run)))
