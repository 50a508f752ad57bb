"""Trials of fault plans: their outcomes, and the handling of plans that fail."""

from __future__ import annotations

import functools
import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_ids import run_of
from typer.testing import CliRunner

from thalweg.emulation.virtual.faults import (
    BulkOutage,
    Crash,
    Cut,
    Drop,
    Duplicate,
    Fault,
    FaultPlan,
    Hostility,
    LargeOutage,
    Late,
    OfMessage,
    Outage,
    Slow,
    Stop,
    Storm,
)
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.experiments.cli import verbs as cli
from thalweg.experiments.cli.stopping import Stopped
from thalweg.experiments.faults import graphs as fault_graphs
from thalweg.experiments.faults import sweep as faults
from thalweg.experiments.faults import trials as fault_trials
from thalweg.experiments.faults.expected_losses import LIMITS, may_be_dead, may_be_lost, needed
from thalweg.experiments.faults.generated_plans import ABOUT_S, MERGED, RESHAPED, draw_trial, drawn_plan, trial_of
from thalweg.experiments.faults.queries import draw_death
from thalweg.experiments.faults.standstill import Standstill, Watch, lasting
from thalweg.experiments.faults.sweep import Kind, load_plan, minimize, shrink, sweep_faults
from thalweg.experiments.faults.trial_code import Counting
from thalweg.experiments.faults.trials import TrialResult, run_trial
from thalweg.middleware.core.hosting.coordinator import Coordinator
from thalweg.middleware.core.hosting.ended_runs import EndedRuns
from thalweg.middleware.core.measuring.silence import StallAction, Suspicions
from thalweg.middleware.core.moving.departures import Departures
from thalweg.middleware.core.routes.route_choice import RouteChoice
from thalweg.middleware.core.runs.run import RunCore
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.errors import RunError, UsageError
from thalweg.middleware.network.view import NET
from thalweg.middleware.planning.registry import RandomMoves, RandomReshapes
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import GlobalMoves, LocalMoves
from thalweg.middleware.protocol.run_id import NO_RUN

HOSTS = ("h1", "h2", "h3", "client")


# --- trials -------------------------------------------------------------------------------------------


@pytest.mark.long
def test_drawn_plans_of_trees_do_not_fail() -> None:
    """Run a few drawn plans. ``thalweg sweep --faults 1000`` runs more of them."""
    moves, outcomes = Counter[str](), Counter[str]()
    for seed in range(1, 26):
        result, _ = run_trial(drawn_plan(seed))
        assert result.outcome != "failed", result
        outcomes[result.outcome] += 1
        moves.update(result.moves)
    assert outcomes["delivered"] > outcomes["ended"] > 0
    assert all(moves[kind] > 5 for kind in ("moved barrier", "moved epoch", "stayed barrier", "stayed epoch")), moves


@pytest.mark.long
def test_drawn_plans_of_graphs_do_not_fail() -> None:
    """Run plans with several consumers, sinks and queries, filters and windows, as ``thalweg sweep … --graphs``."""
    outcomes, moves, queries, nothing = Counter[str](), Counter[str](), Counter[str](), 0
    for seed in range(1, 13):
        result, _ = run_trial(drawn_plan(seed, graph=True))
        assert result.outcome != "failed", result
        outcomes[result.outcome] += 1
        moves.update(result.moves)
        queries.update(result.queries)
        nothing += result.nothing
    assert outcomes["delivered"] > outcomes["ended"] > 0
    assert nothing > 100
    assert all(moves[kind] > 5 for kind in ("moved barrier", "moved epoch")), moves
    assert queries["attached"] > 10, queries
    assert queries["detached"] > 3, queries
    assert queries["subscribed"] > 10, queries


@pytest.mark.long
@pytest.mark.parametrize(
    "kind",
    [
        Kind(),
        Kind(lasting=True),
        Kind(stripes=True),
        Kind(stripes=True, lasting=True),
        Kind(networks=True),
        Kind(networks=True, lasting=True),
        Kind(networks=True, graph=True),
    ],
    ids=str,
)
def test_drawn_plans_of_every_kind_do_not_fail(kind: Kind) -> None:
    """Run the plans of ``thalweg sweep --faults …`` with ``--stripes`` or ``--networks``, with gray faults."""
    results = [run_trial(kind.plan(seed))[0] for seed in range(5001, 5021)]
    assert [result for result in results if result.outcome == "failed"] == []
    counts = Counter[str]()
    for result in results:
        counts.update(result.faults)
    assert counts["bulk-outage"] and counts["large-outage"]


def test_drawn_striped_trials_cover_every_variant() -> None:
    trials = [trial_of(FaultPlan(seed, stripes=True)) for seed in range(200)]
    assert [trial.dataflow for trial in trials] == [
        trial_of(FaultPlan(seed, stripes=True)).dataflow for seed in range(200)
    ]
    striped = [trial.striped for trial in trials if trial.striped is not None]
    assert len(striped) == 200
    assert {len(stream.trees) for stream in striped} == {2, 3, 4}
    assert {all(flow == stream.trees[0][0] for flow, _ in stream.trees) for stream in striped} == {True, False}
    aboves = [stream.above[0] for stream in striped if stream.above is not None]
    assert {len(above.operators) for above in aboves} == {0, 1, 2}
    assert {len(above.sinks) for above in aboves} == {1, 2}
    assert {(type(trial.adaptation), type(trial.driver)) for trial in trials} == {
        (GlobalMoves, NoneType),
        (LocalMoves, NoneType),
        (LocalMoves, RandomMoves),
        (NoneType, RandomReshapes),
    }
    spared = [trial_of(FaultPlan(seed, stripes=True, spares=True)).dataflow for seed in range(40)]
    assert {len(node.stand_ins) for flow in spared for node in flow.nodes if node.kind == "source"} == {0, 1, 2}


def test_trials_of_several_networks_differ_from_plain_trials_only_in_the_networks() -> None:
    over = set[int | str]()
    for seed in range(60):
        trial = trial_of(FaultPlan(seed, networks=True))
        bare, joined = trial_of(FaultPlan(seed)), trial.joined
        assert trial.links == {**bare.links, **joined.links}
        assert (trial.dataflow, trial.placement, trial.hosts) == (bare.dataflow, bare.placement, bare.hosts)
        assert {link.via for link in joined.links} == joined.networks.keys() - {NET}
        for route in joined.ways:
            assert NET in route.over
            over |= {via if isinstance(via, str) else len(via) for via in route.over}
    assert over == {NET, "fast", "far", 2}


def test_partitions_go_over_further_networks_and_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    over = Counter[str]()

    class Watched(fault_trials.FaultyWorld):
        def _send(self, host: Any, send: e.Send) -> None:
            if send.bulk:
                over[send.via if isinstance(send.via, str) else "relays"] += 1
            super()._send(host, send)

    monkeypatch.setattr(fault_trials, "FaultyWorld", Watched)
    for seed in range(1, 7):
        result, _ = run_trial(FaultPlan(seed, networks=True))
        assert (result.outcome, result.lost) == ("delivered", 0), result
    assert min(over[via] for via in (NET, "fast", "relays")) > 5, over


@pytest.mark.parametrize("kind", [Kind(graph=True), Kind(networks=True)], ids=str)
def test_stripes_with_graphs_or_networks_are_refused(kind: Kind) -> None:
    with pytest.raises(UsageError, match=r"--stripes and --.* do not go together"):
        msgspec.structs.replace(kind, stripes=True)
    plan = {"seed": 1, "stripes": True, "graph": kind.graph, "networks": kind.networks}
    with pytest.raises(msgspec.ValidationError, match="has neither a graph nor several networks"):
        msgspec.convert(plan, FaultPlan)


# --- standstills --------------------------------------------------------------------------------------


def watched(*messages: tuple[float, e.Record]) -> Watch:
    """Return a watch of a sink that gets nothing between 10 and 60 s, with these records of the client."""
    watch = Watch("client")
    for at_s in (1.0, 10.0, 60.0, 61.0):
        watch.on_delivered("t", at_s)
    for at_s, record in messages:
        watch.on_record("client", at_s, record)
    return watch


def fault(what: str, peer: str = "", kind: str = "fault") -> e.Record:
    return e.Record(run_of("run"), kind, {"peer": peer, "detail": {"what": what}})


BULK = BulkOutage("h1", "h2", 5.0, 40.0)


@pytest.mark.parametrize(
    ("messages", "unnamed_s"),
    [
        ([], 35.0),
        ([(30.0, fault("host 'h1' gets nothing through"))], 20.0),
        ([(30.0, fault("the run goes on without it", "h2"))], 20.0),
        ([(30.0, fault("the run goes on without it", "h3"))], 35.0),  # of another host
        ([(30.0, e.Record(run_of("run"), "fault", {"peer": "h2"}))], 35.0),  # says nothing to people
        ([(30.0, fault("", "h2", "repeated"))], 35.0),
        ([(7.0, fault("goes on", "h2"))], 35.0),  # of what was before
        ([(55.0, fault("goes on", "h2"))], 35.0),  # when it was over
    ],
)
def test_a_standstill_is_silent_until_a_message_names_the_fault(
    messages: list[tuple[float, e.Record]], unnamed_s: float
) -> None:
    faults = lasting(FaultPlan(1, (BULK, Slow("h3", 9.0, 0.0, 99.0))), HOSTS)
    before, standstill = watched(*messages).standstills(faults, ["t"], 61.0)
    assert before[:3] == ("t", 1.0, 10.0)
    assert standstill == Standstill("t", 10.0, 60.0, unnamed_s)


def test_a_message_shortly_before_a_standstill_counts_for_the_standstill() -> None:
    watch = watched((8.5, fault("the run goes on without it", "h2")))
    (before,) = watch.standstills(lasting(FaultPlan(1, (BULK,)), HOSTS), ["t"], 61.0)
    assert before == Standstill("t", 1.0, 10.0, 3.5)


def test_a_lost_host_needs_to_be_named_only_once() -> None:
    watch, faults = watched((7.0, fault("has been silent", "h3"))), (Crash("h3", 3.0), Stop("h2", 20.0, 15.0))
    before, standstill = watch.standstills(lasting(FaultPlan(1, faults), HOSTS), ["t"], 61.0)
    assert (before.unnamed_s, standstill.unnamed_s) == (4.0, 15.0)
    assert [*lasting(FaultPlan(1, (Crash("g2", 3.0),)), HOSTS)] == []  # another client's end holds up no sink


def test_a_sink_without_deliveries_stands_still_from_the_start_until_a_failure() -> None:
    watch, outage = Watch("client"), Outage("h1", "client", 0.0)
    assert [*watch.standstills(lasting(FaultPlan(1, (outage,)), HOSTS), ["t"], 40.0)] == [
        Standstill("t", 0.0, 40.0, 40.0)
    ]
    watch.on_failed(30.0, "host 'h1', which holds s, has been silent for 30 s")
    (standstill,) = watch.standstills(lasting(FaultPlan(1, (outage,)), HOSTS), ["t"], 30.0)
    assert standstill.unnamed_s == 30.0


def test_a_trial_fails_if_a_stream_stands_still_without_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = 3
    source = draw_trial(seed).dataflow.by_name["s0"].pinned
    hosts = [host for host in draw_trial(seed).hosts if host != source]
    plan = FaultPlan(seed, tuple(BulkOutage(source or "", host, 2.0, 25.0) for host in hosts))
    result, _ = run_trial(plan)
    assert (result.outcome, "control messages pass, partitions do not" in result.what) == ("ended", True)
    assert result.silent_s < 20.0
    monkeypatch.setattr(Suspicions, "on_stalled", lambda *_: StallAction.WAIT)
    result, _ = run_trial(plan)
    assert result.outcome == "delivered"
    assert 20.0 < result.silent_s <= 25.0
    monkeypatch.setattr(fault_trials, "SILENT_S", 20.0)
    monkeypatch.setattr(Suspicions, "on_waiting", lambda *_, **__: None)
    result, _ = run_trial(plan)
    assert (result.outcome, result.kind) == ("failed", "silent")
    assert "that no message named" in result.what


def observe(patch: pytest.MonkeyPatch, owner: type, name: str, when: Callable[..., object]) -> list[str]:
    """Return a list that gets an entry for each call of a method whose arguments fulfil ``when``.

    The plan of a seed changes with the draws. A test that observes the mechanism of its name then fails, and needs
    another seed.
    """
    method, seen = getattr(owner, name), list[str]()

    def observed(*arguments: Any, **options: Any) -> Any:
        if when(*arguments, **options):
            seen.append(name)
        return method(*arguments, **options)

    patch.setattr(owner, name, observed)
    return seen


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(1010451, id="who had not begun kept the run, whose streams had ended"),
        pytest.param(1010633, id="a run failed of which guests took the rest"),
        pytest.param(1010706, id="a guest gave up leaving what was still to begin"),
    ],
)
def test_no_action_of_a_guest_makes_a_run_fail(seed: int) -> None:
    result, _ = run_trial(drawn_plan(seed, graph=True))
    assert result.outcome != "failed", result
    assert result.queries["dismissed"]


def test_a_run_with_subscribers_goes_on_after_queries_have_left_and_hosts_are_lost() -> None:
    result, _ = run_trial(drawn_plan(80_177, graph=True, gray=True))
    assert result.outcome != "failed", result
    assert result.recoveries and result.queries["detached"] and result.queries["subscribed"]


def test_the_standstill_of_a_failed_query_ends_while_other_queries_go_on() -> None:
    faults = Outage("h4", "h5", 14.06, 76.49), Drop("client", "h4", "Install", 1), Drop("client", "h1", "Partition", 1)
    result, _ = run_trial(FaultPlan(9_100_011, faults, graph=True))
    assert (result.outcome, result.queries["failed"]) == ("delivered", 1), result
    assert 40.0 < result.silent_s < 60.0  # it fails 50 s after the beginning of the outage


@pytest.mark.parametrize("seed", [11, 80_425])
def test_old_partitions_leave_dead_routes_after_a_change_of_networks(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new table has no route to the host, so only a partition of before the change can leave one."""
    left = observe(monkeypatch, RouteChoice, "leave", lambda routes, to, via: not routes._over.get(to))
    result, _ = run_trial(drawn_plan(seed, networks=True, lasting=True, gray=True))
    assert (result.outcome, result.delivered) == ("delivered", result.expected)
    assert left


def test_a_report_about_a_slow_guest_that_has_left_does_not_make_the_run_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_a_former_guest(coordinator: Coordinator, sender: str, message: m.Failed) -> bool:
        led = coordinator.led.get(message.run)
        if led is None or led.directory is None or fault_trials.TOO_SLOW not in message.reason:
            return False
        return message.lost not in {*led.directory.subscribers, *led.directory.peers, led.out.host}

    late = observe(monkeypatch, Coordinator, "on_failed", of_a_former_guest)
    result, _ = run_trial(drawn_plan(166, graph=True, gray=True))
    assert (result.outcome, result.delivered) == ("delivered", result.expected), result
    assert late


def test_a_query_that_shares_an_ended_node_is_notified_in_a_run_with_failover() -> None:
    """The host that sends the notice has the ended node and no node of the query."""
    result, _ = run_trial(drawn_plan(80_297, graph=True, lasting=True, gray=True))
    assert (result.outcome, fault_trials.SHARED in result.what) == ("ended", True), result


@pytest.mark.long
@settings(max_examples=8)
@given(st.integers(1000, 10**6))
def test_every_sink_of_a_graph_gets_the_reference_results_while_operators_move(seed: int) -> None:
    result, _ = run_trial(FaultPlan(seed, graph=True))
    assert (result.outcome, result.lost) == ("delivered", 0), result


@pytest.mark.long
def test_a_guest_learns_the_owners_of_sinks_after_a_late_answer_to_an_earlier_message() -> None:
    result, _ = run_trial(drawn_plan(991_241, graph=True))
    assert (result.outcome, result.queries["subscribed"]) == ("delivered", 5)


@pytest.mark.parametrize(("seed", "graph", "recoveries"), [(920_508, True, 0), (3_700_313, False, 3)])
def test_a_run_with_many_moves_delivers_all_partitions_despite_faults(seed: int, graph: bool, recoveries: int) -> None:
    """Both plans failed once, when operators moved whose consumers had renounced or had not reported yet."""
    result, _ = run_trial(drawn_plan(seed, graph=graph))
    assert (result.outcome, result.delivered, result.recoveries) == ("delivered", result.expected, recoveries)
    assert result.moves["moved epoch"] >= 10


def test_a_waiting_query_begins_if_a_host_is_lost_after_all_streams_have_ended() -> None:
    result, _ = run_trial(drawn_plan(41_003_056, graph=True))
    assert (result.outcome, result.delivered, result.queries["attached"]) == ("delivered", result.expected, 3)


@pytest.mark.parametrize(
    ("seed", "lasting"),
    [
        pytest.param(44_001_204, False, id="the last of a source's consumers to be heard of wanted nothing more"),
        pytest.param(44_002_086, False, id="a host was waited for of which what it was to have had left"),
        pytest.param(44_002_568, False, id="the word that an output was not kept was lost"),
        pytest.param(60_000_100, True, id="a query shared a source that was missing"),
        pytest.param(60_000_356, True, id="a source is missing for good, as its host has no part in the run any more"),
        pytest.param(60_000_114, True, id="a source was missing when its stream would have ended"),
        pytest.param(70_001_832, True, id="a sink had nothing but the end"),
        pytest.param(5_400_082, True, id="what an operator held could go as it went on, as fewer outputs were kept"),
    ],
)
def test_a_run_of_a_graph_delivers_all_partitions_despite_faults(seed: int, lasting: bool) -> None:
    result, _ = run_trial(drawn_plan(seed, graph=True, lasting=lasting))
    assert (result.outcome, result.delivered) == ("delivered", result.expected), result


def test_a_reshaping_after_the_loss_of_a_host_delivers_all_partitions_under_way() -> None:
    result, _ = run_trial(drawn_plan(71_002_586, lasting=True))
    assert (result.outcome, result.delivered) == ("delivered", result.expected), result
    assert result.recoveries and result.shapes["reshaped"]


@pytest.mark.parametrize(
    ("gone", "there", "found"),
    [
        ({"h1"}, {"h2"}, set()),
        ({"h2"}, {"h1"}, {"h2"}),
        ({"h1", "h3"}, {"h2"}, {"h1", "h3"}),  # one of them may be missing, and then the other may not
        ({"h1", "h3"}, {"h4"}, set()),
    ],
)
def test_a_lost_host_is_needed_if_a_required_source_has_no_other_host(
    gone: set[str], there: set[str], found: set[str]
) -> None:
    code = Code("composite")
    sources = [Node("s1", "source", (), code, "h1"), Node("s3", "source", (), code, "h3", stand_ins=("h4",))]
    pinned = [Node("s2", "source", (), code, "h2"), Node("p", "operator", ("s2",), code)]
    o = Node("o", "operator", ("s1", "s3"), code, missing="nothing")
    sinks = [Node("t", "sink", ("o", "p"), None, "client"), Node("u", "sink", ("o",), None, "client")]
    assert needed(Dataflow((*sources, *pinned, o, *sinks)), gone, there) == found


def test_a_striped_stream_may_end_for_a_host_that_the_last_tree_needs() -> None:
    """Both hosts that may have a source are gone. The first tree ends for one of them, and the last for the other."""
    result, _ = run_trial(drawn_plan(740_005, lasting=True, stripes=True, gray=True))
    assert (result.outcome, "host 'h5', which holds s2," in result.what) == ("ended", True), result


def test_lasting_plans_have_stand_ins_for_sources_and_rules_for_missing_inputs() -> None:
    plans = [drawn_plan(seed, graph=True, lasting=True) for seed in range(1, 60)]
    assert {(plan.lasting, plan.spares) for plan in plans} == {(True, True)}
    assert {plan.ahead for plan in plans} == {1, 2, 4}
    flows = [draw_trial(plan.seed, graph=True, spares=True).dataflow for plan in plans]
    nodes = [node for flow in flows for node in flow.nodes]
    assert {len(node.stand_ins) for node in nodes if node.kind == "source"} == {0, 1, 2}
    assert {node.missing for node in nodes if node.kind == "operator"} == {"wait", "nothing"}
    for plan, flow in zip(plans, flows, strict=True):
        bare = draw_trial(plan.seed, graph=True).dataflow
        spared = [msgspec.structs.replace(node, stand_ins=(), missing="wait") for node in flow.nodes]
        assert Dataflow(tuple(spared)) == bare  # all else is as it would be without


def test_a_run_with_only_other_clients_may_end_for_a_lost_host() -> None:
    result, _ = run_trial(drawn_plan(41_000_096, graph=True))
    assert (result.outcome, result.delivered, result.queries["subscribed"]) == ("ended", result.expected, 1)
    assert "no longer knows the run; was its process restarted?" in result.what


@pytest.mark.parametrize("seed", range(1, 21))
def test_a_late_copy_of_the_installation_does_not_open_the_run_on_a_restarted_host(seed: int) -> None:
    faults = (Duplicate("client", "h1", "Install", 1, 3.3), Crash("h1", 3.0, 0.2))
    result, _ = run_trial(FaultPlan(seed, faults))
    assert result.outcome in ("delivered", "ended"), result


def test_a_late_message_does_not_bring_a_run_back(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = [Duplicate("client", host, "Install", 1, 55.0) for host in ("h1", "h2")]
    plans = [FaultPlan(1, tuple(copies)), FaultPlan(2, tuple(copies)), drawn_plan(87)]
    assert any(isinstance(fault, Late) for fault in plans[-1].faults)
    assert {run_trial(plan)[0].outcome for plan in plans} == {"delivered"}
    monkeypatch.setattr(EndedRuns, "knows", lambda *_: False)
    for plan in plans:
        result, _ = run_trial(plan)
        assert (result.kind, result.what[:23]) == ("AssertionError", "the run is back on host"), result


def test_a_hostile_host_changes_nothing_unless_every_host_may_send_every_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = [FaultPlan(seed, (Hostility("stranger", 0.0, 40.0, 0.05),)) for seed in (1, 2, 4, 5, 7)]
    assert {run_trial(plan)[0].outcome for plan in plans} == {"delivered"}
    monkeypatch.setattr(RunCore, "may_say", lambda *_: True)
    assert {run_trial(plan)[0].outcome for plan in plans} == {"failed"}


def test_a_trial_delivers_if_a_hostile_host_makes_a_host_probe_further_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_another_run(world: FaultyWorld, host: object, command: e.Command) -> bool:
        return isinstance(command, e.Meet) and command.run.stream_id not in (world.run_id, NO_RUN)

    met = observe(monkeypatch, FaultyWorld, "_rare", of_another_run)
    result, _ = run_trial(drawn_plan(9))
    assert (result.outcome, result.faults["hostile"]) == ("delivered", 1)
    assert met


def test_a_plan_always_gives_the_same_result() -> None:
    plan = drawn_plan(7)
    first, second = run_trial(plan, digest=True), run_trial(plan, digest=True)
    assert first == second
    assert first[0].digest.startswith("sha256:")


def test_drawn_trees_cover_every_variant() -> None:
    trials = [draw_trial(seed) for seed in range(60)]
    assert {(type(trial.adaptation), type(trial.driver)) for trial in trials} == {
        (LocalMoves, RandomMoves),
        (GlobalMoves, NoneType),
        (LocalMoves, NoneType),
        (NoneType, RandomReshapes),
        (LocalMoves, RandomReshapes),
    }
    assert {trial.interface for trial in trials} == {"single", "independent"}
    assert {len(trial.hosts) for trial in trials} == {3, 4, 5, 6}
    assert {not trial.lengths for trial in trials} == {True, False}
    sizes = {trial.sizes[name] for trial in trials for name in trial.dataflow.operators}
    assert sizes == {1, 18_000, 300_000}


def test_drawn_graphs_cover_every_variant() -> None:
    trials = [draw_trial(seed, graph=True) for seed in range(300)]
    flows = [trial.dataflow for trial in trials]
    assert {len(flow.nodes) for flow in flows} >= set(range(4, 16))
    assert {len(flow.sinks) for flow in flows} == {1, 2}
    assert max(len(takers) for flow in flows for takers in flow.consumers.values()) == 4
    assert max(len(node.inputs) for flow in flows for node in flow.nodes if node.kind == "operator") == 4
    assert {node.ahead for flow in flows for node in flow.nodes} == {1, 2, 4}
    assert {node.rate for flow in flows for node in flow.nodes} == {None, 3.0, 20.0}
    params = [node.code.params for flow in flows for node in flow.nodes if node.code is not None]
    assert {key for mapping in params for key in mapping} >= {
        "length",
        "state_bytes",
        "passed",
        "rows",
        "every",
        "on_nothing",
    }
    assert {len(trial.queries) for trial in trials} == set(range(6))
    assert {trial.leaves is None for trial in trials} == {True, False}
    queries = [query for trial in trials for query in trial.queries]
    assert {query.stays is None for query in queries} == {query.after == 0 for query in queries} == {True, False}
    assert {len(trial.subscriptions) for trial in trials} == set(range(6))
    dying = [fault for seed in range(40) for fault in draw_death(seed, ABOUT_S)]
    assert {crash.restart_after_s is None for crash in dying} == {True, False}
    codes = [node.code for query in queries for node in query.dataflow.nodes if node.code is not None]
    assert {"breaks_after" in code.params for code in codes} == {True, False}


@pytest.mark.parametrize("graph", [False, True], ids=["tree", "graph"])
def test_a_lost_state_is_detected(graph: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the harness: an operator that restarts without its state on each host is detected."""
    counting = fault_graphs.Counting if graph else Counting
    monkeypatch.setattr(counting, "restore", lambda self, state: None)
    kinds = {run_trial(FaultPlan(seed, graph=graph))[0].kind for seed in range(1, 8)}
    assert "contents" in kinds
    assert kinds <= {"contents", ""}


@pytest.mark.long
@pytest.mark.parametrize("kept", [slice(1), slice(1, None)], ids=["the last one's", "the others'"])
def test_an_unmerged_state_is_detected(monkeypatch: pytest.MonkeyPatch, kept: slice) -> None:
    """Check the harness: every state to merge counts, even if the last operator has always had the outputs."""
    merge = Counting.merge
    monkeypatch.setattr(Counting, "merge", lambda self, states: merge(self, states[kept]))
    kinds = {run_trial(FaultPlan(seed))[0].kind for seed in range(1, 100) if seed % 12 in MERGED}
    assert kinds == {"contents", ""}


@pytest.mark.parametrize(
    ("planned", "lost"),
    [
        ((), set()),
        ((Storm(0.9), Slow("h1", 50.0, 0.0, 99.0)), set()),
        ((Crash("h2", 5.0),), {"h2"}),
        ((Outage("h1", "client", 1.0, 5.0), Outage("client", "h2", 1.0, 60.0)), {"h2"}),
        ((Outage("h1", "h2", 1.0, 60.0),), set()),
        ((Cut(("client", "h1"), 1.0, 60.0),), {"h2", "h3"}),
        ((Outage("h1", "client", 1.0, 10.0), Cut(("h1",), 10.0, 10.0)), {"h1"}),
        ((Outage("h1", "client", 1.0, 10.0), Cut(("h1",), 15.0, 10.0)), set()),
        ((BulkOutage("h1", "client", 1.0, 20.0), LargeOutage("client", "h2", 1.0)), {"h1", "h2"}),
        ((BulkOutage("h1", "client", 1.0, via="fast"), Outage("h2", "client", 1.0, via="net")), {"h2"}),
    ],
)
def test_a_host_may_be_lost_after_a_crash_or_a_long_outage(planned: tuple[Fault, ...], lost: set[str]) -> None:
    assert LIMITS.liveness_s == 30.0
    assert may_be_lost(FaultPlan(1, planned), HOSTS) == lost


@pytest.mark.parametrize(
    ("planned", "dead"),
    [
        ((Crash("h2", 5.0),), []),
        ((Outage("h1", "h2", 1.0, 12.0),), []),
        ((Outage("h1", "h2", 1.0, 17.0),), [("h1", "h2")]),
        ((Outage("h1", "h2", 90.0),), [("h1", "h2")]),
        ((BulkOutage("h1", "h2", 90.0), BulkOutage("h1", "h3", 90.0, via="fast")), [("h1", "h2")]),
        ((Outage("h1", "h2", 1.0, 12.0), Outage("h2", "h1", 13.0, 12.0)), []),
        ((Outage("h1", "h2", 1.0, 10.0), Cut(("h1", "h3"), 11.0, 10.0)), [("h1", "h2")]),
        ((Cut(("h1",), 1.0, 40.0),), [("h1", "h2"), ("h1", "h3"), ("h1", "client"),
                                            ("h2", "h1"), ("h3", "h1"), ("client", "h1")]),
    ],
)  # fmt: skip
def test_a_route_may_count_as_dead_after_a_long_outage(planned: tuple[Fault, ...], dead: list[tuple[str, str]]) -> None:
    assert LIMITS.liveness_s == LIMITS.detect_s == 30.0
    assert may_be_dead(FaultPlan(1, planned), HOSTS) == dead


@pytest.mark.long
def test_a_permanently_cut_route_ends_the_run_or_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plans include routes that only a later tree needs: of every six seeds, two change the tree."""
    plans = [FaultPlan(seed, (Outage("h1", "h2", 3.0),)) for seed in range(1, 25)]
    results = [run_trial(plan)[0] for plan in plans]
    assert Counter(result.outcome for result in results).keys() == {"delivered", "ended"}
    ended = [result for result in results if result.outcome == "ended"]
    assert {result.seed % 6 in RESHAPED for result in ended} == {True, False}
    assert all("host 'h1'" in result.what and "host 'h2'" in result.what for result in ended)
    monkeypatch.setattr(Suspicions, "on_waiting", lambda *_, **__: None)
    result, _ = run_trial(FaultPlan(ended[0].seed, (Outage("h1", "h2", 3.0),)))
    assert (result.outcome, result.kind) == ("failed", "stalled")


def test_a_trial_fails_if_a_run_ends_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(seed for seed in range(1, 99) if any(isinstance(fault, Crash) for fault in drawn_plan(seed).faults)
                and run_trial(drawn_plan(seed))[0].outcome == "ended")  # fmt: skip
    monkeypatch.setattr(fault_trials, "may_be_lost", lambda plan, hosts: set())
    result, _ = run_trial(drawn_plan(seed))
    assert (result.outcome, result.kind) == ("failed", "ended")


def test_a_trial_fails_if_a_hand_over_is_not_recorded_exactly_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(seed for seed in range(1, 99) if run_trial(FaultPlan(seed))[0].moves)
    record = Departures._record

    def twice(departures: Departures, *arguments: Any) -> None:
        record(departures, *arguments)
        record(departures, *arguments)

    for wrong, message in ((lambda *_: None, "neither moved nor stayed"), (twice, "is recorded 2 times: ")):
        monkeypatch.setattr(Departures, "_record", wrong)
        result, _ = run_trial(FaultPlan(seed))
        assert (result.outcome, result.kind) == ("failed", "relocation")
        assert message in result.what


def test_a_host_that_crashes_before_the_installation_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(seed for seed in range(1, 99) if draw_trial(seed).dataflow.by_name["s0"].pinned == "h1")
    plan = FaultPlan(seed, (Crash("h1", 0.001, 0.2),))
    assert run_trial(plan)[0].outcome == "delivered"
    monkeypatch.setattr(Coordinator, "on_welcome", lambda *_: ())
    result, _ = run_trial(plan)
    assert (result.outcome, result.kind) == ("failed", "ended")
    assert run_trial(FaultPlan(seed, (Crash("h1", 0.001, 20.0),)))[0].outcome == "ended"
    assert run_trial(FaultPlan(seed, (Crash("h1", 0.001),)))[0].outcome == "ended"


@pytest.mark.parametrize(("seed", "host"), [(120, "h2"), (215, "h2"), (526, "h2"), (531, "h5")])
def test_a_restarted_host_with_an_unconfirmed_installation_is_lost(seed: int, host: str) -> None:
    """The host holds no node at first, so the run begins without its confirmation.

    An operator moves there before the crash.
    """
    result, _ = run_trial(FaultPlan(seed, (Outage(host, "client", 0.0, 4.0), Crash(host, 3.0, 0.2))))
    assert (result.outcome, "was restarted" in result.what) == ("ended", True), result


def test_only_a_host_that_had_handed_over_all_nodes_ends_the_run_as_unheard() -> None:
    """Operator o1 leaves h2, which crashes before the client is notified. A host that never joined is not unheard."""
    moved, held = Outage("h2", "client", 0.5, 1.5), Crash("h2", 0.3, 0.2)
    assert _ended(FaultPlan(208, (moved, Crash("h2", 2.0, 0.2)))) == ("ended", "unheard")
    assert _ended(FaultPlan(208, (held,))) == ("ended", "")
    assert _ended(FaultPlan(208, (Crash("h2", 0.001),))) == ("ended", "")


def _ended(plan: FaultPlan) -> tuple[str, str]:
    result, _ = run_trial(plan)
    return result.outcome, result.kind


def test_a_fault_of_a_message_counts_once_if_the_message_was_sent() -> None:
    drops = Drop("client", "h1", "Install", 1), Drop("client", "h1", "Install", 10**6)
    assert run_trial(FaultPlan(1, (*drops, Slow("h1", 2.0, 1.0, 1.0))))[0].faults == {"drop": 1, "slow": 1}


# --- minimal plans ------------------------------------------------------------------------------------


def test_shrinking_leaves_the_items_that_fail_together() -> None:
    asked: list[list[int]] = []

    def fails(items: object) -> bool:
        asked.append(list(items))  # type: ignore[call-overload]
        return {7, 31, 32} <= set(asked[-1])

    assert shrink(range(100), fails, 1000) == [7, 31, 32]
    assert len(asked) < 120
    assert shrink(range(100), lambda items: True, 1000) == []
    assert len(shrink(range(100), fails, 3)) == 100 // 2 or len(shrink(range(100), fails, 3)) == 100


def fake(plan: FaultPlan) -> tuple[TrialResult, tuple[OfMessage, ...]]:
    """Return a result of a pretended defect, which shows if messages 3 and 50 are both lost.

    The storm of seed 2 drops both messages.
    """
    done = (
        tuple(Drop("h1", "h2", "Demand", number) for number in range(1, 80)) if _stormy(plan) and plan.seed == 2 else ()
    )
    lost = {fault.number for fault in (*plan.faults, *done) if isinstance(fault, Drop)}
    failed = {3, 50} <= lost
    moves = {"moved barrier": 2, "stayed epoch": 1}
    outcome = "failed" if failed else "delivered"
    result = TrialResult(
        seed=plan.seed, outcome=outcome, kind="stalled" if failed else "", what="no end" if failed else "",
        expected=10, delivered=9 if failed else 10, lost=int(failed), moves=moves, faults={"drop": len(lost)},
    )  # fmt: skip
    return result, done


def _stormy(plan: FaultPlan) -> bool:
    return any(isinstance(fault, Storm) for fault in plan.faults)


def test_a_plan_that_fails_is_made_minimal() -> None:
    plan = FaultPlan(2, (Storm(0.5), Slow("h1", 2.0, 0.0, 9.0)))
    assert minimize(plan, fake) == FaultPlan(2, (Drop("h1", "h2", "Demand", 3), Drop("h1", "h2", "Demand", 50)))
    calm = FaultPlan(1, (Storm(0.5),))
    assert minimize(calm, fake) == calm


def test_minimizing_a_plan_stops_at_the_limit_of_events() -> None:
    counts = []

    def long(plan: FaultPlan) -> tuple[TrialResult, tuple[OfMessage, ...]]:
        result, done = fake(plan)
        counts.append(faults.MAX_EVENTS // 8)
        return msgspec.structs.replace(result, events=counts[-1]), done

    plan = minimize(FaultPlan(2, (Storm(0.5), Slow("h1", 2.0, 0.0, 9.0))), long)
    assert len(counts) == 1 + 8  # the first shows that it fails
    assert {3, 50} <= {fault.number for fault in plan.faults if isinstance(fault, Drop)}
    assert 2 < len(plan.faults) < 81


def test_failed_plans_are_saved_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "drawn_plan", lambda seed, **_: FaultPlan(seed, (Storm(0.5),)))
    summary = sweep_faults(3, first_seed=1, out=tmp_path / "f", master="local", tell=lambda *_: None, run=fake)
    assert (summary.delivered, summary.failed, summary.lost, summary.partitions) == (2, 1, 1, 29)
    assert summary.moves == {"moved barrier": 6, "stayed epoch": 3}
    (failure,) = summary.failures
    assert (failure.seed, failure.what, failure.faults) == (2, "stalled: no end", 2)
    path = tmp_path / "f" / "plan-2.json"
    assert failure.command == f"thalweg sweep --replay-faults {path}"
    assert load_plan(path) == FaultPlan(2, (Drop("h1", "h2", "Demand", 3), Drop("h1", "h2", "Demand", 50)))


def test_a_stopped_sweep_reports_the_done_plans_and_the_command_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sweep is stopped after two plans, of which the second has failed, and before the first plan is done."""
    monkeypatch.setattr(faults, "drawn_plan", lambda seed, **_: FaultPlan(seed, (Storm(0.5),)))
    ends_at = 3

    def stopped(plan: FaultPlan) -> tuple[TrialResult, tuple[OfMessage, ...]]:
        if plan.seed == ends_at:
            raise Stopped(signal.SIGTERM)
        return fake(plan)

    asked = functools.partial(sweep_faults, first_seed=1, master="local", tell=lambda *_: None, run=stopped)
    monkeypatch.setattr(faults, "sweep_faults", lambda count, *, out, **_: asked(count, out=out))
    words = ["sweep", "--faults", "9", "--first-seed", "1", "--lasting", "--out", str(tmp_path / "f")]
    done = CliRunner().invoke(cli.app, words)
    assert done.exit_code == 128 + signal.SIGTERM
    assert done.stdout.startswith("2 fault plans from seed 1 in ")
    failure, end = done.stderr.splitlines()
    assert failure.startswith("thalweg: seed 2 stalled: no end; thalweg sweep --replay-faults ")
    command = f"thalweg sweep --faults 7 --first-seed 3 --lasting --out {tmp_path / 'f'}"
    assert end == f"thalweg: stopped by SIGTERM after 2 of 9 plans; go on with {command}"
    assert load_plan(tmp_path / "f" / "plan-2.json") == FaultPlan(2, (Storm(0.5),))
    ends_at = 1
    done = CliRunner().invoke(cli.app, words)
    assert (done.stdout, done.stderr.splitlines()[0].partition("; ")[0]) == (
        "",
        "thalweg: stopped by SIGTERM after 0 of 9 plans",
    )


@pytest.mark.spark
@pytest.mark.usefixtures("shared_spark")
def test_plans_have_the_same_results_on_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_process = sweep_faults(5, first_seed=11, out=tmp_path, master="local[*]", tell=lambda *_: None)
    monkeypatch.setattr(faults, "FEW_TRIALS", 0)
    on_spark = sweep_faults(5, first_seed=11, out=tmp_path, master="local[*]", tell=lambda *_: None)
    assert msgspec.structs.replace(on_spark, wall_s=in_process.wall_s) == in_process


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = fake(FaultPlan(2, (Storm(0.5),)))[0]
    with pytest.raises(RunError, match=r"file/plan-2\.json cannot be written: .*; take another folder with --out"):
        faults._keep(result, FaultPlan(2), tmp_path / "file")


# --- the command --------------------------------------------------------------------------------------


def test_the_command_prints_the_outcomes_of_the_plans(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["sweep", "--faults", "4", "--out", str(tmp_path / "f"), "--json"])
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    output = json.loads(done.stdout.splitlines()[-1])
    assert (output["faults"], output["failed"], output["lost"], output["failures"]) == (4, 0, 0, [])
    assert output["delivered"] + output["ended"] + output["abandoned"] == 4
    assert output["unheard"] <= output["ended"]
    assert not (tmp_path / "f").exists()
    done = CliRunner().invoke(cli.app, ["sweep", "--faults", "2", "--first-seed", "3"])
    assert done.stdout.startswith("2 fault plans from seed 3 in ")


def test_a_plan_is_replayed_from_a_seed_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(Kind().plan(5)))
    outputs = [CliRunner().invoke(cli.app, ["sweep", "--replay-faults", plan]).stdout for plan in ("5", str(path))]
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith("seed 5, ")
    done = CliRunner().invoke(cli.app, ["sweep", "--replay-faults", "5", "--json"])
    assert json.loads(done.stdout)["seed"] == 5


@pytest.mark.parametrize("kind", ["--stripes", "--networks"])
def test_plans_of_several_trees_and_networks_are_run_and_replayed(kind: str) -> None:
    done = CliRunner().invoke(cli.app, ["sweep", "--faults", "2", "--first-seed", "8", kind, "--json"])
    output = json.loads(done.stdout.splitlines()[-1])
    assert (output["faults"], output["failed"], output["lost"]) == (2, 0, 0)
    replayed = CliRunner().invoke(cli.app, ["sweep", "--replay-faults", "8", kind, "--json"])
    assert json.loads(replayed.stdout.splitlines()[-1])["silent_s"] <= output["silent_s"]


def test_a_replay_that_fails_has_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "run_trial", lambda plan, digest=False: fake(FaultPlan(2, (Storm(0.5),))))
    done = CliRunner().invoke(cli.app, ["sweep", "--replay-faults", "2"])
    assert done.exit_code == 1
    assert "failed, 9 of 10 partitions; stalled: no end" in done.stdout


@pytest.mark.parametrize("options", [["--faults", "0"], ["--faults", "1", "--first-seed", "-1"]])
def test_zero_plans_and_negative_seeds_are_refused(options: list[str]) -> None:
    assert CliRunner().invoke(cli.app, ["sweep", *options]).exit_code == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--replay-faults", "no-such"], "no-such cannot be read: No such file or directory"),
        (["--replay-faults", "3", "--faults", "3"], "--faults and --replay-faults do not go together"),
        (["--lasting"], "--lasting goes with --faults"),
        (["--stripes"], "--stripes goes with --faults"),
        (["--networks", "--configurations", "1"], "--networks goes with --faults"),
        (["--faults", "1", "--stripes", "--graphs"], "--stripes and --graphs do not go together"),
    ],
)
def test_unreadable_plans_and_conflicting_options_are_refused(options: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        CliRunner().invoke(cli.app, ["sweep", *options], catch_exceptions=False)


@pytest.mark.parametrize("text", ["", "{", '{"seed": 1, "faults": [{"type": "rain"}]}', '{"faults": []}'])
def test_a_file_that_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(UsageError, match=r"plan\.json is no fault plan: "):
        load_plan(tmp_path / "plan.json")


def test_a_plan_with_an_unknown_host_is_refused() -> None:
    with pytest.raises(UsageError, match="the plan names host 'h9'"):
        run_trial(FaultPlan(1, (Crash("h9", 1.0),)))
