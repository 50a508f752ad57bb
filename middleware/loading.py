"""Loading of a node's code by a registered entry point or an allowed import path. Nothing else can be named.

Rules:

- R1: A name is an entry point of an installed distribution, in the group ``thalweg.operators`` or ``thalweg.sources``,
  or an import path. An import path (``package.module:attribute``) leads into a package or module that this host allows.
  No part of a path begins with an underscore.
- R2: An import path names a class of an allowed package, with a ``combine`` or ``produce`` that an allowed package
  defines. In parameters of code that loads more code, a path names a function that an allowed package defines and
  marks. R2 is checked before a call. A module of a different package is never imported because of a path.
- R3: An entry point was installed by the owner of the host. Its target is trusted, also if it is a function.
- R4: Parameters fit the signature before the code is called with them.
- R5: Files and folders in parameters lie within the folders that this host gives to read (``data_path``).
- R6: Threads import one after another (``importing``). If one thread imports a package and a second thread a module of
  the package, Python detects a deadlock. A thread may then see an incomplete module.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import itertools
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import cache, lru_cache
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import UnionType
from typing import Any, Protocol, Union, get_args, get_origin, get_type_hints, runtime_checkable

import msgspec

from thalweg.middleware.dataflow import Code, Reorderable
from thalweg.middleware.errors import NotAllowedError, OperatorError, UsageError, nearest, one_line, shown, words

OPERATORS, SOURCES = "thalweg.operators", "thalweg.sources"
GROUPS = (OPERATORS, SOURCES)
METHODS = {"operator": "combine", "source": "produce"}  # methods that the runtime calls, by the kind of node
DEFAULT_ALLOW = ("thalweg.operators",)
MAX_PICTURE_BYTES = 256 * 1024 * 1024
SHOWN = 120  # characters of a sender's value in an error
TOLD = 1000  # characters of the code's own error
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
_PRIVATE = re.compile(r"(^|[.:])_")
IMPORT_S = 10.0  # seconds of wait for another import: a hanging import holds up its own run only
_imports = threading.RLock()


@runtime_checkable
class OperatorCode(Protocol):
    """Method of an operator that the runtime calls.

    ``thalweg.operators.Operator`` is the base class for applications.
    """

    def combine(self, inputs: Sequence[Any], index: int) -> Any: ...


@runtime_checkable
class SourceCode(Protocol):
    """Method of a source that the runtime calls. ``thalweg.operators.Source`` is the base class for applications."""

    def produce(self, index: int) -> Any: ...


class Allowed(msgspec.Struct, frozen=True):
    """Permissions of the code that a dataflow names.

    - ``packages``: the packages whose code may be loaded.
    - ``data_roots``: the folders that the code may read. None: every folder, for a process that evaluates its own
      dataflow.
    - ``max_picture_bytes``: the most memory of one picture that a source decodes or generates.
    - ``client``: the client of the permitted runs, if permissions differ between clients.
    - ``own``: these are the permissions of an application's ``Client``.
    """

    packages: tuple[str, ...] = DEFAULT_ALLOW
    data_roots: tuple[str, ...] | None = None
    max_picture_bytes: int = MAX_PICTURE_BYTES
    client: str = ""
    own: bool = False


Allow = Collection[str] | Allowed  # packages, or all permissions

_OWN = Allowed()
ALLOWED: ContextVar[Allowed] = ContextVar("thalweg_allowed", default=_OWN)
"""Permissions of the node's code under construction, for parameters that name further code or folders."""


@cache
def registered() -> dict[str, EntryPoint]:
    """Return the registered entry points by name."""
    points: dict[str, EntryPoint] = {}
    for group in GROUPS:
        for point in entry_points(group=group):
            points.setdefault(point.name, point)
    return points


def _is_allowed(module: object, packages: Iterable[str]) -> bool:
    """Return whether ``module`` is one of the packages or modules, or lies inside them."""
    return isinstance(module, str) and any(
        module == package or module.startswith(package + ".") for package in packages
    )


def keeps_state(code: Any) -> bool:
    """Return whether an operator has state: its class has a ``snapshot`` of its own."""
    take = getattr(code, "snapshot", None)
    return take is not None and not getattr(take, "keeps_nothing", False)


def may_reorder(code: Any) -> bool:
    """Return whether an operator is ``reorderable``, and also merges states if it has state."""
    return bool(getattr(code, "reorderable", False)) and (hasattr(code, "merge") or not keeps_state(code))


def reorderable(codes: Iterable[Code | None], allow: Allow = DEFAULT_ALLOW) -> Reorderable:
    """Return the codes that may be reordered (``may_reorder``). Code that cannot be loaded here is left out."""
    asked: list[Code] = []
    free: list[Code] = []
    merging: list[Code] = []
    for code in codes:
        if code is None or code in asked:
            continue
        asked.append(code)
        with contextlib.suppress(OperatorError):
            instance = load_code(code, allow)
            if may_reorder(instance):
                free.append(code)
                if keeps_state(instance):
                    merging.append(code)
    return Reorderable(tuple(free), tuple(merging))


def find_class(code: Code, allow: Allow = DEFAULT_ALLOW) -> Callable[..., Any]:
    """Return the class of a node's code, or the registered function that makes the object. Neither is called.

    Raises OperatorError, in one line, if there is none, or R1, R2 or R4 does not hold.
    """
    allowed = _as_allowed(allow)
    token = ALLOWED.set(allowed)
    try:
        factory = _factory(code.use, allowed.packages)
        _check_params(factory, code)
        return factory
    finally:
        ALLOWED.reset(token)


def load_code(code: Code, allow: Allow = DEFAULT_ALLOW) -> Any:
    """Construct the operator or source of a node. Raise OperatorError in one line if that is not possible."""
    factory, token = find_class(code, allow), ALLOWED.set(_as_allowed(allow))
    try:
        instance = _constructed(factory, code)
    finally:
        ALLOWED.reset(token)
    if not isinstance(instance, OperatorCode | SourceCode):  # a registered function may construct an object of any kind
        raise OperatorError(f"{_short(code.use)} has neither combine(inputs, index) nor produce(index)")
    return instance


def _as_allowed(allow: Allow) -> Allowed:
    return allow if isinstance(allow, Allowed) else Allowed(tuple(allow))


def _constructed(factory: Callable[..., Any], code: Code) -> Any:
    try:
        instance = factory(**code.params)
    except OperatorError as error:
        if len(str(error)) > TOLD:  # the error repeats the text of the sender
            raise OperatorError(f"{one_line(error)[:TOLD]}…") from error
        raise
    except (TypeError, ValueError) as error:
        check_types(factory, code)
        why = one_line(error)[:TOLD]
        raise OperatorError(f"{_short(code.use)} does not take {_short(code.params)}: {why}") from error
    except Exception as error:  # the code's own error, of any class
        why = f"{type(error).__name__}: {one_line(error)[:TOLD]}"
        raise OperatorError(f"{_short(code.use)} cannot be constructed here: {why}") from error
    check_types(factory, code)
    return instance


def _factory(use: str, packages: Collection[str]) -> Callable[..., Any]:
    """Return the class or function by which the code ``use`` is constructed."""
    if ":" in use:
        target = find_code(use)
        if not isinstance(target, type):
            raise OperatorError(f"{use!r} is a function; name a class with combine(inputs, index) or produce(index)")
    else:
        point = registered().get(use)
        if point is None:
            raise OperatorError(f"unknown operator {_short(use)}; {nearest(use[:SHOWN], sorted(registered()))}")
        # R3: trusted, whatever package defines it
        target, packages = _imported(f"{use!r} ({point.value})", point.load), ()
    if isinstance(target, type):
        _check_class(target, use, packages)
    factory: Callable[..., Any] = target
    return factory


def find_code(path: str, allow: Allow | None = None) -> Any:
    """Return the class or function that an import path names. An allowed package must define it.

    Without ``allow``, the permissions of the code under construction count (``ALLOWED``). Nothing is called. Raises
    OperatorError, in one line, if R1 or R2 does not hold.
    """
    allowed = ALLOWED.get() if allow is None else _as_allowed(allow)
    packages = allowed.packages
    quoted = _short(path)
    if not _IMPORT_PATH.fullmatch(path):
        raise OperatorError(f"{quoted} is not an import path of the form package.module:attribute")
    if _PRIVATE.search(path):
        raise OperatorError(
            f"{quoted} is private; a dataflow names only code whose name does not begin with an underscore"
        )
    module, _, attribute = path.partition(":")
    if not _is_allowed(module, packages):
        client, top = allowed.client, module.partition(".")[0]
        if allowed.own:
            raise NotAllowedError(
                f"this client does not allow code from {_short(module)}; give Client(allow=[{top!r}])"
            )
        whose, option = (f" client {client!r}", f"{client}={top}") if client else ("", top)
        raise NotAllowedError(
            f"this host does not allow{whose} code from {_short(module)}; start it with --allow {option}"
        )
    target = _imported(quoted, lambda: getattr(importlib.import_module(module), attribute))
    home = getattr(target, "__module__", None) if isinstance(target, type) or inspect.isfunction(target) else None
    if not _is_allowed(home, packages):  # R2: an object that an allowed module only imported is refused
        problem = "is no class or function" if home is None else f"comes from {home!r}"
        raise OperatorError(f"{quoted} {problem}; name a class or function that an allowed package defines")
    return target


def data_path(path: str) -> Path:
    """Return the file or folder that a parameter names, without links and ``..``.

    Code that reads files calls this function while it is constructed (R5). Raises OperatorError if this host does not
    give the file to read.
    """
    real, roots = Path(os.path.realpath(os.path.expanduser(path))), ALLOWED.get().data_roots
    if roots is None or any(real.is_relative_to(root) for root in roots):
        return real
    client = ALLOWED.get().client
    whom, option = (f" client {client!r}", f"{client}=FOLDER") if client else ("", "FOLDER")
    readable = f"only files in {', '.join(roots)}" if roots else "no folder"
    raise OperatorError(f"{_short(path)}: this host gives{whom} {readable} to read; start it with --data-root {option}")


def check_packages(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of packages and modules to allow. Raise UsageError for a name that cannot be found.

    Nothing is imported.
    """
    for name in (packages := words(names, "packages to allow are a collection of names")):
        spec, path = None, None
        try:
            for part in itertools.accumulate(name.split("."), "{}.{}".format):
                spec = importlib.util.find_spec(part) if path is None else PathFinder.find_spec(part, path)
                path = getattr(spec, "submodule_search_locations", None) or []
        except (ImportError, ValueError, AttributeError):  # the name is no name of a module
            spec = None
        except KeyError:  # a folder without __init__.py in a package that is not imported: its content is unknown
            continue
        if spec is None:
            raise UsageError(f"no package or module {shown(name)} is found here; allow one that can be imported")
    return packages


def check_roots(folders: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return the real paths of folders that a host gives to read. Raise UsageError for a path that is no folder."""
    for folder in folders:
        if not os.path.isdir(folder):
            raise UsageError(f"{os.fspath(folder)!r} is not a folder; name one whose files sources may read")
    return tuple(os.path.realpath(folder) for folder in folders)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Wait until no other thread imports for the runtime, for at most ``IMPORT_S`` (R6)."""
    alone = _imports.acquire(timeout=IMPORT_S)
    try:
        yield
    finally:
        if alone:
            _imports.release()


def _imported(said: str, load: Callable[[], Any]) -> Any:
    try:
        with importing():
            return load()
    except Exception as error:  # a module's own code may raise anything
        kind = "" if isinstance(error, ImportError | AttributeError) else f"{type(error).__name__}: "
        raise OperatorError(f"{said} cannot be imported here: {kind}{one_line(error)}") from error


def _check_class(found: type, use: str, packages: Collection[str]) -> None:
    """Raise OperatorError unless a class holds to R2. Without ``packages``, every package may define it."""
    methods = (next((base for base in found.__mro__ if name in vars(base)), None) for name in ("combine", "produce"))
    homes = [base.__module__ for base in methods if base is not None]
    if not homes:
        raise OperatorError(f"{use!r} has neither combine(inputs, index) nor produce(index)")
    foreign = [home for home in homes if packages and not _is_allowed(home, (*DEFAULT_ALLOW, *packages))]
    if foreign:
        raise OperatorError(f"{use!r} has its combine() or produce() from {foreign[0]!r}, which is not allowed here")
    if missing := getattr(found, "__abstractmethods__", None):
        raise OperatorError(f"{use!r} is abstract; it lacks {', '.join(sorted(missing))}")


@lru_cache(maxsize=256)
def _signature(factory: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(factory)
    except (TypeError, ValueError):  # written in C, without a signature
        return None


def _check_params(factory: Callable[..., Any], code: Code) -> None:
    """Raise OperatorError unless the parameters fit the signature of the code (R4)."""
    signature = _signature(factory)
    if signature is None:
        return
    try:
        signature.bind(**code.params)
    except TypeError as error:
        known = [
            name for name, parameter in signature.parameters.items() if parameter.kind is not parameter.VAR_KEYWORD
        ]
        unknown = [name for name in code.params if name not in known]
        advice = nearest(unknown[0][:SHOWN], known) if unknown and known else f"it takes {', '.join(known) or 'none'}"
        problem = f"{_short(code.use)} does not take {_short(code.params)}"
        raise OperatorError(f"{problem}: {one_line(error)[:SHOWN]}; {one_line(advice)}") from None


def check_types(factory: Callable[..., Any], code: Code) -> None:
    """Raise OperatorError for a parameter whose type does not fit an annotation in Thalweg's own code."""
    hints = _hints(factory)
    for name, value in code.params.items():
        try:
            msgspec.convert(value, hints.get(name, Any))
        except msgspec.ValidationError as error:
            problem = f"{_short(code.use)} does not take {name}={_short(value)}"
            raise OperatorError(f"{problem}: {one_line(error)[:SHOWN]}") from None


@lru_cache(maxsize=256)
def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the parameters of Thalweg's own code, as far as a message carries values of such types.

    Annotations in foreign code are ignored, as Python does.
    """
    if not _is_allowed(getattr(factory, "__module__", None), DEFAULT_ALLOW):
        return {}
    hints = {}
    for name, hint in get_type_hints(getattr(factory, "__init__", factory)).items():
        every = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        if plain := tuple([member for member in every if _is_plain(member)]):
            hints[name] = Union[plain]  # noqa: UP007  # the number of types is only known here
    return hints


def _is_plain(hint: Any) -> bool:
    """Return whether a message carries values of a type unchanged."""
    try:
        msgspec.json.schema(hint)
    except (TypeError, RecursionError):
        return False
    return True


def _short(said: object) -> str:
    """Return the ``repr`` of a sender's value, shortened to ``SHOWN`` characters for an error."""
    text = repr(said)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
