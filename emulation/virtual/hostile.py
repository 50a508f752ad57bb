"""A host that means ill: what it says to the others of a run, drawn from the definitions of messages.

It says so under its own name, which nobody can forge once keys are used. It knows everything that hosts of the run say
to each other, and its nodes. What it says is a message of any kind that a socket would let through: one that was said,
again; one that was said, with a field that is another; or one that is all its own.
"""

from __future__ import annotations

import math
import types
from collections import deque
from collections.abc import Iterable
from random import Random
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import UsageError
from thalweg.middleware.protocol import messages as m

KINDS: tuple[type[Any], ...] = tuple(dict.fromkeys((*get_args(m.Control), m.Probe)))
OVERHEARD = 256  # of what is said the latest
NUMBERS = (0, 1, 2, 3, 5, 40, 2**40, 2**53 - 1)
NODES, HOSTS = ("node", "producer", "consumer", "heir", "like"), ("host", "source", "target", "client", "tail", "name")


class Hostile:
    """The messages of host ``name``, by chance; ``names`` are the others, and ``dataflow`` is what they run."""

    def __init__(self, name: str, names: Iterable[str], run: str, dataflow: Dataflow, dice: Random) -> None:
        self.name, self.run, self.dice, self._dataflow = name, run, dice, dataflow
        self._hosts, self._nodes = [*names, name], list(dataflow.by_name)
        self._heard: deque[Any] = deque(maxlen=OVERHEARD)
        self._newest = 0  # partition that anybody spoke of

    def overhear(self, message: Any) -> None:
        """Something is said between two hosts."""
        self._heard.append(message)
        self._newest = max(self._newest, getattr(message, "index", 0))

    def says(self) -> tuple[Any, Any, int]:
        """A message, what it carries, and that's size."""
        for _ in range(20):
            try:  # as it comes off the wire
                message = self._drawn()
                message = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))
            except (msgspec.MsgspecError, ValueError, OverflowError, UsageError):
                continue
            if type(message) is m.Partition and not message.end:
                value = self.dice.choice((b"forged", ("s0", message.index, 0), None))
                return message, value, 1000
            if type(message) is m.State and message.inline is None:
                return message, b"0".ljust(min(message.size_bytes, 1000)), message.size_bytes
            return message, bytes(100) if type(message) is m.Probe else None, 0
        return m.Ping(self.run), None, 0

    def _drawn(self) -> Any:
        dice, how = self.dice, self.dice.random()
        if how > 0.6 or not self._heard:
            kind = dice.choice(KINDS)
            return kind(*[self._value(field.type, field.name) for field in msgspec.structs.fields(kind)])
        message = dice.choice(self._heard)
        if how > 0.3:
            field = dice.choice(msgspec.structs.fields(type(message)) or (None,))
            if field is not None:
                message = msgspec.structs.replace(message, **{field.name: self._value(field.type, field.name)})
        return message

    def _value(self, kind: Any, name: str) -> Any:
        """Something of that type, which mostly says what a field of that name would."""
        dice, origin = self.dice, get_origin(kind)
        if origin is Annotated:
            return self._value(get_args(kind)[0], name)
        if origin in (Union, types.UnionType):
            return self._value(dice.choice(get_args(kind)), name)
        if origin is Literal:
            return dice.choice(get_args(kind))
        if origin in (tuple, dict):
            of = get_args(kind)
            if origin is dict:
                return {}
            return tuple(self._value(of[0], name.removesuffix("s")) for _ in range(dice.choice((0, 1, 1, 2))))
        if kind is Dataflow:
            return self._dataflow if dice.random() < 0.9 else Dataflow(self._dataflow.nodes[1:])
        if kind is Code:
            return dice.choice([node.code for node in self._dataflow.nodes if node.code is not None])
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return kind(*[self._value(field.type, field.name) for field in msgspec.structs.fields(kind)])
        if kind is str:
            return self._text(name)
        if kind is bool:
            return dice.random() < 0.5
        if kind is int:
            return dice.choice((*NUMBERS, self._newest, self._newest + 1, max(0, self._newest - 1)))
        if kind is float:
            return dice.choice((0.0, 1.0, 60.0, 1e9, math.inf, -1.0))
        return b"" if kind is bytes else None

    def _text(self, name: str) -> str:
        dice = self.dice
        if name == "run":
            return self.run if dice.random() < 0.9 else dice.choice(("", "another"))
        if name in NODES or (name == "input"):
            return dice.choice((*self._nodes, "", "nobody"))
        if name in HOSTS or name == "state":
            return dice.choice((*self._hosts, "", "nobody"))
        if name in ("control", "bulk"):
            return f"tcp://{dice.choice(self._hosts)}:1"
        return dice.choice(("", "1", "forged", "\x1b[2J\n" * 3))
