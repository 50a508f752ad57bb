"""What a workload is: what hosts work on in a run (see ``workload``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from thalweg.experiments.run_config import RunConfig
from thalweg.middleware.dataflow import Dataflow


class Workload(ABC):
    """The workload of a configuration. ``sized``: it can be simulated by the sizes of its partitions alone."""

    sized: ClassVar[bool] = False

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    @abstractmethod
    def dataflow(self) -> Dataflow:
        """Sources at servers, and sinks at the client; UsageError for options that do not do."""

    def reference(self) -> Dataflow:
        """The same for a single process, which need not take its time."""
        return self.dataflow()

    def available(self) -> tuple[int, list[str]]:
        """How many partitions every source can give, at most those asked for, and notes."""
        return self.config.images, []

    def data_roots(self, dataflow: Dataflow) -> list[Path]:
        """The folders that hosts are to read."""
        return []

    def write_sheet(self, folder: Path, images: int) -> Path | None:
        """A picture of what was done, if there is one, in the run folder."""
        return None
