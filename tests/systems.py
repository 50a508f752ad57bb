"""Processes whose Thalweg code sees macOS or Windows, see ``emulated/sitecustomize.py``."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

EMULATED = ("darwin", "win32")
MODULES = ("errno", "os", "select", "selectors", "signal", "socket", "time")
# Whole modules. tty exists on Windows, but imports termios.
ABSENT = {
    "darwin": (),
    "win32": (
        "_posixsubprocess", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty",
    ),
}  # fmt: skip
RUN_S = 100.0
FOLDER = Path(__file__).parent / "emulated"


@cache
def missing(module: str, system: str) -> frozenset[str]:
    """Return the names that a module of the standard library has on Linux and lacks elsewhere, after typeshed."""
    spec = find_spec("mypy")
    assert spec is not None
    assert spec.origin is not None
    stubs = Path(spec.origin).parent / "typeshed" / "stdlib"
    stub = next(path for path in (stubs / f"{module}.pyi", stubs / module / "__init__.pyi") if path.exists())
    body = ast.parse(stub.read_text(encoding="utf-8")).body
    return frozenset({*_names(body, "linux")} - {*_names(body, system)})


def _names(body: Iterable[ast.stmt], system: str) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.If():
                names = {"sys": SimpleNamespace(platform=system, version_info=sys.version_info)}
                holds = eval(compile(ast.Expression(statement.test), "stub", "eval"), names)
                yield from _names(statement.body if holds else statement.orelse, system)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name for alias in aliases)


def environment(system: str, absent: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment in which Python and its child processes see a system without the modules ``absent``."""
    names = {module: sorted(missing(module, system)) for module in MODULES}
    emulated = {"system": system, "missing": names, "absent": [*ABSENT[system], *absent]}
    path = os.pathsep.join([str(FOLDER), str(FOLDER.parents[1])])
    return {**os.environ, "PYTHONPATH": path, "THALWEG_EMULATE": json.dumps(emulated)}


def run(
    system: str, code: str, *words: str, folder: Path, absent: Iterable[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process that sees a system, see ``environment``."""
    command, variables = [sys.executable, "-c", code, *words], environment(system, absent)
    return subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=RUN_S
    )
