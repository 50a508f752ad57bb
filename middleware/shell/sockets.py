"""A host's sockets: where others reach it, and the lines to them.

Every host binds two ROUTER sockets, one for control and one for bulk, and dials each peer with one DEALER to
either. Messages to a peer go through the dealer; a peer that cannot be dialled (a client behind a firewall asking
``Hello``) is answered through the router, which is mandatory: an unroutable answer is an error, never a silent drop.
Endpoints are of TCP, or Unix sockets in a folder that only their owner can enter (``endpoints``).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from functools import lru_cache

import zmq
import zmq.backend

from thalweg.middleware.errors import ProtocolError, UsageError
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.shell.endpoints import advertised, beside, may_dial, take_away
from thalweg.middleware.shell.security import Keys, secure_dealer, secure_router, start_authenticator
from thalweg.middleware.shell.transfers import CHUNK_BYTES, MAX_CHUNK_BYTES

NOBLOCK = int(zmq.NOBLOCK)  # plain numbers: combining pyzmq's enumerations takes longer than a send
NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
ZERO_COPY_BYTES = 1024 * 1024  # below it, copying is cheaper than keeping track
Socket = zmq.Socket[bytes]
_send = zmq.backend.Socket.send  # which zmq.Socket.send calls


class Line:
    """The way to one host of a run: its dealers, once they are dialled, and the credits that wait for a message."""

    __slots__ = ("bulk", "chunk_bytes", "control", "credits", "host", "peer", "run")

    def __init__(self, run: str, peer: m.Peer) -> None:
        self.run = run
        self.host = peer.name
        self.peer = peer
        self.control: Socket | None = None
        self.bulk: Socket | None = None
        self.chunk_bytes = CHUNK_BYTES
        self.credits: list[tuple[int, int, float, float]] = []  # transfer, its bytes, gap, when it had come

    def hang_up(self) -> None:
        """Let go of its dealers, which may be closed from now on: a transfer that still has the line dials anew."""
        self.control = self.bulk = None


class Sockets:
    """Both routers of host ``name``, and a dealer to each end of each peer that was sent something.

    Raises UsageError for an endpoint that cannot be listened on.
    """

    def __init__(self, name: str, listen: str, advertise: str | None, keys: Keys | None, *, insecure: bool) -> None:
        self._name = name
        self._keys = keys
        self._context = zmq.Context()
        self._bound: list[str] = []
        self._instance = secrets.token_hex(4)
        self._authenticator = None if keys is None else start_authenticator(self._context, keys)
        try:
            bulk_listen = beside(listen)
            self.control, control = self._bind(listen, insecure)
            self.bulk, bulk = self._bind(bulk_listen, insecure)
            self.me = m.Peer(name, advertised(control, advertise), advertised(bulk, advertise), self._instance)
        except BaseException:
            self.destroy(0)
            raise
        self.lines: dict[str, dict[str, Line]] = {}  # by run and host
        self.dealers: dict[str, Socket] = {}  # by endpoint
        self.holding: set[Line] = set()  # those on which credits wait
        self._dealt = 0  # dealers so far
        self._routes: dict[str, bytes] = {}

    def destroy(self, linger_ms: int) -> None:
        take_away(self._bound)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=linger_ms)

    # --- who is where ----------------------------------------------------------------------------------

    def meet(self, run: str, peers: Iterable[m.Peer]) -> None:
        """In run ``run`` these hosts listen there."""
        lines = self.lines.setdefault(run, {})
        for peer in peers:
            before = lines.get(peer.name)
            if before is None or before.peer != peer:
                lines[peer.name] = Line(run, peer)
                if before is not None:
                    before.hang_up()

    def forget(self, run: str) -> None:
        """Forget where a run's hosts are, and hang up on those that no other run talks to."""
        for line in self.lines.pop(run, {}).values():
            line.hang_up()
            line.credits.clear()
            self.holding.discard(line)
        peers = [line.peer for lines in self.lines.values() for line in lines.values()]
        used = {end for peer in peers for end in (peer.control, peer.bulk)}
        for endpoint in self.dealers.keys() - used:
            self.dealers.pop(endpoint).close()

    def line(self, run: str, host: str) -> Line | None:
        lines = self.lines.get(run)
        return None if lines is None else lines.get(host)

    def approach(self, line: Line) -> None:
        """Connect, if that is still to be done."""
        line.control = self._dealer(line.peer.control)
        line.bulk = self._dealer(line.peer.bulk)

    def remember(self, host: str, identity: bytes) -> None:
        """``host`` can be answered through the control router."""
        self._routes[host] = identity

    # --- sending ---------------------------------------------------------------------------------------

    def hold(self, line: Line, credit: tuple[int, int, float, float]) -> None:
        """Let the last credit of a transfer wait for a message to ride on: transfer, bytes, gap, when it had come."""
        line.credits.append(credit)
        self.holding.add(line)

    def take_held(self, line: Line, limit: int) -> list[m.Credit]:
        """The credits that wait, as they are now; those beyond ``limit`` go on waiting."""
        now = time.monotonic()
        taken, line.credits = line.credits[:limit], line.credits[limit:]
        if not line.credits:
            self.holding.discard(line)
        return [m.Credit(transfer, size, True, now - at_s, gap_s, at_s) for transfer, size, gap_s, at_s in taken]

    def post(self, run: str, host: str, message: m.Control) -> None:
        """Send a control message with the credits that wait for one, if it can be sent: cores repeat what matters."""
        line = self.line(run, host)
        if line is None:
            self._post_back(host, frames.encode(message))
            return
        if line.control is None:
            self.approach(line)
        assert line.control is not None
        if line.credits:
            frame = frames.encode_riding(message, self.take_held(line, frames.MAX_RIDING))
        else:
            frame = frames.encode(message)
        try:
            _send(line.control, frame, NOBLOCK)
        except zmq.ZMQError as error:
            _pass_refusal(error)

    def _post_back(self, host: str, frame: bytes) -> None:
        identity = self._routes.get(host)
        if identity is None:
            return
        try:
            self.control.send(identity, NOBLOCK_MORE)
            self.control.send(frame, NOBLOCK)
        except zmq.ZMQError as error:
            _pass_refusal(error)

    def send_chunk(self, line: Line, chunk: m.Chunk, piece: memoryview) -> bool:
        """Send a piece of a transfer; False when there is no room for it now."""
        if line.bulk is None:
            self.approach(line)
        assert line.bulk is not None
        try:
            _send(line.bulk, frames.encode(chunk), NOBLOCK_MORE)
            if piece.nbytes < ZERO_COPY_BYTES:
                _send(line.bulk, piece, NOBLOCK)
            else:
                _send(line.bulk, piece, NOBLOCK, copy=False)
        except zmq.Again:
            return False
        return True

    # --- receiving -------------------------------------------------------------------------------------

    @staticmethod
    def take(socket: Socket, parts: int) -> tuple[bytes, list[zmq.Frame]] | None:
        """The next message, if there is one: who sent it, and its ``parts`` frames. ProtocolError for more or fewer."""
        try:
            identity = socket.recv(NOBLOCK)
        except zmq.Again:
            return None
        frame = socket.recv(NOBLOCK, copy=False)
        taken = [frame]
        while frame.more:
            frame = socket.recv(NOBLOCK, copy=False)
            taken.append(frame)
        if len(taken) != parts:
            raise ProtocolError(f"a message of {len(taken)} frames where {parts} are expected")
        return identity, taken

    # --- making ----------------------------------------------------------------------------------------

    def _bind(self, endpoint: str, insecure: bool) -> tuple[Socket, str]:
        socket: Socket = self._context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, max(frames.MAX_CONTROL_BYTES, MAX_CHUNK_BYTES) + 1024)
        socket.setsockopt(zmq.LINGER, 200)
        _heartbeat(socket)
        secure_router(socket, self._keys, endpoint, insecure=insecure)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno == zmq.EADDRINUSE:
                raise UsageError(f"{endpoint} is already in use; choose another port with --listen") from None
            raise UsageError(f"cannot listen on {endpoint}: {error}") from None
        self._bound.append(bound := socket.getsockopt_string(zmq.LAST_ENDPOINT))
        return socket, bound

    def _dealer(self, endpoint: str) -> Socket:
        socket = self.dealers.get(endpoint)
        if socket is None:
            socket = self._context.socket(zmq.DEALER)
            # An identity of its own: one that is used again while the last connection still closes goes unread.
            self._dealt += 1
            socket.setsockopt(zmq.ROUTING_ID, f"{self._name}/{self._instance}/{self._dealt}".encode())
            socket.setsockopt(zmq.LINGER, 200)
            socket.setsockopt(zmq.RECONNECT_IVL, 50)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
            _heartbeat(socket)
            secure_dealer(socket, self._keys)
            if may_dial(self.me.control, endpoint):
                socket.connect(endpoint)
            self.dealers[endpoint] = socket
        return socket


def _pass_refusal(error: zmq.ZMQError) -> None:
    """A line may be full or unroutable; anything else is a defect."""
    if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
        raise error


def _heartbeat(socket: Socket) -> None:
    socket.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30_000)


@lru_cache(maxsize=1024)
def name_of(identity: bytes) -> str:
    """The host that a connection says it is of; ProtocolError for none."""
    name, slash, _ = identity.partition(b"/")
    if not slash or not 1 <= len(name) <= 128:
        raise ProtocolError("a peer without a Thalweg identity")
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise ProtocolError("a peer whose name is not UTF-8") from None
