"""First messages of a client to the hosts of a cluster, which ask each host for its name and endpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NoReturn

import zmq
from zmq.utils.monitor import recv_monitor_message

from thalweg.middleware.errors import HostAbsentError, ProtocolError, UsageError, one_line
from thalweg.middleware.network.view import NET
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.shell.endpoints import (
    FORM,
    NOBODY,
    TCP,
    greets_like_a_host,
    is_ipv6,
    mechanism_of,
    resolve_endpoint,
    usually_beside,
    with_address,
)
from thalweg.middleware.shell.security import Keys, secure_dealer
from thalweg.middleware.shell.sockets import new_identity

HELLO_S = 10.0
LOOK_S = 1.5  # seconds of silence before its cause is looked for; a starting host may take as long
AGAIN_S = 1.0  # seconds between two such checks, and the limit of each
TWICE = 2  # failed handshakes without a reason; a single failure may be of a host that ends
UNREACHED = "is thalweg host running there, and is the route to it open?"
NO_KEYS = "has no keys, and this client has keys; start the host with --keys, or give this client no keys"
OTHER_HOST = "is that host running there, with its own key, and is this its control port?"
_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_EVENTS |= zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH


def identify_hosts(
    addresses: Mapping[str, str],
    keys: Keys | None = None,
    timeout_s: float = HELLO_S,
    down: dict[str, str] | None = None,
    speaks: dict[str, m.Speaks] | None = None,
) -> dict[str, m.Peer]:
    """Ask every host for its name and endpoints. Return the hosts as peers, in the order given.

    ``down``: receives each host without a process at its endpoint, with the reason, if at least one host answers. A
    reason continues a sentence that begins with the host's name. ``speaks``: receives the protocol versions of each
    host.

    Raises HostAbsentError for a host that does not answer, as soon as the cause is known. Raises UsageError for a host
    with a different name.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        bulk = _usual_bulk(addresses)
        asked: list[_Asked] = []
        for name, address in addresses.items():  # one by one: after an error, the context closes the earlier sockets
            asked.append(_Asked(context, name, address, keys, bulk.get(address, "")))
        _await_answers(asked, timeout_s)
        peers = {host.name: host.peer for host in asked if host.peer is not None}
        if speaks is not None:
            speaks |= {host.name: host.speaks for host in asked if host.peer is not None}
        if absent := [host for host in asked if host.peer is None]:
            if down is None or not peers:
                absent[0].fail(absent[0].down)
            down |= {host.name: host.down for host in absent}
        return peers
    finally:
        context.destroy(linger=0)


def _await_answers(asked: Sequence[_Asked], timeout_s: float) -> None:
    """Wait for an answer of each host, or for the reason of its absence. Raise HostAbsentError after ``timeout_s``."""
    poller, sockets = zmq.Poller(), {}
    for host in asked:
        for socket in (host.socket, host.monitor):
            poller.register(socket, zmq.POLLIN)
            sockets[socket] = host
    now = time.monotonic()
    deadline, look_s = now + timeout_s, now + min(LOOK_S, timeout_s)
    while waiting := [host for host in asked if host.waits]:
        for socket, _ in poller.poll(max(0, int((min(look_s, deadline) - time.monotonic()) * 1000) + 1)):
            host = sockets[socket]
            if host.peer is None:
                host.handle(socket)
                if host.peer is not None:
                    poller.unregister(host.socket)
                    poller.unregister(host.monitor)
        now = time.monotonic()
        if now >= look_s:
            for host in waiting:
                if host.peer is None:
                    host.diagnose()
            look_s = time.monotonic() + AGAIN_S
        late = next((host for host in waiting if host.waits), None) if now >= deadline else None
        if late is not None:
            late.missing(f"did not answer within {timeout_s:g} s; {late.guess}")


def agree(speaks: Mapping[str, m.Speaks]) -> int:
    """Return the newest version of the protocol that every host in ``speaks`` knows.

    Raise UsageError that names the host to upgrade if there is no such version.
    """
    if version := frames.agreed(speaks.values()):
        return version
    old, new = min(speaks, key=lambda name: speaks[name][1]), max(speaks, key=lambda name: speaks[name][0])
    raise UsageError(
        f"{old!r} speaks {frames.spoken(speaks[old])} of the protocol, and {new!r} {frames.spoken(speaks[new])};"
        f" upgrade {old!r}"
    )


def _usual_bulk(addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the default bulk endpoint of each host over TCP, with the host's name."""
    return {usually_beside(address): name for name, address in addresses.items() if address.startswith(TCP)}


class _Asked:
    """Connection to one host that was asked for its name, with the answer or a reason for silence."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], name: str, address: str, keys: Keys | None, bulk_of: str
    ) -> None:
        self.name, self._address, self._keys = name, address, keys
        port = address.rpartition(":")[2]
        self._bulk_hint = (
            f"is {port} the port for partitions of host {bulk_of!r}? give either host another (--bulk-port)"
            if bulk_of
            else ""
        )
        self.peer: m.Peer | None = None
        self.guess = UNREACHED
        self.speaks = frames.SPEAKS
        self.down = ""  # why no process answers
        self._failures = 0  # handshakes without a reason
        self.socket = socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.ROUTING_ID, new_identity("hello" if keys is None else keys.own.name))
        secure_dealer(socket, keys, name)
        self.monitor: zmq.Socket[bytes] = socket.get_monitor_socket(_EVENTS)
        self._dialled = resolve_endpoint(address)
        socket.setsockopt(zmq.IPV6, is_ipv6(self._dialled))
        try:
            socket.connect(self._dialled)
        except zmq.ZMQError as error:
            raise UsageError(f"host {name!r}: {address!r} is not an endpoint ({FORM}): {error}") from None
        self._asked = False
        self._send_hello()

    @property
    def waits(self) -> bool:
        """Return whether the host has neither an answer nor a known reason for silence."""
        return self.peer is None and not self.down

    def _send_hello(self) -> None:
        """Send the question once. Without a connection, the question is sent after the handshake."""
        if not self._asked:
            with suppress(zmq.Again):
                self.socket.send(frames.encode(m.Hello()), zmq.DONTWAIT)
                self._asked = True

    def fail(self, why: str) -> NoReturn:
        raise HostAbsentError(f"host {self.name!r} at {self._address} {why}", host=self.name)

    def missing(self, why: str) -> None:
        """Record why no process answers at the endpoint. Raise HostAbsentError if a connection had been made."""
        if self.guess != UNREACHED:
            self.fail(why)
        self.down = why

    def handle(self, socket: zmq.Socket[bytes]) -> None:
        """Handle an answer of the host, or an event of the connection."""
        if socket is self.socket:
            self._answered(socket.recv())
            return
        news = recv_monitor_message(self.monitor)
        match news["event"]:
            case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.guess = (
                    self._bulk_hint
                    or "it is connected: is the host busy, or is this its port for bulk, or another program?"
                )
                self._send_hello()
            case zmq.EVENT_HANDSHAKE_FAILED_AUTH if self._keys is not None:
                own = self._keys.own.name
                self.fail(
                    f"does not admit the certificate of {own!r}; is the certificate among the members of the host, and"
                    " not expired?"
                )
            case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL if self._keys is None:
                self.fail("asks for a certificate, and none was given; give keys")
            case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self.fail(NO_KEYS)
            case _:
                self._failures += 1

    def diagnose(self) -> None:
        """Look for the cause of a host's silence. Record the cause, or raise HostAbsentError."""
        if self.guess != UNREACHED:
            return
        if why := greets_like_a_host(self._address, AGAIN_S, hung_up=self._failures > 0):
            self.missing(f"does not answer: {why}") if why.startswith(NOBODY) else self.fail(f"does not answer: {why}")
        elif self._keys is not None and self._failures:
            if mechanism_of(self._address, AGAIN_S) == "NULL":
                self.fail(NO_KEYS)
            if self._failures >= TWICE:
                whose = f"does not hold the certificate that this client has for {self.name!r}"
                self.fail(f"{whose}; {self._bulk_hint or OTHER_HOST}")

    def _answered(self, frame: bytes) -> None:
        like = self._dialled
        try:
            answer = frames.decode_control(frame)
        except ProtocolError as error:
            raise HostAbsentError(f"the process at {like} is not a host of this version: {error}") from None
        if not isinstance(answer, m.Welcome):
            raise HostAbsentError(f"the process at {like} is not a Thalweg host")
        if answer.host != self.name:
            raise UsageError(f"the host at {like} is called {one_line(answer.host)!r}, not {self.name!r}")
        bulk = answer.bulk
        if isinstance(bulk, m.NetworkEndpoints):
            bulk = m.NetworkEndpoints({**bulk.ends, NET: with_address(bulk.ends[NET], like)})
        else:
            bulk = with_address(bulk, like)
        control = with_address(answer.control, like)
        self.speaks = answer.speaks
        self.peer = m.Peer(self.name, control, bulk, answer.instance, answer.max_partition_bytes)
