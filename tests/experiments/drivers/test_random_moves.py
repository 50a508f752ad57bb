"""Driver of random moves: its requests to a run, and their times."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from thalweg.experiments.drivers.random_moves import GRACE, TRIES, RandomMover
from thalweg.middleware.dataflow import Code, Dataflow, Node, Placement
from thalweg.middleware.planning.registry import RandomMoves, RandomReshapes

HOSTS = ("h1", "h2", "h3", "client")
FREE = Code("free")
FLOW = Dataflow(
    (
        Node("s1", "source", (), Code("s"), "h1"),
        Node("s2", "source", (), Code("s"), "h2"),
        Node("o", "operator", ("s1", "s2"), FREE),
        Node("p", "operator", ("o",), Code("fixed"), "h3"),
        Node("t", "sink", ("p",), None, "client"),
    )
)
PATIENCE = 3 + GRACE  # partitions: the sources are three levels from the sink


class Asked:
    """Fake run that carries out a request ``after`` further partitions, or never if ``after`` is None."""

    def __init__(self, after: int | None = 0) -> None:
        self.tree: tuple[Dataflow, Placement] = FLOW, {"s1": "h1", "s2": "h2", "o": "h1", "p": "h3", "t": "client"}
        self.after = after
        self.moves: list[dict[str, str]] = []
        self.shapes: list[Dataflow] = []
        self.done: list[tuple[int, tuple[Dataflow, Placement]]] = []

    def move(self, placement: Mapping[str, str]) -> None:
        self.moves.append(dict(placement))
        self._later(self.tree[0], {**self.tree[1], **placement})

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str]) -> None:
        self.shapes.append(dataflow)
        self._later(dataflow, dict(placement))

    def _later(self, dataflow: Dataflow, placement: Placement) -> None:
        if self.after is not None:
            self.done.append((self.after, (dataflow, placement)))

    def drive(self, mover: RandomMover, partitions: int) -> None:
        for _ in range(partitions):
            mover.on_delivered()
            self.done = [(left - 1, tree) for left, tree in self.done]
            for left, tree in self.done:
                self.tree = tree if left < 0 else self.tree


@pytest.mark.parametrize("after", [0, 3])
def test_the_requested_number_of_moves_leads_free_operators_to_new_hosts(after: int) -> None:
    run = Asked(after)
    where = ["h1"]
    run.drive(RandomMover(RandomMoves(5, seed=1), run, HOSTS), 40)
    assert [list(move) for move in run.moves] == [["o"]] * 5
    where += [move["o"] for move in run.moves]
    assert all(before != after_move for before, after_move in itertools.pairwise(where))
    assert run.tree[1]["o"] == where[-1]
    assert run.shapes == []


def test_a_move_that_does_not_happen_is_requested_again_and_then_abandoned() -> None:
    run = Asked(after=None)
    mover = RandomMover(RandomMoves(1, seed=1), run, HOSTS)
    run.drive(mover, PATIENCE)
    assert len(run.moves) == 1
    run.drive(mover, (2 * TRIES - 1) * PATIENCE)
    first, second = run.moves[:TRIES], run.moves[TRIES:]
    assert first == [first[0]] * TRIES
    assert second == [second[0]] * TRIES
    assert first[0] != second[0]


def test_the_tree_changes_as_often_as_requested_and_operators_move_in_between() -> None:
    run = Asked(after=2)
    run.drive(RandomMover(RandomReshapes(6, 4, seed=3), run, HOSTS, (FREE,)), 100)
    assert len(run.shapes) == 6
    assert sum(map(len, run.moves)) == 4
    assert all(flow.by_name["p"].inputs and flow.by_name["p"].pinned == "h3" for flow in run.shapes)
    plain = Asked(after=2)
    plain.drive(RandomMover(RandomReshapes(6, seed=3), plain, HOSTS, (FREE,)), 100)
    assert (len(plain.shapes), plain.moves) == (6, [])


def test_the_same_seed_requests_the_same_moves() -> None:
    asked = []
    for seed in (1, 1, 2, 3, 4, 5):
        run = Asked()
        run.drive(RandomMover(RandomMoves(10, seed), run, HOSTS), 10)
        asked.append([move["o"] for move in run.moves])
    assert asked[0] == asked[1]
    assert len({tuple(move) for move in asked}) > 3


def test_a_run_on_a_single_host_has_no_moves() -> None:
    run = Asked()
    run.drive(RandomMover(RandomMoves(3), run, ("h1",)), 5)
    assert run.moves == []
