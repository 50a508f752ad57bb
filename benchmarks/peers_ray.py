"""Tree of the benchmark on Ray actors, one for each node, with the object store between actors."""

from __future__ import annotations

import importlib.util
import logging
from collections import deque
from collections.abc import Iterator
from typing import Any

from benchmarks.workload import Bytes, FixedSource, maximum
from thalweg.middleware.dataflow import Dataflow


def installed() -> bool:
    """Return whether Ray is installed."""
    return importlib.util.find_spec("ray") is not None


class _Source:
    def __init__(self, site: int, size_bytes: int) -> None:
        self._source = FixedSource(site, size_bytes)

    def run(self, index: int) -> Bytes:
        return self._source.produce(index)


class _Operator:
    def run(self, *inputs: Bytes) -> Bytes:
        return maximum(inputs)


class Tree:
    """Side of the benchmark with ``in_flight`` partitions under way at once.

    A partition for each level of the tree keeps every node busy.
    """

    def __init__(self, dataflow: Dataflow, size_bytes: int) -> None:
        import ray

        self._ray = ray
        self._dataflow = dataflow
        self.in_flight = max(dataflow.level.values()) + 1
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
        ray.init(address="local", **options)
        source, operator = ray.remote(_Source), ray.remote(_Operator)
        self._actors: dict[str, Any] = {
            name: source.options(num_cpus=0).remote(site, size_bytes) for site, name in enumerate(dataflow.sources)
        }
        self._actors |= {name: operator.options(num_cpus=0).remote() for name in dataflow.operators}

    def _submit(self, index: int) -> Any:
        futures: dict[str, Any] = {}
        for name in self._dataflow.upward:
            node = self._dataflow.by_name[name]
            if node.kind == "sink":
                return futures[node.inputs[0]]
            inputs = [index] if node.kind == "source" else [futures[producer] for producer in node.inputs]
            futures[name] = self._actors[name].run.remote(*inputs)
        raise AssertionError("a validated dataflow has a sink")

    def stream(self, partitions: int) -> Iterator[Any]:
        under_way: deque[Any] = deque()
        submitted = 0
        for _ in range(partitions):
            while submitted < partitions and len(under_way) < self.in_flight:
                under_way.append(self._submit(submitted))
                submitted += 1
            yield self._ray.get(under_way.popleft())

    def close(self) -> None:
        self._ray.shutdown()
