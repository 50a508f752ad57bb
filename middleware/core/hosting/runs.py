"""Runs in which a host has a part: opened, closed, begun anew, or dropped. The rules are those of ``core.host``."""

from __future__ import annotations

from collections.abc import Iterator, Set

from thalweg.middleware.core.barrier.member import Member
from thalweg.middleware.core.barrier.proposer import Proposer
from thalweg.middleware.core.context.notes import Notes
from thalweg.middleware.core.context.outbox import Alarm, HostContext, Local, Outbox, Timer
from thalweg.middleware.core.failover.carried_over import CarriedNodes, carried_over
from thalweg.middleware.core.failover.checkpoints import Checkpoints
from thalweg.middleware.core.failover.failover_runs import FailoverRuns
from thalweg.middleware.core.failover.recovery import Recovery
from thalweg.middleware.core.flow.entries import CarriedOver
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.hosting.coordinator import Coordinator
from thalweg.middleware.core.hosting.ended_runs import EndedRuns
from thalweg.middleware.core.hosting.links import Links
from thalweg.middleware.core.measuring.silence import Suspicions
from thalweg.middleware.core.membership.membership import Membership
from thalweg.middleware.core.moving.arrivals import Arrivals
from thalweg.middleware.core.moving.departures import Departures
from thalweg.middleware.core.moving.handover import MoveAlarm
from thalweg.middleware.core.parts.host_services import HostServices
from thalweg.middleware.core.parts.part import Part, PartTable
from thalweg.middleware.core.parts.replica_table import ReplicaTable
from thalweg.middleware.core.queries.queries import Queries
from thalweg.middleware.core.queries.query_attachment import QueryAttachment
from thalweg.middleware.core.queries.run_subscriptions import RunSubscriptions
from thalweg.middleware.core.queries.subscribers import Subscribers
from thalweg.middleware.core.queries.subscription_table import SubscriptionTable
from thalweg.middleware.core.reshaping.inheritance import Inheritance
from thalweg.middleware.core.reshaping.reshaping import Reshaping
from thalweg.middleware.core.runs.run import RunCore
from thalweg.middleware.core.states.awaited_states import AwaitedStates
from thalweg.middleware.core.states.state_transfers import StateTransfers
from thalweg.middleware.core.steering.by_coordinates import CoordinateSteering
from thalweg.middleware.core.steering.by_epochs import EpochSteering
from thalweg.middleware.core.steering.central import CentralSteering
from thalweg.middleware.core.steering.gossip import Gossip
from thalweg.middleware.core.stripes.stripe_code import StripeCode
from thalweg.middleware.errors import in_seconds
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import NO_RUN, RunId

# A part calls only parts before it (R2 of ``run``). A note goes to the parts in this order.
PARTS: tuple[type[Part], ...] = (
    Flow,
    StateTransfers,
    AwaitedStates,
    MoveAlarm,
    Arrivals,
    Departures,
    Inheritance,
    Checkpoints,
    Recovery,
    Reshaping,
    QueryAttachment,
    Queries,
    Subscribers,
    Membership,
    Proposer,
    Member,
    Gossip,
    CentralSteering,
    CoordinateSteering,
    EpochSteering,
    StripeCode,
    CarriedNodes,
)
TABLE = PartTable(PARTS)
REMEMBERED = 64  # dropped runs whose reason is kept


class Runs:
    """Table of a host's runs, and the services shared by the runs. Only the class changes the table."""

    def __init__(self, me: m.Peer, config: CoreConfig) -> None:
        self.me, self.host, self.config = me, me.name, config
        self.runs: dict[RunId, RunCore] = {}
        self.context = HostContext(me.name)
        self.out = out = Outbox(self.context)
        self.silence = Suspicions(out, self.config)
        self.coordinator = Coordinator(out, self.config)
        self.links = links = Links(out, self.context, me, self.config, self.runs)
        replicas = ReplicaTable()
        self.failover_runs = FailoverRuns(self.runs, replicas)
        self.retries = Alarm(out, Timer.RETRY)
        self.lease = Alarm(out, Timer.LEASE)
        self._shared = HostServices(
            links.monitor,
            links.prober,
            links.latency_prober,
            links.coordinate_table,
            links.meters,
            self.silence,
            self.retries,
            replicas,
            self.runs,
        )
        self._at_work = NO_RUN  # run at work, in a pass over several runs
        self._heard: Local | None = None  # message of the host to itself that it handles now
        self.broken: dict[RunId, str] = {}  # dropped runs, with the reason
        self._spent: dict[RunId, tuple[int, int, int]] = {}  # run -> ``Links.costs`` when the run began
        self.ended_runs = EndedRuns(self.config)
        self.subscriptions = SubscriptionTable(out, me, self.config, self.runs)
        self.lingering: set[RunId] = set()  # R5: runs that go on for their guests

    # --- runs -----------------------------------------------------------------------------------------

    def open_run(self, install: m.Install, event: e.RunRequested | None = None) -> RunCore:
        """Open a run on this host (R1), after closing an earlier generation of the run (R7)."""
        survivors: dict[str, CarriedOver] = {}
        for other in self.generations(install.client, install.run):
            survivors = carried_over(self.runs[other], install)
            self.close_run(other, follows=install.run, kept=tuple(survivors))
        out, visit = self.out.of(install.run), tuple[RunSubscriptions, ...]()
        if self.subscriptions.known and (entry := self.subscriptions.get(install.run, install.client)) is not None:
            visit = (entry,)
        run = self.runs[install.run] = RunCore(install, out, self.config, self._shared, TABLE, visit)
        self._spent[install.run] = self.links.costs()
        if install.afresh:
            self.links.forget()
        run.begin(event, survivors)
        return run

    def generations(self, client: str, run_id: RunId) -> list[RunId]:
        """Return the generations of a run here: one at most (R7)."""
        runs, base = self.runs, run_id.first_generation
        if not run_id.generation and not self.failover_runs.replicas:
            return [run_id] if run_id in runs else []
        return [other for other, run in runs.items() if other.first_generation == base and run.install.client == client]

    def is_of_another(self, client: str, run_id: RunId) -> bool:
        """Return whether only other clients have a run with the id here, in any generation."""
        base = run_id.first_generation
        owners = {run.install.client for other, run in self.runs.items() if other.first_generation == base}
        return bool(owners) and client not in owners

    def close_run(
        self, run_id: RunId, *, follows: RunId = NO_RUN, kept: tuple[str, ...] = (), joined: int | None = None
    ) -> None:
        """Close a run on this host. ``follows``: the next generation, in which the nodes ``kept`` go on.

        ``joined``: number of the last ``Install`` of the run, if this host may join the run again (``ended_runs``).
        """
        run = self.runs.pop(run_id, None)
        if run is None:
            return
        spent = zip(self.links.costs(), self._spent.pop(run_id), strict=True)
        news, probes, sent = (now - then for now, then in spent)
        run.close(follows=bool(follows))
        run.out.record("monitor", detail={"news_bytes": news, "probe_bytes": probes, "bytes_sent": sent})
        run.out.emit(e.CloseRun(run_id, follows, kept))
        if not follows:
            self.subscriptions.end(run_id, "it is over here", run.install.client)
            self.failover_runs.forget(run)
            self.ended_runs.add(run.install.client, run_id, self.context.now, joined=joined)

    # --- runs that outlive their hosts ------------------------------------------------------------------

    def begin_fallen_anew(self) -> None:
        """Begin the next generation of every run that has lost a needed host (R7)."""
        for run, detected_s in self.failover_runs.fallen():
            self._recover(run, detected_s)
        self._at_work = NO_RUN

    def _recover(self, old: RunCore, detected_s: float) -> None:
        """Begin a run anew without the lost hosts (R7). If that is impossible, the run fails."""
        self._at_work = old.id
        lost = dict(old.directory.lost)
        queries = old.parts.existing(Queries)
        guests = () if queries is None else queries.peers
        install = old.parts.get(Recovery).plan(lost, (*self.coordinator.peers(old.id), *guests))
        if isinstance(install, str):
            old.out.fail(install, host=next((host for host in lost if repr(host) in install), ""), lost=True)
            return
        if requests_recovery_plan(old, install, lost.keys()):
            old.parts.get(Recovery).put_off(detected_s)
            return
        request = self.failover_runs.again(old, install)
        before = self.coordinator.supersede(old.id)
        self._at_work = install.run
        run = self.open_run(install, request)
        awaited = {entry.host for entry in install.locations}
        for host, how in lost.items():
            if host in run.directory.peers and host not in awaited:
                run.directory.leave_out(host, how)
        run.follow(old, lost, detected_s)
        run.out.emit(e.TreeChanged(run.id, install.dataflow, run.directory.where(install.dataflow.by_name)))
        self.pass_notes(run.id, self.coordinator.start(run, before))
        self.pass_notes(run.id, run.parts.get(Recovery).go_on())

    def pass_notes(self, run_id: RunId, told: Notes) -> None:
        """Pass notes of the coordinator to a run, unless a stranger with the client's name has removed the run (R2)."""
        for note in told:
            run = self.runs.get(run_id)
            if run is not None:
                run.handle_notes((note,))

    def pass_measured(self, told: Notes) -> None:
        """Pass the results of a measurement to every run."""
        for note in told:
            for run in self.each_run():
                run.handle_notes((note,))

    def work_on(self, run_id: RunId = NO_RUN) -> None:
        """Note which run handles an event, because a run that breaks is dropped. ``NO_RUN``: none."""
        self._at_work = run_id

    def hear(self, local: Local | None) -> None:
        """Note which message to itself the host handles, because a run that breaks is dropped. None: no message."""
        self._heard = local

    def each_run(self) -> Iterator[RunCore]:
        """Yield every run in turn, and note which run is at work."""
        for run_id, run in list(self.runs.items()):
            self._at_work = run_id
            yield run
        self._at_work = NO_RUN

    def at_fault(self, event: e.Event) -> RunId:
        """Return the run at work when ``handle`` raised an error over ``event``. ``NO_RUN``: no run in particular."""
        if self._heard is not None:
            return getattr(self._heard[0], "run", None) or NO_RUN
        if self._at_work:
            return self._at_work
        if isinstance(event, e.TimerFired):
            return event.key.run
        about = getattr(event, "install", None) or getattr(event, "message", event)
        return getattr(about, "run", None) or NO_RUN

    def on_broken(self, event: e.RunBroken) -> None:
        """Drop a run that broke, and send the reason to the client (R4)."""
        self._at_work, self._heard = NO_RUN, None
        if not event.run:
            return
        run_id, out = event.run, self.out.of(event.run)
        run = self.runs.pop(run_id, None)
        reason = event.reason[:4000]
        if run is None:  # the run broke while it was opened or closed
            if event.sender:
                out.send(event.sender, m.Installed(run_id, self.host, reason))
            out.emit(e.CloseRun(run_id))
            self.coordinator.drop(run_id)
            if self.failover_runs.broke(run_id, self.host):  # while the run began anew
                out.fail(reason, host=self.host)
            return
        self._spent.pop(run_id, None)
        self.failover_runs.forget(run)
        self.links.drop(run_id)
        self.ended_runs.add(run.install.client, run_id, self.context.now)
        self.broken[run_id] = reason
        if len(self.broken) > REMEMBERED:
            del self.broken[next(iter(self.broken))]
        if run.context.leads:
            run.out.fail(event.reason, host=self.host)
        else:
            out.send(run.install.client, m.Failed(run_id, "", reason))
        out.emit(e.CloseRun(run_id))
        self.subscriptions.end(run_id, reason, run.install.client)

    # --- this host did not run ---------------------------------------------------------------------------

    def on_woke(self, event: e.Woke) -> None:
        """Give every other host a fresh period (R10), but not before the last fresh period is over."""
        now, silent_s = self.out.now, self.config.patience * self.config.liveness_s
        fresh = now >= self.context.fresh_s + silent_s
        fault = f"did not run for {in_seconds(event.slept_s)}"
        for run in self.each_run():
            run.out.record("fault", peer=self.host, detail={"about": "itself", "what": fault}, duration_s=event.slept_s)
            if fresh:
                run.handle_sign_of_life()
        if fresh:
            self.context.fresh_s = now
            self.silence.refresh()
            self.subscriptions.refresh()
        self.coordinator.woke(event.slept_s, fresh=fresh)

    # --- runs that end -----------------------------------------------------------------------------------

    def on_abandoned(self, event: e.RunAbandoned) -> None:
        event = self.failover_runs.current(event)
        run = self.runs.get(event.run)
        if self.coordinator.goes_on(event.run):
            if run is not None and lingers(run) and event.run not in self.lingering:
                self.lingering.add(event.run)  # R5: guests still take partitions
                self.coordinator.linger(event.run)
                return
            self.lingering.discard(event.run)
            self.close_run(event.run)
            self.coordinator.stop(event.run)

    def end_unwanted(self) -> None:
        """End the runs that have gone on for guests, and have no guests left (R5)."""
        for run_id in list(self.lingering):
            run = self.runs.get(run_id)
            if run is None or not lingers(run):
                self.on_abandoned(e.RunAbandoned(run_id))
                self.lingering.discard(run_id)

    def watch_leases(self) -> None:
        """Set the time of the next check of the leases, if no check is due (R1)."""
        if self.lease.at_s is None:
            self.lease.by(self.out.now + self.config.lease_s / 2)

    def check_leases(self) -> None:
        """Close the runs whose clients have been silent for too long (R1)."""
        self.lease.rung()
        for run in self.each_run():
            if not run.context.leads and self.out.now - run.heard_s > self.config.patience * self.config.lease_s:
                detail = {"about": "client", "what": "client silent, run dropped"}
                run.out.record("fault", peer=run.install.client, detail=detail)
                visit = self.subscriptions.get(run.id, run.install.client)
                if visit is not None:
                    lease_s = self.config.patience * self.config.lease_s
                    visit.end(f"client {run.install.client!r}, which began it, has been silent for {lease_s:g} s")
                self.close_run(run.id, joined=run.install.number)
        if any(not run.context.leads for run in self.runs.values()):
            self.watch_leases()


def lingers(run: RunCore) -> bool:
    """Return whether guests still take partitions of a run (R5)."""
    subscribers = run.parts.existing(Subscribers)
    return subscribers is not None and subscribers.lingers


def requests_recovery_plan(run: RunCore, install: m.Install, lost: Set[str]) -> bool:
    """Ask the run's planner where the operators of lost hosts go. Return whether the run waits for the answer.

    The planner is asked once in a generation, if the run has a planner.
    """
    recovery, central = run.parts.get(Recovery), run.parts.existing(CentralSteering)
    if recovery.asking is not None:
        return recovery.asking
    remaining = run.directory.hosts - run.directory.vacating - lost
    asked = central is not None and central.request_recovery_plan(install, remaining)
    recovery.await_plan(asked=asked)
    return asked
