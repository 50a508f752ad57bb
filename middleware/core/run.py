"""One run as a host sees it: its parts, and who of them hears what.

Rules:

R1. A part owns its fields, and nobody else writes them.
R2. A part calls only what lies below it, and yields notes to what lies above. ``NOTE_HANDLERS`` says which parts hear a
    note, in which order; each hears it before the part that yielded it goes on.
R3. What rides on a message (newer locations, measured links, a commit) is taken off here, before the message is heard.
R4. Who may say what is one table: some of it only the client (``FROM_CLIENT``), the rest only hosts of the run
    (``Install.peers``), of which some is for the client (``TO_CLIENT``). A partition of a node that cannot move comes
    from its host, unless it was forwarded. What others say is recorded, and changes nothing.
R5. A guest (``subscribers``) is none of the run's hosts. It demands for the sinks that are its own, and says to the
    client what is in ``FROM_GUEST``. Nothing that rides on its demands is believed.
R6. What comes over relays counts as its source's, if it comes as the client has said (``flow.route_choice``), or says
    with the commit that rides on it.
R7. A guest that its client has lost may be let in again before it hears that. It begins with the graph as it is then,
    of which it may have missed a part.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

import msgspec

from thalweg.middleware.core import notes as n
from thalweg.middleware.core.flow.actions import LAST
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.epochs import EpochBooks
from thalweg.middleware.core.flow.flow import CarriedOver, Flow
from thalweg.middleware.core.flow.node_states import ENDED
from thalweg.middleware.core.flow.route_choice import route_fields
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.host_services import HostServices
from thalweg.middleware.core.outbox import Alarm, Outbox, RunContext, Timer
from thalweg.middleware.core.relocation.arrivals import Arrivals
from thalweg.middleware.core.relocation.carried_over import carried_over
from thalweg.middleware.core.relocation.checkpoints import Checkpoints
from thalweg.middleware.core.relocation.departures import Departures
from thalweg.middleware.core.relocation.inheritance import Inheritance
from thalweg.middleware.core.relocation.member import Member
from thalweg.middleware.core.relocation.membership import Membership
from thalweg.middleware.core.relocation.proposer import BEGUN_ANEW, ENDED_BEFORE, Proposer
from thalweg.middleware.core.relocation.queries import Queries
from thalweg.middleware.core.relocation.query_attachment import QueryAttachment
from thalweg.middleware.core.relocation.recovery import Recovery
from thalweg.middleware.core.relocation.reshaping import OperatorTransfers, Reshaping
from thalweg.middleware.core.relocation.run_subscriptions import RunSubscriptions
from thalweg.middleware.core.relocation.subscribers import Subscribers
from thalweg.middleware.core.steering.by_coordinates import CoordinateSteering
from thalweg.middleware.core.steering.by_epochs import EpochSteering, FlowParts
from thalweg.middleware.core.steering.central import CentralSteering
from thalweg.middleware.core.steering.gossip import Gossip
from thalweg.middleware.errors import in_seconds
from thalweg.middleware.network.view import NET
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig

Heard = n.Notes | None
NOTE_HANDLERS: Mapping[type[n.Note], tuple[Callable[[Any, Any], Heard], ...]] = {
    n.Light: (Departures.take_state,),
    n.Ended: (Departures.on_ended,),
    n.OutputMade: (Inheritance.on_made, Checkpoints.on_made),
    n.PartitionDelivered: (Recovery.on_delivered, Proposer.on_delivered, CentralSteering.on_delivered),
    n.OperatorLocated: (Departures.on_located, Arrivals.on_located),
    n.HandoverFinished: (Member.on_settled,),
    n.HandedOver: (Proposer.on_handed_over,),
    n.Prepared: (Member.on_prepared,),
    n.Unprepared: (Member.on_unprepared,),
    n.Merged: (Member.on_merged,),
    n.ChangedOver: (Recovery.on_changed, CentralSteering.on_changed_over),
    n.Started: (Recovery.on_started, Proposer.on_started, CentralSteering.on_started),
    n.Left: (Recovery.on_changed, Proposer.on_left),
    n.Invited: (Proposer.on_invited,),
    n.Vacating: (Proposer.on_vacating,),
    n.Leaving: (Proposer.on_leaving,),
    n.Refused: (Subscribers.on_refused,),
    n.NotJoined: (Recovery.on_not_joined, Proposer.on_not_joined),
    n.HostLost: (
        Flow.peer_gone,
        Departures.on_lost,
        Arrivals.on_lost,
        Checkpoints.on_lost,
        Recovery.on_lost,
        Subscribers.on_lost,
        Membership.on_lost,
        Proposer.on_lost,
        Queries.on_lost,
        CentralSteering.on_lost,
    ),
    n.LinkMeasured: (CentralSteering.on_measured, EpochSteering.on_measured),
    n.LatencyMeasured: (CentralSteering.on_sounded,),
}
EVENT_HANDLERS: Mapping[type[e.Event], tuple[Callable[[Any, Any], Heard], ...]] = {
    e.OperatorFailed: (Flow.failed,),
    e.NodeOpened: (Arrivals.on_opened,),
    e.StateTaken: (Checkpoints.on_taken, Inheritance.on_taken, Departures.on_taken),
    e.StateRestored: (Checkpoints.on_restored, Inheritance.on_merged, Arrivals.on_state_restored),
    e.PlacementProposed: (Proposer.on_placement_proposed,),
    e.AttachRequested: (Proposer.on_attach_requested,),
    e.DetachRequested: (Proposer.on_detach_requested,),
    e.SubscribersAllowed: (Subscribers.on_allowed,),
    e.PeerJoined: (Proposer.on_peer_joined,),
    e.PlanReady: (CentralSteering.on_planned,),
    e.RecoveryPlanReady: (Recovery.on_planned_anew,),
    e.NextRequested: (Flow.next,),
    e.OutputCommitted: (Recovery.on_had,),
}
MESSAGE_HANDLERS: Mapping[type[Any], tuple[Callable[..., Heard], ...]] = {
    m.SkipTo: (Flow.on_skip,),
    m.Skipped: (Flow.on_skipped,),
    m.ReplayNotNeeded: (Flow.on_replay_not_needed,),
    m.Offer: (Arrivals.on_offer,),
    m.State: (Arrivals.on_state, Inheritance.on_state),
    m.Checkpoint: (Checkpoints.on_checkpoint,),
    m.CheckpointRequest: (Checkpoints.on_request,),
    m.Accept: (Departures.on_accept,),
    m.Refuse: (Departures.on_refuse,),
    m.Restored: (Departures.on_restored,),
    m.Withdraw: (Arrivals.on_withdraw,),
    m.Resumed: (Departures.on_resumed,),
    m.Claim: (Inheritance.on_claim,),
    m.CheckpointStored: (Recovery.on_stable,),
    m.StateMissing: (Recovery.on_lacking, Checkpoints.on_lacking),
    m.CheckpointsObsolete: (Checkpoints.on_settled,),
    m.StripeIndices: (Flow.on_given,),
    m.Propose: (Member.on_propose,),
    m.Vote: (Proposer.on_vote,),
    m.Commit: (Member.on_commit,),
    m.Abort: (Member.on_abort,),
    m.Retire: (Member.on_retire,),
    m.Done: (Proposer.on_done,),
    m.Detach: (QueryAttachment.on_detach,),
    m.Detached: (Queries.on_detached,),
    m.AddMember: (QueryAttachment.on_admit,),
    m.Unsubscribe: (Subscribers.on_unsubscribe,),
    m.Leave: (Membership.on_leave,),
    m.Relocated: (Departures.on_relocated,),
    m.MoveRequest: (Proposer.on_wish,),
    m.Impassable: (CentralSteering.on_impassable,),
}
WITH_BYTES = frozenset({m.State, m.Checkpoint})
FROM_CLIENT = frozenset(
    {
        m.Install, m.Ping,
        m.Remove, m.Commit, m.Abort, m.Retire, m.Detach, m.Lost, m.AddMember,
        m.InstallSubscriber, m.SubscriptionEnded, m.Stay, m.CheckpointsObsolete, m.StripeIndices,
    }
)  # fmt: skip
TO_CLIENT = frozenset(
    {m.Vote, m.Done, m.Detached, m.Relocated, m.Unsubscribe, m.MoveRequest, m.Leave, m.CheckpointStored, m.Impassable}
)
FROM_GUEST = frozenset({m.Vote, m.Done, m.Detached, m.Unsubscribe, m.Installed, m.Failed, m.Pong, m.Removed})


class RunCore:
    """A run on one host, with its parts. ``now`` and the outgoing commands are the outbox's."""

    def __init__(
        self,
        install: m.Install,
        out: Outbox,
        limits: CoreConfig,
        shared: HostServices,
        visit: RunSubscriptions | None = None,
    ) -> None:
        self.id, self.install, self.out = install.run, install, out
        self.context = context = RunContext(out, limits, install)
        self.heard_s = out.now  # from the client
        self._host, self._shared = out.host, shared
        self._alarm = Alarm(out, Timer.MOVE)
        first = {start.node: start.index for start in install.starts if 0 < start.index < LAST}
        self.tree = tree = Tree(install.dataflow, first)  # R2: from here on each part gets those that it may call
        self.directory = directory = Directory(context, shared.monitor)
        self.members = directory.members
        self.books = books = EpochBooks(context)
        self.flow = flow = Flow(context, shared, tree, directory, books)
        self.departures = departures = Departures(context, self._alarm, tree, directory, books, flow)
        self.arrivals = Arrivals(context, shared, self._alarm, tree, directory, flow)
        self.inheritance = Inheritance(context, tree, directory, flow)
        self.checkpoints = Checkpoints(context, shared, tree, directory, flow, departures)
        self.recovery = Recovery(context, tree, directory, flow)
        ways = OperatorTransfers(departures, self.arrivals, self.inheritance)
        reshaping = Reshaping(context, tree, directory, flow, ways)
        self.query_attachment = QueryAttachment(context, tree, directory, flow, ways, visit)
        self.queries = Queries(context, tree, directory)
        self.subscribers = Subscribers(context, tree, directory, flow, self.queries)
        membership = Membership(context, tree, directory, self.queries)
        self.proposer = Proposer(context, tree, directory, flow, self.queries, self.subscribers, membership)
        self.member = Member(context, directory, flow, ways, reshaping, self.query_attachment)
        self.gossip = Gossip(context, shared, tree, directory, flow)
        self.central = CentralSteering(context, shared, tree, directory, departures, self.proposer, self.gossip)
        self.by_coordinates = CoordinateSteering(context, tree, directory, flow, self.gossip)
        self.by_epochs = EpochSteering(
            context, shared, FlowParts(tree, directory, books, flow), departures, self.member
        )
        hear = (
            flow, departures, self.arrivals, self.inheritance, self.checkpoints, self.recovery, self.query_attachment,
            self.queries, self.subscribers, membership, self.proposer, self.member, self.central, self.by_epochs,
        )  # fmt: skip  # not vars(self): after that Python 3.11 looks each attribute up anew, for every message
        parts = {kind.__name__: part for part in hear for kind in type(part).__mro__}

        def bound(heard: Callable[..., Heard]) -> Callable[..., Heard]:
            owner, name = heard.__qualname__.split(".")
            method: Callable[..., Heard] = getattr(parts[owner], name)
            return method

        tables = itertools.chain(NOTE_HANDLERS.items(), EVENT_HANDLERS.items())
        self._note_handlers = {kind: tuple([bound(hearer) for hearer in hearers]) for kind, hearers in tables}
        self._messages = {
            kind: tuple([bound(hearer) for hearer in hearers]) for kind, hearers in MESSAGE_HANDLERS.items()
        } | {m.Located: (self.on_located,), m.Lost: (self.on_lost,)}

    def knows(self, host: str) -> bool:
        """Whether that is one of the run's hosts, or of its guests."""
        return host in self.members or host in self.directory.subscribers

    def is_left_behind(self, message: m.InstallSubscriber) -> bool:
        """R7: return whether a client lets this host in anew, as it has ended all that this host takes of the run.

        A host that has the sink already has been let in: the message is a late copy, from before the sink was there.
        """
        nodes, here, install = message.install.dataflow.by_name, self.flow.nodes.keys(), message.install
        begins = message.sink not in nodes and message.sink not in here and here.isdisjoint(nodes)
        return begins and install.number > self.install.number

    def carried_over(self, install: m.Install) -> dict[str, CarriedOver]:
        """What goes on here in the run's next generation."""
        waiting = {*self.checkpoints.waiting, *self.inheritance.heirs}
        return carried_over(self.context, self.tree, self.flow, waiting, install)

    def begin(self, event: e.RunRequested | None, survivors: Mapping[str, CarriedOver]) -> None:
        """Take part in the run; with ``event`` as its client. ``carried_over`` go on from the generation before."""
        self.flow.take_over(survivors)
        self.out.emit(e.Meet(self.id, self.install.peers))
        over = self.context.fails_over  # of some nodes, as this is a later generation
        here = [name for name, node in self.flow.nodes.items() if not (over and node.state is ENDED)]
        here = [name for name in here if name not in survivors]
        self.out.emit(e.OpenRun(self.install, tuple(here)))
        for name in self.flow.nodes:
            self.books.keep(self.tree.dataflow, name)
        if event is not None:
            self.proposer.begin(event.free, event.merging)
            self.central.begin(event)
        self.checkpoints.begin(survivors)
        self.flow.go_on(survivors)
        self.gossip.begin()
        self.by_coordinates.begin()

    def close(self, *, follows: bool = False) -> None:
        """The run is over here, or another generation ``follows``."""
        self.departures.close()
        self.proposer.close(BEGUN_ANEW if follows else ENDED_BEFORE)
        self.central.close()
        self.gossip.close()
        self.recovery.close()

    def requests_recovery_plan(self, install: m.Install, lost: Set[str]) -> bool:
        """Whether the planner is asked first where operators of lost hosts go, as the run begins anew so."""
        recovery = self.recovery
        if recovery.asking is None:
            recovery.asking = self.central.request_recovery_plan(
                install, self.directory.hosts - self.directory.vacating - lost
            )
        return recovery.asking

    def follow(self, before: RunCore, lost: Mapping[str, str], detected_s: float) -> None:
        """At the client: go on as the next generation of a run."""
        self.recovery.follow(before.recovery, lost, detected_s)
        self.queries.follow(before.queries)
        self.subscribers.follow(before.subscribers)
        self.proposer.follow(before.proposer)

    def handle_notes(self, heard: Iterable[n.Note | e.Event] | None) -> None:
        """R2: have all notes heard, or an event, and those that come of them."""
        if heard:
            for note in heard:
                for hearer in self._note_handlers[type(note)]:
                    self.handle_notes(hearer(note))

    # --- messages -------------------------------------------------------------------------------------

    def may_say(self, sender: str, kind: type[Any]) -> bool:
        """R4: whether ``sender`` may send a message of that kind; recorded if not."""
        if sender == self.install.client or (sender in self.members and kind not in FROM_CLIENT):
            return True
        if self.context.leads and (kind is m.Subscribe or (kind in FROM_GUEST and self.subscribers.knows(sender))):
            return True  # R5: a guest, or a client that asks to become one
        self._unexpected(sender, kind)
        return False

    def _unexpected(self, sender: str, kind: type[Any]) -> None:
        self.out.record("unexpected", peer=sender, detail={"message": m.tag_of(kind)})

    def demand(self, sender: str, demand: m.Demand) -> None:
        if sender != self._host:
            if sender not in self.members:  # R4: the sender is no host of the run, and at most a guest
                if not self._demands_for_itself(sender, demand):
                    self._unexpected(sender, m.Demand)
                    return
                demand = msgspec.structs.replace(demand, news=None, commit=None, later=False, critical=False)
            if demand.news is not None:  # R3: piggybacked news counts before the demand
                self._take_news(sender, demand.news, 0)
            if demand.commit is not None:
                self.handle_notes(self.member.on_commit(sender, demand.commit))
        heard = self.flow.demand(sender, demand)
        if heard:
            self.handle_notes(heard)

    def _demands_for_itself(self, sender: str, demand: m.Demand | m.SkipTo) -> bool:
        """R5: whether a guest demands what one of its own sinks takes."""
        where = self.directory.locations.get(demand.consumer)
        return (
            demand.forwards == 0 and sender in self.directory.subscribers and where is not None and where.host == sender
        )

    def partition(self, sender: str, part: m.Partition, value: Any, size_bytes: int) -> None:
        if sender != self._host:
            if sender not in self.directory.senders.get(part.producer, self.members) and not self._forwards(
                sender, part
            ):
                self._unexpected(sender, m.Partition)
                return
            if part.news is not None:  # R3: piggybacked news counts before the partition
                self._take_news(sender, part.news, size_bytes)
            if part.commit is not None:
                self.handle_notes(self.member.on_commit(sender, part.commit))
        if self._shared.meters.runs and not part.end and part.consumer in self.flow.nodes:
            self._shared.meters.took(self.id, part.consumer, part.producer, part.index, size_bytes)
        heard = self.flow.partition(sender, part, value, size_bytes)
        if part.producer in self.tree.dataflow.several:
            heard = (*heard, *self.flow.share(sender, part, value, size_bytes))
        if heard:
            self.handle_notes(heard)

    def _forwards(self, sender: str, part: m.Partition) -> bool:
        """R4: whether a host that never had the producer may have this from who has, as the consumer was there once."""
        return part.forwards > 0 and sender in self.members and part.consumer not in self.directory.senders

    def _take_news(self, sender: str, news: m.Piggyback, size_bytes: int) -> None:
        """What rode on a message of ``size_bytes``."""
        if news.estimates:
            self._shared.monitor.handle_estimates(news.estimates, self.out.now, sender, size_bytes)
        if news.locations:
            self._insist(sender, news.locations)
            self._located(self.directory.merge(news.locations), self._host)

    def _insist(self, sender: str, entries: tuple[m.Location, ...]) -> None:
        """Put right what is said of operators that are here."""
        for entry in entries:
            if entry.node in self.flow.nodes and not self.directory.believes(entry):
                self.departures.insist(sender, entry)

    def _located(self, entries: tuple[m.Location, ...], sender: str) -> None:
        for entry in entries:
            self.handle_notes((n.OperatorLocated(entry, sender),))

    def message(self, sender: str, message: Any, payload: Any = None) -> None:
        """Any other message of this run."""
        kind = type(message)
        own = kind is m.SkipTo and self._demands_for_itself(sender, message)
        if not (own or self.may_say(sender, kind)) or (kind in TO_CLIENT and not self.context.leads):
            return
        words = (sender, message) if kind not in WITH_BYTES else (sender, message, payload)
        for hearer in self._messages[kind]:
            self.handle_notes(hearer(*words))

    def on_located(self, sender: str, message: m.Located) -> None:
        """A host tells newer locations, as older ones were used."""
        self._insist(sender, message.locations)
        believed = tuple([entry for entry in message.locations if self.directory.believes(entry)])
        self.directory.settle(believed)
        self._located(believed, sender)

    def on_lost(self, client: str, message: m.Lost) -> None:
        """A host is gone for good."""
        host = message.host
        self._located(self.directory.merge(message.locations), self._host)
        if self.directory.is_back(message):
            return
        if host in self.directory.hosts:
            self.directory.lose(host)
            self.handle_notes((n.HostLost(host),))
        held = tuple(entry for entry in self.directory.locations.values() if entry.host == host)
        if held:  # which the client did not know
            self.out.send(client, m.Located(self.id, held))

    def wants(self, sender: str, message: m.Partition | m.AnyState) -> bool:
        """Whether a partition or state that begins to arrive has been asked for and not come yet."""
        if sender not in self.members:
            return False
        if isinstance(message, m.Checkpoint):
            return self.checkpoints.wants(message)
        if isinstance(message, m.State):
            return self.inheritance.wants(message) if message.heir else self.arrivals.wants(message)
        node = self.flow.nodes.get(message.consumer)
        if node is None:
            return message.consumer in self.directory.locations  # to be forwarded
        return node.wants(message.producer, message.index)

    def passes(self, chunk: m.RelayedChunk) -> bool:
        """R6: whether what begins to come over relays is to come so."""
        if not self.members.issuperset({chunk.source, *(hop.host for hop in chunk.hops)}):
            return False
        commit = chunk.message.commit if type(chunk.message) is m.Partition else None
        return self.directory.routes.passes(chunk, self.member.coming(chunk.source, commit))

    # --- events ---------------------------------------------------------------------------------------

    def transfer_over(self, peer: str, part: m.Partition, *, arrived: bool, via: m.Via) -> None:
        """All of a partition has gone to ``peer``, or nobody knows what became of it."""
        ways = self.directory.routes
        if ways.table:
            (ways.came_through if arrived else ways.failed)(peer, via, part)
        self.flow.transfer_over(part, arrived=arrived)
        if not arrived:
            self.flow.stuck(peer)
            self._judge_relays(peer, part, via)

    def _judge_relays(self, peer: str, part: m.Partition, via: m.Via) -> None:
        """Tell the client of a route over relays that carries nothing, if there is no other: nobody sees its hops."""
        ways, limits = self.directory.routes, self.context.limits
        if isinstance(via, str) or not ways.table or ways.others(peer, via, part.index):
            return
        failing_s = ways.failing_s(peer, via)
        if failing_s >= limits.patience * limits.stall_s:
            hosts = " and ".join(hop.host for hop in via[:-1])
            path = f"to host {peer!r} by way of {hosts} for {in_seconds(failing_s)}; does each of these reach the next?"
            self._report_blocked_route(
                peer, part.producer, f"nothing has got through {path}", route_fields(via), failing_s
            )

    def state_over(self, peer: str, state: m.AnyState, *, arrived: bool, via: m.Via) -> None:
        """All of a state has gone to ``peer``, or nobody knows what became of it."""
        ways = self.directory.routes
        if ways.table:
            (ways.came_through if arrived else ways.failed)(peer, via, state)
        self.directory.states.over(peer, via, state, arrived=arrived)
        if isinstance(state, m.Checkpoint):
            self.checkpoints.on_transfer_over(peer, state, arrived=arrived)
        elif state.heir:
            self.inheritance.on_transfer_over(peer, state, arrived=arrived)
        else:
            self.departures.on_transfer_over(state, arrived=arrived)

    def blocked(self, event: e.TransferStalled) -> None:
        """Control messages pass to a host, and nothing of a partition or state does."""
        message, peer, via, directory = event.message, event.peer, event.via, self.directory
        if peer not in directory.everyone:
            return
        spared = isinstance(message, m.AnyState) and not self._is_awaited(message)
        alternatives = [
            other
            for other in directory.routes.others(peer, via, message.index if isinstance(message, m.Partition) else None)
            if not (isinstance(other, str) and self._shared.silence.is_blocked(self.id, peer, other))
        ]
        if isinstance(message, m.Probe) or spared or alternatives:
            self.out.emit(e.Redial(self.id, peer, via, again=False))
            return
        node = message.producer if isinstance(message, m.Partition) else message.node
        end = directory.peers[peer].ends.get(via, "") if peer in directory.peers else ""
        port, over = end.rpartition(":")[2], f" over network {via!r}" if via != NET else ""
        passed_s = in_seconds(self.context.limits.patience * self.context.limits.stall_s)
        why = (
            f"nothing has got through to host {peer!r}{over} for {passed_s}: control messages pass, partitions do not;"
            f" is port {port} open? is the path MTU smaller?"
        )
        self._report_blocked_route(peer, node, why, {"via": via}, event.idle_s)

    def _report_blocked_route(self, peer: str, node: str, why: str, route: dict[str, Any], idle_s: float) -> None:
        """Record that a route carries nothing, and tell the client."""
        self.out.record("fault", peer=peer, node=node, duration_s=idle_s, detail={"what": why, **route})
        self.out.send(self.install.client, m.Failed(self.id, node, why, lost=peer))

    def _is_awaited(self, state: m.AnyState) -> bool:
        """Whether somebody waits for a state: an operator that moves stays where it is instead, if that is long."""
        return self.checkpoints.is_awaited(state) if isinstance(state, m.Checkpoint) else bool(state.heir)

    def timer(self, timer: Timer, what: str) -> None:
        """Something is due in this run, of ``what`` where the timer is of something."""
        match timer:
            case Timer.MOVE:
                self._alarm.rung()
                self.arrivals.remind()
                self.handle_notes(self.departures.on_timer())
                self.arrivals.arm()
            case Timer.CLAIMS:
                self.inheritance.on_timer()
            case Timer.PLACE:
                self.recovery.asking = False
            case Timer.RESTORE:
                self.checkpoints.on_timer()
            case Timer.BARRIER:
                self.handle_notes(self.proposer.on_timer())
            case Timer.LEAVE:
                self.handle_notes(self.subscribers.on_timer())
                self.handle_notes(self.proposer.membership.on_timer())
                self.queries.on_timer()
            case Timer.PLAN:
                self.handle_notes(self.central.on_timer())
            case Timer.GUESTS:
                self.flow.laggards.on_timer()
            case Timer.SOUND:
                self.gossip.on_timer()
            case Timer.LOOK:
                self.by_coordinates.on_timer()
            case Timer.EPOCH:
                self.handle_notes(self.by_epochs.on_epoch(what))
            case Timer.PACE:
                self.flow.on_pace(what)
            case Timer.DECIDE:
                self.handle_notes(self.by_epochs.on_expired(what))

    def waits_for(self, host: str) -> tuple[str, str] | None:
        """A node here that needs the way to ``host``, and what for."""
        if host not in self.directory.everyone:
            return None
        return self.flow.waits_for(host) or self.inheritance.waits_for(host) or self.checkpoints.waits_for(host)

    @property
    def empty(self) -> bool:
        """Whether no node is here, or on its way."""
        return not (self.flow.nodes or self.arrivals.coming or self.departures.leaving)

    @property
    def vacant(self) -> bool:
        """Whether nothing is here that others need."""
        return self.empty and not self.flow.tails.left

    @property
    def operators(self) -> int:
        """How many operators are here or on their way."""
        return self.flow.operators + len(self.arrivals.coming)

    def validate(self) -> None:
        """Check the invariants of every part; for tests and the virtual shell."""
        self.flow.validate()
        self.departures.validate()
        self.arrivals.validate()
        self.inheritance.validate()
        self.checkpoints.validate()
        self.member.validate(self.tree.former is not None)
        known: Set[str] = self.tree.dataflow.by_name.keys()
        if self.tree.former is not None:
            known = known | self.tree.former.by_name.keys()
        assert self.directory.locations.keys() == known, self.directory.locations.keys() ^ known
        for node in self.flow.nodes.values():
            for name in node.node.inputs:
                assert name in known, node
