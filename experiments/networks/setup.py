"""Options of a testbed for a network over time, and the start of its replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from thalweg.emulation.containers.limits import CPUS, MEMORY_BYTES
from thalweg.emulation.scenarios.timeline import Timeline, apply
from thalweg.emulation.testbeds.open import open_testbed
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.experiments.names import TESTBEDS
from thalweg.middleware.errors import UsageError

DETACHABLE = ("netns", "docker")


def backend_names() -> dict[str, str]:
    """Return the backends of testbeds that stay up, with a description of their hosts."""
    return {name: TESTBEDS[name] for name in DETACHABLE}


class ContainerLimits(msgspec.Struct, frozen=True):
    """Options of docker alone: the image, what a host may use, and whether hosts run nothing (``idle``).

    The processors and memory are for hosts without values in the scenario.
    """

    image: str | None = None
    cpus: float = CPUS
    memory_mib: int = MEMORY_BYTES >> 20
    idle: bool = False


def testbed_options(
    timeline: Timeline, backend: str, limits: ContainerLimits | None = None, *, control_band: bool = False
) -> dict[str, Any]:
    """Return the options of a testbed for this network. A scenario file's own values win over ``limits``.

    ``control_band``: whether control messages go first on links, if the network does not set it.
    """
    options: dict[str, Any] = {"layer": timeline.layer, "ipv6": timeline.ipv6}
    options["control_band"] = control_band if timeline.control_band is None else timeline.control_band
    if timeline.private:
        options["private"] = timeline.private
    if timeline.further:
        options["networks"] = timeline.further
    if backend == "docker":
        most = limits or ContainerLimits()
        memory_bytes = most.memory_mib << 20
        options["cpus"] = {name: host.cpus or most.cpus for name, host in timeline.hosts.items()}
        options["memory_bytes"] = {name: host.memory_bytes or memory_bytes for name, host in timeline.hosts.items()}
    return options


def make_testbed(
    timeline: Timeline, backend: str, subnet: str, limits: ContainerLimits, name: str | None = None
) -> Testbed:
    """Return a testbed that is not up yet. ``name``: its id. Raise UsageError for a backend that has no links."""
    if backend not in DETACHABLE:
        raise UsageError(f"testbed {backend!r} has no links and cannot be kept up; there are {', '.join(DETACHABLE)}")
    options = {"subnet": subnet, **testbed_options(timeline, backend, limits)}
    if backend == "docker":
        options |= {"image": limits.image, "serve": not limits.idle}
    return open_testbed(backend, list(timeline.hosts), run_id=name, **options)


def prepare(
    timeline: Timeline, testbed: Testbed, *, begin: bool = True, tell: Callable[[int], None] | None = None
) -> None:
    """Set the links of a testbed that is up. Traces and events begin unless ``begin`` is False."""
    if not timeline.links:
        return
    replay = apply(timeline, testbed, tell)
    if replay is not None and begin:
        replay.start()
