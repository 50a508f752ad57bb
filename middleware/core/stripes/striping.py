"""One stream over several trees at once: which tree carries which partition, at the client.

Each tree is a run of its own, a *stripe* (``protocol.stripes``), with its own barrier, epochs, hand-overs, shapes and
generations; here they are handed out the indices of one stream, whose partitions go to the application in order.

Rules:

R1. A stripe gets indices ahead, at most as many as its tree can have under way: one for each level and partition under
    way over an edge (``Install.ahead``), and one that is made meanwhile. Of many stripes each gets less, ``FULL``
    times that together for as many as ``MANY``: none needs to be full, and the earlier an index is given, the later it
    may come. A stripe is told again what it was given until it delivers.
R2. The stripe that asks next gets the next index, where all are equally fast. Of others each gets that which is next
    when it can deliver: as many are left for the others as these will have delivered by then, at most
    ``MOST_LEFT``, each of which is remembered. So a slow tree gets few, and little waits for it. How long a stripe
    takes for one is smoothed over those that it was not kept waiting for.
R3. The sink of a stripe is asked for its next partition if that is the stream's next, or if there is room: of
    partitions that came before their turn at most ``window`` - 1 wait. What comes when there is none is dropped, and
    given out again.
R4. A stripe that delivers nothing for ``STALLED`` times as long as it usually takes, while the stream waits for it, is
    not waited for alone: the next index is given to another one as well, which would deliver it soonest. Which of them
    comes first counts; the other is a known duplicate, and dropped. One whose pace is not known is waited for ``LATE``
    times as long as half of them took for their first one, or ``STALLED`` times as long as any, before half have.
R5. A stripe that cannot go on, as it has lost a host, leaves what it has open to the others. The stream fails with the
    last one, or where code does.
R6. What is past a source's end says so (``parcels``): the stream ends before the first such partition.
R7. A stripe that begins anew, as its next generation, is told again what it was given from where it begins, as often as
    R1 says, until it delivers what it was given since: its hosts may hear of it before they have the run.
R8. Nor is a stripe waited for that has become slow: what it would deliver ``LATE`` times as late as the stream comes to
    it, and as another one would, is given to that one as well, before the stream waits for it. A stripe that is late is
    taken to be as late again, one that has not delivered for as long as R4 says to be late for ever.
R9. Where the stream feeds what runs above its trees (``upper_feed``), each of a partition's parts may be past its
    end alone; the stream ends with the partition of which all are, which is delivered as well. It begins anew with a
    partition when it is told to: what was made of it and those after it, and is not here any more, is made again.
R10. Other stripes may take over, which make more than those before, or less: where all of them are ready, these get no
    more indices, and end with what they have open. Where one of them fails before that, they are dropped. Until then
    all goes on as before, also where a stripe fails in what only some queries want (``theirs``): these are told, the
    others carry what it had open, and where there are none left the stream waits for those that take over.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter, deque
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

SMOOTHING = 0.3  # weight of the last partition in what a stripe takes for one
LATE = 2.0  # times what others take
STALLED = 4.0  # times what a stripe usually takes for a partition
UNKNOWN = 2  # partitions under way in a stripe of which is not known yet how fast it is
LEAST = 3  # that are under way in a stripe, however many there are
FULL, MANY = 3, 9  # trees' worth of partitions that are under way in so many trees; up to three trees are full
MOST_LEFT = 4096  # indices that a stripe leaves for the others at most, however fast they are
KEPT = m.MOST_GIVEN // 2  # partitions that were delivered and may have to be made again (R7)


class OpenPartition(msgspec.Struct, frozen=True):
    """Partition ``partition`` of a stripe, which is ``index`` of the stream, and has not been delivered."""

    partition: int
    index: int


class StripeTakeover(NamedTuple):
    """R10: what a stripe makes that takes over, and what of it only queries want (``TreesRequested``)."""

    places: dict[int, int] | None
    theirs: dict[str, tuple[int, ...]]


class StripeState:
    """What the stream knows of one of its stripes."""

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
        self.past: deque[int] = deque(maxlen=KEPT)  # the stream's indices of its last partitions, delivered
        self.upto = 0  # its partitions before that have been given
        self.asked_s: float | None = None  # since when its sink gathers
        self.delivered_s = -math.inf
        self.period_s: float | None = None
        self.fills_s: float | None = None  # what its first partition took, through all of its tree
        self.told_s, self.wait_s = 0.0, wait_s
        # R7: where the stripe begins anew, and how far it was given indices before
        self.anew: tuple[int, int] | None = None

    @property
    def works(self) -> bool:
        """Whether it may have anything open."""
        return self.ready and not (self.over or self.coming)

    @property
    def carries(self) -> bool:
        """Whether it can be given anything more."""
        return self.works and not self.leaving

    def has(self, index: int) -> bool:
        """Whether it was given that, and has not delivered it."""
        return any(entry.index == index for entry in self.open)


class StripePace(NamedTuple):
    """When the next partition of a stripe may come, from now on, and what it takes for one; seconds."""

    first_s: float
    period_s: float


class Striping:
    """The stream, at its client."""

    def __init__(self, out: Outbox, event: e.StripesRequested, limits: CoreConfig, runs: StreamRuns) -> None:
        self._out, self._limits, self._runs = out, limits, runs
        self._alarm = Alarm(out, Timer.STRIPES)
        self.stripes = [
            StripeState(number, request.install.run, share, limits.retry_s)
            for number, (request, share) in enumerate(zip(event.stripes, event.shares, strict=True))
        ]
        self.count = len(self.stripes)  # that there have been
        self.window = event.window
        (self._sink,) = event.stripes[0].install.dataflow.sinks
        self._feeds = event.above is not UNSET
        self.next = event.start  # the application's
        self.held: dict[int, e.Deliver] = {}  # that have come before their turn, or before they were asked for
        self._wanted = False  # the application waits for the next one
        self._begun = self._over = False
        self._top = event.start  # no stripe has been given this one, or any after it
        self._free: list[int] = []  # before that: those that no stripe has
        self._end = None if event.partitions is None else event.start + event.partitions
        self._uneven = ""
        self.since = event.start  # R10: only the stripes that took over last carry this index and later ones
        self._waits_for_others = False
        self._next_s = 0.0  # since when the next one is the next

    # --- what the stripes' runs say -----------------------------------------------------------------------

    def on_ready(self, stripe: StripeState) -> StreamNotes:
        """All hosts that a stripe needs have installed its run."""
        stripe.ready = True
        if stripe.coming:
            yield from self._take_over()
        if not self._begun and not self._over:
            self._begun = True
            self._out.emit(e.Ready(self._out.run))
        yield from self._go_on()

    def on_delivered(self, stripe: StripeState, part: e.Deliver) -> StreamNotes:
        """A stripe has delivered its next partition."""
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
        if self._feeds:  # R9: parts of a partition may be past their ends alone
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
            self._give_up(index)  # R3: a partition that finds no room is given out again

    def _end_before(self, index: int, uneven: str = "") -> None:
        """The stream ends before that partition."""
        if self._end is None or index < self._end:
            self._end, self._uneven = index, uneven
            self._free = [position for position in self._free if position < index]
            self.held = {position: part for position, part in self.held.items() if position < index}

    def on_failed(self, stripe: StripeState, failed: e.Fail, nodes: Collection[str] = ()) -> StreamNotes:
        """R5: the run of a stripe cannot go on; R10: ``nodes`` are at fault."""
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
        """A record of a stripe's run: the stream has none."""
        self._out.of(self._runs.current_id(stripe.run)).record(kind, **fields)

    def _leave(self, stripe: StripeState) -> None:
        """A stripe gets nothing more; what it has open is for the others."""
        stripe.over, stripe.asked_s = True, None
        left = [entry.index for entry in stripe.open]
        stripe.open.clear()
        for index in left:
            self._give_up(index)

    def _give_up(self, index: int) -> None:
        """Have an index given out again, unless it is not wanted any more, or others have it."""
        if self._is_wanted(index) and not any(stripe.has(index) for stripe in self.stripes):
            insort(self._free, index)

    def _is_wanted(self, index: int) -> bool:
        """Return whether the stream still needs that partition: it is not delivered, not held, and before the end."""
        before_end = self._end is None or index < self._end
        return self.next <= index and before_end and index not in self.held

    def on_follows(self, stripe: StripeState, first: int) -> StreamNotes:
        """R7: a stripe begins anew, some of its nodes with partition ``first``."""
        oldest = stripe.upto - len(stripe.open) - len(stripe.past)
        if first < oldest:
            why = f"stripe {stripe.number} would begin anew with its partition {first}, of which nothing is known"
            yield from self.on_failed(stripe, e.Fail(stripe.run, why, lost=True))
            return
        stripe.anew, stripe.wait_s = (first, stripe.upto), self._limits.retry_s
        yield from self._announce_indices(stripe)
        self._wake()

    # --- R10: others take over ------------------------------------------------------------------------------

    def replace(self, requests: Sequence[e.RunRequested], what: Sequence[StripeTakeover]) -> None:
        """These are about to begin, and take over when all are ready."""
        shares = [stripe.share for stripe in self.stripes if not (stripe.leaving or stripe.coming)]
        for place, (request, takes_over) in enumerate(zip(requests, what, strict=True)):
            share = shares[place] if place < len(shares) else 1 / len(requests)
            self.stripes.append(StripeState(self.count, request.install.run, share, self._limits.retry_s, takes_over))
            self.count += 1

    def forget(self, stripe: StripeState) -> None:
        """Nothing more will be heard of a stripe; where others have taken over, or it could not, it counts no more."""
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

    # --- what the application says ------------------------------------------------------------------------

    def on_next(self) -> StreamNotes:
        """The application wants the next partition."""
        if not self._wanted:
            self._wanted, self._next_s = True, self._out.now
            yield from self._go_on()

    def begin_anew(self, first: int) -> StreamNotes:
        """R9: the application wants partition ``first`` again, and all after it."""
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
        """Something is due: a word to be said again, or a stripe to be waited for no more."""
        self._alarm.rung()
        now = self._out.now
        for stripe in self.stripes:
            if stripe.works and stripe.asked_s is not None and now >= self._repeat_after_s(stripe):
                yield from self._announce_indices(stripe)
                stripe.wait_s = min(2 * stripe.wait_s, self._limits.retry_max_s)
        yield from self._go_on()

    # --- what is to be done -------------------------------------------------------------------------------

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
        """Give the application the next partition, if it wants it and it is here, or the end."""
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
        """R1: whether a stripe has been given more indices."""
        before = stripe.upto
        ahead = self._ahead(stripe)
        while len(stripe.open) < ahead and (index := self._choose(stripe, paces)) is not None:
            self._give(stripe, index)
        return stripe.upto > before

    def _ahead(self, stripe: StripeState) -> int:
        """R1: how many indices a stripe may have."""
        if stripe.period_s is None:
            return UNKNOWN
        most = self._runs.depth(stripe.run) + 1
        count = plain_sum(not (sibling.over or sibling.leaving or sibling.coming) for sibling in self.stripes)
        return min(most, max(LEAST, math.ceil(FULL * most / min(count, MANY))))

    def _give(self, stripe: StripeState, index: int) -> None:
        stripe.open.append(OpenPartition(stripe.upto, index))
        stripe.upto += 1

    def _choose(self, stripe: StripeState, paces: Mapping[StripeState, StripePace]) -> int | None:
        """R2: the index for a stripe's next partition, which is taken for given; None where others will have all."""
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
        """What a stripe takes for a partition; of one that has not delivered any two, as its share of the others'."""
        if stripe.period_s is not None:
            late_s = 0.0 if stripe.asked_s is None else self._out.now - max(stripe.asked_s, stripe.delivered_s)
            return max(stripe.period_s, late_s, 1e-9)
        known = [sibling.period_s * sibling.share for sibling in self.stripes if sibling.period_s is not None]
        return max((plain_sum(known) / len(known) if known else 1.0) / stripe.share, 1e-9)

    def _first_s(self, stripe: StripeState) -> float:
        """When a stripe's next partition may come, from now on."""
        if stripe.delivered_s == -math.inf:
            return self._period_s(stripe)
        return max(0.0, stripe.delivered_s + self._period_s(stripe) - self._out.now)

    def _waits(self) -> int:
        """How many partitions wait for one before them."""
        return len(self.held) - (self.next in self.held)

    def _may_ask(self, stripe: StripeState) -> bool:
        """R3."""
        index = stripe.open[0].index
        if index == self.next or stripe.has(self.next):
            return True
        early = [
            sibling for sibling in self.stripes if sibling.asked_s is not None and sibling.open[0].index > self.next
        ]
        return self._waits() + len(early) < self.window - 1

    def _reassign(self) -> StreamNotes:
        """R4; what was to be given out again is, where it is the next one."""
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
        """R8."""
        known = {
            stripe: self._waits_s(stripe, pace.first_s) for stripe, pace in paces.items() if stripe.period_s is not None
        }
        if len(known) < 2:
            return
        stream_s = 1 / plain_sum(1 / paces[stripe].period_s for stripe in known)
        free_s = {stripe: waits_s + len(stripe.open) * paces[stripe].period_s for stripe, waits_s in known.items()}
        having = Counter(entry.index for stripe in self.stripes for entry in stripe.open)
        new = [stripe for stripe in paces if stripe.period_s is None]
        stuck = {stripe: math.inf for stripe in new if self._stuck_s(stripe) <= self._out.now}
        for stripe, waits_s in (known | stuck).items():
            for place, entry in enumerate(stripe.open):
                then_s, index = waits_s + place * paces[stripe].period_s, entry.index
                if not self._is_wanted(index) or having[index] > 1:
                    continue
                at_s, _, other = min((free_s[other], other.number, other) for other in known if other is not stripe)
                if then_s > LATE * max(at_s, (index - self.next) * stream_s, self._limits.retry_s):
                    self._record(other, "asked ahead", index=index, detail={"stripe": other.number})
                    self._give(other, index)
                    yield from self._announce_indices(other)
                    having[index] += 1
                    free_s[other] += paces[other].period_s

    def _waits_s(self, stripe: StripeState, first_s: float) -> float:
        """R8: how long a stripe's next partition may still take."""
        if stripe.asked_s is None or stripe.period_s is None:
            return first_s
        return max(first_s, self._out.now - max(stripe.asked_s, stripe.delivered_s) - stripe.period_s)

    def _without_next(self) -> list[StripeState]:
        """The stripes that could be given the next partition as well."""
        return [stripe for stripe in self.stripes if stripe.carries and not stripe.has(self.next)]

    def _stalled_s(self) -> float:
        """R4: when the stream has waited for its next partition for long enough; infinity where it does not wait."""
        over = self._end is not None and self.next >= self._end
        having = [stripe for stripe in self.stripes if stripe.works and stripe.has(self.next)]
        if over or not self._wanted or not having or not self._without_next():
            return math.inf
        return max([self._waited_for_s(stripe) for stripe in having])

    def _waited_for_s(self, stripe: StripeState) -> float:
        """R4: until when a stripe may deliver the next partition, which it has perhaps not begun."""
        before = next((n for n, entry in enumerate(stripe.open) if entry.index == self.next), 0)
        if stripe.period_s is not None:
            since_s = max(self._next_s, stripe.delivered_s)
            return since_s + (STALLED + before) * max(stripe.period_s, self._limits.retry_s)
        return self._stuck_s(stripe)

    def _stuck_s(self, stripe: StripeState) -> float:
        """R4: when a stripe whose pace is not known has taken for too long."""
        fills_s = sorted(sibling.fills_s for sibling in self.stripes if sibling.fills_s is not None)
        if not fills_s or stripe.asked_s is None:
            return math.inf
        half = 2 * len(fills_s) >= plain_sum(sibling.works for sibling in self.stripes)
        times, one_s = (LATE, fills_s[len(fills_s) // 2]) if half else (STALLED, fills_s[-1])
        return stripe.asked_s + times * max(one_s, self._limits.retry_s)

    def _announce_indices(self, stripe: StripeState) -> StreamNotes:
        """R1: say what a stripe was given, of what it has not delivered; R7: or from where it begins anew."""
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
        """Come back when something is due."""
        due = [self._repeat_after_s(stripe) for stripe in self.stripes if stripe.works and stripe.asked_s is not None]
        if self._wanted and self._begun and self.next not in self.held:
            # R8: a stripe may become slow while the stream waits
            due.append(self._out.now + self._limits.retry_max_s)
        at_s = min([self._stalled_s(), *due])
        if at_s < math.inf:
            self._alarm.by(at_s)

    def validate(self) -> None:
        """The invariants; AssertionError tells which does not hold."""
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
