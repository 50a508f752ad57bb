"""``thalweg bench``: the benchmarks of a checkout. The installed package does not contain them."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import thalweg
from thalweg.middleware.errors import UsageError

FOLDER = "benchmarks"


def _load(root: Path) -> Any:
    """Return the verbs of the benchmarks in the checkout ``root``.

    Raise UsageError if ``root`` is no checkout, or if another package has the name of the benchmarks. Child processes
    do not import from the working directory, so they would import the other package.
    """
    if not (root / FOLDER / "cli.py").is_file():
        raise UsageError(
            "the benchmarks are in a checkout of the project, and this is an installed package;"
            " install the checkout with pip install -e, and run thalweg bench there"
        )
    inherited = sys.path if sys.flags.safe_path else sys.path[1:]  # without the working directory or script folder
    spec = PathFinder.find_spec(FOLDER, inherited)
    if spec is not None and spec.origin and not Path(spec.origin).resolve().is_relative_to(root):
        raise UsageError(
            f"another package called {FOLDER} hides that of the checkout: {spec.origin};"
            " take its folder out of PYTHONPATH, or out of the environment"
        )
    sys.path.insert(0, str(root))
    return import_module(f"{FOLDER}.cli").app


app = _load(Path(thalweg.__file__).resolve().parents[1])
