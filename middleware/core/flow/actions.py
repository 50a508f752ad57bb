"""What a node is told to do, and what it holds: the words that a node (``flow.node``) and its host's flow share."""

from __future__ import annotations

from dataclasses import dataclass, field
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
    """Send ``output`` to the consumer, of several to ``consumer``; ``again`` when it was sent there before."""

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
    """What ``release`` gives is to be kept for the old consumer; the next partition is for the new one."""


Action = Ask | RunCode | Dispatch | Renounce | Hand | Lighten | Turned

Verdict = Literal["taken", "duplicate", "late", "ahead", "lacking"]


class Sent(msgspec.Struct, gc=False):
    """An output that was sent to where a consumer was.

    ``landed``: it has arrived, and was not asked for again since. ``due``: it is to be sent again.
    """

    host: str
    under_way: bool
    landed: bool = False
    due: bool = False


@dataclass(slots=True)
class ConsumerState:
    """A consumer, as the node knows it."""

    demanded: int = -1  # highest index it asked for; before its first demand that which comes before its first one
    sending: bool = False  # a transfer of that is under way
    landed: int = -1  # what was dispatched last, if it has arrived and was not asked for again since
    first: int = 0  # the first partition that it takes
    to: str = ""  # the host to which something was sent last
    sent: dict[int, Sent] = field(default_factory=dict)  # where several may be under way: those not acknowledged

    @classmethod
    def of(cls, first: int) -> ConsumerState:
        """One that takes partitions from ``first`` on; with ``LAST`` none."""
        return cls(first if first == LAST else first - 1, first=first)

    def was_sent(self, index: int, host: str, *, under_way: bool) -> None:
        """One of several that may be under way has gone to that host."""
        self.sent[index] = Sent(host, under_way)

    def is_due(self, index: int) -> bool:
        """Whether one of several is to be sent, or sent again."""
        sent = self.sent.get(index)
        return sent is None or sent.due

    def miss(self, index: int, *, again: bool) -> None:
        """The consumer says that it lacks one of several."""
        sent = self.sent.get(index)
        if sent is None or sent.under_way:
            return
        if again and sent.landed:
            sent.landed = False
        else:
            sent.due = True

    def over(self, index: int, *, arrived: bool) -> None:
        """The transfer of one of several is over."""
        sent = self.sent.get(index)
        if sent is not None:
            sent.under_way, sent.landed, sent.due = False, arrived, not arrived

    def unsent(self, host: str) -> None:
        """Nobody knows what became of what was sent to that host."""
        self.sending = self.sending and self.to != host
        for index, sent in self.sent.items():
            if sent.host == host:
                self.over(index, arrived=False)

    def forget(self) -> None:
        """Whatever was sent does not count."""
        self.sending = False
        for index in self.sent:
            self.over(index, arrived=False)

    def has(self, index: int) -> bool:
        """Whether it has been sent that, and it has arrived."""
        return self.landed == index or (index in self.sent and self.sent[index].landed)

    def of_last(self, index: int) -> ConsumerState:
        """What is known of it with the last partition alone."""
        sent = self.sent.get(index)
        if sent is None:
            return ConsumerState(index, self.sending, self.landed, to=self.to)
        return ConsumerState(index, sent.under_way, index if sent.landed else -1, to=sent.host)
