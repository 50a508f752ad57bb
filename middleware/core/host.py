"""Pure core of a host: every decision for every node of every run on the host. Events come in, and commands go out.

Rules:

R1. A run is opened by its client's ``Install``. It is closed by ``Remove``, or when the client has been silent for
    ``lease_s``. An ``Install`` opens no run if it was sent before this host was restarted, or if the run is over
    (``ended_runs``). Messages of unknown runs change nothing, but ``Remove`` marks the run as over. A host that joins
    again after an absence opens the run anew, because the host may have missed news of hosts and nodes.
R2. Every message from the network is answered, recorded or ignored. No message can end a host. A message of a run
    counts only from a permitted sender (R4 of ``run``). ``hosting.admission`` says which runs are not opened, and why.
R3. A message of the host to itself is handled after every consequence of the present event.
R4. A run whose parts may contradict each other is dropped without a call of its parts. The client gets the reason, also
    when it asks again. A repeated ``Install`` does not open the run.
R5. If the application has got every partition of a run and is done with the run, the run goes on until the guests are
    done too. The run ends earlier if the application abandons it a second time.
R6. A drained host takes part in no new run, and leaves its present runs (``membership``), also in their next
    generation. The host does not wait for a client that has been silent for ``liveness_s``.
R7. A host has one generation of a run with failover, the newest that the client has requested. The generation closes
    earlier generations, and late messages of these change nothing (``failover.failover_runs``). If a client requests an
    older generation, the host answers who leads the run. A client that has begun a later generation itself ignores the
    answer.
R8. A striped stream of this host's application is one run for every tree (``stripes.striping``). The application gets
    news of the stream only.
R9. A message that does not decode changes nothing. After ``MOST_IN_A_ROW`` such messages of one type in a row, the
    sender counts as failed in the run that the messages name. If the run cannot be read, the sender counts as failed in
    every run. At a host that does not lead the run, the failure is reported to the client only while the host waits for
    the sender.
R10. If this host did not run for a while (``Woke``), every other host gets a fresh period before silence counts. This
    happens once in ``liveness_s`` at most, so a host that often sleeps still notices lost hosts.
R11. A host whose certificate has expired counts as failed in every run, as in R9. If the certificate of this host has
    expired, every run that this host leads ends.

``HostCore`` finds the run of an event. ``run`` handles the event in the run, and ``hosting.runs`` begins and ends runs.
``run_subscriptions`` has the subscriptions of this host's application to runs of other clients. ``hosting.links`` has
the measurements of links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import msgspec
from msgspec import UNSET

from thalweg.middleware.core.context.notes import HostInstalled, HostLost, HostsPinged, HostTakesPart
from thalweg.middleware.core.context.outbox import Timer
from thalweg.middleware.core.failover.generation_states import GenerationState, generation_state
from thalweg.middleware.core.flow.actions import LAST
from thalweg.middleware.core.flow.node_states import ENDED, GATHERING
from thalweg.middleware.core.hosting.admission import why_not
from thalweg.middleware.core.hosting.links import Links
from thalweg.middleware.core.hosting.runs import TABLE, Runs
from thalweg.middleware.core.hosting.undecoded import MOST_IN_A_ROW, UndecodedMessages
from thalweg.middleware.core.measuring.silence import StallAction
from thalweg.middleware.core.queries.query_attachment import QueryAttachment
from thalweg.middleware.core.queries.run_subscriptions import RunSubscriptions, check_visit
from thalweg.middleware.core.runs.run import RUN_MESSAGES
from thalweg.middleware.core.stripes.striped_runs import Stripes
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.frames import SPEAKS
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import NO_RUN, RunId

THROUGH_HOST = frozenset({m.Subscribe, m.Failed})  # handled by the host, or passed to a part of a run
OF_RUNS = frozenset({*TABLE.messages, *RUN_MESSAGES}) - THROUGH_HOST
OF_HOSTS = frozenset({m.Hello, m.Welcome})  # every other message names a run


class HostCore:
    """Pure core of one host. Only ``handle`` changes the state."""

    def __init__(
        self, me: m.Peer, config: CoreConfig | None = None, codes: tuple[str, ...] = (), speaks: m.Speaks = SPEAKS
    ) -> None:
        self.hosted = hosted = Runs(me, config or CoreConfig())
        self.me, self.host, self.config, self.runs = hosted.me, hosted.host, hosted.config, hosted.runs
        self.context, self.out, self.ended_runs = hosted.context, hosted.out, hosted.ended_runs
        self.coordinator, self.links, self.silence = hosted.coordinator, hosted.links, hosted.silence
        self._welcome = m.Welcome(me.name, me.control, me.bulk, codes, me.instance, me.max_partition_bytes, speaks)
        self._stripes = Stripes(self.out, self.config, self.runs, hosted.failover_runs)
        self._undecoded = UndecodedMessages()
        # read for every event
        self._streams, self._led, self._lingering = self._stripes.led, hosted.failover_runs.led, hosted.lingering
        self._handlers = self._HANDLERS  # read for every event; through the class a look-up takes longer (3.11)

    def handle(self, event: e.Event, now: float) -> list[e.Command]:
        """Return the commands that answer ``event``, which happened at ``now`` (seconds, never decreasing)."""
        desk, streams = self.context, self._streams
        desk.now = now
        if streams and self._stripes.concern(event):  # R8: the event is about a striped stream as a whole
            for event_of_run in self._stripes.handle_event(event):
                self._act(event_of_run)
        else:
            self._handlers[type(event)](self, event)
        if desk.local or self._lingering or self._led:
            self._finish()
        if streams:
            self._finish_streams()
        commands, desk.commands = desk.commands, []
        return commands

    def _act(self, event: e.Event) -> None:
        self._handlers[type(event)](self, event)

    def _finish(self) -> None:
        """Handle the messages of the host to itself. Then end runs without guests, and begin runs anew after a loss."""
        local, host = self.context.local, self.host
        while local:  # R3: messages to this host itself come after all else
            pending = message, value, size_bytes = local.popleft()
            self.hosted.hear(pending)
            self._handle_message(host, message, value, size_bytes)
        self.hosted.hear(None)
        if self._lingering:
            self.hosted.end_unwanted()
        if self._led:
            self.hosted.begin_fallen_anew()

    def _finish_streams(self) -> None:
        """Pass commands of runs to the streams of these runs, and handle the events that the streams return (R8).

        Other commands are kept for the shell.
        """
        desk, stripes, passed = self.context, self._stripes, list[e.Command]()
        while True:
            while desk.commands:
                commands, desk.commands = desk.commands, []
                for command in commands:
                    if type(command) in stripes.HANDLED:
                        for outcome in stripes.handle_command(command):
                            if isinstance(outcome, e.Event):
                                self._act(outcome)
                            else:
                                passed.append(outcome)
                    else:
                        passed.append(command)
                self._finish()
            for event in stripes.go_on():
                self._act(event)
            if not desk.commands and not desk.local:
                desk.commands = passed
                return
            self._finish()

    def wants(self, sender: str, message: m.Bulk) -> bool:
        """Return whether a partition or state that begins to arrive was demanded and has not come yet.

        A shell takes no memory for an unwanted one.
        """
        if isinstance(message, m.Probe):
            return True
        run = self.runs.get(message.run)
        return run is not None and run.wants(sender, message)

    def passes(self, sender: str, chunk: m.RelayedChunk, via: str) -> bool:
        """Return whether a partition begins to arrive over relays on a route that the client has named.

        The partition comes from ``sender`` over ``via``. It is passed on here, or taken as sent by the source.
        """
        run, here = self.runs.get(chunk.message.run), chunk.hops[chunk.at]
        before = chunk.hops[chunk.at - 1].host if chunk.at else chunk.source
        return run is not None and (sender, self.host, via) == (before, here.host, here.via) and run.passes(chunk)

    def forwards(self, message: m.Bulk) -> bool:
        """Return whether a partition is for a node on another host."""
        run = self.runs.get(message.run)
        return run is not None and isinstance(message, m.Partition) and message.consumer not in run.flow.nodes

    def lagging(self) -> Iterator[tuple[str, str, str, str, int]]:
        """Yield the consumers that hold up nodes on this host: run, node, consumer, host and partition."""
        for run in self.runs.values():
            where = run.directory.locations
            for node, consumer, index in run.flow.lagging():
                location = where.get(consumer or node)
                yield str(run.id), node, consumer, self.host if location is None else location.host, index

    def validate(self) -> None:
        """Check the invariants of every run, for tests and the virtual shell. Raise AssertionError if one fails."""
        self._stripes.validate()
        for run in self.runs.values():
            assert not self.ended_runs.knows(run.install.client, run.id, self.context.now), f"run {run.id} is over"
            run.validate()
        here = {(run.install.client, run.id.first_generation) for run in self.runs.values()}
        assert len(here) == len(self.runs), f"two generations of a run are here: {sorted(map(str, self.runs))}"
        replicated = self.hosted.failover_runs.replicas.keys()
        assert replicated <= here, f"replicas of a run that is over: {replicated}"

    # --- events ---------------------------------------------------------------------------------------

    def _on_message(self, event: e.MessageReceived) -> None:
        if self.coordinator.led:
            self.coordinator.handle_sign_of_life(event.sender)
        if self._undecoded.rows:
            self._undecoded.end(event.sender, m.tag_of(type(event.message)))
        if event.via is not UNSET and type(event.message) is m.Probe:
            self.links.on_probe(event.sender, event.message, event.via)
            return
        self._handle_message(event.sender, event.message, event.payload, event.size_bytes)

    def _handle_message(self, sender: str, message: Any, payload: Any, size_bytes: int) -> None:
        kind = type(message)
        if kind is m.Unsubscribe and self._led:  # guests know a run by its own id
            message = self.hosted.failover_runs.current(message)
        run = self.runs.get(message.run) if kind in OF_RUNS else None
        if run is not None:
            if kind is m.Demand:
                run.demand(sender, message)
            elif kind is m.Partition:
                run.partition(sender, message, payload, size_bytes)
            else:
                run.message(sender, message, payload)
        elif kind in self._MESSAGES:
            run = self.runs.get(message.run) if kind not in OF_HOSTS else None
            if run is None or run.may_say(sender, kind):
                self._MESSAGES[kind](self, sender, message)
        elif kind in Links.MESSAGES:
            run = self.runs.get(message.run)
            if run is None or run.may_say(sender, kind):
                self.hosted.pass_measured(self.links.handle_message(sender, message))
        elif kind not in OF_RUNS:
            # R2: a message that no part handles changes nothing
            self.out.record("unexpected", peer=sender, detail={"message": m.tag_of(kind)})

    def _on_undecoded(self, event: e.DecodingFailed) -> None:
        """Count a message that does not decode. After too many in a row, the sender has failed (R9)."""
        sender = event.sender
        if not self._undecoded.add(sender, event.kind):
            return
        how = f"has sent {MOST_IN_A_ROW} messages of one type in a row that do not decode; does it run another version?"
        self._do_without(sender, how, event.run)

    def _do_without(self, host: str, how: str, only: RunId = NO_RUN) -> None:
        """Treat a host as failed in every run in which it has a part, or in the run ``only`` (R9)."""
        for run in [*self.runs.values()]:
            if only not in (NO_RUN, run.id) or not run.knows(host) or host == self.host:
                continue
            self.hosted.work_on(run.id)
            if run.context.leads:
                self.hosted.pass_notes(run.id, self.coordinator.on_unfit(run.id, host, how))
            elif (waits := run.waits_for(host)) is not None:
                node, purpose = waits
                why = f"host {host!r}, {purpose}, {how}"
                run.out.send(run.install.client, m.Failed(run.id, node, why, lost=host))
        self.hosted.work_on()

    def _on_expired(self, event: e.CertificateExpired) -> None:
        """Treat a host with an expired certificate as failed. For this host, end the runs of the application (R11)."""
        if event.peer != self.host:
            self._do_without(event.peer, event.how)
            return
        for run in [*self.runs.values()]:
            if run.context.leads:
                self.hosted.work_on(run.id)
                run.out.fail(f"this client, {self.host!r}, {event.how}", host=self.host)
        self.hosted.work_on()

    def _of_application(self, event: Any) -> None:
        event = self.hosted.failover_runs.current(event) if self._led else event
        subscriptions = self.hosted.subscriptions
        if subscriptions.known and event.run not in self.runs and (here := subscriptions.here(event.run)):
            event = msgspec.structs.replace(event, run=here)
        self._of_run(event)

    def _on_placement_proposed(self, event: e.PlacementProposed) -> None:
        """Propose a placement in a run, or answer the application that the run is over."""
        event = self.hosted.failover_runs.current(event) if self._led else event
        if event.run in self.runs or event.number is UNSET:
            self._of_run(event)
        else:
            self.out.of(event.run).emit(e.MoveEnded(event.run, event.number, why="the run is over"))

    def _of_run(self, event: Any) -> None:
        """Pass an event to the parts of its run, if the run is here."""
        run = self.runs.get(event.run)
        if run is not None:
            run.handle_notes((event,))

    def _on_failed_call(self, event: e.OperatorFailed) -> None:
        run = self.hosted.failover_runs.called_by(event)
        if run is not None:
            run.handle_notes((event,))

    def _on_finished(self, event: e.OperatorFinished) -> None:
        run = self.runs.get(event.run)
        if run is None:
            run = self.hosted.failover_runs.called_by(event)
        if run is not None:
            meters = self.links.meters
            if meters.runs and not event.end:
                meters.made(run.id, event.node, event.index, event.size_bytes, event.duration_s, self.context.now)
            notes = run.flow.finished(event)
            if notes:
                run.handle_notes(notes)

    def _on_timer(self, event: e.TimerFired) -> None:
        timer, about = event.key.timer, event.key.run
        if timer == Timer.RETRY:  # the most frequent timer by far
            self._retry()
            return
        timer = Timer(timer)
        if timer is Timer.LEASE:
            self.hosted.check_leases()
        elif timer is Timer.PROBE:
            self.links.prober.on_timer()
        elif timer is Timer.SILENCE:
            self._check_silence()
        elif timer is Timer.DRAIN:
            if self.context.draining:
                self._leave()
        elif timer is Timer.VISIT:
            self.hosted.close_run(self.hosted.subscriptions.on_timer(about))
        elif timer in (Timer.INSTALL, Timer.REMOVE):
            self.coordinator.on_timer(timer, about)
        elif timer is Timer.PING:
            self._ping_hosts(about)
        else:
            run = self.runs.get(about)
            if run is not None:
                run.timer(timer, event.key.what)
                if timer in (Timer.BARRIER, Timer.LEAVE):
                    for host, since_s in [*run.unanswering]:
                        self.hosted.pass_notes(run.id, self.coordinator.on_unanswered(run.id, host, since_s))

    def _ping_hosts(self, name: RunId) -> None:
        """Ping the hosts of a run, or of the stripes of a stream, as the timer has fired."""
        for run_id, note in self.coordinator.on_ping_timer(name):
            self.hosted.pass_notes(run_id, (note,))
        for run in self.hosted.each_run():
            if run.id.asked_as == name:
                run.handle_notes((HostsPinged(),))

    def _retry(self) -> None:
        """Repeat the demands that are due. Demands answered since then cost nothing but this pass."""
        self.hosted.retries.rung()
        due_s = [at_s for run in self.hosted.each_run() if (at_s := run.flow.demands.retry()) is not None]
        if due_s:
            self.hosted.retries.by(min(due_s))

    def _check_silence(self) -> None:
        self.silence.begin_checks()
        waiting = False
        for current in self.hosted.each_run():
            if current.context.fails_over:
                waiting = current.flow.demands.check_waiting() or waiting
        for run_id, host in list(self.silence.of):
            self.hosted.work_on(run_id)
            run = self.runs.get(run_id)
            client, waits = ("", None) if run is None else (run.install.client, run.waits_for(host))
            self.silence.check(run_id, host, client, waits)
        self.hosted.work_on()
        self.silence.go_on(waiting=waiting)

    def _on_measured(self, event: e.TransferMeasured) -> None:
        message, peer = event.message, event.peer
        if type(message) is m.Partition:
            run = self.runs.get(message.run)
            if run is not None:
                run.transfer_over(peer, message, arrived=True, via=event.via)
            self.links.carried(event, message, run)
        elif isinstance(message, m.AnyState):
            run = self.runs.get(message.run)
            if run is not None:
                run.state_over(peer, message, arrived=True, via=event.via)
        elif type(message) is m.Probe:
            self.hosted.pass_measured(self.links.probed(event, message))

    def _on_relayed(self, event: e.Relayed) -> None:
        """Measure a link by a partition that the host has passed on."""
        self.links.passed_on(event, event.message, self.runs.get(event.message.run))

    def _on_transfer_failed(self, event: e.TransferFailed) -> None:
        message = event.message
        if type(message) is m.Probe:
            self.links.prober.on_failed(m.links_over(self.host, event.peer, event.via)[0], message)
        elif type(message) is m.Partition:
            run = self.runs.get(message.run)
            if run is not None:
                run.transfer_over(event.peer, message, arrived=False, via=event.via)
            self.out.of(message.run).record("fault", peer=event.peer, node=message.producer)
        elif isinstance(message, m.AnyState):
            run = self.runs.get(message.run)
            if run is not None:
                run.state_over(event.peer, message, arrived=False, via=event.via)

    def _on_peer_reached(self, event: e.PeerReached) -> None:
        """Repeat messages to a host at once, as messages get through again."""
        for run in self.hosted.each_run():
            run.flow.demands.hurry(event.peer)
        self.coordinator.hurry(event.peer)

    def _on_transfer_stalled(self, event: e.TransferStalled) -> None:
        """Handle a transfer of which nothing gets through: connect anew, or report a blocked route for bulk."""
        run = self.runs.get(event.message.run)
        if run is None:
            return
        step = self.silence.on_stalled(run.id, event.peer, event.via, event.idle_s)
        if step is StallAction.REDIAL:
            run.out.emit(e.Redial(run.id, event.peer, event.via))
        elif step is StallAction.BLOCKED:
            run.blocked(event)

    def _on_peer_lost(self, event: e.PeerLost) -> None:
        event = self.hosted.failover_runs.current(event)
        self.hosted.pass_notes(event.run, self.coordinator.on_peer_lost(event))
        run = self.runs.get(event.run)
        if run is not None and run.has_client(event.peer):  # a guest that may not be let in yet
            run.handle_notes((HostLost(event.peer, event.how),))

    def _on_peer_joined(self, event: e.PeerJoined) -> None:
        event = self.hosted.failover_runs.current(event)
        run, name = self.runs.get(event.run), event.peer.name
        if run is None or not self.coordinator.goes_on(event.run):
            return
        known = run.directory.peers.get(name)
        if name in run.directory.hosts and known is not None and known.instance != event.peer.instance:
            self.coordinator.listens(event.run, event.peer)
            self._on_peer_lost(e.PeerLost(event.run, name, "was restarted"))
        if not run.out.failed:
            run.handle_notes((event,))

    def _on_abandoned(self, event: e.RunAbandoned) -> None:
        self.hosted.on_abandoned(event)

    def _on_broken(self, event: e.RunBroken) -> None:
        self.hosted.on_broken(event)

    def _on_woke(self, event: e.Woke) -> None:
        self.hosted.on_woke(event)

    def at_fault(self, event: e.Event) -> RunId:
        """Return the run at work when ``handle`` raised an error over ``event``. ``NO_RUN``: no run in particular."""
        return self.hosted.at_fault(event)

    # --- this host is drained -------------------------------------------------------------------------

    def _on_drain_requested(self, event: e.DrainRequested) -> None:
        if not self.context.draining:
            self.context.draining = True
            self._leave()

    def _leave(self) -> None:
        """Ask the clients of the runs here, but for silent clients, to let the host leave (R6)."""
        silent_s, asked = self.config.patience * self.config.liveness_s, False
        for run in self.hosted.each_run():
            if run.context.leads or self.out.now - run.heard_s <= silent_s:
                run.out.send(run.install.client, m.Leave(run.id, run.vacant))
                asked = True
        if asked:
            self.out.wake(Timer.DRAIN, self.out.now + self.config.retry_s)
        else:
            self.out.emit(e.DrainFinished())

    def _on_stay(self, sender: str, message: m.Stay) -> None:
        if message.run in self.runs and self.context.draining:
            self.context.draining = False
            self.out.emit(e.DrainFinished(message.why))

    def _on_run_requested(self, event: e.RunRequested) -> None:
        run = self.hosted.open_run(event.install, event)
        if run.context.fails_over:
            self.hosted.failover_runs.begin(event, run)
        self.hosted.pass_notes(run.id, self.coordinator.start(run))

    def _on_stripes_requested(self, event: e.StripesRequested) -> None:
        self._stripes.begin(event)
        for request in (*event.stripes, *(() if event.above is UNSET else (event.above,))):
            self._on_run_requested(request)

    def _on_trees_requested(self, event: e.TreesRequested) -> None:
        for request in self._stripes.replace(event):
            self._on_run_requested(request)

    # --- subscriptions of this host's application -----------------------------------------------------

    def _on_subscribe_requested(self, event: e.SubscribeRequested) -> None:
        self.hosted.subscriptions.request(event)

    def _on_unsubscribe_requested(self, event: e.UnsubscribeRequested) -> None:
        self.hosted.subscriptions.leave(event)

    def _on_enrol(self, sender: str, message: m.InstallSubscriber) -> None:
        run_id, install, error = message.run, message.install, ""
        subscriptions, out = self.hosted.subscriptions, self.out.of(message.run)
        visit, here = subscriptions.get(run_id, sender), subscriptions.here(run_id)
        if here and here.generation > run_id.generation:
            return  # the message was sent before the run began anew
        if visit is None or not visit.enrols(sender, message):
            out.send(sender, m.Unsubscribe(run_id, message.number))
            return
        if run_id in self.runs and not self.runs[run_id].is_left_behind(message):
            self.runs[run_id].parts.get(QueryAttachment).enrolled(message.sink)
        else:
            error = check_visit(message, self.host) or self._why_not(sender, install, full=False)
            if not error:
                self.ended_runs.revive(install.client, run_id)
                self._visit(install, visit, here)
                self.hosted.watch_leases()
        out.send(sender, m.Installed(run_id, self.host, error))

    def _visit(self, install: m.Install, visit: RunSubscriptions, before: RunId) -> None:
        """Open another client's run as a guest, or go on in the run's next generation (R5 of ``run_subscriptions``)."""
        old, wanted = self.runs.get(before), list[str]()
        if old is not None and install.failover is not None:
            starts = {start.node: start for start in install.starts}
            for name in visit.sinks & old.flow.nodes.keys() & starts.keys():
                node = old.flow.nodes[name]
                index = LAST if node.state is ENDED else node.index
                if starts[name].index > index:
                    first = starts[name].index
                    visit.lose(name, f"the run has begun anew with partition {first}, and {index} has not come")
                starts[name] = m.Start(name, index)
                if node.state is GATHERING:
                    wanted.append(name)
            install = msgspec.structs.replace(install, starts=tuple(starts.values()))
        run = self.hosted.open_run(install)
        run.directory.admit_guest(self.host)
        for name in wanted:
            run.handle_notes((e.NextRequested(run.id, name),))
        for name in sorted(visit.sinks & run.flow.nodes.keys()):  # a sink may have begun while the run began anew
            run.parts.get(QueryAttachment).enrolled(name)

    def _on_dismiss(self, sender: str, message: m.SubscriptionEnded) -> None:
        self.hosted.close_run(self.hosted.subscriptions.on_dismiss(sender, message))

    def _on_subscribe(self, sender: str, message: m.Subscribe) -> None:
        current = self.hosted.failover_runs.current(message)  # a ticket has the id of generation 0
        run = self.runs.get(current.run)
        if run is not None and current.run not in self._lingering:
            run.message(sender, current)
        else:
            why = f"the run is over, or was never one of client {self.host!r}"
            self.out.of(message.run).send(sender, m.SubscriptionEnded(message.run, message.number, why))

    def _on_probes_requested(self, event: e.ProbesRequested) -> None:
        self.hosted.pass_measured(self.links.request(event))

    # --- messages -------------------------------------------------------------------------------------

    def _on_hello(self, sender: str, message: m.Hello) -> None:
        self.out.send(sender, self._welcome)

    def _on_welcome(self, sender: str, message: m.Welcome) -> None:
        for run_id, note in self.coordinator.on_welcome(sender, message):
            self.hosted.pass_notes(run_id, (note,))
        for joined in self.coordinator.returned(sender, message):
            self._on_peer_joined(joined)

    def _on_ping(self, sender: str, message: m.Ping) -> None:
        if message.run is None:  # in a run of both hosts, so the answer tests its route back
            both = next((run.out for run in self.runs.values() if run.knows(sender)), self.out)
            both.send(sender, m.Pong(None, padding=message.padding))
            return
        known = []
        for run_id in (message.run, *message.beside):
            run = self.runs.get(run_id)
            if run is None:
                self._knows_not(sender, run_id)
            elif run.may_say(sender, m.Ping):
                run.handle_sign_of_life()
                known.append(run)
        for lost in message.lost:
            self._handle_message(sender, lost, None, 0)
        if known:
            known[0].out.send(sender, m.Pong(known[0].id))

    def _knows_not(self, sender: str, run_id: RunId) -> None:
        """Answer that a run is not here: name the leading process, or the reason of the drop, or neither."""
        out, why, led = self.out.of(run_id), self.hosted.broken.get(run_id), self._led_by_another(sender, run_id)
        if led:
            self._fence(sender, run_id, led)
            return
        # R4: the client of a run that was dropped is told why
        out.send(sender, m.Pong(run_id, False) if why is None else m.Failed(run_id, "", why))

    def _on_pong(self, sender: str, message: m.Pong) -> None:
        if message.run in self.runs or self.silence.was_pinged(sender):
            self.silence.on_pong(sender)
        if message.run is None:
            return
        self.coordinator.answered(sender, message.run)
        self.hosted.subscriptions.handle_sign_of_life(sender, message.run, self.context.now)
        if not message.known:
            self.hosted.pass_notes(message.run, self.coordinator.on_unknown(sender, message.run))

    def _on_install(self, sender: str, message: m.Install) -> None:
        if any(peer.name == self.host and self._before_me(peer) for peer in message.peers):
            self.out.send(sender, self._welcome)
            return
        newest = max((run.generation for run in self.hosted.generations(message.client, message.run)), default=None)
        late = self.ended_runs.knows(message.client, message.run, self.context.now, message.number)
        part = generation_state(newest, message.run.generation, late=late)
        if part is GenerationState.OVER:  # R1: a run that is over is not opened again
            return
        if part is GenerationState.FENCED:  # R7: another process of the client leads the run
            assert newest is not None
            self._fence(sender, message.run, newest)
            return
        error, run = "", self.runs.get(message.run)
        if run is not None and message.number > run.install.number:  # R1: this host was away, and may have missed news
            obstacle = "" if run.empty else "it has nodes of the run that the client does not know"
            error = obstacle or self._why_not(sender, message)
            run = run if error else self.hosted.open_run(message)
        elif run is not None:
            run.flow.calls.bound(message.peers)
            self.out.emit(e.Meet(message.run, message.peers if run.context.fails_over else run.install.peers))
        else:
            error = self.ended_runs.full(message.client) or self._why_not(sender, message)
            if not error:
                if self.ended_runs.knows(message.client, message.run, self.context.now):
                    self.ended_runs.revive(message.client, message.run)
                self.hosted.open_run(message)
                self.hosted.watch_leases()
            run = self.runs.get(message.run)
        carried_over = () if run is None else run.flow.kept
        reply = m.Installed(message.run, self.host, error, message.number, carried_over)
        (self.out.of(message.run) if run is None else run.out).send(sender, reply)

    def _led_by_another(self, client: str, run_id: RunId) -> int:
        """Return the generation of a run on this host, if a later process of the client has begun the run anew (R7).

        The result is 0 if there is no such generation.
        """
        here = self.hosted.generations(client, run_id)
        return next((other.generation for other in here if other.leader > run_id.leader), 0)

    def _fence(self, client: str, run_id: RunId, newest: int) -> None:
        """Answer a client that a later process of the client leads the run. Name the process if known (R7)."""
        installs = [self.runs[other].install for other in self.hosted.generations(client, run_id)]
        processes = [peer.process for install in installs for peer in install.peers if peer.name == client]
        identity = next((f", {process}" for process in processes if process), "")
        about = f"client {client!r} leads the run from another process{identity}; take its partitions there"
        self.out.of(run_id).send(client, m.Failed(run_id, "", about, led=newest))

    def _why_not(self, sender: str, install: m.Install, *, full: bool = True) -> str:
        """Return why this host takes no part in a run, or an empty text (R2). Without ``full``: as a guest."""
        follows = bool(self.hosted.generations(install.client, install.run))  # R6, R7: a later generation of a run here
        runs, draining = (0, False) if follows else (len(self.runs), self.context.draining)
        return why_not(sender, install, self.host, self.config, runs=runs, draining=draining, full=full)

    def _before_me(self, peer: m.Peer) -> bool:
        """Return whether a message is for an earlier process of this host."""
        return bool(peer.instance and self.me.instance) and peer.instance != self.me.instance

    def _on_installed(self, sender: str, message: m.Installed) -> None:
        self.hosted.pass_notes(message.run, self.coordinator.on_installed(sender, message))
        if message.run.generation and self.ended_runs.knows(self.host, message.run, self.context.now):
            self.out.of(message.run).send(sender, m.Remove(message.run))  # the host was away when the run was removed
        run = self.runs.get(message.run)
        if run is not None and run.context.leads:
            run.handle_notes((HostInstalled(sender, message),))
            if sender in run.directory.hosts:
                self.coordinator.admit(message.run, run.directory.peers[sender])
                run.handle_notes((HostTakesPart(sender),))

    def _on_remove(self, sender: str, message: m.Remove) -> None:
        if self.hosted.is_of_another(sender, message.run):
            # R2: the run is another client's and stays, so no Removed is sent
            self.out.of(message.run).record("unexpected", peer=sender, detail={"message": "Remove"})
            return
        self.out.of(message.run).send(sender, m.Removed(message.run, self.host))
        for run_id in self.hosted.generations(sender, message.run):
            if run_id.generation <= message.run.generation:
                visit = self.hosted.subscriptions.get(run_id, sender)
                if visit is not None:
                    visit.end(f"client {sender!r} has ended the run")
                self.hosted.close_run(run_id)
        if not self.ended_runs.knows(sender, message.run, self.context.now, LAST):
            self.ended_runs.add(sender, message.run, self.context.now, opened=False)

    def _on_removed(self, sender: str, message: m.Removed) -> None:
        self.coordinator.on_removed(sender, message)

    def _on_failed(self, sender: str, message: m.Failed) -> None:
        run = self.runs.get(message.run)
        if run is not None and run.has_guest(sender):
            run.message(sender, message)
        else:
            self.hosted.pass_notes(message.run, self.coordinator.on_failed(sender, message))

    _HANDLERS: ClassVar[dict[type[Any], Callable[[HostCore, Any], None]]] = {
        e.MessageReceived: _on_message,
        e.DecodingFailed: _on_undecoded,
        e.CertificateExpired: _on_expired,
        e.TimerFired: _on_timer,
        e.OperatorFinished: _on_finished,
        e.OperatorFailed: _on_failed_call,
        e.NodeOpened: _of_run,
        e.StateTaken: _of_run,
        e.StateRestored: _of_run,
        e.PlacementProposed: _on_placement_proposed,
        e.AttachRequested: _of_application,
        e.DetachRequested: _of_application,
        e.SubscribersAllowed: _of_application,
        e.OutputCommitted: _of_application,
        e.SubscribeRequested: _on_subscribe_requested,
        e.UnsubscribeRequested: _on_unsubscribe_requested,
        e.PlanReady: _of_run,
        e.RecoveryPlanReady: _of_run,
        e.NextRequested: _of_application,
        e.TransferMeasured: _on_measured,
        e.Relayed: _on_relayed,
        e.TransferFailed: _on_transfer_failed,
        e.TransferStalled: _on_transfer_stalled,
        e.PeerReached: _on_peer_reached,
        e.PeerLost: _on_peer_lost,
        e.PeerJoined: _on_peer_joined,
        e.DrainRequested: _on_drain_requested,
        e.RunRequested: _on_run_requested,
        e.StripesRequested: _on_stripes_requested,
        e.TreesRequested: _on_trees_requested,
        e.RunAbandoned: _on_abandoned,
        e.ProbesRequested: _on_probes_requested,
        e.RunBroken: _on_broken,
        e.Woke: _on_woke,
    }
    _MESSAGES: ClassVar[dict[type[Any], Callable[[HostCore, str, Any], None]]] = {
        m.Hello: _on_hello,
        m.Welcome: _on_welcome,
        m.Ping: _on_ping,
        m.Pong: _on_pong,
        m.Install: _on_install,
        m.Installed: _on_installed,
        m.Remove: _on_remove,
        m.Removed: _on_removed,
        m.Failed: _on_failed,
        m.Stay: _on_stay,
        m.Subscribe: _on_subscribe,
        m.InstallSubscriber: _on_enrol,
        m.SubscriptionEnded: _on_dismiss,
    }
