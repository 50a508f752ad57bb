"""Processes of the hand-written comparison, with pyzmq and numpy only.

A process is started as ``python -P -m benchmarks.peers_raw node|hop JSON``. The process prints its endpoint, reads its
children's endpoints (one line of JSON) from standard input, and ends when standard input is closed.

*node*: one node of a REQ/REP tree. The node asks all children at once, combines the answers, and holds the result until
a request comes. Then the node sends the result and asks the children again. *hop*: a DEALER with a partition for each
credit.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import numpy as np
import zmq

from benchmarks.workload import FixedSource, maximum

Keys = tuple[str, str] | None


def secure(socket: Any, keys: Keys, *, server: bool) -> None:
    """Encrypt a socket's messages with the one key pair (public, secret) of all processes."""
    if keys is not None:
        socket.curve_publickey, socket.curve_secretkey = (key.encode() for key in keys)
        if server:
            socket.curve_server = True
        else:
            socket.curve_serverkey = keys[0].encode()


def node(site: int | None, size_bytes: int, listen: str, keys: Keys) -> None:
    """Run one node for ever, listening at ``listen``. ``site``: site of a source, None for an operator."""
    context = zmq.Context()
    replies = context.socket(zmq.REP)
    secure(replies, keys, server=True)
    replies.bind(listen)
    children = _meet(replies.getsockopt_string(zmq.LAST_ENDPOINT))
    requests = [context.socket(zmq.REQ) for _ in children]
    for socket, endpoint in zip(requests, children, strict=True):
        secure(socket, keys, server=False)
        socket.connect(endpoint)
    source = None if site is None else FixedSource(site, size_bytes)
    index = 0
    while True:
        value: Any
        if source is not None:
            value = source.produce(index)
        else:
            for socket in requests:
                socket.send(b"")
            frames = [socket.recv(copy=False) for socket in requests]
            value = maximum([np.frombuffer(frame.buffer, np.uint8) for frame in frames])
        replies.recv()
        replies.send(value)  # as a copy: the faster way at 128 KB
        index += 1


def hop(size_bytes: int, zero_copy: bool, keys: Keys) -> None:
    """Send a partition for every credit message, for ever."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    (endpoint,) = _meet("")
    secure(dealer, keys, server=False)
    dealer.connect(endpoint)
    dealer.send(b"")  # its identity is the address for credits
    source = FixedSource(0, size_bytes)
    index = 0
    while True:
        dealer.recv()
        value: Any = source.produce(index)
        dealer.send(value, 0, not zero_copy)
        index += 1


def _meet(endpoint: str) -> list[str]:
    """Print the process's endpoint for the parent. Return the endpoints to connect to."""
    print(json.dumps({"endpoint": endpoint}), flush=True)
    children: list[str] = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return children


def _end_with_parent() -> None:
    while os.read(0, 4096):
        continue
    os._exit(0)


if __name__ == "__main__":
    spec = json.loads(sys.argv[2])
    if sys.argv[1] == "node":
        node(**spec)
    else:
        hop(**spec)
