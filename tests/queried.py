"""Graphs whose queries have something in common, and what one machine gives for each, for tests of queries."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any

from patience import patience
from runtime_codes import ALLOW, MIX

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.flow.stream import Delivered
from thalweg.middleware.client.stripes.striped import StripedRun
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.planning import Stripe
from thalweg.operators.reference import digest, reference_run


def graph(*operators: Callable[[Dataflow, list[str]], str], sources: int = 2, **params: Any) -> Dataflow:
    """``sources`` of blocks, two operators one after the other on them, and what ``operators`` make of all these."""
    flow = Dataflow()
    names = [flow.source(Code("runtime_codes:Blocks", {"site": i, **params}), at=f"h{i + 1}") for i in range(sources)]
    names.append(flow.operator(MIX, *names))
    names.append(flow.operator(MIX, names[-1], names[0]))
    flow.sink("out", *[operator(flow, names) for operator in operators] or names[-1:])
    return flow


def first() -> Dataflow:
    return graph(lambda flow, names: flow.operator(MIX, names[-1], names[1]))


def third() -> Dataflow:
    return graph(lambda flow, names: flow.operator(MIX, *names))


def second() -> Dataflow:
    flow = third()
    flow.sink("raw", flow.by_name["out"].inputs[0], flow.sources[0])
    return flow


def everywhere(client: Client, flow: Dataflow, **options: Any) -> StripedRun:
    """A stream over three trees, each on a host of its own."""
    trees = tuple(Stripe(flow, dict.fromkeys(flow.operators, host), 1 / 3) for host in ("h1", "h2", "h3"))
    run = client.run(flow, trees[0].placement, stripes=trees, **options)
    assert isinstance(run, StripedRun)
    return run


@contextmanager
def kept_going(run: Iterator[Any]) -> Iterator[None]:
    """Take from a run, in a thread of its own, until the block ends.

    A test that takes until something else has happened may learn of that one partition too late, when a subscription
    or a query that it takes from no more holds up the run. So leave these inside the block.
    """
    ended = threading.Event()

    def take() -> None:
        while not ended.is_set():
            next(run)

    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(take)
        try:
            yield
        finally:
            ended.set()
            taking.result(patience(20))


def told(value: Any) -> Any:
    return [digest(each) for each in value] if isinstance(value, tuple) else digest(value)


def assert_references(got: Iterable[Delivered], flow: Dataflow, begins: int) -> None:
    """What came is what one machine gives, without a gap."""
    for sink in flow.sinks:
        mine = [each for each in got if each.sink == sink]
        assert [each.index for each in mine] == list(range(begins, begins + len(mine)))
        reference = islice(reference_run(flow, None, ALLOW, sink=sink), begins, begins + len(mine))
        assert [told(each.value) for each in mine] == [told(value) for value in reference], sink
