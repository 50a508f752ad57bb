"""The folder of a run: empty before it, and what ``run.toml`` says of how the run was started."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from thalweg.experiments.networks.collapse import Collapse
from thalweg.experiments.runs.config import RunConfig
from thalweg.experiments.runs.strategies import moving, same_start
from thalweg.middleware.errors import UsageError
from thalweg.middleware.planning.registry import Strategy

SCENARIO = "scenario.toml"  # a copy of the file that a run was given


def prepare_folder(folder: Path) -> bool:
    """Make a folder for a run, and whether it was not there before.

    Raises UsageError when there is something in it, or it cannot be made.
    """
    made = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}; choose another --out") from None
    check_empty(folder)
    return made


def check_empty(folder: Path) -> None:
    """Raises UsageError when there is something in a folder for a run, or it is none."""
    try:
        used = folder.exists() and any(folder.iterdir())
    except OSError as error:
        raise UsageError(f"cannot use {folder}: {error.strerror}; choose another --out") from None
    if used:
        raise UsageError(f"{folder} is not empty; choose another --out, or remove it")


def empty_folder(folder: Path, *, remove: bool) -> None:
    """Take out what a run that did not begin has left there, and the folder itself where it was made for the run."""
    shutil.rmtree(folder, ignore_errors=True)
    if not remove:
        folder.mkdir(exist_ok=True)


def configuration(config: RunConfig, strategies: Mapping[str, Strategy], scenario: Collapse | None) -> dict[str, Any]:
    """What a run was started with, how operators move, and what befell the links."""
    given = {key: value for key, value in msgspec.to_builtins(config).items() if value is not None}
    more = {"adaptation": moving(strategies), "same_start": same_start(strategies)}
    if scenario is not None:
        more[scenario.name] = msgspec.to_builtins(scenario)
    return given | {key: value for key, value in more.items() if value}


def versions() -> dict[str, str]:
    """The versions that a run depends on."""
    names = ("thalweg", "pyzmq", "msgspec", "numpy", "pyspark", "pyarrow")
    return {"python": platform.python_version(), "kernel": platform.release(), **{n: version(n) for n in names}}
