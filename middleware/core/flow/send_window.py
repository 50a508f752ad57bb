"""Window of a node towards its consumers: outputs that a consumer has not acknowledged, and the credit of consumers.

The rules are in ``node``. If a node leaves a host, its window stays there until the last output is acknowledged
(``tails``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from thalweg.middleware.core.flow.actions import LAST, Dispatch, Output
from thalweg.middleware.core.flow.consumer_state import ConsumerState
from thalweg.middleware.core.flow.replay_log import ReplayLog


@dataclass(slots=True, eq=False)
class SendWindow:
    """Unacknowledged outputs of one node, in the order of their partitions, and the node's consumers by name.

    The application is the consumer of a sink, and has an empty name.
    """

    consumers: dict[str, ConsumerState] = field(default_factory=lambda: {"": ConsumerState()})
    unacked: list[Output] = field(default_factory=list)
    log: ReplayLog | None = None  # R11: dispatched outputs, for consumers that restart
    unheard: set[str] = field(default_factory=set)  # R11: consumers whose next partition is still unknown
    depth: int = 1  # R12: number of partitions for which one demand is credit

    @classmethod
    def of(cls, firsts: Mapping[str, int | None]) -> SendWindow:
        """Return the window of a node whose consumers begin with the partitions ``firsts``.

        None: the partition is unknown (R11).
        """
        consumers = {
            name: ConsumerState() if first is None else ConsumerState.of(first) for name, first in firsts.items()
        }
        return cls(consumers, unheard={name for name, first in firsts.items() if first is None})

    def going_on(self, firsts: Mapping[str, int | None]) -> SendWindow:
        """Return the window in the next generation (R11). Transfers under way are lost."""
        window = SendWindow.of(firsts)
        window.unacked = [*(self.log.outputs if self.log is not None and self.log.outputs else self.unacked)]
        window.log, window.depth = self.log, self.depth
        return window

    @property
    def last(self) -> Output | None:
        """Output that was dispatched last. None: every consumer has acknowledged it."""
        return self.unacked[-1] if self.unacked else None

    def output(self, index: int) -> Output | None:
        """Return the output of a partition. None: the output is acknowledged, or not made yet."""
        unacked = self.unacked
        if unacked and unacked[0].index <= index <= unacked[-1].index:
            return unacked[index - unacked[0].index]
        return None

    # --- what consumers may have ----------------------------------------------------------------------

    def upto(self, consumer: ConsumerState) -> int:
        """Return the last partition that a consumer may be sent now (R12)."""
        return consumer.demanded if consumer.demanded < consumer.first else consumer.demanded + self.depth - 1

    def may_have(self, consumer: ConsumerState, index: int) -> bool:
        """Return whether a consumer may be sent a partition now."""
        demanded = consumer.demanded
        return consumer.first <= demanded < LAST and consumer.first <= index < demanded + self.depth

    def all_demanded(self, index: int) -> bool:
        """Return whether every consumer has demanded partition ``index`` or a later one."""
        return all(consumer.demanded >= index for consumer in self.consumers.values())

    def is_open(self, index: int, ahead: int) -> bool:
        """Return whether the node may dispatch its next partition, ``index`` (R3, R12)."""
        if ahead > 1 and len(self.unacked) >= ahead + self.depth - 1:
            return False
        late, wanted, more = False, False, self.depth - 1  # on the path of every partition: one loop and no call
        for consumer in self.consumers.values():
            demanded = consumer.demanded
            if (demanded if demanded < consumer.first else demanded + more) < index:
                late = True
            elif demanded < LAST:
                wanted = True
        return wanted if ahead > 1 else not late

    def behind(self, index: int, ahead: int) -> list[str]:
        """Return the consumers that hold up partition ``index``. Empty: no consumer may have the partition yet."""
        if not any(self.may_have(consumer, index) for consumer in self.consumers.values()):
            return []
        if ahead == 1:
            return [name for name, consumer in self.consumers.items() if self.upto(consumer) < index]
        least = min([consumer.demanded for consumer in self.consumers.values()])
        return [name for name, consumer in self.consumers.items() if consumer.demanded == least]

    def begins_at(self) -> int | None:
        """Return the first partition that a consumer takes (R11).

        None: the partition of a consumer is unknown, or no consumer takes a partition.
        """
        firsts = [consumer.first for consumer in self.consumers.values() if consumer.demanded < LAST]
        return min(firsts) if firsts and not self.unheard else None

    # --- what happens to outputs ----------------------------------------------------------------------

    def add(self, output: Output) -> list[Dispatch]:
        """Add an output that is dispatched now. Return its sends."""
        if self.log is not None:
            self.log.add(output)
        if self.unacked:
            self.acknowledge()  # R9: drop outputs that no consumer takes
        self.unacked.append(output)
        index, sends = output.index, []
        for name, consumer in self.consumers.items():
            demanded, first = consumer.demanded, consumer.first  # as ``may_have``, without a call for every partition
            if first <= demanded < LAST and first <= index < demanded + self.depth:
                sends.append(Dispatch(output, False, name))
        if output.end:  # R9: a consumer of later partitions gets the end as its first partition
            for name, consumer in self.consumers.items():
                if index < consumer.first == consumer.demanded:
                    sends.append(Dispatch(Output(consumer.first, end=True), consumer=name))
        return sends

    def due(self, name: str) -> list[Dispatch]:
        """Return the sends to a consumer that are due: outputs within its credit that it lacks (R12)."""
        consumer, sends = self.consumers[name], []
        for output in self.unacked:
            index = output.index
            if consumer.demanded <= index and consumer.is_due(index) and self.may_have(consumer, index):
                sends.append(Dispatch(output, index in consumer.sent, name))
        return sends

    def acknowledge(self) -> None:
        """Drop the outputs that every consumer has acknowledged (R2)."""
        least = LAST
        for consumer in self.consumers.values():
            demanded, sent = consumer.demanded, consumer.sent
            if sent:
                for index in [index for index in sent if index < demanded]:
                    del sent[index]
            needs = demanded if demanded >= consumer.first else consumer.first
            if needs < least:
                least = needs
        unacked = self.unacked
        if unacked and unacked[0].index < least:
            del unacked[: least - unacked[0].index]

    def resume(self, name: str, index: int) -> None:
        """Record that a consumer continues with partition ``index``, and has still to demand it (R11)."""
        self.unheard.discard(name)
        self.consumers[name] = ConsumerState.of(index)
        self.acknowledge()

    def on_transfer_over(self, index: int, name: str, *, arrived: bool) -> None:
        """Record the end of a transfer. Without ``arrived``, the output may be lost."""
        if name in self.consumers:
            self.consumers[name].over(index, arrived=arrived)

    def forget(self, name: str) -> None:
        """Mark every output that a consumer was sent as due again, because the output may be lost."""
        if name in self.consumers:
            self.consumers[name].forget()

    def peer_gone(self, host: str) -> None:
        """Record the loss of ``host``. Outputs that went there may be lost and are due again."""
        for consumer in self.consumers.values():
            consumer.peer_gone(host)

    def part(self, names: Iterable[str]) -> None:
        """Remove consumers."""
        for name in names:
            self.consumers.pop(name, None)
            self.unheard.discard(name)

    def split(self, keep: str | None = None) -> SendWindow | None:
        """Remove the last output and the consumers that may lack it. Return them as a separate window.

        ``keep``: a consumer that stays. None: no removed consumer lacks the last output.
        """
        gone = {name: consumer for name, consumer in self.consumers.items() if name != keep}
        last, self.unacked = self.last, []
        if keep is not None:
            self.consumers = {keep: self.consumers[keep]}
        if last is None:
            return None
        waiting = {name: consumer for name, consumer in gone.items() if consumer.needs <= last.index}
        for consumer in waiting.values():
            consumer.demanded = last.index
            consumer.sent = {index: sent for index, sent in consumer.sent.items() if index == last.index}
        return SendWindow(waiting, [last]) if waiting else None

    def validate(self, index: int, *, ended: bool) -> None:
        """Check the invariants. ``index``: the next partition. Raise AssertionError if an invariant is violated."""
        indices = [output.index for output in self.unacked]
        assert indices == list(range(index - len(indices), index)), (indices, index)
        for name, consumer in self.consumers.items():
            assert consumer.demanded <= max(index, consumer.first) or consumer.demanded == LAST, (name, consumer)
            assert ended or consumer.sent.keys() <= set(indices), (name, consumer, indices)
        assert self.unheard <= self.consumers.keys(), self.unheard
