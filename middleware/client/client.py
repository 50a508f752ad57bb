"""Client of an application: ``Client(cluster).run(dataflow, placement=…)`` starts a run and yields its partitions."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from thalweg.middleware.client.checks import (
    check_ahead,
    check_counts,
    check_mapping,
    check_request,
    check_start,
    check_told,
    joined_networks,
)
from thalweg.middleware.client.closed_at_exit import keep_in_mind, weakly
from thalweg.middleware.client.cluster import LocalCluster, addresses_of
from thalweg.middleware.client.codes import check_codes_here
from thalweg.middleware.client.command_dispatcher import CommandDispatcher
from thalweg.middleware.client.failover.journal import Journal, JournaledRun, ResumableStream
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
from thalweg.middleware.client.run_planning import PlanRequest, RunPlanning
from thalweg.middleware.client.runs.run import Run
from thalweg.middleware.client.steering.run_options import Networks, Planning, networks_of
from thalweg.middleware.client.stripes.striped import StripedRun, run_of
from thalweg.middleware.client.stripes.stripes import (
    Stripes,
    all_of,
    check_stripes,
    count_of,
    located,
    request_of,
)
from thalweg.middleware.core.reshaping.shape import MAX_NAME
from thalweg.middleware.dataflow import Dataflow
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
from thalweg.middleware.loading import DEFAULT_ALLOW, Allowed, check_roots
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
)
from thalweg.middleware.planning.planners.planner import needs_while
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
    """Host of an application in a cluster, which starts runs and consumes their results.

    The sinks are on this host, and operators may be.

    Args:
        hosts: a ``LocalCluster``, or the control endpoint of each host by name. A host that is down is no error. It
            takes no part until ``add_host``.
        name: the name of this host in placements; by default the name in its certificate, or ``client``.
        listen: the endpoint at which hosts reach the client. By default it is beside the hosts' Unix sockets, on
            loopback, or at this machine's address on the route to the hosts.
        advertise: the address that hosts dial, if ``listen`` is not reachable as it stands.
        bulk_port: the port for partitions; by default the port above that of ``listen``.
        allow: packages, beside Thalweg's own, whose code dataflows may name.
        data_roots: folders whose files sources at this client may read.
        keys: the secret certificate of this client (``thalweg keys new``), needed over TCP unless ``insecure``.
        members: the folder of public certificates; by default ``members`` beside ``keys``.
        insecure: allow TCP without keys, although every user or machine that reaches the client may then dial it.
        joins: add hosts that announce themselves (``thalweg host --join``), as ``add_host`` does.
        journal: a folder in which the client records what a later client needs to ``resume`` its runs. Every run over
            one tree then has failover.
        time_scale: emulated seconds for each second of the clock; by default that of the ``LocalCluster``, or 1.
        records: the file of the client's event log.
        limits: how soon demands are repeated and silent hosts are given up, in wall-clock seconds.
        networks: further networks of this machine by name, each with the endpoint where the client listens for bulk
            (``tcp://ADDRESS:*``). By default they are those of a ``LocalCluster``.

    Raises HostAbsentError if no host answers within ``HELLO_S`` (10 s), UsageError for names that do not match,
    CapabilityError if the process may open too few files.
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
        """Names of the present hosts on which operators can be placed. The client itself is the last."""
        return self._registry.hosts

    @property
    def name(self) -> str:
        """Name of the client in placements and in the members of hosts."""
        return self.shell.config.name

    @property
    def endpoint(self) -> str:
        """Endpoint at which hosts reach the client, for ``thalweg host --join ENDPOINT``."""
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
        networks: Networks | Mapping[str, Network] | None = None,
        partitions: int | None = None,
    ) -> ProbedPlan:
        """Compute a placement for ``dataflow`` on this cluster. Links that the planner asks for are probed.

        Args:
            planner: a registered name, an import path, or a planner object of the application.
            model: the cost model, as a name, an import path or an object.
            costs: costs of resources. By default no start-up of messages and no read of a disk costs time.
            hints: sizes and times of the nodes; by default the nodes' own code is asked.
            view: known estimates of links. These links are not probed.
            networks: as for ``run``. The plan's ``routes`` then say over which network each link goes.
            partitions: the length of the stream, for a planner of several trees; by default unknown.

        Raises UsageError for unknown names, HostAbsentError if a host that the dataflow needs is lost, HostLostError if
        a link cannot be measured, RunError if the client is closed.
        """
        check_counts(partitions, None)
        task = self._planning.task(self._planning.begin(dataflow), hints, costs)
        task = task.but(view=view or NetworkView({}), partitions=partitions)
        joined = joined_networks(networks_of(networks), self._registry)
        return self._planning.plan(planner, task.but(networks=joined), model)

    def check(self, dataflow: Dataflow, placement: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """Check a dataflow, and a placement if given, as ``run`` would, and construct the nodes' code.

        Nothing is begun, and no host is asked. Operators are constructed here. A source is constructed if it is at this
        client, or if its class says that it needs nothing of its host (``Source.local``). Of every further source, the
        class and the names of the parameters are checked.

        Returns the names of the nodes that were not checked, because this client does not allow their package.

        Raises DataflowError, PlacementError or UsageError that names the first faulty node.
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
        planning: Planning | None = None,
        partitions: int | None = None,
        label: str = "",
        epoch_s: float | None = None,
        call_timeout_s: float | None = None,
        strict: bool = False,
        nothing: bool = False,
        subscribers: Collection[str] = (),
        failover: m.Failover | None = None,
        start: int = 0,
        networks: Networks | Mapping[str, Network] | None = None,
        stripes: Stripes = 1,
        window: int | None = None,
        ahead: int | Literal["auto"] = 1,
    ) -> Run[Any]:
        """Start ``dataflow`` and return its partitions as an iterator, blocking or asynchronous.

        Args:
            dataflow: the graph. Its sinks must be pinned to this client, or to no host.
            placement: a host for every node that is not pinned, or the name of a planner or strategy. The strategies
                ``global``, ``local`` and ``thalweg`` also move operators while data flows. If operators are
                ``reorderable``, ``thalweg`` may run a different tree than ``dataflow``, and change the tree between two
                partitions (``Run.dataflow``).
            adaptation: how operators move while data flows (GlobalMoves, LocalMoves, SpaceMoves). None: as the name of
                the placement says, or only by ``Run.move``.
            planning: options of the plans: cost model, costs, hints, known rates, and the planner while data flows.
            partitions: the number of partitions that every sink delivers. None: until a source ends.
            strict: raise RunError after the last common partition if sources end after different numbers of partitions.
            nothing: deliver ``NOTHING`` for an index without a value. By default this index is skipped.
            subscribers: names of clients that may ``subscribe`` to the run's nodes; see ``Run.allow``.
            label: a name for the run in its records.
            epoch_s: the Unix time from which the times in the run's records count; by default now.
            call_timeout_s: the wall-clock seconds that a call of a node's code, or its loading, may take. A longer call
                ends the run. By default there is no limit.
            failover: how the run continues after the loss of a host that it needs. Operators restart from replicas of
                their states on other hosts, and each partition is delivered once. With None, the run ends. With
                failover, a mapping may name hosts that are absent at the start, which then count as lost.
            start: the first partition, as if the sources had no earlier ones. A start above 0 sets ``failover``, too.
            networks: further networks for the run's partitions. A mapping of names is enough if neither a wanted rate
                nor a number of hops is needed.
            stripes: the number of trees over which the stream goes at once. ``"auto"``: as many trees as the planner
                finds to repay. Or the trees themselves, with ``dataflow`` and ``placement`` as the first. A partition
                goes to the tree that asks next, and partitions are delivered in order (``StripedRun``). If the planner
                plans only one tree, the run uses copies of it. Operators with state, and the nodes that consume them,
                run once above the trees, by default at this client. Sources must give any index on request.
            window: the number of partitions from several trees that may wait at this client for earlier ones; by
                default eight times the number of trees. The window takes memory of the client.
            ahead: the number of partitions that may be under way over each edge, 1 to 1024. A link with a long delay
                carries its full rate only if the partitions under way fill a round trip. Every node keeps up to
                ``ahead`` outputs and one more, and ``ahead`` partitions of each input, in the memory of its host. A
                larger number also delays changes of the placement, which follow the partitions under way. ``"auto"``:
                the number that the first links need by their rates and latencies at the start (``Run.ahead``). If
                delays are short, it is 4 for a single tree of partitions up to 8 MiB, as rates vary. With larger
                partitions or several trees, it is less.

        Raises DataflowError, PlacementError, UsageError for a request that no message can carry, HostAbsentError if a
        host that the run needs is lost, RunError if the client is closed. The iteration raises RunError that names the
        node or host at fault.
        """
        planning, requested = planning or Planning(), networks_of(networks)
        lasting = failover is not None or self._journal is not None or bool(start)
        dataflow = self._planning.begin_here(dataflow, lasting=lasting)
        allowed = words(subscribers, "subscribers are a collection of names of clients")
        check_request(label, adaptation, planning)
        check_counts(partitions, call_timeout_s)
        check_ahead(ahead)
        stripes = count_of(placement, stripes)
        parts = check_stripes(stripes, window, dataflow, self._allow, {"networks": requested.networks})
        check_start(start)
        asked = PlanRequest(
            dataflow, check_mapping(placement), planning, adaptation, stripes, requested,
            joined_networks(requested, self._registry), partitions, lasting=lasting,
        )  # fmt: skip
        planned = self._planning.first_plan(asked)
        full = self._planning.placed(planned.dataflow, parts.rests(planned.placement, self.name), lasting=lasting)
        trees = all_of(stripes, Stripe(planned.dataflow, full, 1.0), planned.beside)
        going = self._planning.going(trees, parts, lasting=lasting)
        graph, several = going.trees[0].dataflow, len(going.trees) > 1
        adaptation = planned.adaptation
        ways, measured = self._planning.first_ways(asked, planned, graph, full)
        run_id = f"{secrets.token_hex(6)}-{next(self._numbers)}"
        install = m.Install(
            run=RunId(run_id),
            dataflow=planned.dataflow,
            locations=located(full),
            peers=tuple([self._registry.peers[host] for host in dict.fromkeys((*self.hosts, *full.values()))]),
            client=self.name,
            partitions=partitions,
            label=label,
            epoch_s=time.time() if epoch_s is None else epoch_s,
            moves=adaptation if isinstance(adaptation, ByHosts) else None,
            news=needs_while(adaptation, planned.planner) or isinstance(adaptation, Adaptation),
            afresh=planning.known is not None,
            call_timeout_s=call_timeout_s,
        )
        depth = ahead if isinstance(ahead, int) else self._planning.depth(going.whole, planned.hints, measured)
        install = msgspec.structs.replace(install, ahead=depth)
        above = self._planning.above(install, going, failover, start)
        if failover is not None or (lasting and not several):
            install = self._planning.outlasting(install, failover, 0 if several else start)
        check_told(install)
        search, free = self._planning.replanner(asked, planned, graph, label)
        run = run_of(going, self._home(), run_id, search, strict=strict, nothing=nothing)
        run.ways, run.networks, run.ahead = ways, requested.networks, depth
        self._open_streams.begin(run)
        run._first, run._journal = start, self._journal
        end = None if partitions is None else start + partitions
        stream = ResumableStream(self.name, going.whole, start, end, window, depth, label, call_timeout_s, failover)
        self._write_begun(run, asked, stream)
        journaled = self._journal is not None and not several
        request = e.RunRequested(install, adaptation, free.codes, tuple(measured.items()), free.merging, journaled)
        if isinstance(run, StripedRun):
            run.began(request)
        self.shell.queue_event(request_of(request, going, window, start, above))
        if allowed:
            run.allow(*allowed)
        self._notify_absent_hosts(run_id)
        return run

    def _write_begun(self, run: Run[Any], asked: PlanRequest, stream: ResumableStream) -> None:
        """Write the start of a run into the journal, if there is one. ``stream``: of a run over several trees."""
        if self._journal is not None:
            self._journal.begun(run.id, asked.name, asked.requested)
            if isinstance(run, StripedRun):
                run.keep(stream)

    def resume(
        self,
        run: str | None = None,
        *,
        start: int | None = None,
        accept_loss: bool = False,
        strict: bool = False,
        nothing: bool = False,
        adaptation: GlobalMoves | None = None,
        planning: Planning | None = None,
    ) -> Run[Any]:
        """Continue a run of an earlier client with this client's name, as recorded in this client's journal.

        The run continues with the first partition that the application has not committed (``Run.commit``). Hosts keep
        the run for as long as a client may be silent (``lease_s``). Within this time, operators restart from replicas
        of their states. Later, the run restarts from the first partition, and committed partitions are not delivered
        again.

        A stream over several trees continues as a new run with a new ``Run.id``, over the trees whose hosts are
        present. If operators above the trees have state, the new run restarts from the first partition.

        Args:
            run: the ``Run.id``. None: the only run in the journal that is not over.
            start: the first partition, if the application itself knows which partitions it has processed.
            accept_loss: continue although the journal lacks entries of the run, after the last partition with a known
                commit. Partitions with a lost commit are delivered again.
            strict: as for ``run``.
            nothing: as for ``run``.
            adaptation: how operators move from now on, as for ``run``. By default hosts decide, or the strategy that
                the run was started with.
            planning: the planner and the cost model of later plans, as for ``run``. Objects of the application must be
                given again.

        The run has its further networks again, as far as present hosts are joined to them. Attached queries continue,
        too: ``Run.attached`` has them by number, 1 for the first. A query without a consumer holds up the rest of the
        run, so consume every query, or ``detach`` it.

        Raises UsageError for a run that is over or not in the journal, or if the client has no journal. Raises
        JournalGapError with the missing partitions if the journal has lost entries.
        """
        self._registry.check_open()
        planning = planning or Planning()
        run_id, record = find(self._journal, run, accept_loss=accept_loss, start=start)
        self._open_streams.check_not_here(run_id)
        if start is not None:
            check_start(start)
        if isinstance(record.kept, ResumableStream):
            return self._resume_stream(
                run_id, record, start,
                strict=strict, nothing=nothing, adaptation=adaptation, planning=planning,
            )  # fmt: skip
        moving = ResumedMoves(adaptation, planning.planner, planning.model)
        by = Resumer(self._registry, self._planning, self.probe, self._allow, self._process)
        on = go_on(run_id, record, start, moving, by)
        again: Run[Any] = Run(
            self._home(), run_id, on.where, on.install.dataflow, on.search, strict=strict, nothing=nothing
        )
        again._journal = self._journal
        again._take_up(on.queries, on.starts, record.left)
        again._first = min([on.starts[sink] for sink in again._sinks], default=0)
        if start is not None and self._journal is not None:  # a later client starts there as well
            for sink in again._sinks:
                self._journal.had(run_id, sink, start - 1)
        again.ways, again.networks = on.ways, on.networks
        self._open_streams.begin(again)
        self.shell.queue_event(on.request(again._sinks))
        self._notify_absent_hosts(run_id)
        return again

    def _resume_stream(self, run_id: str, found: JournaledRun, start: int | None, **options: Any) -> Run[Any]:
        """Continue a stream over several trees as a new run over the trees whose hosts are present."""
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
        """Notify a run that has just begun of the hosts that are absent."""
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
        """Return the partitions of one node of another client's run as an iterator, blocking or asynchronous.

        Args:
            run: the other client's ``Run.ticket``, or the run itself if that client is in this process.
            node: the name of a node of the run. For a sink, the subscription delivers the partitions of every input.
            strict: as for ``run``.
            nothing: as for ``run``.

        The subscription begins with a partition on which the run's hosts agree (``first_index``). Partitions go
        straight from the node's host to this client, each once and in order. A subscription without a consumer holds up
        the run.

        Waits until the run's client has answered. Raises HostAbsentError if it does not answer, UsageError for a text
        that is no ticket and for a run of this client itself. The iteration raises RunError if the run is over, lacks
        the node, or does not allow this client to subscribe (any longer).
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
        """Return a source of values that this process pushes.

        Pin its ``code`` to this client: ``{client.name: feed.code}``.

        Args:
            values: an iterable, an asynchronous iterable (inside an event loop), or a ``queue.Queue`` that ends with
                None. The values are pushed as there is room. None: the application calls ``put`` and ``close`` itself.
            name: the name of the feed in errors.
            ahead: the number of values that may wait. A further push waits for room.
            replay: the number of consumed values that are kept for a restart of the source, in a run with ``failover``.

        Raises UsageError for values of any other kind.
        """
        feed = Feed(name, ahead, replay)
        self._open_streams.feed(feed.channel)
        if values is not None:
            fill(feed, values)
        return feed

    def probe(self, links: Iterable[Pair]) -> dict[Link, LinkEstimate]:
        """Measure the bandwidth of these directed links (a 16 KB round trip per pair of hosts).

        A link over a further network is a ``Link`` with the network's name, or a triple.

        Returns estimates in bit/s of emulated time, also of the opposite directions, which cost nothing more. Raises
        UsageError for an unknown host, HostLostError that names a link without a measurement, RunError if the client is
        closed, also while the call waits.
        """
        return self._measuring.probe(links)

    def latencies(self, links: Iterable[Pair]) -> dict[Link, Latency]:
        """Measure how long empty messages take over these links in one direction.

        The latency is half of the shortest of at least three round trips. Returns seconds of emulated time, with spread
        and time of measurement. One measurement stands for both directions of a pair of hosts. Raises as ``probe``.
        """
        return self._measuring.latencies(links)

    def coordinates(self, hosts: Iterable[str] | None = None) -> dict[str, Place]:
        """Return the network coordinates of these hosts, by default of the whole cluster. Distances predict latencies.

        Every host without recent coordinates measures its latency to some other hosts (``network.place.neighbours``),
        at the same time as the rest. Raises as ``probe``.
        """
        return self._measuring.coordinates(hosts)

    def add_host(self, name: str, endpoint: str | None = None) -> None:
        """Add a host to later runs and to the present runs. Operators of present runs may move there from now on.

        Partitions may take every network of a run to which the host is joined. A network with agreed links may name a
        host that was down when the run began. ``endpoint``: the endpoint of the host, by default the former one, for a
        host that was down or has restarted.

        Raises HostAbsentError if the host does not answer, UsageError for a wrong name or a missing endpoint, RunError
        if the client is closed.
        """
        peer = self._registry.add(name, endpoint, tuple(self._open_streams.there))
        self.shell.speak(self._registry.version)
        for run in list(self._open_streams.runs.values()):
            run.joined(self.hosts, where_joined(run.networks, self._registry.ends))
            self.shell.queue_event(e.PeerJoined(RunId(run.id), peer))

    def lost(self, host: str, how: str = "went away") -> None:
        """Notify the client that a host is gone for good.

        Runs that need the host end at once, and later runs exclude it.

        A ``LocalCluster`` notifies its client of this itself, and also of a restart of the host. ``how`` continues a
        sentence that begins with the host's name.
        """
        self._registry.lose(host, how)
        for run_id in list(self._open_streams.runs):
            self.shell.queue_event(e.PeerLost(RunId(run_id), host, self._registry.gone[host]))

    def _restarted(self, host: str, endpoint: str) -> None:
        """Add a restarted host of the cluster again if this client has lost it."""
        if host in self._registry.gone:
            with contextlib.suppress(HostAbsentError, UsageError, RunError):  # runs greet a lost host again
                self.add_host(host, endpoint)

    def close(self) -> None:
        """End all runs, and the calls that wait in ``plan`` and ``probe``, and leave the cluster.

        A second call does nothing.
        """
        self._registry.close_to(f"the client {self.name!r} is closed; make another")
        try:
            self._open_streams.close(self.shell)
        finally:  # also if the wait is interrupted
            self.shell.close()
            if self._journal is not None:
                self._journal.close()

    def forked(self) -> None:
        """Give up all runs, locks and sockets in a process that was forked from the client's process."""
        self._registry.news = threading.Condition()  # a lock of a parent's thread is never released here
        self._registry.closing = (
            f"the client {self.name!r} belongs to the process that this process was forked from; make a client here"
        )
        self.shell.forked()
        if self._journal is not None:
            self._journal.forked()
        self._open_streams.forked()

    def __del__(self) -> None:
        shell = getattr(self, "shell", None)
        if shell is not None and shell.alive and not sys.is_finalizing():
            self._open_streams.moves.close(f"the client {self.name!r} was dropped and not closed")
            with contextlib.suppress(RuntimeError):  # no thread can start when the process ends
                threading.Thread(target=shell.close, daemon=True).start()  # the current thread may be the shell's own
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
