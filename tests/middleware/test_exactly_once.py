"""Whatever the network does, the application gets every partition once, in order, made of the right inputs."""

from __future__ import annotations

from collections import Counter

import pytest
from adversary import Mood, World, content
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from thalweg.middleware.host_core import CoreConfig

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


def check(world: World, count: int) -> None:
    """Run the world and compare what came out with what had to."""
    world.run()
    assert world.failed is None
    assert world.ended
    assert world.delivered == [content(world.dataflow, "t", i)[2] for i in range(count)]
    assert world.forgotten
    assert all(core.runs == {} for core in world.cores.values()), "a host still has the run"
    assert all(core.coordinator.led == {} for core in world.cores.values())


@given(mood=moods, hosts=st.integers(2, 9), sources=st.integers(1, 6), partitions=st.integers(1, 6))
@settings(max_examples=300, deadline=None, phases=PHASES)
def test_every_partition_arrives_exactly_once_and_in_order(
    mood: Mood, hosts: int, sources: int, partitions: int
) -> None:
    check(World(mood, hosts, sources, partitions=partitions, length=None), partitions)


@given(
    mood=moods,
    hosts=st.integers(2, 5),
    sources=st.integers(1, 4),
    length=st.integers(0, 4),
    partitions=st.none() | st.integers(1, 6),
)
@settings(max_examples=150, deadline=None, phases=PHASES)
def test_the_end_of_the_sources_reaches_the_application(
    mood: Mood, hosts: int, sources: int, length: int, partitions: int | None
) -> None:
    world = World(mood, hosts, sources, partitions=partitions, length=length)
    check(world, length if partitions is None else min(length, partitions))


def test_the_adversary_does_what_it_says() -> None:
    """The harness itself: its misdeeds reach the cores, or the tests above would prove nothing."""
    counts: Counter[str] = Counter()
    for seed in range(20):
        world = World(Mood(seed, 0.4, 0.5, 1.0, stale=True), 6, 4, partitions=5, length=None)
        check(world, 5)
        counts += world.counts
    assert counts["forwarded"] > 100
    assert counts["duplicate"] > 50
    assert counts["repeated"] > 50
    assert counts["undeliverable"] == 0


def test_a_faultless_network_has_nothing_to_repeat() -> None:
    for seed in range(10):
        world = World(Mood(seed, delay_s=0.001), 5, 5, partitions=10, length=None)
        check(world, 10)
        assert world.counts["repeated"] == world.counts["duplicate"] == world.counts["forwarded"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_client_that_nobody_hears_leaves_nothing_behind(seed: int) -> None:
    """Every host drops the run by its lease, and the client says who is silent."""
    impatient = CoreConfig(liveness_s=5.0, lease_s=20.0)
    world = World(Mood(seed), 4, 3, partitions=10**6, length=None, core_config=impatient)
    world.placement.update(dict.fromkeys(world.placement, "h1"), t="client")
    world.history = {node: [host] for node, host in world.placement.items()}

    def deaf(host: str, send: object, send_on: object = world._send) -> None:
        if world.now < 3.0:
            send_on(host, send)  # type: ignore[operator]

    world._send = deaf  # type: ignore[method-assign, assignment]
    world.run()
    assert world.failed is not None
    assert world.failed.startswith("host 'h1', which holds ")
    assert world.failed.endswith("has been silent for 5 s")
    assert all(core.runs == {} for core in world.cores.values())
