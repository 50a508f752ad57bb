"""How a virtual world works, and over which trees a stream goes in it."""

from __future__ import annotations

import msgspec

from thalweg.middleware.dataflow import Dataflow, Placement
from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.network.view import Cable
from thalweg.middleware.protocol.limits import CoreConfig


class WorldConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the world works: the model of the hosts' interfaces, the start-up cost of a message, and the cores' limits.

    ``take_up_s``: how long a message lies at its host before the host takes it up; others pass meanwhile.
    ``interfaces_bps``: of cables that are limited, on links that are shaped. ``up_bps``, ``down_bps``: likewise, of all
    that they send, or receive. ``control_band``: control messages pass by the bulk that their link has queued.
    ``compute_factor``: how many times as long a host's processor takes as others'; ``capacities``: of hosts that have
    another speed, or more cores, and say so. ``call_timeout_s``: what a run's
    calls may take of simulated time. ``guests``: other clients, which may subscribe. ``validate``: check the
    invariants of a core after each of its events. ``ahead``: partitions under way over an edge.
    ``control_bytes``: the size of each control message; None: the size of its encoding. With a size, faults that chance
    draws for single messages tell control messages from bulk, and not by kinds. Then no name of a message and no field
    changes what a run does.
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
        """What the core of a host is made with."""
        said = self.capacities.get(host)
        return self.core if said is None else msgspec.structs.replace(self.core, capacity=said)

    def factor_of(self, host: str) -> float:
        """How many times as long its processor takes."""
        said = self.capacities.get(host)
        return self.compute_factor.get(host, 1.0) / (1.0 if said is None else said.speed)


class Striped(msgspec.Struct, frozen=True):
    """The trees that a stream goes over, and where their nodes are. ``shares``, ``window``: as ``StripesRequested``.

    ``above``: what runs once above them.
    """

    trees: tuple[tuple[Dataflow, Placement], ...]
    shares: tuple[float, ...] = ()
    window: int = 0
    above: tuple[Dataflow, Placement] | None = None
