"""Reference results of a run that went on without sources, from one machine, by partition and its graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from thalweg.experiments.run_config import RunConfig
from thalweg.experiments.runs.workload import reference_digests
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import UsageError
from thalweg.middleware.loading import DEFAULT_ALLOW, load_code
from thalweg.middleware.protocol.absent_sources import Gap, with_gaps
from thalweg.operators import sequence_digest

Gaps = Mapping[str, Sequence[Gap]]


class Pieces:
    """Gaps of sources in one placement: by sink, partitions with the gaps that apply from there on."""

    def __init__(self) -> None:
        self._of: defaultdict[str, list[tuple[int, Gaps]]] = defaultdict(list)

    def add(self, sink: str, index: int, gaps: Gaps) -> bool:
        """Record the gaps of a delivered partition. Return whether they differ from those of the partition before."""
        before = self._of[sink]
        if gaps == (before[-1][1] if before else {}):
            return False
        before.append((index, dict(gaps)))
        return True

    @property
    def last(self) -> dict[str, Sequence[Gap]]:
        """Gaps of the newest partitions. Empty if no source was missing."""
        return {name: gaps for own in self._of.values() if own for name, gaps in own[-1][1].items()}

    def digests(self, dataflow: Dataflow, config: RunConfig) -> dict[str, str]:
        """Return the digest of a single machine's results by sink. ``dataflow`` has no gaps."""
        return {sink: sequence_digest(self._one(dataflow, config, sink)) for sink in dataflow.sinks}

    def _one(self, dataflow: Dataflow, config: RunConfig, sink: str) -> Iterator[str]:
        own = [(0, dict[str, Sequence[Gap]]()), *self._of.get(sink, [])]
        ends = [first for first, _ in own[1:]] + [config.images]
        for (first, gaps), until in zip(own, ends, strict=True):
            if first < until:
                digests = reference_digests(with_gaps(dataflow, gaps), until, config.allow, sink=sink)
                yield from islice(digests, first, None)

    def __str__(self) -> str:
        """Return the gaps as ``source@h1 (partitions 20 to 30, and from 48 on)``."""
        return ", ".join(f"{name} ({_spans(gaps)})" for name, gaps in sorted(self.last.items()))


def _spans(gaps: Iterable[Gap]) -> str:
    spans = [f"from {first} on" if until is None else f"partitions {first} to {until - 1}" for first, until in gaps]
    return ", and ".join(spans)


def without_sources(dataflow: Dataflow, config: RunConfig) -> Dataflow:
    """Return the dataflow with operators that go on without a source, if the configuration says so.

    Raises UsageError if an operator cannot.
    """
    if config.missing == "wait":
        return dataflow
    allow = (*DEFAULT_ALLOW, *config.allow)
    nodes = []
    for node in dataflow.nodes:
        if node.kind == "operator" and node.code is not None:
            if not getattr(load_code(node.code, allow), "allows_missing", False):
                why = f"operator {node.name!r} ({node.code.use}) does not say that it can (allows_missing)"
                raise UsageError(f"--missing nothing has operators go on without an input, and {why}; leave it out")
            node = msgspec.structs.replace(node, missing=config.missing)
        nodes.append(node)
    return Dataflow(tuple(nodes)).validate()
