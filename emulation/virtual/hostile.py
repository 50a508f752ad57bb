"""Hostile host of a run, and the messages that it sends, drawn from the definitions of messages.

The host sends under its own name, because with keys it cannot forge a name. It knows the run's nodes and every message
between hosts of the run. A message is of any kind that a socket lets through: an overheard message again, an overheard
message with up to two fields changed, or a message with drawn fields.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cache
from random import Random
from typing import Any, get_args

import msgspec

from thalweg.middleware.core.measuring.prober import BEFORE_RUNS
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import NET
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import LIMIT, NO_RUN, RunId

KINDS: tuple[type[msgspec.Struct], ...] = get_args(m.Message)
# Kinds of messages that a hostile host draws. The list is fixed, and each kind keeps its place: a renamed or an added
# message does not change the kinds that a seed draws. If a kind is merged into another, the latter or a new kind takes
# its place.
DRAWN: tuple[type[msgspec.Struct], ...] = (
    m.Hello, m.Welcome, m.Ping, m.SkipTo, m.Pong, m.Install, m.Skipped, m.Install, m.ReplayNotNeeded,
    m.Checkpoint, m.CheckpointStored, m.StateMissing, m.CheckpointsObsolete, m.Installed, m.Remove, m.Removed, m.Demand,
    m.Located, m.Failed, m.Lost, m.StripeIndices, m.Offer, m.Accept, m.Refuse, m.State, m.StateRequest, m.Restored,
    m.Withdraw, m.Resumed, m.MoveRequest, m.Relocated, m.Propose, m.InheritedState, m.Vote, m.Commit, m.Commit,
    m.Impassable, m.Abort, m.Retire, m.Done, m.Detach, m.Detached, m.Subscribe, m.AddMember, m.InstallSubscriber,
    m.Unsubscribe, m.SubscriptionEnded, m.Enlist, m.Drain, m.Drained, m.Leave, m.Stay, m.ProbeRequest, m.ProbeRequest,
    m.ProbeResult, m.ProbeRequest, m.ProbeResult, m.Echo, m.ProbeRequest, m.ProbeResult, m.Echo, m.Credit, m.Partition,
    m.Probe,
)  # fmt: skip
OTHER = RunId("another")
OVERHEARD = 256  # the latest messages of the hosts
STRANGE = ("stranger", "", "nobody", "x" * 128, "a\nb", "\x1b[31m\n" * 3)
EDGES = (0, 1, 2, 3, 5, 40, 2**31, 2**40, 2**53 - 1)
NODES = ("node", "producer", "consumer", "heir", "inputs", "like", "states")
HOSTS = ("host", "source", "target", "client", "tail", "requester", "pinned", "lost", "peer", "sender", "name")
_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(m.Message)


class Pool:
    """Values for messages and events: names and numbers of a run, near values, and values that the run cannot have.

    ``dataflow``: the run's dataflow, if it is known. ``kinds``: kinds of the drawn messages.
    """

    def __init__(
        self,
        dice: Random,
        hosts: Sequence[str],
        nodes: Sequence[str],
        run: RunId,
        dataflow: Dataflow | None = None,
        kinds: Sequence[type[msgspec.Struct]] = KINDS,
    ) -> None:
        self.dice, self.hosts, self.nodes, self.run, self.kinds = dice, hosts, nodes, run, kinds
        self.index = 0  # near the partition that the run has reached
        stream, last = run.stream, LIMIT - 1
        ids = OTHER, run.next_generation, RunId(stream, 7), RunId(stream, None, last), RunId(stream, 10**9 - 1, last)
        self._others = itertools.cycle(ids)
        self._dataflow = dataflow

    def message(self, kind: type[msgspec.Struct] | None = None) -> Any:
        """Return a drawn message that a decoder lets through. ``kind`` None: of a drawn kind."""
        while True:
            drawn = _through_the_door(self.struct(kind or self.dice.choice(self.kinds)))
            if drawn is not None:
                return drawn

    def mutated(self, message: msgspec.Struct) -> Any:
        """Return the message with up to two fields drawn anew."""
        for _ in range(self.dice.choice((0, 1, 1, 2))):
            field = self.dice.choice(fields(type(message)))
            changed = msgspec.structs.replace(message, **{field.name: self.value(field.name, field.type)})
            message = _through_the_door(changed) or message
        return message

    def struct(self, kind: type[msgspec.Struct]) -> Any:
        if self._dataflow is not None and kind in (Dataflow, Code):
            return self._known(self._dataflow, kind)
        drawn = {}
        for field in fields(kind):
            if field.required or self.dice.random() < 0.5:
                drawn[field.name] = self.value(field.name, field.type)
        try:
            return kind(**drawn)
        except (ValueError, UsageError):  # an impossible count or time
            return self.struct(kind)

    def _known(self, dataflow: Dataflow, kind: type[msgspec.Struct]) -> Dataflow | Code:
        if kind is Code:
            return self.dice.choice([node.code for node in dataflow.nodes if node.code is not None])
        return dataflow if self.dice.random() < 0.9 else Dataflow(dataflow.nodes[1:])

    def value(self, name: str, of: Any) -> Any:
        """Return a drawn value of type ``of`` for the field ``name``."""
        dice, inspect = self.dice, msgspec.inspect
        if name == "run":
            run = self.run_id()
            return None if not run and isinstance(of, inspect.UnionType) else run
        match of:
            case inspect.UnionType(types):
                return self.value(name, dice.choice(types))
            case inspect.TupleType(items):
                return tuple([self.value(name, item) for item in items])
            case inspect.VarTupleType(item):
                count = max(of.min_length or 0, dice.choice((0, 1, 1, 2, 5)))
                return tuple([self.value(name, item) for _ in range(count)])
            case inspect.DictType():
                return {dice.choice((NET, *self.hosts)): self.text("bulk"), NET: "tcp://h1:1"} if name == "ends" else {}
            case inspect.StructType(cls):
                return RunId(self.text(name)) if cls is RunId else self.struct(cls)
        return self._scalar(name, of)

    def _scalar(self, name: str, of: Any) -> Any:
        """Return a value without parts for the field ``name``."""
        dice, inspect = self.dice, msgspec.inspect
        match of:
            case inspect.BoolType():
                return dice.random() < 0.5
            case inspect.IntType():
                return dice.choice((*EDGES, self.index, self.index + dice.randint(-2, 3), 1, 1))
            case inspect.FloatType():
                return dice.choice((0.0, 1.0, 60.0, 3600.0, 1e9, math.inf, -1.0))
            case inspect.StrType():
                return self.text(name)
            case inspect.BytesType():
                return dice.choice((b"", b"state"))
            case inspect.LiteralType(values):
                return dice.choice(values)
            case inspect.NoneType() | inspect.CustomType() | inspect.AnyType():
                return None
        raise NotImplementedError(f"{name}: {of}")  # a type that is new in messages must be drawn as well

    def run_id(self) -> RunId:
        """Return the id of a run: usually the own run, seldom a different or an impossible run."""
        if self.dice.random() < 0.06:
            return RunId(self.dice.choice(STRANGE))
        if self.dice.random() < 0.9:
            return self.run
        drawn = self.dice.choice((OTHER, NO_RUN, BEFORE_RUNS))
        return next(self._others) if drawn is OTHER else drawn

    def text(self, name: str) -> str:
        dice = self.dice
        if dice.random() < 0.06:
            return dice.choice(STRANGE)
        if name in ("control", "bulk"):
            return f"tcp://{dice.choice(self.hosts)}:1"
        if name in HOSTS:
            return dice.choice(self.hosts)
        return dice.choice(self.nodes if name in NODES else (*self.hosts, *self.nodes, "why"))


@cache
def fields(kind: type[msgspec.Struct]) -> tuple[Any, ...]:
    info: Any = msgspec.inspect.type_info(kind)
    return tuple(info.fields)


def _through_the_door(message: Any) -> Any:
    """Return the message as a receiver decodes it. None: a receiver refuses the message."""
    try:
        return _DECODER.decode(_ENCODER.encode(message))
    except (ValueError, OverflowError, UsageError):
        return None


class Hostile:
    """Hostile host ``name``, whose messages are drawn. ``names``: the peers. ``dataflow``: the dataflow of the run.

    ``apart``: each message is drawn from a seed of its own, so the fields of a message do not change the next message.
    """

    def __init__(
        self, name: str, names: Iterable[str], run: RunId, dataflow: Dataflow, dice: Random, *, apart: bool = False
    ) -> None:
        self.name, self.dice, self._apart = name, dice, apart
        self._pool = Pool(dice, (*names, name), tuple(dataflow.by_name), run, dataflow, DRAWN)
        self._heard: deque[Any] = deque(maxlen=OVERHEARD)

    def overhear(self, message: Any) -> None:
        """Record a message between two hosts."""
        if message.__struct_fields__:  # no field of an empty message can change
            self._heard.append(message)
        self._pool.index = max(self._pool.index, getattr(message, "index", None) or 0)

    def says(self) -> tuple[Any, Any, int]:
        """Return a message, its content, and the size of the content."""
        pool = self._pool
        if self._apart:
            pool.dice = Random(self.dice.getrandbits(64))
        dice = pool.dice
        drawn = not self._heard or dice.random() < 0.4
        message = pool.message() if drawn else pool.mutated(dice.choice(self._heard))
        if type(message) is m.Partition and not message.end:
            return message, dice.choice((b"forged", ("s0", message.index, 0), None)), 1000
        if isinstance(message, m.AnyState) and message.inline is None:
            return message, b"0".ljust(min(message.size_bytes, 1000)), message.size_bytes
        return message, bytes(100) if type(message) is m.Probe else None, 0
