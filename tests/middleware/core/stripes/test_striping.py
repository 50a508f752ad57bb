"""Assignment of partitions to stripes at the client. Simulated stripes are slow, stall, end, fail and deliver twice."""

from __future__ import annotations

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType
from run_ids import R, run_of

from thalweg.middleware.core.context.outbox import HostContext, Outbox
from thalweg.middleware.core.stripes.notes import IndicesAssigned, PlacesFailed, StreamNotes, TreesReplaced
from thalweg.middleware.core.stripes.striping import LEAST, MOST_LEFT, StripeState, StripeTakeover, Striping
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.parcels import PAST_END
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId

LIMITS = CoreConfig()
FLOW = Dataflow((Node("s", "source", (), Code("x"), "h1"), Node("t", "sink", ("s",), None, "client")))


class Played:
    """A stream whose stripes take ``takes_s`` seconds for a partition each, in a queue of their own."""

    def __init__(
        self,
        takes_s: list[float],
        *,
        window: int = 4,
        partitions: int | None = 30,
        length: float = math.inf,
        flow: Dataflow = FLOW,
        above: e.RunRequested | UnsetType = UNSET,
        most: int = 2,
    ) -> None:
        self.desk, self.most = HostContext("client"), most
        self.takes_s, self.length = takes_s, length
        self.given: dict[int, list[int]] = {number: [] for number in range(len(takes_s))}
        self.asked: dict[int, int] = dict.fromkeys(self.given, 0)
        self.due: deque[tuple[float, int]] = deque()
        self.left: set[int] = set()
        self.delivered: list[int] = []
        self.ended = ""
        self.changes: list[tuple[int, str]] = []
        self.fallen: set[int] = set()
        self.alarm_s = math.inf
        requests = tuple(
            e.RunRequested(m.Install(run_of(f"r/{number}"), flow, (), (), "client")) for number in range(len(takes_s))
        )
        shares = (1 / len(takes_s),) * len(takes_s)
        asks = e.StripesRequested(R, requests, shares, window, partitions, above=above)
        self.stream = Striping(Outbox(self.desk, R), asks, LIMITS, self)

    def current_id(self, run: RunId) -> RunId:
        return run

    def depth(self, run: RunId) -> int:
        return self.most

    def lives(self, run: RunId, source: str) -> bool:
        raise AssertionError("only what is above trees is asked")

    def hear(self, notes: StreamNotes) -> None:
        for note in notes:
            match note:
                case IndicesAssigned():
                    self.tell(note.message)
                case TreesReplaced():
                    self.changes.append((note.first, note.error))
                case PlacesFailed():
                    self.fallen.update(note.places)
                case e.NextRequested():
                    number = self.number_of(note.run)
                    self.due.append((self.desk.now + self.takes_s[number], number))
                case e.RunAbandoned():
                    self.left.add(self.number_of(note.run))
                case _:
                    raise AssertionError(note)

    def number_of(self, run: RunId) -> int:
        assert run.stripe is not None
        return run.stripe

    def tell(self, given: m.StripeIndices) -> None:
        known = self.given[self.number_of(given.run)]
        assert given.first <= len(known), "what was given is told without a gap"
        for partition, index in enumerate(given.indices, given.first):
            if partition < len(known):
                assert known[partition] == index, "what was given once stays"
            else:
                known.append(index)

    def go(self, until_s: float = math.inf) -> None:
        """Let time pass until ``until_s``, or until nothing more is due."""
        self.settle()
        for _ in range(20_000):
            self.due = deque(sorted(self.due))
            at_s = min(self.due[0][0] if self.due else math.inf, self.alarm_s)
            if self.ended or at_s == math.inf or at_s > until_s:
                return
            self.desk.now = max(self.desk.now, at_s)
            if self.due and self.due[0][0] <= at_s:
                self.deliver(self.due.popleft()[1])
            else:
                self.alarm_s = math.inf
                self.hear(self.stream.on_timer())
            self.settle()
        pytest.fail("the stream does not come to an end")

    def deliver(self, number: int) -> None:
        stripe = next((stripe for stripe in self.stream.stripes if stripe.number == number), None)
        if stripe is None or number in self.left:
            return
        partition = self.asked[number]
        self.asked[number] += 1
        index = self.given[number][partition]
        self.hear(self.stream.on_delivered(stripe, e.Deliver(stripe.run, partition, self.value(index), 8, sink="t")))

    def value(self, index: int) -> object:
        return PAST_END if index >= self.length else index

    def settle(self) -> None:
        while self.desk.commands:
            commands, self.desk.commands = self.desk.commands, []
            for command in commands:
                match command:
                    case e.Deliver(end=True):
                        self.ended = "end"
                    case e.Deliver():
                        assert command.value == command.index == len(self.delivered)
                        self.delivered.append(command.index)
                        self.hear(self.stream.on_next())
                    case e.Ready():
                        self.hear(self.stream.on_next())
                    case e.Fail():
                        self.ended = command.reason
                    case e.SetTimer():
                        self.alarm_s = command.at_s
        self.stream.validate()

    def begin(self) -> Played:
        for stripe in self.stream.stripes:
            self.hear(self.stream.on_ready(stripe))
            self.settle()
        return self


class Feeding(Played):
    """A stream of two parts that end after ``lengths`` partitions, which feeds an upper graph."""

    def __init__(self, takes_s: list[float], lengths: tuple[int, int], window: int = 4) -> None:
        nodes = [Node(name, "source", (), Code("x"), "h1") for name in ("s", "s2")]
        flow = Dataflow((*nodes, Node("t", "sink", ("s", "s2"), None, "client")))
        above = e.RunRequested(m.Install(R, flow, (), (), "client"))
        super().__init__(takes_s, window=window, partitions=None, flow=flow, above=above)
        self.lengths = lengths
        self.paused = False  # nothing more is wanted for now

    def value(self, index: int) -> object:
        return tuple([index if index < length else PAST_END for length in self.lengths])

    def settle(self) -> None:
        while self.desk.commands:
            commands, self.desk.commands = self.desk.commands, []
            for command in commands:
                match command:
                    case e.Deliver():
                        assert not command.end, "nobody asks for more"
                        assert command.value == self.value(command.index)
                        self.delivered.append(command.index)
                        if command.index >= max(self.lengths):
                            self.ended = "end"
                        elif not self.paused:
                            self.hear(self.stream.on_next())
                    case e.Ready():
                        self.hear(self.stream.on_next())
                    case e.SetTimer():
                        self.alarm_s = command.at_s
        self.stream.validate()


TIMES = st.lists(st.floats(0.1, 50.0), min_size=1, max_size=5)


@given(TIMES, st.integers(1, 12), st.integers(1, 60))
def test_partitions_come_once_and_in_order_at_every_speed_of_the_stripes(
    takes_s: list[float], window: int, partitions: int
) -> None:
    played = Played(takes_s, window=window, partitions=partitions).begin()
    played.go()
    assert played.ended == "end"
    assert played.delivered == list(range(partitions))


@given(TIMES, st.integers(1, 12), st.integers(0, 40))
def test_the_stream_ends_where_its_sources_do(takes_s: list[float], window: int, length: int) -> None:
    played = Played(takes_s, window=window, partitions=None, length=length).begin()
    played.go()
    assert played.ended == "end"
    assert played.delivered == list(range(length))


@given(TIMES, st.data())
def test_remaining_stripes_carry_the_partitions_of_lost_stripes(takes_s: list[float], data: st.DataObject) -> None:
    played = Played([1.0, *takes_s], partitions=40).begin()
    lost = data.draw(st.sets(st.integers(1, len(takes_s)), max_size=len(takes_s)))
    for number in sorted(lost):
        played.go(until_s=played.desk.now + data.draw(st.floats(0.0, 20.0)))
        stripe = played.stream.stripes[number]
        played.hear(
            played.stream.on_failed(stripe, e.Fail(stripe.run, "host 'h2' has been silent", host="h2", lost=True))
        )
        played.settle()
    played.go()
    assert played.ended == "end"
    assert played.delivered == list(range(40))


def test_the_loss_of_the_last_stripe_ends_the_stream() -> None:
    played = Played([1.0, 1.0]).begin()
    played.go(until_s=3.0)
    for stripe in played.stream.stripes:
        played.hear(played.stream.on_failed(stripe, e.Fail(stripe.run, "host 'h1' is gone", lost=True)))
        played.settle()
    assert played.ended == "host 'h1' is gone"


def test_failing_code_ends_the_stream() -> None:
    played = Played([1.0, 1.0]).begin()
    played.hear(played.stream.on_failed(played.stream.stripes[1], e.Fail(run_of("r/1"), "ValueError")))
    played.settle()
    assert played.ended == "ValueError"


def test_equal_stripes_share_the_partitions_equally_and_a_slow_stripe_gets_few() -> None:
    equal = Played([1.0, 1.0, 1.0], partitions=60).begin()
    equal.go()
    assert {len(indices) for indices in equal.given.values()} <= {*range(19, 24)}
    assert equal.desk.now < 60 / 3 + 4
    slow = Played([1.0, 10.0], partitions=220, window=4).begin()
    slow.go()
    assert 15 <= slow.asked[1] <= 22
    assert slow.desk.now < 1.1 * 200


@pytest.mark.parametrize(("count", "each"), [(2, 8), (3, 8), (4, 6), (9, 3), (16, 3)])
def test_a_stripe_has_fewer_open_indices_if_there_are_more_stripes(count: int, each: int) -> None:
    """R1. The trees have seven levels."""
    played = Played([1.0] * count, partitions=200, window=8 * count, most=7).begin()
    most = 0
    for half_s in range(400):
        played.go(until_s=half_s / 2)
        most = max(most, *(len(stripe.open) for stripe in played.stream.stripes))
    assert most == each
    assert played.ended == "end"
    assert played.delivered == list(range(200))
    assert played.desk.now < 200 / count + 3


@given(TIMES, st.integers(1, 64), st.integers(1, 40))
def test_the_open_indices_of_a_stripe_stay_between_the_minimum_and_the_tree_depth(
    takes_s: list[float], most: int, partitions: int
) -> None:
    played = Played(takes_s, partitions=partitions, most=most, window=8).begin()
    for stripe in played.stream.stripes:
        stripe.period_s = 1.0
        assert min(most + 1, LEAST) <= played.stream._ahead(stripe) <= most + 1
    played.go()
    assert played.delivered == list(range(partitions))


def test_a_stalled_stripe_delays_the_stream_only_briefly() -> None:
    played = Played([1.0, 1.0], partitions=40).begin()
    played.go(until_s=10.0)
    played.takes_s[1] = 1000.0
    played.go(until_s=60.0)
    assert played.ended == "end"
    assert played.delivered == list(range(40))


def test_partitions_past_the_end_go_to_no_further_stripe_while_the_application_pauses() -> None:
    """A slow stripe still has partitions past the end open. A fast stripe would make them at once, and get more."""
    played = Played([0.3, 0.3], partitions=None, length=12)
    wants = played.stream.on_next
    played.stream.on_next = lambda: wants() if len(played.delivered) < 11 else iter(())  # type: ignore[method-assign]
    played.begin().go(until_s=1.4)
    played.takes_s = [0.01, 60.0]
    played.go(until_s=20.0)
    assert len(played.delivered) == 11
    assert any(entry.index >= 12 for entry in played.stream.stripes[1].open)
    assert played.asked[0] < 20


def test_a_first_partition_is_awaited_only_as_long_as_other_stripes_need() -> None:
    played = Played([20.0, 20.0, 20.0, 1000.0], partitions=40, window=32).begin()
    played.go(until_s=150.0)
    assert len(played.delivered) > 12, "6 and 7, which it was given, are with the others"


def test_a_third_stripe_gets_a_partition_that_two_slow_stripes_have() -> None:
    played = Played([1.0, 1.0, 1.0], partitions=40).begin()
    played.go(until_s=5.0)
    first, second, _ = played.stream.stripes
    played.stream._give(second, first.open[-1].index)
    for stripe in (first, second):
        played.takes_s[stripe.number] = stripe.period_s = 100.0
    played.go(until_s=60.0)
    assert played.ended == "end", f"{len(played.delivered)} of 40"


def test_a_stripe_with_a_slow_first_partition_does_not_help_another_stripe() -> None:
    played = Played([100.0, 2.0, 2.0], partitions=200, window=200).begin()
    played.go(until_s=101.0)
    slow, quick, _ = played.stream.stripes
    assert slow.fills_s == 100.0
    assert slow.period_s is None
    assert played.stream._period_s(slow) > 10 * played.stream._period_s(quick)


def test_the_stream_ends_though_most_stripes_never_deliver_a_first_partition() -> None:
    played = Played([5.0, math.inf, math.inf], partitions=40).begin()
    played.go(until_s=1000.0)
    assert played.ended == "end"


def test_a_delivery_outside_the_open_partitions_of_a_stripe_changes_nothing() -> None:
    played = Played([1.0, 1.0]).begin()
    played.go(until_s=5.0)
    stripe = played.stream.stripes[0]
    before = [*played.delivered]
    for late in (0, stripe.upto + 3):
        played.hear(played.stream.on_delivered(stripe, e.Deliver(stripe.run, late, 0, 8, sink="t")))
        played.settle()
    assert played.delivered == before
    played.go()
    assert played.delivered == list(range(30))


def test_a_held_partition_that_a_second_stripe_delivers_is_recorded_as_a_duplicate() -> None:
    """The first stripe has delivered nothing, so the partitions of all other stripes wait."""
    played = Played([1.0, 1.0, 1.0], window=8).begin()
    _, early, late = played.stream.stripes
    index = early.open[0].index
    played.stream._give(late, index)  # as where ``early`` was slow
    delivered = []
    for stripe in (early, *[late] * len(late.open)):
        about = stripe.open[0]
        part = e.Deliver(stripe.run, about.partition, about.index, 8, sink="t")
        played.hear(played.stream.on_delivered(stripe, part))
        records = [
            command for command in played.desk.commands if isinstance(command, e.Record) and command.kind == "carried"
        ]
        delivered += [record.fields["detail"]["kept"] for record in records if record.fields["index"] == index]
        played.settle()
    assert delivered == [True, False]


def test_a_new_generation_of_a_stripe_is_sent_the_assigned_indices_again() -> None:
    played = Played([1.0, 1.0], partitions=200).begin()
    played.go(until_s=20.0)
    stripe, known = played.stream.stripes[1], [*played.given[1]]
    played.given[1] = []
    played.hear(played.stream.on_follows(stripe, 0))
    assert played.given[1] == known, "from its first partition on"
    played.go()
    assert played.delivered == list(range(200))


def test_a_restarted_stripe_is_abandoned_if_the_assigned_indices_are_forgotten() -> None:
    played = Played([1.0, 1.0], partitions=100).begin()
    played.go(until_s=20.0)
    stripe = played.stream.stripes[1]
    stripe.past.clear()  # as after very many
    played.hear(played.stream.on_follows(stripe, 0))
    played.settle()
    assert played.left == {1}
    played.go()
    assert played.delivered == list(range(100))


def test_the_indices_that_a_slow_stripe_leaves_for_a_faster_stripe_are_bounded() -> None:
    """R2. Every left index takes memory."""
    played = Played([1e-5, 1.0], partitions=None)
    fast, slow = played.stream.stripes
    fast.period_s, slow.period_s = 1e-5, 1.0
    for stripe in (fast, slow):
        played.hear(played.stream.on_ready(stripe))
        played.stream.validate()
    assert [entry.index for entry in fast.open][:3] == [0, 1, 2]
    assert slow.open[0].index == 3 + MOST_LEFT
    assert len(played.stream._free) <= MOST_LEFT


def test_a_restarted_stripe_is_sent_the_indices_until_a_newly_assigned_partition_comes() -> None:
    """The indices may reach the stripe's hosts before the run does."""
    played = Played([1.0, 1.0], window=8)
    played.begin().go(until_s=5.5)
    stripe, sent = played.stream.stripes[0], list[m.StripeIndices]()
    first = stripe.open[0].partition - 2
    played.tell = lambda given: sent.append(given) if given.run == stripe.run else None  # type: ignore[method-assign]
    played.hear(played.stream.on_follows(stripe, first))
    assert [message.first for message in sent] == [first]
    later = stripe.upto
    for _ in range(2):
        played.desk.now += LIMITS.retry_max_s
        played.hear(played.stream.on_timer())
    assert [each.first for each in sent[1:3]] == [first] * 2
    while stripe.open[0].partition <= later:
        part = stripe.open[0].partition
        played.hear(played.stream.on_delivered(stripe, e.Deliver(stripe.run, part, stripe.open[0].index, 8, sink="t")))
    played.desk.now += 2 * LIMITS.retry_max_s
    played.hear(played.stream.on_timer())
    assert sent[-1].first == stripe.open[0].partition


@given(TIMES, st.tuples(st.integers(0, 20), st.integers(0, 20)), st.integers(1, 12))
def test_the_upper_graph_is_fed_up_to_the_end_of_the_longest_source(
    takes_s: list[float], lengths: tuple[int, int], window: int
) -> None:
    played = Feeding(takes_s, lengths, window).begin()
    played.go()
    assert played.delivered == list(range(max(lengths) + 1))


@given(TIMES, st.integers(1, 12), st.data())
def test_a_stream_restarts_at_the_requested_partition(takes_s: list[float], window: int, data: st.DataObject) -> None:
    """The stream restarts also while no partition is requested and the window is full."""
    played = Feeding(takes_s, (30, 25), window).begin()

    def goes_on() -> None:
        played.go(until_s=played.desk.now + data.draw(st.floats(0.0, 100.0)))

    for _ in range(data.draw(st.integers(1, 4))):
        goes_on()
        played.paused = True
        goes_on()
        if played.ended:  # and nobody asks for more
            break
        first = data.draw(st.integers(0, played.stream.next))
        played.delivered.clear()
        played.hear(played.stream.begin_anew(first))
        played.settle()
        goes_on()
        assert played.delivered in ([], [first])
        if played.ended:
            break
        played.paused = False
        played.hear(played.stream.on_next())
        played.settle()
    played.go()
    assert played.delivered == list(range(31 - len(played.delivered), 31))


def test_held_partitions_fill_exactly_the_window_after_the_stream_restarts() -> None:
    played = Feeding([1.0, 1.0], (30, 30), window=4).begin()
    played.go(until_s=10.0)
    played.paused = True
    played.go(until_s=100.0)
    assert played.stream.next in played.stream.held, "and three more wait for it to be wanted"
    played.hear(played.stream.begin_anew(played.stream.next - 2))
    played.go(until_s=200.0)
    assert len(played.stream.held) == 4


class Replaced(Played):
    """A stream in which new stripes take over."""

    def come(self, takes_s: list[float], theirs: dict[str, tuple[int, ...]] | None = None) -> list[StripeState]:
        """Announce and return a new stripe for each time in ``takes_s``. ``theirs``: places of queries by node."""
        first = self.stream.count
        self.takes_s += takes_s
        requests = []
        for number in range(first, first + len(takes_s)):
            self.given[number], self.asked[number] = [], 0
            requests.append(e.RunRequested(m.Install(run_of(f"r/{number}"), FLOW, (), (), "client")))
        self.stream.replace(requests, [StripeTakeover({0: 0, first: 0}, theirs or {})] * len(takes_s))
        return self.stream.stripes[-len(takes_s) :]

    def ready(self, stripe: StripeState) -> None:
        if not stripe.over:
            self.hear(self.stream.on_ready(stripe))
            self.settle()

    def fail(self, stripe: StripeState, node: str = "o", *, lost: bool = False) -> None:
        self.hear(self.stream.on_failed(stripe, e.Fail(stripe.run, "why not", node, lost=lost), (node,)))
        self.settle()


@given(
    st.lists(st.floats(0.1, 5.0), min_size=1, max_size=4),
    st.lists(
        st.tuples(st.floats(0.0, 8.0), st.integers(1, 4), st.floats(0.1, 5.0), st.sampled_from(["ready", "fail"])),
        max_size=5,
    ),
    st.integers(1, 9),
)
def test_partitions_come_once_and_in_order_whenever_new_stripes_take_over(
    takes_s: list[float], changes: list[tuple[float, int, float, str]], window: int
) -> None:
    played = Replaced(list(takes_s), window=window, partitions=60)
    played.begin()
    now_s = 0.0
    for after_s, count, each_s, outcome in changes:
        now_s += after_s
        played.go(until_s=now_s)
        if played.ended:
            break
        coming = played.come([each_s] * count)
        for stripe in coming[:-1]:
            played.ready(stripe)
        before = [stripe for stripe in played.stream.stripes if stripe not in coming and not stripe.over]
        assert before, "they go on until all of the others are ready"
        assert all(stripe.carries for stripe in before if not stripe.leaving)
        if outcome == "ready":
            played.ready(coming[-1])
            assert not any(stripe.carries for stripe in before)
            assert played.changes[-1] == (coming[0].number, "")
        else:
            played.fail(coming[-1])
            assert all(stripe.over for stripe in coming)
            assert {stripe.number for stripe in coming} <= played.left
            assert played.changes[-1] == (-1, "why not")
    played.go()
    assert played.ended == "end"
    assert played.delivered == list(range(60))
    for stripe in played.stream.stripes:
        if stripe.leaving:
            assert stripe.open or (stripe.over and stripe.number in played.left), "they end with what they had open"


def test_every_partition_from_a_takeover_on_is_assigned_to_the_new_stripes_alone() -> None:
    played = Replaced([1.0, 1.0], partitions=None)
    played.begin().go(until_s=6.5)
    for stripe in (coming := played.come([1.0, 1.0])):
        played.ready(stripe)
    since = played.stream.since
    assert since >= len(played.delivered)
    played.go(until_s=30.0)
    assert len(played.delivered) > since + 10
    assigned = {index for stripe in coming for index in played.given[stripe.number]}
    assert set(range(since, len(played.delivered))) <= assigned
    assert not any(index >= since for number in (0, 1) for index in played.given[number])


@pytest.mark.parametrize("lost", [False, True], ids=["code", "a host"])
def test_a_failed_node_that_only_queries_need_fails_the_queries_and_the_stream_waits(lost: bool) -> None:
    played = Replaced([1.0], partitions=40)
    played.begin().go(until_s=3.5)
    for stripe in (first := played.come([1.0, 1.0], theirs={"o": (3, 4)})):
        played.ready(stripe)
    played.go(until_s=8.5)
    for stripe in first:
        played.fail(stripe, "o", lost=lost)
    assert played.fallen == {3, 4}
    played.go(until_s=20.0)
    before = len(played.delivered)
    assert before < 40 and not played.ended, "nobody is left, and others are to come"
    for stripe in played.come([1.0, 1.0]):
        played.ready(stripe)
    played.go()
    assert (played.ended, played.delivered) == ("end", list(range(40)))


def test_a_failed_node_that_the_stream_needs_fails_the_stream() -> None:
    played = Replaced([1.0], partitions=40)
    played.begin().go(until_s=3.5)
    for stripe in (coming := played.come([1.0], theirs={"o": (3,)})):
        played.ready(stripe)
    played.go(until_s=8.5)
    played.fail(coming[0], "s")
    assert (played.ended, played.fallen) == ("why not", set())


def test_the_stream_fails_if_no_stripe_is_left_and_the_replacement_fails() -> None:
    played = Replaced([1.0], partitions=40)
    played.begin().go(until_s=3.5)
    (coming,) = played.come([1.0])
    played.fail(played.stream.stripes[0], lost=True)
    played.go(until_s=9.0)
    assert not played.ended
    played.fail(coming)
    assert played.ended.startswith("no stripe of the stream is left")


def test_stripes_that_left_are_forgotten_and_stripe_numbers_keep_increasing() -> None:
    played = Replaced([1.0, 1.0], partitions=60)
    played.begin().go(until_s=4.5)
    for _ in range(3):
        for stripe in (coming := played.come([1.0, 1.0])):
            played.ready(stripe)
        played.go(until_s=played.desk.now + 6)
        for stripe in list(played.stream.stripes):
            played.stream.forget(stripe)
        assert played.stream.stripes == coming
    assert [stripe.number for stripe in coming] == [6, 7]
    assert played.stream.count == 8
