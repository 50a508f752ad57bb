"""Actions that a node (``flow.node``) asks its host (``flow.flow``) to perform, and the outputs of nodes."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from thalweg.middleware.protocol import messages as m

LAST = 2**53 - 1  # a consumer that demands this partition takes no further partitions


class Output(msgspec.Struct, frozen=True, gc=False):
    """Output partition of a node, or the end of the node's stream.

    ``end``: the stream ends here, and the output has no value (see ``m.Partition``). ``sizes``: for the delivery of a
    sink with several inputs, the bytes of every input.
    """

    index: int
    value: Any = None
    size_bytes: int = 0
    end: m.End = False
    sizes: tuple[int, ...] = ()


class Ask(msgspec.Struct, frozen=True, gc=False):
    """Action to demand partition ``index`` from every producer."""

    index: int


class RunCode(msgspec.Struct, frozen=True, gc=False):
    """Action to run the node's code on ``inputs``, which are in the order of the node's producers."""

    index: int
    inputs: tuple[Any, ...]


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    """Action to send ``output`` to a consumer, and again if ``again`` is set.

    ``consumer``: its name, empty for the application.
    """

    output: Output
    again: bool = False
    consumer: str = ""


class Renounce(msgspec.Struct, frozen=True, gc=False):
    """Action to notify ``producers`` that the node needs no further partitions."""

    producers: tuple[str, ...]


class Hand(msgspec.Struct, frozen=True, gc=False):
    """Action to deliver ``output`` to the application (sink only)."""

    output: Output


class Lighten(msgspec.Struct, frozen=True, gc=False):
    """Notice that the node is light, and that its next partition is ``index``.

    A light node has no output to dispatch, and waits for no input.
    """

    index: int


class Turned(msgspec.Struct, frozen=True, gc=False):
    """Notice that the node has dispatched its last output for the old consumer (``NodeCore.turned``).

    The host keeps the output for the old consumer. The next output is for the new consumer.
    """


Action = Ask | RunCode | Dispatch | Renounce | Hand | Lighten | Turned

Verdict = Literal["taken", "duplicate", "late", "ahead", "lacking"]
