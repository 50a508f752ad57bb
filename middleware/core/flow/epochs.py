"""Epochs of operators: counts by which the host of an operator decides whether the operator is critical.

Rules (Ranganathan et al., section 2.3):

- **Waves.** Operators on one level of the tree form a wave. Wave 0 is the level farthest from the sink. The time since
  the start of the run is divided into epochs of ``period_s / waves``. An operator of wave *w* decides at the end of the
  epochs *e* ≡ *w* modulo ``waves``. So decisions pass up the tree as a wavefront, and every operator decides once a
  period. Neighbours never decide at the same time, because they are on different levels.
- **Later.** With its next demand, a consumer marks the producer whose partition came last. Between two decisions, an
  operator counts its sent partitions and the marks. If more than half of the partitions are marked, the operator is
  *mostly later*.
- **Critical.** An operator is on the critical path iff it is mostly later and its consumer is critical. The
  consumer's last demand tells whether it is. The operator below the sink (the root) is critical by definition. With
  several consumers, every consumer has separate counts, and the operator is critical if one consumer makes it critical.
- **Decision.** Only critical operators decide, unless ``gate`` is off. ``steering.neighbourhood`` has the decision.

The paper leaves these points open:

- A sent partition counts when its mark arrives. If the transfer outlasts the epoch, the partition counts in the next
  epoch. So the numbers of counted sends and counted marks always agree.
- An epoch without a send proves nothing, and the operator remains mostly later or not. At first the operator is not
  mostly later.
- Only "mostly later" is fixed at the end of an epoch. The consumer is critical, or not, from the moment of the demand
  that says so. So the news that an operator is critical passes down to the sources within one iteration. Otherwise it
  would take as many periods as the tree has levels.
- A book moves with its operator (``BookState``). The new host continues the counts.

An epoch has no states beyond the counts, and no messages of its own. The marks are piggybacked on demands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import msgspec

from thalweg.middleware.core.context.outbox import RunContext, Timer
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.protocol.adaptation import LocalMoves
from thalweg.middleware.protocol.messages import BookState


def waves_of(dataflow: Dataflow) -> tuple[dict[str, int], int]:
    """Return the wave of every operator, and the number of waves.

    Wave 0 is the level farthest from the sink, and the last wave is the root alone. Pinned operators have a wave too,
    because they notify their producers as well. There is at least one wave, even without operators.
    """
    levels = {name: dataflow.level[name] for name in dataflow.operators}
    waves = max(levels.values(), default=1)
    return {name: waves - level for name, level in levels.items()}, waves


NO_STATES: Mapping[str, BookState | None] = MappingProxyType({})


class EpochVerdict(msgspec.Struct, frozen=True):
    """Result of an epoch: ``later`` of ``sends`` outputs were marked, and the operator is ``critical`` or not.

    ``considered``: the host decides about a move of the operator, because the operator is critical or the gate is off.
    """

    epoch: int
    sends: int
    later: int
    critical: bool
    considered: bool


@dataclass(slots=True)
class EpochBook:
    """Counts of one operator on its host. Times are emulated seconds on the host's clock.

    ``wave`` and ``waves`` are results of ``waves_of``. ``origin_s`` is the start of the run.
    """

    options: LocalMoves
    node: str
    wave: int
    waves: int
    origin_s: float
    round: int = 0  # number of the period with the next decision
    sends: int = 0  # outputs of the epoch whose marks have arrived
    later: int = 0  # number of these outputs that came last of the consumer's inputs
    unmarked: bool = False  # the last output was sent, and its mark has not arrived
    last: int = -1  # index of the last output sent
    mostly_later: bool = False
    consumer_critical: bool = False
    beside: dict[str, EpochBook] = field(default_factory=dict)  # with several consumers: a book for every consumer

    def __post_init__(self) -> None:
        assert 0 <= self.wave < self.waves, f"operator {self.node!r} is of wave {self.wave} of {self.waves}"

    def take(self, state: BookState) -> None:
        """Continue the counts of the operator's previous host, for one consumer."""
        for name in BookState.__struct_fields__:
            setattr(self, name, getattr(state, name))

    def to_state(self) -> BookState:
        return BookState(*[getattr(self, name) for name in BookState.__struct_fields__])

    @property
    def epoch(self) -> int:
        """Number of the epoch that ``close_epoch`` closes."""
        return self.round * self.waves + self.wave

    @property
    def critical(self) -> bool:
        """Return whether the operator is on the critical path. Demands carry the value to the producers."""
        root = self.wave == self.waves - 1
        counted = self.beside.values() or (self,)
        return root or any(book.mostly_later and book.consumer_critical for book in counted)

    def due_s(self, now: float) -> float:
        """Return the end of the operator's next epoch: the first end after ``now`` that was not closed.

        At that time, the caller closes the epoch with ``close_epoch``, and calls ``due_s`` again. If the operator was
        moving at the end of an epoch, the epoch is skipped.
        """
        periods = (now - self.origin_s) / self.options.period_s - (self.wave + 1) / self.waves
        following = max(math.floor(periods), self.round)
        while self._end_s(following) <= now:
            following += 1
        self.round = following
        return self._end_s(following)

    def _end_s(self, number: int) -> float:
        return self.origin_s + (number * self.waves + self.wave + 1) * self.options.period_s / self.waves

    def on_sent(self, index: int, consumer: str = "") -> None:
        """Record that output ``index`` was dispatched. Repeated dispatches of an output count once."""
        if self.beside:
            self.beside[consumer].on_sent(index)
        elif index > self.last:
            self.last = index
            self.unmarked = True

    def on_mark(self, later: bool, consumer_critical: bool, consumer: str = "") -> None:
        """Record the marks in a consumer's demand.

        ``later``: the last output came last of the consumer's inputs. ``consumer_critical``: the consumer is critical.
        """
        if self.beside:
            self.beside[consumer].on_mark(later, consumer_critical)
            return
        self.consumer_critical = consumer_critical
        if self.unmarked:
            self.unmarked = False
            self.sends += 1
            self.later += later

    def close_epoch(self) -> EpochVerdict:
        """Close the epoch. Return the counts, and whether the operator is critical from now on.

        With several consumers, the counts are those of the consumer with the most marks.
        """
        counted = [*self.beside.values()] or [self]
        for book in counted:
            if book.sends:
                book.mostly_later = book.later * 2 > book.sends
        most, critical = max(counted, key=lambda book: book.later), self.critical
        verdict = EpochVerdict(self.epoch, most.sends, most.later, critical, critical or not self.options.gate)
        self.round += 1
        for book in counted:
            book.sends = book.later = 0
        return verdict

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError if an invariant is violated."""
        assert 0 <= self.later <= self.sends, f"{self.node}: {self.later} of {self.sends} were later"
        assert not self.unmarked or self.last >= 0, f"{self.node}: a mark is awaited for nothing"
        assert self.round >= 0, self.round
        for book in self.beside.values():
            book.validate()


class EpochBooks:
    """Books of the operators on this host, in a run in which hosts decide about moves. Other runs have no books."""

    def __init__(self, context: RunContext) -> None:
        self._out, self._options = context.out, context.by_epochs
        self._origin_s = context.out.now
        self._waves: tuple[Dataflow | None, dict[str, int], int] = (None, {}, 0)
        self.of: dict[str, EpochBook] = {}

    def keep(self, dataflow: Dataflow, name: str, states: Mapping[str, BookState | None] = NO_STATES) -> None:
        """Begin to count epochs for an operator on this host.

        ``states``: counts of the previous host, by consumer.
        """
        options = self._options
        if options is None or dataflow.by_name[name].kind != "operator":
            return
        if self._waves[0] is not dataflow:
            self._waves = dataflow, *waves_of(dataflow)
        _, waves, count = self._waves
        consumers = dataflow.consumers[name]
        book, *beside = (
            EpochBook(options, name, waves[name], count, self._origin_s) for _ in range(1 + len(consumers))
        )
        if len(consumers) > 1:
            book.beside = dict(zip(consumers, beside, strict=True))
        for consumer in consumers:
            if (state := states.get(consumer)) is not None:
                book.beside.get(consumer, book).take(state)
                book.round = max(book.round, state.round)
        self.of[name] = book
        self.arm(book)

    def begin_anew(self, dataflow: Dataflow, names: Iterable[str]) -> None:
        """Count epochs of nodes ``names`` in a changed graph. Counts for remaining consumers are kept."""
        for name in names:
            if name in dataflow.by_name and (name in self.of or self._options is not None):
                self.keep(dataflow, name, self.states(name, dataflow.consumers[name]))

    def states(self, name: str, consumers: Sequence[str]) -> dict[str, BookState | None]:
        """Return the counts of an operator, by consumer. A single book counts for the first of ``consumers``."""
        book = self.of.get(name)
        if book is None:
            return {}
        for consumer_book in book.beside.values():
            consumer_book.round = book.round
        return {
            consumer: consumer_book.to_state()
            for consumer, consumer_book in (book.beside or {consumers[0]: book}).items()
        }

    def arm(self, book: EpochBook) -> None:
        """Set the timer for the end of the operator's next epoch."""
        self._out.wake(Timer.EPOCH, book.due_s(self._out.now), book.node)

    def forget(self, name: str) -> None:
        """Remove the book of an operator that is no longer on this host."""
        self.of.pop(name, None)
