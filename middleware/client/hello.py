"""Who is there: every host of a cluster is asked its name, and where it listens."""

from __future__ import annotations

import time
from collections.abc import Mapping

import zmq

from thalweg.middleware.errors import HostAbsentError, ProtocolError, UsageError
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.shell.endpoints import FORM, with_address
from thalweg.middleware.shell.security import Keys, secure_dealer
from thalweg.middleware.shell.sockets import new_identity

HELLO_S = 10.0


def say_hello(addresses: Mapping[str, str], keys: Keys | None = None, timeout_s: float = HELLO_S) -> dict[str, m.Peer]:
    """Ask every host who it is; the hosts as peers, in the order given.

    Raises HostAbsentError for one that does not answer, UsageError for one of another name.
    """
    peers: dict[str, m.Peer] = {}
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        poller = zmq.Poller()
        waiting: dict[zmq.Socket[bytes], str] = {}
        for name, address in addresses.items():
            socket = context.socket(zmq.DEALER)
            socket.setsockopt(zmq.ROUTING_ID, new_identity("hello" if keys is None else keys.own.name))
            secure_dealer(socket, keys, name)
            try:
                socket.connect(address)
            except zmq.ZMQError as error:
                raise UsageError(f"host {name!r}: {address!r} is not an endpoint ({FORM}): {error}") from None
            socket.send(frames.encode(m.Hello()))
            waiting[socket] = name
            poller.register(socket, zmq.POLLIN)
        deadline = time.monotonic() + timeout_s
        while waiting:
            ready = poller.poll(max(0, int((deadline - time.monotonic()) * 1000)))
            if not ready:
                name = next(iter(waiting.values()))
                raise HostAbsentError(
                    f"host {name!r} at {addresses[name]} did not answer within {timeout_s:g} s; is thalweg host running"
                    " there, with the same keys?"
                )
            for socket, _ in ready:
                name = waiting.pop(socket)
                poller.unregister(socket)
                try:
                    answer = frames.decode_control(socket.recv())
                except ProtocolError as error:
                    raise HostAbsentError(
                        f"what answers at {addresses[name]} is not a host of this version: {error}"
                    ) from None
                socket.close(0)
                if not isinstance(answer, m.Welcome):
                    raise HostAbsentError(f"what answers at {addresses[name]} is not a Thalweg host")
                if answer.host != name:
                    raise UsageError(f"the host at {addresses[name]} is called {answer.host!r}, not {name!r}")
                like = addresses[name]
                ends = (with_address(answer.control, like), with_address(answer.bulk, like))
                peers[name] = m.Peer(name, *ends, answer.instance, answer.max_partition_bytes)
    finally:
        context.destroy(linger=0)
    return {name: peers[name] for name in addresses}
