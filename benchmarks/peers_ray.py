"""The same tree on Ray actors: one actor a node, the object store between them, a few partitions under way."""

from __future__ import annotations

import importlib.util
import logging
from collections import deque
from collections.abc import Iterator
from typing import Any

from benchmarks.workload import Bytes, FixedSource, maximum
from thalweg.middleware.dataflow import Dataflow


def installed() -> bool:
    """Whether Ray is."""
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
    """``in_flight`` partitions are under way at once; one a level of the tree keeps every node busy."""

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
        made: dict[str, Any] = {}
        for name in self._dataflow.upward:
            node = self._dataflow.by_name[name]
            if node.kind == "sink":
                return made[node.inputs[0]]
            inputs = [index] if node.kind == "source" else [made[producer] for producer in node.inputs]
            made[name] = self._actors[name].run.remote(*inputs)
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
