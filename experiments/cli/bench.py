"""``thalweg bench``: the benchmarks of a checkout. They are no part of the installed package."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import thalweg
from thalweg.middleware.errors import UsageError

FOLDER = "benchmarks"


def _load(root: Path) -> Any:
    """Return the verbs of the benchmarks in a checkout; UsageError where ``root`` is none."""
    if not (root / FOLDER / "cli.py").is_file():
        raise UsageError(
            "the benchmarks are in a checkout of the project, and this is an installed package;"
            " install the checkout with pip install -e, and run thalweg bench there"
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return import_module(f"{FOLDER}.cli").app


app = _load(Path(thalweg.__file__).resolve().parents[1])
