"""Graphs for tests of queries, with shared nodes, and comparisons of their values with a single process."""

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
    """Return a graph of block sources, two operators in a chain, and the nodes that ``operators`` add to these."""
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
    """Run a stream over three trees, each on a host of its own."""
    trees = tuple(Stripe(flow, dict.fromkeys(flow.operators, host), 1 / 3) for host in ("h1", "h2", "h3"))
    run = client.run(flow, trees[0].placement, stripes=trees, **options)
    assert isinstance(run, StripedRun)
    return run


@contextmanager
def kept_going(run: Iterator[Any]) -> Iterator[None]:
    """Take partitions from a run in a second thread, until the block ends.

    A subscription or query from which a test takes no more partitions holds up the run. End subscriptions and queries
    inside the block.
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
    return [digest(part) for part in value] if isinstance(value, tuple) else digest(value)


def assert_references(got: Iterable[Delivered], flow: Dataflow, begins: int) -> None:
    """Check that the partitions of each sink equal those of a single process, without a gap."""
    for sink in flow.sinks:
        mine = [partition for partition in got if partition.sink == sink]
        assert [partition.index for partition in mine] == list(range(begins, begins + len(mine)))
        reference = islice(reference_run(flow, None, ALLOW, sink=sink), begins, begins + len(mine))
        assert [told(partition.value) for partition in mine] == [told(value) for value in reference], sink
