"""What a test needs of the machine, by marker: it is skipped where that is missing, with the reason.

``THALWEG_REQUIRE=netns,spark`` makes such a skip a failure; continuous integration sets it.

Where several processes run tests (``pytest -n``), one of them has all those on real links, one after the other, because
they measure what timers and processors do; and one has whatever needs Spark, so that there is one session. On a shared
machine the processors are gone now and then for longer than a test that is marked ``timed`` allows a link to be late:
it is tried once more, which the summary says, and must then hold.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from thalweg.emulation.capabilities import Capabilities, Capability, probe
from thalweg.middleware.errors import CapabilityError, UsageError

NEEDS = {
    "netns": "needs network namespaces and tc",
    "netem": "needs a kernel with sch_netem",
    "spark": "needs Java and PySpark",
    "docker": "needs a Docker engine",
    "uml": "needs a User-Mode Linux kernel",
}


ON_REAL_LINKS = ("netns", "netem", "docker", "uml")


def required() -> set[str]:
    return {name.strip() for name in os.environ.get("THALWEG_REQUIRE", "").split(",") if name.strip()}


def pytest_configure(config: pytest.Config) -> None:
    for name, why in NEEDS.items():
        config.addinivalue_line("markers", f"{name}: {why}")
    config.addinivalue_line("markers", "timed: measures what a busy machine is late with; tried once more")
    config.addinivalue_line("markers", "flaky: tried again, where pytest-rerunfailures is installed")
    unknown = required() - NEEDS.keys()
    if unknown:
        raise pytest.UsageError(f"THALWEG_REQUIRE names {sorted(unknown)}; it may name {sorted(NEEDS)}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timed"):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Which of several processes has which tests: those of a file stay together, and files that need the same do."""
    from xdist.scheduler import LoadScopeScheduling

    class ByNeed(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(config.rootpath / nodeid.partition("::")[0])

    return ByNeed(config, log)


@cache
def group_of(file: Path) -> str:
    """``links``, ``spark``, or the file itself."""
    text = file.read_text(encoding="utf-8")
    if re.search(rf"mark\.({'|'.join(ON_REAL_LINKS)})\b", text):
        return "links"
    return "spark" if re.search(r"mark\.spark\b", text) else str(file)


@cache
def missing(need: str) -> str:
    """Why this machine cannot run a test that needs this; empty when it can."""
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
    """The image of this state of Thalweg: the one that there is, or one built for these tests."""
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


def pytest_runtest_setup(item: pytest.Item) -> None:
    for need in NEEDS:
        if item.get_closest_marker(need) is None:
            continue
        why = missing(need)
        if why and need in required():
            pytest.fail(f"THALWEG_REQUIRE names {need!r}, but: {why}", pytrace=False)
        elif why:
            pytest.skip(why)
