"""One run as a host sees it, and the limits within which a host works.

What is decided about it is in ``host_core`` (the flow), ``relocation`` and ``barrier`` (moves), ``steering`` (when to
move) and ``coordinator`` (beginning and end).
"""

from __future__ import annotations

import msgspec

from thalweg.middleware import messages as m
from thalweg.middleware.barrier import Membership, Proposer, Switch
from thalweg.middleware.epoch import EpochBook
from thalweg.middleware.monitor import MonitorConfig
from thalweg.middleware.node import NodeCore
from thalweg.middleware.relocation import Arrival, Guest, Leaving, Tail


class CoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of the core: times in seconds of the shell's (possibly dilated) clock, and room.

    ``handoff_s``, ``barrier_s``: how long a host that an operator shall come to, or a vote, is waited for;
    ``probe_s``: how long a planner waits for links to be measured. ``max_operators`` run here at most, of all runs.
    """

    retry_s: float = 0.5
    retry_max_s: float = 8.0
    ping_s: float = 2.0
    liveness_s: float = 15.0
    lease_s: float = 60.0
    handoff_s: float = 10.0
    barrier_s: float = 10.0
    probe_s: float = 10.0
    max_operators: int = 1000
    max_state_bytes: int = 64 * 1024 * 1024
    monitor: MonitorConfig = MonitorConfig()

    def dilated(self, time_scale: float) -> CoreConfig:
        """The same limits of wall-clock time on a clock that runs ``time_scale`` times as fast."""
        times = {name: value for name, value in msgspec.structs.asdict(self).items() if name.endswith("_s")}
        return msgspec.structs.replace(self, **{name: value * time_scale for name, value in times.items()})


class Pending(msgspec.Struct):
    """A demand sent to another host that has not been answered."""

    index: int
    due_s: float
    interval_s: float
    asked_s: float  # when it was demanded first


class RunState:
    """One run as this host sees it."""

    def __init__(self, install: m.Install, host: str, now: float) -> None:
        self.install = install
        self.id = install.run
        self.opened_s = now
        self.consumers = install.dataflow.consumers
        self.locations = {location.node: location for location in install.locations}
        self.nodes: dict[str, NodeCore] = {}
        for node in install.dataflow.nodes:
            if self.locations[node.name].host == host:
                self.nodes[node.name] = NodeCore(node, install.partitions)
        self.pending: dict[tuple[str, str], Pending] = {}  # (consumer here, producer)
        self.answer_s: dict[tuple[str, str], float] = {}  # how long the last answer to such a demand took
        self.heard_s = now  # from the client
        self.hosts = {peer.name for peer in install.peers} | {entry.host for entry in install.locations}
        self.peers = {peer.name: peer for peer in install.peers}
        # what has changed of the locations, in order, and how much of it each host was told
        self.changes = 0
        self.changed: dict[str, int] = {}
        self.told: dict[str, int] = {}
        # operators on the move (relocation.py, barrier.py)
        self.leaving: dict[str, Leaving] = {}
        self.guests: dict[str, Guest] = {}
        self.tails: dict[str, Tail] = {}
        self.tail_hosts: dict[str, str] = {}  # of operators here: who keeps their last output
        self.arrivals: dict[str, Arrival] = {}
        self.move_due_s: float | None = None
        self.member = Membership()
        self.proposer = Proposer()
        self.switch: Switch | None = None
        # what decides on moves (steering.py)
        self.spent = (0, 0, 0)
        self.books: dict[str, EpochBook] = {}
        self.sizes: dict[tuple[str, str], int] = {}  # (consumer, producer) -> bytes of the last input
        self.state_bytes: dict[str, int] = {}
        self.compute_s: dict[str, float] = {}

    def inputs_of(self, node: str) -> tuple[str, ...]:
        return self.install.dataflow.by_name[node].inputs

    def operators(self) -> int:
        """How many operators are here."""
        return sum(node.node.kind == "operator" for node in self.nodes.values())

    def host_of(self, node: str, index: int) -> str:
        """The host that ``node`` is on when it works on partition ``index``."""
        location = self.locations[node]
        switch = self.switch
        if switch is not None and index > switch.iteration:
            move = switch.moves.get(node)
            if move is not None and move.version == location.version:
                return move.target
        return location.host
