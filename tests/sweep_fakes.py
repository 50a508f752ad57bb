"""Stand-ins for ``simulate`` in tests of sweeps. Executors can import them, as the tests are on their path."""

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
    """Planner of a researcher's own."""


def result(config: Simulation) -> Simulated:
    """Return a result whose inter-arrival time depends on the placement, and grows with the configuration."""
    seconds = SECONDS.get(config.placement, 50.0) * (1 + config.configuration / 10)
    return Simulated(delivered=config.images, mean_interarrival_s=seconds, median_interarrival_s=seconds)


def troubled(config: Simulation) -> Simulated:
    """Raise for local, and kill the worker for global on configuration 1, and once for one-shot on configuration 0.

    ``allow`` of the simulation names the file that marks the first time.
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
    """Exit for one-shot, return no result for global, and return a result otherwise."""
    if config.placement == "one-shot":
        raise SystemExit(3)
    return "nothing" if config.placement == "global" else result(config)


def where(config: Simulation) -> Simulated:
    """Fail with the paths from which an executor has imported the package and this module."""
    places: Sequence[str | None] = (thalweg.__file__, __file__)
    raise RuntimeError(" ".join(map(str, places)))
