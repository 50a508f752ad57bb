"""Cores of a run that handle any event at any time: from strangers, from hosts of the run, and out of order.

``THALWEG_FUZZ=200000 pytest tests/middleware/core/test_fuzz.py`` runs more trials than the 6,000 of every change.
``THALWEG_FUZZ_SEED`` selects other seeds. The message of a failure names its seed.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest
from adversary import BEGINS_S, CLIENT, MERGING, MERGING_DATAFLOW, Mood, Scripted, World, another_tree
from playbook import HandOver, got
from run_ids import R, timer_of

from thalweg.emulation.virtual.hostile import KINDS, Pool, fields
from thalweg.middleware.core.host import HostCore
from thalweg.middleware.core.moving.departures import Departures
from thalweg.middleware.core.moving.handover import DepartureState
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import LocalMoves
from thalweg.middleware.protocol.limits import CoreConfig

TRIALS = int(os.environ.get("THALWEG_FUZZ", "6000"))
FIRST_SEED = int(os.environ.get("THALWEG_FUZZ_SEED", "1"))
KEPT = (17484, 9895)  # seeds with which something was found
A_SESSION = 250  # trials of one core, from its beginning or from the middle
# What the shell tells of its own: of these values only what they name is drawn.
LOCAL = (
    e.TimerFired,
    e.OperatorFinished,
    e.OperatorFailed,
    e.NodeOpened,
    e.StateTaken,
    e.StateRestored,
    e.TransferMeasured,
    e.Relayed,
    e.TransferFailed,
    e.TransferStalled,
    e.PeerLost,
    e.NextRequested,
    e.PlacementProposed,
    e.ProbesRequested,
    e.RunAbandoned,
)


class Told(msgspec.Struct, frozen=True):
    """An event of one core, its time, and the commands that followed."""

    now: float
    event: e.Event
    commands: list[e.Command]


class Recording(msgspec.Struct, frozen=True):
    """All events of every host of a run, from beginning to end."""

    name: str
    cores: dict[str, Callable[[], HostCore]]
    told: dict[str, list[Told]]
    nodes: tuple[str, ...]


def record(name: str, world: World) -> Recording:
    """Run a world, and keep all events of its cores."""
    events: dict[str, list[Told]] = {host: [] for host in world.cores}
    cores = {host: partial(_core, core.me, msgspec.structs.replace(core.config)) for host, core in world.cores.items()}
    for host, core in world.cores.items():
        core.handle = partial(_keep, core, events[host])  # type: ignore[method-assign]
    world.run()
    seen = {graft.node for rows in events.values() for row in rows for graft in _nodes_of(row.event)}
    return Recording(name, cores, events, (*sorted({*world.dataflow.by_name, *seen}), "nobody"))


def _core(me: m.Peer, config: CoreConfig) -> HostCore:
    core = HostCore(me, msgspec.structs.replace(config))
    core.context.recording = True
    return core


def _keep(core: HostCore, told: list[Told], event: e.Event, now: float) -> list[e.Command]:
    commands = HostCore.handle(core, event, now)
    told.append(Told(now, event, list(commands)))
    return commands


def _nodes_of(event: e.Event) -> Iterable[m.Graft]:
    shape = getattr(getattr(event, "message", None), "shape", None)
    return () if shape is None else shape.grafts


def _moved(world: Scripted) -> bool:
    run = world.run_at("h3")
    return run is not None and any(
        departure.state is DepartureState.COMMITTED for departure in run.parts.get(Departures).leaving.values()
    )


def _worlds() -> dict[str, World]:
    epoch = Scripted(_moved, last_s=0.6).at(BEGINS_S, "h3", HandOver("o", "h4"))
    barrier = Scripted(_moved, last_s=0.6).at(BEGINS_S, CLIENT, e.PlacementProposed(R, {"o": "h2"}, "a test"))
    shape = Scripted(lambda world: bool(world.reshaped), last_s=0.4, dataflow=MERGING_DATAFLOW)
    wish = e.PlacementProposed(R, {"n": "h4"}, "a test", another_tree("n", MERGING), (MERGING,), (MERGING,))
    shape.at(BEGINS_S, CLIENT, wish)
    local = World(
        Mood(3, 0.05, 0.05), 5, 4, partitions=12, length=None, adaptation=LocalMoves(period_s=0.2, k=2, gate=False)
    )
    several = World(
        Mood(4, 0.05, 0.05), 5, 4, partitions=12, length=None, adaptation=LocalMoves(period_s=0.2, k=2, gate=False)
    )
    several.depth = 3
    return {"epoch": epoch, "barrier": barrier, "shape": shape, "local": local, "several": several}


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    return [record(name, world) for name, world in _worlds().items()]


class Session:
    """One core that handles an honest run, mixed with events that must not harm it."""

    def __init__(self, random: Random, recording: Recording) -> None:
        self.random, self.recording = random, recording
        self.host = random.choice(list(recording.told))
        self.told: list[Told] = recording.told[self.host]
        self.core: HostCore = recording.cores[self.host]()
        self.pool = Pool(random, list(recording.told), recording.nodes, R)
        self.others = [name for name in recording.told if name != self.host]
        self.now = 0.0
        self.trials = 0

    def handle(self, event: e.Event) -> list[e.Command]:
        commands = self.core.handle(event, self.now)
        self.core.validate()
        return commands

    def honest(self, row: Told) -> list[e.Command]:
        self.now = max(self.now, row.now)
        index = getattr(getattr(row.event, "message", row.event), "index", None)
        if isinstance(index, int):
            self.pool.index = index
        return self.handle(row.event)

    def any_message(self) -> tuple[m.Message, Any, int]:
        """Return a drawn message, or a message of this run, changed or unchanged."""
        if self.random.random() < 0.4:
            return self.pool.message(), b"drawn", 5
        while True:
            event = self.random.choice(self.recording.told[self.random.choice(list(self.recording.told))]).event
            if isinstance(event, e.MessageReceived):
                return self.pool.mutated(event.message), event.payload, event.size_bytes

    def any_event(self) -> e.Event:
        """Return an event that this host's own shell could send, in any order."""
        if self.random.random() < 0.5:
            row = self.random.choice(self.told)
            if not isinstance(row.event, e.RunRequested):
                return row.event
        kind = self.random.choice(LOCAL)
        drawn: dict[str, Any] = {
            field.name: self.pool.value(field.name, field.type)
            for field in fields(kind)
            if field.name not in ("message", "placement", "dataflow", "free", "merging", "duration_s", "size_bytes")
        }
        if kind is e.TimerFired:
            timers = ["retry", "lease", "probe", "silence", *(f"{what} r" for what in ("move", "states", "barrier"))]
            timers += ["install r", "ping r", "plan r", f"epoch r {self.pool.text('node')}", "remove r", "decide r o"]
            drawn = {"key": timer_of(self.random.choice(timers))}
        elif "message" in kind.__struct_fields__:
            drawn["message"] = self.pool.message(self.random.choice((m.Partition, m.State, m.Checkpoint, m.Probe)))
            drawn |= {"size_bytes": 5, "duration_s": 0.1} if kind in (e.TransferMeasured, e.Relayed) else {}
            if kind is e.Relayed:  # shells pass on nothing else
                drawn["message"] = self.pool.message(m.Partition)
        elif kind is e.PlacementProposed:
            drawn["placement"] = {self.pool.text("node"): self.pool.text("host")}
        return kind(**drawn)


def sessions(recordings: list[Recording], trials: int, kind: str) -> Iterator[tuple[str, Session]]:
    """Yield sessions until they have run ``trials`` trials."""
    done, numbers = 0, itertools.chain(KEPT, itertools.count(FIRST_SEED))
    while done < trials:
        number = next(numbers)
        seed = f"{number} {kind}"
        random = Random(seed)
        session = Session(random, random.choice(recordings))
        yield seed, session
        done += session.trials


def test_every_kind_of_message_can_be_drawn() -> None:
    pool = Pool(Random(1), ["h1", "h2"], ["o", "s"], R)
    for kind in KINDS:
        assert type(pool.message(kind)) is kind


def test_strangers_change_nothing_of_a_run(recordings: list[Recording]) -> None:
    """For each honest event, a core gives the same commands as without the strangers' messages."""
    for seed, session in sessions(recordings, TRIALS // 4, "strangers"):
        often = A_SESSION / len(session.told)
        for row in session.told:
            while session.random.random() < often / (1 + often):
                message, payload, size = session.any_message()
                if isinstance(message, m.Install | m.Probe | m.ProbeRequest | m.ProbeResult):
                    continue  # anybody may begin a run, or probe before one: both use the host
                session.trials += 1
                session.handle(got(session.random.choice(("stranger", "other")), message, payload, size))
            assert session.honest(row) == row.commands, f"seed {seed}, {session.recording.name}, {row.event}"


def test_messages_of_hosts_in_a_run_break_no_core(recordings: list[Recording]) -> None:
    """Hosts of a run and its client send any message. No core raises, and all invariants hold."""
    for seed, session in sessions(recordings, TRIALS - TRIALS // 4, "members"):
        start = session.random.randrange(len(session.told))
        often = session.random.choice((0.1, 0.5, 2.0, 20.0))
        event: e.Event | None = None
        try:
            for number, row in enumerate(session.told):
                event = row.event
                session.honest(row)
                while number >= start and session.trials < A_SESSION and session.random.random() < often / (1 + often):
                    session.trials += 1
                    if session.random.random() < 0.15:
                        event = session.any_event()
                    else:
                        sender = session.random.choice((*session.others, *session.others, "stranger"))
                        message, payload, size = session.any_message()
                        event = got(sender, message, payload, size)
                    session.now += session.random.choice((0.0, 0.0, 0.01, 0.5, 20.0))
                    session.handle(event)
        except Exception as error:
            story = msgspec.structs.asdict(event) if event is not None else {}
            error.add_note(
                f"seed {seed}, {session.recording.name}, host {session.host}: {type(event).__name__} {story}"
            )
            raise
