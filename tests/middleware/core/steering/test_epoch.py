"""The local algorithm: the times of an operator's decisions, critical operators, candidates, and the choice."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.middleware.core.flow.epochs import EpochBook, waves_of
from thalweg.middleware.core.steering.neighbourhood import Decision, Neighbourhood, candidates, decide
from thalweg.middleware.dataflow import TREES, Code, Dataflow
from thalweg.middleware.network.view import Link
from thalweg.middleware.planning import COST_MODELS, CriticalPath
from thalweg.middleware.protocol.adaptation import LocalCost, LocalMoves, worth_moving
from thalweg.middleware.protocol.messages import BookState

HOSTS = ["client", *(f"s{i}" for i in range(8))]


def tree(kind: str, servers: int) -> Dataflow:
    return TREES[kind]({f"s{i}": Code("x") for i in range(servers)}, Code("y"))


# --- waves and epochs -------------------------------------------------------------------------------


def test_waves_pass_up_the_tree() -> None:
    wave_of, waves = waves_of(tree("binary", 8))
    assert waves == 3
    assert wave_of == {"op0": 0, "op1": 0, "op2": 0, "op3": 0, "op4": 1, "op5": 1, "op6": 2}
    wave_of, waves = waves_of(tree("left-deep", 8))
    assert (waves, wave_of["op0"], wave_of["op6"]) == (7, 0, 6)
    assert waves_of(tree("star", 5)) == ({"op0": 0}, 1)
    assert waves_of(tree("binary", 1)) == ({}, 1)


@pytest.mark.parametrize("kind", ["binary", "left-deep", "star"])
@pytest.mark.parametrize("servers", [2, 3, 5, 8, 13])
def test_a_consumer_decides_an_epoch_after_the_operators_below(kind: str, servers: int) -> None:
    dataflow = tree(kind, servers)
    wave_of, waves = waves_of(dataflow)
    for name in dataflow.operators:
        for producer in dataflow.by_name[name].inputs:
            assert producer in dataflow.sources or wave_of[producer] == wave_of[name] - 1
    assert set(wave_of.values()) == set(range(waves))


def test_operators_decide_in_turn_and_once_a_period() -> None:
    due = []
    for wave in range(3):
        book = EpochBook(LocalMoves(period_s=600.0), f"op{wave}", wave, 3, 1000.0)
        now = 1000.0
        for _ in range(3):
            now = book.due_s(now)
            assert book.due_s(now - 1.0) == now
            due.append((now, book.close_epoch().epoch))
    assert sorted(due) == [(1200.0 + 200 * epoch, epoch) for epoch in range(9)]


@given(st.floats(1e-3, 1e5), st.integers(1, 40), st.data(), st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_the_next_epoch_is_the_first_that_ends_after_now(
    period_s: float, waves: int, data: st.DataObject, origin_s: float, since_s: float
) -> None:
    wave = data.draw(st.integers(0, waves - 1))
    now = origin_s + since_s
    book = EpochBook(LocalMoves(period_s=period_s), "op", wave, waves, origin_s)
    due = book.due_s(now)
    assert now < due <= now + period_s + 1e-9 * max(1.0, abs(now), abs(origin_s))
    assert book.epoch % waves == wave
    assert due == pytest.approx(origin_s + (book.epoch + 1) * period_s / waves)
    closed = book.close_epoch().epoch
    assert book.due_s(now) > due  # closed early or late: never twice
    assert book.epoch == closed + waves


# --- what is critical -------------------------------------------------------------------------------


def play(book: EpochBook, marks: Sequence[bool], consumer_critical: bool = True, first: int = 0) -> None:
    for index, later in enumerate(marks, first):
        book.on_sent(index)
        book.on_mark(later, consumer_critical)
        book.validate()


def a_book(options: LocalMoves | None = None, wave: int = 0) -> EpochBook:
    return EpochBook(options or LocalMoves(), "op", wave, 3, 0.0)


@given(st.lists(st.booleans(), min_size=1), st.booleans())
def test_an_operator_is_critical_iff_later_in_most_sends_to_a_critical_consumer(
    marks: list[bool], consumer: bool
) -> None:
    book = a_book()
    play(book, marks, consumer)
    assert not book.critical  # before the end of the first epoch nothing is known
    verdict = book.close_epoch()
    assert (verdict.sends, verdict.later) == (len(marks), sum(marks))
    assert verdict.critical == book.critical == (sum(marks) > len(marks) / 2 and consumer)
    assert verdict.considered == verdict.critical


def test_the_root_is_critical_and_every_operator_is_considered_without_the_gate() -> None:
    root = a_book(wave=2)
    assert root.critical
    assert root.close_epoch().considered
    ungated = a_book(LocalMoves(gate=False)).close_epoch()
    assert (ungated.critical, ungated.considered) == (False, True)


def test_counts_restart_every_epoch_and_an_epoch_without_sends_keeps_the_verdict() -> None:
    book = a_book()
    play(book, [True, True, False])
    assert book.close_epoch().critical
    empty = book.close_epoch()
    assert (empty.sends, empty.critical) == (0, True)
    play(book, [False, True], first=3)
    assert not book.close_epoch().critical
    assert not book.close_epoch().critical


def test_a_send_counts_once_and_when_the_mark_arrives() -> None:
    book = a_book()
    book.on_mark(True, True)  # of a demand before anything was sent
    book.on_sent(0)
    assert book.close_epoch().sends == 0  # its transfer outlasts the epoch
    book.on_sent(0)  # again
    book.on_mark(True, True)
    book.on_sent(0)
    book.on_mark(False, True)  # the demand was repeated
    verdict = book.close_epoch()
    assert (verdict.sends, verdict.later, verdict.critical) == (1, 1, True)


def test_the_report_of_the_consumer_takes_effect_at_once() -> None:
    book = a_book()
    play(book, [True])
    assert book.close_epoch().critical
    book.on_mark(True, False)
    assert not book.critical
    book.on_mark(True, True)
    assert book.critical


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12),
    st.lists(st.sampled_from(["sent", "again", "mark", "close"])),
    st.integers(0, 10),
)
def test_a_moved_epoch_book_continues_like_an_epoch_book_that_stays(
    marks: list[tuple[bool, bool]], events: list[str], cut: int
) -> None:
    options = LocalMoves()
    stays, moves = a_book(options), a_book(options)
    words = iter(marks)
    index = 0
    for step, event in enumerate(events):
        if step == cut:
            wire = msgspec.msgpack.encode(moves.to_state())
            assert len(wire) < 40
            moves = a_book(options)
            moves.take(msgspec.msgpack.decode(wire, type=BookState))
        word = next(words, (True, True)) if event == "mark" else (False, False)
        index += event == "sent"
        for book in (stays, moves):
            if event == "mark":
                book.on_mark(*word)
            elif event == "close":
                book.close_epoch()
            else:
                book.on_sent(index)
            book.validate()
        assert (stays.critical, stays.due_s(10.0)) == (moves.critical, moves.due_s(10.0))
    assert stays.to_state() == moves.to_state()
    assert stays.close_epoch() == moves.close_epoch()


def test_an_impossible_book_state_is_refused() -> None:
    good = [0, 2, 1, False, 1, False, False]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(good), type=BookState).later == 1
    changed = ((0, -1), (1, 0), (2, 3), (3, 1), (4, -2), (6, None))  # (1, 0): one of none was later
    wrongs = [[*good[:place], value, *good[place + 1 :]] for place, value in changed]
    for wrong in (*wrongs, good[:-1], [*good, 0], [0, 0, 0, True, -1, False, False]):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(wrong), type=BookState)


# --- candidates -------------------------------------------------------------------------------------


def test_the_candidates_are_the_hosts_of_the_neighbours_without_duplicates() -> None:
    def among(k: int, epoch: int = 0, seed: int = 0) -> list[str]:
        return candidates(LocalMoves(k=k, seed=seed), "op", epoch, ["s1", "s2"], ["client"], "s1", reversed(HOSTS))

    assert among(0) == ["s1", "s2", "client"]
    assert among(2)[:3] == among(0)
    assert len(set(among(2))) == 5
    assert set(among(100)) == set(HOSTS)
    assert among(2) == candidates(LocalMoves(k=2), "op", 0, ["s1", "s2"], ["client"], "s1", HOSTS)  # in any order
    assert len({tuple(among(2, epoch)) for epoch in range(20)}) > 5
    assert len({tuple(among(2, seed=seed)) for seed in range(20)}) > 5


def test_random_candidates_are_uniform() -> None:
    options = LocalMoves(k=2)
    drawn = Counter(
        host for epoch in range(3000) for host in candidates(options, "op", epoch, ["s0"], ["client"], "s1", HOSTS)[3:]
    )
    assert set(drawn) == {f"s{i}" for i in range(2, 8)}
    chi_squared = sum((count - 1000) ** 2 / 1000 for count in drawn.values())
    assert chi_squared < 20.5  # 5 degrees of freedom: exceeded by one seed in a thousand; this one is fixed


# --- decisions --------------------------------------------------------------------------------------

COSTS: list[LocalCost] = ["critical-path", "serialised-critical-path", "period", "expected-period"]


class Case:
    """A random neighbourhood. Few distinct rates and sizes make ties."""

    def __init__(self, seed: int, cost: LocalCost, hysteresis: float) -> None:
        rng = random.Random(seed)
        self.rng, self.options = rng, LocalMoves(cost=cost, hysteresis=hysteresis)
        coarse = rng.random() < 0.5
        size = (lambda: 100e3) if coarse else (lambda: rng.uniform(0, 1e6))
        rate = (lambda: rng.choice([0.0, 1e5, 1e6])) if coarse else (lambda: rng.lognormvariate(12, 2))
        self.rates = {(a, b): rate() for a in HOSTS for b in HOSTS if a != b}
        self.inputs = [(rng.choice(HOSTS), size()) for _ in range(rng.randint(1, 3))]
        self.output = (rng.choice(HOSTS), size())
        self.current = rng.choice(HOSTS)
        self.among = [self.current, *rng.sample([host for host in HOSTS if host != self.current], rng.randint(0, 6))]
        self.compute_s = rng.choice([0.0, 1.0])
        self.factors = {"s1": 3.0}
        self.state_bytes = rng.choice([0.0, 1e6])

    def decide(self, known: set[Link], otherwise_bps: float | None = None) -> Decision:
        rates_bps = {pair: rate_bps if pair in known else otherwise_bps for pair, rate_bps in self.rates.items()}
        known_bps = {pair: rate_bps for pair, rate_bps in rates_bps.items() if rate_bps is not None}
        return decide(
            self.options,
            self.among,
            self.current,
            Neighbourhood(
                self.inputs, [self.output], known_bps, self.compute_s, self.state_bytes, 0.05, self.factors, cores=2
            ),
        )

    def transfer_s(self, a: str, b: str, size_bytes: float) -> float:
        if a == b:
            return 0.0
        return 0.05 + size_bytes * 8 / self.rates[a, b] if self.rates[a, b] else math.inf

    def links(self, host: str) -> set[Link]:
        used = {(source, host) for source, _ in self.inputs} | {(host, self.output[0])}
        return {(a, b) for a, b in used if a != b}

    def cost_s(self, host: str) -> float:
        """Return the cost by the definitions of the cost models, written out."""
        compute_s = self.compute_s * self.factors.get(host, 1.0)
        out_s = self.transfer_s(host, *self.output)
        if self.options.cost == "critical-path":
            return max(self.transfer_s(source, host, size) + compute_s + out_s for source, size in self.inputs)
        if self.options.cost == "serialised-critical-path":
            return sum(self.transfer_s(source, host, size) for source, size in self.inputs) + compute_s + out_s
        loads = [out_s, compute_s / 2]
        for source in {source for source, _ in self.inputs}:
            loads.append(sum(self.transfer_s(source, host, size) for of, size in self.inputs if of == source))
        return max(loads) if self.options.cost == "period" else sum(load**4 for load in loads) ** 0.25


cases = st.builds(Case, st.integers(0, 10**6), st.sampled_from(COSTS), st.sampled_from([0.0, 1.0]))


def approximately(seconds: float) -> object:
    return pytest.approx(seconds, rel=1e-9)


@given(cases)
def test_the_best_candidate_equals_the_result_of_a_brute_force_search(case: Case) -> None:
    decision = case.decide(set(case.rates))
    assert not decision.needs
    assert decision.costs == {host: approximately(case.cost_s(host)) for host in case.among}
    best_s = min(decision.costs.values())
    assert (decision.best_s, decision.current_s) == (best_s, decision.costs[case.current])
    assert decision.best == next(host for host in case.among if decision.costs[host] == best_s)  # ties: the first
    moving_s = 0.0
    if case.state_bytes and decision.best != case.current:
        rate_bps = case.rates[case.current, decision.best]
        moving_s = case.state_bytes * 8 / rate_bps if rate_bps else math.inf
    worth = worth_moving(decision.current_s, best_s, case.options.period_s, moving_s, case.options.hysteresis)
    assert decision.move == worth
    assert not (decision.move and decision.best == case.current)
    assert decision.why
    assert "\n" not in decision.why


@given(cases)
def test_links_on_demand_give_the_decision_of_full_knowledge(case: Case) -> None:
    full = case.decide(set(case.rates))
    known = {link for link in case.rates if case.rng.random() < 0.3}
    for _ in range(4):  # the current host's and the best one's, their rivals', and the state's
        decision = case.decide(known)
        if not decision.needs:
            break
        assert not decision.move
        assert known.isdisjoint(decision.needs)
        known |= decision.needs
    assert not decision.needs
    assert (decision.best_s, decision.current_s, decision.move) == (full.best_s, full.current_s, full.move)
    assert decision.costs.items() <= full.costs.items()


@given(cases.filter(lambda case: case.options.cost != "expected-period"))  # whose figures differ in the last digit
def test_only_links_that_can_decide_are_requested(case: Case) -> None:
    known = {link for link in case.rates if case.rng.random() < 0.5}
    complete = {host for host in case.among if case.links(host) <= known}
    order = {host: i for i, host in enumerate(dict.fromkeys([case.current, *case.among]))}
    none = (math.inf, order[case.current])
    best_s, best_order = min(((case.cost_s(host), order[host]) for host in complete), default=none)
    wanted = case.links(case.current) - known
    case.rates |= dict.fromkeys(case.rates.keys() - known, 1e300)  # lower bounds
    for host in case.among:
        if (case.cost_s(host), order[host]) < (best_s, best_order):  # of two that cost the same the first is taken
            wanted |= case.links(host) - known
    decision = case.decide(known)
    assert set(decision.costs) == complete
    if wanted:
        assert decision.needs == wanted
    else:
        carrying = (case.current, decision.best)
        open_state = carrying not in known and case.state_bytes and case.options.hysteresis
        assert decision.needs == ({carrying} if open_state and best_s < decision.current_s else set())


@given(cases)
def test_links_that_count_as_slow_are_not_requested_again(case: Case) -> None:
    known = {link for link in case.rates if case.rng.random() < 0.6}
    decision = case.decide(known, otherwise_bps=1000.0)
    assert not decision.needs
    assert list(decision.costs) == case.among  # every candidate counts, also those of which nothing is known
    case.rates |= dict.fromkeys(case.rates.keys() - known, 1000.0)
    assert decision == case.decide(set(case.rates))


def test_links_of_a_candidate_that_cannot_be_better_are_not_requested() -> None:
    known = {("s0", "s1"): 8e6, ("s1", "client"): 8e6, ("s0", "client"): 8e6}
    near = Neighbourhood([("s0", 1e6)], [("client", 1e6)], known, startup_s=0.05)
    decision = decide(LocalMoves(), ["s1", "s0", "client"], "s1", near)
    assert (decision.best, decision.best_s, decision.current_s) == ("s0", 1.05, 2.1)  # a tie: s0 comes first
    assert decision.move
    near = msgspec.structs.replace(near, startup_s=1.06)
    assert decide(LocalMoves(), ["s1", "s7"], "s1", near).needs == {("s0", "s7"), ("s7", "client")}
    assert not decide(LocalMoves(), ["s1", "s0", "s7"], "s1", near).needs  # 2.12 s at least


def test_the_local_costs_are_cost_models_of_the_planners() -> None:
    assert set(COSTS) == set(get_args(LocalCost)) <= set(COST_MODELS)
    assert {name: COST_MODELS[name]().name for name in COSTS} == {name: name for name in COSTS}
    serialised = COST_MODELS["serialised-critical-path"]()
    assert isinstance(serialised, CriticalPath)
    assert serialised.serialised


def test_serialised_inputs_make_a_different_host_the_best() -> None:
    """Both inputs reach s2 in 3 s each. s0 holds one input and gets the other in 5 s."""
    seconds = {("s0", "s2"): 3.0, ("s1", "s2"): 3.0, ("s1", "s0"): 5.0, ("s2", "client"): 1.0, ("s0", "client"): 1.0}

    def ask(cost: LocalCost) -> Decision:
        inputs, rates_bps = [("s0", 1e6), ("s1", 1e6)], {pair: 8e6 / link_s for pair, link_s in seconds.items()}
        near = Neighbourhood(inputs, [("client", 1e6)], rates_bps, 0.5)
        return decide(LocalMoves(cost=cost), ["s2", "s0"], "s2", near)

    together = ask("critical-path")
    assert (together.move, together.costs) == (False, {"s2": 4.5, "s0": 6.5})
    serialised = ask("serialised-critical-path")
    assert (serialised.move, serialised.best, serialised.costs) == (True, "s0", {"s2": 7.5, "s0": 6.5})


def test_the_reason_of_a_move_names_an_unusable_link() -> None:
    rates_bps = {("s0", "s1"): 0.0, ("s1", "client"): 0.0, ("s0", "client"): 8e6}
    decision = decide(LocalMoves(), ["s1", "s0"], "s1", Neighbourhood([("s0", 1e6)], [("client", 1e6)], rates_bps))
    assert (decision.move, decision.why) == (True, "1 s instead of a link that cannot be used")


def test_the_link_for_the_state_is_needed_only_for_hysteresis() -> None:
    known = {("s0", "s1"): 8e4, ("s1", "client"): 8e6, ("s0", "client"): 8e6}  # 101 s a partition, 1 s from s0

    def ask(hysteresis: float, *, state_bytes: float = 1e6) -> Decision:
        options = LocalMoves(hysteresis=hysteresis)
        inputs, output = [("s0", 1e6)], [("client", 1e6)]
        return decide(options, ["s1", "s0"], "s1", Neighbourhood(inputs, output, known, state_bytes=state_bytes))

    assert ask(0.0).move
    assert ask(1.0, state_bytes=0.0).move
    assert ask(1.0).needs == {("s1", "s0")}
    assert not ask(1.0).move
    known["s1", "s0"] = 8e6  # 1 s to carry, 600 partitions that gain 100 s each
    assert ask(59_999.0).move
    assert not ask(60_000.0).move
    assert "does not repay" in ask(60_000.0).why
    known["s1", "s0"] = 0.0
    assert not ask(1e-6).move


def test_book_times_are_increasing() -> None:
    book = a_book(LocalMoves(period_s=0.1))
    times = [0.0]
    for _ in range(1000):
        times.append(book.due_s(times[-1]))
        book.close_epoch()
    assert all(after - before == pytest.approx(0.1, abs=1e-9) for before, after in pairwise(times[1:]))
