"""Coordinator: part of a client's core that installs a run on the hosts, watches the hosts, and removes the run.

Rules:

R1. ``Install`` goes to every host and is repeated until answered. When every host that holds a node has answered, the
    run is ready, and the application may demand its first partition. Operators may move to the remaining hosts later.
R2. A host that was restarted before it had the ``Install`` answers with its new identity, and is asked again until the
    run is ready. If the host takes smaller partitions than before, every host is asked again, because no host may make
    larger partitions. When the run is ready, a restarted host is lost: the earlier process may have had its part
    without the client's knowledge.
R3. Every message from a host is a sign of life. Before a host has installed the run, only ``Installed`` is. ``Ping``
    asks the installed hosts for a sign of life, early enough for several answers. A host is lost if it has been silent
    for ``liveness_s`` times ``patience``, or if it says that it does not know the run (it was restarted).
R4. If a lost host holds a node, the run ends with one line that names the host and the node. If the run has several
    queries, only the queries that use the node end. If a lost host holds no node, the run goes on without the host, and
    every ping reports the loss. A host that knows of a node there notifies the client.
R5. ``Remove`` is repeated until answered, ``REMOVE_TRIES`` times at most. A host that never gets it drops the run at
    the end of the lease. Guests get the reason instead (``SubscriptionEnded``).
R6. Guests (``subscribers``) are pinged and lost like hosts, but the loss of a guest ends only the guest's
    subscriptions. A guest that is too slow for a host of the run, or that no partition reaches (``Failed``), is
    dismissed likewise.
R7. A host that joins while the run goes on (``membership``) is treated like every other host from then on.
R8. A run with failover begins anew where R4 would end it (``failover.recovery``). The next generation has a run id of
    its own, so messages about the generation before are ignored. While the run goes on, *away* hosts are asked who they
    are. A host joins if it answers, and speaks the run's version of the protocol. A host that is lost again and again
    before a further partition comes joins later each time, and in the end never. A silent host's loss does not count
    while other hosts have still to take their parts. A host with a part in the generation before is watched without a
    break, also before the host has installed the next generation.
R9. In a run with failover a host may be silent only for ``detect_s`` times ``patience``, and is pinged more often. If
    the host's answers take long or vary (``response_times``), the limit is longer, up to the limit of R3. In every run,
    time by which this host itself was late does not count. If this host did not run for longer (``Woke``), silence
    counts anew, as R10 of ``host`` says.
R10. A host's report of a lost host (``Failed``) ends the run. A run with failover judges the report first (``judge``),
    and begins anew or ignores the report. The report is also ignored while messages of the reported host come here with
    breaks: the reported host is late or gone, and R3 and R9 decide. The failure of a node's code, or the end of a
    node's inputs, may be reported by the host of the node or of an input. Every host may report that it cannot go on
    itself. In a run with failover the reporting host is then lost. So is the first host to report that another process
    leads the run, if other hosts are there and the run can go on without the reporting host. If the report is true, a
    second host repeats it.
R11. The stripes of a stream are pinged together. A host gets one ``Ping`` for every stripe, and the answer counts for
    every stripe. A host that does not know one of the runs says so for that run alone. A host that is away is asked
    once for every stripe who it is.
R12. Some messages go to every host: about a query, about a joining host, or about a proposal by which nothing moves. A
    host that answers pings, and does not answer such a message for ``liveness_s`` times ``patience``, is lost.
    Otherwise every later change would wait for the host.
R13. Of the stripes that a host has not answered, only the first ``MOST_REPEATED`` of a stream are repeated to it.
    Otherwise the client's link could be so full of repetitions that no answer comes. A host has the time of an
    ``Install`` anew from each stripe that it has installed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Iterator, Mapping
from typing import Any

import msgspec

from thalweg.middleware.core.context.notes import HostLost, Note, Notes, Started
from thalweg.middleware.core.context.outbox import Outbox, Timer
from thalweg.middleware.core.failover.recovery import Recovery
from thalweg.middleware.core.failover.rejoin_policy import MOST_IN_VAIN
from thalweg.middleware.core.flow.directory import Directory, guests_of
from thalweg.middleware.core.measuring.response_times import ResponseTimes
from thalweg.middleware.core.queries.queries import Queries
from thalweg.middleware.core.runs.run import RunCore
from thalweg.middleware.errors import in_seconds
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.absent_sources import may_miss
from thalweg.middleware.protocol.frames import spoken
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId

REMOVE_TRIES = 5
LAPSE = 2.0  # times the interval of pings: after such a break a host may be late, and R3 judges it
PINGS = 3  # to a silent host, before a run with failover takes the host for lost
MOST_REPEATED = 4  # unanswered stripes of a stream that are repeated to a host


class _Led:
    """State of one run that this host coordinates."""

    def __init__(self, run: RunCore) -> None:
        install, directory, now = run.install, run.directory, run.out.now
        self.out, self.install, self.tree = run.out, install, run.tree
        self.recovery = run.parts.existing(Recovery)  # None: the run has no failover
        self._parts = run.parts
        self.asked_as = install.run.asked_as  # R11: hosts are asked about all stripes of a stream together
        self.directory: Directory | None = directory  # None: the run is over here
        self.lingers = False  # the application has got every partition
        self.away = directory.peers.keys() - directory.hosts  # R8: hosts that are asked who they are
        self.remote = directory.hosts - {self.out.host}
        self.holding = {location.host for location in install.locations} - {self.out.host} - directory.subscribers
        # hosts that have not answered: of the hosts needed for the run to be ready, and of every host
        self.needed, self.installing = set(self.holding), set(self.remote)
        self.begun = False  # the application knows that the run is ready
        self.begun_s = now
        self.there = set[str]()  # hosts that had a part in the generation before
        self.removing: set[str] = set()
        self.guests: set[str] = set()  # guests that are dismissed as the run is removed
        self.tries = 0
        self.ping_at_s = math.inf
        self.answers: dict[str, ResponseTimes] = {}
        self.heard_s = dict.fromkeys(self.remote, now)
        self.strange: dict[str, str] = {}  # instances of hosts that do not speak the run's version
        self.slept_s = 0.0  # the longest time in which this host did not run

    def follow(self, before: _Led, heard_s: Mapping[str, float]) -> None:
        """Take over the state of hosts from the generation before (R8). ``heard_s``: time of the last message."""
        self.begun, self.answers = before.begun, before.answers
        for host in self.remote & before.remote:
            self.heard_s[host] = max(before.heard_s.get(host, 0.0), heard_s[host])
        self.there = (self.remote & before.remote) - before.installing

    def pace_s(self, limits: CoreConfig) -> tuple[float, float, float]:
        """Return the interval of pings, and the least and greatest limit of a silence, in seconds (R3, R9)."""
        silent_s = limits.patience * limits.liveness_s
        if self.install.failover is None:
            return min(limits.ping_s, silent_s / 2), silent_s, silent_s
        least_s = min(silent_s, limits.patience * limits.detect_s)
        return min(limits.ping_s, least_s / PINGS), least_s, silent_s

    def recovers(self, host: str, *, again: bool, wait: bool) -> bool:
        """Let the run begin anew without a host, if it can. Return whether it can (R8).

        ``again``, ``wait``: as in ``Recovery.give_up``.
        """
        if self.recovery is None or self.out.failed or self.lingers:
            return False
        if wait and not again and not self.out.run.generation:  # other hosts may lack the code too
            return False
        self.recovery.give_up(host, again=again, wait=wait)
        return True

    def rests(self, host: str, instance: str) -> bool:
        """Return whether a host, as this process, has to wait before it is let in (R8)."""
        return self.recovery is not None and self.recovery.rests(host, instance)

    def end_queries(self, nodes: Collection[str], reason: str, **fields: Any) -> bool:
        """End the queries that use these nodes, if the run has queries to go on with. Return whether it has (R4)."""
        queries = self._parts.existing(Queries)
        return queries is not None and queries.fail(nodes, reason, **fields)

    def speaks_of(self, host: str, name: str) -> bool:
        """Return whether a host may report the failure of a node: the node, or an input of it, is there (R10)."""
        assert self.directory is not None
        nodes, locations = self.tree.dataflow.by_name, self.directory.locations
        concerned = (name, *nodes[name].inputs) if name in nodes else (name,)
        return any(node in locations and locations[node].host == host for node in concerned)

    def patience_s(self, silent_s: float) -> float:
        """Return how long a host may take to install the run, in seconds."""
        failover = self.install.failover
        return max(silent_s, failover.wait_s) if failover is not None and self.install.starts else silent_s


class Coordinator:
    """State of the runs requested by this host's application, from the installation to the removal."""

    def __init__(self, out: Outbox, limits: CoreConfig) -> None:
        self._out, self._limits = out, limits
        self.led: dict[RunId, _Led] = {}
        self._lapse_s = LAPSE * limits.patience * limits.detect_s / PINGS
        self._lapsed_s: dict[str, float] = {}  # R10: by host, when a message came after a break
        self._heard_s: dict[str, float] = {}  # by host of every run: when a message came last
        self._ping_at_s: dict[RunId, float] = {}  # R11: by stream or run, when its hosts are pinged next
        # R11: by stream or run, and by host that is away, when that host was asked who it is
        self._greeted_s: dict[tuple[RunId, str], float] = {}

    def start(self, run: RunCore, before: _Led | None = None) -> Notes:
        """Install a run, which is open here, on its hosts. ``before``: the state of the generation before."""
        led, out = _Led(run), run.out
        self.led[run.id] = led
        for host in led.remote:
            self._heard_s.setdefault(host, out.now)
        if before is not None:
            led.follow(before, self._heard_s)
        led.answers = next((sibling.answers for sibling in self._pinged_with(led) if sibling is not led), led.answers)
        for host in sorted(led.installing):
            out.send(host, led.install)
        for host in sorted(led.remote):
            self._report_lost(led, host)
        if not led.needed:
            yield from self._ready(led)
        out.wake(Timer.INSTALL, out.now + self._limits.retry_s)
        led.ping_at_s = out.now + led.pace_s(self._limits)[0]
        self._ping_by(led.asked_as, led.ping_at_s)

    def goes_on(self, run: RunId) -> bool:
        """Return whether the host leads ``run``, and the run is not being removed."""
        return run in self.led and not self.led[run].removing

    def linger(self, run: RunId) -> None:
        """Note that a run goes on for guests alone, as the application has got every partition."""
        self.led[run].lingers = True

    def supersede(self, run: RunId) -> _Led:
        """Stop coordinating a generation. Return its state, with which the next generation begins (R8)."""
        led = self.led.pop(run)
        self._stop_pinging(led)
        if led.directory is not None:
            led.remote -= led.directory.lost.keys()
        led.directory = None
        led.out.emit(e.Forgotten(run, follows=True))
        return led

    def peers(self, run: RunId) -> tuple[m.Peer, ...]:
        """Return the known endpoints of the hosts of a run, including hosts that are about to join (R7)."""
        led = self.led[run]
        reachable = {} if led.directory is None else led.directory.reachable()
        joining = {name: peer for name, peer in reachable.items() if name not in {*led.remote, led.out.host}}
        guests = guests_of(led.install)  # also a lost guest, which may come back as another process
        known = [peer for peer in led.install.peers if peer.name not in joining and peer.name not in guests]
        return (*known, *joining.values())

    def stop(self, run: RunId) -> None:
        """Remove a run, which was closed here, from every host and guest."""
        led = self.led[run]
        led.guests = set() if led.directory is None else set(led.directory.subscribers)
        led.directory = None
        led.installing.clear()
        led.removing = led.remote | led.guests
        self._remove(led)

    def handle_sign_of_life(self, host: str) -> None:
        """Note the time of a message from ``host``, and whether the message ends a break (R10)."""
        before_s, now = self._heard_s.get(host), self._out.now
        if before_s is not None:
            if now - before_s > self._lapse_s:
                self._lapsed_s[host] = now
            self._heard_s[host] = now

    def answered(self, host: str, run: RunId) -> None:
        """Note that a ``Pong`` for a run has come, which gives the host's response time."""
        led = self.led.get(run)
        if led is not None and host in led.answers:  # R11: the answer counts for all stripes
            led.answers[host].came(self._out.now)

    def on_installed(self, sender: str, message: m.Installed) -> Notes:
        led = self.led.get(message.run)
        if led is None or sender not in led.installing:
            return
        if message.error:
            yield from self._lost(led, sender, f"cannot take part: {message.error}", gone=False)
            return
        led.installing.discard(sender)
        if sender not in led.there:
            led.answers.pop(sender, None)
        led.heard_s[sender] = self._heard_s[sender] = self._out.now
        for other in self._pinged_with(led):
            if sender in other.installing and sender not in other.there:
                other.heard_s[sender] = self._out.now  # R13: the host has as long for the next stripe
        if sender in led.needed:
            led.needed.discard(sender)
            if not led.needed and not led.out.failed:
                yield from self._ready(led)

    def admit(self, run: RunId, peer: m.Peer) -> None:
        """Watch a host from now on, as the host has joined a run (R7)."""
        led = self.led.get(run)
        if led is None or led.removing or peer.name in {*led.remote, led.out.host}:
            return
        rest = [member for member in led.install.peers if member.name != peer.name]
        led.install = msgspec.structs.replace(led.install, peers=(*rest, peer))
        led.remote.add(peer.name)
        led.away.discard(peer.name)
        led.answers.pop(peer.name, None)
        led.heard_s[peer.name] = self._heard_s[peer.name] = self._out.now

    def returned(self, sender: str, message: m.Welcome) -> list[e.PeerJoined]:
        """Return an event for every run that a host joins again, as the absent host has answered (R8)."""
        peer = m.Peer(sender, message.control, message.bulk, message.instance, message.max_partition_bytes)
        asked = [(run, led) for run, led in self.led.items() if sender in led.away and not led.removing]
        return [e.PeerJoined(run, peer) for run, led in asked if self._may_join(led, sender, message)]

    def _may_join(self, led: _Led, sender: str, message: m.Welcome) -> bool:
        """Return whether a host that was lost may take part again, as the present process (R8)."""
        version, (oldest, newest) = led.install.version, message.speaks
        if version and not oldest <= version <= newest:
            if led.strange.get(sender) != message.instance:
                led.strange[sender] = message.instance
                fault = (
                    f"speaks {spoken(message.speaks)} of the protocol, and the run uses version {version}; upgrade it"
                )
                led.out.record("fault", peer=sender, detail={"about": "version", "what": fault})
            return False
        return not led.rests(sender, message.instance)

    def listens(self, run: RunId, peer: m.Peer) -> None:
        """Note the endpoints of a host that was started again."""
        led = self.led[run]
        peers = tuple([peer if member.name == peer.name else member for member in led.install.peers])
        led.install = msgspec.structs.replace(led.install, peers=peers)

    def on_unknown(self, sender: str, run: RunId) -> Notes:
        """Handle the answer of a host that does not know the run: the host is lost (R3)."""
        led = self.led.get(run)
        if led is None or led.removing or sender not in (led.remote - led.installing) | _guests_of(led):
            return
        how, lease_s = (
            "no longer knows the run; was its process restarted?",
            self._limits.patience * self._limits.lease_s,
        )
        if led.slept_s:
            slept = f"this client did not run for {in_seconds(led.slept_s)}"
            how = f"no longer knows the run; was its process restarted, or did its lease_s end, as {slept}?"
            if led.slept_s > lease_s:
                how = f"has dropped the run, as {slept}, and a host waits for {in_seconds(lease_s)} (lease_s)"
        yield from self._lost(led, sender, how)

    def on_welcome(self, sender: str, message: m.Welcome) -> Iterator[tuple[RunId, Note]]:
        """Handle the answer of a host that was restarted before it had the ``Install`` (R2).

        Yield the notes that follow, each with the id of a run.
        """
        for run, led in list(self.led.items()):
            peer = next((peer for peer in led.install.peers if peer.name == sender), None)
            if peer is None or peer.instance == message.instance or led.removing:
                continue
            if led.rests(sender, message.instance):
                continue
            limit = message.max_partition_bytes
            now = msgspec.structs.replace(peer, instance=message.instance, max_partition_bytes=limit)
            peers = tuple(now if member is peer else member for member in led.install.peers)
            anew = not led.install.starts  # else the replica for its start is gone
            if sender in led.installing and led.needed and anew:  # R2: no operator can have moved to its last process
                led.install, asked = msgspec.structs.replace(led.install, peers=peers), {sender}
                if limit < peer.max_partition_bytes:
                    led.installing, led.needed = set(led.remote), led.holding & led.remote
                    asked = {led.out.host, *led.remote}
                for host in sorted(asked):
                    led.out.send(host, led.install)
            elif sender in led.remote:
                led.install = msgspec.structs.replace(led.install, peers=peers)
                for note in self._lost(led, sender, "was restarted"):
                    yield run, note

    def on_removed(self, sender: str, message: m.Removed) -> None:
        led = self.led.get(message.run)
        if led is not None and sender in led.removing:
            led.removing.discard(sender)
            if not led.removing:
                self._forget(led)

    def on_failed(self, sender: str, message: m.Failed) -> Notes:
        """Handle a report that a node or host cannot go on, or that a host waits in vain for another (R6, R10)."""
        led = self.led.get(message.run)
        if led is None or led.directory is None or message.node not in ("", *led.directory.locations):
            return
        if message.lost in led.directory.subscribers:  # R6: dismiss a guest that is too slow, or gets nothing
            yield from self._lost(led, message.lost, f"was given up: {message.reason}")
            return
        if message.lost and message.lost not in (led.out.host, *led.directory.peers):  # R6: a guest that has left
            self._record_unexpected(led, sender, lost=message.lost)
            return
        recovery = led.recovery
        if recovery is not None:
            about_sender = message.led or not message.lost
            if about_sender and (yield from self._on_sender_failed(led, recovery, sender, message)):
                return
            if message.lost and (yield from self._on_host_missed(led, recovery, sender, message)):
                return
        gone = message.lost
        # the nodes on the lost host fail, and the node that waits is sound
        held = [entry.node for entry in led.directory.locations.values() if entry.host == gone]
        about, fields = _said_by(sender, message), _fields_of(sender, message)
        if not (message.node and led.end_queries(held or [message.node], about, **fields)):
            led.out.fail(about, **fields)

    def _on_sender_failed(
        self, led: _Led, recovery: Recovery, sender: str, message: m.Failed
    ) -> Generator[Note, None, bool]:
        """Handle a report of a host about a node there, about itself, or about the leader of the run (R10).

        Return whether the report is settled.
        """
        if message.led:
            if not self._doubts(led, recovery, sender):
                return False
            # the first host that names another leader is lost
            yield from self._lost(led, sender, f"cannot go on: {message.reason}", gone=False, wait=False)
            return True
        if not message.node and sender != led.out.host:
            yield from self._lost(led, sender, f"cannot go on: {message.reason}", gone=False)
            return True
        if message.node and not led.speaks_of(sender, message.node):
            self._record_unexpected(led, sender, node=message.node)
            return True
        return False

    def _on_host_missed(
        self, led: _Led, recovery: Recovery, sender: str, message: m.Failed
    ) -> Generator[Note, None, bool]:
        """Handle a report that a host waits in vain for a second host: one of both is lost (R10).

        Return whether the report is settled.
        """
        directory, gone = led.directory, message.lost
        assert directory is not None
        if gone not in directory.fell and self._is_late(led, gone):
            self._record_unexpected(led, sender, lost=gone, late=True)
            return True
        if sender == led.out.host and self._is_deaf(led, gone):  # R3: no ping is answered
            yield from self._lost(led, gone, f"does not answer: {message.reason}", late=True)
            return True
        away = recovery.judge(sender, gone)
        if not away:
            self._record_unexpected(led, sender, lost=gone)
            return True
        cut = away not in directory.fell
        if not led.recovers(away, again=not cut, wait=not cut):
            return False
        if cut:
            led.remote.discard(away)
            other = sender if away == gone else gone
            how = f"and host {other!r} do not reach each other: {_said_by(sender, message)}"
            directory.lose(away, how)
            led.out.record("fault", peer=away, detail={"about": "host", "what": how})
        return True

    @staticmethod
    def _record_unexpected(led: _Led, sender: str, **detail: Any) -> None:
        led.out.record("unexpected", peer=sender, detail={"message": "Failed", **detail})

    def _is_late(self, led: _Led, host: str) -> bool:
        """Return whether the messages of a host have a break, or have had one until just now (R10)."""
        now, heard_s = self._out.now, self._heard_s.get(host)
        if host not in led.remote or heard_s is None:
            return False
        window_s = self._limits.patience * self._limits.detect_s + self._lapse_s
        return now - heard_s > self._lapse_s or now - self._lapsed_s.get(host, -math.inf) < window_s

    def _is_deaf(self, led: _Led, host: str) -> bool:
        """Return whether messages come from a host, but no answers to pings.

        Then messages from here do not reach the host.
        """
        answers = led.answers.get(host) if host in led.remote else None  # a lost host is not pinged
        return answers is not None and answers.waited_s(self._out.now) > self._lapse_s

    def _doubts(self, led: _Led, recovery: Recovery, sender: str) -> bool:
        """Return whether only one host names another process as leader, and the run can do without the host (R10)."""
        assert led.directory is not None
        rest, flow = led.directory.hosts - {sender}, led.install.dataflow  # with the client, a possible stand-in
        alone = recovery.rejoin_policy.disowns(sender) == 1 and len(rest) > 1 and sender != led.out.host
        fixed = [node for node in flow.nodes if node.kind == "source" and node.pinned == sender]
        return alone and all(rest.intersection(node.stand_ins) or may_miss(flow, node.name) for node in fixed)

    def drop(self, run: RunId) -> None:
        """Forget a run that broke as it was opened or closed. Other hosts drop the run at the end of the lease."""
        if run in self.led:
            self._forget(self.led[run])

    def on_peer_lost(self, event: e.PeerLost) -> Notes:
        led = self.led.get(event.run)
        hosts = set() if led is None or led.directory is None else led.directory.hosts  # also a joining host
        if led is not None and event.peer in led.remote | _guests_of(led) | hosts:
            yield from self._lost(led, event.peer, event.how)
            led.remote.discard(event.peer)  # no process is there to answer a Remove

    def on_unfit(self, run: RunId, host: str, how: str) -> Notes:
        """Treat a host or guest as lost, as messages from there do not decode or are not accepted."""
        led = self.led.get(run)
        hosts = set() if led is None or led.directory is None else led.directory.hosts
        if led is not None and not led.removing and host in led.remote | _guests_of(led) | hosts:
            yield from self._lost(led, host, how, gone=False, wait=False)

    def on_unanswered(self, run: RunId, host: str, since_s: float) -> Notes:
        """Treat a host as lost if it has not answered a message to every host since ``since_s``, for too long (R12)."""
        led, within_s = self.led.get(run), self._limits.patience * self._limits.liveness_s
        if led is None or led.removing or led.out.failed or host not in led.remote - led.installing:
            return
        if self._out.waited_s(max(since_s, led.heard_s.get(host, since_s))) > within_s:
            yield from self._lost(
                led, host, f"has not answered for {in_seconds(within_s)} to a message that all hosts get"
            )

    def hurry(self, host: str) -> None:
        """Repeat messages that wait for an answer of a host at once, as messages get through again."""
        for led in self.led.values():
            if host in led.installing and not led.removing:
                led.out.send(host, led.install)
            elif host in led.away and not led.removing:
                led.out.send(host, m.Hello())

    def on_timer(self, timer: Timer, run: RunId) -> None:
        """Repeat the messages that begin or end a run. Ask absent hosts for their identity."""
        led, limits = self.led.get(run), self._limits
        if led is None:
            return
        out = led.out
        if timer is Timer.INSTALL and (led.installing or led.away):
            for host in sorted(led.installing):
                if self._is_repeated(led, host):
                    out.send(host, led.install)  # R1: the message is repeated until it is answered
            for host in sorted(led.away):  # R8: a host that is away is asked who it is
                self._greet(led, host)
            out.wake(Timer.INSTALL, out.now + limits.retry_max_s / 4)
        elif timer is Timer.REMOVE and led.removing:
            self._remove(led)

    def _is_repeated(self, led: _Led, host: str) -> bool:
        """Return whether a stripe is among the first that a host has not answered, or the run is no stripe (R13)."""
        unanswered = [other for other in self._pinged_with(led) if host in other.installing]
        return led in unanswered[:MOST_REPEATED]

    def _greet(self, led: _Led, host: str) -> None:
        """Ask an absent host for its identity, unless a second stripe has just done so (R11)."""
        key, now = (led.asked_as, host), self._out.now
        if now >= self._greeted_s.get(key, -math.inf) + self._limits.retry_max_s / 4:
            self._greeted_s[key] = now
            led.out.send(host, m.Hello())

    # --- signs of life ----------------------------------------------------------------------------------

    def _pinged_with(self, led: _Led) -> list[_Led]:
        """Return the run and the remaining stripes of the stream (R11)."""
        return [sibling for sibling in self.led.values() if sibling.asked_as == led.asked_as]

    def _ping_by(self, name: RunId, at_s: float) -> None:
        """Set the next ping of a stream, or of a run, to ``at_s`` at the latest."""
        if at_s < self._ping_at_s.get(name, math.inf):
            self._ping_at_s[name] = at_s
            self._out.of(name).wake(Timer.PING, at_s)

    def _stop_pinging(self, led: _Led) -> None:
        """Stop the pings of a run that is no longer led, unless other stripes of the stream need the pings."""
        if not self._pinged_with(led):
            self._ping_at_s.pop(led.asked_as, None)
            self._greeted_s = {key: at_s for key, at_s in self._greeted_s.items() if key[0] != led.asked_as}

    def on_ping_timer(self, name: RunId) -> Iterator[tuple[RunId, Note]]:
        """Ping the hosts of a stream, or of a run, as the timer has fired. Find hosts that are lost.

        Yield the notes that follow, each with the id of a run.
        """
        self._ping_at_s.pop(name, None)
        now, limits = self._out.now, self._limits
        every = [led for led in self.led.values() if led.asked_as == name and self._watches(led)]
        if not every:
            return
        ping_s = min([led.pace_s(limits)[0] for led in every])
        for led in every:
            led.remote -= set() if led.directory is None else led.directory.lost.keys()  # some were drained
            self._excuse_late(led, ping_s)
        for host in sorted({host for led in every for host in led.remote | _guests_of(led)}):
            asked = []
            for led in every:
                if not self._watches(led) or host not in led.remote | _guests_of(led):
                    continue
                for note in self._if_gone(led, host, ping_s):
                    yield led.out.run, note
                if host in led.remote | _guests_of(led) and _is_asked(led, host):
                    asked.append(led)
            self._ping(host, [*filter(self._watches, asked)])
        for led in every:
            led.ping_at_s = now + ping_s
        if any(map(self._watches, every)):
            self._ping_by(name, now + ping_s)

    def _excuse_late(self, led: _Led, ping_s: float) -> None:
        """Excuse silent hosts for the time by which this host itself was late (R9)."""
        late_s = self._out.now - led.ping_at_s
        if late_s > ping_s:
            latest_s = {host: max(at_s, self._heard_s.get(host, at_s)) for host, at_s in led.heard_s.items()}
            led.heard_s = {host: at_s + late_s for host, at_s in latest_s.items()}

    def woke(self, slept_s: float, *, fresh: bool) -> None:
        """Note that this host did not run. If ``fresh``, count the silence of every host from now on (R9)."""
        now = self._out.now
        for led in self.led.values():
            led.slept_s = max(led.slept_s, slept_s)
            led.ping_at_s = max(led.ping_at_s, now)
            for answers in led.answers.values():
                answers.forget_asked()
            if fresh:
                led.begun_s, led.heard_s = now, dict.fromkeys(led.heard_s, now)

    def _watches(self, led: _Led) -> bool:
        """Return whether the hosts of a run are pinged: the run goes on, and has not failed."""
        return self.led.get(led.out.run) is led and not led.removing and not led.out.failed

    def _if_gone(self, led: _Led, host: str, ping_s: float) -> Notes:
        """Treat a host as lost if it has given no sign of life for too long (R3)."""
        now = self._out.now
        _, least_s, silent_s = led.pace_s(self._limits)
        for times in (led.heard_s, self._heard_s):  # a guest may have no time yet
            times.setdefault(host, now)
        asked, answers = _is_asked(led, host), led.answers.setdefault(host, ResponseTimes())
        begun_s, heard_s = led.begun_s if asked else led.heard_s[host], max(led.heard_s[host], self._heard_s[host])
        within_s = answers.silence_s(ping_s, least_s, silent_s) if least_s < silent_s else silent_s
        install_s = led.patience_s(silent_s)
        if host in led.installing and now - begun_s > install_s:
            yield from self._lost(led, host, f"did not install the run within {in_seconds(install_s)}", wait=False)
        elif asked and now - heard_s > within_s:
            yield from self._lost(led, host, f"has been silent for {in_seconds(within_s)}", late=True)

    def _ping(self, host: str, asked: Collection[_Led]) -> None:
        """Ping a host about several runs (R11), and tell it which hosts of the runs are lost."""
        if not asked:
            return
        first, *beside = asked
        first.answers[host].pinged(self._out.now)
        begun = [led.directory for led in asked if led.directory and host not in led.installing]
        lost = [directory.lost_message(lost_host) for directory in begun for lost_host in directory.lost]
        if beside:
            first.out.send(host, m.Ping(first.out.run, tuple([led.out.run for led in beside]), tuple(lost)))
            return
        first.out.send(host, m.Ping(first.out.run))
        for message in lost:  # repeated, because the message may be lost and has no answer
            first.out.send(host, message)

    def _remove(self, led: _Led) -> None:
        led.tries += 1
        if not led.removing or led.tries > REMOVE_TRIES:
            # R5: a host that never answers drops the run when its lease is over
            self._forget(led)
            return
        run = led.out.run
        why = led.out.failed[:4000] or f"client {led.install.client!r} has ended the run"
        for host in sorted(led.removing):
            led.out.send(host, m.SubscriptionEnded(run, 0, why) if host in led.guests else m.Remove(run))
        led.out.wake(Timer.REMOVE, led.out.now + self._limits.retry_s)

    def _forget(self, led: _Led) -> None:
        del self.led[led.out.run]
        self._stop_pinging(led)
        if not self.led:
            self._heard_s.clear()
            self._lapsed_s.clear()
        led.out.emit(e.Forgotten(led.out.run))

    def _ready(self, led: _Led) -> Notes:
        if not led.begun:
            led.begun = True
            led.out.emit(e.Ready(led.out.run))
        yield Started()

    def _lost(
        self, led: _Led, host: str, how: str, *, gone: bool = True, wait: bool = True, late: bool = False
    ) -> Notes:
        """Handle the loss of a host (R4): end the run or begin it anew if it needs the host, else go on.

        ``gone``: the process is gone, and a later process may join. Not ``wait``: the run does not wait for the host
        any more. ``late``: the host was only silent, and may still be there.
        """
        directory, out = led.directory, led.out
        if directory is None:
            return
        if host in directory.subscribers:  # R6: the loss of a guest ends only its subscriptions
            led.heard_s.pop(host, None)
            fault = f"{how}; its subscriptions end"
            out.record("fault", peer=host, detail={"about": "subscriber", "what": fault})
            yield HostLost(host, how)
            return
        held = [entry.node for entry in directory.locations.values() if entry.host == host]
        recovery = led.recovery
        if recovery is not None:  # R8: a host that is lost again and again joins no more
            in_vain = recovery.fell(host, late=late, blamed=not late or led.needed <= {host})
            if in_vain >= MOST_IN_VAIN:
                how, gone = f"{how}, for the {in_vain}th time in a row without a new partition in between", False
        if (held or (recovery is not None and recovery.leans_on(host))) and led.recovers(host, again=gone, wait=wait):
            # R8: the run needs the host, and begins anew without it
            led.remote.discard(host)
            directory.lose(host, how)
            out.record("fault", peer=host, detail={"about": "host", "what": f"{how}; the run begins anew without it"})
            return
        if held:
            about = f"host {host!r}, which holds {', '.join(held)}, {how}"
            if not led.end_queries(held, about, host=host, lost=gone):
                out.fail(about, host=host, lost=gone)
                return
        led.remote.discard(host)
        led.installing.discard(host)
        directory.lose(host, how)
        out.record("fault", peer=host, detail={"about": "host", "what": f"{how}; the run goes on without it"})
        for other in sorted(led.remote):
            self._report_lost(led, other)
        if gone and recovery is not None:  # R8: the host is asked to join again
            led.away.add(host)
            out.wake(Timer.INSTALL, out.now + self._limits.retry_max_s / 4)
        yield HostLost(host)
        if host in led.needed:  # the nodes that it was to have are gone
            led.needed.discard(host)
            if not led.needed and not out.failed:
                yield from self._ready(led)

    @staticmethod
    def _report_lost(led: _Led, other: str) -> None:
        """Notify a host of every lost host. The message is repeated with every ping."""
        if led.directory is not None:
            for host in led.directory.lost:
                led.out.send(other, led.directory.lost_message(host))


def _is_asked(led: _Led, host: str) -> bool:
    """Return whether a host is asked for signs of life: it has a part now, or had one in the generation before (R8)."""
    return host not in led.installing or host in led.there


def _guests_of(led: _Led) -> set[str]:
    """Return the guests of a run, but for guests without news of the present generation (R6).

    To a ping, the latter would answer that the run is unknown. A run that is over has no guests.
    """
    return set() if led.directory is None else led.directory.subscribers - led.directory.returning


def _said_by(sender: str, message: m.Failed) -> str:
    """Return the line for the application: which node, which host, and the reason."""
    origin = f"node {message.node!r} on host" if message.node else "host"
    return f"{origin} {sender!r}: {message.reason}"


def _fields_of(sender: str, message: m.Failed) -> dict[str, Any]:
    """Return the fields of ``Fail`` for a report: node, host, whether the host is lost, and cause."""
    gone = message.lost
    return {"node": message.node, "host": gone or sender, "lost": bool(gone), "cause": message.cause}
