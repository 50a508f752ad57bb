"""A run with failover on links that vary like measured links: no living host is considered lost.

``THALWEG_DETECTION_HOURS=24 pytest -s tests/middleware/core/measuring/test_noisy_links.py`` runs a day of virtual time
in each model of hosts' interfaces.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np
import pytest

from thalweg.emulation.links.shape import RATE_FLOOR_BPS
from thalweg.emulation.traces.generator import DEFAULT_TRACES, TraceModel, generate_pool
from thalweg.emulation.traces.pool import assign_traces
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.world import VirtualHost, World
from thalweg.experiments.faults.trial_code import Counting
from thalweg.experiments.simulation.links import Interface, carrying, world_config
from thalweg.middleware.dataflow import Code, complete_binary_tree
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

HOURS = float(os.environ.get("THALWEG_DETECTION_HOURS", "0"))
SERVERS = [f"h{number}" for number in range(1, 9)]
CLIENT = "client"
IMAGE_BYTES = 128 * 1024  # Ranganathan et al. (1998), section 4
EVERY = 10**9  # more partitions than there will be


class Heard(World):
    """World that runs for ``seconds``. ``silent_s`` is the longest time without a message from a host to the client."""

    def __init__(self, seconds: float, *about: Any) -> None:
        super().__init__(*about, on_record=self._recorded)
        self.seconds, self.silent_s, self.delivered = seconds, 0.0, 0
        self.alarms: list[Any] = []
        self._heard_s: dict[str, float] = {}
        self.on_delivered = self._came
        self.failover = m.Failover()

    def _came(self, partition: e.Deliver, now: float) -> None:
        assert partition.index == self.delivered
        self.delivered += 1

    def _recorded(self, host: str, now: float, record: e.Record) -> None:
        if record.kind in ("fault", "recovered"):
            self.alarms.append((now, record))

    def _is_over(self) -> bool:
        return self.now >= self.seconds

    def _handle(self, host: VirtualHost, event: e.Event) -> None:
        if host.name == self.client and isinstance(event, e.MessageReceived):
            self.silent_s = max(self.silent_s, self.now - self._heard_s.get(event.sender, self.now))
            self._heard_s[event.sender] = self.now
        super()._handle(host, event)


@pytest.mark.parametrize(
    ("interface", "hours", "heard_s"),
    [
        pytest.param("independent", 0.25, 3.0, id="messages pass images by"),
        pytest.param("single", 3.0, 360.0, id="who sends an image, or receives one, hears nothing"),
    ],
)
def test_links_that_vary_raise_no_alarm(interface: Interface, hours: float, heard_s: float) -> None:
    """The links are those of the paper, with at least the lowest rate of a testbed.

    Limits are those of hosts, or of the usual time scale for the model of interfaces. A host may be silent for
    ``heard_s``.
    """
    seconds, hosts = 3600.0 * (HOURS or hours), (*SERVERS, CLIENT)
    traces = assign_traces(generate_pool(TraceModel(), DEFAULT_TRACES, 1, seconds), hosts, 1)
    links = {
        link: BandwidthTrace(trace.name, trace.times_s, np.maximum(trace.rates_bps, RATE_FLOOR_BPS), trace.duration_s)
        for link, trace in traces.items()
    }
    code = partial(Counting, size_bytes=IMAGE_BYTES, length=EVERY, takes_s=0.3)
    config = world_config(interface, 0.05, patience=1.0)
    assert config.core.detect_s == heard_s
    flow = complete_binary_tree({host: Code("source") for host in SERVERS}, Code("operator"))
    world = Heard(seconds, hosts, carrying(links, interface), code, config)
    where = dict(zip(flow.operators, SERVERS, strict=False))
    world.run(flow, {node.name: node.pinned or where[node.name] for node in flow.nodes}, EVERY)
    print(f"{interface}: {world.delivered} in {seconds / 3600:g} h, nothing heard for {world.silent_s:.3g} s at most")
    assert (world.failed, world.alarms) == (None, [])
    assert world.delivered > 10 * hours
    assert world.silent_s > heard_s / 4
