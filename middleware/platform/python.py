"""Command lines of our own Python processes, and the programs that these processes need.

Rules:

- R1: No other module starts Python, or looks a program up. ``tests/test_architecture.py`` checks it.
- R2: A Python process of ours does not import from its working directory, which may be another user's (``-P``).
- R3: ``PYTHONPATH`` and the user's own ``site-packages`` count in these processes as in any other. An isolated process
  (``-I``) ignores both. It is used where Thalweg's own modules are not needed from there.
- R4: A folder that comes after the standard library in a process comes after it in its children. A file there hides no
  installed module (``append_folder``).
- R5: A program is found in the absolute folders of ``PATH`` only. A relative or empty entry is the working directory,
  or below it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from thalweg.middleware.errors import UsageError

PYTHON = sys.executable
SHELL = "/bin/sh"  # no look-up
LAST = "THALWEG_LAST_FOLDERS"
"""Environment variable: folders that our Python processes append to ``sys.path``, separated as in ``PYTHONPATH``."""


def module_command(module: str, *words: str, python: str = PYTHON) -> list[str]:
    """Return the command that runs a module (R2). ``python``: the interpreter on the host where it runs."""
    return [python, "-P", "-m", module, *words]


def isolated_command(*words: str, python: str = PYTHON) -> list[str]:
    """Return the command that runs Python isolated (R3): with ``-c`` and a program, or with the path of a file."""
    return [python, "-I", *words]


def find_program(name: str, *more: str) -> str | None:
    """Return the path of a program; None if no absolute folder of ``PATH``, or of ``more``, has it (R5)."""
    folders = [*os.environ.get("PATH", os.defpath).split(os.pathsep), *more]
    path = shutil.which(name, path=os.pathsep.join(folder for folder in folders if os.path.isabs(folder)))
    return path if path is not None and os.path.isabs(path) else None  # Windows also looks in the working directory


def drop_relative_folders() -> None:
    """Leave only the absolute folders in the ``PATH`` of this process (R5), for libraries that look programs up."""
    if (path := os.environ.get("PATH")) is not None:
        os.environ["PATH"] = os.pathsep.join(folder for folder in path.split(os.pathsep) if os.path.isabs(folder))


def working_folder() -> str:
    """Return the working directory; UsageError if it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise UsageError("the working directory has been removed; change to another") from None


# --- folders of modules -----------------------------------------------------------------------------


def append_folder(folder: str) -> None:
    """Make a folder the last of those that this process, and each that it starts, imports from (R4)."""
    sys.path.append(folder)
    os.environ[LAST] = os.pathsep.join([*_last(os.environ), folder])


def append_folders() -> None:
    """Import from the folders that the parent appended (R4). Our Python processes call it when they start."""
    sys.path += [folder for folder in _last(os.environ) if folder not in sys.path]


def folder_variables() -> dict[str, str]:
    """Return the environment variables of a child that finds modules where this process does, in the same order (R4).

    The interpreter's own folders are left out, as what a child starts may be another interpreter. Raises
    FileNotFoundError if ``sys.path`` has a relative entry and the working directory has been removed.
    """
    import sysconfig  # hosts do without

    places = sysconfig.get_paths()
    library = places["stdlib"]
    archive = f"{Path(library).parent}/python{sys.version_info[0]}{sys.version_info[1]}.zip"
    own = {*places.values(), library, archive}
    first, last = list[str](), list[str]()
    folders = first
    for entry in sys.path:
        if entry in own or entry.startswith(library + os.sep):
            folders = last
        else:
            folders.append(str(Path(entry).absolute()))
    if (home := _home()) in last:  # a child imports Thalweg before it appends folders
        first.append(home)
    return {name: os.pathsep.join(dict.fromkeys(path)) for name, path in (("PYTHONPATH", first), (LAST, last))}


def _last(variables: Mapping[str, str]) -> list[str]:
    return [folder for folder in variables.get(LAST, "").split(os.pathsep) if os.path.isabs(folder)]


def _home() -> str:
    """Return the folder that has the package ``thalweg``, without links resolved."""
    package = sys.modules.get("thalweg")
    return str(Path(str(package.__file__)).absolute().parents[1]) if package is not None else ""
