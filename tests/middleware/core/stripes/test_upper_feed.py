"""The upper graph gets every partition of a stream in order and once, also if sources are slow, end or restart."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from run_ids import R, run_of

from thalweg.middleware.core.stripes.notes import PartitionNeeded, StreamNotes, StreamRestarted
from thalweg.middleware.core.stripes.upper_feed import UpperFeed
from thalweg.middleware.parcels import PAST_END, PAST_SOME
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.run_id import RunId


class Played:
    """Sources of an upper graph that end after ``lengths`` partitions, and the stream that feeds them."""

    def __init__(self, *lengths: int, most: int = 2, first: int = 0, uneven: tuple[str, ...] = ()) -> None:
        self.lengths = {f"s{place}": length for place, length in enumerate(lengths)}
        self.uneven = uneven
        self.at = dict.fromkeys(self.lengths, first)  # what each takes next
        self.waits: dict[str, e.RunOperator] = {}
        self.ended: set[str] = set()
        self.stream, self.asked, self.again = first, False, list[int]()
        self.most = most
        self.trunk = UpperFeed(R, tuple(self.lengths), first, self)

    def current_id(self, run: RunId) -> RunId:
        return run

    def depth(self, run: RunId) -> int:
        assert run == R
        return self.most

    def lives(self, run: RunId, source: str) -> bool:
        assert run == R
        return source not in self.ended

    def hear(self, notes: StreamNotes) -> None:
        for note in notes:
            match note:
                case PartitionNeeded():
                    self.ask()
                case StreamRestarted():
                    self.begin_anew(note.first)
                case e.OperatorFinished():
                    self.answer(note)
                case _:
                    raise AssertionError(note)

    def ask(self) -> None:
        assert not self.asked, "the stream is asked for one at a time"
        self.asked = True

    def begin_anew(self, first: int) -> None:
        self.again.append(first)
        self.stream = first

    def answer(self, made: e.OperatorFinished) -> None:
        assert made.index == self.waits[made.node].index == self.at[made.node]
        assert made.run == self.waits.pop(made.node).run
        if made.end:
            assert made.index == self.lengths[made.node]
            self.ended.add(made.node)
        else:
            assert (made.value, made.size_bytes) == (f"{made.node} {made.index}", self.bytes_of(made.node))
            self.at[made.node] += 1

    def bytes_of(self, name: str) -> int:
        return 10 + [*self.lengths].index(name)

    def want(self, name: str, run: RunId = R) -> None:
        """Request the source's next partition, unless a request is open or the source has ended."""
        if name not in self.waits and name not in self.ended:
            self.waits[name] = command = e.RunOperator(run, name, self.at[name])
            self.hear(self.trunk.want(command, [*self.lengths].index(name)))
            self.trunk.validate()

    def deliver(self) -> None:
        """Deliver the partition that the stream was asked for, if any."""
        if self.asked:
            self.asked = False
            self.stream += 1
            self.hear(self.trunk.take(self.part(self.stream - 1)))
            self.trunk.validate()

    def part(self, index: int) -> e.Deliver:
        past = {name: PAST_SOME if name in self.uneven else PAST_END for name in self.lengths}
        values = [f"{name} {index}" if index < length else past[name] for name, length in self.lengths.items()]
        sizes = tuple(map(self.bytes_of, self.lengths))
        if len(values) == 1:
            return e.Deliver(run_of("r/"), index, values[0], sizes[0])
        return e.Deliver(run_of("r/"), index, tuple(values), sum(sizes), sizes=sizes)

    def restart(self, name: str, index: int, run: RunId) -> None:
        """Restart the source at ``index``, in another generation."""
        self.waits.pop(name, None)
        self.ended.discard(name)
        self.at[name] = index
        self.want(name, run)

    def finish(self) -> None:
        for _ in range(1000):
            if len(self.ended) == len(self.lengths):
                return
            for name in self.lengths:
                self.want(name)
            self.deliver()
        raise AssertionError(f"they do not come to an end: {self.at} of {self.lengths}")


@given(st.data(), st.lists(st.integers(0, 12), min_size=1, max_size=4), st.integers(1, 5), st.integers(0, 3))
def test_every_source_gets_the_partitions_in_order_until_the_source_ends(
    data: st.DataObject, lengths: list[int], most: int, first: int
) -> None:
    """Sources request and restart at any time. The lowest partition that a source requests is never held up."""
    played = Played(*[first + length for length in lengths], most=most, first=first)
    names = st.sampled_from([*played.lengths])
    for number in range(data.draw(st.integers(0, 40))):
        action = data.draw(st.sampled_from(["want", "want", "deliver", "restart"]))
        if action == "want":
            played.want(data.draw(names))
        elif action == "deliver":
            played.deliver()
        else:
            name = data.draw(names)
            played.restart(name, data.draw(st.integers(first, played.at[name])), run_of(f"r~{number}"))
    played.finish()
    assert played.at == played.lengths


def test_the_slowest_source_sets_the_pace() -> None:
    played = Played(9, 9, most=2)
    for _ in range(8):
        played.want("s0")
        played.deliver()
    assert played.at == {"s0": 2, "s1": 0}
    assert not played.asked
    played.want("s1")
    assert (played.at["s1"], played.asked) == (1, True), "one was taken, so there is room for the next"


def test_an_ended_source_delays_no_other_source() -> None:
    played = Played(9, 9, most=1)
    for _ in range(4):
        played.want("s0")
        played.deliver()
    assert played.at["s0"] == 1
    assert played.trunk.waits
    played.ended.add("s1")  # nobody wants anything of it any more
    played.hear(played.trunk.go_on())
    assert played.asked
    for _ in range(8):
        played.deliver()
        played.want("s0")
    assert played.at["s0"] >= 8


def test_a_restarted_source_restarts_the_stream_at_the_same_partition() -> None:
    played = Played(9)
    for _ in range(5):
        played.want("s0")
        played.deliver()
    played.want("s0")
    played.restart("s0", 2, run_of("r~1"))
    assert played.again == [2]
    assert played.asked, "it was, for what is now its next one"
    played.deliver()
    assert played.at["s0"] == 3


def test_a_partition_under_way_during_a_restart_is_dropped() -> None:
    played = Played(9)
    for _ in range(5):
        played.want("s0")
        played.deliver()
    played.want("s0")
    late = played.part(played.stream)
    played.restart("s0", 2, run_of("r~1"))
    played.asked = False
    played.hear(played.trunk.take(late))
    assert (played.at["s0"], played.asked) == (2, True)


def test_a_sink_is_notified_of_sources_that_do_not_end_together() -> None:
    played = Played(3, 3, uneven=("s1",))
    played.finish()
    end = e.Deliver(R, 3, end=True, sink="t")
    reason = "sources do not end together: partition 3 is missing from some"
    assert [played.trunk.mark_uneven(end, {name, "t"}).uneven for name in ("s0", "s1")] == ["", reason]
    own = e.Deliver(R, 3, end=True, uneven="of its own", sink="t")
    assert played.trunk.mark_uneven(own, {"s1", "t"}) is own


def test_the_end_of_the_stream_ends_every_source() -> None:
    played = Played(5, 7)
    for name, _ in itertools.product(played.lengths, range(2)):
        played.want(name)
        played.deliver()
    played.lengths = dict.fromkeys(played.lengths, played.stream)
    played.at = dict.fromkeys(played.lengths, played.stream)
    played.waits.clear()
    for name in played.lengths:
        played.waits[name] = e.RunOperator(R, name, played.stream)
        played.hear(played.trunk.want(played.waits[name], [*played.lengths].index(name)))
    played.hear(played.trunk.take(e.Deliver(run_of("r/"), played.stream, end=True)))
    assert played.ended == {*played.lengths}


def test_a_new_source_restarts_the_stream_at_the_first_partition_of_the_source() -> None:
    played = Played(9, 9, most=3)
    for _ in range(3):
        for name in played.lengths:
            played.want(name)
        played.deliver()
    played.hear(played.trunk.want(e.RunOperator(R, "new", 2), 5))
    assert played.again == [2], "it was made by trees that did not make the part"
    assert played.asked
    played.asked = False
    part = e.Deliver(run_of("r/"), 2, ("s1 2", "s0 2", "new 2"), 60, sizes=(10, 20, 30), places={1: 0, 0: 1, 5: 2})
    assert [*played.trunk.take(part)] == [e.OperatorFinished(R, "new", 2, "new 2", 30)]


def test_the_requests_of_an_ended_source_are_dropped() -> None:
    played = Played(9, 9)
    played.want("s1")
    played.ended.add("s1")
    played.hear(played.trunk.go_on())
    assert not played.trunk._wanted
