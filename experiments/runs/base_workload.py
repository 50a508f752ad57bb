"""Base class of workloads (see ``workload``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from thalweg.experiments.run_config import RunConfig
from thalweg.middleware.dataflow import Dataflow


class Workload(ABC):
    """Workload of a configuration: the dataflow of a run. ``sized``: partition sizes are enough to simulate it."""

    sized: ClassVar[bool] = False

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    @abstractmethod
    def dataflow(self) -> Dataflow:
        """Return a dataflow with sources at servers and sinks at the client.

        Raise UsageError for unsuitable options.
        """

    def reference(self) -> Dataflow:
        """Return the dataflow for a single process, which may compute faster."""
        return self.dataflow()

    def available(self) -> tuple[int, list[str]]:
        """Return the number of partitions that every source can give, at most the number asked for, and notes."""
        return self.config.images, []

    def data_roots(self, dataflow: Dataflow) -> list[Path]:
        """Return the folders that hosts must be able to read."""
        return []

    def write_sheet(self, folder: Path, images: int) -> Path | None:
        """Write a picture of the results to the run folder. Return its path, or None without a picture."""
        return None
