"""The local algorithm: every operator's host decides for it at the end of an epoch, knowing only its neighbourhood.

Rules (Ranganathan et al., section 2.3):

- **Waves.** Operators on one level of the tree form a wave; wave 0 is the farthest level from the sink. Time since the
  start of the run is divided into epochs of ``period_s / waves``, and an operator of wave *w* decides at the end of
  the epochs *e* ≡ *w* modulo ``waves``: decisions pass up the tree as a wavefront, and each operator decides once a
  period. Neighbours never decide at the same time, as they are on different levels.
- **Later.** A consumer marks, with its next demand, the producer whose partition came last. Between two of its
  decisions an operator counts what it sent and how often that was marked. It is *mostly later* when more than half was.
- **Critical.** An operator is on the critical path iff it is mostly later and its consumer, as the last demand said,
  is critical as well. The operator below the sink (the root) is critical by definition.
- **Candidates.** The operator's host, its producers' hosts, its consumer's host, and *k* others at random.
- **Decision.** The candidate with the lowest local cost; in a tie the operator stays. Only critical operators decide,
  unless ``gate`` is off.

What the paper leaves open, and how it is here:

- A sent partition counts when its mark arrives. One whose transfer outlasts the epoch counts in the next, so that at
  any time as many marks as sends have been counted.
- Without a send an epoch proves nothing, and the operator remains mostly later or not as it was (at first it is not).
- Only "mostly later" is fixed at the end of an epoch. What the consumer says of itself holds from the demand on that
  says it, so the word that an operator is critical passes down to the sources within an iteration and not in as many
  periods as the tree has levels.
- A book moves with its operator (:class:`BookState`): the host it moves to counts on.

There are no states beyond the counts, and no messages of its own: all that is said rides on demands.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.network.view import Link
from thalweg.middleware.protocol.adaptation import LocalMoves, migration_s, worth_moving
from thalweg.middleware.protocol.messages import BookState

EXPECTED_PERIOD_SHAPE = 4.0  # of the links' variation; the default of planning.expected_period
Rate = Callable[[str, str], float | None]  # bit/s from one host to another; infinite on one host, None when unknown


def waves_of(dataflow: Dataflow) -> tuple[dict[str, int], int]:
    """The wave of every operator (pinned ones as well: they pass on what is critical), and how many waves there are.

    Wave 0 is the farthest level from the sink, the last wave is the root alone. At least one wave, also without
    operators.
    """
    levels = {name: dataflow.level[name] for name in dataflow.operators}
    waves = max(levels.values(), default=1)
    return {name: waves - level for name, level in levels.items()}, waves


class Verdict(msgspec.Struct, frozen=True):
    """What an epoch came to: ``later`` of ``sends`` were marked; whether the operator was ``critical`` at its end.

    ``considered``: whether it is to decide where to be (critical, or the gate is off).
    """

    epoch: int
    sends: int
    later: int
    critical: bool
    considered: bool


class EpochBook:
    """What one operator's host counts for it. Times are emulated seconds on the host's clock.

    ``wave`` and ``waves`` are those of :func:`waves_of`; ``origin_s`` is when the run started.
    """

    __slots__ = (
        "consumer_critical",
        "last",
        "later",
        "mostly_later",
        "node",
        "options",
        "origin_s",
        "round",
        "sends",
        "unmarked",
        "wave",
        "waves",
    )

    def __init__(self, options: LocalMoves, node: str, wave: int, waves: int, origin_s: float) -> None:
        assert 0 <= wave < waves, f"operator {node!r} is of wave {wave} of {waves}"
        self.options, self.node, self.wave, self.waves, self.origin_s = options, node, wave, waves, origin_s
        self.round = 0  # the period whose decision comes next
        self.sends = 0  # outputs of this epoch whose marks have come
        self.later = 0  # of these, how many the consumer got last of its inputs
        self.unmarked = False  # the last output was sent and its mark has not come
        self.last = -1  # index of the last output sent
        self.mostly_later = False
        self.consumer_critical = False

    @classmethod
    def from_state(
        cls, options: LocalMoves, node: str, wave: int, waves: int, origin_s: float, state: BookState
    ) -> EpochBook:
        """The book of an operator that has come from another host."""
        book = cls(options, node, wave, waves, origin_s)
        for name in BookState.__struct_fields__:
            setattr(book, name, getattr(state, name))
        return book

    def to_state(self) -> BookState:
        return BookState(*[getattr(self, name) for name in BookState.__struct_fields__])

    @property
    def epoch(self) -> int:
        """Number of the epoch that :meth:`close_epoch` closes."""
        return self.round * self.waves + self.wave

    @property
    def critical(self) -> bool:
        """Whether the operator is on the critical path: what it tells its producers with a demand."""
        root = self.wave == self.waves - 1
        return root or (self.mostly_later and self.consumer_critical)

    def due_s(self, now: float) -> float:
        """The end of this operator's next epoch: the first after ``now`` that was not closed.

        When it has come, call :meth:`close_epoch`, and then this again. Ends that passed unused (the operator was on
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

    def on_sent(self, index: int) -> None:
        """Output ``index`` was dispatched; one that is dispatched again counts once."""
        if index > self.last:
            self.last = index
            self.unmarked = True

    def on_mark(self, later: bool, consumer_critical: bool) -> None:
        """The consumer's demand said whether the last output was the later one, and whether itself is critical."""
        self.consumer_critical = consumer_critical
        if self.unmarked:
            self.unmarked = False
            self.sends += 1
            self.later += later

    def close_epoch(self) -> Verdict:
        """The end of the epoch has come: what was counted, and whether the operator is critical from now on."""
        if self.sends:
            self.mostly_later = self.later * 2 > self.sends
        critical = self.critical
        verdict = Verdict(self.epoch, self.sends, self.later, critical, critical or not self.options.gate)
        self.round += 1
        self.sends = self.later = 0
        return verdict

    def validate(self) -> None:
        """The invariants; AssertionError tells which does not hold."""
        assert 0 <= self.later <= self.sends, f"{self.node}: {self.later} of {self.sends} were later"
        assert not self.unmarked or self.last >= 0, f"{self.node}: a mark is awaited for nothing"
        assert self.round >= 0, self.round


def candidates(
    options: LocalMoves,
    node: str,
    epoch: int,
    producers_hosts: Sequence[str],
    consumer_host: str,
    current: str,
    all_hosts: Iterable[str],
) -> list[str]:
    """Where the operator could be: its host first, its producers' hosts, its consumer's, and ``k`` others; none twice.

    The others are drawn uniformly from ``all_hosts`` (in whatever order), anew for every operator, epoch and seed, and
    the same wherever it is worked out.
    """
    near = dict.fromkeys([current, *producers_hosts, consumer_host])

    def rank(host: str) -> bytes:
        return hashlib.blake2b(repr((options.seed, node, epoch, host)).encode(), digest_size=16).digest()

    far = sorted(set(all_hosts) - near.keys(), key=rank) if options.k else []
    return [*near, *far[: options.k]]


class Decision(msgspec.Struct, frozen=True):
    """Where the operator should be. As long as ``needs`` names links, the decision is open, and ``move`` is False.

    ``costs``: seconds on each candidate whose cost is known; ``current_s`` (infinite when unknown) and ``best_s`` are
    two of them. ``why``: the reason for moving or staying, for the record.
    """

    best: str
    current_s: float
    best_s: float
    costs: dict[str, float]
    needs: frozenset[Link]
    move: bool
    why: str


def decide(
    options: LocalMoves,
    candidates: Sequence[str],
    current: str,
    inputs: Sequence[tuple[str, float]],
    output: tuple[str, float],
    compute_s: float,
    rate: Rate,
    state_bytes: float,
    *,
    startup_s: float = 0.0,
    host_compute_factor: Mapping[str, float] | None = None,
    cores: int = 1,
) -> Decision:
    """Choose among ``candidates`` by the local cost; ``current`` is where the operator is.

    ``inputs``: host of each producer and bytes of its partition; ``output``: the consumer's host and bytes;
    ``compute_s``: seconds of computing on a host of factor 1; ``rate``: what is known of the network, in bit/s (0:
    unusable). ``startup_s``: start-up cost of a message between two hosts; ``cores``: computations that a host runs at
    once; ``host_compute_factor``: as in planning.CostParameters.

    Links that are unknown and decide are in ``needs``: all of the current host's, and those of candidates that may yet
    be better than the best known, by a lower bound with unknown links as infinitely fast (branch and bound); lastly,
    with hysteresis, that which would carry the state. Call again when they are known, or taken for something.
    """
    factors = host_compute_factor or {}
    bounds: dict[str, float] = {}
    unknown: dict[str, frozenset[Link]] = {}
    for host in dict.fromkeys([current, *candidates]):
        seconds = compute_s * factors.get(host, 1.0)
        bounds[host], unknown[host] = _bound_s(options, host, inputs, output, seconds, rate, startup_s, cores)
    costs = {host: cost_s for host, cost_s in bounds.items() if not unknown[host]}
    current_s = costs.get(current, math.inf)
    best = min(costs, key=costs.__getitem__, default=current)  # the current host, then the order, wins a tie
    best_s = costs.get(best, math.inf)
    order = {host: i for i, host in enumerate(bounds)}  # an earlier one with the same cost would win
    better = [host for host, bound_s in bounds.items() if (bound_s, order[host]) < (best_s, order[best])]
    open_links = unknown[current].union(*[unknown[host] for host in better])

    def answer(move: bool, why: str, needs: frozenset[Link] = frozenset()) -> Decision:
        return Decision(best, current_s, best_s, costs, needs, move, why)

    if open_links:
        return answer(False, f"{len(open_links)} links are unknown", open_links)
    if not best_s < current_s:
        return answer(False, f"no better of {len(costs)} hosts")
    moving_s = 0.0
    if options.hysteresis > 0 and state_bytes > 0:
        carrying_bps = rate(current, best)
        if carrying_bps is None:
            return answer(False, "the link that would carry the state is unknown", frozenset({Link(current, best)}))
        moving_s = migration_s(state_bytes, carrying_bps)
    if not worth_moving(current_s, best_s, options.period_s, moving_s, options.hysteresis):
        return answer(False, f"{best} is better but does not repay {moving_s:.3g} s of moving")
    now = f"{current_s:.3g} s" if math.isfinite(current_s) else "a link that cannot be used"
    return answer(True, f"{best_s:.3g} s instead of {now}")


def _bound_s(
    options: LocalMoves,
    host: str,
    inputs: Sequence[tuple[str, float]],
    output: tuple[str, float],
    compute_s: float,
    rate: Rate,
    startup_s: float,
    cores: int,
) -> tuple[float, frozenset[Link]]:
    """The local cost on ``host`` with unknown links as infinitely fast, and these links."""
    unknown: set[Link] = set()

    def transfer_s(source: str, target: str, size_bytes: float) -> float:
        if source == target:
            return 0.0
        rate_bps = rate(source, target)
        if rate_bps is None:
            unknown.add(Link(source, target))
            return startup_s
        return startup_s + size_bytes * 8 / rate_bps if rate_bps > 0 else math.inf

    arriving = [(source, transfer_s(source, host, size_bytes)) for source, size_bytes in inputs]
    leaving_s = transfer_s(host, *output)
    if options.cost in ("critical-path", "serialised-critical-path"):
        together = max if options.cost == "critical-path" else sum
        arrived_s = together([0.0, *(seconds for _, seconds in arriving)])
        return arrived_s + compute_s + leaving_s, frozenset(unknown)
    links: dict[str, float] = {}
    for source, seconds in arriving:
        links[source] = links.get(source, 0.0) + seconds
    loads = [*links.values(), leaving_s, compute_s / cores]
    largest_s = max(loads)
    if options.cost == "period" or largest_s == 0 or math.isinf(largest_s):
        return largest_s, frozenset(unknown)
    norm = sum((load / largest_s) ** EXPECTED_PERIOD_SHAPE for load in loads) ** (1 / EXPECTED_PERIOD_SHAPE)
    return largest_s * norm, frozenset(unknown)
