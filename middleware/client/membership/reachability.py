"""Check of the routes to another host: its port for control messages, its ports for partitions, and large messages.

A host that runs answers each check with messages of the protocol. A ``Ping`` comes back with the same length. The first
chunk of a partition without a demand is refused, on the connection over which it came.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import zmq

from thalweg.middleware.client.membership.hello import identify_hosts
from thalweg.middleware.errors import HostAbsentError, ProtocolError, UsageError
from thalweg.middleware.network.view import NET
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.endpoints import FORM, is_ipv6, resolve_endpoint
from thalweg.middleware.shell.security import Keys, secure_dealer
from thalweg.middleware.shell.sockets import new_identity

WAIT_S = 5.0
LARGE_BYTES = 16_384  # several packets on every path
RUN = RunId("thalweg-doctor")


class Reachability(NamedTuple):
    """Result of a check: whether messages of a kind reach an endpoint and are answered.

    ``detail``: the time of the answer, or the likely cause of the failure.
    """

    what: str
    endpoint: str
    passes: bool
    detail: str


def reach(endpoint: str, name: str | None, keys: Keys | None, wait_s: float = WAIT_S) -> Iterator[Reachability]:
    """Send small and large messages to each port of the host at ``endpoint``, and yield the results.

    Raises UsageError for a text that is no endpoint, and for keys without the host's ``name``.
    """
    if name is None and keys is not None:
        raise UsageError("with keys the host's name is needed, as it is in its certificate; give --to NAME=ENDPOINT")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        begun_s, endpoint = time.monotonic(), resolve_endpoint(endpoint)
        try:
            peer = identify_hosts({name or _name_at(context, endpoint, wait_s): endpoint}, keys, wait_s)
        except HostAbsentError as error:
            detail = str(error).removeprefix(f"host {error.host!r} at {endpoint} ")
            yield Reachability("control", endpoint, False, detail)
            return
        (host,) = peer.values()
        yield Reachability("control", endpoint, True, f"host {host.name!r} answers after {_ms(begun_s)}")
        with closing(_Dealer(context, endpoint, host.name, keys)) as dealer:
            large = [frames.encode(m.Ping(None, padding=bytes(LARGE_BYTES)))]
            yield dealer.check("large control", large, wait_s, small=True)
        for network, end in host.ends.items():
            over = "" if network == NET else f" over network {network!r}"
            with closing(_Dealer(context, end, host.name, keys)) as dealer:
                reached = dealer.check(f"partitions{over}", _chunk(1), wait_s, small=False)
                yield reached
                if reached.passes:
                    yield dealer.check(f"large partitions{over}", _chunk(LARGE_BYTES), wait_s, small=True)
    finally:
        context.destroy(linger=0)


def _chunk(size: int) -> list[bytes]:
    """Return a message with the first ``size`` bytes of a partition that is one byte larger."""
    chunk = m.Chunk(size, size + 1, 0, m.Partition(RUN, "doctor", "doctor", 0))
    return [frames.encode(chunk), bytes(size)]


def _ms(begun_s: float) -> str:
    return f"{(time.monotonic() - begun_s) * 1000:.0f} ms"


def _name_at(context: zmq.Context[zmq.Socket[bytes]], endpoint: str, wait_s: float) -> str:
    """Ask the host at an endpoint for its name. Return ``host`` if there is no answer."""
    with closing(_Dealer(context, endpoint, "", None)) as dealer:
        answer = dealer.request([frames.encode(m.Hello())], wait_s)
    return answer.host if isinstance(answer, m.Welcome) else "host"  # ``identify_hosts`` then gives a better error


class _Dealer:
    """Connection to one port of a host."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, name: str, keys: Keys | None) -> None:
        self._endpoint = endpoint
        self._socket = socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.ROUTING_ID, new_identity("doctor" if keys is None else keys.own.name))
        socket.setsockopt(zmq.LINGER, 0)
        secure_dealer(socket, keys, name)
        socket.setsockopt(zmq.IPV6, is_ipv6(endpoint))
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise UsageError(f"{endpoint!r} is not an endpoint ({FORM}): {error}") from None

    def close(self) -> None:
        self._socket.close(0)

    def request(self, message: list[bytes], wait_s: float) -> m.Message | None:
        """Send a message and return the answer, or None if there is no answer within ``wait_s``."""
        self._socket.send_multipart(message)
        if not self._socket.poll(int(wait_s * 1000)):
            return None
        try:
            return frames.decode_control(self._socket.recv())
        except ProtocolError:
            return None

    def check(self, what: str, message: list[bytes], wait_s: float, *, small: bool) -> Reachability:
        """Send a message and return whether an answer comes. ``small``: a smaller message has been answered here."""
        begun_s, end = time.monotonic(), self._endpoint
        if self.request(message, wait_s) is not None:
            return Reachability(what, end, True, f"answered after {_ms(begun_s)}")
        port = end.rpartition(":")[2]
        cause = "smaller messages pass; is the path MTU smaller?" if small else f"is port {port} open?"
        return Reachability(what, end, False, f"no answer within {wait_s:g} s; {cause}")
