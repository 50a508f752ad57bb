"""Fixtures of the middleware's tests: small dataflows, their installation, and cores that take part in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec
import pytest
import zmq
from flows import chain
from patience import patience
from playbook import Playbook
from run_ids import R
from runtime_codes import ALLOW

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.core.host import HostCore
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId

CODE = Code("some")


def peer_of(host: str) -> m.Peer:
    """Return a peer as in an installation. Nothing listens at its endpoints."""
    return m.Peer(host, f"tcp://{host}:1", f"tcp://{host}:2")


@pytest.fixture
def make_install() -> Callable[..., m.Install]:
    """``make_install({"o": "h2"})``: the chain with ``s`` on h1, ``t`` on the client, and ``o`` on the given host.

    ``others`` are hosts of the run that hold nothing.
    """

    def make(
        placement: Mapping[str, str] | None = None,
        *,
        run: RunId = R,
        partitions: int | None = None,
        dataflow: Dataflow | None = None,
        others: tuple[str, ...] = (),
    ) -> m.Install:
        hosts = {"s": "h1", "o": "h2", "t": "client", **(placement or {})}
        return m.Install(
            run=run,
            dataflow=dataflow or chain(CODE, CODE, client="client").validate(),
            locations=tuple(m.Location(node, host, 1) for node, host in hosts.items()),
            peers=tuple(peer_of(host) for host in sorted({*hosts.values(), "client", *others})),
            client="client",
            partitions=partitions,
        )

    return make


@pytest.fixture
def install(make_install: Callable[..., m.Install]) -> m.Install:
    """``s`` on h1 -> ``o`` on h2 -> ``t`` on the client; h3 holds nothing."""
    plain = make_install()
    return msgspec.structs.replace(plain, peers=(*plain.peers, peer_of("h3")))


@pytest.fixture
def make_book() -> Callable[..., Playbook]:
    """Return a function: ``make_book("h1")`` is a conversation with a new core of that name."""

    def make(host: str, config: CoreConfig | None = None, instance: str = "") -> Playbook:
        me = msgspec.structs.replace(peer_of(host), instance=instance)
        return Playbook(HostCore(me, config, ("composite",)))

    return make


# --- real processes and sockets ---------------------------------------------------------------------


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Three host processes on loopback that may run ``runtime_codes``; tests leave them as they found them."""
    limits = {"guest_s": 600.0}  # subscribers of tests may be slow, as a busy machine is
    with LocalCluster(3, allow=ALLOW, limits=limits) as started:
        yield started
        assert started.poll() == {}, "a host ended during the tests"


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster, allow=ALLOW) as client:
        yield client
        assert client.shell.alive, "the client's host ended during the test"


@pytest.fixture
def dial() -> Iterator[Callable[..., zmq.Socket[bytes]]]:
    """Yield a function: ``dial(endpoint)`` connects a DEALER, with a Thalweg identity by default."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sockets = []

    def connect(endpoint: str, identity: bytes = b"tester/1") -> zmq.Socket[bytes]:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.ROUTING_ID, identity)
        socket.setsockopt(zmq.RCVTIMEO, round(patience(5) * 1000))
        socket.connect(endpoint)
        sockets.append(socket)
        return socket

    yield connect
    context.destroy(linger=0)
