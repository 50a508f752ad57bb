"""Configuration of a virtual world, and the trees of a striped stream in such a world."""

from __future__ import annotations

import msgspec

from thalweg.middleware.dataflow import Dataflow, Placement
from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.network.view import Cable
from thalweg.middleware.protocol.limits import CoreConfig


class WorldConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Configuration of a virtual world: link model, start-up cost of a message, and limits of the cores.

    ``take_up_s``: time that a message lies at its target before the host handles the message. Other messages pass
    meanwhile. ``interfaces_bps``: rates of limited interfaces, by cable. Only ``shared`` and shaped links have such
    limits. ``up_bps``, ``down_bps``: likewise, of the total that a cable sends, or receives. ``control_band``: control
    messages pass the bulk in the queue of their link. ``compute_factor``: factor by which a host computes longer.
    ``capacities``: figures of hosts that announce a different speed, or more cores. ``call_timeout_s``: limit of a call
    of a run's code, in simulated time. ``guests``: further clients, which may subscribe. ``validate``: check the
    invariants of a core after each of its events. ``ahead``: partitions under way over an edge.

    ``control_bytes``: size of every control message. None: the size of the message's encoding. With a size, random
    faults of single messages distinguish only control messages and bulk. Names and fields of messages then have no
    effect on a run.
    """

    interface: str = "single"
    startup_s: float = 0.05
    take_up_s: float = 0.0
    interfaces_bps: dict[Cable, float] = {}
    up_bps: dict[Cable, float] = {}
    down_bps: dict[Cable, float] = {}
    control_band: bool = True
    compute_factor: dict[str, float] = {}
    capacities: dict[str, HostFigures] = {}
    call_timeout_s: float | None = None
    ahead: int = 1
    core: CoreConfig = CoreConfig()
    guests: tuple[str, ...] = ()
    validate: bool = False
    control_bytes: int | None = None

    def core_of(self, host: str) -> CoreConfig:
        """Return the core configuration of a host, with the host's capacity from ``capacities``, if there is one."""
        figures = self.capacities.get(host)
        return self.core if figures is None else msgspec.structs.replace(self.core, capacity=figures)

    def factor_of(self, host: str) -> float:
        """Return the factor by which a host's computations take longer, from ``compute_factor`` and ``capacities``."""
        figures = self.capacities.get(host)
        return self.compute_factor.get(host, 1.0) / (1.0 if figures is None else figures.speed)


class Striped(msgspec.Struct, frozen=True):
    """Trees of a striped stream, with the placement of each. ``shares``, ``window``: as in ``StripesRequested``.

    ``above``: the upper graph, which runs once above the trees.
    """

    trees: tuple[tuple[Dataflow, Placement], ...]
    shares: tuple[float, ...] = ()
    window: int = 0
    above: tuple[Dataflow, Placement] | None = None
