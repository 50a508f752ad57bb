"""Tree of the benchmark on Dask distributed: every node has a worker process, and its tasks run there."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from benchmarks.workload import Bytes, FixedSource, maximum
from thalweg.middleware.dataflow import Dataflow


def installed() -> bool:
    """Return whether Dask distributed is installed."""
    return importlib.util.find_spec("distributed") is not None


@lru_cache(maxsize=1)
def _source(site: int, size_bytes: int) -> FixedSource:
    return FixedSource(site, size_bytes)


def _produce(site: int, size_bytes: int, index: int) -> Bytes:
    return _source(site, size_bytes).produce(index)


def _combine(*inputs: Bytes) -> Bytes:
    return maximum(inputs)


class Tree:
    """Side of the benchmark with ``in_flight`` partitions under way at once.

    A partition for each level of the tree keeps every node busy.
    """

    def __init__(self, dataflow: Dataflow, size_bytes: int) -> None:
        import distributed

        self._dataflow = dataflow
        self._size_bytes = size_bytes
        self.in_flight = max(dataflow.level.values()) + 1
        self._stack = contextlib.ExitStack()
        nodes = [name for name in dataflow.upward if name != dataflow.sinks[0]]
        cluster = distributed.LocalCluster(
            n_workers=len(nodes), threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
        )
        self._stack.callback(cluster.close)
        try:
            self._client = self._stack.enter_context(distributed.Client(cluster))
            self._client.wait_for_workers(len(nodes))
            self._workers = dict(zip(nodes, self._client.scheduler_info(n_workers=-1)["workers"], strict=True))
        except BaseException:
            self.close()
            raise

    def _submit(self, index: int) -> Any:
        futures: dict[str, Any] = {}
        for name in self._dataflow.upward:
            node = self._dataflow.by_name[name]
            if node.kind == "sink":
                return futures[node.inputs[0]]
            place = {"workers": [self._workers[name]], "pure": False}
            if node.kind == "source":
                site = self._dataflow.sources.index(name)
                futures[name] = self._client.submit(_produce, site, self._size_bytes, index, **place)
            else:
                futures[name] = self._client.submit(_combine, *(futures[producer] for producer in node.inputs), **place)
        raise AssertionError("a validated dataflow has a sink")

    def stream(self, partitions: int) -> Iterator[Any]:
        under_way: deque[Any] = deque()
        submitted = 0
        for _ in range(partitions):
            while submitted < partitions and len(under_way) < self.in_flight:
                under_way.append(self._submit(submitted))
                submitted += 1
            yield under_way.popleft().result()

    def close(self) -> None:
        self._stack.close()
