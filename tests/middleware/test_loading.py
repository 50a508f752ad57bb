"""Finding code by name: registered or allowed, and nothing else."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
from patience import patience

from thalweg.middleware import loading
from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import OperatorError
from thalweg.middleware.loading import DEFAULT_ALLOW, OperatorCode, SourceCode, _hints, find_code, load_code, registered
from thalweg.operators import Composite, SceneSource, as_rule


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
        ("qqq", "unknown operator 'qqq'; known are array-join, best-of-last, composite"),
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
        ("thalweg.operators.scenes:np", "is no class or function"),
        ("thalweg.operators.scenes:annotations", "is no class or function"),
        ("thalweg.operators.folder:Path", "comes from 'pathlib"),
        ("thalweg.operators.np:load", "cannot be imported here: No module named"),
        ("thalweg.operators:__all__", "is private"),
        ("thalweg.operators.scenes:_truth", "is private"),
        ("thalweg.operators.__init__:Composite", "is private"),
        ("thalweg.operators:write_image", "is a function; name a class with combine"),
        ("thalweg.operators.states:pack", "is a function"),
        ("thalweg.operators:Operator", "is abstract; it lacks combine"),
        ("thalweg.operators.folder:CorruptImageError", "has neither combine(inputs, index) nor produce(index)"),
        ("x" * 5000, "unknown operator 'xxx"),
    ],
)
def test_an_unknown_or_forbidden_name_is_refused_with_a_single_line_error(use: str, says: str) -> None:
    with pytest.raises(OperatorError, match=re.escape(says)) as caught:
        load_code(Code(use))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


LENDER = """
import functools, os, pathlib
from collections import Counter
from statistics import NormalDist
calls = []

def make(**params):
    calls.append(params)

def rule(a, b):
    calls.append((a, b))

class Source:
    def __init__(self, path="", **more):
        calls.append(path)
    def produce(self, index):
        return b""

class _Private(Source): ...
class Data(NormalDist): ...
class Helper:
    def __init__(self, path):
        calls.append(path)

class Fails(Source):
    def __init__(self, how):
        raise {"key": KeyError("two\\nlines"), "os": OSError(2, "no such file"), "type": TypeError("odd")}[how]

partial = functools.partial(make)
source = Source()
"""


@pytest.fixture
def lender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Yield the allowed package ``lender``. The package ``other`` beside it leaves a file when it is imported."""
    (tmp_path / "lender").mkdir()
    (tmp_path / "lender/__init__.py").write_text(LENDER)
    (tmp_path / "lender/_inner.py").write_text(LENDER)
    (tmp_path / "lender/broken.py").write_text("raise SystemError('two\\nlines')")
    (tmp_path / "other.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'left')!r}).touch()")
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("lender")
    for name in ("lender", "lender._inner", "lender.broken", "other"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("use", "says"),
    [
        ("lender:make", "is a function; name a class"),
        ("lender:rule", "is a function"),
        ("lender:Helper", "has neither combine(inputs, index) nor produce(index)"),
        ("lender:_Private", "is private"),
        ("lender._inner:Source", "is private"),
        ("lender:partial", "is no class or function"),
        ("lender:source", "is no class or function"),
        ("lender:os", "is no class or function"),
        ("lender.os:system", "cannot be imported here: No module named 'lender.os'"),
        ("lender:Counter", "comes from 'collections'"),
        ("lender.broken:X", "cannot be imported here: SystemError: two lines"),
        ("other:X", "does not allow code from 'other'"),
        ("lender.other:X", "cannot be imported here"),
        ("..other:X", "is not an import path"),
    ],
)
def test_an_object_that_is_no_code_of_a_node_is_not_called(
    lender: ModuleType, tmp_path: Path, use: str, says: str
) -> None:
    with pytest.raises(OperatorError, match=re.escape(says)) as caught:
        load_code(Code(use, {"path": str(tmp_path / "left")}), ["lender"])
    assert "\n" not in str(caught.value)
    assert lender.calls == [""]  # by the module itself
    assert not (tmp_path / "left").exists()


def test_a_rule_that_a_dataflow_names_is_confined_in_the_same_way(lender: ModuleType) -> None:
    for rule, says in [("lender:rule", "is no rule"), ("lender:Source", "is no rule"), ("other:f", "does not allow")]:
        with pytest.raises(OperatorError, match=says):
            load_code(Code("composite", {"rule": rule}), ["lender", "thalweg.operators"])
    assert lender.calls == [""]
    as_rule(lender.rule)
    with pytest.raises(OperatorError, match="does not allow code from 'lender'"):
        load_code(Code("composite", {"rule": "lender:rule"}))
    assert load_code(Code("composite", {"rule": "lender:rule"}), ["lender"]).rule == "lender:rule"


def test_a_class_with_methods_from_a_forbidden_package_is_refused(lender: ModuleType) -> None:
    class Foreign:
        def combine(self, inputs: object, index: int) -> bytes:
            return b""

    lender.Mine = type("Mine", (Foreign,), {"__module__": "lender"})  # type: ignore[attr-defined]
    with pytest.raises(OperatorError, match=f"has its combine.. or produce.. from '{__name__}', which is not allowed"):
        load_code(Code("lender:Mine"), ["lender"])
    assert load_code(Code("lender:Mine"), ["lender", __name__]).combine([], 0) == b""


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("key", "cannot be constructed here: KeyError: 'two\\nlines'"),
        ("os", "cannot be constructed here: FileNotFoundError: [Errno 2] no such file"),
        ("type", "'lender:Fails' does not take {'how': 'type'}: odd"),
        (7, "cannot be constructed here: KeyError: 7"),
    ],
)
def test_an_exception_of_a_constructor_is_a_single_line_error(lender: ModuleType, how: object, says: str) -> None:
    with pytest.raises(OperatorError, match=re.escape(says)) as caught:
        load_code(Code("lender:Fails", {"how": how}), ["lender"])
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None  # with its traceback


def test_an_entry_point_is_trusted_and_may_be_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installation of a distribution with an entry point registers the entry point on the host."""
    points = {name: EntryPoint(name, f"{__name__}:{name}", "thalweg.operators") for name in ("made", "unmade")}
    monkeypatch.setattr(loading, "registered", lambda: points)
    assert isinstance(load_code(Code("made", {"rule": "min"})), Composite)
    with pytest.raises(OperatorError, match="has neither combine"):
        load_code(Code("unmade"))
    with pytest.raises(OperatorError, match=re.escape("did you mean 'rule'?")):
        load_code(Code("made", {"rul": "min"}))


def made(rule: str) -> object:
    return Composite(rule)


def unmade() -> object:
    return 7


def test_objects_that_an_allowed_module_imported_from_elsewhere_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """``from subprocess import run`` in an operator's module must not give ``run`` to the sender of a dataflow."""
    module = ModuleType("lent")
    module.run = subprocess.run  # type: ignore[attr-defined]
    module.Popen = subprocess.Popen  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "lent", module)
    for name in ("run", "Popen"):
        with pytest.raises(OperatorError, match="comes from 'subprocess'"):
            load_code(Code(f"lent:{name}", {"args": ["false"]}), ["lent"])


def test_a_function_in_place_of_an_operator_is_refused() -> None:
    with pytest.raises(OperatorError, match=r"is a function; name a class with combine\(inputs, index\)"):
        load_code(Code("runtime_codes:not_an_operator"), ["runtime_codes"])


def test_wrong_parameters_are_named() -> None:
    with pytest.raises(OperatorError, match=re.escape("'composite' does not take {'nonsense': 1}")):
        load_code(Code("composite", {"nonsense": 1}))
    with pytest.raises(OperatorError, match=r"unexpected keyword argument 'rul'; did you mean 'rule'\?"):
        load_code(Code("composite", {"rul": "min"}))
    with pytest.raises(OperatorError, match="missing a required argument: 'site'; it takes site, sites, seed"):
        load_code(Code("scenes"))
    with pytest.raises(OperatorError, match="unexpected keyword argument 'self'"):
        load_code(Code("composite", {"self": 1}))
    with pytest.raises(OperatorError, match="unknown rule 'xxx") as caught:
        load_code(Code("composite", {"rule": "x" * 1_000_000}))
    assert len(str(caught.value)) < 1_100
    with pytest.raises(OperatorError, match="'scenes' does not take"):
        load_code(Code("scenes", {"site": "x"}))


PACKAGE = """
import sys, time
sys.began.set()
time.sleep(0.2)  # until another thread has begun to import the module
from knot.part import Part

class Whole(Part):
    pass
"""
PART = """
import knot  # waits for the other thread, which waits for this module

class Part:
    def produce(self, index):
        return None
"""


def test_two_threads_can_import_a_package_and_a_submodule_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "knot").mkdir()
    (tmp_path / "knot/__init__.py").write_text(PACKAGE)
    (tmp_path / "knot/part.py").write_text(PART)
    monkeypatch.syspath_prepend(str(tmp_path))
    began = threading.Event()
    monkeypatch.setattr(sys, "began", began, raising=False)
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(find_code, "knot:Whole", ("knot",))
        assert began.wait(patience(20))
        part = pool.submit(find_code, "knot.part:Part", ("knot",))
        assert issubclass(whole.result(patience(20)), part.result(patience(20)))
    for name in ("knot", "knot.part"):
        monkeypatch.delitem(sys.modules, name)


def test_types_of_parameters_are_checked_only_for_code_of_thalweg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package whose name only begins like that of the operators is foreign."""
    (tmp_path / "thalweg_like.py").write_text(
        "class Mine:\n    def __init__(self, n: int) -> None:\n        self.n = n\n"
        "    def combine(self, inputs, index):\n        return b''\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    made = load_code(Code("thalweg_like:Mine", {"n": "text"}), ["thalweg_like"])
    monkeypatch.setattr(type(made), "__module__", "thalweg.operators_like")
    assert _hints.__wrapped__(type(made)) == {}
    with pytest.raises(OperatorError, match="'composite' does not take rule=3: Expected `str`, got `int`"):
        load_code(Code("composite", {"rule": 3}))


def test_the_annotations_of_all_operators_can_be_read() -> None:
    for point in registered().values():
        assert isinstance(_hints(point.load()), dict)
    assert _hints(find_code("thalweg.operators.on_error:Tolerant", DEFAULT_ALLOW))["use"] is str
