"""Finding a node's code by registered entry point or allowed import path; nothing else can be named.

Registered names are the entry points of the groups ``thalweg.operators`` and ``thalweg.sources`` of any installed
distribution. Import paths (``package.module:attribute``) are accepted when the host's own configuration allows
their package or module.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Collection, Iterable, Sequence
from contextvars import ContextVar
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, runtime_checkable

from thalweg.middleware.dataflow import Code, Reorderable
from thalweg.middleware.errors import OperatorError, nearest

GROUPS = ("thalweg.operators", "thalweg.sources")
DEFAULT_ALLOW = ("thalweg.operators",)
_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@runtime_checkable
class OperatorCode(Protocol):
    """What the runtime calls of an operator; ``thalweg.operators.Operator`` is the base class to use."""

    def combine(self, inputs: Sequence[Any], index: int) -> Any: ...


@runtime_checkable
class SourceCode(Protocol):
    """What the runtime calls of a source; ``thalweg.operators.Source`` is the base class to use."""

    def produce(self, index: int) -> Any: ...


@cache
def registered() -> dict[str, EntryPoint]:
    """All registered codes by name."""
    found: dict[str, EntryPoint] = {}
    for group in GROUPS:
        for point in entry_points(group=group):
            found.setdefault(point.name, point)
    return found


ALLOWED: ContextVar[Collection[str]] = ContextVar("thalweg_allowed", default=DEFAULT_ALLOW)
"""The packages allowed while a node's code is being constructed, for code that names more code by import path."""


def is_allowed(module: str, allow: Collection[str]) -> bool:
    """Whether ``module`` is one of the packages or modules in ``allow``, or inside one."""
    return any(module == prefix or module.startswith(prefix + ".") for prefix in allow)


def keeps_state(code: Any) -> bool:
    """Whether an operator remembers something: it has a ``snapshot`` of its own."""
    take = getattr(code, "snapshot", None)
    return take is not None and not getattr(take, "keeps_nothing", False)


def may_reorder(code: Any) -> bool:
    """Whether an operator says that it is ``reorderable``, and how states merge where it has some."""
    return bool(getattr(code, "reorderable", False)) and (hasattr(code, "merge") or not keeps_state(code))


def reorderable(codes: Iterable[Code | None], allow: Collection[str] = DEFAULT_ALLOW) -> Reorderable:
    """Those that may be reordered (``may_reorder``); code that cannot be loaded here says nothing."""
    asked: list[Code] = []
    free: list[Code] = []
    merging: list[Code] = []
    for code in codes:
        if code is None or code in asked:
            continue
        asked.append(code)
        with contextlib.suppress(OperatorError):
            made = load_code(code, allow)
            if may_reorder(made):
                free.append(code)
                if keeps_state(made):
                    merging.append(code)
    return Reorderable(tuple(free), tuple(merging))


def load_code(code: Code, allow: Collection[str] = DEFAULT_ALLOW) -> Any:
    """Construct a node's operator or source; OperatorError in one line when that is not possible."""
    if ":" in code.use:
        if not _IMPORT_PATH.fullmatch(code.use):
            raise OperatorError(f"{code.use!r} is not an import path of the form package.module:attribute")
        module, _, attribute = code.use.partition(":")
        if not is_allowed(module, allow):
            raise OperatorError(
                f"this host does not allow code from {module!r}; start it with --allow {module.partition('.')[0]}"
            )
        try:
            factory = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise OperatorError(f"{code.use!r} cannot be imported here: {error}") from None
        home = getattr(factory, "__module__", None)
        if not callable(factory) or not isinstance(home, str) or not is_allowed(home, allow):
            raise OperatorError(
                f"{code.use!r} is no operator or source that is defined in an allowed package, but comes from {home!r}"
            )
    else:
        point = registered().get(code.use)
        if point is None:
            raise OperatorError(f"unknown operator {code.use!r}; {nearest(code.use, sorted(registered()))}")
        try:
            factory = point.load()
        except (ImportError, AttributeError) as error:
            raise OperatorError(f"{code.use!r} ({point.value}) cannot be imported here: {error}") from None
    token = ALLOWED.set(allow)
    try:
        made = factory(**code.params)
    except (TypeError, ValueError) as error:
        raise OperatorError(f"{code.use!r} does not take {code.params}: {error}") from None
    finally:
        ALLOWED.reset(token)
    if not isinstance(made, OperatorCode | SourceCode):
        raise OperatorError(f"{code.use!r} has neither combine(inputs, index) nor produce(index)")
    return made
