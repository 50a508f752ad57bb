"""Results of the moves that an application requests, and the moves that a planner's answers lead to."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
from flows import chain
from patience import patience
from run_ids import R, run_of
from runtime_codes import ALLOW, MIX, blocks
from test_docs import ROOT, python_blocks

from thalweg import Client, Failover, LocalCluster, Moved, MoveHandle, MoveRefused, Run
from thalweg.middleware.client.moving.moves import Moves
from thalweg.middleware.client.steering.run_options import Planning
from thalweg.middleware.dataflow import Code, Dataflow, Node, complete_binary_tree
from thalweg.middleware.errors import PlacementError, RunError
from thalweg.middleware.planning.problem.hints import CostParameters
from thalweg.middleware.planning.problem.plan import Plan
from thalweg.middleware.planning.problem.task import Task
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.middleware.protocol.run_id import RunId

HOSTS = ("h1", "h2", "h3")
FLOW = chain(blocks()["h1"], MIX)
LIMIT = 5_000  # partitions that are taken while something is waited for: seconds, where it takes milliseconds


def taking(run: Run, until: Callable[[], bool]) -> None:
    for _ in islice(run, LIMIT):
        if until():
            return
    raise AssertionError(f"not in {LIMIT} partitions")


def result_of(run: Run, handle: MoveHandle) -> Moved:
    """Return the result of a move. Take partitions until the move is over."""
    taking(run, handle.done)
    return handle.result(0)


def refusal_of(run: Run, handle: MoveHandle) -> MoveRefused:
    with pytest.raises(MoveRefused) as caught:
        result_of(run, handle)
    return caught.value


def test_the_result_of_a_move_names_the_first_partition_of_the_new_placement(client: Client) -> None:
    flow = complete_binary_tree(blocks(), MIX)
    with client.run(flow, {"op0": "h1", "op1": "h2"}) as run:
        next(run)
        handle = run.move({"op0": "h3", "op1": "h1"})
        assert "the move of 'op0' to host 'h3', 'op1' to host 'h1'" in repr(handle)
        moved = result_of(run, handle)
        assert moved.placement == {"op0": "h3", "op1": "h1"}
        assert moved.index is not None
        assert 1 <= moved.index <= LIMIT
        assert result_of(run, run.move({"op0": "h3"})) == Moved(None, {}), "it is there already"
        again = result_of(run, run.move({"op0": "h3", "op1": "h2"}))
        assert again.placement == {"op1": "h2"}, "only what moved"


def test_a_move_can_be_waited_for_by_threads_and_tasks(client: Client) -> None:
    with client.run(FLOW, {"o": "h1"}) as run, ThreadPoolExecutor(1) as pool:
        with pytest.raises(
            TimeoutError, match=r"^the move of 'o' to host 'h2' is not over after 0\.01 s, and goes on$"
        ):
            run.move({"o": "h2"}).result(0.01)  # no partition is taken

        async def both() -> Moved:
            waiting = asyncio.ensure_future(wait(run.move({"o": "h3"})))
            cut_short = asyncio.ensure_future(wait(run.move({"o": "h2"})))
            async for _ in run:
                cut_short.cancel()
                if waiting.done():
                    break
            return await waiting

        async def wait(handle: MoveHandle) -> Moved:
            return await handle

        with pytest.raises(MoveRefused, match="a later proposal took its place"):
            asyncio.run(both())
        blocked = pool.submit(run.move({"o": "h1"}).result, patience(20))
        taking(run, blocked.done)
        assert blocked.result().placement == {"o": "h1"}


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("snapshot", r"ValueError in snapshot\(\): not now"),
        ("size", "its state has 67108865 bytes; this host sends up to 67108864"),
        ("restore", r"host 'h2' refuses it: ValueError in restore\(\): not here"),
    ],
)
def test_a_refused_move_says_why_a_single_operator_stayed(client: Client, how: str, why: str) -> None:
    flow = chain(Code("runtime_codes:Blocks", {"site": 0}), Code("runtime_codes:Stubborn", {"how": how}), MIX)
    with client.run(flow, {"o": "h1", "p": "h3"}) as run:
        next(run)
        refused = refusal_of(run, run.move({"o": "h2", "p": "h2"}))
        assert refused.moved == {"p": "h2"}
        assert refused.index is not None
        assert refused.stayed.keys() == {"o"}
        said = rf"the move of 'o' to host 'h2', 'p' to host 'h2' was refused: 'o': it stays on host 'h1': {why}"
        with pytest.raises(MoveRefused, match=said):
            raise refused


def test_a_refusal_by_a_host_says_why_and_moves_no_operator() -> None:
    with LocalCluster(2, allow=ALLOW) as own:
        own.start("h9", "--max-operators", "0")
        with Client(own, allow=ALLOW) as client, client.run(FLOW, {"o": "h2"}) as run:
            next(run)
            refused = refusal_of(run, run.move({"o": "h9"}))
            assert refused.reason == "host 'h9': it has room for 0 operators, and 0 are there or on their way"
            assert (refused.moved, refused.stayed, refused.index) == ({}, {}, None)
            client.lost("h9", "was killed")
            with pytest.raises(PlacementError, match="unknown host 'h9'"):
                run.move({"o": "h9"})
            for placement, why in (
                ({"o": "h9"}, "host 'h9' has no part in the run"),  # as if it went after it was looked for
                ({"x": "h1"}, "there is no operator 'x' in the run any more"),
            ):
                assert refusal_of(run, run._request_moves(placement, {RunId(run.id): placement})).reason == why


def test_a_move_to_a_host_that_was_lost_is_refused() -> None:
    with LocalCluster(3, allow=ALLOW) as own, Client(own, allow=ALLOW) as client:
        run = client.run(FLOW, {"o": "h2"}, failover=Failover())
        next(run)
        own.kill("h3")
        handle = run.move({"o": "h3"})
        assert refusal_of(run, handle).reason in (
            "host 'h3' went away",
            "host 'h3' has no part in the run",
            "the run has begun anew meanwhile, as it lost a host",
        )


def test_moves_end_with_a_run_that_ends_or_fails(client: Client) -> None:
    run = client.run(FLOW, {"o": "h1"}, partitions=3)
    handle = run.move({"o": "h2"})
    assert [partition.index for partition in run] == [0, 1, 2]
    with contextlib.suppress(MoveRefused):  # that depends on who was first
        assert handle.result(patience(20)).placement == {"o": "h2"}
    with pytest.raises(MoveRefused, match="the move of 'o' to host 'h3' was refused: the run is over"):
        run.move({"o": "h3"}).result(patience(20))
    failing = client.run(chain(blocks()["h1"], Code("runtime_codes:Raises", {"how": "value"})), {"o": "h1"})
    with pytest.raises(RunError):
        list(failing)
    with pytest.raises(MoveRefused, match="was refused: the run has failed: node 'o' on host 'h1': ValueError"):
        failing.move({"o": "h2"}).result(patience(20))
    failing.close()


def test_moves_end_when_the_client_is_closed(cluster: LocalCluster) -> None:
    closed = Client(cluster, name="closed", allow=ALLOW)
    run = closed.run(FLOW, {"o": "h1"})
    before = run.move({"o": "h2"})
    closed.close()
    for handle in (before, run.move({"o": "h3"})):
        with pytest.raises(MoveRefused, match="the client 'closed' is closed"):
            handle.result(patience(20))


def test_moves_of_a_query_and_a_stripe_name_operators_as_the_application_does(client: Client) -> None:
    flow = complete_binary_tree(blocks(), MIX)
    query = Dataflow((flow.by_name["source@h1"], Node("o", "operator", ("source@h1",), MIX), Node("t", "sink", ("o",))))
    with client.run(flow, {"op0": "h1", "op1": "h1"}) as run, ThreadPoolExecutor(1) as pool:
        next(run)
        other = run.attach(query, {"o": "h2"})
        first = pool.submit(lambda: next(other))
        taking(run, first.done)
        handle = other.move({"o": "h3"})
        pool.submit(lambda: [*other])
        assert result_of(run, handle).placement == {"o": "h3"}
        other.close()
    with client.run(flow, {"op0": "h1", "op1": "h1"}, stripes=2) as stream:
        next(stream)
        moved = result_of(stream, stream.move({"op0": "h2"}, stripe=1))  # type: ignore[call-arg]
        assert moved.placement == {"op0": "h2"}


def test_a_reshaping_has_a_handle_like_a_move(client: Client) -> None:
    flow = complete_binary_tree(blocks(), Code("runtime_codes:Largest"))
    with client.run(flow, {"op0": "h1", "op1": "h2"}) as run:
        next(run)
        again = complete_binary_tree({host: blocks()[host] for host in reversed(HOSTS)}, Code("runtime_codes:Largest"))
        changed = result_of(run, run.reshape(again, {"op0": "h3", "op1": "h3"}))
        assert changed.index is not None
        assert set(changed.placement.values()) == {"h3"}


def test_repeated_and_unknown_answers_about_moves_change_nothing() -> None:
    told: list[Any] = []
    moves = Moves(told.append)
    moves.request(handle := MoveHandle("it", 2), e.PlacementProposed(R, {}))
    moves.request(handle, e.PlacementProposed(run_of("r/1"), {}))
    assert [each.number for each in told] == [0, 1]
    for number in (0, 0, 7):
        moves.ended(e.MoveEnded(R, number, 3, {"a": "h1"}))
    assert not handle.done()
    moves.failed("another", "x")
    moves.failed("r", "broken")
    with pytest.raises(MoveRefused, match="it was refused: broken") as caught:
        handle.result(0)
    assert (caught.value.moved, caught.value.index) == ({"a": "h1"}, 3)


# --- planners of one's own --------------------------------------------------------------------------


class Elsewhere:
    """Planner that names the host after the present one each time, and no cost."""

    def plan(self, task: Task, model: object) -> Plan:
        assert task.current is not None
        at = HOSTS.index(task.current["o"])
        return Plan({**task.current, "o": HOSTS[(at + 1) % len(HOSTS)]}, task.dataflow)


class Compared(Elsewhere):
    """The same planner, which requests the comparison with the present placement."""

    compared = True


def test_the_answers_of_a_planner_are_carried_out(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "thalweg")

    def changes() -> list[str]:  # two may come between two partitions, so placements would not show them all
        lines = [line for line in caplog.records if getattr(line, "event", "") == "placement-changed"]
        return [match[1] for line in lines if (match := re.search(r"'o' to host '(\w+)'", line.getMessage()))]

    with client.run(
        FLOW, {"o": "h1"}, adaptation=GlobalMoves(period_s=0.05), planning=Planning(planner=Elsewhere())
    ) as run:
        taking(run, lambda: len(changes()) > 3)
    assert changes()[:4] == ["h2", "h3", "h1", "h2"]


def test_a_plan_that_loses_the_requested_comparison_is_dropped_and_logged_with_the_reason(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "thalweg")
    links = {(a, b): None for a in (*HOSTS, "client") for b in (*HOSTS, "client") if a != b}
    client.probe(links)
    with client.run(
        FLOW,
        {"o": "h1"},
        adaptation=GlobalMoves(period_s=0.05, gain=0.9),
        # messages cost a second each, so that no measured rate decides
        planning=Planning(planner=Compared(), costs=CostParameters(startup_s=1.0)),
    ) as run:
        taking(run, lambda: any(getattr(line, "event", "") == "plan-dropped" for line in caplog.records))
        assert run.placement["o"] == "h1"
    line = next(line for line in caplog.records if getattr(line, "event", "") == "plan-dropped")
    assert line.reason.startswith(("no better plan", "it saves less than 90%"))  # type: ignore[attr-defined]


def test_the_planner_of_the_how_to_page_moves_operators(client: Client) -> None:
    page = ROOT / "docs/how-to/write-a-planner.md"
    (block,) = (block for block in python_blocks(page.read_text()) if "class BesideAnInput" in block)
    scope: dict[str, Any] = {}
    exec(compile(block, page.name, "exec"), scope)
    planner, flow = scope["BesideAnInput"](), complete_binary_tree(blocks(), MIX)
    with client.run(
        flow, {"op0": "client", "op1": "client"}, adaptation=GlobalMoves(0.05), planning=Planning(planner=planner)
    ) as run:
        taking(run, lambda: "client" not in (run.placement["op0"], run.placement["op1"]))
