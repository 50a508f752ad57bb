"""The link models: timelines worked out by hand, and properties for all messages."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations, pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.emulation.links.shape import LinkShape, Queue
from thalweg.emulation.traces.changed import ChangedRates
from thalweg.emulation.traces.pool import Window
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.links import (
    BULK,
    CONTROL,
    MODELS,
    MOST_OVERTAKEN,
    PROBE,
    LinkRate,
    ShapedLink,
    Transfer,
    max_min_rates,
)
from thalweg.middleware.network.view import Link

HOSTS = "abcd"
KB_A_SECOND = BandwidthTrace("1 kB/s", np.array([0.0]), np.array([8000.0]))
MEGABIT = BandwidthTrace.constant("megabit", 1e6)
Links = Mapping[Link, LinkRate]
Sent = tuple[float, str, str, int, int]  # (at, source, target, bytes, rank)


class Network:
    """A link model with a queue of events. ``went`` has (item, began, ended) in the order of arrival."""

    def __init__(
        self,
        model: str,
        links: Links | None = None,
        startup_s: float = 0.0,
        hosts: str = HOSTS,
        **config: Any,
    ) -> None:
        self.links = dict.fromkeys(permutations(hosts, 2), KB_A_SECOND) if links is None else links
        self.model = MODELS[model](
            self.links, WorldConfig(startup_s=startup_s, **config), self._schedule, self._arrived
        )
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
        if isinstance(what, Transfer) and call != self._arrived:
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
        """Send every message at its time, with its number in the list as item. Return ``went``."""
        for number, sent in enumerate(sends):
            self._schedule(sent[0], lambda given: self.send(*given), (number, *sent))
        while self._queue:
            self.now, _, call, argument = heapq.heappop(self._queue)
            call(argument)
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


def test_control_messages_go_before_probes_and_probes_before_partitions_oldest_first() -> None:
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


def test_a_blocked_message_does_not_delay_later_messages() -> None:
    sends = [bulk(0, "b", "c", 9), bulk(1, "a", "b", 1), bulk(2, "a", "d", 3), control(3, "d", "b", 1)]
    # a -> b waits for b; a -> d, which is younger and of no higher rank, goes at once
    assert Network("single").run(sends) == [(2, 2.0, 5.0), (0, 0.0, 9.0), (3, 9.0, 10.0), (1, 10.0, 11.0)]


def test_a_message_keeps_both_ends_busy_and_no_other_host() -> None:
    sends = [bulk(0, "a", "b", 4), bulk(0, "c", "d", 5), bulk(1, "b", "c", 1), bulk(1, "d", "a", 1)]
    assert Network("single").run(sends) == [(0, 0.0, 4.0), (1, 0.0, 5.0), (2, 5.0, 6.0), (3, 5.0, 6.0)]


def test_a_free_host_sends_a_younger_message_while_the_older_message_is_blocked() -> None:
    """At 4 s a and b are free. The older message of c goes to a, so b sends its message to d."""
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


def test_a_control_message_between_two_busy_hosts_is_overtaken_only_so_often() -> None:
    """a and b are never idle at the same time, until one of them is kept idle for the control message."""
    sends = [bulk(0, "a", "c", 2)] * 60 + [bulk(1, "b", "d", 2)] * 60 + [control(1.5, "a", "b", 0.5)]
    went = {item: began_s for item, began_s, _ in Network("single").run(sends)}
    assert len(went) == len(sends)
    assert sum(1.5 < began_s < went[120] for began_s in went.values()) == MOST_OVERTAKEN
    assert went[120] == 43.0, "the 20th later partition of b leaves then, and a has been idle since 42 s"


def test_an_answer_to_a_message_queues_with_the_waiting_messages() -> None:
    network = Network("single")
    network.answers = {0: control(0, "b", "a", 1), 1: bulk(0, "b", "a", 1)}
    assert network.run([bulk(0, "a", "b", 4), bulk(1, "a", "b", 2)]) == [
        (0, 0.0, 4.0), ("answer to 0", 4.0, 5.0), (1, 5.0, 7.0), ("answer to 1", 7.0, 8.0),
    ]  # fmt: skip


# --- every link for itself ----------------------------------------------------------------------------


def test_every_independent_link_has_a_separate_queue() -> None:
    sends = [
        bulk(0, "a", "b", 4), bulk(1, "a", "b", 2), probe(2, "a", "b", 1), bulk(1, "a", "c", 2), bulk(1, "b", "a", 1),
    ]  # fmt: skip
    assert Network("independent").run(sends) == [
        (4, 1.0, 2.0), (3, 1.0, 3.0), (0, 0.0, 4.0), (1, 4.0, 6.0), (2, 6.0, 7.0),  # probes wait their turn
    ]  # fmt: skip


def test_control_messages_bypass_the_queues_of_independent_links() -> None:
    sends = [bulk(0, "a", "b", 4), control(1, "a", "b", 1), control(1.5, "a", "b", 1), bulk(2, "a", "b", 1)]
    assert Network("independent").run(sends) == [(1, 1.0, 2.0), (2, 1.5, 2.5), (0, 0.0, 4.0), (3, 4.0, 5.0)]


# --- shared interfaces ----------------------------------------------------------------------------------


def test_messages_of_a_host_share_the_interface_and_unused_rate_goes_to_other_messages() -> None:
    sends = [bulk(0, "a", "b", 2), bulk(0, "c", "a", 2), bulk(0, "c", "b", 2), bulk(0, "d", "c", 1)]
    network = Network("shared", interfaces_bps={"a": 8000.0, "b": 12_000.0})
    # a's kB/s is halved between two; b has 1.5: the third takes the whole 1 kB/s that is left, its link's
    assert network.run(sends) == [(3, 0.0, 1.0), (2, 0.0, 2.0), (0, 0.0, 4.0), (1, 0.0, 4.0)]
    alone = Network("shared", interfaces_bps={"a": 2000.0}).run([bulk(0, "a", "b", 1), bulk(1, "a", "b", 1)])
    assert alone == [(0, 0.0, 4.0), (1, 4.0, 8.0)]  # one after the other on a link


def test_rates_are_shared_again_when_a_message_starts_or_ends_or_a_link_changes() -> None:
    steps = BandwidthTrace("steps", np.array([0.0, 4.0]), np.array([2000.0, 8000.0]), 100.0)
    links: dict[Link, LinkRate] = {Link("a", "b"): steps, Link("a", "c"): KB_A_SECOND, Link("c", "a"): KB_A_SECOND}
    sends = [bulk(0, "a", "b", 3), bulk(0, "a", "c", 4), control(1, "c", "a", 1)]
    # 0.25 and 0.75 kB/s until 4 s, then half each until the second is through at 6 s; control passes them by
    went = Network("shared", links, interfaces_bps={"a": 8000.0}).run(sends)
    assert went == [(2, 1.0, 2.0), (1, 0.0, 6.0), (0, 0.0, 7.0)]


few_limits = st.dictionaries(st.sampled_from(HOSTS), st.floats(0.1, 20))


@given(st.lists(st.tuples(pairs, st.floats(0, 10)), min_size=1, max_size=12), few_limits, few_limits, few_limits)
def test_shared_rates_are_max_min_fair(
    flows: list[tuple[tuple[str, str], float]], both: dict[str, float], up: dict[str, float], down: dict[str, float]
) -> None:
    """No rate exceeds its link, and no limit is exceeded.

    A flow that does not fill its link is bound by a full limit in which no other flow is faster.
    """
    ends, most = [end for end, _ in flows], [rate for _, rate in flows]
    rates = max_min_rates(most, ends, both, up, down)
    limits = [  # each with those that it bounds
        *((limit, [i for i, end in enumerate(ends) if host in end]) for host, limit in both.items()),
        *((limit, [i for i, end in enumerate(ends) if host == end[0]]) for host, limit in up.items()),
        *((limit, [i for i, end in enumerate(ends) if host == end[1]]) for host, limit in down.items()),
    ]
    used = [sum(rates[i] for i in bound) for _, bound in limits]
    assert all(total <= limit + 1e-9 for total, (limit, _) in zip(used, limits, strict=True))
    full = [bound for total, (limit, bound) in zip(used, limits, strict=True) if total >= limit - 1e-9]
    for i, rate in enumerate(rates):
        assert rate <= most[i]
        assert rate == most[i] or any(rate >= max(rates[k] for k in bound) - 1e-9 for bound in full if i in bound)


@given(messages, st.sampled_from([0.0, 0.5]))
def test_shared_links_without_limits_act_like_independent_links(sends: list[Sent], startup_s: float) -> None:
    steps = BandwidthTrace("steps", np.array([0.0, 0.3, 1.1]), np.array([8000.0, 0.0, 20_000.0]), 1.7)
    outage = ChangedRates([0.0, 2.0, 5.0], [steps, BandwidthTrace.constant("cut", 0.0), steps])
    links: dict[Link, LinkRate] = dict.fromkeys(permutations(HOSTS, 2), outage)
    links |= {Link("a", "b"): Window(steps, 1.0), Link("b", "a"): KB_A_SECOND}
    shared, independent = (
        {item: times for item, *times in Network(model, links, startup_s).run(sends)}
        for model in ("shared", "independent")
    )
    assert shared.keys() == independent.keys()
    for item, times in shared.items():
        assert times == pytest.approx(independent[item], abs=1e-9)


# --- all ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_a_message_takes_the_start_up_cost_and_the_transfer_time_over_the_trace(model: str) -> None:
    steps = BandwidthTrace("steps", np.array([0.0, 2.0, 5.0]), np.array([8000.0, 0.0, 16_000.0]), 10.0)
    links: dict[Link, LinkRate] = {("a", "b"): steps, ("b", "a"): Window(steps, 5.0)}
    sends = [bulk(0.0, "a", "b", 2.5), bulk(20.0, "b", "a", 2.0), control(30.0, "a", "b", 0.0)]
    took = [(item, ended - began) for item, began, ended in Network(model, links, startup_s=0.5).run(sends)]
    # 0.5 s of start-up, 1.5 kB until 2 s, nothing until 5 s, the last of it at twice the rate; then 2 kB in 1 s of it
    assert took == [(0, pytest.approx(5.5)), (1, pytest.approx(1.5)), (2, 0.5)]


@pytest.mark.parametrize("model", MODELS)
def test_a_message_between_hosts_without_a_link_is_an_error(model: str) -> None:
    with pytest.raises(KeyError):
        Network(model).run([bulk(0, "a", "z", 1)])


# --- for any messages ---------------------------------------------------------------------------------


@given(messages, st.sampled_from([0.0, 0.5]), st.sampled_from([*MODELS]))
def test_every_message_arrives_exactly_once(sends: list[Sent], startup_s: float, model: str) -> None:
    went = Network(model, startup_s=startup_s).run(sends)
    assert sorted(item for item, _, _ in went) == list(range(len(sends)))
    for item, began_s, ended_s in went:
        assert began_s >= sends[item][0]
        assert ended_s - began_s == pytest.approx(startup_s + sends[item][3] / 1000)


@given(messages, st.sampled_from([0.0, 0.5]))
def test_a_single_interface_never_carries_two_messages_and_never_idles_needlessly(
    sends: list[Sent], startup_s: float
) -> None:
    network = Network("single", startup_s=startup_s)

    def check() -> None:
        busy = [host for transfer in network.going.values() for host in (transfer.source, transfer.target)]
        assert len(busy) == len(set(busy)), "a host is busy with two"
        for transfer in network.waits.values():
            assert transfer.source in busy or transfer.target in busy, f"{transfer.source} and {transfer.target} rest"

    network.after_each = check
    went = {item: (began_s, ended_s) for item, began_s, ended_s in network.run(sends)}
    for one, other in combinations(range(len(sends)), 2):
        if set(sends[one][1:3]) & set(sends[other][1:3]):
            assert went[one][1] <= went[other][0] or went[other][1] <= went[one][0]


@given(messages)
def test_messages_between_the_same_hosts_start_by_rank_and_then_by_age(sends: list[Sent]) -> None:
    """Of two messages that wait between the same hosts, the lower rank or else the older message starts first."""
    network = Network("single")
    went = {item: began_s for item, began_s, _ in network.run(sends)}
    order = sorted(range(len(sends)), key=lambda number: sends[number][0])  # by age
    for older, younger in combinations(order, 2):
        if set(sends[older][1:3]) == set(sends[younger][1:3]) and sends[older][4] <= sends[younger][4]:
            assert went[older] <= went[younger]


@given(messages)
def test_independent_links_carry_bulk_in_order_without_idling_and_control_at_once(sends: list[Sent]) -> None:
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


def shaped(
    model: str, sizes: Sequence[int], limits: Mapping[str, Mapping[str, float]] = {}, **figures: Any
) -> list[tuple[float, float]]:
    """Send messages from a to b at 0 s over shaped links of 1 kB/s. Return departure and arrival of every message."""
    shape = LinkShape(8000.0, **figures)
    rates = BandwidthTrace("cut", np.array([0.0]), np.array([0.0])) if shape.cut else KB_A_SECOND
    links = {link: ShapedLink(rates, [(0.0, shape)], "a link") for link in permutations("ab", 2)}
    queue: list[tuple[float, int, Callable[[Any], None], Any]] = []
    numbers = itertools.count()
    arrivals: list[tuple[float, float]] = []
    now = 0.0

    def schedule(at_s: float, call: Callable[[Any], None], what: Any) -> None:
        heapq.heappush(queue, (at_s, next(numbers), call, what))

    config = WorldConfig(startup_s=0.0, **limits)  # type: ignore[arg-type]
    network = MODELS[model](links, config, schedule, lambda transfer: arrivals.append((transfer.ends_s, now)))
    for number, size in enumerate(sizes):
        network.send(Transfer(number, "a", "b", size, BULK, None), 0.0)
    while queue:
        now, _, call, argument = heapq.heappop(queue)
        call(argument)
    return arrivals


@pytest.mark.parametrize("model", MODELS)
def test_a_message_arrives_a_delay_after_departure_while_the_next_message_is_sent(model: str) -> None:
    assert shaped(model, [1000, 2000], delay_s=5.0) == [(1.0, 6.0), (3.0, 8.0)]


@pytest.mark.parametrize("distribution", ["uniform", "normal", "pareto", "paretonormal"])
def test_jittered_delays_vary_and_no_message_overtakes(distribution: str) -> None:
    times = shaped("independent", [1000] * 60, delay_s=5.0, jitter_s=3.0, distribution=distribution)
    assert [left for left, _ in times] == [float(i + 1) for i in range(60)]
    arrivals = [arrived for _, arrived in times]
    assert arrivals == sorted(arrivals)
    assert len({round(arrived - left, 6) for left, arrived in times}) > 20
    assert times == shaped("independent", [1000] * 60, delay_s=5.0, jitter_s=3.0, distribution=distribution)


@pytest.mark.parametrize("model", ["independent", "shared"])
def test_lost_packets_take_the_link_again_and_a_round_trip(model: str) -> None:
    plain, lossy = (shaped(model, [144_800], delay_s=1.0, **figures)[0][0] for figures in ({}, {"loss": 0.1}))
    assert lossy > plain + 2.0 + 1.448
    assert shaped(model, [144_800], duplicate=0.5)[0][0] == pytest.approx(144.8 * 1.5)


def test_losses_in_bursts_hit_fewer_messages_and_more_packets_per_message() -> None:
    sizes = [14_480] * 600  # ten packets each

    def lost(**figures: float) -> tuple[float, float]:
        """Return the share of lost packets, repeated losses included, and the share of messages that lose a packet."""
        left = [0.0, *(left for left, _ in shaped("independent", sizes, loss=0.1, **figures))]
        more_s = [after - before - 14.48 for before, after in pairwise(left)]
        return sum(more_s) / 1.448 / 6000, sum(more > 0.01 for more in more_s) / 600

    independent, in_bursts = lost(), lost(loss_burst=10.0)
    assert independent == (pytest.approx(0.11, abs=0.02), pytest.approx(1 - 0.9**10, abs=0.06))
    assert in_bursts[0] == pytest.approx(0.14, abs=0.06)  # what is sent again at once is lost in the same way
    assert in_bursts[1] == pytest.approx(1 - 0.9 * (1 - 0.1 / 9) ** 9, abs=0.06)


@pytest.mark.parametrize("model", MODELS)
def test_a_link_that_is_cut_for_good_carries_nothing(model: str) -> None:
    assert shaped(model, [1000, 1000], cut=True) == []


@pytest.mark.parametrize("model", ["independent", "shared"])
@pytest.mark.parametrize(
    ("limits", "times"),
    [
        ({"interfaces_bps": {"a": 4000.0}}, [2.0, 4.0]),
        ({"up_bps": {"a": 4000.0}}, [2.0, 4.0]),
        ({"down_bps": {"b": 4000.0}}, [2.0, 4.0]),
        ({"up_bps": {"b": 4000.0}, "down_bps": {"a": 4000.0}}, [1.0, 2.0]),  # of the other way
        ({"interfaces_bps": {"a": 4000.0}, "up_bps": {"a": 2000.0}}, [4.0, 8.0]),
        ({"interfaces_bps": {"b": 2000.0}, "down_bps": {"b": 4000.0}}, [4.0, 8.0]),
        ({"up_bps": {"a": 6000.0}, "down_bps": {"b": 5000.0}}, [1.6, 3.2]),
    ],
)
def test_a_host_sends_and_receives_at_the_lesser_of_its_rates(
    model: str, limits: Mapping[str, Mapping[str, float]], times: list[float]
) -> None:
    assert [left for left, _ in shaped(model, [1000, 1000], limits)] == pytest.approx(times)


def steady(rates: LinkRate | float = 8000.0, *shapes: tuple[float, LinkShape], hosts: str = HOSTS) -> Links:
    """Return shaped links between all hosts without delays. At 1 kB/s a usual queue has its least size, 9.084 s."""
    followed = BandwidthTrace.constant("steady", rates) if isinstance(rates, float) else rates
    followed_shapes = shapes or ((0.0, LinkShape(8000.0)),)
    return {Link(*pair): ShapedLink(followed, followed_shapes, " ".join(pair)) for pair in permutations(hosts, 2)}


def test_independent_links_of_a_host_take_turns_at_the_up_and_the_down_rate() -> None:
    network = Network("independent", steady(), up_bps={"a": 8000.0}, down_bps={"a": 4000.0})
    sends = [bulk(0, "a", "b", 1), bulk(0, "a", "c", 1), bulk(0, "b", "a", 1), bulk(0, "d", "a", 1)]
    assert network.run(sends) == [(0, 0.0, 1.0), (1, 0.0, 2.0), (2, 0.0, 2.0), (3, 0.0, 4.0)]


def test_shared_links_divide_an_up_rate_among_sent_and_a_down_rate_among_received_messages() -> None:
    sends = [bulk(0, "a", "b", 1), bulk(0, "a", "c", 1), bulk(0, "d", "a", 2)]
    network = Network("shared", up_bps={"a": 8000.0})
    assert network.run(sends) == [(0, 0.0, 2.0), (1, 0.0, 2.0), (2, 0.0, 2.0)]
    # the third is all that a receives; a kB/s is its link's
    sends = [bulk(0, "b", "a", 1), bulk(0, "c", "a", 1), bulk(0, "a", "d", 2)]
    network = Network("shared", down_bps={"a": 8000.0})
    assert network.run(sends) == [(0, 0.0, 2.0), (1, 0.0, 2.0), (2, 0.0, 2.0)]


def test_shared_links_divide_an_interface_rate_within_the_up_and_down_rates() -> None:
    network = Network("shared", interfaces_bps={"a": 10_000.0}, up_bps={"a": 4000.0}, down_bps={"a": 5000.0})
    # 0.25 kB/s to each of b and c, 0.625 from d: the interface would leave that 0.75
    assert network.run([bulk(0, "a", "b", 1), bulk(0, "a", "c", 1), bulk(0, "d", "a", 2.5)]) == [
        (0, 0.0, 4.0), (1, 0.0, 4.0), (2, 0.0, 4.0),
    ]  # fmt: skip
    network = Network("shared", interfaces_bps={"a": 6000.0}, up_bps={"a": 2000.0}, down_bps={"a": 8000.0})
    # 0.125 kB/s each, and 0.5 from d; once those are through at 8 s, 0.75 for what is left
    assert network.run([bulk(0, "a", "b", 1), bulk(0, "a", "c", 1), bulk(0, "d", "a", 7)]) == [
        (0, 0.0, 8.0), (1, 0.0, 8.0), (2, 0.0, 12.0),
    ]  # fmt: skip


# --- without a band for control messages ----------------------------------------------------------------


QUEUED = pytest.mark.parametrize("model", ["independent", "shared"])


def ends(network: Network, sends: Sequence[Sent], *items: int) -> list[float]:
    """Return the times at which these messages had passed."""
    times = {item: ended_s for item, _, ended_s in network.run(sends)}
    return [times[item] for item in items]


@QUEUED
def test_a_control_message_waits_for_the_bulk_that_is_already_on_the_link(model: str) -> None:
    sends = [
        bulk(0, "a", "b", 2), probe(0, "a", "b", 1), bulk(2, "a", "c", 9), control(1, "a", "b", 0.5),
        bulk(1.5, "a", "b", 4),  # comes later, and does not count
        control(1, "b", "a", 0.5), control(1, "a", "c", 0.5), control(20, "a", "b", 0.5),  # beside no bulk
    ]  # fmt: skip
    network = Network(model, control_band=False)
    assert ends(network, sends, 0, 1, 4) == [2.0, 3.0, 7.0]  # it takes nothing from bulk
    assert network.went[0][0] == 5
    times = {item: (began_s, ended_s) for item, began_s, ended_s in network.went}
    assert [times[item] for item in (3, 5, 6, 7)] == [(1.0, 3.5), (1.0, 1.5), (1.0, 1.5), (20.0, 20.5)]


@pytest.mark.parametrize("model", MODELS)
def test_no_control_message_waits_in_a_queue_with_a_band_or_a_single_interface(model: str) -> None:
    sends = [bulk(0, "a", "b", 4), control(1, "a", "b", 2), control(1.5, "a", "b", 1)]
    with_band, without = (Network(model, control_band=banded).run(sends) for banded in (True, False))
    assert with_band == Network(model).run(sends)
    assert (with_band == without) is (model == "single")
    if model != "single":
        assert with_band == [(2, 1.5, 2.5), (1, 1.0, 3.0), (0, 0.0, 4.0)]


@QUEUED
def test_start_up_costs_do_not_count_as_bytes_in_a_queue(model: str) -> None:
    both = [bulk(0, "a", "b", 2), bulk(0, "a", "b", 2)]  # their bytes go from 0.5 to 2.5 s and from 3 to 5 s
    for at_s, end_s in ((0.0, 4.5), (0.5, 4.5), (1.0, 4.5), (2.0, 4.5), (2.25, 4.75), (3.5, 5.0), (4.5, 5.0), (5, 5.5)):
        network = Network(model, startup_s=0.5, control_band=False)
        assert ends(network, [*both, control(at_s, "a", "b", 0)], 0, 1, 2) == [2.5, 5.0, end_s]


@QUEUED
def test_a_control_message_waits_at_most_for_a_full_queue(model: str) -> None:
    megabit: Links = dict.fromkeys(permutations(HOSTS, 2), MEGABIT)
    sends = [bulk(0, "a", "b", 125), control(0.2, "a", "b", 1.25), control(0.95, "a", "b", 1.25)]  # 1 s of bulk
    for links in (megabit, steady(1e6)):
        times = ends(Network(model, links, control_band=False), sends, 0, 1, 2)
        assert times == pytest.approx([1.0, 0.31, 1.01])  # the usual queue: 100 ms; 50 ms of bulk are left
    sends = [bulk(0, "a", "b", 60), control(1, "a", "b", 1)]
    for slow in (None, steady()):
        assert ends(Network(model, slow, control_band=False), sends, 1) == pytest.approx([11.084])  # six frames


@QUEUED
@pytest.mark.parametrize(
    ("queue", "waits_s"),
    [(Queue(0.5), 0.5), (Queue(0.01), 0.072672), (Queue(25_000, "bytes"), 0.2), (Queue(10, "packets"), 0.12112)],
)
def test_the_wait_of_a_control_message_follows_the_queue_of_the_link(model: str, queue: Queue, waits_s: float) -> None:
    network = Network(model, steady(1e6, (0.0, LinkShape(1e6, queue=queue))), control_band=False)
    sends = [bulk(0, "a", "b", 250), control(1, "a", "b", 1.25)]
    assert ends(network, sends, 1) == pytest.approx([1.01 + waits_s])


@QUEUED
def test_a_queue_has_the_current_size_and_empties_at_the_rates_that_follow(model: str) -> None:
    steps = BandwidthTrace("steps", np.array([0.0, 2.0, 4.0, 5.0]), np.array([1e6, 2e6, 0.0, 1e6]), 100.0)
    shapes = [(0.0, LinkShape(1e6, queue=Queue(0.5))), (2.5, LinkShape(1e6, queue=Queue(0.2)))]
    # 62.5 kB: of which 12.5 until 2 s; 125 kB; 50 kB; six frames (the rate is 0) from 5 s on
    for at_s, end_s in ((1.0, 1.5), (1.9, 2.2), (2.4, 2.9), (3.0, 3.2), (4.5, 5.072672)):
        network = Network(model, steady(steps, *shapes), control_band=False)
        assert ends(network, [bulk(0, "a", "b", 2000), control(at_s, "a", "b", 0)], 1) == pytest.approx([end_s])


@QUEUED
def test_control_messages_of_a_link_stay_in_order(model: str) -> None:
    shapes = (0.0, LinkShape(1e6, queue=Queue(0.5))), (1.0, LinkShape(1e6, queue=Queue(0.1)))
    network = Network(model, steady(1e6, *shapes), control_band=False)
    sends = [bulk(0, "a", "b", 1250), control(0.9, "a", "b", 0.125), control(1.1, "a", "b", 0.125)]
    network.run(sends)
    assert [item for item, _, _ in network.went] == [1, 2, 0]
    assert [ended_s for _, _, ended_s in network.went] == pytest.approx([1.401, 1.401, 10.0])  # not at 1.201
    sends = [control(0, "a", "b", 4), control(1, "a", "b", 1), control(1, "a", "c", 1)]
    assert ends(Network(model, control_band=False), sends, 0, 1, 2) == [4.0, 4.0, 2.0]


@QUEUED
def test_a_control_message_waits_for_bytes_sent_again_and_not_for_round_trips_of_losses(model: str) -> None:
    shapes = [(0.0, LinkShape(8000.0, delay_s=5.0, loss=0.1)), (0.5, LinkShape(8000.0))]
    lossy = ShapedLink(KB_A_SECOND, shapes, "a b")
    extra_bytes, waits_s = lossy.again(Transfer(1, "a", "b", 14_480, BULK, 0), 0.0, 5.0)
    assert extra_bytes
    assert waits_s >= 10
    busy_s = (14_480 + extra_bytes) / 1000
    for at_s, left_s in ((busy_s - 2, busy_s), (busy_s + 0.5, busy_s + 0.5)):
        network = Network(model, steady(8000.0, *shapes), control_band=False)
        times = ends(network, [bulk(0, "a", "b", 14.48), control(at_s, "a", "b", 0)], 0, 1)
        assert times == pytest.approx([busy_s + waits_s, left_s])


@QUEUED
def test_bulk_on_a_link_cut_for_good_delays_control_messages_by_at_most_a_queue(model: str) -> None:
    rates = ChangedRates([0.0, 20.0], [KB_A_SECOND, BandwidthTrace.constant("cut", 0.0)])
    sends = [bulk(0, "a", "b", 25), control(1, "a", "b", 1), control(10.5, "a", "b", 1), control(12, "a", "b", 1)]
    (control_times,) = Network(model, steady(rates, hosts="ab"), control_band=False).run(sends)
    # the second has 9.084 s to wait, and half a second too little for itself; the third waits until the cut
    assert control_times == pytest.approx((1, 1.0, 11.084))


def test_bulk_at_a_shared_interface_delays_a_control_message_until_the_bulk_has_passed() -> None:
    megabit: Links = dict.fromkeys(permutations(HOSTS, 2), MEGABIT)
    ways: list[dict[str, Any]] = [{"up_bps": {"a": 5e5}}, {"down_bps": {"b": 5e5}}, {"interfaces_bps": {"a": 5e5}}]
    for limits in ways:
        # two messages of 40 ms each at half the link's rate, of which 60 ms are left
        sends = [bulk(0, "a", "b", 2.5), bulk(0, "a", "b", 2.5), control(0.02, "a", "b", 1.25)]
        network = Network("shared", megabit, control_band=False, **limits)
        assert ends(network, sends, 0, 1, 2) == pytest.approx([0.04, 0.08, 0.09])
        # at most as long as the link alone takes for its queue
        sends = [bulk(0, "a", "b", 250), control(0.02, "a", "b", 1.25)]
        assert ends(Network("shared", megabit, control_band=False, **limits), sends, 1) == pytest.approx([0.13])
    # it has half of the up rate until 30 ms, and then all of it, with which it still needs 10 ms
    sends = [bulk(0, "a", "b", 4.375), bulk(0, "a", "c", 1.875), control(0.04, "a", "b", 1.25)]
    network = Network("shared", megabit, control_band=False, up_bps={"a": 1e6})
    assert ends(network, sends, 0, 1, 2) == pytest.approx([0.05, 0.03, 0.06])


@pytest.mark.parametrize("startup_s", [0.0, 0.5])
@given(sends=messages)
def test_control_messages_wait_on_shared_links_without_limits_as_on_independent_links(
    startup_s: float, sends: list[Sent]
) -> None:
    steps = BandwidthTrace("steps", np.array([0.0, 0.3, 1.1]), np.array([8000.0, 3000.0, 20_000.0]), 1.7)
    links: dict[Link, LinkRate] = dict.fromkeys(permutations(HOSTS, 2), steps)
    links |= {Link("a", "b"): Window(steps, 1.0), Link("b", "a"): KB_A_SECOND}
    shared, independent = (
        {item: times for item, *times in Network(model, links, startup_s, control_band=False).run(sends)}
        for model in ("shared", "independent")
    )
    assert shared.keys() == independent.keys()
    for item, times in shared.items():
        assert times == pytest.approx(independent[item], abs=1e-9)


@QUEUED
@given(sends=messages)
def test_control_messages_wait_for_earlier_bulk_up_to_a_full_queue(model: str, sends: list[Sent]) -> None:
    went = {item: (began_s, ended_s) for item, began_s, ended_s in Network(model, control_band=False).run(sends)}
    for link in permutations(HOSTS, 2):
        free_s = left_s = 0.0
        for number in sorted(range(len(sends)), key=lambda number: sends[number][0]):
            at_s, source, target, size_bytes, rank = sends[number]
            if (source, target) != link:
                continue
            if rank == CONTROL:
                queued_s = min(max(0.0, free_s - at_s), 9.084)
                left_s = max(left_s, at_s + queued_s + size_bytes / 1000)
                assert went[number] == pytest.approx((at_s, left_s))
            else:
                free_s = max(at_s, free_s) + size_bytes / 1000
                assert went[number][1] == pytest.approx(free_s)
