"""What a node keeps of what it has dispatched, and which consumer may have what of it, by the rules of ``node``."""

from __future__ import annotations

from dataclasses import dataclass, field

from thalweg.middleware.core.context.machine import Machine
from thalweg.middleware.core.flow.actions import LAST, ConsumerState, Output
from thalweg.middleware.core.flow.node_states import ENDED, HOLDING, IDLE, NodeState
from thalweg.middleware.core.flow.retained import Retained
from thalweg.middleware.dataflow import Node


@dataclass(slots=True, eq=False, repr=False)
class SendingSide(Machine):
    """A node as its consumers have to do with it.

    ``takers`` are its consumers by name; where there is one, whoever it is, it is ``taker``, of no name.
    """

    node: Node
    limit: int | None = None  # how many partitions the run has, None: until the sources end
    state: NodeState = IDLE
    index: int = 0  # of the next output
    takers: dict[str, ConsumerState] = field(default_factory=lambda: {"": ConsumerState()})
    taker: ConsumerState | None = None  # the only one
    retained: Output | None = None  # dispatched last, not yet acknowledged by all
    older: list[Output] = field(default_factory=list)  # dispatched before, for consumers that lag behind
    log: Retained[Output] | None = None  # R11: dispatched outputs, for consumers that begin anew
    unheard: set[str] = field(default_factory=set)  # R11: consumers that have not said yet where they go on
    free: bool = False  # R11: the node begins where the first of its consumers goes on
    depth: int = 1  # R12: number of partitions for which one demand is credit
    leaves_after: int | None = None  # it becomes light when it has dispatched this, or a later one
    turns_after: int | None = None  # partition 'turns_after + 1' is for another consumer

    def __post_init__(self) -> None:
        self.taker = self.takers.get("")

    def taker_of(self, consumer: str) -> ConsumerState:
        """What is known of a consumer."""
        return self.taker or self.takers[consumer]

    def _handle_resume(self, taker: ConsumerState, consumer: str, index: int) -> bool:
        """R11: a consumer goes on with partition ``index``; whether it can be given that."""
        free = self.free and self.state is IDLE
        if index == LAST:
            self.unheard.discard(consumer)
            return True
        if not free and index < self.index and self.sent_to(taker, index) is None:
            return False
        self.unheard.discard(consumer)
        taker.demanded = taker.first = index
        if free:
            self._set_out()
        else:
            self._let_go()
        if index >= self.index or len(self.takers) > 1:
            taker.demanded -= 1  # it is to be demanded yet
        if not self.unheard and len(self.takers) == 1:
            self._catch_up()
        return True

    def _set_out(self) -> None:
        """R11: a free node begins where the first of its consumers goes on, if it has heard of all."""
        firsts = [taker.first for taker in self.takers.values() if taker.demanded < LAST]
        if firsts and not self.unheard:
            self.index = min(firsts)

    def on_transfer_over(self, index: int, consumer: str = "", *, arrived: bool) -> None:
        """The transfer of partition ``index`` is over; unless it has ``arrived``, nobody knows what became of it."""
        taker = self.taker or self.takers.get(consumer)
        if taker is None:
            return
        if self.depth > 1:
            taker.over(index, arrived=arrived)
            return
        output = self.retained if taker is self.taker else self.sent_to(taker, index)
        if output is not None and output.index == index:
            taker.sending = False
            taker.landed = index if arrived else -1

    def release(self) -> Output | None:
        """The output that was retained, which somebody else retains from now on."""
        output, self.retained = self.retained, None
        for taker in self.takers.values():
            taker.sending = False
            taker.sent.clear()
        return output

    def _let_go(self) -> None:
        """Keep only what some consumer has not got."""
        least = min([taker.demanded for taker in self.takers.values()])
        if self.depth > 1:
            for taker in self.takers.values():
                taker.sent = {index: sent for index, sent in taker.sent.items() if index >= taker.demanded}
        self.older = [output for output in self.older if output.index >= least]
        if self.retained is not None and self.retained.index < least:
            self.retained = None

    def _ready(self) -> bool:
        """R3: whether what is held may be dispatched. R5, R12: the last one only to all, who have all before it."""
        ahead = 1 if self.taker is not None else self.node.ahead
        if self.leaves_after is not None and self.index >= self.leaves_after:
            return self._all(self.index)
        if self.turns_after is not None and self.index >= self.turns_after:
            return self._all(self.index)
        if ahead == 1:
            return all(self._upto(taker) >= self.index for taker in self.takers.values())
        room = len(self.older) + (self.retained is not None) < ahead + self.depth - 1
        return room and any(taker.demanded < LAST and self.index <= self._upto(taker) for taker in self.takers.values())

    def late_consumers(self) -> list[str]:
        """Return the consumers whose demands the node waits for before it dispatches what another has demanded."""
        leaves = self.leaves_after is not None or self.turns_after is not None
        if self.taker is not None or self.state is not HOLDING or leaves or self.unheard or self._ready():
            return []
        if not any(self._may_have(taker, self.index) for taker in self.takers.values()):
            return []
        if self.node.ahead == 1:
            return [name for name, taker in self.takers.items() if self._upto(taker) < self.index]
        least = min([taker.demanded for taker in self.takers.values()])
        return [name for name, taker in self.takers.items() if taker.demanded == least]

    def _upto(self, taker: ConsumerState) -> int:
        """R12: the last partition that a consumer may be sent now."""
        return taker.demanded if taker.demanded < taker.first else taker.demanded + self.depth - 1

    def _may_have(self, taker: ConsumerState, index: int) -> bool:
        """Whether a consumer may be sent that partition now."""
        return taker.demanded < LAST and taker.first <= index <= self._upto(taker)

    @property
    def kept(self) -> list[Output]:
        """What has been dispatched and not been acknowledged by all."""
        return self.older if self.retained is None else [*self.older, self.retained]

    def sent_to(self, taker: ConsumerState, index: int) -> Output | None:
        """The output that a consumer was sent, or of several can be: partition ``index``."""
        last = self.retained
        if (self.taker is not None and self.depth == 1) or last is None or last.index == index:
            return last
        return next((output for output in self.older if output.index == index), None)

    def _all(self, index: int) -> bool:
        """Whether every consumer has demanded partition ``index``, or a later one."""
        return all(taker.demanded >= index for taker in self.takers.values())

    def _catch_up(self) -> None:
        """R10, R11: one consumer that is as far as this node, or lacks no more than it may, is as any other."""
        taker = next(iter(self.takers.values()))
        if taker.first == self.index:
            self.retained = None  # nobody was to get it
        elif taker.first > self.index or (len(self.kept) > self.depth and (self.depth == 1 or self.log is None)):
            return  # the latter were kept for others, which have left
        self.takers, self.taker = {"": taker}, taker

    def validate(self) -> None:
        """The invariants; AssertionError tells which does not hold."""
        outputs = self.kept
        assert [output.index for output in outputs] == list(range(self.index - len(outputs), self.index)), self
        for taker in self.takers.values():
            assert taker.demanded <= max(self.index, taker.first) or taker.demanded == LAST, self
            assert not taker.sending or self.retained is not None, self
            assert not taker.sent.keys() - {output.index for output in outputs} or self.state is ENDED, self
