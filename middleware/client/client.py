"""The embedder's side: ``Client(cluster).run(dataflow, placement=…)`` and the partitions it yields."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import zmq

from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.replanning import MEASURED, Search, ask_hints
from thalweg.middleware.core.monitoring.prober import BEFORE_RUNS
from thalweg.middleware.core.relocation.shape import reshape
from thalweg.middleware.dataflow import Code, Dataflow, Placement, check_placement
from thalweg.middleware.errors import (
    HostAbsentError,
    HostLostError,
    PlacementError,
    ProtocolError,
    RunError,
    UsageError,
)
from thalweg.middleware.loading import DEFAULT_ALLOW, merging_codes, reorderable_codes
from thalweg.middleware.network.view import Link, LinkEstimate, NetworkView, Pair
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
from thalweg.middleware.planning.registry import AGAIN
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import Adaptation, GlobalMoves, LocalMoves, RandomReshapes
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.shell.security import Keys, secure_dealer
from thalweg.middleware.shell.shell import Shell, ShellConfig
from thalweg.middleware.shell.sockets import with_address

HELLO_S = 10.0
PROBE_S = 10.0  # wall-clock seconds without any news after which missing probes are asked for again
PROBE_TRIES = 3


class Delivered(msgspec.Struct, frozen=True):
    """A partition at the sink: its index (from 0), and its value, bytes or a read-only array."""

    index: int
    value: Any
    size_bytes: int


class Client:
    """An application's own host in a cluster: the sink is here, and operators may be.

    Args:
        hosts: a ``LocalCluster``, or for each host's name the control endpoint it listens on.
        name: this host's name in placements.
        listen: where the other hosts reach this one.
        keys: the cluster's key file; needed off loopback unless ``insecure``.
        limits: how soon demands are repeated and silent hosts given up, in wall-clock seconds.

    Raises HostAbsentError when a host does not answer within ``HELLO_S``, UsageError for names that do not match.
    """

    def __init__(
        self,
        hosts: LocalCluster | Mapping[str, str],
        *,
        name: str = "client",
        listen: str = "tcp://127.0.0.1:*",
        advertise: str | None = None,
        allow: Collection[str] = (),
        keys: Path | None = None,
        insecure: bool = False,
        time_scale: float | None = None,
        records: Path | None = None,
        limits: CoreConfig | None = None,
    ) -> None:
        addresses = hosts.addresses if isinstance(hosts, LocalCluster) else hosts
        scale = time_scale or (hosts.time_scale if isinstance(hosts, LocalCluster) else 1.0)
        if name in addresses:
            raise UsageError(f"the client cannot be called {name!r}: a host has that name")
        self._keys = None if keys is None else Keys.load(keys)
        self._allow = (*DEFAULT_ALLOW, *allow)
        self._peers = say_hello(addresses, self._keys)
        self._runs: dict[str, Run] = {}
        self._forgotten = threading.Condition()
        self._open: set[str] = set()
        self._reports: dict[Link, LinkEstimate] = {}
        self._reported = threading.Condition()
        config = ShellConfig(
            name=name,
            listen=listen,
            advertise=advertise,
            time_scale=scale,
            allow=self._allow,
            records=None if records is None else str(records),
            insecure=insecure,
            core=limits or CoreConfig(),
        )
        self.shell = Shell(config, self._on_application, self._keys)
        self._peers[name] = self.shell.me
        self._numbers = itertools.count()

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts an operator can be placed on; this client is the last."""
        return tuple(self._peers)

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

        Raises UsageError for unknown names, HostLostError for a link that cannot be measured.
        """
        dataflow.validate(self._peers)
        return plan_with_probes(
            get_planner(planner) if isinstance(planner, str) else planner,
            self._task(dataflow, hints, costs).but(view=view or NetworkView({})),
            get_cost_model(model) if isinstance(model, str) else model,
            self.probe,
        )

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
    ) -> Run:
        """Start ``dataflow`` and return its partitions as an iterator, blocking or asynchronous.

        Args:
            dataflow: the tree; its sink must be pinned to this client (or not at all).
            placement: a host for every node that is not pinned, or the name of what is to compute it: a planner, or
                one that also moves operators while the run goes on, ``global``, ``local`` or ``thalweg``. Where
                operators are ``reorderable``, ``thalweg`` may run another tree than ``dataflow``, and change it
                between two partitions: ``Run.dataflow``.
            adaptation: how operators move while the run goes on (GlobalMoves, LocalMoves); None: as the name of the
                placement says, or not unless ``Run.move`` is called.
            planner: what plans while data flows under GlobalMoves; default: one-shot from the present placement.
            partitions: how many to deliver; None: until a source ends.
            label: stands in the run's records.
            model, costs, hints: what planning goes by, at the start and later, as for :meth:`plan`.
            epoch_s: the Unix time from which the run's records count; default: now.
            known: what links carry as the run begins, for placements that go on by what was measured. They begin anew
                then, as when an emulator starts its traces again: what hosts have measured before is forgotten, also
                by other runs on them.
                Default: what planning, and whatever ran before, has measured, as old as it is.

        Raises DataflowError, PlacementError, UsageError for what no message can carry, RunError when the client is
        closed; while iterating RunError, which names the node or host at fault.
        """
        if not self.shell.alive:
            raise RunError(f"the client {self.name!r} is closed; make another")
        dataflow.validate(self._peers)
        if dataflow.by_name[dataflow.sink].pinned not in (None, self.name):
            raise UsageError(f"the sink is pinned to another host than this client {self.name!r}")
        if partitions is not None and partitions < 1:
            raise UsageError(f"partitions must be at least 1, not {partitions}")
        measured: Mapping[Link, LinkEstimate] = {} if known is None else known
        name = label
        if isinstance(placement, str):
            name = label or placement
            strategy = get_strategy(placement)
            if adaptation is None:
                adaptation, planner = strategy.adaptation, strategy.again
            plan = self.plan(dataflow, strategy.initial, model=model, costs=costs, hints=hints)
            result = plan.result
            if known is None:
                measured = plan.view.estimates
            if result.dataflow != dataflow:  # the planner chose the tree as well
                dataflow, hints = result.dataflow.validate(self._peers), result.hints
            placement = result.placement
        full = check_placement(dataflow, {dataflow.sink: self.name, **placement}, self._peers)
        if full[dataflow.sink] != self.name:
            raise PlacementError(
                f"the sink {dataflow.sink!r} is placed on {full[dataflow.sink]!r}; it is at the client"
            )
        run_id = f"{secrets.token_hex(6)}-{next(self._numbers)}"
        install = m.Install(
            run=run_id,
            dataflow=dataflow,
            locations=tuple(m.Location(node, host, 1) for node, host in full.items()),
            peers=tuple(self._peers.values()),
            client=self.name,
            partitions=partitions,
            label=label,
            epoch_s=time.time() if epoch_s is None else epoch_s,
            moves=adaptation if isinstance(adaptation, LocalMoves) else None,
            news=isinstance(adaptation, GlobalMoves | LocalMoves),
            afresh=known is not None,
        )
        try:
            frames.decode_control(frames.encode(install))  # what a host would refuse is refused here
        except (ProtocolError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise UsageError(f"the run cannot be told to the hosts: {error}") from None
        search = None
        if isinstance(adaptation, GlobalMoves):
            search = Search(
                self._task(dataflow, hints, costs),
                get_cost_model(model) if isinstance(model, str) else model,
                adaptation,
                planner,
                name or "global",
            )
        run = Run(self, run_id, full, dataflow, search)
        self._runs[run_id] = run
        with self._forgotten:
            self._open.add(run_id)
        free: tuple[Code, ...] = ()
        if isinstance(adaptation, RandomReshapes | GlobalMoves):
            free = reorderable_codes((dataflow.by_name[name].code for name in dataflow.operators), self._allow)
        merging = merging_codes(free, self._allow)
        self.shell.tell(e.RunRequested(install, adaptation, free, tuple(measured.items()), merging))
        return run

    def probe(self, links: Iterable[Pair]) -> dict[Link, LinkEstimate]:
        """Measure the bandwidth of these directed links (a 16 KB round trip per pair of hosts).

        Returns estimates in bit/s of emulated time, also of the opposite directions, which come for free.
        Raises HostLostError naming a link that could not be measured.
        """
        wanted = {Link(a, b) for a, b in links if a != b}
        with self._reported:
            for link in wanted:
                self._reports.pop(link, None)
            for _ in range(PROBE_TRIES):
                self._ask_probes(wanted - self._reports.keys())
                known = -1
                while known < len(self._reports):
                    known = len(self._reports)
                    if self._reported.wait_for(lambda: wanted <= self._reports.keys(), PROBE_S):
                        news = self._reports
                        pairs = wanted | {Link(b, a) for a, b in wanted}
                        return {link: news[link] for link in pairs if link in news}
            source, target = min(wanted - self._reports.keys())
        raise HostLostError(f"the link from {source!r} to {target!r} could not be measured; is {source!r} still there?")

    def _ask_probes(self, links: set[Link]) -> None:
        by_source: dict[str, list[m.Peer]] = {}
        for a, b in sorted(links):
            if not (b in by_source and self._peers[a] in by_source[b]):  # the echo measures it
                by_source.setdefault(a, []).append(self._peers[b])
        for source, targets in by_source.items():
            self.shell.tell(e.ProbesRequested(BEFORE_RUNS, self._peers[source], tuple(targets), self.shell.me))

    def lost(self, host: str) -> None:
        """Tell the client that a host is gone for good, so that runs on it end at once."""
        for run_id in list(self._runs):
            self.shell.tell(e.PeerLost(run_id, host))

    def close(self) -> None:
        """End all runs and leave the cluster; idempotent."""
        for run in list(self._runs.values()):
            run.close()
        with self._forgotten:
            self._forgotten.wait_for(lambda: not self._open or not self.shell.alive, 2)
        self.shell.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    # --- in the I/O thread ------------------------------------------------------------------------------

    def _on_application(self, command: e.Command) -> None:
        match command:
            case e.Report(source, target, estimate):
                with self._reported:
                    self._reports[Link(source, target)] = estimate
                    self._reported.notify_all()
            case e.Forgotten(run):
                with self._forgotten:
                    self._open.discard(run)
                    self._forgotten.notify_all()
            case e.Fail("", reason):
                for each in list(self._runs.values()):
                    each._take(e.Fail(each.id, reason))
            case e.Placed(run, node, host):
                moved = self._runs.get(run)
                if moved is not None:
                    moved.placement = {**moved.placement, node: host}
            case e.TreeChanged(run, dataflow, placement):
                changed = self._runs.get(run)
                if changed is not None:
                    with changed._news:
                        changed.dataflow, changed.placement = dataflow, placement
            case e.Plan(run):
                planning = self._runs.get(run)
                if planning is not None and planning.search is not None:
                    threading.Thread(
                        target=self._search, args=(planning.search, command), name="thalweg-planner", daemon=True
                    ).start()
            case e.Ready(run) | e.Deliver(run) | e.Fail(run):
                running = self._runs.get(run)
                if running is not None:
                    running._take(command)

    def _search(self, search: Search, command: e.Plan) -> None:
        """One look for a better placement, beside the flow."""
        begun = time.perf_counter()
        answer = search.answer(command)
        if answer.placement is not None:
            took = {"planning_wall_s": time.perf_counter() - begun}
            answer = msgspec.structs.replace(answer, detail=answer.detail | took)
        self.shell.tell(answer)

    def _closed(self, run: Run) -> None:
        if self._runs.pop(run.id, None) is not None:
            self.shell.tell(e.RunAbandoned(run.id))


class Run:
    """A running dataflow: ``for partition in run`` or ``async for partition in run``; ``close()`` ends it early.

    The next partition is demanded when one is taken, so at most one is here undelivered. ``placement`` is where its
    nodes are now, as far as the client has heard, and ``dataflow`` the tree they form.
    """

    def __init__(
        self, client: Client, run_id: str, placement: Placement, dataflow: Dataflow, search: Search | None
    ) -> None:
        self.id = run_id
        self.placement = placement
        self.dataflow = dataflow
        self.search = search
        self._client = client
        self._news = threading.Condition()
        self._queue: deque[e.Command] = deque()
        self._waiting = False  # somebody blocks in __next__
        self._waiter: Callable[[], None] | None = None  # wakes who awaits in __anext__
        self._taken: e.Command | None = None  # given to who waited for it, and the next demanded
        self._over = False

    @property
    def tree(self) -> tuple[Dataflow, Placement]:
        """``dataflow`` and ``placement`` of the same moment: either changes while the run goes on."""
        with self._news:
            return self.dataflow, self.placement

    def _take(self, command: e.Command) -> None:
        with self._news:
            self._queue.append(command)
            if self._waiting and isinstance(command, e.Deliver) and not command.end:
                self._waiting = False
                self._taken = command  # by who waits for it: the next can be demanded without waking them first
                self._client.shell.tell(e.NextRequested(self.id))
            self._wake()

    def _wake(self) -> None:
        self._news.notify_all()
        if self._waiter is not None:
            self._waiter()
            self._waiter = None

    def _consume(self, command: e.Command) -> Delivered | None:
        """The partition a command brings, None when it brings none; raises at the end of the run."""
        match command:
            case e.Ready():
                self._client.shell.tell(e.NextRequested(self.id))
                return None
            case e.Deliver(_, index, value, size_bytes, end):
                if end:
                    self.close()
                    raise StopIteration
                if command is self._taken:  # the next one is demanded already
                    self._taken = None
                else:
                    self._client.shell.tell(e.NextRequested(self.id))
                return Delivered(index, value, size_bytes)
            case e.Fail(_, reason):
                self.close()
                raise RunError(reason)
        return None

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Delivered:
        while not self._over:
            with self._news:
                while not self._queue and not self._over:
                    self._waiting = True
                    try:
                        self._news.wait()
                    finally:
                        self._waiting = False
                if self._over:
                    break
                command = self._queue.popleft()
            delivered = self._consume(command)
            if delivered is not None:
                return delivered
        raise StopIteration

    def __aiter__(self) -> Run:
        return self

    async def __anext__(self) -> Delivered:
        loop = asyncio.get_running_loop()
        while not self._over:
            arrived = asyncio.Event()
            with self._news:
                if self._over:
                    break
                if not self._queue:
                    self._waiter = functools.partial(_set_in, loop, arrived)
                    command = None
                else:
                    command = self._queue.popleft()
            if command is None:
                await arrived.wait()
                continue
            try:
                delivered = self._consume(command)
            except StopIteration:
                break
            if delivered is not None:
                return delivered
        raise StopAsyncIteration

    def move(self, placement: Mapping[str, str]) -> None:
        """Have these operators change hosts, all between the same two partitions, while the flow goes on.

        Returns at once. Where an operator cannot move (its target lacks its code, or room), all stay; the records say
        why. A later call replaces one that has not begun. Raises PlacementError for an unknown node or host, or a
        node that is pinned.
        """
        dataflow, present = self.tree
        check_placement(dataflow, {**present, **placement}, self._client.hosts)
        for name in placement:
            if (kind := dataflow.by_name[name].kind) != "operator":
                raise PlacementError(f"{name!r} is the {kind}; only operators move")
        self._client.shell.tell(e.PlacementProposed(self.id, dict(placement), "asked for"))

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str]) -> None:
        """Have the run go on as another tree of the same sources, from one partition on, while the flow goes on.

        Operators whose code is ``reorderable`` (and merges its states, if it has some) may be others in it, with other
        inputs, and anywhere; they get names of their own, which ``dataflow`` and ``placement`` of this run then tell.
        All others keep their inputs; where ``placement`` has them elsewhere, they move when the tree has changed.

        Returns at once. Where an operator cannot run (its host lacks the code, or room), the tree stays; the records
        say why. A later call replaces one that has not begun. Raises DataflowError for a tree that would not give the
        same bytes, PlacementError for an unknown node or host.
        """
        hosts = self._client.hosts
        full = check_placement(dataflow.validate(hosts), {dataflow.sink: self._client.name, **placement}, hosts)
        present, where = self.tree
        codes = [tree.by_name[name].code for tree in (dataflow, present) for name in tree.operators]
        free = reorderable_codes(codes, self._client._allow)
        merging = merging_codes(free, self._client._allow)
        reshape(present, dataflow, full, where, free, 0, (), merging)  # what is wrong with it is said here
        self._client.shell.tell(e.PlacementProposed(self.id, full, "asked for", dataflow, free, merging))

    def close(self) -> None:
        """End the run on every host; idempotent, from any thread: whoever waits for a partition sees the end."""
        with self._news:
            self._over = True
            self._wake()
        self._client._closed(self)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def _set_in(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(event.set)


def say_hello(addresses: Mapping[str, str], keys: Keys | None = None, timeout_s: float = HELLO_S) -> dict[str, m.Peer]:
    """Ask every host who it is; the hosts as peers, in the order given.

    Raises HostAbsentError for one that does not answer, UsageError for one of another name.
    """
    peers: dict[str, m.Peer] = {}
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        poller = zmq.Poller()
        waiting: dict[zmq.Socket[bytes], str] = {}
        for name, address in addresses.items():
            socket = context.socket(zmq.DEALER)
            socket.setsockopt(zmq.ROUTING_ID, f"hello/{secrets.token_hex(4)}".encode())
            secure_dealer(socket, keys)
            try:
                socket.connect(address)
            except zmq.ZMQError as error:
                raise UsageError(
                    f"host {name!r}: {address!r} is not an endpoint (tcp://ADDRESS:PORT): {error}"
                ) from None
            socket.send(frames.encode(m.Hello()))
            waiting[socket] = name
            poller.register(socket, zmq.POLLIN)
        deadline = time.monotonic() + timeout_s
        while waiting:
            ready = poller.poll(max(0, int((deadline - time.monotonic()) * 1000)))
            if not ready:
                name = next(iter(waiting.values()))
                raise HostAbsentError(
                    f"host {name!r} at {addresses[name]} did not answer within {timeout_s:g} s; is thalweg host running"
                    " there, with the same keys?"
                )
            for socket, _ in ready:
                name = waiting.pop(socket)
                poller.unregister(socket)
                try:
                    answer = frames.decode_control(socket.recv())
                except ProtocolError as error:
                    raise HostAbsentError(
                        f"what answers at {addresses[name]} is not a host of this version: {error}"
                    ) from None
                socket.close(0)
                if not isinstance(answer, m.Welcome):
                    raise HostAbsentError(f"what answers at {addresses[name]} is not a Thalweg host")
                if answer.host != name:
                    raise UsageError(f"the host at {addresses[name]} is called {answer.host!r}, not {name!r}")
                like = addresses[name]
                ends = (with_address(answer.control, like), with_address(answer.bulk, like))
                peers[name] = m.Peer(name, *ends, answer.instance)
    finally:
        context.destroy(linger=0)
    return {name: peers[name] for name in addresses}
