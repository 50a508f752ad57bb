"""The link models: timelines worked out by hand, and what holds for any messages."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.traces.changed import ChangedRates
from thalweg.emulation.traces.pool import Window
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.links import BULK, CONTROL, MODELS, PROBE, LinkRate, ShapedLink, Transfer, max_min_rates
from thalweg.middleware.network.view import Link

HOSTS = "abcd"
KB_A_SECOND = BandwidthTrace("1 kB/s", np.array([0.0]), np.array([8000.0]))
Sent = tuple[float, str, str, int, int]  # (at, source, target, bytes, rank)


class Network:
    """A link model with a queue of events; ``went``: (item, began, ended) in the order of arrival."""

    def __init__(
        self,
        model: str,
        links: Mapping[Link, LinkRate] | None = None,
        startup_s: float = 0.0,
        hosts: str = HOSTS,
        interfaces_bps: Mapping[str, float] = {},
    ) -> None:
        self.links = dict.fromkeys(permutations(hosts, 2), KB_A_SECOND) if links is None else links
        self.model = MODELS[model](self.links, startup_s, self._schedule, self._arrived, interfaces_bps)
        self.now = 0.0
        self.went: list[tuple[Any, float, float]] = []
        self.answers: dict[Any, Sent] = {}  # sent when the item arrives
        self.after_each: Callable[[], None] = lambda: None
        self.waits: dict[int, Transfer] = {}
        self.going: dict[int, Transfer] = {}
        self._queue: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._scheduled = self._sent = 0

    def _schedule(self, at_s: float, call: Callable[[Any], None], what: Any) -> None:
        self._scheduled += 1
        heapq.heappush(self._queue, (at_s, self._scheduled, call, what))
        if isinstance(what, Transfer):
            assert what.number in self.waits, "it goes a second time"
            self.going[what.number] = self.waits.pop(what.number)

    def _arrived(self, transfer: Transfer) -> None:
        del self.going[transfer.number]
        assert (self.now, transfer.took_s) == (transfer.ends_s, transfer.ends_s - transfer.began_s)
        self.went.append((transfer.item, transfer.began_s, self.now))
        if transfer.item in self.answers:
            self.send(f"answer to {transfer.item}", *self.answers[transfer.item])

    def send(self, item: Any, at_s: float, source: str, target: str, size_bytes: int, rank: int = BULK) -> None:
        self._sent += 1
        transfer = Transfer(self._sent, source, target, size_bytes, rank, item)
        self.waits[transfer.number] = transfer
        self.model.send(transfer, self.now)

    def run(self, sends: Sequence[Sent]) -> list[tuple[Any, float, float]]:
        """Send all, each at its time and named by its number in the list; what went, in the order of arrival."""
        for number, sent in enumerate(sends):
            self._schedule(sent[0], lambda given: self.send(*given), (number, *sent))
        while self._queue:
            self.now, _, call, what = heapq.heappop(self._queue)
            call(what)
            if not self._queue or self._queue[0][0] > self.now:
                self.after_each()
        return self.went


def sent(rank: int, at_s: float, source: str, target: str, seconds: float) -> Sent:
    return at_s, source, target, round(seconds * 1000), rank


bulk, probe, control = (partial(sent, rank) for rank in (BULK, PROBE, CONTROL))


pairs = st.sampled_from([*permutations(HOSTS, 2)])
whens = st.one_of(st.integers(0, 20).map(float), st.floats(0, 20))  # many at the same time
messages = st.lists(
    st.tuples(whens, pairs, st.integers(0, 5000), st.sampled_from([CONTROL, PROBE, BULK])).map(
        lambda given: (given[0], *given[1], given[2], given[3])
    ),
    max_size=40,
)


# --- one at a time ------------------------------------------------------------------------------------


def test_a_host_sends_or_receives_one_message_at_a_time() -> None:
    sends = [bulk(0, "a", "b", 4), bulk(0, "a", "c", 3), bulk(0, "c", "b", 2), bulk(1, "d", "a", 1)]
    # c -> b is younger than a -> c: when a and b are idle at 4 s, it waits for c
    assert Network("single").run(sends) == [(0, 0.0, 4.0), (1, 4.0, 7.0), (3, 7.0, 8.0), (2, 7.0, 9.0)]


def test_control_goes_before_probes_and_these_before_partitions_the_oldest_first() -> None:
    sends = [
        bulk(0.0, "a", "b", 4),
        bulk(1.0, "a", "b", 2),
        bulk(1.1, "b", "a", 2),
        probe(1.2, "a", "b", 1),
        probe(1.3, "b", "a", 1),
        control(1.4, "b", "a", 0.5),
        control(1.5, "a", "b", 0.5),
    ]
    assert Network("single").run(sends) == [
        (0, 0.0, 4.0), (5, 4.0, 4.5), (6, 4.5, 5.0), (3, 5.0, 6.0), (4, 6.0, 7.0), (1, 7.0, 9.0), (2, 9.0, 11.0),
    ]  # fmt: skip


def test_what_cannot_go_holds_up_nothing_behind_it() -> None:
    sends = [bulk(0, "b", "c", 9), bulk(1, "a", "b", 1), bulk(2, "a", "d", 3), control(3, "d", "b", 1)]
    # a -> b waits for b; a -> d, which is younger and of no higher rank, goes at once
    assert Network("single").run(sends) == [(2, 2.0, 5.0), (0, 0.0, 9.0), (3, 9.0, 10.0), (1, 10.0, 11.0)]


def test_both_ends_are_busy_until_a_message_is_through_and_other_hosts_are_not() -> None:
    sends = [bulk(0, "a", "b", 4), bulk(0, "c", "d", 5), bulk(1, "b", "c", 1), bulk(1, "d", "a", 1)]
    assert Network("single").run(sends) == [(0, 0.0, 4.0), (1, 0.0, 5.0), (2, 5.0, 6.0), (3, 5.0, 6.0)]


def test_a_host_does_not_rest_as_what_it_would_have_taken_up_first_went_with_the_other() -> None:
    """At 4 s a and b are free: c has something older for a than for b, and b still has something for d."""
    sends = [bulk(0, "a", "b", 4), bulk(1, "c", "a", 2), bulk(1, "c", "b", 2), bulk(1, "b", "d", 2)]
    assert Network("single").run(sends) == [(0, 0.0, 4.0), (1, 4.0, 6.0), (3, 4.0, 6.0), (2, 6.0, 8.0)]
    sends = [
        probe(0, "a", "b", 4),
        probe(1, "c", "a", 2),
        probe(1, "c", "b", 2),
        bulk(1, "b", "d", 1),
        probe(2, "b", "d", 2),
    ]
    assert Network("single").run(sends)[1:3] == [(1, 4.0, 6.0), (4, 4.0, 6.0)]  # a younger probe before a partition


def test_what_an_arrival_gives_rise_to_waits_with_the_rest() -> None:
    network = Network("single")
    network.answers = {0: control(0, "b", "a", 1), 1: bulk(0, "b", "a", 1)}
    assert network.run([bulk(0, "a", "b", 4), bulk(1, "a", "b", 2)]) == [
        (0, 0.0, 4.0), ("answer to 0", 4.0, 5.0), (1, 5.0, 7.0), ("answer to 1", 7.0, 8.0),
    ]  # fmt: skip


# --- every link for itself ----------------------------------------------------------------------------


def test_independent_links_are_queues_of_their_own() -> None:
    sends = [
        bulk(0, "a", "b", 4), bulk(1, "a", "b", 2), probe(2, "a", "b", 1), bulk(1, "a", "c", 2), bulk(1, "b", "a", 1),
    ]  # fmt: skip
    assert Network("independent").run(sends) == [
        (4, 1.0, 2.0), (3, 1.0, 3.0), (0, 0.0, 4.0), (1, 4.0, 6.0), (2, 6.0, 7.0),  # probes wait their turn
    ]  # fmt: skip


def test_control_messages_pass_independent_links_by() -> None:
    sends = [bulk(0, "a", "b", 4), control(1, "a", "b", 1), control(1.5, "a", "b", 1), bulk(2, "a", "b", 1)]
    assert Network("independent").run(sends) == [(1, 1.0, 2.0), (2, 1.5, 2.5), (0, 0.0, 4.0), (3, 4.0, 5.0)]


# --- shared interfaces ----------------------------------------------------------------------------------


def test_an_interface_is_shared_by_what_a_host_sends_and_receives_and_what_is_left_goes_to_others() -> None:
    sends = [bulk(0, "a", "b", 2), bulk(0, "c", "a", 2), bulk(0, "c", "b", 2), bulk(0, "d", "c", 1)]
    network = Network("shared", interfaces_bps={"a": 8000.0, "b": 12_000.0})
    # a's kB/s is halved between two; b has 1.5: the third takes the whole 1 kB/s that is left, its link's
    assert network.run(sends) == [(3, 0.0, 1.0), (2, 0.0, 2.0), (0, 0.0, 4.0), (1, 0.0, 4.0)]
    alone = Network("shared", interfaces_bps={"a": 2000.0}).run([bulk(0, "a", "b", 1), bulk(1, "a", "b", 1)])
    assert alone == [(0, 0.0, 4.0), (1, 4.0, 8.0)]  # one after the other on a link


def test_rates_are_shared_anew_when_a_message_begins_or_ends_and_when_a_link_changes() -> None:
    steps = BandwidthTrace("steps", np.array([0.0, 4.0]), np.array([2000.0, 8000.0]), 100.0)
    links: dict[Link, LinkRate] = {Link("a", "b"): steps, Link("a", "c"): KB_A_SECOND, Link("c", "a"): KB_A_SECOND}
    sends = [bulk(0, "a", "b", 3), bulk(0, "a", "c", 4), control(1, "c", "a", 1)]
    # 0.25 and 0.75 kB/s until 4 s, then half each until the second is through at 6 s; control passes them by
    went = Network("shared", links, interfaces_bps={"a": 8000.0}).run(sends)
    assert went == [(2, 1.0, 2.0), (1, 0.0, 6.0), (0, 0.0, 7.0)]


@given(
    st.lists(st.tuples(pairs, st.floats(0, 10)), min_size=1, max_size=12),
    st.dictionaries(st.sampled_from(HOSTS), st.floats(0.1, 20)),
)
def test_shared_rates_are_max_min_fair(flows: list[tuple[tuple[str, str], float]], limits: dict[str, float]) -> None:
    """None exceeds its link, no interface is exceeded, and whatever does not fill its link is at a full interface
    where none of the others is faster."""
    ends, most = [end for end, _ in flows], [rate for _, rate in flows]
    rates = max_min_rates(most, ends, limits)
    used = {host: sum(rate for rate, end in zip(rates, ends, strict=True) if host in end) for host in limits}
    assert all(used[host] <= limit + 1e-9 for host, limit in limits.items())
    for rate, end, limit in zip(rates, ends, most, strict=True):
        assert rate <= limit
        full = [host for host in end if host in limits and used[host] >= limits[host] - 1e-9]
        fastest = (max(r for r, other in zip(rates, ends, strict=True) if host in other) for host in full)
        assert rate == limit or any(rate >= most_here - 1e-9 for most_here in fastest)


@given(messages, st.sampled_from([0.0, 0.5]))
def test_without_limits_shared_links_are_independent_ones(sends: list[Sent], startup_s: float) -> None:
    steps = BandwidthTrace("steps", np.array([0.0, 0.3, 1.1]), np.array([8000.0, 0.0, 20_000.0]), 1.7)
    outage = ChangedRates([0.0, 2.0, 5.0], [steps, BandwidthTrace.constant("cut", 0.0), steps])
    links: dict[Link, LinkRate] = dict.fromkeys(permutations(HOSTS, 2), outage)
    links |= {Link("a", "b"): Window(steps, 1.0), Link("b", "a"): KB_A_SECOND}
    one, other = ({item: times for item, *times in Network(model, links, startup_s).run(sends)}
                  for model in ("shared", "independent"))  # fmt: skip
    assert one.keys() == other.keys()
    for item, times in one.items():
        assert times == pytest.approx(other[item], abs=1e-9)


# --- all ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_a_message_takes_the_start_up_cost_and_then_its_bytes_over_the_traces_steps(model: str) -> None:
    steps = BandwidthTrace("steps", np.array([0.0, 2.0, 5.0]), np.array([8000.0, 0.0, 16_000.0]), 10.0)
    links: dict[Link, LinkRate] = {("a", "b"): steps, ("b", "a"): Window(steps, 5.0)}
    sends = [bulk(0.0, "a", "b", 2.5), bulk(20.0, "b", "a", 2.0), control(30.0, "a", "b", 0.0)]
    took = [(item, ended - began) for item, began, ended in Network(model, links, startup_s=0.5).run(sends)]
    # 0.5 s of start-up, 1.5 kB until 2 s, nothing until 5 s, the last of it at twice the rate; then 2 kB in 1 s of it
    assert took == [(0, pytest.approx(5.5)), (1, pytest.approx(1.5)), (2, 0.5)]


@pytest.mark.parametrize("model", MODELS)
def test_hosts_without_a_link_are_an_error(model: str) -> None:
    with pytest.raises(KeyError):
        Network(model).run([bulk(0, "a", "z", 1)])


# --- for any messages ---------------------------------------------------------------------------------


@given(messages, st.sampled_from([0.0, 0.5]), st.sampled_from([*MODELS]))
def test_nothing_is_lost_and_nothing_goes_twice(sends: list[Sent], startup_s: float, model: str) -> None:
    went = Network(model, startup_s=startup_s).run(sends)
    assert sorted(item for item, _, _ in went) == list(range(len(sends)))
    for item, began_s, ended_s in went:
        assert began_s >= sends[item][0]
        assert ended_s - began_s == pytest.approx(startup_s + sends[item][3] / 1000)


@given(messages, st.sampled_from([0.0, 0.5]))
def test_a_single_interface_is_never_busy_with_two_and_never_rests_while_it_could_work(
    sends: list[Sent], startup_s: float
) -> None:
    network = Network("single", startup_s=startup_s)

    def check() -> None:
        busy = [host for each in network.going.values() for host in (each.source, each.target)]
        assert len(busy) == len(set(busy)), "a host is busy with two"
        for each in network.waits.values():
            assert each.source in busy or each.target in busy, f"{each.source} and {each.target} rest"

    network.after_each = check
    went = {item: (began_s, ended_s) for item, began_s, ended_s in network.run(sends)}
    for one, other in combinations(range(len(sends)), 2):
        if set(sends[one][1:3]) & set(sends[other][1:3]):
            assert went[one][1] <= went[other][0] or went[other][1] <= went[one][0]


@given(messages)
def test_a_single_interface_starts_nothing_before_what_could_go_as_well_and_has_precedence(sends: list[Sent]) -> None:
    """Of two messages that wait between the same two hosts the one of lower rank, or else the older one, goes first."""
    network = Network("single")
    went = {item: began_s for item, began_s, _ in network.run(sends)}
    order = sorted(range(len(sends)), key=lambda number: sends[number][0])  # by age
    for older, younger in combinations(order, 2):
        if set(sends[older][1:3]) == set(sends[younger][1:3]) and sends[older][4] <= sends[younger][4]:
            assert went[older] <= went[younger]


@given(messages)
def test_independent_links_carry_bulk_in_order_without_rest_and_control_at_once(sends: list[Sent]) -> None:
    went = {item: (began_s, ended_s) for item, began_s, ended_s in Network("independent").run(sends)}
    for link in permutations(HOSTS, 2):
        free_s = 0.0
        for number in sorted(range(len(sends)), key=lambda number: sends[number][0]):
            at_s, source, target, size_bytes, rank = sends[number]
            if (source, target) == link:
                begins_s = at_s if rank == CONTROL else max(at_s, free_s)
                assert went[number][0] == begins_s
                assert went[number][1] == pytest.approx(begins_s + size_bytes / 1000)
                if rank != CONTROL:
                    free_s = went[number][1]


# --- delays and losses ------------------------------------------------------------------------------


def shaped(model: str, sizes: Sequence[int], limit_bps: float = 0.0, **figures: Any) -> list[tuple[float, float]]:
    """When each of some messages from a to b, all sent at 0, had left and was there; links of 1 kB/s so shaped."""
    shape = LinkShape(8000.0, **figures)
    rates = BandwidthTrace("cut", np.array([0.0]), np.array([0.0])) if shape.cut else KB_A_SECOND
    links = {link: ShapedLink(rates, [(0.0, shape)], "a link") for link in permutations("ab", 2)}
    queue: list[tuple[float, int, Callable[[Any], None], Any]] = []
    numbers = iter(range(1000))
    there: list[tuple[float, float]] = []
    now = 0.0

    def schedule(at_s: float, call: Callable[[Any], None], what: Any) -> None:
        heapq.heappush(queue, (at_s, next(numbers), call, what))

    limits = {"a": limit_bps} if limit_bps else {}
    network = MODELS[model](links, 0.0, schedule, lambda transfer: there.append((transfer.ends_s, now)), limits)
    for number, size in enumerate(sizes):
        network.send(Transfer(number, "a", "b", size, BULK, None), 0.0)
    while queue:
        now, _, call, what = heapq.heappop(queue)
        call(what)
    return there


@pytest.mark.parametrize("model", MODELS)
def test_a_message_is_there_a_delay_after_it_left_while_the_next_one_goes(model: str) -> None:
    assert shaped(model, [1000, 2000], delay_s=5.0) == [(1.0, 6.0), (3.0, 8.0)]


@pytest.mark.parametrize("distribution", ["uniform", "normal", "pareto", "paretonormal"])
def test_delays_vary_and_nothing_overtakes(distribution: str) -> None:
    found = shaped("independent", [1000] * 60, delay_s=5.0, jitter_s=3.0, distribution=distribution)
    assert [left for left, _ in found] == [float(i + 1) for i in range(60)]
    arrivals = [there for _, there in found]
    assert arrivals == sorted(arrivals)
    assert len({round(there - left, 6) for left, there in found}) > 20
    assert found == shaped("independent", [1000] * 60, delay_s=5.0, jitter_s=3.0, distribution=distribution)


@pytest.mark.parametrize("model", ["independent", "shared"])
def test_what_is_lost_takes_the_link_again_and_a_round_trip(model: str) -> None:
    plain, lossy = (shaped(model, [144_800], delay_s=1.0, **figures)[0][0] for figures in ({}, {"loss": 0.1}))
    assert lossy > plain + 2.0 + 1.448
    assert shaped(model, [144_800], duplicate=0.5)[0][0] == pytest.approx(144.8 * 1.5)


@pytest.mark.parametrize("model", MODELS)
def test_a_link_that_is_cut_for_good_carries_nothing(model: str) -> None:
    assert shaped(model, [1000, 1000], cut=True) == []


@pytest.mark.parametrize("model", ["independent", "shared"])
def test_a_limited_interface_sends_at_its_rate(model: str) -> None:
    assert [left for left, _ in shaped(model, [1000, 1000], limit_bps=4000.0)] == [2.0, 4.0]
