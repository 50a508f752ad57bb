"""What stands for ``simulate`` in tests of sweeps: importable by executors, which have the tests on their path."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import thalweg
from thalweg.experiments.sweeps.simulation import Simulated, Simulation
from thalweg.middleware.planning import OneShot

SECONDS = {"download-all": 100.0, "one-shot": 25.0, "local": 20.0, "global": 10.0}


class Mine(OneShot, frozen=True):
    """A researcher's own planner."""


def result(config: Simulation) -> Simulated:
    """Inter-arrival times by placement, longer with each configuration."""
    seconds = SECONDS.get(config.placement, 50.0) * (1 + config.configuration / 10)
    return Simulated(delivered=config.images, mean_interarrival_s=seconds, median_interarrival_s=seconds)


def troubled(config: Simulation) -> Simulated:
    """Local raises; global on configuration 1 ends its worker; one-shot on configuration 0 does so the first time.

    ``allow`` of the simulation names the file by which the first time is told.
    """
    if config.placement == "local":
        raise ValueError(f"no plan\nfor {config.servers}")
    if (config.placement, config.configuration) == ("global", 1):
        os.kill(os.getpid(), signal.SIGKILL)
    if (config.placement, config.configuration) == ("one-shot", 0):
        try:
            Path(config.allow[0]).touch(exist_ok=False)
        except FileExistsError:
            return result(config)
        os.kill(os.getpid(), signal.SIGKILL)
    return result(config)


def leaving(config: Simulation) -> Any:
    """What no simulation should do."""
    if config.placement == "one-shot":
        raise SystemExit(3)
    return "nothing" if config.placement == "global" else result(config)


def where(config: Simulation) -> Simulated:
    """Fails with the places from which an executor has the package and this module."""
    places: Sequence[str | None] = (thalweg.__file__, __file__)
    raise RuntimeError(" ".join(map(str, places)))
