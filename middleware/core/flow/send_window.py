"""The outputs of a node that are not acknowledged by all its consumers, and which consumer may have which of them.

The rules are those of ``node``. The window of a node that has left stays where the node was until its last output is
acknowledged (``tails``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from thalweg.middleware.core.flow.actions import LAST, Dispatch, Output
from thalweg.middleware.core.flow.consumer_state import ConsumerState
from thalweg.middleware.core.flow.replay_log import ReplayLog


@dataclass(slots=True, eq=False)
class SendWindow:
    """The unacknowledged outputs of one node, one partition after the other, and its consumers by name.

    The application, which is the consumer of a sink, has an empty name.
    """

    consumers: dict[str, ConsumerState] = field(default_factory=lambda: {"": ConsumerState()})
    unacked: list[Output] = field(default_factory=list)
    log: ReplayLog | None = None  # R11: dispatched outputs, for consumers that begin anew
    unheard: set[str] = field(default_factory=set)  # R11: consumers that have not said yet where they go on
    depth: int = 1  # R12: number of partitions for which one demand is credit

    @classmethod
    def of(cls, firsts: Mapping[str, int | None]) -> SendWindow:
        """Return the window of a node whose consumers take partitions from these on; None: that is not known (R11)."""
        consumers = {
            name: ConsumerState() if first is None else ConsumerState.of(first) for name, first in firsts.items()
        }
        return cls(consumers, unheard={name for name, first in firsts.items() if first is None})

    def going_on(self, firsts: Mapping[str, int | None]) -> SendWindow:
        """R11: return the window in the next generation; what was on its way to consumers is lost."""
        window = SendWindow.of(firsts)
        window.unacked = [*(self.log.outputs if self.log is not None and self.log.outputs else self.unacked)]
        window.log, window.depth = self.log, self.depth
        return window

    @property
    def last(self) -> Output | None:
        """The output that was dispatched last, if it is not acknowledged by all."""
        return self.unacked[-1] if self.unacked else None

    def output(self, index: int) -> Output | None:
        """Return the output of a partition, if it is not acknowledged by all."""
        unacked = self.unacked
        if unacked and unacked[0].index <= index <= unacked[-1].index:
            return unacked[index - unacked[0].index]
        return None

    # --- what consumers may have ----------------------------------------------------------------------

    def upto(self, consumer: ConsumerState) -> int:
        """R12: return the last partition that a consumer may be sent now."""
        return consumer.demanded if consumer.demanded < consumer.first else consumer.demanded + self.depth - 1

    def may_have(self, consumer: ConsumerState, index: int) -> bool:
        """Return whether a consumer may be sent a partition now."""
        demanded = consumer.demanded
        return consumer.first <= demanded < LAST and consumer.first <= index < demanded + self.depth

    def all_demanded(self, index: int) -> bool:
        """Return whether each consumer has demanded partition ``index``, or a later one."""
        return all(consumer.demanded >= index for consumer in self.consumers.values())

    def is_open(self, index: int, ahead: int) -> bool:
        """R3, R12: return whether partition ``index``, which comes next, may be dispatched."""
        more = self.depth - 1
        if ahead > 1 and len(self.unacked) >= ahead + more:
            return False
        waiting = wanting = False
        for consumer in self.consumers.values():  # ``upto``, written out: this is on the path of every partition
            demanded = consumer.demanded
            if index <= (demanded if demanded < consumer.first else demanded + more):
                wanting = wanting or demanded < LAST
            else:
                waiting = True
        return wanting if ahead > 1 else not waiting

    def behind(self, index: int, ahead: int) -> list[str]:
        """Return the consumers that hold up partition ``index``, if some consumer may have that partition."""
        if not any(self.may_have(consumer, index) for consumer in self.consumers.values()):
            return []
        if ahead == 1:
            return [name for name, consumer in self.consumers.items() if self.upto(consumer) < index]
        least = min([consumer.demanded for consumer in self.consumers.values()])
        return [name for name, consumer in self.consumers.items() if consumer.demanded == least]

    def begins_at(self) -> int | None:
        """R11: return where the first of the consumers goes on; None where one is not heard, or all want nothing."""
        firsts = [consumer.first for consumer in self.consumers.values() if consumer.demanded < LAST]
        return min(firsts) if firsts and not self.unheard else None

    # --- what happens to outputs ----------------------------------------------------------------------

    def add(self, output: Output) -> list[Dispatch]:
        """An output is dispatched. Return to whom it goes."""
        if self.log is not None:
            self.log.add(output)
        if self.unacked:
            self.acknowledge()  # R9: no consumer is to get these outputs
        self.unacked.append(output)
        index, sends = output.index, []
        for name, consumer in self.consumers.items():
            if self.may_have(consumer, index):
                sends.append(Dispatch(output, False, name))
        if output.end:  # R9: a consumer whose first partition is later is sent an end as well
            for name, consumer in self.consumers.items():
                if index < consumer.first == consumer.demanded:
                    sends.append(Dispatch(Output(consumer.first, end=True), consumer=name))
        return sends

    def due(self, name: str) -> list[Dispatch]:
        """R12: return what a consumer may have of the outputs, and was not sent, or demands once more."""
        consumer, sends = self.consumers[name], []
        for output in self.unacked:
            index = output.index
            if consumer.demanded <= index and consumer.is_due(index) and self.may_have(consumer, index):
                sends.append(Dispatch(output, index in consumer.sent, name))
        return sends

    def acknowledge(self) -> None:
        """R2: keep only what some consumer has not got."""
        least = LAST
        for consumer in self.consumers.values():
            demanded, sent = consumer.demanded, consumer.sent
            for index in [*sent]:
                if index < demanded:
                    del sent[index]
            needs = demanded if demanded >= consumer.first else consumer.first
            if needs < least:
                least = needs
        unacked = self.unacked
        if unacked and unacked[0].index < least:
            del unacked[: least - unacked[0].index]

    def resume(self, name: str, index: int) -> None:
        """R11: a consumer goes on with partition ``index``, which it is to demand yet."""
        self.unheard.discard(name)
        self.consumers[name] = ConsumerState.of(index)
        self.acknowledge()

    def on_transfer_over(self, index: int, name: str, *, arrived: bool) -> None:
        """The transfer of an output is over; unless it has ``arrived``, nobody knows what became of it."""
        if name in self.consumers:
            self.consumers[name].over(index, arrived=arrived)

    def forget(self, name: str) -> None:
        """Whatever a consumer was sent does not count."""
        if name in self.consumers:
            self.consumers[name].forget()

    def peer_gone(self, host: str) -> None:
        """Nobody knows what became of the outputs that were sent to that host."""
        for consumer in self.consumers.values():
            consumer.peer_gone(host)

    def part(self, names: Iterable[str]) -> None:
        """These consumers are gone."""
        for name in names:
            self.consumers.pop(name, None)
            self.unheard.discard(name)

    def split(self, keep: str | None = None) -> SendWindow | None:
        """Take the last output out, with the consumers that may not have got it; these are none here any more.

        Return their window, or None where all have the last output. ``keep``: a consumer that stays.
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
        """The invariants; AssertionError tells which does not hold. ``index``: of the next output."""
        indices = [output.index for output in self.unacked]
        assert indices == list(range(index - len(indices), index)), (indices, index)
        for name, consumer in self.consumers.items():
            assert consumer.demanded <= max(index, consumer.first) or consumer.demanded == LAST, (name, consumer)
            assert ended or consumer.sent.keys() <= set(indices), (name, consumer, indices)
        assert self.unheard <= self.consumers.keys(), self.unheard
