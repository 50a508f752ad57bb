"""Bulk between this host and other hosts: partitions, states and probes, in both directions.

Rules:

- R1: The last credit of a transfer waits ``CREDIT_HOLD_S`` to be piggybacked. Earlier credits are sent at once.
- R2: Memory is taken only for partitions that a node here has demanded, and for a limited number that only pass
  through. Each partition has at most one unfinished transfer from one host. A refused transfer is sent again later.
- R3: A value that names an unknown head (a schema) is refused. Its sender sends it again with the head.
- R4: A chunk over relays is passed on (``relays``), or counts as sent by its source.
- R5: If bytes do not get through (``stalls``), the core is notified every second, and decides what to do.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol, get_args

from msgspec import UNSET, UnsetType

from thalweg.middleware.core.host import HostCore
from thalweg.middleware.core.measuring.prober import BEFORE_RUNS
from thalweg.middleware.errors import ProtocolError
from thalweg.middleware.network.view import NET
from thalweg.middleware.parcels import Parcel
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.packing import HEADS_KNOWN
from thalweg.middleware.shell.redialling import Redialling
from thalweg.middleware.shell.relays import Passage, has_room
from thalweg.middleware.shell.sockets import HostConnections, Sockets, name_of
from thalweg.middleware.shell.stalls import LOOK_S, End, Stalls
from thalweg.middleware.shell.transfers import (
    CHUNK_BYTES,
    Incoming,
    Outgoing,
    ReturnWay,
    Route,
    Sending,
    chunk_bytes_for,
    what_is,
)
from thalweg.middleware.shell.values import value_of

CONNECTIONS_KNOWN = 4096
IN_BULK = get_args(m.Bulk)
PASSING_THROUGH = 16  # partitions in several chunks, for nodes that have left
CREDIT_HOLD_S = 0.02  # time that the last credit of a transfer waits for a message
STUCK_S = 60.0  # time without a credit or a byte that got through
BEGUN_S = 900.0  # time without a further chunk of a transfer: a chunk takes 262 s at 8 kbit/s


class EventReceiver(Protocol):
    """Receiver of events for the core: handles an event at once or later, or ends a run over a defect."""

    def handle(self, event: e.Event, now: float) -> None: ...

    def queue_event(self, event: e.Event) -> None: ...

    def check_by(self, at_s: float) -> None: ...

    def break_run(self, run: RunId, about: object, error: Exception) -> None: ...


class Bulk:
    """Transfers of one host. Only the host's thread on duty calls it. ``time_scale``: emulated seconds in a second."""

    def __init__(
        self, shell: EventReceiver, sockets: Sockets, core: HostCore, limits: CoreConfig, time_scale: float
    ) -> None:
        self._shell, self._sockets, self._core = shell, sockets, core
        self._limits, self._time_scale = limits, time_scale
        self._outgoing: dict[int, Sending] = {}
        self._incoming: dict[tuple[bytes, int], Incoming] = {}
        # R4: relayed transfers, by their incoming connection and number; they are in ``_outgoing`` as well
        self._passing: dict[tuple[bytes, int], Passage] = {}
        self._ways: dict[str, ReturnWay] = {}
        self._arrived: dict[bytes, float] = {}  # arrival of the last bulk message, by connection
        self._heads: dict[str, bytes] = {}  # of parcels, by their digests
        self._next_transfer = 0
        self._refused: list[Sending] = []  # transfers for which a line had no room
        self.due_s = math.inf  # when ``send_credits`` is to be called
        self._stalls: Stalls | None = None  # R5: None until ``watch``
        self._control: Redialling | None = None
        self.look_s = math.inf  # when ``check`` is to be called

    def watch(self) -> None:
        """Begin to check connections, where the kernel reports what has got through (R5)."""
        self._stalls, self._control = Stalls(self._sockets.outflow), Redialling(self._sockets)

    # --- arriving --------------------------------------------------------------------------------------

    def came(
        self, identity: bytes, sender: str, chunk: m.Chunk, body: memoryview, now: float, via: str | UnsetType = UNSET
    ) -> None:
        """Handle a chunk that has arrived on a connection of ``sender``, over ``via``.

        Raises ProtocolError for a chunk that is not valid.
        """
        size, total, message = body.nbytes, chunk.total_bytes, chunk.message
        if total > self._limits.max_partition_bytes and type(message) is m.Partition:
            raise ProtocolError(f"a partition of {total} bytes is over this host's limit")
        before_s = self._arrived.get(identity, -math.inf)
        if before_s < 0 and len(self._arrived) >= CONNECTIONS_KNOWN:
            del self._arrived[next(iter(self._arrived))]
        gap_s = min(m.MAX_GAP_S, now - before_s)
        self._arrived[identity] = now
        origin = sender
        if type(chunk) is m.RelayedChunk:  # R4: pass the chunk on, or take it as sent by its source
            if not chunk.offset and not self._core.passes(sender, chunk, NET if via is UNSET else via):
                self._refuse(identity, sender, chunk, gap_s, now)
                return
            if chunk.at + 1 < len(chunk.hops):
                self._pass_on(identity, sender, chunk, body, gap_s, now)
                return
            origin = chunk.source
        if size != total or chunk.offset:
            whole = self._add(identity, (sender, origin), chunk, body, gap_s, now)
            if whole is None:
                return
            body = whole
        value = value_of(chunk.dtype, chunk.shape, body, self._heads)
        if value is None:  # R3: the value names a schema that is not known here
            self._refuse(identity, sender, chunk, gap_s, now)
            return
        line = self._sockets.line(message.run, sender)
        if type(message) is m.Probe:
            if message.source.name != sender:
                raise ProtocolError(f"a probe of {message.source.name!r} came from {sender!r}")
            self._answer_probe(sender, message, m.Credit(chunk.transfer, total, True, 0.0, gap_s, now))
        elif line is None:
            self._sockets.post(message.run, sender, m.Credit(chunk.transfer, total, True, 0.0, gap_s, now), identity)
        else:
            self._hold(line, (chunk.transfer, total, gap_s, now), now)
        size_bytes = value.size_bytes if type(value) is Parcel else total
        self._shell.handle(e.MessageReceived(origin, message, value, size_bytes, via), now)

    def _hold(self, line: HostConnections, credit: tuple[int, int, float, float], now: float) -> None:
        """Hold the last credit of a transfer for the next message (R1)."""
        if self.due_s == math.inf:
            self.due_s = now + CREDIT_HOLD_S
        self._sockets.hold(line, credit)

    def _refuse(self, identity: bytes, sender: str, chunk: m.Chunk, gap_s: float, now: float) -> None:
        refused = m.Credit(chunk.transfer, 0, True, 0.0, gap_s, now)
        self._sockets.post(chunk.message.run, sender, refused, identity)

    def _add(
        self, identity: bytes, hosts: tuple[str, str], chunk: m.Chunk, body: memoryview, gap_s: float, now: float
    ) -> memoryview | None:
        """Add a chunk to a transfer of several chunks. Return the bytes of the transfer if it is complete.

        ``hosts``: the host that sent the chunk, and the source of the value.
        """
        key, (sender, origin) = (identity, chunk.transfer), hosts
        incoming = self._incoming.get(key)
        if incoming is not None and incoming.what[0] != origin:
            raise ProtocolError(f"a chunk of {origin!r} came in a transfer of {incoming.what[0]!r}")
        if incoming is None:
            wanted = chunk.offset == 0 and self._core.wants(origin, chunk.message)
            # R2: no node here has demanded it, or too many transfers are under way
            if not (wanted and self._has_room(origin, chunk)):
                self._refuse(identity, sender, chunk, gap_s, now)
                # the core tells the sender why it does not want the state
                if chunk.offset == 0 and not wanted and isinstance(chunk.message, m.AnyState):
                    self._shell.handle(e.MessageReceived(sender, chunk.message), now)
                return None
            subject, passing = (origin, *what_is(chunk.message)), self._core.forwards(chunk.message)
            incoming = self._incoming[key] = Incoming(chunk.total_bytes, subject, passing=passing)
        incoming.seen_s = now
        try:
            complete = incoming.add(chunk, body)
        except ProtocolError:
            del self._incoming[key]
            raise
        if complete:
            del self._incoming[key]
            return incoming.buffer.data
        credit = m.Credit(chunk.transfer, incoming.received, False, 0.0, gap_s, now)
        self._sockets.post(chunk.message.run, sender, credit)
        return None

    def _has_room(self, sender: str, chunk: m.Chunk) -> bool:
        """Return whether a further transfer may begin (R2, ``max_transfers``, ``max_transfer_bytes``).

        An unfinished transfer of the same partition from the same host is forgotten.
        """
        message, limits = chunk.message, self._limits
        if self._sockets.line(message.run, sender) is None:
            return False  # the sender is no host of the run
        subject = (sender, *what_is(message))
        for key in [key for key, other in self._incoming.items() if other.what == subject]:
            del self._incoming[key]
        under_way = self._incoming.values()
        if self._core.forwards(message) and sum(incoming.passing for incoming in under_way) >= PASSING_THROUGH:
            return False
        claimed_bytes = chunk.total_bytes + sum(incoming.buffer.nbytes for incoming in under_way)
        claimed_bytes += sum(passage.claimed_bytes for passage in self._passing.values())
        return not under_way or (len(under_way) < limits.max_transfers and claimed_bytes <= limits.max_transfer_bytes)

    def _answer_probe(self, sender: str, probe: m.Probe, credit: m.Credit) -> None:
        """Send the credit of a probe, even without the run on this host, so that the sender does not wait."""
        run = probe.run
        if run == BEFORE_RUNS or self._sockets.line(run, sender) is None:
            run = BEFORE_RUNS
            self._sockets.meet(run, (probe.source,))
        self._sockets.post(run, sender, credit)

    def _pass_on(
        self, identity: bytes, sender: str, chunk: m.RelayedChunk, body: memoryview, gap_s: float, now: float
    ) -> None:
        """Relay a chunk to the next host of its route (R4)."""
        key, run, following = (identity, chunk.transfer), chunk.message.run, chunk.hops[chunk.at + 1]
        passage = self._passing.get(key)
        if passage is None:
            line = self._sockets.line(run, following.host, following.via)
            claimed_bytes = sum(incoming.buffer.nbytes for incoming in self._incoming.values())
            room_bytes = self._limits.max_transfer_bytes - claimed_bytes
            if chunk.offset or line is None or not has_room(chunk.total_bytes, self._passing.values(), room_bytes):
                self._refuse(identity, sender, chunk, gap_s, now)
                return
            number = self._next_transfer = self._next_transfer + 1
            passage = Passage(number, line, chunk, sender, identity, now)
            self._passing[key] = self._outgoing[number] = passage
        try:
            passage.add(chunk, body, gap_s, now)
        except ProtocolError:
            self._end(passage)
            raise
        self._pump(passage)

    def _passed(self, passage: Passage, now: float, *, arrived: bool) -> None:
        """Note the end of a relayed transfer: the partition is at the end of its route, or was given up (R4)."""
        run, sender, first = passage.message.run, passage.sender, passage.first
        line = self._sockets.line(run, sender)
        if not arrived or line is None:
            self._refuse(passage.identity, sender, first, m.MAX_GAP_S, now)
            return
        self._hold(line, passage.last_credit, now)
        busy_s = passage.busy_s * self._time_scale
        assert isinstance(first.message, m.Partition)
        relays = tuple(hop.host for hop in first.hops[:-1])
        self._shell.handle(e.Relayed(first.source, first.message, passage.hops, passage.total, busy_s, relays), now)

    def _end(self, out: Sending) -> None:
        """Forget a transfer, of which nothing more is sent."""
        self._outgoing.pop(out.number, None)
        if type(out) is Passage:
            self._passing.pop(out.key, None)

    # --- sending ---------------------------------------------------------------------------------------

    def send(self, command: e.Send) -> None:
        """Begin a transfer."""
        message, via, sockets, route = command.message, command.via, self._sockets, None
        assert isinstance(message, IN_BULK)
        if isinstance(via, str):
            line = end = sockets.line(command.run, command.to, via)
        else:
            line, end = sockets.line(command.run, via[0].host, via[0].via), sockets.line(command.run, command.to)
            route = None if end is None else Route(sockets.me.name, via, end)
        if line is None or end is None:
            self._shell.queue_event(e.TransferFailed(command.to, message, via))
            return
        self._next_transfer = number = self._next_transfer + 1
        out = Outgoing(number, line, message, command.payload, time.monotonic(), line.chunk_bytes, route)
        self._outgoing[number] = out
        if self.look_s == math.inf and self._stalls is not None:
            self.look_s = out.progress_s + LOOK_S
            self._shell.check_by(self.look_s)
        self._pump(out)

    def _pump(self, out: Sending) -> None:
        """Send as many chunks of a transfer as the credit allows."""
        try:
            while (following := out.next_chunk()) is not None:
                chunk, piece = following
                now = time.monotonic()  # before the call: the chunk may be on the line before the call returns
                if not self._sockets.send_chunk(out.to, chunk, piece):
                    self._refused.append(out)  # the next credit, or housekeeping, tries again
                    return
                last = out.advance(piece.nbytes, now)
                if type(out) is Passage:  # not isinstance, which for an abstract class calls Python code
                    self._credit(out)
                if last:
                    return
        except Exception as error:  # the run of this transfer breaks, whatever event led here (R3 of ``shell``)
            self._shell.break_run(out.message.run, out.message, error)

    def _credit(self, passage: Passage) -> None:
        """Send the credits of relayed chunks, so that further chunks arrive."""
        credits, passage.credits = passage.credits, []
        for credit in credits:
            self._sockets.post(passage.message.run, passage.sender, credit)

    def _try_again(self) -> None:
        refused, self._refused = self._refused, []
        for out in refused:
            if out.number in self._outgoing:
                self._pump(out)

    def credited(self, sender: str, credit: m.Credit, now: float) -> None:
        """Handle a credit from ``sender`` for one of this host's transfers. Unknown transfers are ignored."""
        out = self._outgoing.get(credit.transfer)
        if out is None or out.to.host != sender:
            return
        if self._refused:
            self._try_again()
        way = self._ways.get(sender)
        if way is None:
            way = self._ways[sender] = ReturnWay()
        out.credited(credit, now, way.arrived_s(credit, now))
        if self._stalls is not None and self._stalls.came(out.to.bulk_end):
            self._report(out.to, out.message, 0.0, now)
        if not credit.done:
            self._pump(out)
            return
        self._end(out)
        total, arrived = out.total, out.begun and out.sent == out.total <= credit.received_bytes
        if arrived and total >= CHUNK_BYTES:
            out.to.chunk_bytes = chunk_bytes_for(total, out.busy_s)
        if type(out) is Passage:
            self._passed(out, now, arrived=arrived)
            return
        assert isinstance(out, Outgoing)
        if not arrived:
            out.end.heads.clear()  # R3: the receiver may lack a schema, so the next values have theirs again
            self._shell.handle(e.TransferFailed(out.peer, out.message, out.via), now)
            return
        if out.digest:
            if len(out.end.heads) >= HEADS_KNOWN:
                out.end.heads.clear()
            out.end.heads.add(out.digest)
        busy_s = out.busy_s * self._time_scale
        self._shell.handle(e.TransferMeasured(out.peer, out.message, total, busy_s, out.via), now)

    # --- what is due -----------------------------------------------------------------------------------

    def send_credits(self, now: float) -> None:
        """Send the credits that have waited for ``CREDIT_HOLD_S``."""
        sockets = self._sockets
        for line in list(sockets.holding):
            # R1: no message was sent on which the credit could be piggybacked
            while line.credits and line.credits[0][-1] + CREDIT_HOLD_S <= now:
                if not sockets.post_held(line):
                    break
        due_s = min((line.credits[0][-1] for line in sockets.holding), default=math.inf) + CREDIT_HOLD_S
        self.due_s = due_s if due_s > now else now + CREDIT_HOLD_S  # if a credit was refused

    def check(self, now: float) -> None:
        """Notify the core about the runs whose transfers do not get through (R5)."""
        assert self._stalls is not None
        assert self._control is not None
        for host in self._control.check(now):
            self._reached(host, now)
        busy: dict[End, dict[RunId, Sending]] = {}  # the first transfer of each run
        for out in self._outgoing.values():
            busy.setdefault(out.to.bulk_end, {}).setdefault(out.message.run, out)
        self.look_s = now + LOOK_S if busy or self._core.runs else math.inf
        idle = self._stalls.check(busy, now)
        for out in self._outgoing.values():
            if self._stalls.moves(out.to.bulk_end):
                out.progress_s = now
        for end, idle_s in idle.items():
            for out in list(busy[end].values()):
                self._report(out.to, out.message, idle_s, now)

    def _report(self, line: HostConnections, message: m.Bulk, idle_s: float, now: float) -> None:
        stalled = e.TransferStalled(line.host, message, idle_s * self._time_scale, line.via)
        self._shell.handle(stalled, now)

    def redial(self, command: e.Redial) -> None:
        """Connect again, and send transfers under way again or give them up (R5)."""
        line = self._sockets.line(command.run, command.host, command.via)
        if line is None:
            return
        self._redial(line.bulk_end, again=command.again)

    def _reached(self, host: str, now: float) -> None:
        """Renew bulk connections that stand still, as control messages reach a host again. Notify the core."""
        assert self._stalls is not None
        for end in {out.to.bulk_end for out in self._outgoing.values() if out.to.host == host}:
            flow = self._sockets.outflow(end)
            if not self._stalls.moves(end) and (flow is None or flow.waits):
                self._redial(end, again=True)
        self._shell.handle(e.PeerReached(host), now)

    def _redial(self, end: End, *, again: bool) -> None:
        self._sockets.redial(end)
        now = time.monotonic()
        for out in [out for out in self._outgoing.values() if out.to.bulk_end == end]:
            if again and isinstance(out, Outgoing):
                self._end(out)
                out.to.chunk_bytes = CHUNK_BYTES
                number = self._next_transfer = self._next_transfer + 1
                out.begin_again(number, now)
                self._outgoing[number] = out
                self._pump(out)
            else:
                self._give_up(out, now, self._shell.queue_event)  # queued, as the core is busy with a command

    def run_opened(self, now: float) -> None:
        """Begin to check connections, as a run is open (R5)."""
        if self.look_s == math.inf and self._stalls is not None:
            self.look_s = now + LOOK_S
            self._shell.check_by(self.look_s)

    def forget(self, run: RunId) -> None:
        """Forget the transfers of a run that has ended on this host."""
        for out in [out for out in self._outgoing.values() if out.message.run == run]:
            self._end(out)
        for key in [key for key, incoming in self._incoming.items() if incoming.what[1:2] == (run,)]:
            del self._incoming[key]

    def slept(self, slept_s: float) -> None:
        """Exclude ``slept_s``, in which this process did not run, from the durations of transfers."""
        for out in self._outgoing.values():
            out.progress_s += slept_s
            out.pieces = deque([(end, sent_s + slept_s) for end, sent_s in out.pieces])
        for incoming in self._incoming.values():
            incoming.seen_s += slept_s

    def lost(self, now: float) -> None:
        """Give up every transfer from this host, as the connections are gone."""
        for out in list(self._outgoing.values()):
            self._give_up(out, now)

    def _give_up(self, out: Sending, now: float, say: Callable[[e.Event], None] | None = None) -> None:
        """End a transfer as failed. ``say``: takes the event instead of the core."""
        self._end(out)
        out.to.chunk_bytes = CHUNK_BYTES
        if isinstance(out, Passage):
            self._passed(out, now, arrived=False)
        elif isinstance(out, Outgoing):
            failed = e.TransferFailed(out.peer, out.message, out.via)
            if say is None:
                self._shell.handle(failed, now)
            else:
                say(failed)

    def keep_house(self, now: float) -> None:
        """Give up transfers without progress, and forget hosts that are gone. Called every few seconds."""
        for out in list(self._outgoing.values()):
            if now - out.progress_s > STUCK_S:
                self._give_up(out, now)
        for key, incoming in list(self._incoming.items()):
            if now - incoming.seen_s > BEGUN_S:
                del self._incoming[key]
        silent = [identity for identity, arrived_s in self._arrived.items() if now - arrived_s > m.MAX_GAP_S]
        for identity in silent:
            del self._arrived[identity]
        for host in {name_of(identity) for identity in silent} - {name_of(identity) for identity in self._arrived}:
            self._ways.pop(host, None)
        self._try_again()
