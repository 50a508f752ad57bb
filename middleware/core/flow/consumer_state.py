"""State of one consumer of a node: the last demand, and the transfers of outputs to the consumer."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from thalweg.middleware.core.flow.actions import LAST


class Sent(msgspec.Struct, gc=False):
    """Transfer of an output to the host of a consumer at that time.

    ``landed``: the transfer has arrived, and the consumer has not repeated its demand since. ``due``: the node has to
    send the output again.
    """

    host: str
    under_way: bool
    landed: bool = False
    due: bool = False


@dataclass(slots=True)
class ConsumerState:
    """Last demand of one consumer of a node, and the unacknowledged outputs that the consumer was sent."""

    demanded: int = -1  # highest demanded partition. Before the first demand: ``first`` - 1
    first: int = 0  # first partition that the consumer takes
    sent: dict[int, Sent] = field(default_factory=dict)  # unacknowledged outputs, by partition

    @classmethod
    def of(cls, first: int) -> ConsumerState:
        """Return a consumer whose first partition is ``first``. ``LAST``: the consumer takes no partition."""
        return cls(first if first == LAST else first - 1, first=first)

    @property
    def needs(self) -> int:
        """First partition that the node may still send to the consumer."""
        return self.demanded if self.demanded >= self.first else self.first

    def demand(self, index: int, *, again: bool) -> bool:
        """Handle a demand, and return whether it is new. ``again``: a repetition, because no answer came.

        R2 of ``node``: a partition is sent again unless its transfer is under way or has just ended.
        """
        fresh = index > self.demanded
        if again or not fresh:
            self.miss(index, again=again)
        self.demanded = index
        return fresh

    def was_sent(self, index: int, host: str, *, under_way: bool) -> None:
        """Record that an output was sent to ``host``. ``under_way``: the transfer has not ended."""
        self.sent[index] = Sent(host, under_way)

    def is_due(self, index: int) -> bool:
        """Return whether the node has to send an output, for the first time or again."""
        sent = self.sent.get(index)
        return sent is None or sent.due

    def miss(self, index: int, *, again: bool) -> None:
        """Record that the consumer lacks an output. ``again``: the demand is a repetition.

        The first repetition after the arrival does not count, because it was most likely sent before the arrival.
        """
        sent = self.sent.get(index)
        if sent is None or sent.under_way:
            return
        if again and sent.landed:
            sent.landed = False
        else:
            sent.due = True

    def over(self, index: int, *, arrived: bool) -> None:
        """Record the end of a transfer. Without ``arrived``, the output may be lost and is due again."""
        sent = self.sent.get(index)
        if sent is not None:
            sent.under_way, sent.landed, sent.due = False, arrived, not arrived

    def peer_gone(self, host: str) -> None:
        """Record the loss of ``host``. Outputs that went there may be lost and are due again."""
        for index, sent in self.sent.items():
            if sent.host == host:
                self.over(index, arrived=False)

    def forget(self) -> None:
        """Mark every sent output as due again, because the output may be lost."""
        for index in self.sent:
            self.over(index, arrived=False)

    def has(self, index: int) -> bool:
        """Return whether an output has arrived at the consumer."""
        return index in self.sent and self.sent[index].landed
