"""Sources with a rate, in virtual and in real time, and sources to which the application pushes values."""

from __future__ import annotations

import asyncio
import functools
import itertools
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from flows import chain
from patience import patience
from runtime_codes import ALLOW, blocks
from virtual_runs import Moved

from thalweg import NOTHING
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.flow.feeds import Feed
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import DataflowError, OperatorError, RunError, UsageError
from thalweg.operators.reference import reference_run

FORWARDS = Code("runtime_codes:Forwards")


def paced(*rates: float | None, host: str = "h1") -> Dataflow:
    flow = Dataflow()
    made = [
        flow.source(code, at=host, name=f"s{i}", rate=rates[i])
        for i, code in enumerate(blocks(range(len(rates))).values())
    ]
    flow.sink("t", flow.operator(FORWARDS, *made, name="o"))
    return flow


def pushed(feed: Feed, host: str = "client") -> Dataflow:
    return chain(feed.code, FORWARDS, host=host)


# --- rates --------------------------------------------------------------------------------------------


def test_a_rate_delays_demanded_partitions_in_virtual_time() -> None:
    run = Moved(paced(4.0, None, 2.0), 12, ALLOW, moves=0)
    apart = np.diff(run.seconds)
    assert apart.min() > 0.49
    assert run.seconds[-1] - run.seconds[0] == pytest.approx(11 / 2.0, abs=0.1)
    moved = Moved(paced(2.0), 12, ALLOW, moves=4)
    assert moved.failed is None
    assert np.diff(moved.seconds).mean() > 0.45


def test_a_rate_delays_demanded_partitions_in_real_time(client: Client) -> None:
    began = time.monotonic()
    assert len(list(client.run(paced(40.0), {"o": "h2"}, partitions=13))) == 13
    assert 12 / 40 <= time.monotonic() - began < 12


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf"), True, "5"])
def test_an_invalid_rate_is_refused(rate: Any) -> None:
    with pytest.raises(DataflowError, match=r"^source 's0' has a rate of .*; give partitions a second$"):
        paced(rate).validate()


# --- what is pushed -----------------------------------------------------------------------------------


def test_pushed_values_arrive_and_a_full_feed_makes_the_producer_wait(client: Client) -> None:
    feed = client.push(name="readings", ahead=2)
    buffer = np.zeros(10)
    for fill in range(2):
        buffer[:] = fill
        feed.put(buffer)
    with pytest.raises(TimeoutError, match=r"'readings' has had no room for 0\.01 s: 2 values wait"):
        feed.put(buffer, timeout_s=0.01)
    with pytest.raises(OperatorError, match="type set does not travel"):
        feed.put({1})
    with pytest.raises(OperatorError, match="None is no value; push NOTHING"):
        feed.put(None)
    run = client.run(pushed(feed), {"o": "h2"})

    def rest() -> None:
        with feed:
            for value in ("text", NOTHING, {"a": [1]}):
                feed.put(value)

    thread = threading.Thread(target=rest)
    thread.start()
    came = {each.index: each.value for each in run}
    thread.join(patience(5))
    assert [came[0].max(), came[1].min(), came[2], came[4]] == [0, 1, "text", {"a": [1]}]
    assert list(came) == [0, 1, 2, 4]
    with pytest.raises(UsageError, match="'readings', which is closed"):
        feed.put("more")


def test_iterators_queues_and_async_iterators_are_drained(client: Client) -> None:
    waiting: queue.Queue[str | None] = queue.Queue()
    for text in ("a", "b", None):
        waiting.put(text)
    for values in (iter(["a", "b"]), waiting):
        assert [each.value for each in client.run(pushed(client.push(values)), {"o": "h1"})] == ["a", "b"]

    async def go() -> list[Any]:
        async def letters() -> AsyncIterator[str]:
            for index in range(30):
                await asyncio.sleep(0)
                yield f"{index}"

        return [each.value async for each in client.run(pushed(client.push(letters(), ahead=1)), {"o": "h2"})]

    assert asyncio.run(go()) == [f"{index}" for index in range(30)]
    with pytest.raises(UsageError, match="int gives no values; push an iterable"):
        client.push(5)
    with pytest.raises(UsageError, match="ahead is 0"):
        client.push(ahead=0)


def fails() -> Iterator[str]:
    yield "a"
    raise ValueError("two lines\nof text")


@pytest.mark.parametrize("how", ["dropped", "raised", "elsewhere", "twice"])
def test_a_lost_producer_fails_the_run_with_a_single_line_error(client: Client, how: str) -> None:
    feed = client.push(fails() if how == "raised" else None, name="readings")
    flow = pushed(feed, host="h1" if how == "elsewhere" else "client")
    says = {
        "dropped": "the producer of 'readings' is gone: it was dropped before it was closed",
        "raised": "the producer of 'readings' failed: ValueError: two lines of text",
        "elsewhere": "is gone, or in another process: pin its source to the client that pushes",
        "twice": "value 0 of 'readings' has been taken; a pushed value is delivered once, to one run",
    }[how]
    if how in ("dropped", "twice"):
        feed.put("a")
    first = client.run(flow, {"o": "h2"})
    if how in ("dropped", "twice"):
        assert next(first).value == "a"
    run = client.run(flow, {"o": "h3"}) if how == "twice" else first
    del feed
    with pytest.raises(RunError) as caught:
        list(run)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remote_traceback is None
    first.close()


def test_a_push_fails_when_the_run_that_consumed_the_feed_is_over(client: Client) -> None:
    feed = client.push(ahead=1)
    run = client.run(pushed(feed), {"o": "h2"})
    feed.put("a")
    assert next(run).value == "a"
    threading.Timer(0.2, run.close).start()
    forever = map(functools.partial(feed.put, timeout_s=10), itertools.repeat("b", 1000))
    with pytest.raises(RunError, match="nothing can be pushed to 'feed': the run that took from it is over"):
        list(forever)

    async def cancelled() -> None:
        waits = client.push(ahead=1)
        await waits.aput("a")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waits.aput("b"), 0.01)
        assert len(waits.channel.values) == 1

    asyncio.run(cancelled())
    with pytest.raises(UsageError, match="source 's' gives each value once: it has no reference"):
        reference_run(pushed(feed), 1, ("thalweg.operators", *ALLOW))
