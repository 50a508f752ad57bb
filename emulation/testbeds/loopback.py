"""Loopback testbed: host processes on one machine, without links."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.supervisor.client import StartedSupervisor, start_plain
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import NET, Link

if TYPE_CHECKING:
    from thalweg.emulation.testbeds.replay import ReplayHandle
    from thalweg.emulation.traces.trace import BandwidthTrace


class LoopbackTestbed(Testbed):
    """Testbed with host processes on 127.0.0.1 and unshaped links, for functional runs and benchmarks."""

    backend: ClassVar[str] = "loopback"

    def __init__(self, hosts: Sequence[str], run_id: str | None = None) -> None:
        super().__init__(hosts, run_id)
        self._addresses = dict.fromkeys(hosts, "127.0.0.1")

    def _start(self, listener: socket.socket | None) -> StartedSupervisor:
        return start_plain(self.run_id, listener)

    def shape(self, links: Mapping[Link, LinkShape], tell: Callable[[int], None] | None = None) -> None:
        raise UsageError("the loopback testbed has no links to shape; use --testbed netns for shaped links")

    def limit_hosts(
        self,
        up_bps: Mapping[str, float | None] = {},
        down_bps: Mapping[str, float | None] = {},
        via: str = NET,
    ) -> None:
        raise UsageError(
            "the loopback testbed cannot limit what hosts send or receive; leave out interface_rate, up_rate and"
            " down_rate"
        )

    def replay(self, traces: Mapping[Link, BandwidthTrace], time_scale: float = 1.0) -> ReplayHandle:
        raise UsageError("the loopback testbed cannot replay traces; use --testbed netns for shaped links")
