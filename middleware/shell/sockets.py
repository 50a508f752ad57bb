"""Sockets of a host: the endpoints at which other hosts reach it, and its lines to other hosts.

Every host binds two ROUTER sockets, one for control and one for bulk, and dials each peer with one DEALER to each of
the two. In each further network it binds one more ROUTER for bulk, and dials the peers that have one there as well.
Messages to a peer go through the dealer. A sender without a line here (it sends ``Hello``, or asks about a run that is
not open here) is answered through the router, only on its own connection. So no message makes a host dial the endpoint
that it names. The router is mandatory: an answer without a route is an error, never a silent drop. Endpoints are of
TCP, or Unix sockets in a folder that only their owner can enter (``endpoints``). Rules:

- R1: A send may be refused (the line has no room, or no socket is left), and nothing ends. A credit waits on, a chunk
  is sent later, and cores repeat all important messages.
- R2: Sockets are bounded. Connections without recent messages are closed, first those to hosts of no run. They are
  dialled anew when needed.
- R3: A message of too many frames is dropped, a few frames at a time.
- R4: A dealer receives only answers, and few of them. Answers are read before messages are repeated
  (``response_times``).
- R5: If bytes of a connection do not get through and the host answers, the connection is dialled anew. TCP waits longer
  before each attempt of its own, up to two minutes, and a firewall may have forgotten the connection.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

import zmq
import zmq.backend

from thalweg.middleware.core.measuring.prober import BEFORE_RUNS
from thalweg.middleware.errors import ProtocolError, UsageError
from thalweg.middleware.logbook import Logbook
from thalweg.middleware.network.view import NET
from thalweg.middleware.platform import on_linux
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell import descriptors
from thalweg.middleware.shell.bounds import ANSWER_BYTES, ANSWERS_UNREAD, OVERHEAD_BYTES
from thalweg.middleware.shell.endpoints import (
    advertised,
    beside,
    check_networks,
    is_ipv6,
    may_dial,
    resolve_endpoint,
    take_away,
)
from thalweg.middleware.shell.expiry import Expiry
from thalweg.middleware.shell.security import (
    Keys,
    check_leader,
    secure_dealer,
    secure_router,
    start_authenticator,
)
from thalweg.middleware.shell.stalls import End, Outflow
from thalweg.middleware.shell.transfers import CHUNK_BYTES, MAX_CHUNK_BYTES
from thalweg.middleware.shell.watching import Watching

if TYPE_CHECKING:
    from thalweg.middleware.shell.guard import Guard

NOBLOCK = int(zmq.NOBLOCK)  # plain numbers: to combine pyzmq's enumerations takes longer than a send
NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
ZERO_COPY_BYTES = 1024 * 1024  # below this size, a copy is cheaper than a reference
SOURCE = int(zmq.SRCFD)  # property of a frame: the descriptor on which it arrived
BULK_QUEUED = 64  # chunks that wait for a peer that does not read: credit limits honest hosts to fewer
BULK_UNREAD = 8  # chunks that wait for this host; a later change would make libzmq hold some back for good
ANSWERS_QUEUED = 64  # answers that wait for the peer
ANSWERS = frozenset({m.Welcome, m.Installed, m.Removed, m.Pong, m.Failed, m.Credit, m.SubscriptionEnded, m.Unsubscribe})
SKIPPED_FRAMES = 2_000  # frames of an oversized message that are dropped at once: about a millisecond
TOLD_S = 60.0  # between two log lines with the same text
URGENT = 0xB8  # type of service of control messages: expedited forwarding (RFC 3246)
Socket = zmq.Socket[bytes]
_send = zmq.backend.Socket.send  # the method that zmq.Socket.send calls
_recv = zmq.backend.Socket.recv  # as a function: pyzmq's sockets look names up in Python


class HostConnections:
    """Line to one host of a run: its dealers, once dialled, and the credits that wait for a message.

    Each further network has a line of its own in ``others``, with the dealer for bulk there.
    """

    __slots__ = (
        "bulk", "chunk_bytes", "control", "credits", "ends", "heads", "host", "others", "peer", "run", "used", "used_s",
        "version", "via",
    )  # fmt: skip

    def __init__(self, run: RunId, peer: m.Peer, via: str = NET, version: int = frames.PROTOCOL_VERSION) -> None:
        self.run = run
        self.version = version  # of the protocol
        self.host = peer.name
        self.peer = peer
        self.via = via
        self.ends: set[End] = {(end, peer.name) for end in (peer.control, *peer.ends.values())}
        self.others = (
            {name: HostConnections(run, peer, name, version) for name in peer.ends if name != NET} if via == NET else {}
        )
        self.used = True  # since the last check, at ``used_s``
        self.used_s = time.monotonic()
        self.control: Socket | None = None
        self.bulk: Socket | None = None
        self.chunk_bytes = CHUNK_BYTES
        self.credits: list[tuple[int, int, float, float]] = []  # transfer, bytes, gap, time of arrival
        self.heads: set[str] = set()  # digests of heads of parcels that have arrived there

    @property
    def bulk_end(self) -> End:
        """Endpoint and host for chunks on this line."""
        return self.peer.ends[self.via], self.host

    def hang_up(self) -> None:
        """Drop the dealers, which may then be closed. A transfer that still has the line dials anew."""
        self.control = self.bulk = None
        for other in self.others.values():
            other.bulk = None


class Listening(NamedTuple):
    """Endpoints of a host.

    - ``endpoint``: control endpoint.
    - ``advertise``: address that peers dial, if it differs.
    - ``networks``: endpoints for bulk in further networks, by the name of the network.
    - ``insecure``: listen over TCP even without keys.
    - ``bulk_port``: port for bulk in the shared network. None: the port above the control port. 0: any port.
    """

    endpoint: str
    advertise: str | None = None
    networks: Mapping[str, str] = {}
    insecure: bool = False
    bulk_port: int | None = None


class Sockets:
    """Routers of host ``name``, and dealers to each endpoint of each peer that was sent a message.

    Raises UsageError for an endpoint that cannot be listened on, and for a certificate with a different name.
    """

    def __init__(
        self,
        name: str,
        listening: Listening,
        keys: Keys | None,
        *,
        limits: CoreConfig | None = None,
        speaks: m.Speaks = frames.SPEAKS,
        process: str = "",
    ) -> None:
        self.speaks, self.logbook = speaks, Logbook(name)
        self.heard = speaks[1]  # version of the frame that is being handled
        self.version = speaks[1]  # version of messages that this host sends first
        self._versions: dict[RunId, int] = {}  # versions of other clients' runs, the same in all generations
        if keys is not None and keys.own.name != name:
            raise UsageError(
                f"{name!r} cannot use the certificate of {keys.own.name!r}; a name is that of its certificate"
            )
        self._name = name
        self._keys = keys
        self._members = 0 if keys is None else keys.members.version
        self._expiry = None if keys is None else Expiry(keys)
        self._limits = limits or CoreConfig()
        self._context = zmq.Context()
        self._context.set(
            zmq.MAX_SOCKETS, 4 * self._limits.max_sockets + 64
        )  # a guarded socket counts twice, and some are being closed
        self.guard: Guard | None = None
        self.watching = Watching(self._context)
        self.stirred = True  # an answer was sent through a router, which resets the descriptor that shows messages
        self._bound: list[str] = []
        self._authenticator = None if keys is None else start_authenticator(self._context, keys.members)
        try:
            listen, advertise, networks, insecure, bulk_port = listening
            check_networks(networks)
            listen = resolve_endpoint(listen, 0)
            bulk_listen = beside(listen, bulk_port)
            self.control, control = self._bind(listen, insecure)
            self.bulk, bulk = self._bind(bulk_listen, insecure, bulk=True)
            ends = {NET: advertised(bulk, advertise)}
            self.others: dict[str, Socket] = {}  # routers for bulk in further networks
            for network, end in networks.items():
                self.others[network], ends[network] = self._bind(end, insecure, bulk=True)
            joined = m.NetworkEndpoints(ends) if networks else ends[NET]
            instance = f"{secrets.token_hex(4)} {process}".strip()[:64]
            self.me = m.Peer(name, advertised(control, advertise), joined, instance)
        except BaseException:
            self.destroy(0)
            raise
        self.lines: dict[RunId, dict[str, HostConnections]] = {}  # by run and host
        self.dealers: dict[End, Socket] = {}
        self._dialled: dict[End, str] = {}  # keys that dealers demand
        self.holding: set[HostConnections] = set()  # lines on which credits wait
        self._lines_at: Counter[End] = Counter()
        self._surplus: set[Socket] = set()  # routers with an oversized message to drop
        self.drainers: dict[bytes, int] = {}  # connections that requested a drain, with their versions
        self._told_s: dict[str, float] = {}  # time of the last log line by text

    def watch(self, turns: Callable[[], tuple[int, bool]], wake: Callable[[], None]) -> None:
        """Start a guard of connections against dangers that no option of libzmq bounds.

        ``turns``, ``wake``: as for ``Guard``. Only Linux reports the bytes that a connection has received. On other
        systems a host listens only on loopback.
        """
        if self.me.control.startswith("tcp://") and on_linux():
            from thalweg.middleware.shell.guard import Guard  # imports modules that only Linux has

            self.guard = Guard((self.control, self.bulk, *self.others.values()), self._limits, turns, wake)

    def destroy(self, linger_ms: int) -> None:
        if self.guard is not None:
            self.guard.stop(self.dealers.values())
        with contextlib.suppress(zmq.ZMQError):  # a defect has closed the context
            self.watching.stop()
        take_away(self._bound)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=linger_ms)

    # --- lines to hosts --------------------------------------------------------------------------------

    def meet(self, run: RunId, peers: Iterable[m.Peer]) -> None:
        """Note the endpoints of hosts in run ``run``."""
        lines, version = self.lines.setdefault(run, {}), self._versions.get(run.first_generation, self.version)
        for peer in peers:
            line = lines.pop(peer.name, None)
            if line is None or line.peer != peer or line.version != version:
                line = self._line_in_place_of(line, HostConnections(run, peer, NET, version))
            lines[peer.name] = line  # the latest host is the last
        # R2: of the hosts of no run, the host met longest ago is dropped
        while run == BEFORE_RUNS and len(lines) > self._limits.max_passing:
            self._forget(lines.pop(next(iter(lines))))

    def speak(self, run: RunId, version: int) -> None:
        """Use a version of the protocol for a run from now on, in every generation. Any thread may call this."""
        self._versions[run.first_generation] = version

    def _line_in_place_of(self, before: HostConnections | None, line: HostConnections) -> HostConnections:
        self._lines_at.update(line.ends)
        if before is not None:
            line.credits = before.credits[:]
            self._forget(before)
            if line.credits:
                self.holding.add(line)
        return line

    def _forget(self, line: HostConnections) -> None:
        line.hang_up()
        line.credits.clear()
        self.holding.discard(line)
        for end in line.ends:
            self._lines_at[end] -= 1
            if not self._lines_at[end]:
                del self._lines_at[end]
                self._close(end)

    def _close(self, end: End, linger_ms: int | None = None) -> None:
        self._dialled.pop(end, None)
        dealer = self.dealers.pop(end, None)
        if dealer is not None:
            self._let_go(dealer, linger_ms)
            if self.guard is not None:
                self.guard.leave(end[0])

    def _let_go(self, dealer: Socket, linger_ms: int | None = None) -> None:
        if self.guard is not None:
            dealer.monitor(None, 0)
        dealer.close(linger_ms)

    def outflow(self, end: End) -> Outflow | None:
        """Return the state of bytes sent to an endpoint, None without a connection. Needs ``guard``."""
        assert self.guard is not None
        return self.guard.outflow(end[0])

    def control_ends(self) -> list[End]:
        """Return the control connections of this host's dealers."""
        return list({(line.peer.control, line.host) for line in self._all_lines() if line.control is not None})

    def redial(self, end: End) -> None:
        """Drop the messages that wait on a connection, and connect again with the next message (R5)."""
        for line in self._all_lines():
            if end in line.ends:
                line.hang_up()
        self._close(end, 0)

    def forget(self, run: RunId, *, follows: bool = False) -> None:
        """Forget the endpoints of a run's hosts, and close connections to hosts without a further run.

        Unless the next generation ``follows``, forget the protocol version of the run as well.
        """
        if not follows:
            self._versions.pop(run.first_generation, None)
        for line in self.lines.pop(run, {}).values():
            self._forget(line)
        for end in self.dealers.keys() - self._lines_at.keys():  # a transfer that still has its line has dialled
            self._close(end)

    def line(self, run: RunId, host: str, via: str = NET) -> HostConnections | None:
        """Return the line to a host over a network. None: the run has no such host, or it is not in the network."""
        try:
            line = self.lines[run][host]
            return line if via == NET else line.others[via]
        except KeyError:
            return None

    def approach(self, line: HostConnections) -> bool:
        """Connect a line if necessary. Return False if no socket is left."""
        try:
            if line.via == NET:
                line.control = self._dealer((line.peer.control, line.host))
            line.bulk = self._dealer((line.peer.ends[line.via], line.host), bulk=True)
        except zmq.ZMQError as error:  # R1: no socket is left now, and nothing ends
            line.hang_up()
            self._log_once(f"{line.host!r} cannot be dialled", f"{error}; more descriptors (ulimit -n) may help")
            return False
        return True

    def _member(self, identity: bytes, frame: zmq.Frame) -> str:
        """Return the host whose key the connection of a message has proved. Raises ProtocolError if no member has the
        key.
        """
        assert self._keys is not None
        public = str(frame.get("User-Id"))
        if self.guard is not None and not self._keys.members.knows(public):
            self.guard.unwanted.add(frame.get(SOURCE))
        return self._keys.members.sender(identity, public).name

    def check_leader(
        self, identity: bytes, frame: zmq.Frame, message: m.Install | m.Remove | m.AddMember | m.InstallSubscriber
    ) -> None:
        """Raise ProtocolError if the sender may not lead a run, or this host lacks the certificate of a host of the
        run.

        Unless the message is a Remove, the sender gets the reason as an answer.
        """
        if self._keys is None:
            return
        member = self._keys.members.sender(identity, str(frame.get("User-Id")))
        try:
            check_leader(self._keys, member, message)
        except ProtocolError as error:
            reason = str(error)
            if isinstance(message, m.AddMember):  # the sender learns the reason
                self.answer(identity, m.Detached(message.run, message.number, reason))
            elif not isinstance(message, m.Remove):
                self.answer(identity, m.Installed(message.run, self._name, reason, message.number))
            raise

    def check_drain(self, identity: bytes, frame: zmq.Frame) -> None:
        """Raise ProtocolError if the sender of a message may not drain this host."""
        if self._keys is None:
            if not self.me.control.startswith("ipc://"):
                raise ProtocolError("a host without keys is not drained by a message; send its process SIGTERM")
            return
        member = self._keys.members.sender(identity, str(frame.get("User-Id")))
        if member.role != "client" and member.name != self._name:
            raise ProtocolError(f"{member.name!r} has the certificate of a host, which drains no other")

    def answer(self, identity: bytes, message: m.Message) -> None:
        """Answer a message on its own connection, in its version of the protocol."""
        self._post_back(identity, self._encoded_back(message))

    def answer_drainers(self, message: m.Drained) -> None:
        """Send the result of a drain to the connections that requested the drain."""
        for identity, version in self.drainers.items():
            self._post_back(identity, frames.encode(message, version))
        self.drainers.clear()

    def check_members(self) -> list[tuple[str, str]]:
        """Close connections to hosts that are no members any more, or have a new key. Called every few seconds.

        Return expired certificates of this host and of the hosts of its runs. Each is a name with the rest of a
        sentence that begins with the name.
        """
        if self._keys is None or self._expiry is None:
            return []
        members = self._keys.members
        if self._members != members.refresh():
            self._members, public_of = members.version, members.public_of
            self._hang_up([end for end, public in self._dialled.items() if public != public_of(end[1])])
        for why in members.wrong:
            self._log_once(f"a certificate in {members.folder} is not accepted", why, "certificate-refused")
        return [*self._expiry.check({line.host for line in self._all_lines()}, self.logbook)]

    def hang_up_idle(self, now: float) -> None:
        """Close lines without a message for ``idle_s`` (R2)."""
        idle_s, busy = self._limits.idle_s, set()
        for line in self._all_lines():
            if line.used or any(other.used for other in line.others.values()):
                line.used, line.used_s = False, now
                for other in line.others.values():
                    other.used = False
            if now - line.used_s < idle_s:
                busy |= line.ends
        self._hang_up(self.dealers.keys() - busy)

    def hang_up_all(self) -> None:
        """Close the connections to every host. Each is dialled anew with the next message."""
        self._hang_up(list(self.dealers))

    def _hang_up(self, ends: Collection[End]) -> None:
        if ends:
            for line in self._all_lines():
                if not line.ends.isdisjoint(ends):
                    line.hang_up()
        for end in ends:
            self._close(end)

    def _all_lines(self) -> Iterator[HostConnections]:
        return (line for lines in self.lines.values() for line in lines.values())

    def _make_room(self) -> None:
        """Make room for a further dealer (R2). Raises ZMQError if every dealer is in use."""
        soft, most = descriptors.soft_limit(), self._limits.max_sockets
        if 0 <= soft < descriptors.OF_A_PEER // 2 * most + descriptors.OWN:
            most = max(2, (soft - descriptors.OWN) // (descriptors.OF_A_PEER // 2))
        if len(self.dealers) < most:
            return
        dialled = [line for line in self._all_lines() if line.control is not None]
        busy = {end for line in dialled if line.used and line.run != BEFORE_RUNS for end in line.ends}
        free = [line for line in dialled if line.ends.isdisjoint(busy)]
        if not free:
            self._log_once(
                f"max_sockets={most} are in use",
                "no further host is dialled; raise it with --limit max_sockets=N, and descriptors with ulimit -n",
            )
            raise zmq.ZMQError(errno.EMFILE)
        self._hang_up(min(free, key=lambda line: (line.run != BEFORE_RUNS, line.used_s)).ends)

    def _log_once(self, what: str, more: str, event: str = "peer-unreachable") -> None:
        now = time.monotonic()
        if now - self._told_s.get(what, -TOLD_S) < TOLD_S:
            return
        self._told_s = {text: at_s for text, at_s in self._told_s.items() if now - at_s < TOLD_S}
        if len(self._told_s) < 16:  # more kinds of lines are not logged, as nobody would read them
            self._told_s[what] = now
            self.logbook.write(event, f"{what}: {more}", about=what, reason=more)

    # --- sending ---------------------------------------------------------------------------------------

    def hold(self, line: HostConnections, credit: tuple[int, int, float, float]) -> None:
        """Hold the last credit of a transfer for the next message, to be piggybacked.

        ``credit``: number of the transfer, bytes, gap, time of arrival.
        """
        line.credits.append(credit)
        self.holding.add(line)

    def post_held(self, line: HostConnections) -> bool:
        """Send the credit that has waited longest, with others to the host. Return False if the send was refused."""
        credit = line.credits.pop(0)
        if not line.credits:
            self.holding.discard(line)
        if self.post(line.run, line.host, _as_it_is_now(credit, time.monotonic())):
            return True
        line.credits.insert(0, credit)
        self.holding.add(line)
        return False

    def post(self, run: RunId, host: str, message: m.Message, asker: bytes = b"") -> bool:
        """Send a control message, with credits that wait for one. Return False if the send was refused (R1).

        ``asker``: connection of the message that this one answers, for a host without a line.
        """
        line = self.line(run, host)
        if line is None:
            return asker != b"" and name_of(asker) == host and self._post_back(asker, self._encoded_back(message))
        if line.control is None and not self.approach(line):
            return False
        assert line.control is not None
        line.used = True
        if line.credits:
            riders, now = line.credits[: frames.MAX_PIGGYBACKED], time.monotonic()
            frame = frames.encode_piggybacking(message, [_as_it_is_now(credit, now) for credit in riders], line.version)
        else:
            riders, frame = None, frames.encode(message, line.version)
        try:
            _send(line.control, frame, NOBLOCK)
        except zmq.ZMQError as error:
            _pass_refusal(error)
            return False
        if riders:
            del line.credits[: len(riders)]
            if not line.credits:
                self.holding.discard(line)
        return True

    def _encoded_back(self, message: m.Message) -> bytes:
        """Return the frame of an answer, in the version of the handled frame if this host speaks the version."""
        oldest, newest = self.speaks
        return frames.encode(message, min(max(self.heard, oldest), newest))

    def _post_back(self, identity: bytes, frame: bytes) -> bool:
        self.stirred = True
        for router in (self.control, self.bulk, *self.others.values()):  # one of the routers has the connection
            try:
                router.send(identity, NOBLOCK_MORE)
                router.send(frame, NOBLOCK)
            except zmq.ZMQError as error:
                _pass_refusal(error)
            else:
                return True
        return False

    def send_chunk(self, line: HostConnections, chunk: m.Chunk, piece: memoryview) -> bool:
        """Send a piece of a transfer. Return False if the line has no room now."""
        if line.bulk is None and not self.approach(line):
            return False
        assert line.bulk is not None
        line.used = True
        try:
            _send(line.bulk, frames.encode(chunk, line.version), NOBLOCK_MORE)
            if piece.nbytes < ZERO_COPY_BYTES:
                _send(line.bulk, piece, NOBLOCK)
            else:
                _send(line.bulk, piece, NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True

    # --- receiving -------------------------------------------------------------------------------------

    def take(self, socket: Socket, parts: int) -> tuple[str, bytes, list[zmq.Frame]] | None:
        """Return the next message of a router: sender, identity of the connection, and ``parts`` frames.

        None: no message waits. With keys, the sender is proved. Raises ProtocolError for a wrong number of frames, an
        identity of a different host, or a sender with the name of this host.
        """
        if self._surplus and socket in self._surplus:
            self._skip(socket)
            return None
        try:
            identity = _recv(socket, NOBLOCK)
        except zmq.Again:
            return None
        frame = _recv(socket, NOBLOCK, False)  # not copied; by position, which is faster
        received = [frame]
        while frame.more:
            if len(received) == parts:
                self._skip(socket)
                raise ProtocolError(f"a message has more frames than the {parts} that are expected")
            frame = _recv(socket, NOBLOCK, False)
            received.append(frame)
        if len(received) != parts:
            raise ProtocolError(f"a message has {len(received)} frames, and {parts} are expected")
        if self.guard is not None:
            self.guard.taken[frame.get(SOURCE)] += sum(map(len, received)) + OVERHEAD_BYTES
        sender = name_of(identity) if self._keys is None else self._member(identity, frame)
        if sender == self._name:  # the core would take it for a message of its own, which needs no permission
            raise ProtocolError(f"a message names this host, {sender!r}, as its sender; a second process has the name")
        return sender, identity, received

    def _skip(self, socket: Socket) -> None:
        """Read and drop further frames of a message of too many frames (R3)."""
        self._surplus.add(socket)
        for _ in range(SKIPPED_FRAMES):
            if not socket.recv(NOBLOCK, copy=False).more:
                self._surplus.discard(socket)
                return

    def answers(self) -> list[tuple[str, bytes]]:
        """Return the frames that have arrived on dealers, each with the dialled host (R4). With keys, the host is
        proved.
        """
        came: list[tuple[str, bytes]] = []
        for (_, host), dealer in self.dealers.items():
            with contextlib.suppress(zmq.Again):
                for _ in range(ANSWERS_UNREAD):
                    frame = dealer.recv(NOBLOCK, False)
                    if self.guard is not None:
                        self.guard.taken[frame.get(SOURCE)] += len(frame) + OVERHEAD_BYTES
                    came.append((host, frame.bytes))
        return came

    # --- making ----------------------------------------------------------------------------------------

    def _bind(self, endpoint: str, insecure: bool, *, bulk: bool = False) -> tuple[Socket, str]:
        socket: Socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.RCVHWM, BULK_UNREAD if bulk else 1000)
        socket.setsockopt(zmq.TOS, 0 if bulk else URGENT)
        socket.setsockopt(zmq.SNDHWM, ANSWERS_QUEUED)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, max(frames.MAX_CONTROL_BYTES, MAX_CHUNK_BYTES) + 1024)
        socket.setsockopt(zmq.LINGER, 200)
        (_keep_alive if bulk else _heartbeat)(socket)
        secure_router(socket, self._keys, endpoint, insecure=insecure)
        socket.setsockopt(zmq.IPV6, is_ipv6(endpoint))
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno == zmq.EADDRINUSE:
                problem = "for partitions is already in use; choose another port with --bulk-port"
                problem = problem if bulk else "is already in use; choose another port with --listen"
                raise UsageError(f"{endpoint} {problem}") from None
            raise UsageError(f"no socket can listen on {endpoint}: {error}") from None
        self._bound.append(bound := socket.getsockopt_string(zmq.LAST_ENDPOINT))
        return socket, bound

    def _dealer(self, end: End, *, bulk: bool = False) -> Socket:
        socket = self.dealers.get(end)
        if socket is None:
            self._make_room()
            socket = self._context.socket(zmq.DEALER)
            self._set_up(socket, bulk=bulk)
            endpoint, host = end
            if self._keys is not None:  # before its use: if the key changes in between, the host is dialled again
                self._dialled[end] = self._keys.members.public_of(host)
            try:
                with contextlib.suppress(UsageError):  # nothing is sent until there is a certificate of the host
                    secure_dealer(socket, self._keys, host)
                    if may_dial(self.me.control, endpoint):
                        socket.setsockopt(zmq.IPV6, is_ipv6(endpoint))
                        if self.guard is not None:
                            self.guard.follow(socket)
                        socket.connect(endpoint)
            except zmq.ZMQError:
                self._let_go(socket, 0)
                raise
            self.dealers[end] = socket
        return socket

    def _set_up(self, socket: Socket, *, bulk: bool = False) -> None:
        socket.setsockopt(zmq.SNDHWM, BULK_QUEUED if bulk else 1000)
        socket.setsockopt(zmq.TOS, 0 if bulk else URGENT)
        socket.setsockopt(zmq.RCVHWM, ANSWERS_UNREAD)
        socket.setsockopt(zmq.MAXMSGSIZE, ANSWER_BYTES)
        # Every connection has a new identity. An identity that is reused while the last connection still closes is not
        # read. A known identity would let a stranger connect with it and take the connection over.
        socket.setsockopt(zmq.ROUTING_ID, new_identity(self._name))
        socket.setsockopt(zmq.LINGER, 200)
        socket.setsockopt(zmq.RECONNECT_IVL, 50)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        (_keep_alive if bulk else _heartbeat)(socket)

    def watch_process(self, run: RunId, host: str) -> int | None:
        """Watch whether the process of a host ends.

        Return the descriptor that is readable when there is an event, None if the process cannot be watched.
        """
        line = self.line(run, host)
        if line is None:
            return None
        try:
            socket = self._context.socket(zmq.DEALER)
        except zmq.ZMQError:  # R1: no socket is left; silence will show the end
            return None
        try:
            self._set_up(socket)
            secure_dealer(socket, self._keys, host)
            if not may_dial(self.me.control, line.peer.control):
                socket.close(0)
                return None
            socket.setsockopt(zmq.IPV6, is_ipv6(line.peer.control))
            return self.watching.begin(run, host, socket, partial(socket.connect, line.peer.control))
        except (zmq.ZMQError, UsageError):  # UsageError: there is no certificate of the host yet
            socket.close(0)
            return None


def _as_it_is_now(credit: tuple[int, int, float, float], now: float) -> m.Credit:
    transfer, size, gap_s, at_s = credit
    return m.Credit(transfer, size, True, now - at_s, gap_s, at_s)


def _pass_refusal(error: zmq.ZMQError) -> None:
    """Raise the error again, unless a line is full or has no route."""
    if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
        raise error


def _heartbeat(socket: Socket) -> None:
    socket.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30_000)


def _keep_alive(socket: Socket) -> None:
    """Make the kernel find dead connections for bulk while nothing is sent.

    libzmq hangs up if no whole message has arrived for ``HEARTBEAT_TIMEOUT``, and a chunk may take minutes.
    """
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 10)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 5)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 6)


def new_identity(name: str) -> bytes:
    """Return a new identity for a connection of host ``name``, which nobody can guess."""
    return f"{name}/".encode() + secrets.token_bytes(16)


@lru_cache(maxsize=1024)
def name_of(identity: bytes) -> str:
    """Return the host that an identity names. Raises ProtocolError for an identity without a name."""
    name, slash, _ = identity.partition(b"/")
    if not slash or not 1 <= len(name) <= 128:
        raise ProtocolError("the peer has no Thalweg identity")
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise ProtocolError("the name of the peer is not UTF-8") from None
