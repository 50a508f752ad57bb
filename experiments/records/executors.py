"""Environment and code of Spark's executors for Thalweg, and the errors of executors.

If the master is not on this machine, the package is sent to the executors, with planners that are not installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING

from thalweg.experiments.records.spark import own_prefix
from thalweg.middleware.errors import one_line
from thalweg.middleware.platform.python import PYTHON, folder_variables

if TYPE_CHECKING:
    from pyspark import SparkContext

TRACES = "THALWEG_TRACES"
_HERE = re.compile(r"local(\[[^\]]*\])?")
_REASON = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Warning)(?:: .*)?)$", re.MULTILINE)


def last_error(text: str) -> str:
    """Return the exception at the end of a worker's traceback, or the first line of a text without a traceback."""
    errors: list[str] = _REASON.findall(text.partition("Driver stacktrace")[0])
    return one_line(errors[-1] if errors else text.strip().split("\n")[0])[:200]


@contextmanager
def equipped(context: SparkContext, master: str, planners: Sequence[str], traces: str | None) -> Iterator[None]:
    """Set up executors for Thalweg within a ``with`` block: folders of traces and code, and the Python to use.

    Executors on other machines are sent the code. Afterwards the context's former settings are restored.
    """
    environment, python = dict(context.environment), context.pythonExec
    folder = traces or os.environ.get(TRACES)
    if folder is not None:
        context.environment[TRACES] = os.path.abspath(folder)  # executors have a different working directory
    if "PYSPARK_PYTHON" not in os.environ and master.startswith("local"):
        context.pythonExec = PYTHON
    if _HERE.fullmatch(master):
        context.environment |= folder_variables()
    try:
        with tempfile.TemporaryDirectory(prefix=own_prefix("ship")) as scratch:  # late executors fetch code from it
            if not _HERE.fullmatch(master):
                _send(context, Path(scratch), planners)
            yield
    finally:
        context.environment, context.pythonExec = environment, python


def _send(context: SparkContext, scratch: Path, planners: Sequence[str]) -> None:
    before = sys.path[:]
    try:
        for path in (_pack(scratch), *_pack_planners(scratch, planners)):
            context.addPyFile(str(path))
    finally:
        sys.path[:] = before  # addPyFile adds to the path, and this process needs no copy


def _installed(path: str) -> bool:
    """Return whether a file belongs to the Python installation, which executors have themselves."""
    homes = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return any(path == home or path.startswith(home + os.sep) for home in homes)


def _pack(folder: Path) -> Path:
    """Write a zip of this package for executors, with its links resolved, and return the path.

    The zip has the entry points by which the package's operators are found.
    """
    import thalweg

    target = folder / "thalweg.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        _add_package(archive, Path(str(thalweg.__file__)).parent)
        try:
            described = distribution("thalweg")
        except PackageNotFoundError:  # run from its sources
            return target
        for name in ("METADATA", "entry_points.txt"):
            if (text := described.read_text(name)) is not None:
                archive.writestr(f"thalweg-{described.version}.dist-info/{name}", text)
    return target


def _add_package(archive: zipfile.ZipFile, package: Path) -> None:
    for where, folders, files in os.walk(package, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        inside = package.name / Path(where).relative_to(package)
        for name in sorted(files):
            if not name.startswith(".") and not name.endswith((".pyc", ".so")):
                archive.write(Path(where) / name, str(inside / name))


def _pack_planners(folder: Path, planners: Sequence[str]) -> Iterator[Path]:
    """Yield files to send to executors: modules, and zips of packages, of planners that are not installed."""
    for name in sorted({planner.partition(":")[0].partition(".")[0] for planner in planners} - {"thalweg"}):
        spec = importlib.util.find_spec(name)
        origin = None if spec is None or spec.origin is None else os.path.abspath(spec.origin)
        if origin is None or not origin.endswith(".py") or _installed(origin):
            continue
        if not spec or not spec.submodule_search_locations:
            yield Path(origin)
            continue
        target = folder / f"{name}.zip"
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            _add_package(archive, Path(origin).parent)
        yield target
