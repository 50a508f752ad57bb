"""Request to a host to end when its operators have moved away: ``thalweg host drain``."""

from __future__ import annotations

import time

import zmq

from thalweg.middleware.client.membership.hello import agree, identify_hosts
from thalweg.middleware.errors import HostAbsentError, ProtocolError, RunError
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.shell.endpoints import is_ipv6, resolve_endpoint
from thalweg.middleware.shell.security import Keys, secure_dealer
from thalweg.middleware.shell.sockets import new_identity


def drain(name: str, endpoint: str, keys: Keys | None = None, timeout_s: float = 60.0) -> None:
    """Have the host ``name`` at ``endpoint`` end when its operators have moved away, and wait until the host is empty.

    Raises RunError with the host's reason if the host has to stay. Raises HostAbsentError if the host does not answer,
    or is not empty after ``timeout_s``.
    """
    speaks: dict[str, m.Speaks] = {}
    endpoint = resolve_endpoint(endpoint)
    identify_hosts({name: endpoint}, keys, speaks=speaks)
    version = agree({**speaks, "this command": frames.SPEAKS})
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.ROUTING_ID, new_identity("drain" if keys is None else keys.own.name))
        secure_dealer(socket, keys, name)
        socket.setsockopt(zmq.IPV6, is_ipv6(endpoint))
        socket.connect(endpoint)
        socket.send(frames.encode(m.Drain(), version))
        deadline = time.monotonic() + timeout_s
        while socket.poll(max(0, int((deadline - time.monotonic()) * 1000))):
            try:
                answer = frames.decode_control(socket.recv())
            except ProtocolError as error:
                raise HostAbsentError(f"the process at {endpoint} is not a host of this version: {error}") from None
            if isinstance(answer, m.Drained):
                if answer.why:
                    raise RunError(f"host {name!r} is not drained: {answer.why}", host=name)
                return
        raise HostAbsentError(
            f"host {name!r} is not empty after {timeout_s:g} s; it ends when it is empty, or at once on SIGINT",
            host=name,
        )
    finally:
        context.destroy(linger=0)
