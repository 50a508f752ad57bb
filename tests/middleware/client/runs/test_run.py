"""Iteration over a run: every partition goes to one consumer, and no consumer waits for ever."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from flows import chain
from patience import patience
from run_ids import R
from runtime_codes import ALLOW, MIX, blocks

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.flow.stream import ClientServices
from thalweg.middleware.client.runs.run import Run
from thalweg.middleware.errors import RunError
from thalweg.middleware.protocol import events as e

FLOW = chain(blocks()["h1"], MIX)
WAIT_S = 10.0


class Core:
    """A core that answers the demands of a run with ``length`` partitions, then with ``last``."""

    def __init__(self, length: int, last: e.Command) -> None:
        self.asked, self.length, self.last = 0, length, last
        self.closed: list[str] = []
        home = ClientServices("client", lambda: ("h1",), ALLOW, self.tell, self.closed.append)
        self.run = Run(home, "r", {}, FLOW, None)
        self.answers = threading.Thread(target=self._answer)
        self._demands = threading.Semaphore(0)

    def tell(self, event: e.Event) -> None:
        assert isinstance(event, e.NextRequested)
        self.asked += 1
        self._demands.release()

    def deliver(self) -> None:
        """Deliver the partition that has been demanded, or the last command."""
        assert self._demands.acquire(timeout=patience(WAIT_S))
        index = self.asked - 1
        self.run.take(e.Deliver(R, index, index, 8) if index < self.length else self.last)

    def _answer(self) -> None:
        self.run.take(e.Ready(R))
        for _ in range(self.length + 1):
            self.deliver()


END = e.Deliver(R, 0, None, 0, True)
FAIL = e.Fail(R, "node 'o' on host 'h1': no")


async def _take_all(run: Run) -> list[int]:
    return [each.index async for each in run]


@pytest.mark.parametrize("last", [END, FAIL], ids=["ends", "fails"])
@pytest.mark.parametrize(("threads", "loops", "tasks"), [(1, 0, 0), (4, 0, 0), (0, 1, 5), (0, 3, 2), (3, 2, 3)])
def test_every_partition_goes_to_a_single_waiting_consumer_and_every_consumer_sees_the_end(
    threads: int, loops: int, tasks: int, last: e.Command
) -> None:
    core = Core(300, last)
    taken: list[int] = []
    failed: list[str] = []

    def in_thread() -> None:
        try:
            for each in core.run:
                taken.append(each.index)
        except RunError as error:
            failed.append(str(error))

    async def in_task() -> None:
        try:
            async for each in core.run:
                taken.append(each.index)
        except RunError as error:
            failed.append(str(error))

    async def in_tasks() -> None:
        await asyncio.gather(*(in_task() for _ in range(tasks)))

    with ThreadPoolExecutor(threads + loops + 1) as pool:
        done = [pool.submit(in_thread) for _ in range(threads)]
        done += [pool.submit(asyncio.run, in_tasks()) for _ in range(loops)]
        core.answers.start()
        for each in done:
            each.result(patience(WAIT_S))
    core.answers.join(patience(WAIT_S))
    assert sorted(taken) == list(range(300))
    assert core.asked == 301
    assert failed == ([] if last is END else ["node 'o' on host 'h1': no"] * (threads + loops * tasks))
    assert core.closed == ["r"]


@pytest.mark.parametrize("how", ["wait_for", "cancel"])
def test_a_task_that_is_cancelled_when_a_partition_arrives_loses_no_partition(how: str) -> None:
    core = Core(40, END)

    async def drive() -> list[int]:
        core.run.take(e.Ready(R))
        taken: list[int] = []
        for number in range(40):
            waiting = asyncio.ensure_future(anext(core.run))
            while core.asked == number:  # it waits, and has demanded
                await asyncio.sleep(0)
            core.deliver()  # it is woken, and cancelled before it runs
            if how == "cancel":
                waiting.cancel()
            else:
                waiting = asyncio.ensure_future(asyncio.wait_for(waiting, 0))
            other = asyncio.ensure_future(anext(core.run)) if number % 2 else None
            try:
                taken.append((await waiting).index)
            except (asyncio.CancelledError, TimeoutError):
                taken.append((await (other or anext(core.run))).index)
            else:
                assert other is None or other.cancel()
        core.run.close()
        return taken

    assert asyncio.run(asyncio.wait_for(drive(), WAIT_S)) == list(range(40))


def test_a_closed_or_blocked_event_loop_takes_no_partition_from_other_consumers() -> None:
    core = Core(2, END)
    core.run.take(e.Ready(R))
    loops = [asyncio.new_event_loop() for _ in range(2)]
    waiting = [loop.create_task(_take_all(core.run)) for loop in loops]
    for loop in loops:
        loop.run_until_complete(asyncio.sleep(0))
    loops[0].close()
    core.deliver()
    assert next(core.run).index == 0
    core.deliver()
    assert next(core.run).index == 1
    core.run.close()
    assert loops[1].run_until_complete(waiting[1]) == []
    loops[1].close()
    waiting[0]._log_destroy_pending = False  # type: ignore[attr-defined]  # it is meant to be left behind


def test_closing_a_run_wakes_every_waiting_thread_and_task() -> None:
    core = Core(0, END)
    started = threading.Semaphore(0)

    async def tasks() -> None:
        waiting = [asyncio.ensure_future(_take_all(core.run)) for _ in range(3)]
        await asyncio.sleep(0)
        started.release()
        assert await asyncio.gather(*waiting) == [[], [], []]

    def thread() -> None:
        started.release()
        assert list(core.run) == []

    with ThreadPoolExecutor(6) as pool:
        done = [pool.submit(asyncio.run, tasks()) for _ in range(2)] + [pool.submit(thread) for _ in range(2)]
        for _ in done:
            assert started.acquire(timeout=patience(WAIT_S))
        core.run.close()
        for each in done:
            each.result(patience(WAIT_S))


# --- what is dropped --------------------------------------------------------------------------------


def _make_and_collect(make: Callable[[], object]) -> None:
    make()
    gc.collect()


def _dropped(what: str, make: Callable[[], object]) -> None:
    with pytest.warns(ResourceWarning, match=rf"the {what} .* was dropped and not closed; use with"):
        _make_and_collect(make)


def test_a_run_that_is_dropped_is_closed_with_a_warning(cluster: LocalCluster) -> None:
    with Client(cluster, allow=ALLOW) as client:

        def drop() -> None:
            for each in client.run(FLOW, {"o": "h2"}):
                assert each.index == 0
                break

        _dropped("run", drop)
    assert client._open_streams.there == set(), "the hosts have removed it"


def test_a_client_that_is_dropped_is_closed_with_a_warning(cluster: LocalCluster) -> None:
    shells = []

    def drop() -> None:
        client = Client(cluster, allow=ALLOW)
        assert len(list(client.run(FLOW, {"o": "client"}, partitions=2))) == 2
        shells.append(client.shell)

    _dropped("client", drop)
    shells[0]._duty.wait(patience(WAIT_S))
    assert not shells[0].alive


def test_a_closed_run_or_client_is_dropped_without_a_warning(
    cluster: LocalCluster, recwarn: pytest.WarningsRecorder
) -> None:
    with Client(cluster, allow=ALLOW) as client:
        client.run(FLOW, {"o": "h2"}).close()
        list(client.run(FLOW, {"o": "h2"}, partitions=1))
    open_run = client
    del client, open_run
    gc.collect()
    assert [str(each.message) for each in recwarn] == []
