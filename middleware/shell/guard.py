"""Guard of a host: it cuts TCP connections that would take the host's memory or descriptors.

libzmq keeps the frames of a message until the last frame has arrived, and reads on meanwhile. No option of libzmq
bounds a message that never ends. The kernel counts the bytes that each connection has received. Bytes beyond the
messages that the host has taken are still inside libzmq. Rules:

- R1: A connection with more than ``max_unread_bytes`` is cut at once. Whole messages never wait in that number
  (``BULK_UNREAD``).
- R2: A connection is cut if it has more than the largest message for ``LOOKS`` checks in a row. Only checks count in
  which the host took nothing from it, although the host was free to. Such bytes are one message without an end.
- R3: Frames of a byte or none take 20 to 32 times their bytes. If nothing is taken from a connection, a check may find
  that the process has grown in that proportion to the bytes that arrived. After ``SWELLS`` more such checks than other
  checks, the connection is cut. No honest work does so.
- R4: At most ``max_connections`` of other processes are kept, and at most half as many as the process may have
  descriptors. Beyond that, the connection that was silent for longest is cut. Connections without any message come
  first.
- R5: A connection whose key belongs to no member any more is cut when it sends bytes. A new one fails at the handshake.
- R6: A connection that this host has dialled gets only answers. Beyond ``ANSWERS_BYTES`` it is cut at once.
- R7: A connection is checked only while bytes arrive on it. While all connections are calm, they are checked only if
  the process has grown, or twice a second. The host's own thread checks the growth, as it is awake anyway if much
  arrives. To wake a second thread so often would cost more than the rest of the guard. An idle host is not woken up.

A process whose connection is cut dials again, and honest hosts repeat important messages. Unix sockets are not checked,
as only their owner can dial them.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import select
import socket
import struct
import termios
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator

import zmq

from thalweg.middleware.platform.processes import descriptor_limits, open_statm, resident_bytes
from thalweg.middleware.protocol.frames import MAX_CONTROL_BYTES
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.shell.bounds import ANSWER_BYTES, ANSWERS_UNREAD, GLANCE_S
from thalweg.middleware.shell.memory import give_back
from thalweg.middleware.shell.monitors import news_of
from thalweg.middleware.shell.stalls import Outflow
from thalweg.middleware.shell.transfers import MAX_CHUNK_BYTES

LOOK_S = 0.01  # between two checks while a connection is suspect
CALM_S = 0.5  # longest time between two checks of calm connections
GROWN_BYTES = 4 * 1024 * 1024
LOOKS = 2
SWELLS = 6
SWELLING = (10.0, 45.0)  # growth of the process in bytes for each byte that arrives
SOME_BYTES = 16_384
TRIM_S = 0.2  # after this time libzmq has freed the memory of a cut connection
LARGEST_BYTES = max(MAX_CONTROL_BYTES, MAX_CHUNK_BYTES) + 64 * 1024  # largest message: a chunk with its header
ANSWERS_BYTES = (ANSWERS_UNREAD + 1) * ANSWER_BYTES + 64 * 1024  # with an arriving answer and a read of libzmq
HEARTBEATS_BYTES_PER_S = 100.0
UNACKED_AT, RTT_AT, ACKED_AT, RECEIVED_AT, DELIVERED_AT = 24, 68, 120, 128, 192  # in Linux's struct tcp_info
TCP_INFO_BYTES = 196


class _Connection:
    """Account of one connection. ``more``: correction of the count of bytes taken under its descriptor."""

    __slots__ = ("begun", "dialled", "looks", "more", "port", "seen_s", "swells", "taken", "unread")

    def __init__(self, port: int, now: float, begun: int, *, dialled: bool = False) -> None:
        self.port = port  # of this host; of the other host if this host has dialled
        self.dialled = dialled
        self.seen_s = now
        self.begun = begun  # bytes taken of earlier connections with this descriptor
        self.more = float(-begun)
        self.taken = 0  # as of the last check
        self.unread = 0.0
        self.looks = self.swells = 0  # checks in a row with too many bytes, and checks with a growing process

    def update(self, received: int, taken: int, forgiven: float, *, free: bool) -> float:
        """Note the bytes received and taken so far. Return the growth of unread bytes, 0 if bytes were taken.

        ``forgiven``: bytes of heartbeats since the last check. ``free``: the host could have taken messages.
        """
        self.more = min(self.more + forgiven, received - taken)
        before, self.unread = self.unread, received - taken - self.more
        idle, self.taken = taken == self.taken, taken
        if not idle:
            self.looks = self.swells = 0
            return 0.0
        if self.unread <= LARGEST_BYTES:
            self.looks = 0
        elif free:
            self.looks += 1
        return self.unread - before


class Guard:
    """Thread that watches the connections to the host's routers, and those of dealers passed to ``follow``.

    - ``taken``: bytes taken from each connection. The thread that reads from the routers counts them.
    - ``unwanted``: connections without a member's key (R5), noted by the same thread.
    - ``turns``: returns how many messages of each router the host could have taken so far, and whether it waits.
    - ``calm``: begins before the call of ``wake``. Meanwhile the host's thread calls ``glance`` at ``glance_s``, or up
      to ``EARLY_S`` sooner if it is awake.
    - ``news``: descriptor. When it is readable, the host's thread calls ``handle_events``.

    Each of the two threads writes fields of its own.
    """

    def __init__(
        self,
        routers: Iterable[zmq.Socket[bytes]],
        limits: CoreConfig,
        turns: Callable[[], tuple[int, bool]],
        wake: Callable[[], None],
    ) -> None:
        self.taken: defaultdict[int, int] = defaultdict(int)  # bytes of messages, by descriptor
        self.unwanted: set[int] = set()  # descriptors
        self.cut = 0  # connections so far
        self._wake = wake
        self.calm = False
        self._calm_bytes = math.inf  # resident memory up to which the process counts as calm
        self.glance_s = 0.0
        self._trim = 0.0  # time of a cut after which memory is to be given back
        self._turns, self._turned = turns, 0
        self._limits = limits
        self._looked_s = time.monotonic()
        self._growing = False  # at the last check bytes had arrived of which none was taken
        self._resident_bytes = 0  # at the last check, while connections grow
        self._connections: dict[int, _Connection] = {}
        self._epoll = select.epoll()
        self._stopping = threading.Event()
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC)
        self._grown_read, self._grown_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._statm = open_statm()
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED
        self._monitors: dict[zmq.Socket[bytes], int] = {}
        self._routers = list(routers)
        for number, router in enumerate(self._routers):
            port = int(router.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
            endpoint = f"inproc://guard-{number}"
            router.monitor(endpoint, events)
            monitor = router.context.socket(zmq.PAIR)
            monitor.setsockopt(zmq.RCVHWM, 0)  # without room, libzmq would stop all its work and wait
            monitor.connect(endpoint)
            self._monitors[monitor] = port
        self._dialled: deque[tuple[int, int]] = deque()  # descriptors and ports, to be checked from now on
        self._followed = 0
        self._connected: dict[bytes, int] = {}  # descriptors of dealers' connections, by dialled endpoint
        # One socket gets the events of all dealers, as inproc checks no types. A PAIR for each would need a descriptor.
        self._of_dealers: zmq.Socket[bytes] = self._routers[0].context.socket(zmq.PULL)
        self._of_dealers.setsockopt(zmq.RCVHWM, 0)  # as above
        self.news = int(self._of_dealers.get(zmq.FD))
        self._thread = threading.Thread(target=self._run, name="thalweg-guard", daemon=True)
        self._thread.start()

    def follow(self, dealer: zmq.Socket[bytes]) -> None:
        """Watch the connections of a dealer (R6). The host's thread calls this before the dealer connects.

        The caller calls ``monitor(None, 0)`` of the dealer before it closes the dealer. Raises ZMQError if no monitor
        can be made.
        """
        self._followed += 1
        endpoint = f"inproc://dealer-{self._followed}"
        dealer.monitor(endpoint, zmq.EVENT_CONNECTED | zmq.EVENT_DISCONNECTED)
        self._of_dealers.connect(endpoint)
        self.handle_events()  # connecting resets the descriptor that shows events

    def handle_events(self) -> None:
        """Handle new and closed connections of dealers. Called by the host's thread."""
        with contextlib.suppress(zmq.Again):
            while True:
                event, descriptor, endpoint = news_of(self._of_dealers.recv_multipart(zmq.NOBLOCK))
                if event == zmq.EVENT_CONNECTED:
                    self._connected[endpoint] = descriptor
                    self.dialled(descriptor, endpoint)
                elif self._connected.get(endpoint) == descriptor:
                    del self._connected[endpoint]

    def dialled(self, descriptor: int, endpoint: bytes) -> None:
        """Watch a connection that this host has made (R6). Called by the host's thread."""
        self._dialled.append((descriptor, int(endpoint.rpartition(b":")[2])))
        self._arm(self._epoll.register, descriptor)

    def leave(self, endpoint: str) -> None:
        """Forget the connection of a closed dealer. Called by the host's thread."""
        self._connected.pop(endpoint.encode(), None)

    def outflow(self, endpoint: str) -> Outflow | None:
        """Return the state of the bytes sent to a dialled endpoint, None without a connection.

        Called by the host's thread.
        """
        descriptor = self._connected.get(endpoint.encode())
        if descriptor is None:
            return None
        with contextlib.suppress(OSError, struct.error), self._socket(descriptor) as borrowed:
            if borrowed.getpeername()[1] == int(endpoint.rpartition(":")[2]):  # the number may be another's by now
                info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
                (unacked,) = struct.unpack_from("=I", info, UNACKED_AT)
                (acked,) = struct.unpack_from("=Q", info, ACKED_AT)
                rtt_us, deviation_us = struct.unpack_from("=II", info, RTT_AT)
                info = info.ljust(TCP_INFO_BYTES, b"\0")  # kernels before 4.18 do not count delivered packets
                (delivered,) = struct.unpack_from("=I", info, DELIVERED_AT)
                return Outflow(int(acked), unacked > 0, (rtt_us + 4 * deviation_us) / 1e6, int(delivered))
        return None

    def stop(self, dealers: Iterable[zmq.Socket[bytes]] = ()) -> None:
        """Stop the thread, before the owner closes the routers and ``dealers``. May be called again."""
        if not self._stopping.is_set():
            for router in (*self._routers, *dealers):  # first: libzmq waits for monitors that no thread reads
                with contextlib.suppress(zmq.ZMQError):  # a defect has closed it already
                    router.monitor(None, 0)
            self._of_dealers.close(0)
            self._stopping.set()
            os.close(self._stop_write)  # the thread sees the closed pipe
            self._thread.join()
            self._epoll.close()
            os.close(self._stop_read)
            for descriptor in (self._grown_read, self._grown_write, self._statm):
                with contextlib.suppress(OSError):  # a descriptor of -1
                    os.close(descriptor)

    # --- the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        with contextlib.suppress(zmq.ZMQError):  # a defect has closed the context, which the host itself reports
            self._watch()
            for monitor in self._monitors:
                monitor.close(0)

    def _watch(self) -> None:
        poller, news = zmq.Poller(), zmq.Poller()
        for source in (*self._monitors, self._stop_read, self._epoll.fileno()):
            poller.register(source, zmq.POLLIN)
        for source in (*self._monitors, self._stop_read, self._grown_read):
            news.register(source, zmq.POLLIN)
        while not self._stopping.is_set():
            suspects = [descriptor for descriptor, connection in self._connections.items() if connection.looks]
            wait_s = LOOK_S if suspects else TRIM_S if self._trim else None
            ready = dict(poller.poll(None if wait_s is None else int(wait_s * 1000)))
            for monitor, port in self._monitors.items():
                if monitor in ready:
                    self._handle_events(monitor, port)
            if self._epoll.fileno() in ready or suspects:
                self._look(suspects, news)
            if self._trim and time.monotonic() - self._trim > TRIM_S:
                self._trim = 0.0
                give_back()

    def _look(self, suspects: Iterable[int], news: zmq.Poller) -> None:
        """Check the connections on which bytes have arrived, and the suspects."""
        fired = {descriptor for descriptor, _ in self._epoll.poll(0)}
        if self._growing or any(connection.looks or connection.swells for connection in self._connections.values()):
            self._stopping.wait(LOOK_S)
        else:
            self._be_calm(news)
            fired.update(descriptor for descriptor, _ in self._epoll.poll(0))
        self._check(fired.union(suspects, self.unwanted), time.monotonic())
        for descriptor in fired:
            self._arm(self._epoll.modify, descriptor)

    def _be_calm(self, news: zmq.Poller) -> None:
        """Wait for a reason to check connections (R7)."""
        self._calm_bytes = resident_bytes(self._statm) + GROWN_BYTES
        self.calm = True
        self._wake()
        if self._grown_read in dict(news.poll(int(CALM_S * 1000))):
            os.read(self._grown_read, 64)
        self.calm = False

    def glance(self, now: float) -> None:
        """End the calm if the process has grown (R7). Called by the host's thread."""
        self.glance_s = now + GLANCE_S
        if resident_bytes(self._statm) > self._calm_bytes:
            with contextlib.suppress(BlockingIOError):
                os.write(self._grown_write, b"x")

    def _handle_events(self, monitor: zmq.Socket[bytes], port: int) -> None:
        """Handle new and closed connections of a router. Cut a connection if there are too many (R4)."""
        while monitor.poll(0):
            event, descriptor, _ = news_of(monitor.recv_multipart())
            if event == zmq.EVENT_ACCEPTED:
                begun = self.taken.get(descriptor, 0)
                self.unwanted.discard(descriptor)  # an earlier connection with the same number was unwanted
                self._connections[descriptor] = _Connection(port, time.monotonic(), begun)
                self._arm(self._epoll.register, descriptor)
                soft, _ = descriptor_limits()
                most = self._limits.max_connections
                most = most if soft < 0 else max(2, min(most, soft // 2))
                if len(self._connections) > most:  # R4: too many: cut the connection silent for longest
                    came = [number for number, connection in self._connections.items() if not connection.dialled]
                    if len(came) > most:
                        self._cut(min(came, key=self._worth))
            else:
                self._connections.pop(descriptor, None)

    def _worth(self, descriptor: int) -> tuple[bool, float]:
        connection = self._connections[descriptor]
        return self.taken.get(descriptor, 0) != connection.begun, connection.seen_s

    @staticmethod
    def _arm(how: Callable[[int, int], None], descriptor: int) -> None:
        with contextlib.suppress(OSError):  # the connection is closed by now
            # R7: one event, then none until the descriptor is armed anew
            how(descriptor, select.EPOLLIN | select.EPOLLONESHOT)

    def _check(self, fired: Collection[int], now: float) -> None:
        while self._dialled:
            descriptor, port = self._dialled.popleft()
            with contextlib.suppress(OSError), self._socket(descriptor) as borrowed:
                if borrowed.getpeername()[1] == port:  # the number may be another's by now
                    begun = self.taken.get(descriptor, 0)
                    self._connections[descriptor] = _Connection(port, now, begun, dialled=True)
        turned, free = self._turns()
        free = free or turned - self._turned > len(self._connections)
        forgiven = HEARTBEATS_BYTES_PER_S * (now - self._looked_s)
        self._turned, self._looked_s = turned, now
        growing: dict[int, float] = {}  # growth of the connections of which nothing was taken
        for descriptor in fired:
            connection = self._connections.get(descriptor)
            received = None if connection is None else self._received(descriptor)
            if connection is None or received is None:
                continue
            connection.seen_s = now
            grew = connection.update(received, self.taken.get(descriptor, 0), forgiven, free=free)
            if grew > SOME_BYTES:
                growing[descriptor] = grew
        self._growing = bool(growing)
        swells = self._swells(sum(growing.values()))
        for descriptor in growing:
            connection = self._connections[descriptor]
            connection.swells = connection.swells + 1 if swells else max(0, connection.swells - 1)
        for descriptor in fired:
            connection = self._connections.get(descriptor)
            if connection is None:
                continue
            most = ANSWERS_BYTES if connection.dialled else self._limits.max_unread_bytes
            endless = connection.unread > most or connection.looks >= LOOKS or connection.swells >= SWELLS
            if endless:  # R1, R2, R3, R6: the memory that libzmq holds for the connection is to be given back
                self._trim = now
            if endless or descriptor in self.unwanted:  # R5: the key belongs to no member any more
                self._cut(descriptor)

    def _swells(self, came_bytes: float) -> bool:
        """Return whether the process has grown since the last check in the proportion of empty frames (R3)."""
        if not came_bytes:
            self._resident_bytes = 0
            return False
        now_bytes = resident_bytes(self._statm)
        before_bytes, self._resident_bytes = self._resident_bytes, now_bytes
        return SWELLING[0] <= (now_bytes - (before_bytes or now_bytes)) / came_bytes <= SWELLING[1]

    @contextlib.contextmanager
    def _socket(self, descriptor: int) -> Iterator[socket.socket]:
        """Yield a socket object for a descriptor of libzmq, which keeps the descriptor."""
        borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
        try:
            yield borrowed
        finally:
            borrowed.detach()

    def _received(self, descriptor: int) -> int | None:
        """Return the bytes that arrived on a connection and have left the kernel. None: the connection is closed."""
        with contextlib.suppress(OSError, struct.error), self._socket(descriptor) as borrowed:
            waits = struct.unpack("=i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))[0]
            info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
            return int(struct.unpack_from("=Q", info, RECEIVED_AT)[0]) - int(waits)
        return None

    def _cut(self, descriptor: int) -> None:
        connection = self._connections.pop(descriptor)
        self.unwanted.discard(descriptor)
        with contextlib.suppress(OSError), self._socket(descriptor) as borrowed:
            ends = borrowed.getpeername() if connection.dialled else borrowed.getsockname()
            if ends[1] == connection.port:  # else the number belongs to another connection by now
                borrowed.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))  # a reset
                self.cut += 1  # before the other end can know
                borrowed.shutdown(socket.SHUT_RDWR)
