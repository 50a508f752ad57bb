"""State of one consumer of a node: its last demand, and the transfers of outputs to it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from thalweg.middleware.core.flow.actions import LAST


class Sent(msgspec.Struct, gc=False):
    """Transfer of an output to the host on which a consumer was.

    ``landed``: the transfer has ended there, and the consumer has not repeated its demand since.
    ``due``: the node is to send the output again.
    """

    host: str
    under_way: bool
    landed: bool = False
    due: bool = False


@dataclass(slots=True)
class ConsumerState:
    """One consumer of a node."""

    demanded: int = -1  # highest partition that it has demanded. Before its first demand: ``first`` - 1
    first: int = 0  # first partition that the consumer takes
    sent: dict[int, Sent] = field(default_factory=dict)  # unacknowledged outputs, by partition

    @classmethod
    def of(cls, first: int) -> ConsumerState:
        """Return a consumer whose first partition is ``first``. With ``LAST`` it takes no partition."""
        return cls(first if first == LAST else first - 1, first=first)

    @property
    def needs(self) -> int:
        """First partition that the node may still send to the consumer."""
        return self.demanded if self.demanded >= self.first else self.first

    def demand(self, index: int, *, again: bool) -> bool:
        """Handle a demand. Return whether it is a new one. ``again``: the consumer repeats it, as no answer came.

        R2: a partition is sent again unless its transfer is under way or has only just ended.
        """
        fresh = index > self.demanded
        if again or not fresh:
            self.miss(index, again=again)
        self.demanded = index
        return fresh

    def was_sent(self, index: int, host: str, *, under_way: bool) -> None:
        """Note that an output has gone to that host."""
        self.sent[index] = Sent(host, under_way)

    def is_due(self, index: int) -> bool:
        """Return whether the node is to send an output, for the first time or again."""
        sent = self.sent.get(index)
        return sent is None or sent.due

    def miss(self, index: int, *, again: bool) -> None:
        """Note that the consumer lacks an output. ``again``: its demand is a repeated one."""
        sent = self.sent.get(index)
        if sent is None or sent.under_way:
            return
        if again and sent.landed:
            sent.landed = False
        else:
            sent.due = True

    def over(self, index: int, *, arrived: bool) -> None:
        """Note the end of a transfer. Without ``arrived`` the output may have arrived or not."""
        sent = self.sent.get(index)
        if sent is not None:
            sent.under_way, sent.landed, sent.due = False, arrived, not arrived

    def peer_gone(self, host: str) -> None:
        """Note that a host is lost: outputs that went there may have arrived or not."""
        for index, sent in self.sent.items():
            if sent.host == host:
                self.over(index, arrived=False)

    def forget(self) -> None:
        """Count every output that was sent as one that may not have arrived."""
        for index in self.sent:
            self.over(index, arrived=False)

    def has(self, index: int) -> bool:
        """Return whether an output has arrived at the consumer."""
        return index in self.sent and self.sent[index].landed
