"""Run on one host: checks messages, notes, timers and transfers, and passes them to the parts that handle them.

Rules:

R1. A part owns its fields. Only the part writes them.
R2. A part calls only parts below it, and yields notes to parts above it. A part lists in its ``HANDLERS`` the notes
    that it handles. Each note is handled before the part that yielded it goes on.
R3. Piggybacked news on a message (newer locations, measured links, a commit) is used before the message is handled.
R4. Tables say who may send a message. Messages in ``FROM_CLIENT`` may come from the client only, and the remaining
    messages from hosts of the run (``Install.peers``). Messages in ``TO_CLIENT`` count at the client only. A partition
    of a node that cannot move comes from the node's host, unless the partition was forwarded. A message from a wrong
    sender is recorded, and changes nothing.
R5. A guest (``subscribers``) is no host of the run. It may demand partitions for its own sinks, and may send the
    messages in ``FROM_GUEST`` to the client. Piggybacked news on a guest's demand is ignored.
R6. A partition that comes over relays counts as sent by its source, if the client has named the route
    (``routes.route_choice``), or names it in the commit piggybacked on the partition.
R7. A guest that the client has lost may be let in again before the guest knows of the loss. The guest begins with the
    present graph, of which it may have missed a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any, ClassVar

import msgspec

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.context import notes as n
from thalweg.middleware.core.context.outbox import Outbox, RunContext, Timer
from thalweg.middleware.core.flow.actions import LAST
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.entries import CarriedOver
from thalweg.middleware.core.flow.epochs import EpochBooks
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.flow.node_states import ENDED
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.parts.host_services import HostServices
from thalweg.middleware.core.parts.part import (
    BEGUN_ANEW,
    ENDED_BEFORE,
    GenerationChange,
    PartTable,
    RunBeginning,
    RunParts,
)
from thalweg.middleware.core.routes.route_choice import route_fields
from thalweg.middleware.core.states.state_transfers import StateTransfers
from thalweg.middleware.errors import in_seconds
from thalweg.middleware.network.view import NET
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig

OF_NODES = frozenset({Timer.EPOCH, Timer.DECIDE, Timer.PACE})  # timers of one node
WITH_BYTES = frozenset({m.State, m.InheritedState, m.Checkpoint})
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
    """Run on one host, with its parts. The time ``now`` and the outgoing commands are in the outbox.

    ``table``: the parts that the run can have. ``given``: parts that the host has created before.
    """

    def __init__(
        self,
        install: m.Install,
        out: Outbox,
        limits: CoreConfig,
        shared: HostServices,
        table: PartTable,
        given: Iterable[Any] = (),
    ) -> None:
        self.id, self.install, self.out = install.run, install, out
        self.context = context = RunContext(out, limits, install)
        self.heard_s = out.now  # last sign of life of the client
        self._host, self._shared = out.host, shared
        first = {start.node: start.index for start in install.starts if 0 < start.index < LAST}
        self.parts = parts = RunParts(table, context, shared)
        self.tree = tree = parts.put(Tree(install.dataflow, first))
        self.directory = directory = parts.put(Directory(context, shared.monitor))
        self.members = directory.members
        self.books = books = parts.put(EpochBooks(context))
        self.flow = parts.put(Flow(context, shared, tree, directory, books))
        for part in given:
            parts.put(part)

    def knows(self, host: str) -> bool:
        """Return whether ``host`` is a host of the run, perhaps a lost one, or a guest."""
        return host in self.members or host in self.directory.subscribers

    def is_left_behind(self, message: m.InstallSubscriber) -> bool:
        """Return whether the client lets this host in anew, after ending every subscription of this host (R7).

        If this host has the sink already, it was let in before. Then the message is a late copy, from before the sink
        began.
        """
        nodes, here, install = message.install.dataflow.by_name, self.flow.nodes.keys(), message.install
        begins = message.sink not in nodes and message.sink not in here and here.isdisjoint(nodes)
        return begins and install.number > self.install.number

    def begin(self, event: e.RunRequested | None, survivors: Mapping[str, CarriedOver]) -> None:
        """Take part in the run. ``event``: the request, at the client. ``survivors``: nodes that are carried over."""
        self.flow.take_over(survivors)
        self.out.emit(e.Meet(self.id, self.install.peers))
        over = self.context.fails_over  # in a later generation some nodes may have ended
        here = [name for name, node in self.flow.nodes.items() if not (over and node.state is ENDED)]
        here = [name for name in here if name not in survivors]
        self.out.emit(e.OpenRun(self.install, tuple(here)))
        for name in self.flow.nodes:
            self.books.keep(self.tree.dataflow, name)
        self.parts.begin(event)
        for part in self.parts:
            part.on_run_begun(RunBeginning(event, survivors))

    def handle_sign_of_life(self) -> None:
        """Note a sign of life of the client, or the start of a fresh period for the client."""
        self.heard_s = self.out.now

    def close(self, *, follows: bool = False) -> None:
        """End the run on this host. ``follows``: another generation of the run begins here."""
        for part in self.parts:
            part.on_run_over(BEGUN_ANEW if follows else ENDED_BEFORE)

    def follow(self, before: RunCore, lost: Mapping[str, str], detected_s: float) -> None:
        """Go on, at the client, as the next generation of the run."""
        for part in before.parts:
            self.parts.get(type(part)).continue_from(part, GenerationChange(lost, detected_s))

    def handle_notes(self, heard: Iterable[n.Note | e.Event] | None) -> None:
        """Pass notes, or an event, to the parts that handle them, and so the notes yielded by these parts (R2)."""
        if heard:
            for note in heard:
                for hearer in self.parts.hearers(type(note), event=isinstance(note, e.Event)):
                    self.handle_notes(hearer(note))

    # --- messages -------------------------------------------------------------------------------------

    def may_say(self, sender: str, kind: type[Any]) -> bool:
        """Return whether ``sender`` may send a message of this kind (R4). If not, record the message."""
        if sender == self.install.client or (sender in self.members and kind not in FROM_CLIENT):
            return True
        if self.context.leads and (kind is m.Subscribe or (kind in FROM_GUEST and self.has_guest(sender))):
            return True  # R5: a guest, or a client that asks to become one
        self._unexpected(sender, kind)
        return False

    def has_guest(self, host: str) -> bool:
        """Return whether client ``host`` takes partitions of this run as a guest, or is being let in (R5)."""
        return any(part.admits(host) for part in self.parts)

    def has_client(self, host: str) -> bool:
        """Return whether client ``host`` is a guest, or has asked to become a guest (R5)."""
        return any(part.has_client(host) for part in self.parts)

    @property
    def unanswering(self) -> Iterator[tuple[str, float]]:
        """Hosts that have not answered a message to every host, each with the time of the message."""
        return (entry for part in self.parts for entry in part.unanswering)

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
                self._take_commit(sender, demand.commit)
        notes = self.flow.demand(sender, demand)
        if notes:
            self.handle_notes(notes)

    def _demands_for_itself(self, sender: str, demand: m.Demand | m.SkipTo) -> bool:
        """Return whether a guest demands a partition for a sink of its own (R5)."""
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
                self._take_commit(sender, part.commit)
        if self._shared.meters.runs and not part.end and part.consumer in self.flow.nodes:
            self._shared.meters.took(self.id, part.consumer, part.producer, part.index, size_bytes)
        notes = self.flow.partition(sender, part, value, size_bytes)
        if part.producer in self.tree.dataflow.several:
            notes = (*notes, *self.flow.share(sender, part, value, size_bytes))
        if notes:
            self.handle_notes(notes)

    def _forwards(self, sender: str, part: m.Partition) -> bool:
        """Return whether a host may forward a partition of another host (R4), as the consumer may have been there."""
        return part.forwards > 0 and sender in self.members and part.consumer not in self.directory.senders

    def _take_news(self, sender: str, news: m.Piggyback, size_bytes: int) -> None:
        """Use the news piggybacked on a message of ``size_bytes`` (R3)."""
        if news.estimates:
            self._shared.monitor.handle_estimates(news.estimates, self.out.now, sender, size_bytes)
        if news.locations:
            self._insist(sender, news.locations)
            self._located(self.directory.merge(news.locations), self._host)

    def _take_commit(self, sender: str, commit: m.Commit) -> None:
        """Pass a commit piggybacked on a message of ``sender`` to the part that handles commits (R3)."""
        for hearer in self.parts.hearers(m.Commit):
            self.handle_notes(hearer(sender, commit))

    def _insist(self, sender: str, entries: tuple[m.Location, ...]) -> None:
        """Correct wrong locations that ``sender`` has for operators on this host."""
        for entry in entries:
            if entry.node in self.flow.nodes and not self.directory.believes(entry):
                for hearer in self.parts.hearers(n.Misplaced, event=True):  # the first one creates the part
                    hearer(n.Misplaced(entry, sender))

    def _located(self, entries: tuple[m.Location, ...], sender: str) -> None:
        for entry in entries:
            self.handle_notes((n.OperatorLocated(entry, sender),))

    def message(self, sender: str, message: Any, payload: Any = None) -> None:
        """Handle a message that is neither a demand nor a partition."""
        kind = type(message)
        own = kind is m.SkipTo and self._demands_for_itself(sender, message)
        if not (own or self.may_say(sender, kind)) or (kind in TO_CLIENT and not self.context.leads):
            return
        words: tuple[Any, ...] = (sender, message)
        if kind in WITH_BYTES:
            words = (sender, message, payload if message.inline is None else message.inline)
        own_handler = self._MESSAGES.get(kind)
        if own_handler is not None:
            own_handler(self, sender, message)
        for hearer in self.parts.hearers(kind):
            self.handle_notes(hearer(*words))

    def _on_located(self, sender: str, message: m.Located) -> None:
        """Take newer locations. A host sends them because this host has used older locations."""
        self._insist(sender, message.locations)
        believed = tuple([entry for entry in message.locations if self.directory.believes(entry)])
        self.directory.settle(believed)
        self._located(believed, sender)

    def _on_lost(self, client: str, message: m.Lost) -> None:
        """Handle the loss of a host for good. Report nodes on the lost host to the client."""
        host = message.host
        self._located(self.directory.merge(message.locations), self._host)
        if self.directory.is_back(message):
            return
        if host in self.directory.hosts:
            self.directory.lose(host)
            self.handle_notes((n.HostLost(host),))
        held = tuple(entry for entry in self.directory.locations.values() if entry.host == host)
        if held:  # the client did not know of these
            self.out.send(client, m.Located(self.id, held))

    def wants(self, sender: str, message: m.Partition | m.AnyState) -> bool:
        """Return whether a partition or state that begins to arrive was demanded and has not come yet."""
        if sender not in self.members:
            return False
        if isinstance(message, m.AnyState):
            fits = message.size_bytes <= self.context.limits.max_state_bytes
            return fits and any(part.wants(message) for part in self.parts.handling(type(message)))
        node = self.flow.nodes.get(message.consumer)
        if node is None:
            return message.consumer in self.directory.locations  # the partition is to be forwarded
        return node.wants(message.producer, message.index)

    def passes(self, chunk: m.RelayedChunk) -> bool:
        """Return whether a partition begins to arrive over a route with relays that the client has named (R6)."""
        if not self.members.issuperset({chunk.source, *(hop.host for hop in chunk.hops)}):
            return False
        commit = chunk.message.commit if type(chunk.message) is m.Partition else None
        return self.directory.routes.passes(chunk, self._routes_by(chunk.source, commit))

    def _routes_by(self, sender: str, commit: m.Commit | None) -> tuple[m.RoutePreference, ...]:
        """Return the routes of a commit piggybacked on a partition that begins to arrive (R6)."""
        if commit is None:
            return ()
        self.parts.hearers(m.Commit)  # P2 of ``part``: creates the part that the commit is for
        return tuple([way for part in self.parts.handling(m.Commit) for way in part.routes_by(sender, commit)])

    # --- events ---------------------------------------------------------------------------------------

    def transfer_over(self, peer: str, part: m.Partition, *, arrived: bool, via: m.Via) -> None:
        """Note the end of a partition's transfer to ``peer``. Without ``arrived`` the arrival is unknown."""
        ways = self.directory.chosen_routes
        if ways is not None and ways.table:
            (ways.came_through if arrived else ways.failed)(peer, via, part)
        self.flow.transfer_over(part, arrived=arrived)
        if not arrived:
            self.flow.demands.stuck(peer)
            self._judge_relays(peer, part, via)

    def _judge_relays(self, peer: str, part: m.Partition, via: m.Via) -> None:
        """Report to the client a route over relays that carries nothing, if there is no other route.

        No host can see which hop of the route fails.
        """
        ways, limits = self.directory.routes, self.context.limits
        if isinstance(via, str) or not ways.table or ways.others(peer, via, part.index):
            return
        failing_s = ways.failing_s(peer, via)
        if failing_s >= limits.patience * limits.stall_s:
            hosts = " and ".join(hop.host for hop in via[:-1])
            why = (
                f"nothing has got through to host {peer!r} by way of {hosts} for {in_seconds(failing_s)};"
                " does each of these hosts reach the next?"
            )
            self._report_blocked_route(peer, part.producer, why, route_fields(via), failing_s)

    def state_over(self, peer: str, state: m.AnyState, *, arrived: bool, via: m.Via) -> None:
        """Note the end of a state's transfer to ``peer``. Without ``arrived`` the arrival is unknown."""
        ways = self.directory.routes
        if ways.table:
            (ways.came_through if arrived else ways.failed)(peer, via, state)
        transfers = self.parts.existing(StateTransfers)
        if transfers is not None:
            transfers.over(peer, via, state, arrived=arrived)
        for hearer in self.parts.hearers(("transfer", type(state))):
            hearer(peer, state, arrived=arrived)

    def blocked(self, event: e.TransferStalled) -> None:
        """Handle a blocked route: control messages pass to a host, and nothing of a partition or state does.

        If there is another route, or no receiver waits, the connection is made anew. Otherwise the client is notified.
        """
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
        """Record that a route carries nothing, and notify the client."""
        self.out.record("fault", peer=peer, node=node, duration_s=idle_s, detail={"what": why, **route})
        self.out.send(self.install.client, m.Failed(self.id, node, why, lost=peer))

    def _is_awaited(self, state: m.AnyState) -> bool:
        """Return whether a receiver waits for a state.

        No receiver waits for the state of a moving operator. If its transfer takes long, the operator stays on its
        host.
        """
        return any(part.awaits(state) for part in self.parts.handling(type(state)))

    def timer(self, timer: Timer, what: str) -> None:
        """Pass a timer to the parts that handle the timer. ``what``: the node, for a timer of a single node."""
        for hearer in self.parts.hearers(timer):
            self.handle_notes(hearer(what) if timer in OF_NODES else hearer())

    def waits_for(self, host: str) -> tuple[str, str] | None:
        """Return a node on this host that waits for ``host``, and the reason. None: no node waits."""
        if host not in self.directory.everyone:
            return None
        waits = (part.waits_for(host) for part in self.parts)
        return next((node_and_reason for node_and_reason in waits if node_and_reason is not None), None)

    @property
    def empty(self) -> bool:
        """Return whether no node is on this host, on the way here, or about to leave."""
        return not self.flow.nodes and not any(part.coming or part.leaving for part in self.parts)

    @property
    def vacant(self) -> bool:
        """Return whether this host has no node of the run, and no last output that may still be demanded."""
        return self.empty and not self.flow.has_tails

    @property
    def operators(self) -> int:
        """Number of operators that are on this host or on the way here."""
        return self.flow.operators + plain_sum(len(part.coming) for part in self.parts)

    def validate(self) -> None:
        """Check the invariants of every part, for tests and the virtual shell. Raise AssertionError if one fails."""
        for part in self.parts:
            part.validate()
        known: Set[str] = self.tree.dataflow.by_name.keys()
        if self.tree.former is not None:
            known = known | self.tree.former.by_name.keys()
        assert self.directory.locations.keys() == known, self.directory.locations.keys() ^ known
        for node in self.flow.nodes.values():
            for name in node.node.inputs:
                assert name in known, node

    _MESSAGES: ClassVar[dict[type[Any], Callable[[RunCore, str, Any], None]]] = {
        m.Located: _on_located,
        m.Lost: _on_lost,
    }


RUN_MESSAGES = frozenset({m.Demand, m.Partition, *RunCore._MESSAGES})  # handled by the run itself
