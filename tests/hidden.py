"""Hiding of installed modules, as if they had not been installed."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

import pytest

EXTRAS_MODULES = (
    "pyarrow", "pyspark", "py4j", "scipy", "highspy", "matplotlib", "PIL", "jinja2", "markupsafe", "networkx", "docker",
    "requests",
)  # fmt: skip
_HIDE = """
from importlib.machinery import PathFinder
_find = PathFinder.find_spec
def _found(cls, name, *more):
    return None if name.partition(".")[0] in {hidden} else _find(name, *more)
PathFinder.find_spec = classmethod(_found)
"""


def main_without(*modules: str) -> str:
    """Return a program for ``python -c``: the command line of ``thalweg`` without these modules."""
    return f"{_HIDE.format(hidden=set(modules))}\nfrom thalweg.experiments.cli.main import main\nmain()"


def hide(monkeypatch: pytest.MonkeyPatch, modules: Iterable[str]) -> None:
    """Hide modules from ``find_spec`` and from imports while the test runs."""
    hidden, find = set(modules), PathFinder.find_spec

    def found(name: str, *more: Any) -> ModuleSpec | None:
        return None if name.partition(".")[0] in hidden else find(name, *more)

    for name in hidden:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(PathFinder, "find_spec", found)
