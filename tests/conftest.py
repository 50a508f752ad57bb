"""What a test needs of the machine, by marker: it is skipped where that is missing, with the reason.

``THALWEG_REQUIRE=netns,spark`` makes such a skip a failure; continuous integration sets it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache

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


def required() -> set[str]:
    return {name.strip() for name in os.environ.get("THALWEG_REQUIRE", "").split(",") if name.strip()}


def pytest_configure(config: pytest.Config) -> None:
    for name, why in NEEDS.items():
        config.addinivalue_line("markers", f"{name}: {why}")
    unknown = required() - NEEDS.keys()
    if unknown:
        raise pytest.UsageError(f"THALWEG_REQUIRE names {sorted(unknown)}; it may name {sorted(NEEDS)}")


@cache
def missing(need: str) -> str:
    """Why this machine cannot run a test that needs this; empty when it can."""
    if need == "spark":
        from thalweg.experiments.spark import find_java

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
