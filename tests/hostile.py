"""What hosts that mean ill say and do, drawn from the definitions of messages and events."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from random import Random
from typing import Any, get_args

import msgspec
from adversary import World

from thalweg.middleware.core.host import HostCore
from thalweg.middleware.errors import UsageError
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig


def state_of(part: Any, seen: dict[int, int] | None = None) -> Any:
    """All that a part of the core holds, as values that can be compared; the clock and what lies out are left out."""
    seen = {} if seen is None else seen
    if part is None or isinstance(part, str | int | float | bytes):
        return part
    if id(part) in seen:
        return "seen", seen[id(part)]
    seen[id(part)] = len(seen)
    if isinstance(part, dict):
        return [(state_of(key, seen), state_of(value, seen)) for key, value in part.items()]
    if isinstance(part, list | tuple):
        return [state_of(each, seen) for each in part]
    if isinstance(part, set | frozenset):
        return sorted(map(repr, part))
    if isinstance(part, types.FunctionType | types.MethodType | type) or type(part).__name__ in ("Desk", "Outbox"):
        return None
    if isinstance(part, msgspec.Struct):
        return [state_of(getattr(part, name), seen) for name in part.__struct_fields__]
    names = [*getattr(part, "__dict__", {}), *getattr(type(part), "__slots__", ())]
    return [(name, state_of(getattr(part, name, None), seen)) for name in names]


# --- what is drawn ----------------------------------------------------------------------------------

STRANGE = ("stranger", "", "x" * 128, "a\nb", "\x1b[31m")
EDGES = (0, 1, 2, 3, 2**31, 2**53 - 1)


class Pool:
    """Values for messages and events: names and numbers that a run has, near ones, and some that it cannot have."""

    def __init__(self, random: Random, hosts: Sequence[str], nodes: Sequence[str], run: str) -> None:
        self.random, self.hosts, self.nodes, self.run = random, tuple(hosts), tuple(nodes), run
        self.index = 0  # about where the run is

    def message(self, kind: type[Any] | None = None) -> Any:
        """Any message that a decoder would let through."""
        while True:
            drawn = self.struct(kind or self.random.choice(KINDS))
            try:
                return decoder.decode(encoder.encode(drawn))
            except (ValueError, UsageError):  # what a peer is told at the door of frames
                continue

    def mutated(self, message: Any) -> Any:
        """The same but for a field or two, or as it is."""
        for _ in range(self.random.choice((0, 1, 1, 2))):
            field = self.random.choice(fields(type(message)))
            changed = msgspec.structs.replace(message, **{field.name: self.value(field.name, field.type)})
            try:
                message = decoder.decode(encoder.encode(changed))
            except (ValueError, UsageError):
                continue
        return message

    def struct(self, kind: type[Any]) -> Any:
        drawn = {}
        for field in fields(kind):
            if field.required or self.random.random() < 0.5:
                drawn[field.name] = self.value(field.name, field.type)
        try:
            return kind(**drawn)
        except (ValueError, UsageError):  # a count, or a time, that cannot be
            return self.struct(kind)

    def value(self, name: str, of: Any) -> Any:
        """A value for the field ``name``."""
        random, inspect = self.random, msgspec.inspect
        match of:
            case inspect.BoolType():
                return random.random() < 0.5
            case inspect.IntType():
                return random.choice((*EDGES, self.index, self.index + random.randint(-2, 3), 1, 1))
            case inspect.FloatType():
                return random.choice((0.0, 1.0, 1e9, 3600.0))
            case inspect.StrType():
                return self.text(name)
            case inspect.BytesType():
                return random.choice((b"", b"state"))
            case inspect.NoneType():
                return None
            case inspect.LiteralType(values):
                return random.choice(values)
            case inspect.UnionType(types):
                return self.value(name, random.choice(types))
            case inspect.VarTupleType(item):
                return tuple([self.value(name, item) for _ in range(random.choice((0, 1, 1, 2, 5)))])
            case inspect.DictType():
                return {}
            case inspect.StructType(cls):
                return self.struct(cls)
            case inspect.CustomType() | inspect.AnyType():
                return None
        raise NotImplementedError(f"{name}: {of}")

    def text(self, name: str) -> str:
        random = self.random
        if random.random() < 0.06:
            return random.choice(STRANGE)
        if name in ("control", "bulk"):
            return "tcp://h1:1"
        if name == "run":
            return self.run if random.random() < 0.9 else random.choice(("q", "", "probe"))
        if name in ("host", "source", "target", "client", "tail", "requester", "pinned", "lost", "peer", "sender"):
            return random.choice(self.hosts)
        if name in ("node", "producer", "consumer", "heir", "inputs", "like", "states"):
            return random.choice(self.nodes)
        return random.choice((*self.hosts, *self.nodes, "why"))


KINDS: tuple[type[Any], ...] = get_args(m.Message)
encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(m.Message)


@cache
def fields(kind: type[Any]) -> tuple[Any, ...]:
    told: Any = msgspec.inspect.type_info(kind)
    return tuple(told.fields)


# --- honest runs, as their hosts were told of them ---------------------------------------------------


class Told(msgspec.Struct, frozen=True):
    """An event of one core, when it was, and what the core then commanded."""

    now: float
    event: e.Event
    commands: list[e.Command]


class Recording(msgspec.Struct, frozen=True):
    """What every host of a run was told from its beginning to its end."""

    name: str
    cores: dict[str, Callable[[], HostCore]]
    told: dict[str, list[Told]]
    nodes: tuple[str, ...]


def record(name: str, world: World) -> Recording:
    """Run a world, and keep all that its cores were told."""
    told: dict[str, list[Told]] = {host: [] for host in world.cores}
    cores = {host: partial(_core, core.me, msgspec.structs.replace(core.config)) for host, core in world.cores.items()}
    for host, core in world.cores.items():
        core.handle = partial(_keep, core, told[host])  # type: ignore[method-assign]
    world.run()
    seen = {each.node for rows in told.values() for row in rows for each in _nodes_of(row.event)}
    return Recording(name, cores, told, (*sorted({*world.dataflow.by_name, *seen}), "nobody"))


def _core(me: m.Peer, config: CoreConfig) -> HostCore:
    core = HostCore(me, msgspec.structs.replace(config))
    core.desk.recording = True
    return core


def _keep(core: HostCore, told: list[Told], event: e.Event, now: float) -> list[e.Command]:
    commands = HostCore.handle(core, event, now)
    told.append(Told(now, event, list(commands)))
    return commands


def _nodes_of(event: e.Event) -> Iterable[m.Graft]:
    shape = getattr(getattr(event, "message", None), "shape", None)
    return () if shape is None else shape.grafts
