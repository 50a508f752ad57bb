"""What hosts work on in a run: a workload makes a dataflow of a run's options, and a single process its reference.

A workload is a module with a ``Workload``, and a line in ``WORKLOADS``; its own options
stand in ``config.OF_WORKLOADS``. What a sink delivered is compared by one digest over all its partitions.
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
    """The workload that a configuration asks for."""
    return WORKLOADS[config.workload](config)


def build_dataflow(config: RunConfig) -> Dataflow:
    """The dataflow of a configuration; UsageError for options that do not do."""
    return workload_of(config).dataflow()


def edges(config: RunConfig) -> int:
    """How many links the dataflow keeps busy at once, at most."""
    return len(build_dataflow(config).nodes) - 1


def reference_digests(dataflow: Dataflow, images: int, allow: Collection[str] = (), *, sink: str = "") -> Iterator[str]:
    """The digests of what a single process makes for a sink."""
    return (digest(value) for value in reference_run(dataflow, images, (*DEFAULT_ALLOW, *allow), sink=sink))


def reference_of(dataflow: Dataflow, config: RunConfig, tell: Tell) -> dict[str, str]:
    """By sink the digest of all that a single process makes of the same sources. Raises RunError where that fails."""
    found: dict[str, str] = {}
    total = config.images * len(dataflow.sinks)
    for done, sink in enumerate(dataflow.sinks):
        digests: list[str] = []
        try:
            for one in reference_digests(dataflow, config.images, config.allow, sink=sink):
                digests.append(one)
                tell("computing on a single machine", done * config.images + len(digests), total)
        except ThalwegError:
            raise
        except Exception as error:  # the user's own code
            why = f"{type(error).__name__} at partition {len(digests)}, on a single machine as well: {error}"
            raise RunError(why) from None
        found[sink] = sequence_digest(digests)
    return found
