"""Finding code by name: registered or allowed, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from types import ModuleType

import pytest

from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import OperatorError
from thalweg.middleware.loading import OperatorCode, SourceCode, load_code, registered
from thalweg.operators import Composite, SceneSource


def test_registered_names_are_found() -> None:
    assert {"composite", "scenes", "image_folder"} <= registered().keys()
    assert isinstance(load_code(Code("composite")), Composite)
    source = load_code(Code("scenes", {"site": 0, "sites": 2, "seed": 1}))
    assert isinstance(source, SceneSource)
    assert isinstance(source, SourceCode)
    assert not isinstance(source, OperatorCode)


def test_import_paths_of_allowed_packages_are_found() -> None:
    assert isinstance(load_code(Code("thalweg.operators:Composite")), Composite)
    assert isinstance(load_code(Code("thalweg.operators.composition:Composite")), Composite)
    mix = load_code(Code("runtime_codes:Mix"), ["runtime_codes"])
    assert mix.combine([b"a", b"b"], 7) == b"a|b|7"


@pytest.mark.parametrize(
    ("use", "says"),
    [
        ("composit", "unknown operator 'composit'; did you mean 'composite'?"),
        ("qqq", "unknown operator 'qqq'; known are best-of-last, composite"),
        ("", "unknown operator ''"),
        ("os:system", "this host does not allow code from 'os'; start it with --allow os"),
        ("a.b.c:d", "start it with --allow a"),
        ("runtime_codes:Mix", "does not allow code from 'runtime_codes'"),
        ("thalweg.operators_evil:X", "does not allow code from 'thalweg.operators_evil'"),
        ("thalweg.middleware.loading:load_code", "does not allow code from 'thalweg.middleware.loading'"),
        ("thalweg.operators:nothing", "cannot be imported here"),
        ("thalweg.operators.nothing:X", "cannot be imported here: No module named"),
        ("thalweg.operators:Composite.combine", "is not an import path"),
        ("thalweg.operators:__import__('os')", "is not an import path"),
        (":x", "is not an import path"),
        ("thalweg.operators:a:b", "is not an import path"),
        ("thalweg.operators.scenes:np", "comes from None"),
        ("thalweg.operators.scenes:annotations", "comes from '__future__'"),
        ("thalweg.operators:__all__", "comes from None"),
    ],
)
def test_anything_else_is_refused_in_one_line(use: str, says: str) -> None:
    with pytest.raises(OperatorError, match=re.escape(says)) as caught:
        load_code(Code(use))
    assert "\n" not in str(caught.value)


def test_what_an_allowed_module_imported_from_elsewhere_cannot_be_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """``from subprocess import run`` in an operator's module must not hand ``run`` to whoever sends a dataflow."""
    module = ModuleType("lent")
    module.run = subprocess.run  # type: ignore[attr-defined]
    module.Popen = subprocess.Popen  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lent", module)
    for name in ("run", "Popen"):
        with pytest.raises(OperatorError, match="comes from 'subprocess'"):
            load_code(Code(f"lent:{name}", {"args": ["false"]}), ["lent"])


def test_what_is_neither_operator_nor_source_is_refused() -> None:
    with pytest.raises(OperatorError, match=r"has neither combine\(inputs, index\) nor produce\(index\)"):
        load_code(Code("runtime_codes:not_an_operator"), ["runtime_codes"])


def test_wrong_parameters_are_named() -> None:
    with pytest.raises(OperatorError, match=re.escape("'composite' does not take {'nonsense': 1}")):
        load_code(Code("composite", {"nonsense": 1}))
    with pytest.raises(OperatorError, match="'scenes' does not take"):
        load_code(Code("scenes", {"site": "x"}))
