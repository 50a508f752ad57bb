"""What an operator's host counts for it, so that it can decide at the end of an epoch whether the operator is critical.

Rules (Ranganathan et al., section 2.3):

- **Waves.** Operators on one level of the tree form a wave; wave 0 is the farthest level from the sink. Time since the
  start of the run is divided into epochs of ``period_s / waves``, and an operator of wave *w* decides at the end of
  the epochs *e* ≡ *w* modulo ``waves``: decisions pass up the tree as a wavefront, and each operator decides once a
  period. Neighbours never decide at the same time, as they are on different levels.
- **Later.** A consumer marks, with its next demand, the producer whose partition came last. Between two of its
  decisions an operator counts what it sent and how often that was marked. It is *mostly later* when more than half was.
- **Critical.** An operator is on the critical path iff it is mostly later and its consumer, as the last demand said,
  is critical as well. The operator below the sink (the root) is critical by definition. Of several consumers each
  has its own counts: an operator is critical if it is through any of them.
- **Decision.** Only critical operators decide, unless ``gate`` is off; how is in ``steering.neighbourhood``.

What the paper leaves open, and how it is here:

- A sent partition counts when its mark arrives. One whose transfer outlasts the epoch counts in the next, so that at
  any time as many marks as sends have been counted.
- Without a send an epoch proves nothing, and the operator remains mostly later or not as it was (at first it is not).
- Only "mostly later" is fixed at the end of an epoch. What the consumer says of itself holds from the demand on that
  says it, so the word that an operator is critical passes down to the sources within an iteration and not in as many
  periods as the tree has levels.
- A book moves with its operator (``BookState``): the host it moves to counts on.

There are no states beyond the counts, and no messages of its own: all that is said rides on demands.
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
    """The wave of every operator (pinned ones as well: they pass on what is critical), and how many waves there are.

    Wave 0 is the farthest level from the sink, the last wave is the root alone. At least one wave, also without
    operators.
    """
    levels = {name: dataflow.level[name] for name in dataflow.operators}
    waves = max(levels.values(), default=1)
    return {name: waves - level for name, level in levels.items()}, waves


NO_STATES: Mapping[str, BookState | None] = MappingProxyType({})


class EpochVerdict(msgspec.Struct, frozen=True):
    """What an epoch came to: ``later`` of ``sends`` were marked; whether the operator was ``critical`` at its end.

    ``considered``: whether it is to decide where to be (critical, or the gate is off).
    """

    epoch: int
    sends: int
    later: int
    critical: bool
    considered: bool


@dataclass(slots=True)
class EpochBook:
    """What one operator's host counts for it. Times are emulated seconds on the host's clock.

    ``wave`` and ``waves`` are those of ``waves_of``; ``origin_s`` is when the run started.
    """

    options: LocalMoves
    node: str
    wave: int
    waves: int
    origin_s: float
    round: int = 0  # the period whose decision comes next
    sends: int = 0  # outputs of this epoch whose marks have come
    later: int = 0  # of these, how many the consumer got last of its inputs
    unmarked: bool = False  # the last output was sent and its mark has not come
    last: int = -1  # index of the last output sent
    mostly_later: bool = False
    consumer_critical: bool = False
    beside: dict[str, EpochBook] = field(default_factory=dict)  # of several consumers each one's counts

    def __post_init__(self) -> None:
        assert 0 <= self.wave < self.waves, f"operator {self.node!r} is of wave {self.wave} of {self.waves}"

    def take(self, state: BookState) -> None:
        """Count on where the operator's last host left off, for one consumer."""
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
        """Whether the operator is on the critical path: what it tells its producers with a demand."""
        root = self.wave == self.waves - 1
        counted = self.beside.values() or (self,)
        return root or any(book.mostly_later and book.consumer_critical for book in counted)

    def due_s(self, now: float) -> float:
        """The end of this operator's next epoch: the first after ``now`` that was not closed.

        When it has come, call ``close_epoch``, and then this again. Ends that passed unused (the operator was on
        its way) are skipped.
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
        """Output ``index`` was dispatched; one that is dispatched again counts once."""
        if self.beside:
            self.beside[consumer].on_sent(index)
        elif index > self.last:
            self.last = index
            self.unmarked = True

    def on_mark(self, later: bool, consumer_critical: bool, consumer: str = "") -> None:
        """The consumer's demand said whether the last output was the later one, and whether itself is critical."""
        if self.beside:
            self.beside[consumer].on_mark(later, consumer_critical)
            return
        self.consumer_critical = consumer_critical
        if self.unmarked:
            self.unmarked = False
            self.sends += 1
            self.later += later

    def close_epoch(self) -> EpochVerdict:
        """The end of the epoch has come: what was counted, and whether the operator is critical from now on.

        What is told of several consumers are the counts of the one that marked the most as later.
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
        """The invariants; AssertionError tells which does not hold."""
        assert 0 <= self.later <= self.sends, f"{self.node}: {self.later} of {self.sends} were later"
        assert not self.unmarked or self.last >= 0, f"{self.node}: a mark is awaited for nothing"
        assert self.round >= 0, self.round
        for book in self.beside.values():
            book.validate()


class EpochBooks:
    """The books of the operators that are here, where operators decide for themselves; none elsewhere."""

    def __init__(self, context: RunContext) -> None:
        self._out, self._options = context.out, context.by_epochs
        self._origin_s = context.out.now
        self._waves: tuple[Dataflow | None, dict[str, int], int] = (None, {}, 0)
        self.of: dict[str, EpochBook] = {}

    def keep(self, dataflow: Dataflow, name: str, states: Mapping[str, BookState | None] = NO_STATES) -> None:
        """Count epochs for an operator that is here, from where its last host left off: of each consumer."""
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
        """Count epochs of these nodes as of another graph: with what was counted of consumers that they still have."""
        for name in names:
            if name in dataflow.by_name and (name in self.of or self._options is not None):
                self.keep(dataflow, name, self.states(name, dataflow.consumers[name]))

    def states(self, name: str, consumers: Sequence[str]) -> dict[str, BookState | None]:
        """What is counted of an operator's consumers, the first of which was perhaps its only one."""
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
        """Wake up at the end of the operator's next epoch."""
        self._out.wake(Timer.EPOCH, book.due_s(self._out.now), book.node)

    def forget(self, name: str) -> None:
        """The operator is not here any more."""
        self.of.pop(name, None)
