"""Folder of a run: empty before the run, and the description of the run's start for ``run.toml``."""

from __future__ import annotations

import errno
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from thalweg.experiments.networks.collapse import Collapse
from thalweg.experiments.run_config import OF_WORKLOADS, RunConfig
from thalweg.experiments.runs.strategies import moving, same_start
from thalweg.middleware.errors import RunError, UsageError
from thalweg.middleware.planning.registry import Strategy
from thalweg.middleware.platform.files import allocate

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
LEAST_BYTES = 1 << 20  # a disk with less room counts as full
SCENARIO = "scenario.toml"  # copy of the run's scenario file


def prepare_folder(folder: Path) -> bool:
    """Make a folder for a run if necessary, and return whether it was made.

    Raises UsageError if the folder is not empty, or cannot be made.
    """
    created = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}; choose another --out") from None
    check_empty(folder)
    return created


def check_empty(folder: Path) -> None:
    """Raise UsageError if the path for a run is a folder with content, or no folder."""
    try:
        used = folder.exists() and any(folder.iterdir())
    except OSError as error:
        raise UsageError(f"cannot use {folder}: {error.strerror}; choose another --out") from None
    if used:
        raise UsageError(f"{folder} is not empty; choose another --out, or remove it")


def empty_folder(folder: Path, *, remove: bool) -> None:
    """Remove the files of a run that did not begin, and the folder if ``remove``."""
    shutil.rmtree(folder, ignore_errors=True)
    if not remove:
        folder.mkdir(exist_ok=True)


@contextmanager
def needing_room(folder: Path) -> Iterator[None]:
    """Guard code that writes a run into a folder. If the disk is full, remove the run and raise RunError.

    The RunError replaces any exception, with a line for people.
    """
    created = not folder.exists()
    try:
        yield
    except Exception as error:  # hosts and libraries raise various exceptions for a full disk
        if not _lacks_room(error) and not _is_full(folder):
            raise
        if folder.exists():
            empty_folder(folder, remove=created)
        raise RunError(
            f"the disk of {folder} is full, and nothing is left of the run; free space there, or choose another --out"
        ) from None


def _lacks_room(error: BaseException | None) -> bool:
    if error is None:
        return False
    return getattr(error, "errno", None) in NO_ROOM or _lacks_room(error.__context__)


def _is_full(folder: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            allocate(file.fileno(), LEAST_BYTES)
    except OSError as error:
        return error.errno in NO_ROOM
    return False


def configuration(config: RunConfig, strategies: Mapping[str, Strategy], scenario: Collapse | None) -> dict[str, Any]:
    """Return the options that a run was started with, the moves of operators, and the collapse of links."""
    foreign = {name for workload, names in OF_WORKLOADS.items() if workload != config.workload for name in names}
    options = msgspec.to_builtins(config).items()
    set_options = {key: value for key, value in options if value is not None and key not in foreign}
    more = {"adaptation": moving(strategies), "same_start": same_start(strategies)}
    if scenario is not None:
        more[scenario.name] = msgspec.to_builtins(scenario)
    return set_options | {key: value for key, value in more.items() if value}


def versions() -> dict[str, str]:
    """Return the versions that a run or a sweep depends on. A run needs no PySpark."""
    by_name = {"python": platform.python_version(), "kernel": platform.release()}
    for name in ("thalweg", "pyzmq", "msgspec", "numpy", "pyspark", "pyarrow"):
        with suppress(PackageNotFoundError):
            by_name[name] = version(name)
    return by_name
