"""Requests of a client for measurements of links, of which one link never answers."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from thalweg.middleware.client.measuring import PROBE_S, MeasurementRequests
from thalweg.middleware.errors import HostLostError
from thalweg.middleware.network.at_once import AtOnce
from thalweg.middleware.network.view import LinkEstimate, links_between
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

HOSTS = ("a", "b", "c")
LINKS = links_between(HOSTS)
SILENT = LINKS[-1]


class Answering:
    """Registry and core of a client whose hosts answer after 0.2 s, except for one link."""

    def __init__(self) -> None:
        peers = {host: m.Peer(host, f"tcp://{host}:1", f"tcp://{host}:2") for host in HOSTS}
        registry: Any = SimpleNamespace(
            peers=peers, known={*HOSTS}, hosts=HOSTS, gone={}, closing="", news=threading.Condition(), name="a",
            check_open=lambda: None,
        )  # fmt: skip
        self.asked: list[e.ProbesRequested] = []
        self.requests = MeasurementRequests(registry, self.tell, peers["a"])

    def tell(self, event: e.Event) -> None:
        assert isinstance(event, e.ProbesRequested)
        self.asked.append(event)
        for target in event.targets:
            if (event.source.name, target.name) != SILENT:
                report = e.Report(event.source.name, target.name, LinkEstimate(1e6))
                threading.Timer(0.2, self.requests.take, (report,)).start()


def test_a_link_that_does_not_answer_is_left_out_if_links_are_measured_at_once() -> None:
    hosts = Answering()
    begun_s = time.monotonic()
    found = hosts.requests.probe(AtOnce(LINKS))
    assert time.monotonic() - begun_s < PROBE_S
    assert found.keys() == {*LINKS} - {SILENT}
    assert {asked.quantity for asked in hosts.asked} == {"bandwidths"}
    assert sum(len(asked.targets) for asked in hosts.asked) == len(LINKS), "both directions, as there is no echo"


def test_a_link_that_does_not_answer_is_an_error_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thalweg.middleware.client.measuring.PROBE_S", 0.5)
    hosts = Answering()
    with pytest.raises(HostLostError, match="the link from 'c' to 'b' could not be measured"):
        hosts.requests.probe(LINKS)
    assert {asked.quantity for asked in hosts.asked} == {"bandwidth"}
