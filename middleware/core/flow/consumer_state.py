"""What a node knows of one consumer: what it has demanded, and what became of the outputs that it was sent."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from thalweg.middleware.core.flow.actions import LAST


class Sent(msgspec.Struct, gc=False):
    """An output that was sent to the host where a consumer was.

    ``landed``: the output has arrived, and was not demanded again since. ``due``: the output is to be sent again.
    """

    host: str
    under_way: bool
    landed: bool = False
    due: bool = False


@dataclass(slots=True)
class ConsumerState:
    """A consumer, as the node knows it."""

    demanded: int = -1  # highest index it asked for; before its first demand that which comes before its first one
    first: int = 0  # the first partition that it takes
    sent: dict[int, Sent] = field(default_factory=dict)  # by partition: outputs that it has not acknowledged

    @classmethod
    def of(cls, first: int) -> ConsumerState:
        """Return a consumer that takes partitions from ``first`` on; with ``LAST`` none."""
        return cls(first if first == LAST else first - 1, first=first)

    @property
    def needs(self) -> int:
        """The first partition that the consumer may still be sent."""
        return self.demanded if self.demanded >= self.first else self.first

    def demand(self, index: int, *, again: bool) -> bool:
        """The consumer demands a partition; ``again``: as no answer came. Return whether it did so for the first time.

        R2: a partition is sent again unless its transfer is under way or has only just ended.
        """
        fresh = index > self.demanded
        if again or not fresh:
            self.miss(index, again=again)
        self.demanded = index
        return fresh

    def was_sent(self, index: int, host: str, *, under_way: bool) -> None:
        """An output has gone to that host."""
        self.sent[index] = Sent(host, under_way)

    def is_due(self, index: int) -> bool:
        """Return whether an output is to be sent, or sent again."""
        sent = self.sent.get(index)
        return sent is None or sent.due

    def miss(self, index: int, *, again: bool) -> None:
        """The consumer demands an output that it was sent; ``again``: as no answer came."""
        sent = self.sent.get(index)
        if sent is None or sent.under_way:
            return
        if again and sent.landed:
            sent.landed = False
        else:
            sent.due = True

    def over(self, index: int, *, arrived: bool) -> None:
        """The transfer of an output is over; unless it has ``arrived``, nobody knows what became of it."""
        sent = self.sent.get(index)
        if sent is not None:
            sent.under_way, sent.landed, sent.due = False, arrived, not arrived

    def peer_gone(self, host: str) -> None:
        """Nobody knows what became of the outputs that were sent to that host."""
        for index, sent in self.sent.items():
            if sent.host == host:
                self.over(index, arrived=False)

    def forget(self) -> None:
        """Whatever was sent does not count."""
        for index in self.sent:
            self.over(index, arrived=False)

    def has(self, index: int) -> bool:
        """Return whether an output was sent to the consumer and has arrived."""
        return index in self.sent and self.sent[index].landed
