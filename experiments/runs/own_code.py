"""Code of the user's own that a command line names as ``package.module:attribute``."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder


def find_own_code(names: Iterable[str]) -> None:
    """Import from the working directory too, when it alone has a module that one of ``names`` begins with.

    It comes last: nothing installed is hidden by a file there. Names that are no import paths are left alone.
    """
    for name in names:
        module, colon, _ = name.partition(":")
        package = module.partition(".")[0]
        if not colon or not package.isidentifier() or package in sys.modules or importlib.util.find_spec(package):
            continue
        try:
            here = os.getcwd()
        except OSError:  # it has been removed
            return
        if PathFinder.find_spec(package, [here]) is not None:
            sys.path.append(here)
