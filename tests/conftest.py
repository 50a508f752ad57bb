"""Needs of tests, by marker. If the machine lacks a need, the test is skipped with the reason.

``THALWEG_REQUIRE=netns,spark`` makes such a skip a failure. Continuous integration sets it.

If several processes run tests (``pytest -n``), one process has all tests on real links, one after the other, because
these tests measure timers and processors. One process has the tests that boot kernels, and one has the tests that need
Spark, so that there is one session. These groups begin first: they mostly wait, and other tests compute meanwhile. On a
shared machine the processors are sometimes gone for longer than a test with the mark ``timed`` allows. Such a test is
tried up to three times more, the summary names it, and it must pass in the end.

A test that leaves an object unclosed fails. Objects of the test are collected after it, and all objects after a file.
"""

from __future__ import annotations

import ast
import atexit
import gc
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from thalweg.emulation.capabilities import Capabilities, Capability, probe
from thalweg.middleware.errors import CapabilityError, UsageError

pytest_plugins = ["second_tries", "sizes"]

NEEDS = {
    "netns": "needs network namespaces and tc",
    "netem": "needs a kernel with sch_netem",
    "spark": "needs Java and PySpark",
    "docker": "needs a Docker engine",
    "uml": "needs a User-Mode Linux kernel",
}
PROGRAMS = "programs"  # name in THALWEG_REQUIRE of all programs that the mark ``program`` names

# Number of examples for a property: the same few at every change, and many new examples at night. A slow or busy
# machine is no defect, so no profile has a deadline or a check of health. ``HYPOTHESIS_PROFILE=night pytest`` chooses.
for _name, _examples in (("ci", 6), ("long", 50), ("night", 250)):
    settings.register_profile(
        _name, max_examples=_examples, deadline=None, suppress_health_check=list(HealthCheck), derandomize=_name == "ci"
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):  # hosts' processes compile our modules once, not at each start
    os.environ["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="thalweg-compiled-")
    atexit.register(shutil.rmtree, os.environ["PYTHONPYCACHEPREFIX"], ignore_errors=True)

GROUPS = {"netns": "links", "netem": "links", "docker": "links", "uml": "kernels", "spark": "spark", "pages": "pages"}
FIRST = list(dict.fromkeys(GROUPS.values()))


def required() -> set[str]:
    return {name.strip() for name in os.environ.get("THALWEG_REQUIRE", "").split(",") if name.strip()}


def pytest_configure(config: pytest.Config) -> None:
    gc.set_threshold(gc.get_threshold()[0], sys.maxsize >> 33)  # older objects are collected at the end of a test
    for name, why in NEEDS.items():
        config.addinivalue_line("markers", f"{name}: {why}")
    config.addinivalue_line("markers", "timed: measures what a busy machine is late with; tried up to three times more")
    config.addinivalue_line("markers", "pages: runs the commands of a page, which mostly wait; begins with the first")
    config.addinivalue_line("markers", "flaky: tried again, where pytest-rerunfailures is installed")
    config.addinivalue_line("markers", "program(*names): needs these programs on the machine")
    known = {*NEEDS, PROGRAMS}
    if unknown := required() - known:
        raise pytest.UsageError(f"THALWEG_REQUIRE names {sorted(unknown)}; it may name {sorted(known)}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timed"):
            item.add_marker(pytest.mark.flaky(reruns=3))
    if hasattr(config, "workerinput"):  # this is one of several processes
        scopes = {item: scope_of(config, item.nodeid) for item in items}
        tests = Counter(scopes.values())
        rank = {scope: (FIRST.index(scope) if scope in FIRST else len(FIRST), -tests[scope]) for scope in tests}
        items.sort(key=lambda item: rank[scopes[item]])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Share the tests out among several processes: by the need of a test, or else by its file."""
    from xdist.scheduler import LoadScopeScheduling

    class ByNeed(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(config, nodeid)

    config.option.loadscopereorder = False  # in the order of collection
    return ByNeed(config, log)


def scope_of(config: pytest.Config, nodeid: str) -> str:
    """Return the scope of a test, whose tests share a process: the group of a mark of the test or file, or the file."""
    file, _, test = nodeid.partition("::")
    marks = marks_in(config.rootpath / file)
    mine = marks[""] | marks.get(test.partition("[")[0], frozenset())
    return next((GROUPS[mark] for mark in GROUPS if mark in mine), file)


@cache
def marks_in(file: Path) -> dict[str, frozenset[str]]:
    """Return the marks of a file's tests by name, and of the whole file, from the text. The scheduler has no tests."""

    def named(parts: Iterable[ast.AST]) -> frozenset[str]:
        return frozenset(name for part in parts for name in re.findall(r"\bmark\.(\w+)", ast.unparse(part)))

    body = ast.parse(file.read_text(encoding="utf-8")).body
    whole = [
        node.value for node in body if isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node.targets[0])
    ]
    tests = {node.name: named(node.decorator_list) for node in body if isinstance(node, ast.FunctionDef)}
    return {**tests, "": named(whole)}


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Yield a temporary folder for sockets. Their paths have at most 107 bytes, and ``tmp_path`` is too long."""
    with tempfile.TemporaryDirectory(prefix="thalweg-") as name:
        yield Path(name)


@pytest.fixture
def runtime_folder(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which testbeds that stay are listed, while the test runs."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short_folder))
    return short_folder


@cache
def missing(need: str) -> str:
    """Return why this machine lacks a need of tests. Empty if the machine has it."""
    if need == "spark":
        from thalweg.experiments.records.spark import find_java

        try:
            find_java()
        except CapabilityError as error:
            return str(error)
        return ""
    capability: Capability = getattr(_probed(), need)
    return "" if capability.works else capability.detail


@cache
def _probed() -> Capabilities:
    return probe()


@pytest.fixture(scope="session")
def docker_image() -> Iterator[str]:
    """Yield the name of an image with this code: the default image, or else an image built for the tests."""
    from thalweg.emulation.containers import engine as docker_engine
    from thalweg.emulation.containers import image as docker_image

    docker, client = docker_engine.sdk()
    try:
        docker_image.check_code(client, docker_image.default_image())
        yield docker_image.default_image()
    except (docker.errors.ImageNotFound, UsageError):
        name = docker_image.build("thalweg:tests").image
        yield name
        client.images.remove(name)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    yield
    last = getattr(sys, "last_traceback", None)
    if last is not None:  # the traceback is kept until the next test is over, with all objects of its frames
        traceback.clear_frames(last)
        for frame, _ in traceback.walk_tb(last):
            frame.f_locals  # noqa: B018  (the copy of the locals goes too)
    left: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda args: left.append(f"{args.exc_value} ({args.object!r})"))
        item.funcargs.clear()
        if nextitem is not None and nextitem.path == item.path and last is None:
            gc.collect(1)
        else:
            gc.collect()
            gc.freeze()  # modules and objects of the session: collections stay short
    if left and last is None:
        pytest.fail("left unclosed, or worse: " + "; ".join(left), pytrace=False)


def pytest_sessionfinish() -> None:
    gc.unfreeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for need in NEEDS:
        if item.get_closest_marker(need) is not None:
            skip_or_fail(need, missing(need))
    programs = {name for mark in item.iter_markers("program") for name in mark.args}
    absent = [f"{name} ({package_of(name)})" for name in sorted(programs) if shutil.which(name) is None]
    skip_or_fail(PROGRAMS, f"needs programs that are not in PATH: {', '.join(absent)}" if absent else "")


@cache
def package_of(program: str) -> str:
    """Return the package of a program, from .ci/packages."""
    rows = [line.split() for line in (Path(__file__).parents[1] / ".ci/packages").read_text().splitlines()]
    return next((f"apt-get install {row[2]}" for row in rows if row[1:2] == [program]), "no package is known")


def skip_or_fail(need: str, why: str) -> None:
    """Skip the test if there is a reason, or fail it if THALWEG_REQUIRE names the need."""
    if why and need in required():
        pytest.fail(f"THALWEG_REQUIRE names {need!r}, but: {why}", pytrace=False)
    elif why:
        pytest.skip(why)
