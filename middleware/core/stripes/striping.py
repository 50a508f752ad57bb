"""Striping of one stream over several trees, at the client: which tree carries which partition.

Each tree is a run of its own, a *stripe* (``protocol.stripes``), with its own barrier, epochs, hand-overs, shapes and
generations. The client assigns the indices of one stream to the stripes, and delivers the partitions to the application
in order.

Rules:

R1. A stripe gets indices ahead, at most as many as its tree can have under way, and one for a partition made meanwhile.
    A tree can have ``Install.ahead`` partitions under way for each level. Up to ``MANY`` stripes share ``FULL`` times
    this number, but a stripe gets at least ``LEAST``. Trees need not be full, and an index assigned early may be
    delivered late. The open indices of a stripe are sent again until it delivers.
R2. If stripes are equally fast, the stripe that asks next gets the next index. Otherwise a stripe gets the index that
    will be next when the stripe can deliver. It leaves out as many indices as the remaining stripes will deliver until
    then, at most ``MOST_LEFT``. These indices are remembered. So a slow tree gets few partitions, and few partitions
    wait for it. The time of a stripe for a partition is smoothed, without partitions for which the stripe was kept
    waiting.
R3. The sink of a stripe is asked for its next partition if this is the stream's next partition, or if there is room. At
    most ``window`` - 1 partitions wait for an earlier partition. A partition without room is dropped, and its index is
    assigned again.
R4. A stripe stalls if the stream has waited for it for ``STALLED`` times its usual time. Then the next index is also
    assigned to the stripe that would deliver soonest. The first delivery counts. The second delivery is a known
    duplicate, and dropped. If the pace of a stripe is unknown, the limit depends on the first partitions of the
    stripes. It is ``LATE`` times their median time if at least half of the stripes have delivered, otherwise
    ``STALLED`` times the longest.
R5. A stripe that has lost a host cannot go on, and leaves its open indices to the remaining stripes. The stream fails
    with its last stripe, or if code fails.
R6. A partition past the end of a source is marked (``parcels``). The stream ends before the first such partition.
R7. If a stripe begins its next generation, it gets its indices again, from its first partition there on. The message is
    repeated as in R1 until the stripe delivers a partition that was assigned later. Its hosts may get the first message
    before the run.
R8. The stream does not wait for a stripe that has become slow. The delivery by the stripe is compared with the time at
    which the stream needs the partition, and with the delivery by another stripe. If it is ``LATE`` times as late as
    both, the other stripe gets the index as well, before the stream waits. If both become slow, a third stripe gets the
    index, and so on. A late stripe is expected to be late by the same time again. A stripe without a delivery for the
    limit of R4 is expected to be late for ever.
R9. If the stream feeds an upper graph (``upper_feed``), a part of a partition may be past its end alone. The stream
    ends with the first partition with all parts past their ends, and delivers this partition as well. On demand, the
    stream restarts with an earlier partition. From there on, partitions that are no longer here are made again.
R10. New stripes with more or fewer outputs may take over. When every new stripe is ready, the old stripes get no more
    indices, and end after their open indices. If a new stripe fails before, the new stripes are dropped. Until the
    takeover the old stripes go on, even if a stripe fails in nodes for queries only (``theirs``). These queries are
    notified, and the remaining stripes carry its open indices. Without a remaining stripe, the stream waits for the new
    stripes.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.context.outbox import Alarm, Outbox, Timer
from thalweg.middleware.core.stripes.notes import IndicesAssigned, PlacesFailed, StreamNotes, TreesReplaced
from thalweg.middleware.core.stripes.stream_runs import StreamRuns
from thalweg.middleware.core.stripes.upper_feed import unevenly
from thalweg.middleware.parcels import PAST_END, is_past_end, past_end_of
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId

SMOOTHING = 0.3  # weight of the last partition in the time that a stripe takes for one
LATE = 2.0  # times the time of other stripes
STALLED = 4.0  # times the usual time of a stripe for a partition
UNKNOWN = 2  # partitions under way in a stripe of unknown pace
LEAST = 3  # partitions under way in a stripe, with any number of stripes
FULL, MANY = 3, 9  # up to MANY trees have as many partitions under way as FULL full trees
MOST_LEFT = 4096  # indices that a stripe leaves for the other stripes at most
KEPT = m.MOST_GIVEN // 2  # delivered partitions that may have to be made again (R7)


def most_open(depth: int, count: int) -> int:
    """Return how many open indices a stripe of known pace may have, beside ``count`` - 1 stripes (R1).

    ``depth``: number of partitions that its tree can have under way.
    """
    most = depth + 1
    return min(most, max(LEAST, math.ceil(FULL * most / min(count, MANY))))


class OpenPartition(msgspec.Struct, frozen=True):
    """Undelivered partition of a stripe: its number in the stripe, and its index in the stream."""

    partition: int
    index: int


class StripeTakeover(NamedTuple):
    """Outputs of a stripe that takes over (R10), as in ``TreesRequested``.

    ``places``: by place in the upper graph, the input of the stripe's sink. ``theirs``: by node that only queries need,
    the places.
    """

    places: dict[int, int] | None
    theirs: dict[str, tuple[int, ...]]


class StripeState:
    """State of one stripe at the client: indices, pace, takeover and restart."""

    __slots__ = (
        "anew", "asked_s", "coming", "delivered_s", "fills_s", "leaving", "number", "open", "over", "past", "period_s",
        "places", "ready", "run", "share", "theirs", "told_s", "upto", "wait_s",
    )  # fmt: skip

    def __init__(
        self, number: int, run: RunId, share: float, wait_s: float, takes_over: StripeTakeover | None = None
    ) -> None:
        self.number, self.run, self.share = number, run, share
        self.ready = self.over = self.leaving = False
        self.coming = takes_over is not None  # R10: the stripe waits until all that take over are ready
        self.places, self.theirs = takes_over or StripeTakeover(None, {})
        self.open: deque[OpenPartition] = deque()
        self.past: deque[int] = deque(maxlen=KEPT)  # indices in the stream of its last delivered partitions
        self.upto = 0  # number of its partitions with an assigned index, delivered ones included
        self.asked_s: float | None = None  # time since which its sink gathers
        self.delivered_s = -math.inf
        self.period_s: float | None = None
        self.fills_s: float | None = None  # time of its first partition, through its whole tree
        self.told_s, self.wait_s = 0.0, wait_s
        # R7: first partition of the present generation, and ``upto`` at its beginning
        self.anew: tuple[int, int] | None = None

    @property
    def works(self) -> bool:
        """Return whether the stripe may have open partitions."""
        return self.ready and not (self.over or self.coming)

    @property
    def carries(self) -> bool:
        """Return whether the stripe can be assigned further indices."""
        return self.works and not self.leaving

    def has(self, index: int) -> bool:
        """Return whether an index is assigned to the stripe, and its partition is not delivered."""
        return any(entry.index == index for entry in self.open)


class StripePace(NamedTuple):
    """Pace of a stripe: seconds from now to its next partition, and seconds for each partition."""

    first_s: float
    period_s: float


class Striping:
    """State of one striped stream at the client: stripes, partitions in the window, and indices without a stripe."""

    def __init__(self, out: Outbox, event: e.StripesRequested, limits: CoreConfig, runs: StreamRuns) -> None:
        self._out, self._limits, self._runs = out, limits, runs
        self._alarm = Alarm(out, Timer.STRIPES)
        self.stripes = [
            StripeState(number, request.install.run, share, limits.retry_s)
            for number, (request, share) in enumerate(zip(event.stripes, event.shares, strict=True))
        ]
        self.count = len(self.stripes)  # stripes so far, including ended ones
        self.window = event.window
        (self._sink,) = event.stripes[0].install.dataflow.sinks
        self._feeds = event.above is not UNSET
        self.next = event.start  # next partition of the application
        self.held: dict[int, e.Deliver] = {}  # partitions before their turn, or before the demand
        self._wanted = False  # the application demands the next partition
        self._begun = self._over = False
        self._top = event.start  # no stripe has had this index or a later index
        self._free: list[int] = []  # earlier indices that no stripe has
        self._end = None if event.partitions is None else event.start + event.partitions
        self._uneven = ""
        self.since = event.start  # R10: only stripes of the last takeover carry this index and later indices
        self._waits_for_others = False
        self._next_s = 0.0  # start of the wait for the next partition

    # --- commands of the stripes' runs --------------------------------------------------------------------

    def on_ready(self, stripe: StripeState) -> StreamNotes:
        """Begin to use a stripe. Every needed host has installed the run of the stripe."""
        stripe.ready = True
        if stripe.coming:
            yield from self._take_over()
        if not self._begun and not self._over:
            self._begun = True
            self._out.emit(e.Ready(self._out.run))
        yield from self._go_on()

    def on_delivered(self, stripe: StripeState, part: e.Deliver) -> StreamNotes:
        """Handle the delivery of a stripe: update the pace, and hold the partition for its turn."""
        now = self._out.now
        if stripe.over or not stripe.open or stripe.open[0].partition != part.index:
            self._record(stripe, "unexpected", node=part.sink, index=part.index)
            return
        entry = stripe.open.popleft()
        if stripe.asked_s is not None and stripe.delivered_s >= stripe.asked_s:  # R2: the sink was asked again at once
            self._took(stripe, now - stripe.delivered_s)
        elif stripe.asked_s is not None and stripe.fills_s is None:
            stripe.fills_s = now - stripe.asked_s
        elif stripe.asked_s is not None and stripe.period_s is None:
            self._took(stripe, now - stripe.asked_s)
        stripe.asked_s, stripe.delivered_s, stripe.wait_s = None, now, self._limits.retry_s
        stripe.past.append(entry.index)
        if stripe.anew is not None and entry.partition >= stripe.anew[1]:
            stripe.anew = None
        values = part.value if len(part.sizes) > 1 else (part.value,)
        past = past_end_of(values)
        if self._feeds:  # R9: each part of a partition may be past its end alone
            if all(map(is_past_end, values)):
                self._end_before(entry.index + 1)
            self._take(stripe, entry, part)
        elif past is None:
            self._take(stripe, entry, part)
        else:
            # R6: the stream ends before the first partition that is past the end of a source
            self._end_before(entry.index, "" if past.body == PAST_END.body else unevenly(entry.index))
        yield from self._go_on()

    def _took(self, stripe: StripeState, took_s: float) -> None:
        known_s = stripe.period_s
        stripe.period_s = took_s if known_s is None else known_s + SMOOTHING * (took_s - known_s)

    def _take(self, stripe: StripeState, given: OpenPartition, part: e.Deliver) -> None:
        index = given.index
        twice = index < self.next or index in self.held
        late = self._end is not None and index >= self._end
        room = index == self.next or self._waits() < self.window - 1
        accepted = not (twice or late) and room
        about = {"stripe": stripe.number, "partition": given.partition, "kept": accepted}
        self._record(stripe, "carried", node=part.sink, index=index, size_bytes=part.size_bytes, detail=about)
        if accepted:
            self.held[index] = msgspec.structs.replace(part, run=self._out.run, index=index, places=stripe.places)
        else:
            self._give_up(index)  # R3: the index of a partition without room is assigned again

    def _end_before(self, index: int, uneven: str = "") -> None:
        """Set the end of the stream before partition ``index``, unless the stream ends earlier."""
        if self._end is None or index < self._end:
            self._end, self._uneven = index, uneven
            self._free = [position for position in self._free if position < index]
            self.held = {position: part for position, part in self.held.items() if position < index}

    def on_failed(self, stripe: StripeState, failed: e.Fail, nodes: Collection[str] = ()) -> StreamNotes:
        """Handle the failure of a stripe's run (R5, R10).

        ``nodes``: the nodes that have failed, or were on a lost host.
        """
        if stripe.over or self._over:
            return
        if stripe.coming:
            yield from self._drop_coming(failed.reason)
            return
        self._leave(stripe)
        places = {place for node in nodes for place in stripe.theirs.get(node, ())}
        if places and all(node in stripe.theirs for node in nodes):
            self._waits_for_others = True
            yield PlacesFailed(frozenset(places), failed)
        elif not failed.lost or self._nobody_left:
            self._out.fail(
                failed.reason, node=failed.node, host=failed.host, lost=failed.lost, cause=failed.cause,
            )  # fmt: skip
            self._over = True
            return
        self._record(stripe, "fault", peer=failed.host, detail={"about": "tree", "what": failed.reason})
        yield e.RunAbandoned(stripe.run)
        yield from self._go_on()

    @property
    def _nobody_left(self) -> bool:
        return all(stripe.over for stripe in self.stripes) and not self._waits_for_others

    def _record(self, stripe: StripeState, kind: str, **fields: Any) -> None:
        """Record an event about a stripe with the stripe's run, as the stream has no records."""
        self._out.of(self._runs.current_id(stripe.run)).record(kind, **fields)

    def _leave(self, stripe: StripeState) -> None:
        """End a stripe, and free its open indices for the remaining stripes."""
        stripe.over, stripe.asked_s = True, None
        left = [entry.index for entry in stripe.open]
        stripe.open.clear()
        for index in left:
            self._give_up(index)

    def _give_up(self, index: int) -> None:
        """Free an index for assignment, if the stream still needs the partition and no stripe has the index."""
        if self._is_wanted(index) and not any(stripe.has(index) for stripe in self.stripes):
            insort(self._free, index)

    def _is_wanted(self, index: int) -> bool:
        """Return whether the stream still needs a partition: not delivered, not held, and before the end."""
        before_end = self._end is None or index < self._end
        return self.next <= index and before_end and index not in self.held

    def on_follows(self, stripe: StripeState, first: int) -> StreamNotes:
        """Handle the next generation of a stripe, in which some nodes begin with partition ``first`` (R7)."""
        oldest = stripe.upto - len(stripe.open) - len(stripe.past)
        if first < oldest:
            why = f"stripe {stripe.number} would begin anew with its partition {first}, of which nothing is known"
            yield from self.on_failed(stripe, e.Fail(stripe.run, why, lost=True))
            return
        stripe.anew, stripe.wait_s = (first, stripe.upto), self._limits.retry_s
        yield from self._announce_indices(stripe)
        self._wake()

    # --- R10: stripes that take over ------------------------------------------------------------------------

    def replace(self, requests: Sequence[e.RunRequested], what: Sequence[StripeTakeover]) -> None:
        """Add new stripes, which take over when every new stripe is ready (R10)."""
        shares = [stripe.share for stripe in self.stripes if not (stripe.leaving or stripe.coming)]
        for place, (request, takes_over) in enumerate(zip(requests, what, strict=True)):
            share = shares[place] if place < len(shares) else 1 / len(requests)
            self.stripes.append(StripeState(self.count, request.install.run, share, self._limits.retry_s, takes_over))
            self.count += 1

    def forget(self, stripe: StripeState) -> None:
        """Remove a stripe whose run is over, after its replacement or a failed takeover."""
        if stripe.over and (stripe.leaving or stripe.coming):
            self.stripes.remove(stripe)

    def _take_over(self) -> StreamNotes:
        coming = [stripe for stripe in self.stripes if stripe.coming and not stripe.over]
        if not all(stripe.ready for stripe in coming):
            return
        for stripe in self.stripes:
            stripe.leaving = stripe.leaving or not stripe.coming
            stripe.coming = False
        self.since, self._waits_for_others = self._top, False
        yield TreesReplaced(coming[0].number)

    def _drop_coming(self, why: str) -> StreamNotes:
        for stripe in [stripe for stripe in self.stripes if stripe.coming and not stripe.over]:
            stripe.over = True
            yield e.RunAbandoned(stripe.run)
        self._waits_for_others = False
        yield TreesReplaced(-1, why)
        yield from self._go_on()

    def _see_who_leaves(self) -> StreamNotes:
        for stripe in self.stripes:
            if stripe.leaving and not stripe.over and not stripe.open:
                stripe.over = True
                yield e.RunAbandoned(stripe.run)

    # --- events of the application ------------------------------------------------------------------------

    def on_next(self) -> StreamNotes:
        """Handle the demand of the application for the next partition."""
        if not self._wanted:
            self._wanted, self._next_s = True, self._out.now
            yield from self._go_on()

    def begin_anew(self, first: int) -> StreamNotes:
        """Restart the stream with partition ``first``, as demanded by its upper graph (R9)."""
        again = range(first, self.next)
        self.next = first
        while self._waits() > max(0, self.window - 1):  # R3: the former next partition waits as well now
            last = max(self.held)
            del self.held[last]
            self._give_up(last)
        for index in again:
            self._give_up(index)
        yield from self._go_on()

    def on_timer(self) -> StreamNotes:
        """Repeat messages to stripes without a delivery, and assign indices of stalled stripes again."""
        self._alarm.rung()
        now = self._out.now
        for stripe in self.stripes:
            if stripe.works and stripe.asked_s is not None and now >= self._repeat_after_s(stripe):
                yield from self._announce_indices(stripe)
                stripe.wait_s = min(2 * stripe.wait_s, self._limits.retry_max_s)
        yield from self._go_on()

    # --- assignment and delivery --------------------------------------------------------------------------

    def _go_on(self) -> StreamNotes:
        if not self._over:
            self._hand_out()
        if self._over:
            return
        paces = {
            stripe: StripePace(self._first_s(stripe), self._period_s(stripe))
            for stripe in self.stripes
            if stripe.carries
        }
        for stripe in sorted(paces, key=lambda stripe: paces[stripe].first_s):
            if self._fill(stripe, paces):
                yield from self._announce_indices(stripe)
        yield from self._reassign()
        yield from self._assign_ahead(paces)
        for stripe in self.stripes:
            if stripe.works and stripe.open and stripe.asked_s is None and self._may_ask(stripe):
                stripe.asked_s = self._out.now
                yield e.NextRequested(stripe.run)
        yield from self._see_who_leaves()
        self._wake()

    def _hand_out(self) -> None:
        """Deliver the next partition to the application if it is demanded and here, or report the end."""
        over = self._end is not None and self.next >= self._end
        if self._wanted and over:
            self._over = True
            self._out.emit(e.Deliver(self._out.run, self.next, end=True, uneven=self._uneven, sink=self._sink))
        elif self._wanted and self.next in self.held:
            self._wanted = False
            self._out.emit(self.held.pop(self.next))
            self.next += 1
            self._next_s = self._out.now
        elif not over and self._begun and self._nobody_left and self.next not in self.held:
            self._over = True
            self._out.fail(f"no stripe of the stream is left that could carry partition {self.next}")

    def _fill(self, stripe: StripeState, paces: Mapping[StripeState, StripePace]) -> bool:
        """Assign indices to a stripe up to its limit (R1). Return whether the stripe got more indices."""
        before = stripe.upto
        ahead = self._ahead(stripe)
        while len(stripe.open) < ahead and (index := self._choose(stripe, paces)) is not None:
            self._give(stripe, index)
        return stripe.upto > before

    def _ahead(self, stripe: StripeState) -> int:
        """Return how many open indices a stripe may have (R1)."""
        if stripe.period_s is None:
            return UNKNOWN
        count = plain_sum(not (sibling.over or sibling.leaving or sibling.coming) for sibling in self.stripes)
        return most_open(self._runs.depth(stripe.run), count)

    def _give(self, stripe: StripeState, index: int) -> None:
        stripe.open.append(OpenPartition(stripe.upto, index))
        stripe.upto += 1

    def _choose(self, stripe: StripeState, paces: Mapping[StripeState, StripePace]) -> int | None:
        """Choose the index for the next partition of a stripe, and remove it from the free indices (R2).

        None: the remaining stripes will deliver every partition up to the end of the stream before.
        """
        then_s = paces[stripe].first_s + len(stripe.open) * paces[stripe].period_s
        skip = 0
        for other, (first_s, period_s) in paces.items():
            if other is not stripe and then_s > first_s:
                skip += max(0, math.ceil((then_s - first_s) / period_s - 1e-9) - len(other.open))
        skip = min(skip, MOST_LEFT)
        if skip < len(self._free):
            return self._free.pop(skip)
        index = self._top + skip - len(self._free)
        if self._end is not None and index >= self._end:
            return None
        self._free.extend(range(self._top, index))
        self._top = index + 1
        return index

    def _period_s(self, stripe: StripeState) -> float:
        """Return the time that a stripe takes for a partition.

        For a stripe of unknown pace, the time follows from its share and its first partition, whose time may be still
        growing. The stripes of known pace tell the mean time by share, and the mean part of the first partition's time.
        """
        if stripe.period_s is not None:
            late_s = 0.0 if stripe.asked_s is None else self._out.now - max(stripe.asked_s, stripe.delivered_s)
            return max(stripe.period_s, late_s, 1e-9)
        known = [sibling for sibling in self.stripes if sibling.period_s is not None]
        by_share = plain_sum(sibling.period_s * sibling.share for sibling in known if sibling.period_s is not None)
        period_s = (by_share / len(known) if known else 1.0) / stripe.share
        fills_s = stripe.fills_s or (0.0 if stripe.asked_s is None else self._out.now - stripe.asked_s)
        parts = [sibling.period_s / sibling.fills_s for sibling in known if sibling.period_s and sibling.fills_s]
        return max(period_s, fills_s * plain_sum(parts) / len(parts) if parts else 0.0, 1e-9)

    def _first_s(self, stripe: StripeState) -> float:
        """Return the time from now to a stripe's next partition."""
        if stripe.delivered_s == -math.inf:
            return self._period_s(stripe)
        return max(0.0, stripe.delivered_s + self._period_s(stripe) - self._out.now)

    def _waits(self) -> int:
        """Return how many partitions are held for an earlier partition."""
        return len(self.held) - (self.next in self.held)

    def _may_ask(self, stripe: StripeState) -> bool:
        """Return whether the sink of a stripe may be asked for its next partition (R3)."""
        index = stripe.open[0].index
        if index == self.next or stripe.has(self.next):
            return True
        early = [
            sibling for sibling in self.stripes if sibling.asked_s is not None and sibling.open[0].index > self.next
        ]
        return self._waits() + len(early) < self.window - 1

    def _reassign(self) -> StreamNotes:
        """Assign the next index to the quickest other stripe, if the index is free or its stripe stalls (R4)."""
        nobodys = self._free[:1] == [self.next]
        candidates = self._without_next()
        if not candidates or not (nobodys or self._stalled_s() <= self._out.now):
            return
        other = min(candidates, key=lambda stripe: self._first_s(stripe) + len(stripe.open) * self._period_s(stripe))
        if nobodys:
            del self._free[0]
        self._record(other, "asked again", index=self.next, detail={"stripe": other.number})
        self._give(other, self.next)
        yield from self._announce_indices(other)

    def _assign_ahead(self, paces: Mapping[StripeState, StripePace]) -> StreamNotes:
        """Assign indices of slow stripes to faster stripes as well, before the stream waits for them (R8)."""
        known = {
            stripe: self._waits_s(stripe, pace.first_s) for stripe, pace in paces.items() if stripe.period_s is not None
        }
        if len(known) < 2:
            return
        stream_s = 1 / plain_sum(1 / paces[stripe].period_s for stripe in known)
        free_s = {stripe: waits_s + len(stripe.open) * paces[stripe].period_s for stripe, waits_s in known.items()}
        soonest_s: dict[int, float] = {}  # by index, the earliest delivery by the stripes that have it
        for stripe, pace in paces.items():
            waits_s = known.get(stripe, 0.0)
            if stripe.period_s is None:
                waits_s = math.inf if self._stuck_s(stripe) <= self._out.now else pace.first_s
            for place, entry in enumerate(stripe.open):
                then_s = waits_s + place * pace.period_s
                soonest_s[entry.index] = min(then_s, soonest_s.get(entry.index, math.inf))
        for index, then_s in soonest_s.items():
            late_s = LATE * max((index - self.next) * stream_s, self._limits.retry_s)
            if then_s <= late_s or not self._is_wanted(index):
                continue
            others = [(free_s[other], other.number, other) for other in known if not other.has(index)]
            at_s, _, other = min(others, default=(math.inf, 0, None))
            if other is not None and then_s > LATE * at_s:
                self._record(other, "asked ahead", index=index, detail={"stripe": other.number})
                self._give(other, index)
                yield from self._announce_indices(other)
                free_s[other] += paces[other].period_s

    def _waits_s(self, stripe: StripeState, first_s: float) -> float:
        """Return how long a stripe's next partition may still take. A present delay counts once more (R8)."""
        if stripe.asked_s is None or stripe.period_s is None:
            return first_s
        return max(first_s, self._out.now - max(stripe.asked_s, stripe.delivered_s) - stripe.period_s)

    def _without_next(self) -> list[StripeState]:
        """Return the stripes to which the stream's next index could be assigned as well."""
        return [stripe for stripe in self.stripes if stripe.carries and not stripe.has(self.next)]

    def _stalled_s(self) -> float:
        """Return when the stream's next partition counts as stalled (R4); infinity if the stream does not wait."""
        over = self._end is not None and self.next >= self._end
        having = [stripe for stripe in self.stripes if stripe.works and stripe.has(self.next)]
        if over or not self._wanted or not having or not self._without_next():
            return math.inf
        return max([self._waited_for_s(stripe) for stripe in having])

    def _waited_for_s(self, stripe: StripeState) -> float:
        """Return until when a stripe may deliver the next partition, after its earlier open partitions (R4)."""
        before = next((n for n, entry in enumerate(stripe.open) if entry.index == self.next), 0)
        if stripe.period_s is not None:
            since_s = max(self._next_s, stripe.delivered_s)
            return since_s + (STALLED + before) * max(stripe.period_s, self._limits.retry_s)
        return self._stuck_s(stripe)

    def _stuck_s(self, stripe: StripeState) -> float:
        """Return from when on a stripe of unknown pace takes too long (R4)."""
        fills_s = sorted(sibling.fills_s for sibling in self.stripes if sibling.fills_s is not None)
        if not fills_s or stripe.asked_s is None:
            return math.inf
        half = 2 * len(fills_s) >= plain_sum(sibling.works for sibling in self.stripes)
        times, one_s = (LATE, fills_s[len(fills_s) // 2]) if half else (STALLED, fills_s[-1])
        return stripe.asked_s + times * max(one_s, self._limits.retry_s)

    def _announce_indices(self, stripe: StripeState) -> StreamNotes:
        """Send the hosts of a stripe its open indices (R1).

        In a new generation, begin with its first partition (R7).
        """
        begins = stripe.upto - len(stripe.open)
        first = begins if stripe.anew is None else max(min(stripe.anew[0], begins), begins - len(stripe.past))
        past = list(stripe.past)[len(stripe.past) - (begins - first) :] if first < begins else []
        stripe.told_s = self._out.now
        if past or stripe.open:
            indices = (*past, *(entry.index for entry in stripe.open))
            yield IndicesAssigned(m.StripeIndices(stripe.run, first, indices))

    def _repeat_after_s(self, stripe: StripeState) -> float:
        asked_s = self._out.now if stripe.asked_s is None else stripe.asked_s
        return max(stripe.told_s, asked_s) + stripe.wait_s

    def _wake(self) -> None:
        """Set the alarm for the next repetition or reassignment."""
        due = [self._repeat_after_s(stripe) for stripe in self.stripes if stripe.works and stripe.asked_s is not None]
        if self._wanted and self._begun and self.next not in self.held:
            # R8: a stripe may become slow while the stream waits
            due.append(self._out.now + self._limits.retry_max_s)
        at_s = min([self._stalled_s(), *due])
        if at_s < math.inf:
            self._alarm.by(at_s)

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError for one that does not hold."""
        assert len(self.held) <= max(1, self.window), f"{len(self.held)} partitions wait, of {self.window} at most"
        assigned = [index for stripe in self.stripes for index in {entry.index for entry in stripe.open}]
        assert self._free == sorted({*self._free}), self._free
        assert {*self._free}.isdisjoint(assigned), (self._free, assigned)
        assert all(index >= self.next for index in self.held), (self.next, sorted(self.held))
        for stripe in self.stripes:
            partitions = [entry.partition for entry in stripe.open]
            assert partitions == list(range(stripe.upto - len(partitions), stripe.upto)), stripe.run
            assert stripe.open or stripe.asked_s is None, stripe.run
            assert not (stripe.over and stripe.open), stripe.run
        last = self._top if self._end is None else min(self._top, self._end)
        known = {*self.held, *self._free, *assigned}
        assert all(index in known for index in range(self.next, last)), "an index is with nobody"
