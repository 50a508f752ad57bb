"""Hosts are killed at random moments while operators move at random. Every partition comes once and in order.

``THALWEG_KILLS=1000 pytest tests/middleware/client/failover/test_kills.py`` kills 1,000, and prints for how long no
partition came; ``tests/experiments/runs/test_process_events.py`` does so as well. Without it, a few.
``THALWEG_KILLED_FOR_S=600`` has the long test kill and stop hosts for so long.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from patience import patience
from runtime_codes import ALLOW, MIX, blocks

from thalweg import Failover
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.flow.stream import Stream
from thalweg.middleware.dataflow import Code, Dataflow, complete_binary_tree
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.middleware.planning.registry import RandomMoves
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.operators.reference import digest, reference_run

KILLS = int(os.environ.get("THALWEG_KILLS", "4"))
IN_A_RUN = 50
HOSTS = 5
SEED = int(os.environ.get("THALWEG_KILLS_SEED", "1"))
FLOW = complete_binary_tree(blocks(), Code("running"))  # sources on h1, h2 and h3
STALLED_S = 60.0
KILLED_FOR_S = float(os.environ.get("THALWEG_KILLED_FOR_S", "90"))


class Killer:
    """Killer of a cluster's hosts. It also restarts them, while partitions are consumed."""

    def __init__(self, cluster: LocalCluster, client: Client, dice: Random) -> None:
        self._cluster, self._client, self._dice = cluster, client, dice
        self._threads: list[threading.Thread] = []
        self.kills = 0

    @property
    def busy(self) -> bool:
        self._threads = [each for each in self._threads if each.is_alive()]
        return bool(self._threads)

    def kill(self, most: int) -> float:
        """Kill one or two hosts. Return the time."""
        chosen = self._dice.sample(sorted(self._cluster.pids), min(most, 1 + (self._dice.random() < 0.2)))
        for name in chosen:
            self._cluster.kill(name)
            self.kills += 1
        thread = threading.Thread(target=self._start_again, args=(chosen, self._dice.choice([0.0, 0.0, 0.5])))
        thread.start()
        self._threads.append(thread)
        return time.monotonic()

    def _start_again(self, names: list[str], after_s: float) -> None:
        time.sleep(after_s)
        for name in names:
            self._client.add_host(name, self._cluster.start(name))

    def wait(self) -> None:
        for each in self._threads:
            each.join()


@pytest.mark.timed
def test_every_partition_comes_once_while_hosts_are_killed() -> None:
    took: list[float] = []  # from each kill to the next partition, or between two of those that follow
    left, number, partitions = KILLS, 0, 0
    with LocalCluster(HOSTS, allow=ALLOW) as cluster, Client(cluster, allow=ALLOW) as client:
        while left > 0:
            dice = Random(f"{SEED} {number}")
            killer, number = Killer(cluster, client, dice), number + 1
            most = min(left, IN_A_RUN)
            expected = reference_run(FLOW, None, (*DEFAULT_ALLOW, *ALLOW))
            with client.run(FLOW, "one-shot", failover=Failover(every=dice.choice([1, 4, 16]))) as run:
                mover = RandomMover(RandomMoves(10**6, number), run, lambda: client.hosts)
                watch = threading.Timer(STALLED_S * (1 + most), run.close)
                watch.start()
                index, before_s, wait = 0, 0.0, 3
                for partition in run:
                    now = time.monotonic()
                    assert (partition.index, digest(partition.value)) == (index, digest(next(expected)))
                    index += 1
                    if before_s:
                        took[-1], before_s = max(took[-1], now - before_s), now
                    mover.on_delivered()
                    wait -= 1
                    if wait <= 0 and not killer.busy:
                        if killer.kills >= most:
                            break
                        before_s, wait = killer.kill(most - killer.kills), dice.randrange(1, 40)
                        took.append(0.0)
                watch.cancel()
                assert killer.kills >= most, f"it stood still after partition {index} (seed {SEED}, run {number})"
                partitions += index
            killer.wait()
            left -= killer.kills
    median, p99 = np.quantile(took, [0.5, 0.99])
    print(f"{KILLS} kills, {partitions} partitions: it stood still for {median:.2f} s (median), {p99:.2f} s (p99)")
    assert median <= 5.0
    assert p99 <= 10.0


class Beside:
    """Thread that consumes a query or a subscription until it is asked to leave."""

    def __init__(self, stream: Stream[Any]) -> None:
        self.stream, self.leaves, self.came = stream, threading.Event(), list[tuple[int, str]]()
        self._pool = ThreadPoolExecutor(1)
        self.taken = self._pool.submit(self._take)

    def _take(self) -> None:
        for partition in self.stream:
            self.came.append((partition.index, digest(partition.value)))
            if self.leaves.is_set():
                self.stream.detach()
        self._pool.shutdown(wait=False)

    def check(self, flow: Dataflow, sink: str) -> None:
        """Compare the partitions with the reference from the first one on: every partition once and in order."""
        self.taken.result(patience(20))
        first = self.stream.first_index
        expected = itertools.islice(reference_run(flow, None, (*DEFAULT_ALLOW, *ALLOW), sink=sink), first, None)
        assert self.came == [(first + number, digest(next(expected))) for number in range(len(self.came))]


@pytest.mark.long
@pytest.mark.parametrize("trees", [1, 3])
def test_queries_subscribers_and_trees_get_every_partition_once_while_hosts_are_killed(trees: int) -> None:
    dice, flow = Random(SEED), complete_binary_tree(blocks(), MIX)
    first = flow.by_name[flow.operators[0]]
    observed = Dataflow((*(flow.by_name[name] for name in first.inputs), first))
    observed.sink("seen", first.name)
    with (
        LocalCluster(HOSTS, allow=ALLOW) as cluster,
        Client(cluster, allow=ALLOW) as alice,
        Client(cluster, name="bob") as bob,
    ):
        killer, expected = Killer(cluster, alice, dice), reference_run(flow, None, (*DEFAULT_ALLOW, *ALLOW))
        run = alice.run(flow, "one-shot", failover=Failover(4), stripes=trees, subscribers=["bob"])
        query = run.attach(observed, dict.fromkeys(observed.operators, "h4"))
        beside = [Beside(query), Beside(bob.subscribe(run, flow.operators[-1]))]
        mover = RandomMover(RandomMoves(10**6, 1), run, lambda: alice.hosts)
        watch = threading.Timer(STALLED_S * (1 + KILLS), run.close)
        watch.start()
        index, wait = 0, 3
        for partition in run:
            assert (partition.index, digest(partition.value)) == (index, digest(next(expected)))
            index += 1
            mover.on_delivered()
            wait -= 1
            if wait <= 0 and not killer.busy and all(each.came for each in beside):
                if killer.kills >= KILLS:
                    for each in beside:
                        each.leaves.set()
                elif not killer.busy:
                    killer.kill(KILLS - killer.kills)
                wait = dice.randrange(1, 40)
            ended = [each for each in beside if each.taken.done()]
            for each in ended:
                each.taken.result()  # raises what has ended it
            if len(ended) == len(beside):
                break
        watch.cancel()
        killer.wait()
        assert killer.kills >= KILLS, f"it stood still after partition {index}"
        beside[0].check(observed, "seen")
        beside[1].check(flow, "sink")
        run.close()
    came = ", ".join(str(len(each.came)) for each in beside)
    print(f"{killer.kills} kills, {index} partitions of the run, and {came} of its query and its subscriber")


class Absences:
    """Absences of hosts. A host is killed or stopped every 3 to 8 s, whether or not the last one is back."""

    def __init__(self, cluster: LocalCluster, client: Client, dice: Random) -> None:
        self._cluster, self._client, self._dice = cluster, client, dice
        self.ended = threading.Event()
        self.away: list[tuple[str, float, float]] = []
        self._threads: list[threading.Thread] = []

    def go_on(self) -> None:
        """Take down one host after another until ``ended``."""
        while not self.ended.wait(self._dice.uniform(3.0, 8.0)):
            gone = {each.name for each in self._threads if each.is_alive()}
            name, stops = self._dice.choice(sorted(self._cluster.pids)), self._dice.random() < 1 / 3
            if name not in gone:
                away = self._stop if stops else self._kill
                thread = threading.Thread(target=away, args=(name, self._dice.uniform(0.0, 8.0)), name=name)
                self._threads.append(thread)
                thread.start()
        for thread in self._threads:
            thread.join()

    def _kill(self, name: str, for_s: float) -> None:
        begun_s = time.monotonic()
        self._cluster.kill(name)
        time.sleep(for_s / 4)
        self._client.add_host(name, self._cluster.start(name))
        self.away.append((name, begun_s, time.monotonic()))

    def _stop(self, name: str, for_s: float) -> None:
        begun_s = time.monotonic()
        os.kill(self._cluster.pids[name], signal.SIGSTOP)
        time.sleep(for_s)
        os.kill(self._cluster.pids[name], signal.SIGCONT)
        self.away.append((name, begun_s, time.monotonic()))

    def of(self, hosts: set[str], since_s: float, until_s: float) -> float:
        """Return an upper bound of the time in which at least one of these hosts was away."""
        cut = sorted(
            (max(since_s, begun_s), min(until_s, back_s)) for name, begun_s, back_s in self.away if name in hosts
        )
        away_s, upto_s = 0.0, since_s
        for begun_s, back_s in cut:
            away_s += max(0.0, back_s - max(begun_s, upto_s))
            upto_s = max(upto_s, back_s)
        return away_s


@pytest.mark.long
@pytest.mark.timed
@pytest.mark.parametrize("stand_ins", [True, False])
def test_a_stream_stands_still_at_most_ten_seconds_longer_than_the_sources_are_away(stand_ins: bool) -> None:
    """Hosts are killed and stopped every few seconds. A source with stand-ins needs no host of its own."""
    flow = FLOW
    if stand_ins:
        beside = {"h1": ("h4", "h5"), "h2": ("h4", "h5"), "h3": ("h4", "h5")}
        nodes = [msgspec.structs.replace(node, stand_ins=beside.get(node.pinned or "", ())) for node in FLOW.nodes]
        flow = Dataflow(tuple(nodes))
    needed = set() if stand_ins else {"h1", "h2", "h3"}
    gaps: list[tuple[float, float]] = []
    with LocalCluster(HOSTS, allow=ALLOW) as cluster, Client(cluster, allow=ALLOW) as client:
        absences = Absences(cluster, client, Random(SEED))
        with client.run(flow, "one-shot", failover=Failover(every=4)) as run:
            watch = threading.Timer(KILLED_FOR_S + 2 * STALLED_S, run.close)
            watch.start()
            away, begun_s = threading.Thread(target=absences.go_on), time.monotonic()
            before_s = begun_s
            for index, partition in enumerate(run):
                now = time.monotonic()
                assert partition.index == index
                if index == 5:
                    away.start()
                elif index > 5:
                    gaps.append((before_s, now))
                before_s = now
                if now - begun_s > KILLED_FOR_S and not absences.ended.is_set():
                    absences.ended.set()
                if absences.ended.is_set() and not away.is_alive():
                    break
            watch.cancel()
    still = sorted(until_s - since_s for since_s, until_s in gaps)
    own = sorted(until_s - since_s - absences.of(needed, since_s, until_s) for since_s, until_s in gaps)
    what = f"{len(absences.away)} absences, load {os.getloadavg()[0]:.1f}"
    print(f"{what}: it stood still for {still[-1]:.1f} s, {own[-1]:.1f} s of that with its sources there")
    assert own[-1] <= 10.0


@pytest.mark.timed
def test_a_stream_stands_still_for_at_most_two_seconds_if_the_liveness_is_a_second() -> None:
    """No process tells the client that the host has ended."""
    limits = CoreConfig(liveness_s=1.0)
    with LocalCluster(4, allow=ALLOW) as cluster, Client(cluster.addresses, allow=ALLOW, limits=limits) as client:
        expected, came_s = reference_run(FLOW, None, (*DEFAULT_ALLOW, *ALLOW)), list[float]()
        with client.run(FLOW, {"op0": "h4", "op1": "h4"}, partitions=60, failover=Failover(every=4)) as run:
            for partition in run:
                assert digest(partition.value) == digest(next(expected))
                if partition.index == 30:
                    cluster.kill("h4")
                if partition.index >= 30:
                    came_s.append(time.monotonic())
        still_s = max(after_s - before_s for before_s, after_s in itertools.pairwise(came_s))
        print(f"it stood still for {still_s:.2f} s")
        assert len(came_s) == 30
        assert 0.5 < still_s <= 2.0
