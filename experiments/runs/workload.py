"""Workloads of runs: a workload makes a dataflow from a run's options, and a single process computes the reference.

A workload is a module with a ``Workload``, and an entry in ``WORKLOADS``. Its own options are in
``config.OF_WORKLOADS``. Deliveries of a sink are compared by one digest over all partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from thalweg.experiments.command import Tell
from thalweg.experiments.run_config import PLANNED, RunConfig
from thalweg.experiments.runs.base_workload import Workload
from thalweg.experiments.runs.composition import Composition
from thalweg.experiments.runs.plan_file import Planned
from thalweg.experiments.runs.plates import Plates
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import RunError, ThalwegError
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.operators import digest, reference_run, sequence_digest

WORKLOADS: Mapping[str, type[Workload]] = {"composition": Composition, "plates": Plates, PLANNED: Planned}


def workload_of(config: RunConfig) -> Workload:
    """Return the workload that a configuration names."""
    return WORKLOADS[config.workload](config)


def build_dataflow(config: RunConfig) -> Dataflow:
    """Return the dataflow of a configuration. Raise UsageError for unsuitable options."""
    return workload_of(config).dataflow()


def edges(config: RunConfig) -> int:
    """Return the largest number of links that the dataflow keeps busy at once."""
    return len(build_dataflow(config).nodes) - 1


def reference_digests(dataflow: Dataflow, images: int, allow: Collection[str] = (), *, sink: str = "") -> Iterator[str]:
    """Return the digests of a sink's partitions, as a single process makes them."""
    return (digest(value) for value in reference_run(dataflow, images, (*DEFAULT_ALLOW, *allow), sink=sink))


def reference_of(dataflow: Dataflow, config: RunConfig, tell: Tell) -> dict[str, str]:
    """Return the digest of a single process's results by sink. Raise RunError if the user's code fails."""
    by_sink: dict[str, str] = {}
    total = config.images * len(dataflow.sinks)
    for done, sink in enumerate(dataflow.sinks):
        digests: list[str] = []
        try:
            for partition in reference_digests(dataflow, config.images, config.allow, sink=sink):
                digests.append(partition)
                tell("computing on a single machine", done * config.images + len(digests), total)
        except ThalwegError:
            raise
        except Exception as error:  # an error of the user's code
            why = f"{type(error).__name__} at partition {len(digests)}, on a single machine as well: {error}"
            raise RunError(why) from None
        by_sink[sink] = sequence_digest(digests)
    return by_sink
