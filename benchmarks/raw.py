"""Hand-written sides of comparisons: processes of ``peers_raw`` on loopback, and a bare socket here."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import zmq

from benchmarks.peers_raw import Keys, secure
from thalweg.emulation.testbeds.open import open_testbed
from thalweg.experiments.runs.processes import Processes
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import RunError
from thalweg.middleware.platform.python import module_command
from thalweg.middleware.shell.endpoints import SocketFolder

PEERS = "benchmarks.peers_raw"
ANSWER_S = 30.0  # a process that is silent for longer is broken
CREDITS = 2  # the next partition is under way while one is consumed
ZERO_COPY_BYTES = 1024 * 1024  # measured: a smaller copy is cheaper than pyzmq's tracking of a buffer


class RawTree:
    """Hand-written tree: REQ and REP sockets, with a process for each node."""

    def __init__(self, sink: zmq.Socket[bytes]) -> None:
        self._sink = sink

    def stream(self, partitions: int) -> Iterator[Any]:
        for _ in range(partitions):
            self._sink.send(b"")
            try:
                yield self._sink.recv(copy=False).buffer
            except zmq.Again:
                raise RunError(
                    f"the hand-written tree was silent for {ANSWER_S:g} s; run the benchmark again"
                ) from None


@contextlib.contextmanager
def raw_tree(dataflow: Dataflow, size_bytes: int, transport: str) -> Iterator[RawTree]:
    """Start the tree of ``dataflow``. Yield the tree when every process listens."""
    nodes = [name for name in dataflow.upward if name != dataflow.sinks[0]]
    sites = {name: site for site, name in enumerate(dataflow.sources)}
    with SocketFolder() as folder, _socket(zmq.REQ) as sink, contextlib.ExitStack() as stack:
        keys = _keys(transport)
        shared = {"size_bytes": size_bytes, "keys": keys}
        specs = {
            name: {"site": sites.get(name), "listen": _listen(transport, folder, number), **shared}
            for number, name in enumerate(nodes)
        }
        endpoints, tell = stack.enter_context(_peers("node", specs))
        for name in nodes:
            tell(name, [endpoints[child] for child in dataflow.by_name[name].inputs])
        secure(sink, keys, server=False)
        sink.connect(endpoints[dataflow.by_name[dataflow.sinks[0]].inputs[0]])
        yield RawTree(sink)


class RawLink:
    """Link from a DEALER in a process that sends a partition for every credit, to a ROUTER here."""

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        self._router = router
        self._hop = self._receive()[0].bytes

    def _receive(self) -> list[zmq.Frame]:
        try:
            return self._router.recv_multipart(copy=False)
        except zmq.Again:
            raise RunError(f"the bare link was silent for {ANSWER_S:g} s; run the benchmark again") from None

    def stream(self, partitions: int) -> Iterator[Any]:
        asked = 0
        for index in range(partitions):
            while asked < min(partitions, index + CREDITS):
                self._router.send_multipart([self._hop, b""])
                asked += 1
            yield self._receive()[1].buffer


@contextlib.contextmanager
def raw_link(size_bytes: int, transport: str) -> Iterator[RawLink]:
    """Start a link for partitions of ``size_bytes``. Yield the link when it is up."""
    keys = _keys(transport)
    spec = {"size_bytes": size_bytes, "zero_copy": size_bytes >= ZERO_COPY_BYTES, "keys": keys}
    with SocketFolder() as folder, _socket(zmq.ROUTER) as router, _peers("hop", {"hop": spec}) as (_, tell):
        secure(router, keys, server=True)
        router.bind(_listen(transport, folder, 0))
        tell("hop", [router.getsockopt_string(zmq.LAST_ENDPOINT)])
        yield RawLink(router)


def _keys(transport: str) -> Keys:
    if transport != "curve":
        return None
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def _listen(transport: str, folder: str, number: int) -> str:
    return f"ipc://{folder}/{number}" if transport == "ipc" else "tcp://127.0.0.1:*"


@contextlib.contextmanager
def _socket(kind: int) -> Iterator[zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        socket = context.socket(kind)
        socket.setsockopt(zmq.RCVTIMEO, int(ANSWER_S * 1000))
        yield socket
    finally:
        context.destroy(linger=0)


@contextlib.contextmanager
def _peers(
    role: str, specs: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[dict[str, str], Callable[[str, list[str]], None]]]:
    """Start a process for every spec. Yield the endpoints, and a function that tells a process its children."""
    with contextlib.ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="thalweg-")))
        processes = Processes(stack.enter_context(open_testbed("loopback", list(specs))), stack, logs)
        inputs = {
            name: processes.start(name, name, module_command(PEERS, role, json.dumps(spec)))
            for name, spec in specs.items()
        }
        endpoints = {name: answer["endpoint"] for name, answer in processes.ready().items()}

        def tell(name: str, children: list[str]) -> None:
            inputs[name].write(json.dumps(children).encode() + b"\n")
            inputs[name].flush()

        yield endpoints, tell
