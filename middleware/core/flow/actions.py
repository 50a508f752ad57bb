"""What a node is told to do, and what it holds: the words that a node (``flow.node``) and its host's flow share."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from thalweg.middleware.protocol import messages as m

LAST = 2**53 - 1  # who demands this partition has taken all that it will


class Output(msgspec.Struct, frozen=True, gc=False):
    """A partition as a node holds it; ``end`` marks the end of the stream and has no value (see ``m.Partition``).

    ``sizes``: of what a sink with several inputs is given, the bytes of each.
    """

    index: int
    value: Any = None
    size_bytes: int = 0
    end: m.End = False
    sizes: tuple[int, ...] = ()


class Ask(msgspec.Struct, frozen=True, gc=False):
    """Demand partition ``index`` from every producer."""

    index: int


class RunCode(msgspec.Struct, frozen=True, gc=False):
    """Run the code on ``inputs``, in the order of the node's producers."""

    index: int
    inputs: tuple[Any, ...]


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    """Send ``output`` to a consumer, for the application an empty name; ``again``: it was sent there before."""

    output: Output
    again: bool = False
    consumer: str = ""


class Renounce(msgspec.Struct, frozen=True, gc=False):
    """Tell these producers that nothing more is wanted of them."""

    producers: tuple[str, ...]


class Hand(msgspec.Struct, frozen=True, gc=False):
    """Give ``output`` to the application (sink only)."""

    output: Output


class Lighten(msgspec.Struct, frozen=True, gc=False):
    """The node is light: its next partition is ``index``, nothing is owed to it, and nothing is in its hands."""

    index: int


class Turned(msgspec.Struct, frozen=True, gc=False):
    """The last output is to be kept for the old consumer (``NodeCore.turned``), the next one is for the new one."""


Action = Ask | RunCode | Dispatch | Renounce | Hand | Lighten | Turned

Verdict = Literal["taken", "duplicate", "late", "ahead", "lacking"]
