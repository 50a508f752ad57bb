"""What the tests of the middleware share: small dataflows, their installation, and cores that take part in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from playbook import Playbook
from thalweg.middleware import messages as m
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.host_core import CoreConfig, HostCore

CODE = Code("some")


def peer_of(host: str) -> m.Peer:
    """A peer as it would be in an installation; nothing listens there."""
    return m.Peer(host, f"tcp://{host}:1", f"tcp://{host}:2")


def chain() -> Dataflow:
    """``s`` on h1 -> ``o`` -> ``t`` on the client."""
    return Dataflow(
        (
            Node("s", "source", (), CODE, "h1"),
            Node("o", "operator", ("s",), CODE),
            Node("t", "sink", ("o",), None, "client"),
        )
    ).validate()


@pytest.fixture
def make_install() -> Callable[..., m.Install]:
    """``make_install({"o": "h2"})``: the chain with ``s`` on h1, ``t`` on the client, and ``o`` where it is told."""

    def make(
        placement: Mapping[str, str] | None = None,
        *,
        run: str = "r",
        partitions: int | None = None,
        dataflow: Dataflow | None = None,
    ) -> m.Install:
        hosts = {"s": "h1", "o": "h2", "t": "client", **(placement or {})}
        return m.Install(
            run=run,
            dataflow=dataflow or chain(),
            locations=tuple(m.Location(node, host, 1) for node, host in hosts.items()),
            peers=tuple(peer_of(host) for host in sorted(set(hosts.values()))),
            client="client",
            partitions=partitions,
        )

    return make


@pytest.fixture
def make_book() -> Callable[..., Playbook]:
    """``make_book("h1")``: a conversation with a new core of that name."""

    def make(host: str, config: CoreConfig | None = None) -> Playbook:
        return Playbook(HostCore(peer_of(host), config, ("composite",)))

    return make
