"""The ZeroMQ shell: sockets, timers and threads around one pure ``HostCore``.

Every host binds two ROUTER sockets, one for control and one for bulk, and dials each peer with one DEALER to
either. Messages to a peer go through the dealer; a peer that cannot be dialled (a client behind a firewall asking
``Hello``) is answered through the router, which is mandatory: an unroutable answer is an error, never a silent drop.
Everything that decides is in the core; here are only bytes, clocks and threads.
"""

from __future__ import annotations

import heapq
import math
import os
import secrets
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import msgspec
import zmq

from thalweg.middleware.core.host import HostCore
from thalweg.middleware.core.monitoring.prober import BEFORE_RUNS
from thalweg.middleware.errors import OperatorError, ProtocolError, ThalwegError, UsageError
from thalweg.middleware.loading import DEFAULT_ALLOW, registered
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.frames import MAX_CONTROL_BYTES, MAX_FRAMES, decode_chunk, decode_control, encode
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.shell.duty import Duty
from thalweg.middleware.shell.load import HostLoad
from thalweg.middleware.shell.recorder import Recorder
from thalweg.middleware.shell.security import Keys, secure_dealer, secure_router, start_authenticator
from thalweg.middleware.shell.transfers import CHUNK_BYTES, Incoming, Outgoing, ReturnWay, Statistics, value_of
from thalweg.middleware.shell.workers import Task, Workers

NOBLOCK = int(zmq.NOBLOCK)  # plain numbers: combining pyzmq's enumerations takes longer than a send
NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
HOUSEKEEPING_S = 5.0
ZERO_COPY_BYTES = 1024 * 1024  # below it, copying is cheaper than keeping track
CREDIT_HOLD_S = 0.02  # how long the last credit of a transfer waits for a message to travel with
TAKE_OVER_S = 0.02  # a quick node's call that lasts longer loses its thread the sockets
STUCK_S = 60.0  # without any credit; a chunk takes 32 s on the slowest link a testbed makes (64 kbit/s)


class ShellConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one host process runs."""

    name: str
    listen: str = "tcp://127.0.0.1:*"
    advertise: str | None = None  # the address peers dial, where it is not the one listened on
    time_scale: float = 1.0
    allow: tuple[str, ...] = DEFAULT_ALLOW
    records: str | None = None
    core: CoreConfig = CoreConfig()
    max_partition_bytes: int = 256 * 1024 * 1024
    insecure: bool = False

    def __post_init__(self) -> None:
        name = self.name
        if "/" in name or not name.isprintable() or not 1 <= len(name.encode()) <= 128:
            raise UsageError(f"{name!r} is no name of a host; use 1 to 128 bytes of printable text without '/'")
        if not 0 < self.time_scale < math.inf:
            raise UsageError(f"the time scale is {self.time_scale!r}; give a positive number")


class Shell:
    """One running host. ``tell`` takes events from any thread; ``on_application`` gets the core's words for it."""

    def __init__(
        self,
        config: ShellConfig,
        on_application: Callable[[e.Command], None] | None = None,
        keys: Keys | None = None,
    ) -> None:
        self.config = config
        self._context = zmq.Context()
        self._keys = keys
        self._instance = secrets.token_hex(4)
        self._authenticator = None if keys is None else start_authenticator(self._context, keys)
        try:
            bulk_listen = _next_port(config.listen)
            self._control, control = self._bind(config.listen, zmq.ROUTER)
            self._bulk, bulk = self._bind(bulk_listen, zmq.ROUTER)
            self._recorder = Recorder(config.name, Path(config.records) if config.records else None, config.time_scale)
        except BaseException:
            self._destroy(0)
            raise
        addresses = (_advertised(control, config.advertise), _advertised(bulk, config.advertise))
        self.me = m.Peer(config.name, *addresses, self._instance)
        self.core = HostCore(self.me, config.core.dilated(config.time_scale), tuple(sorted(registered())))
        self.core.recording = self._recorder.active
        self._on_application = on_application or (lambda command: None)
        self._load = HostLoad()
        self._epoch = time.monotonic()
        self._peers: dict[str, dict[str, m.Peer]] = {}
        self._dealers: dict[str, zmq.Socket[bytes]] = {}
        self._dealt = 0  # dealers so far
        self._routes: dict[str, bytes] = {}
        self._timers: list[tuple[float, str]] = []
        self._timer_at: dict[str, float] = {}
        self._outgoing: dict[int, Outgoing] = {}
        self._incoming: dict[tuple[bytes, int], Incoming] = {}
        self._ways: dict[str, ReturnWay] = {}
        self._arrived: dict[bytes, float] = {}  # by connection: when its last bulk message came
        self._next_transfer = 0
        self._credits: dict[tuple[str, str], list[tuple[m.Credit, float]]] = {}  # by run and host, since when
        self._credits_due_s: float | None = None
        self._counts = dict.fromkeys(Statistics.__struct_fields__, 0)
        self._inbox: deque[e.Event] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._asleep = False
        self._stopping = False
        self._error: BaseException | None = None
        self._workers = Workers(self.tell, config.allow)
        self._quick: deque[Task] = deque()
        self._housekeeping_s = time.monotonic() + HOUSEKEEPING_S
        self._duty = Duty(self._run, f"thalweg-{config.name}", TAKE_OVER_S)

    # --- used from other threads -----------------------------------------------------------------------

    def tell(self, event: e.Event) -> None:
        """Queue an event for the core; any thread."""
        self._inbox.append(event)
        self._wake()

    def statistics(self) -> Statistics:
        return Statistics(**self._counts)

    @property
    def alive(self) -> bool:
        return not self._duty.over.is_set()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the I/O thread to end; raises what ended it, if something did."""
        self._duty.wait(timeout)
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Stop the I/O thread and free sockets and files; idempotent."""
        self._stopping = True
        self._wake()
        self._duty.wait(10)

    def _wake(self) -> None:
        if self._asleep:
            self._asleep = False
            try:
                os.write(self._wake_write, b"x")
            except (BlockingIOError, OSError):
                return

    # --- the I/O thread --------------------------------------------------------------------------------

    def _now(self) -> float:
        return (time.monotonic() - self._epoch) * self.config.time_scale

    def _run(self) -> bool:
        try:
            if not self._loop():
                return False
        except BaseException as error:
            self._error = error
            self._on_application(e.Fail("", f"the host {self.config.name!r} stopped: {type(error).__name__}: {error}"))
        self._workers.stop()
        self._recorder.close()
        self._destroy(200)
        os.close(self._wake_read)
        os.close(self._wake_write)
        return True

    def _loop(self) -> bool:
        """Serve until the shell is to stop (True), or another thread has taken the duty over (False)."""
        poller = zmq.Poller()
        poller.register(self._control, zmq.POLLIN)
        poller.register(self._bulk, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        while not self._stopping:
            wait_s = self._housekeeping_s - time.monotonic()
            if self._timers:
                wait_s = min(wait_s, (self._timers[0][0] - self._now()) / self.config.time_scale)
            if self._credits_due_s is not None:
                wait_s = min(wait_s, self._credits_due_s - time.monotonic())
            self._asleep = True  # said before looking into the inbox: whoever tells after that look writes to the pipe
            at_once = self._inbox or self._quick or self._stopping  # a thread that lost the duty may leave calls behind
            ready = dict(poller.poll(0 if at_once else max(0, int(wait_s * 1000) + 1)))
            self._asleep = False
            if self._wake_read in ready:
                os.read(self._wake_read, 64)
            while self._inbox:
                self._handle(self._inbox.popleft())
            if self._control in ready:
                self._take(self._control, self._receive_control)
            if self._bulk in ready:
                self._take(self._bulk, self._receive_bulk)
            if self._quick and not self._make_quick_calls():
                return False
            now = time.monotonic()
            if self._timers and self._timers[0][0] <= (now - self._epoch) * self.config.time_scale:
                self._fire_timers()
            if self._credits_due_s is not None and now >= self._credits_due_s:
                self._send_credits()
            if now >= self._housekeeping_s:
                self._housekeeping_s = now + HOUSEKEEPING_S
                self._keep_house()
        return True

    def _make_quick_calls(self) -> bool:
        """Make the calls of quick nodes; False when one was not, and the duty was taken over meanwhile."""
        while self._quick:
            command = self._quick.popleft()
            if not self._duty.present:
                self._workers.submit(command)
                continue
            number = self._duty.begin()
            event = self._workers.call(command)
            if not self._duty.end(number):
                if event is not None:
                    self.tell(event)
                return False
            if event is not None:
                self._handle(event)
        return True

    def _take(self, socket: zmq.Socket[bytes], receive: Callable[[list[zmq.Frame]], None]) -> None:
        """Take one message, which is there; polling for the next costs a tenth of finding none."""
        try:
            frames = [socket.recv(NOBLOCK, copy=False)]
        except zmq.Again:
            return
        while frames[-1].more:
            frames.append(socket.recv(NOBLOCK, copy=False))
        try:
            receive(frames)
        except ProtocolError as error:
            self._counts["frames_rejected"] += 1
            self._recorder.write_to_all("rejected", {"detail": {"reason": str(error)}})

    def _receive_control(self, frames: list[zmq.Frame]) -> None:
        if not 2 <= len(frames) <= 1 + MAX_FRAMES:
            raise ProtocolError(f"a control message of {len(frames) - 1} frames; it has 1 to {MAX_FRAMES}")
        identity = frames[0].bytes
        sender = _name(identity)
        for message in [decode_control(frame.bytes) for frame in frames[1:]]:
            if type(message) is m.Credit:
                self._credited(sender, message)
                continue
            if type(message) in (m.Hello, m.Ping, m.Install, m.Remove):
                self._routes[sender] = identity
            self._handle(e.MessageReceived(sender, message))

    def _receive_bulk(self, frames: list[zmq.Frame]) -> None:
        if len(frames) != 3:
            raise ProtocolError(f"a bulk message of {len(frames) - 1} frames; it has two")
        chunk = decode_chunk(frames[1].bytes)
        body = frames[2].buffer
        identity = frames[0].bytes
        sender = _name(identity)
        if chunk.total_bytes > self.config.max_partition_bytes:
            raise ProtocolError(f"a partition of {chunk.total_bytes} bytes is over this host's limit")
        self._counts["bytes_received"] += body.nbytes
        now = time.monotonic()
        gap_s = min(m.MAX_GAP_S, now - self._arrived.get(identity, -math.inf))
        self._arrived[identity] = now
        key = (identity, chunk.transfer)
        value: object
        if chunk.offset == 0 and body.nbytes == chunk.total_bytes:
            value = value_of(chunk.dtype, chunk.shape, body)
        else:
            incoming = self._incoming.get(key)
            if incoming is None:
                if chunk.offset != 0 or not self.core.wants(chunk.message):
                    self._post(chunk.message.run, sender, m.Credit(chunk.transfer, 0, True, 0.0, gap_s, now))
                    if chunk.offset == 0 and isinstance(chunk.message, m.State):  # whoever sent it is told why not
                        self._handle(e.MessageReceived(sender, chunk.message))
                    return
                incoming = self._incoming[key] = Incoming(chunk.total_bytes)
            incoming.seen_s = now
            try:
                complete = incoming.add(chunk, body)
            except ProtocolError:
                del self._incoming[key]
                raise
            if not complete:
                credit = m.Credit(chunk.transfer, incoming.received, False, 0.0, gap_s, now)
                self._post(chunk.message.run, sender, credit)
                return
            del self._incoming[key]
            value = value_of(chunk.dtype, chunk.shape, incoming.buffer.data)
        credit = m.Credit(chunk.transfer, chunk.total_bytes, True, 0.0, gap_s, now)
        if isinstance(chunk.message, m.Probe):
            run = chunk.message.run
            self._peers.setdefault(run, {})[sender] = chunk.message.source
            self._post(run, sender, credit)
            if run != BEFORE_RUNS and run not in self.core.runs and run not in self.core.coordinator.led:
                self._forget_peers(run)  # it is over here, or has not begun
        else:
            self._credits.setdefault((chunk.message.run, sender), []).append((credit, now))
            if self._credits_due_s is None:
                self._credits_due_s = now + CREDIT_HOLD_S
        self._handle(e.MessageReceived(sender, chunk.message, value, chunk.total_bytes))

    # --- commands --------------------------------------------------------------------------------------

    def _handle(self, event: e.Event) -> None:
        for command in self.core.handle(event, self._now()):
            kind = type(command)
            if kind is e.Send:
                self._send(command)  # type: ignore[arg-type]
            elif kind is e.RunOperator:
                self._have_made(command)  # type: ignore[arg-type]
            elif kind is e.Record:
                self._recorder.write(command.run, command.kind, command.fields)  # type: ignore[union-attr]
            elif kind is e.SetTimer:
                self._set_timer(command)  # type: ignore[arg-type]
            else:
                self._rare(command)

    def _have_made(self, command: Task) -> None:
        """Have an operator's code called, by this thread soon if that is quick."""
        if self._workers.is_quick(command):
            self._quick.append(command)
        else:
            self._workers.submit(command)

    def _rare(self, command: e.Command) -> None:
        match command:
            case e.Meet(run, peers):
                self._peers.setdefault(run, {}).update((peer.name, peer) for peer in peers)
            case e.OpenNode():
                self._workers.open_node(command)
            case e.CloseNode():
                self._workers.close_node(command)
            case e.TakeState() | e.RestoreState() | e.MergeStates():
                self._have_made(command)
            case e.Approach(run, host):
                peer = self._peers.get(run, {}).get(host)
                if peer is not None:
                    self._dealer(peer.control)
                    self._dealer(peer.bulk)
            case e.OpenRun(install, nodes):
                self._recorder.open_run(install.run, install.label, install.epoch_s)
                self._workers.open(install.run, [install.dataflow.by_name[name] for name in nodes])
                self._record_load()
            case e.CloseRun(run):
                self._record_load()
                self._workers.close(run)
                self._recorder.close_run(run)
                for number in [n for n, out in self._outgoing.items() if out.message.run == run]:
                    del self._outgoing[number]
                if run not in self.core.coordinator.led:  # its client still has to tell everyone that it is over
                    self._forget_peers(run)
                self._on_application(command)
            case e.Forgotten(run):
                self._forget_peers(run)
                self._on_application(command)
            case _:
                self._on_application(command)

    def _forget_peers(self, run: str) -> None:
        """Forget where a run's hosts are, and hang up on those that no other run talks to."""
        self._peers.pop(run, None)
        used = {end for peers in self._peers.values() for peer in peers.values() for end in (peer.control, peer.bulk)}
        for endpoint in self._dealers.keys() - used:
            self._dealers.pop(endpoint).close()

    def _set_timer(self, command: e.SetTimer) -> None:
        self._timer_at[command.key] = command.at_s
        heapq.heappush(self._timers, (command.at_s, command.key))

    def _fire_timers(self) -> None:
        now = self._now()
        while self._timers and self._timers[0][0] <= now:
            at, key = heapq.heappop(self._timers)
            if self._timer_at.get(key) == at:
                del self._timer_at[key]
                self._handle(e.TimerFired(key))

    def _send(self, command: e.Send) -> None:
        if not command.bulk:
            self._post(command.run, command.to, command.message)  # type: ignore[arg-type]
            return
        assert isinstance(command.message, m.Partition | m.Probe | m.State)
        peer = self._peers.get(command.run, {}).get(command.to)
        if peer is None:
            self._counts["sends_refused"] += 1
            self.tell(e.TransferFailed(command.to, command.message))
            return
        self._next_transfer += 1
        try:
            out = Outgoing(self._next_transfer, peer, command.message, command.payload, time.monotonic())
        except OperatorError as error:
            raise ThalwegError(f"a value that a worker passed cannot be sent: {error}") from None
        self._outgoing[out.number] = out
        self._pump(out)

    def _pump(self, out: Outgoing) -> None:
        """Send as many chunks as the credit allows."""
        socket = self._dealer(out.to.bulk)
        for chunk, piece in out.chunks():
            now = time.monotonic()  # before: what is sent may be on the line before this thread goes on
            try:
                socket.send(encode(chunk), NOBLOCK_MORE)
                socket.send(piece, NOBLOCK, copy=piece.nbytes < ZERO_COPY_BYTES)
            except zmq.Again:
                self._counts["sends_refused"] += 1
                return  # the credit of what is under way, or the stuck check, goes on from here
            out.advance(piece.nbytes, now)
            self._counts["bytes_sent"] += piece.nbytes

    def _credited(self, sender: str, credit: m.Credit) -> None:
        out = self._outgoing.get(credit.transfer)
        if out is None or out.to.name != sender:
            return
        now = time.monotonic()
        way = self._ways.get(sender)
        if way is None:
            way = self._ways[sender] = ReturnWay()
        out.credited(credit, now, way.arrived_s(credit, now))
        total = out.body.nbytes
        if not credit.done:
            self._pump(out)
            return
        del self._outgoing[credit.transfer]
        if credit.received_bytes < total:
            self._handle(e.TransferFailed(out.to.name, out.message))
            return
        self._counts["transfers_sent"] += 1
        self._handle(e.TransferMeasured(out.to.name, out.message, total, out.busy_s * self.config.time_scale))

    def _post(self, run: str, to: str, message: m.Control) -> None:
        """Send a control message, or count that it could not be sent (the core repeats what matters)."""
        frames = [encode(message)]
        if self._credits:
            frames = self._held_credits(run, to, MAX_FRAMES - 1) + frames
        self._post_frames(run, to, frames)

    def _held_credits(self, run: str, to: str, limit: int) -> list[bytes]:
        """The credits that wait for a message to ``to``, as frames; those beyond ``limit`` go on waiting."""
        held = self._credits.pop((run, to), [])
        if len(held) > limit:
            self._credits[run, to] = held[limit:]
        now = time.monotonic()
        return [encode(msgspec.structs.replace(credit, held_s=now - since)) for credit, since in held[:limit]]

    def _send_credits(self) -> None:
        """Send the credits that have waited long enough, and all others to the same hosts."""
        now = time.monotonic()
        self._credits_due_s = None
        for run, to in list(self._credits):
            if self._credits[run, to][0][1] + CREDIT_HOLD_S <= now:
                while (run, to) in self._credits:
                    self._post_frames(run, to, self._held_credits(run, to, MAX_FRAMES))
        if self._credits:
            self._credits_due_s = min(held[0][1] for held in self._credits.values()) + CREDIT_HOLD_S

    def _post_frames(self, run: str, to: str, frames: list[bytes]) -> None:
        peer = self._peers.get(run, {}).get(to)
        try:
            if peer is not None:
                self._send_frames(self._dealer(peer.control), frames)
            elif to in self._routes:
                self._send_frames(self._control, [self._routes[to], *frames])
            else:
                self._counts["sends_refused"] += 1
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            self._counts["sends_refused"] += 1

    @staticmethod
    def _send_frames(socket: zmq.Socket[bytes], frames: list[bytes]) -> None:
        for frame in frames[:-1]:
            socket.send(frame, NOBLOCK_MORE)
        socket.send(frames[-1], NOBLOCK)

    def _keep_house(self) -> None:
        now = time.monotonic()
        for number, out in list(self._outgoing.items()):
            if now - out.progress_s > STUCK_S:
                del self._outgoing[number]
                self._counts["transfers_failed"] += 1
                self._handle(e.TransferFailed(out.to.name, out.message))
        for key, incoming in list(self._incoming.items()):
            if now - incoming.seen_s > STUCK_S:
                del self._incoming[key]
        silent = [identity for identity, arrived_s in self._arrived.items() if now - arrived_s > m.MAX_GAP_S]
        for identity in silent:
            del self._arrived[identity]
        for host in {_name(identity) for identity in silent} - {_name(identity) for identity in self._arrived}:
            self._ways.pop(host, None)
        self._record_load()
        self._recorder.flush()

    def _record_load(self) -> None:
        if self._recorder.active:
            cpu_share, memory_bytes = self._load.sample()
            self._recorder.write_to_all("host_load", {"value": cpu_share, "size_bytes": memory_bytes})

    def _destroy(self, linger_ms: int) -> None:
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=linger_ms)

    # --- sockets ---------------------------------------------------------------------------------------

    def _bind(self, endpoint: str, kind: int) -> tuple[zmq.Socket[bytes], str]:
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        socket.setsockopt(zmq.MAXMSGSIZE, max(MAX_CONTROL_BYTES, CHUNK_BYTES) + 1024)
        socket.setsockopt(zmq.LINGER, 200)
        _heartbeat(socket)
        secure_router(socket, self._keys, endpoint, insecure=self.config.insecure)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno == zmq.EADDRINUSE:
                raise UsageError(f"{endpoint} is already in use; choose another port with --listen") from None
            raise UsageError(f"cannot listen on {endpoint}: {error}; an endpoint is tcp://ADDRESS:PORT") from None
        return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def _dealer(self, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._dealers.get(endpoint)
        if socket is None:
            socket = self._context.socket(zmq.DEALER)
            # An identity of its own: one that is used again while the last connection still closes goes unread.
            self._dealt += 1
            socket.setsockopt(zmq.ROUTING_ID, f"{self.config.name}/{self._instance}/{self._dealt}".encode())
            socket.setsockopt(zmq.LINGER, 200)
            socket.setsockopt(zmq.RECONNECT_IVL, 50)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
            _heartbeat(socket)
            secure_dealer(socket, self._keys)
            socket.connect(endpoint)
            self._dealers[endpoint] = socket
        return socket


def _heartbeat(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.HEARTBEAT_IVL, 5_000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 30_000)


@lru_cache(maxsize=1024)
def _name(identity: bytes) -> str:
    name, slash, _ = identity.partition(b"/")
    if not slash or not 1 <= len(name) <= 128:
        raise ProtocolError("a peer without a Thalweg identity")
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise ProtocolError("a peer whose name is not UTF-8") from None


def _next_port(endpoint: str) -> str:
    """The bulk endpoint stands one port above the control endpoint, or anywhere with it."""
    head, _, port = endpoint.rpartition(":")
    if not endpoint.startswith("tcp://") or not head:
        raise UsageError(f"{endpoint!r} is not an endpoint of the form tcp://ADDRESS:PORT")
    if port in ("*", "0"):
        return endpoint
    if not port.isdigit() or not 0 < int(port) < 65535:
        raise UsageError(f"{endpoint!r} has no port between 1 and 65534 (bulk takes the one above)")
    return f"{head}:{int(port) + 1}"


def _advertised(endpoint: str, address: str | None) -> str:
    return endpoint if address is None else f"tcp://{address}:{endpoint.rpartition(':')[2]}"


def with_address(endpoint: str, like: str) -> str:
    """``endpoint`` with the address of ``like``, if it listens on all addresses."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if host not in ("0.0.0.0", "[::]", "*"):
        return endpoint
    return f"tcp://{like.removeprefix('tcp://').rpartition(':')[0]}:{port}"
