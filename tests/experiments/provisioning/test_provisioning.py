from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.experiments.papers.benoit2008.instances import Drawing, drawn
from thalweg.experiments.provisioning.answer import (
    Answer,
    cost,
    in_turn_s,
    loads,
    needed,
    require,
    violations,
)
from thalweg.experiments.provisioning.heuristics import HEURISTICS, rented
from thalweg.experiments.provisioning.instance import Egress, ProvisioningInstance
from thalweg.experiments.provisioning.placed import task
from thalweg.experiments.provisioning.selection import Selection, at_random, in_time
from thalweg.middleware.errors import PlacementError, PlannerError, UsageError
from thalweg.middleware.planning.costs.period import Period
from thalweg.middleware.planning.problem.problem import Problem


def array(*values: Any) -> np.ndarray:
    return np.array(values, dtype=np.float64)


# a and b feed c; x is on both servers, y on the second; a machine of the small class, or up to two large ones
SMALL = ProvisioningInstance(
    operators=("a", "b", "c"),
    parent=np.array([2, 2, -1]),
    leaves=((0, 0), (0, 1), ()),
    work_mop=array(10, 20, 30),
    output_bytes=array(100, 200, 300),
    objects=("x", "y"),
    object_bytes=array(40, 60),
    frequency_hz=array(2, 1),
    servers=("s1", "s2"),
    holds=np.array([[True, True], [False, True]]),
    server_card_bytes_s=array(1000, 1000),
    server_link_bytes_s=np.full((2, 2), 500.0),
    classes=("small", "large"),
    speed_mop_s=array(60, 120),
    card_bytes_s=array(1000, 2000),
    price=array(3, 5),
    limit=array(1, 2),
    machine_link_bytes_s=np.full((2, 2), 1000.0),
    throughput_hz=2.0,
).check()
# a on a small machine, b and c on a large one
APART = Answer(np.array([0, 1, 1]), np.array([0, 1]), np.array([[0, -1], [1, 1]]))


def changed(**fields: Any) -> ProvisioningInstance:
    return msgspec.structs.replace(SMALL, **fields)


def test_loads_count_an_object_once_a_machine_and_a_cut_stream_at_both_ends() -> None:
    asked = loads(SMALL, APART)
    assert asked.mop_s.tolist() == [20, 100]
    assert asked.card_bytes_s.tolist() == [80 + 200, 80 + 60 + 200]
    assert asked.server_bytes_s.tolist() == [80, 140]
    assert asked.server_link_bytes_s.tolist() == [[80, 0], [0, 140]]
    assert asked.link_bytes_s.tolist() == [[0, 200], [0, 0]]
    assert violations(SMALL, APART) == [] and require(SMALL, APART) is APART and cost(SMALL, APART) == 8


@pytest.mark.parametrize(
    ("fields", "number", "said"),
    [
        ({"speed_mop_s": array(60, 90)}, 1, "m2 (large) has 90 Mop/s, 10 short of 100 (1)"),
        ({"card_bytes_s": array(270, 2000)}, 2, "the card of m1 (small) has 270 bytes/s, 10 short of 280 (2)"),
        ({"server_card_bytes_s": array(1000, 100)}, 3, "the card of server 's2' has 100 bytes/s, 40 short of 140 (3)"),
        (
            {"server_link_bytes_s": array([500, 500], [500, 120])},
            4,
            "the link from server 's2' to m2 (large) has 120 bytes/s, 20 short of 140 (4)",
        ),
        (
            {"machine_link_bytes_s": np.full((2, 2), 150.0)},
            5,
            "the link from m1 (small) to m2 (large) has 150 bytes/s, 50 short of 200 (5)",
        ),
        ({"limit": array(0, 2)}, 0, "1 machines of class 'small' are rented; there are 0"),
    ],
)
def test_a_violation_names_the_constraint_the_place_and_the_amount(
    fields: dict[str, Any], number: int, said: str
) -> None:
    (violation,) = violations(changed(**fields), APART)
    assert (violation.constraint, str(violation)) == (number, said)
    with pytest.raises(PlacementError, match="do not sustain the throughput"):
        require(changed(**fields), APART)


def test_an_invalid_answer_is_reported() -> None:
    for fetched, message in (
        ([[-1, -1], [1, 1]], "m1 (small) does not fetch object 'x'"),
        ([[0, -1], [1, 0]], "m2 (large) fetches object 'y' from server 's1', which does not hold it"),
    ):
        (violation,) = violations(SMALL, msgspec.structs.replace(APART, server_of=np.array(fetched)))
        assert (violation.constraint, str(violation)) == (0, message)
    with pytest.raises(PlacementError, match="machine_of of the answer goes from 0 to 2, not 0…1"):
        violations(SMALL, msgspec.structs.replace(APART, machine_of=np.array([0, 1, 2])))
    with pytest.raises(PlacementError, match="server_of of the answer has the form"):
        violations(SMALL, msgspec.structs.replace(APART, server_of=np.array([[0, -1]])))


def test_a_link_carries_the_sum_of_both_directions() -> None:
    # b is between a and c, and not where they are: 200 one way, 400 the other
    chain = changed(parent=np.array([1, 2, -1]), machine_link_bytes_s=np.full((2, 2), 599.0))
    back_and_forth = Answer(np.array([0, 1, 0]), np.array([1, 1]), np.array([[0, -1], [1, 1]]))
    (violation,) = violations(chain, back_and_forth)
    assert (violation.constraint, violation.asked, violation.over) == (5, 600, 1)


def test_an_operator_without_overlap_receives_computes_and_sends_within_a_period() -> None:
    took = in_turn_s(SMALL, APART).tolist()
    # x takes 40 of 500, y 60; a's 100 go over a link of 1000 to c; the results 300 through a card of 2000
    assert took == pytest.approx([0.08 + 10 / 60 + 0.1, 0.08 + 0.12 + 20 / 120, 0.1 + 30 / 120 + 0.15])
    assert violations(changed(overlap=False), APART) == []
    halved = changed(overlap=False, cores=array(1, 2))  # an operator on the large machine has half of it
    _, late_violation = violations(halved, APART)
    assert (late_violation.constraint, late_violation.asked, late_violation.there_is) == (6, pytest.approx(0.75), 0.5)
    assert str(late_violation) == "operator 'c' on m2 (large) has 0.5 s, 0.25 short of 0.75 (6)"
    fastest = changed(overlap=False, classes=("small", "fast"), speed_mop_s=array(60, 500), limit=array(2, 2))
    late = Answer(APART.machine_of, np.array([0, 0]), APART.server_of)
    assert [violation.constraint for violation in violations(changed(overlap=False, limit=array(2, 2)), late)] == [
        1,
        6,
        6,
    ]
    assert in_time(fastest, late).class_of.tolist() == [0, 1]
    with pytest.raises(PlannerError, match="no machine is fast enough for what is received, computed and sent"):
        in_time(halved, APART)


def period_s(instance: ProvisioningInstance, answer: Answer) -> float:
    placed = task(instance, answer, 50.0)
    problem = Problem(placed)
    return Period().at(problem, problem.where(placed.current or {})).lower_ns / 1e9


@given(st.integers(0, 2**32), st.integers(1, 8), st.booleans())
def test_an_answer_with_a_short_enough_period_keeps_every_constraint(seed: int, count: int, alike: bool) -> None:
    """The converse holds too if all cards are equal, only cards limit, and no results leave.

    Then the busiest card, processor or operator sets the period. A card carries both directions in the paper, like a
    single interface.
    """
    dice = np.random.default_rng(seed)
    instance, answer = random_answer(dice, count, alike)
    own_s = period_s(instance, answer)
    for times, within in ((0.999, True), (1.001, False)):
        hz = times / own_s
        wanted = msgspec.structs.replace(
            instance, throughput_hz=hz, frequency_hz=np.full(len(instance.objects), hz), overlap=False
        )
        if within or alike:
            assert (not violations(wanted, answer)) == within


def random_answer(dice: np.random.Generator, count: int, alike: bool) -> tuple[ProvisioningInstance, Answer]:
    """Draw operators on machines, with servers. ``alike``: all rates are equal, and no results leave."""
    classes, servers, objects = 3, 2, 4
    leaves = [{int(dice.integers(objects)) for _ in range(int(dice.integers(3)))} for _ in range(count)]
    parent = [int(dice.integers(node + 1, count)) if node < count - 1 else -1 for node in range(count)]
    for node in range(count):
        if node not in parent:
            leaves[node].add(int(dice.integers(objects)))
    rate = (lambda *form: np.full(form, 500.0)) if alike else (lambda *form: dice.uniform(100, 1000, form))
    between = rate(classes, classes)
    output_bytes = dice.uniform(0, 300, count)
    output_bytes[-1] *= not alike
    instance = ProvisioningInstance(
        operators=tuple(f"n{node}" for node in range(count)),
        parent=np.array(parent),
        leaves=tuple(map(tuple, leaves)),
        work_mop=dice.uniform(0, 50, count),
        output_bytes=output_bytes,
        objects=tuple("wxyz"),
        object_bytes=dice.uniform(1, 200, objects),
        frequency_hz=np.ones(objects),
        servers=("s1", "s2"),
        holds=np.full((objects, servers), True),
        server_card_bytes_s=rate(servers),
        server_link_bytes_s=np.full((servers, classes), np.inf) if alike else rate(servers, classes),
        classes=tuple("abc"),
        speed_mop_s=dice.uniform(20, 100, classes),
        cores=dice.integers(1, 4, classes).astype(np.float64),
        card_bytes_s=rate(classes),
        price=np.ones(classes),
        limit=np.full(classes, np.inf),
        machine_link_bytes_s=np.full((classes, classes), np.inf) if alike else np.maximum(between, between.T),
        throughput_hz=1.0,
    ).check()
    _, machine_of = np.unique(dice.integers(0, 3, count), return_inverse=True)
    machines = int(machine_of.max()) + 1
    needs = needed(instance, machine_of, machines)
    chosen = np.where(needs, dice.integers(0, servers, needs.shape), -1)
    return instance, Answer(machine_of, dice.integers(0, classes, machines), chosen)


def test_the_cost_includes_the_price_of_bytes() -> None:
    priced = changed(
        egress=Egress(
            from_servers=array([1e6, 0], [0, 2e6]), between=array([9e9, 3e6], [0, 0]), results=array(0, 5e6), paid_s=10
        )
    )
    asked = 80 * 1e6 + 140 * 2e6 + 200 * 3e6 + 600 * 5e6
    assert cost(priced, APART) == pytest.approx(8 + asked * 10 / 1e9)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"parent": np.array([2, -1, -1])}, "the consumer of operator 'b' is number -1 of 3"),
        ({"leaves": ((0,), (7,), ())}, "operator 'b' needs object 7; there are 2, from 0"),
        ({"holds": np.array([[True, True], [False, False]])}, "object 'y', which operator 'b' needs, is on no server"),
        ({"price": array(3, math.nan)}, "price of class 'large' is missing"),
        ({"price": array(3, -1)}, "price of class 'large' is -1; it must be at least 0 and finite"),
        ({"speed_mop_s": array(0, 1)}, "speed_mop_s of class 'small' is 0; it must be above 0 and finite"),
        (
            {"machine_link_bytes_s": array([9, 8], [7, 9])},
            "machine_link_bytes_s from 'small' to 'large' is 8, and 7 the other way; a link has one rate for both",
        ),
        ({"throughput_hz": 0.0}, "the throughput is 0 results a second; it must be above 0"),
        ({"work_mop": array(1)}, "work_mop has the form"),
        ({"classes": ()}, "there are 3 operators, 2 servers and 0 machine classes"),
    ],
)
def test_a_problem_that_does_not_fit_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        changed(**fields).check()
    assert said in str(refused.value)


@pytest.mark.parametrize("shape", ["random", "left-deep", "n-ary"])
def test_drawn_trees_have_the_papers_form(shape: Any) -> None:
    drawing = Drawing(nodes=40, alpha=1.5, shape=shape)
    instance, again = (drawn(drawing, np.random.default_rng(7)) for _ in range(2))
    assert msgspec.structs.astuple(instance)[2] == again.leaves and instance.count == 19
    arity = [len(instance.children[node]) + len(instance.leaves[node]) for node in range(instance.count)]
    assert set(arity) == ({2} if shape != "n-ary" else {2, 3, 4})
    if shape == "left-deep":
        assert all(len(children) <= 1 for children in instance.children)
    # δ of the root is the sum of all leaves (β = 1); w = (δ_l + δ_r)^α in MB and Mop
    all_mb = sum(instance.object_bytes[at] for leaves in instance.leaves for at in leaves) / 1e6
    assert instance.output_bytes[-1] == pytest.approx(all_mb * 1e6) and instance.work_mop[-1] == pytest.approx(
        all_mb**1.5
    )
    assert (instance.holds.sum(axis=1) == 3).all() and (instance.object_bytes >= 5e6).all()
    assert (len(instance.classes), instance.price.min(), instance.price.max()) == (25, 7_548, 18_846)


def test_drawn_problems_of_the_same_seed_differ_only_in_the_requested_parameters() -> None:
    base = drawn(Drawing(nodes=20), np.random.default_rng(3))
    other = drawn(Drawing(nodes=20, alpha=1.7, frequency_hz=0.02, copies=1, machines="one"), np.random.default_rng(3))
    assert base.leaves == other.leaves and (base.parent == other.parent).all()
    assert (base.object_bytes == other.object_bytes).all() and (other.holds.sum(axis=1) == 1).all()
    assert other.classes == ("46.88 GHz, 20 Gb/s",)
    assert drawn(Drawing(nodes=20, counted="operators"), np.random.default_rng(3)).count == 20
    for wrong, message in (({"nodes": 2}, "has no operator"), ({"copies": 7}, "on 7 servers")):
        with pytest.raises(UsageError, match=message):
            Drawing(**wrong)


# --- heuristics -------------------------------------------------------------------------------------------


def sustained(instance: ProvisioningInstance, answer: Answer) -> bool:
    """Check constraints (1) to (5) and the form of an answer, separately for machines, servers and links."""
    rho, at, classes = instance.throughput_hz, answer.machine_of.tolist(), answer.class_of.tolist()
    groups = [{node for node in range(instance.count) if at[node] == u} for u in range(len(classes))]
    download = [{(k, s) for k, s in enumerate(answer.server_of[u].tolist()) if s >= 0} for u in range(len(classes))]
    rate = [size * often for size, often in zip(instance.object_bytes, instance.frequency_hz, strict=True)]

    def between(u: int, v: int) -> float:
        sent = (i for i in range(instance.count - 1) if {at[i], at[instance.parent[i]]} == {u, v})
        return sum(rho * instance.output_bytes[i] for i in sent)

    def within(asked: float, limit: float) -> bool:
        return bool(asked <= limit * (1 + 1e-9))

    def machine(u: int) -> bool:
        held = {k for i in groups[u] for k in instance.leaves[i]}
        rest = [v for v in range(len(classes)) if v != u]
        card = sum(rate[k] for k, _ in download[u]) + sum(between(u, v) for v in rest)
        return (
            {k for k, _ in download[u]} >= held
            and all(instance.holds[k, s] for k, s in download[u])
            and classes.count(classes[u]) <= instance.limit[classes[u]]
            and within(sum(rho * instance.work_mop[i] for i in groups[u]), instance.speed_mop_s[classes[u]])
            and within(card, instance.card_bytes_s[classes[u]])
            and all(
                within(sum(rate[k] for k, s in download[u] if s == server), limits[classes[u]])
                for server, limits in enumerate(instance.server_link_bytes_s)
            )
            and all(within(between(u, v), instance.machine_link_bytes_s[classes[u], classes[v]]) for v in rest)
        )

    return all(map(machine, range(len(classes)))) and all(
        within(sum(rate[k] for fetched in download for k, s in fetched if s == server), card)
        for server, card in enumerate(instance.server_card_bytes_s)
    )


drawings = st.builds(
    Drawing,
    nodes=st.integers(3, 40),
    alpha=st.floats(0.5, 2.1),
    sizes=st.sampled_from(["small", "small", "big"]),
    frequency_hz=st.sampled_from([1 / 2, 1 / 50]),
    copies=st.sampled_from([1, 3, 6]),
    machines=st.sampled_from(["all", "one"]),
    shape=st.sampled_from(["random", "left-deep", "n-ary"]),
)


def there_once(instance: ProvisioningInstance, random: np.random.Generator, *, alike: bool) -> ProvisioningInstance:
    """Return the problem with some machines, each available once (Non-Constr-LAN and -Het).

    ``alike``: the links are equal.
    """
    count, unlike = 12, 0.0 if alike else 0.9
    kinds, narrow = random.integers(0, len(instance.classes), count), unlike * random.random((count, count))
    return msgspec.structs.replace(
        instance,
        classes=tuple(f"p{at + 1}" for at in range(count)),
        speed_mop_s=instance.speed_mop_s[kinds],
        card_bytes_s=instance.card_bytes_s[kinds],
        price=instance.price[kinds],
        limit=np.ones(count),
        server_link_bytes_s=1e9 * (1 - unlike * random.random((6, count))),
        machine_link_bytes_s=1e9 * (1 - (narrow + narrow.T) / 2),
    ).check()


@given(drawings, st.integers(0, 10_000), st.sampled_from(["Constr", "Non-Constr-LAN", "Non-Constr-Het"]))
def test_answers_of_heuristics_keep_the_constraints_of_the_paper(drawing: Drawing, seed: int, kind: str) -> None:
    instance = drawn(drawing, np.random.default_rng(seed))
    if kind != "Constr":
        instance = there_once(instance, np.random.default_rng(seed), alike=kind.endswith("LAN"))
    for name in HEURISTICS:
        try:
            answer = rented(instance, name, seed)
        except PlannerError:
            continue
        assert sustained(instance, answer) and violations(instance, answer) == []
        assert len(set(answer.machine_of.tolist())) == answer.machines


@given(drawings, st.integers(0, 10_000), st.integers(1, 4))
def test_the_checker_agrees_with_the_paper_on_random_answers(drawing: Drawing, seed: int, machines: int) -> None:
    instance, random = drawn(drawing, np.random.default_rng(seed)), np.random.default_rng(seed)
    machine_of = random.integers(0, machines, instance.count)
    answer = Answer(
        machine_of,
        random.integers(0, len(instance.classes), machines),
        at_random(instance, needed(instance, machine_of, machines), random),
    )
    assert sustained(instance, answer) is (violations(instance, answer) == [])


def test_a_single_machine_is_rented_if_the_machine_carries_all_operators() -> None:
    instance = drawn(Drawing(nodes=100), np.random.default_rng(5))
    for name in ("comp-greedy", "comm-greedy", "object-greedy", "subtree-bottom-up"):
        answer = rented(instance, name)
        assert answer.machines == 1 and cost(instance, answer) <= 7_548 + 399
    scattered = rented(instance, "random", 1)
    assert (
        scattered.machines > 40 and rented(instance, "random", 1).machine_of.tolist() == scattered.machine_of.tolist()
    )


def test_a_machine_that_exists_once_is_not_rented_twice() -> None:
    """Every class is a single machine with its own links (Non-Constr)."""
    machines, paper = 4, drawn(Drawing(nodes=14, alpha=1.9, machines="one"), np.random.default_rng(2))
    instance = msgspec.structs.replace(
        paper,
        classes=tuple(f"p{at}" for at in range(machines)),
        speed_mop_s=paper.work_mop.max() * array(1.0, 1.1, 1.2, 1.3),
        card_bytes_s=np.full(machines, 2.5e9),
        price=array(1, 2, 3, 4),
        limit=np.ones(machines),
        server_link_bytes_s=np.full((6, machines), 1e9),
        machine_link_bytes_s=np.full((machines, machines), 1e9),
    ).check()
    answer = rented(instance, "comp-greedy")
    assert len(set(answer.class_of.tolist())) == answer.machines >= 2 and sustained(instance, answer)
    # the first machine's links are too narrow for what it would receive
    narrow = instance.machine_link_bytes_s.copy()
    narrow[0, :] = narrow[:, 0] = 1.0
    other = rented(msgspec.structs.replace(instance, machine_link_bytes_s=narrow), "comp-greedy")
    assert 0 not in other.class_of


def test_a_problem_that_no_machine_carries_is_refused() -> None:
    instance = drawn(Drawing(nodes=60, alpha=2.0), np.random.default_rng(1))
    with pytest.raises(PlannerError, match="comp-greedy finds no machines: no machine can be bought for operators"):
        rented(instance, "comp-greedy")
    with pytest.raises(PlannerError, match="is no heuristic"):
        rented(instance, "comp-gredy")
    full = changed(server_link_bytes_s=np.full((2, 2), 100.0), holds=np.array([[False, True], [False, True]]))
    with pytest.raises(PlannerError, match="no server that holds object 'y' can send it to one more machine"):
        rented(full, "comm-greedy")


def test_servers_are_selected_by_unique_objects_and_then_by_room() -> None:
    # x is on s1 alone, s3 has nothing but y, and z is where most is left: s1's card is nearly full with x
    three = changed(
        leaves=((0, 1), (2,), ()),
        objects=("x", "y", "z"),
        object_bytes=array(60, 20, 20),
        frequency_hz=array(1, 1, 1),
        servers=("s1", "s2", "s3"),
        holds=np.array([[True, False, False], [True, True, True], [True, True, False]]),
        server_card_bytes_s=array(100, 90, 30),
        server_link_bytes_s=np.full((3, 2), 500.0),
    ).check()
    needs = np.array([[True, True, True]])
    assert Selection(three, needs, np.array([1])).chosen().tolist() == [[0, 2, 1]]
