"""The application gets every partition once, in order and computed from the right inputs, whatever the network does.

This holds while operators move by either protocol, and while the tree is reshaped. If a host dies, it holds until the
run ends with an error that names the host.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from adversary import CLIENT, FOREVER_S, FREE, MERGING, Mood, World, mixed_tree, right
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec import structs
from run_ids import R, fired

from thalweg.emulation.virtual.faults import Crash, Cut, Fault, Outage
from thalweg.emulation.virtual.world import VirtualHost
from thalweg.experiments.drivers.random_moves import shuffled
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.network.view import links_between
from thalweg.middleware.planning.registry import Driver, RandomMoves, RandomReshapes
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.adaptation import LocalMoves
from thalweg.middleware.protocol.limits import CoreConfig

# A failure is reproduced by its mood's seed; shrinking it would take minutes and rarely makes it simpler.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)

moods = st.builds(
    Mood,
    seed=st.integers(0, 2**32),
    loss=st.sampled_from([0.0, 0.1, 0.3, 0.6]),
    repeat=st.sampled_from([0.0, 0.2, 0.7]),
    delay_s=st.sampled_from([0.001, 0.05, 1.0, 5.0]),
    stale=st.booleans(),
)


random_moves = st.builds(RandomMoves, st.just(1000), st.integers(0, 2**32))


def moving(data: st.DataObject, mood: Mood) -> dict[str, Any]:
    """Draw options by which operators move at random, by the decision of their hosts, or both."""
    driver = data.draw(st.none() | random_moves)
    return {"driver": driver, "adaptation": data.draw(local_moves(mood) if driver is None else maybe_local_moves(mood))}


def maybe_local_moves(mood: Mood) -> st.SearchStrategy[LocalMoves | None]:
    return st.none() | local_moves(mood)


def local_moves(mood: Mood) -> st.SearchStrategy[LocalMoves]:
    """Draw local moves. A period lasts some to many messages, but not much less than the wait for a lost message."""
    return st.builds(
        LocalMoves,
        period_s=st.sampled_from([max(2.0, 20 * mood.delay_s), max(5.0, 200 * mood.delay_s)]),
        k=st.integers(0, 3),
        gate=st.booleans(),
        hysteresis=st.sampled_from([0.0, 1.0]),
        seed=st.integers(0, 2**32),
        cost=st.sampled_from(["critical-path", "period", "expected-period"]),
    )


Stream = dict[str, Any]  # what a world is of


def streams(hosts: int, sources: int, *partitions: int, length: int | None = None) -> st.SearchStrategy[Stream]:
    """Draw streams with at most ``hosts`` and ``sources``, and a number of partitions between two bounds.

    With a ``length`` the sources end after at most ``length`` partitions. The application may want fewer, or all.
    """
    wanted = st.integers(*partitions)
    return st.fixed_dictionaries({
        "mood": moods,
        "hosts": st.integers(2, hosts),
        "sources": st.integers(1, sources),
        "partitions": wanted if length is None else st.none() | wanted,
        "length": st.none() if length is None else st.integers(0, length),
    })  # fmt: skip


def count_of(stream: Stream) -> int:
    """Return the number of partitions that the application gets."""
    return min(each for each in (stream["partitions"], stream["length"]) if each is not None)


def check(world: World, count: int) -> None:
    """Run the world and compare its results with the right ones."""
    world.run()
    assert world.failed is None
    assert world.ended
    assert world.delivered == right(world.dataflow, count)
    assert world.forgotten
    check_nothing_is_left(world)


def dies(at_s: float) -> tuple[Fault, ...]:
    """Return the faults by which h3 dies, together with its messages in transit."""
    return Crash("h3", at_s), Cut(("h3",), at_s, FOREVER_S)


def check_nothing_is_left(world: World) -> None:
    for name, core in world.cores.items():
        if name not in world.down:
            assert core.runs == {}, f"{name} still has the run"
            assert core.coordinator.led == {}
            assert core.links.monitor.histories == {}
    assert {host for host, _ in world.combined} <= world.down, "code is left"


@given(streams(9, 6, 1, 6))
@settings(phases=PHASES)
def test_every_partition_arrives_exactly_once_and_in_order(stream: Stream) -> None:
    check(World(**stream), count_of(stream))


@given(streams(5, 4, 1, 6, length=4))
@settings(phases=PHASES)
def test_the_end_of_the_sources_reaches_the_application(stream: Stream) -> None:
    check(World(**stream), count_of(stream))


@given(streams(6, 6, 5, 25), random_moves, st.data())
@settings(phases=PHASES)
def test_every_partition_arrives_once_while_operators_move_at_random_by_both_protocols(
    stream: Stream, driver: RandomMoves, data: st.DataObject
) -> None:
    adaptation = data.draw(maybe_local_moves(stream["mood"]))
    check(World(**stream, driver=driver, adaptation=adaptation), count_of(stream))


@given(streams(6, 6, 5, 25), st.data())
@settings(phases=PHASES)
def test_every_partition_arrives_once_while_hosts_decide_about_moves_of_operators(
    stream: Stream, data: st.DataObject
) -> None:
    check(World(**stream, adaptation=data.draw(local_moves(stream["mood"]))), count_of(stream))


@given(streams(5, 4, 1, 10, length=8), st.data())
@settings(phases=PHASES)
def test_the_end_of_the_sources_reaches_the_application_though_operators_move(
    stream: Stream, data: st.DataObject
) -> None:
    check(World(**stream, **moving(data, stream["mood"])), count_of(stream))


random_reshapes = st.builds(RandomReshapes, st.just(1000), st.sampled_from([0, 1000]), st.integers(0, 2**32))


def restless(seed: int, period_s: float = 60.0) -> dict[str, Any]:
    """Return options by which operators look for a better host all the time, beside the requested moves."""
    return {"adaptation": LocalMoves(period_s=period_s, k=3, gate=False, seed=seed)}


def mixed_world(mood: Mood, hosts: int, sources: int, **rest: Any) -> World:
    """Return a world with free operators, with or without states to merge, counting operators and pinned operators."""
    names = [*(f"h{i}" for i in range(1, hosts)), CLIENT]
    tree = mixed_tree(Random(mood.seed), sources, names, MERGING if mood.seed % 2 else FREE)
    return World(mood, hosts, sources, tree=tree, **rest)


@given(streams(6, 7, 5, 25), random_reshapes, st.data())
@settings(phases=PHASES)
def test_every_partition_arrives_once_while_the_tree_is_reshaped_at_random(
    stream: Stream, driver: RandomReshapes, data: st.DataObject
) -> None:
    adaptation = data.draw(maybe_local_moves(stream["mood"]))
    check(mixed_world(**stream, driver=driver, adaptation=adaptation), count_of(stream))


@given(streams(5, 5, 1, 10, length=8), random_reshapes, st.data())
@settings(phases=PHASES)
def test_the_end_of_the_sources_reaches_the_application_though_the_tree_changes(
    stream: Stream, driver: RandomReshapes, data: st.DataObject
) -> None:
    adaptation = data.draw(maybe_local_moves(stream["mood"]))
    check(mixed_world(**stream, driver=driver, adaptation=adaptation), count_of(stream))


@pytest.mark.long
@given(streams(6, 6, 25, 25), st.data())
@settings(phases=PHASES)
def test_every_partition_arrives_once_while_the_application_reshapes_and_hosts_move_operators(
    stream: Stream, data: st.DataObject
) -> None:
    mood = stream["mood"]
    world = mixed_world(**stream, adaptation=data.draw(local_moves(mood)))
    random = Random(mood.seed)
    for _ in range(6):
        flow, placement = shuffled(world.dataflow, world.placement, [FREE, MERGING], world.names, random.randrange)
        wish = e.PlacementProposed(R, placement, "asked for", flow, (FREE, MERGING))
        world.at(random.uniform(0, 100 * mood.delay_s), CLIENT, wish)
    check(world, 25)


def check_a_death(world: World) -> None:
    """Run a world of 25 partitions in which a host dies. The run completes, or its error names the host."""
    world.run()
    assert world.delivered == right(world.dataflow, len(world.delivered))
    assert world.forgotten
    check_nothing_is_left(world)
    assert "host 'h3'" in world.failed if world.failed else len(world.delivered) == 25, world.failed


def mortal(seed: int, loss: float, dies_s: float, sources: int) -> Stream:
    config = CoreConfig(liveness_s=15.0, lease_s=60.0)
    return {"mood": Mood(seed, loss, delay_s=0.05), "hosts": 6, "sources": sources, "partitions": 25, "length": None,
            "core_config": config, "faults": dies(dies_s)}  # fmt: skip


deaths = st.builds(mortal, st.integers(0, 2**32), st.sampled_from([0.0, 0.1]), st.floats(0.2, 20.0), st.integers(1, 5))


@given(deaths)
@settings(phases=PHASES)
def test_a_host_that_dies_while_the_tree_changes_ends_the_run_or_does_not_matter(stream: Stream) -> None:
    seed = stream["mood"].seed
    check_a_death(mixed_world(**stream, **restless(seed), driver=RandomReshapes(1000, 1000, seed)))


@given(deaths, st.data())
@settings(phases=PHASES)
def test_a_host_that_dies_while_operators_move_ends_the_run_or_does_not_matter(
    stream: Stream, data: st.DataObject
) -> None:
    check_a_death(World(**stream, **moving(data, stream["mood"])))


@pytest.mark.long
def test_the_simulated_worlds_reshape_trees_even_at_heavy_loss() -> None:
    """A test of the harness: trees are reshaped at light and heavy loss, while operators move by both protocols."""
    outcomes: Counter[str] = Counter()
    for seed in range(3):
        for kind, mood in (("drizzle", Mood(seed, 0.05, 0.2, 0.5)), ("storm", Mood(seed, 0.4, 0.5, 0.1))):
            driver = RandomReshapes(1000, 1000, seed)
            world = mixed_world(mood, 6, 6, partitions=30, length=None, driver=driver, **restless(seed))
            check(world, 30)
            outcomes.update(f"{kind}: {each['outcome']}" for each in world.reshaped)
            outcomes += world.moves
            outcomes["states"] += sum(len(each["detail"]["of"]) for each in world.merged)
    assert outcomes["drizzle: reshaped"] > 9, outcomes
    assert outcomes["storm: reshaped"] > 9, outcomes
    assert outcomes["moved barrier"] > 6, outcomes
    assert outcomes["moved epoch"] > 3, outcomes
    assert outcomes["states"] > 5, outcomes


@pytest.mark.long
def test_the_simulated_worlds_move_operators_even_at_heavy_loss() -> None:
    """A test of the harness: the moves that the tests above rely on happen, at heavy loss too."""
    moves: Counter[str] = Counter()
    for seed in range(3):
        drizzle, storm = Mood(seed, 0.05, 0.2, 0.5), Mood(seed, 0.4, 0.5, 0.1)
        for kind, mood, options in (
            ("random", storm, {"driver": RandomMoves(1000, seed), **restless(seed)}),
            ("local", drizzle, {"adaptation": LocalMoves(period_s=10.0, k=3, gate=False, seed=seed)}),
            ("gated", drizzle, {"adaptation": LocalMoves(period_s=10.0, seed=seed)}),
        ):
            world = World(mood, 6, 6, partitions=30, length=None, **options)
            check(world, 30)
            moves.update({f"{kind}: {what}": count for what, count in world.moves.items()})
    assert moves["random: moved barrier"] > 30, moves
    assert moves["random: moved epoch"] > 12, moves
    assert moves["local: moved epoch"] > 30, moves
    assert moves["gated: moved epoch"] > 3, moves


@pytest.mark.long
def test_the_simulated_network_causes_forwarded_duplicate_and_repeated_messages() -> None:
    """A test of the harness: the faults reach the cores. Otherwise the tests above would prove nothing."""
    counts: Counter[str] = Counter()
    for seed in range(20, 40):
        world = World(Mood(seed, 0.4, 0.5, 1.0, stale=True), 6, 4, partitions=5, length=None)
        check(world, 5)
        counts += world.counts
    assert counts["forwarded"] > 40
    assert counts["duplicate"] > 50
    assert counts["repeated"] > 50
    assert counts["undeliverable"] == 0


def test_a_faultless_network_causes_no_repeated_or_forwarded_messages() -> None:
    for seed in range(10):
        world = World(Mood(seed, delay_s=0.001), 5, 5, partitions=10, length=None)
        check(world, 10)
        assert world.counts["repeated"] == world.counts["duplicate"] == world.counts["forwarded"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_client_that_no_host_can_reach_leaves_no_run_behind(seed: int) -> None:
    """Every host drops the run when its lease ends, and the client names a silent host."""
    impatient = CoreConfig(liveness_s=5.0, lease_s=20.0)
    deaf = tuple(Outage(*link, 3.0) for link in links_between(("h1", "h2", "h3", CLIENT)))
    world = World(Mood(seed), 4, 3, partitions=10**6, length=None, core_config=impatient, faults=deaf)
    world.placement.update(dict.fromkeys(world.placement, "h1"), t="client")
    world.history = {node: [host] for node, host in world.placement.items()}
    world.run()
    assert world.failed is not None
    assert world.failed.startswith("host 'h1', which holds ")
    assert world.failed.endswith("has been silent for 5 s")
    assert all(core.runs == {} for core in world.cores.values())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("driver", [RandomMoves(1000), RandomReshapes(1000)], ids=["moves", "reshapes"])
def test_moves_and_reshapings_need_no_repeated_demands_on_a_faultless_network(seed: int, driver: Driver) -> None:
    """A repeated demand would stop the flow for half a second, and no other test would notice."""
    random = Random(seed)
    options: dict[str, Any] = {"driver": structs.replace(driver, seed=seed)}
    if isinstance(driver, RandomMoves):
        options |= restless(seed, 0.5)
    hosts, sources = random.randint(3, 6), random.randint(2, 6)
    mood = Mood(seed, delay_s=0.002)
    world = World(mood, hosts, sources, partitions=40, length=None, **options)
    if isinstance(driver, RandomReshapes):
        nodes = [structs.replace(n, code=FREE) if n.kind == "operator" else n for n in world.dataflow.nodes]
        tree = Dataflow(tuple(nodes)), world.placement
        world = World(mood, hosts, sources, partitions=40, length=None, tree=tree, **options)
    world.takes_s = lambda: world.random.uniform(0.001, 0.004)  # type: ignore[method-assign]
    repeated = 0
    handle = world._handle

    def watch(host: VirtualHost, event: e.Event) -> None:
        nonlocal repeated
        if event == fired("retry"):
            runs = host.core.runs.values()
            repeated += sum(pending.due_s <= world.now for run in runs for pending in run.flow.demands.pending.values())
        handle(host, event)

    world._handle = watch  # type: ignore[method-assign]
    check(world, 40)
    assert repeated == 0
    assert world.moves["moved barrier"] + world.moves["moved epoch"] + len(world.reshaped) >= 10
