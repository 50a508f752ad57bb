"""The loopback testbed: host processes on one machine, with nothing between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.proofs.proof import LinkProof, LinkSample
from thalweg.emulation.supervisor.client import Held, start_plain
from thalweg.emulation.testbeds.replay import Replayable, ReplayHandle
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import Link


class LoopbackTestbed(Testbed):
    """Hosts are processes on 127.0.0.1, links are not shaped: for functional runs and benchmarks."""

    backend: ClassVar[str] = "loopback"

    @property
    def hosts(self) -> Mapping[str, str]:
        return MappingProxyType(dict.fromkeys(self._names, "127.0.0.1"))

    def _start(self) -> Held:
        return start_plain(self.run_id)

    def shape(self, links: Mapping[Link, LinkShape]) -> None:
        raise UsageError("the loopback testbed has no links to shape; use --testbed netns for shaped links")

    def replay(
        self, traces: Mapping[Link, Replayable], time_scale: float = 1.0, *, sample_interval_s: float | None = 1.0
    ) -> ReplayHandle:
        raise UsageError("the loopback testbed cannot replay traces; use --testbed netns for shaped links")

    def prove(self, links: Iterable[Link] | None = None, seconds: float | None = None) -> list[LinkProof]:
        return []

    def start_sampling(self, interval_s: float = 1.0) -> None:
        return

    def samples(self) -> list[LinkSample]:
        return []
