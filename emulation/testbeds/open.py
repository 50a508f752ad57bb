"""Choice of a testbed by the name of its backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg.emulation.containers.limits import Containers
from thalweg.emulation.kernel.folders import read_private
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.middleware.errors import UsageError
from thalweg.middleware.platform import check_linux

NETWORK = ("subnet", "layer", "networks", "ipv6", "control_band")
OPTIONS = {
    "netns": {*NETWORK, "private"},
    "loopback": set[str](),
    "docker": {*NETWORK, "private", *Containers.__struct_fields__},
}

NEEDS = {
    "netns": "network namespaces need",
    "loopback": "the loopback testbed needs",
    "docker": "testbeds of containers need",
}


def open_testbed(backend: str, hosts: Sequence[str], *, run_id: str | None = None, **options: Any) -> Testbed:
    """Return a testbed, not yet up, by its backend's name. ``OPTIONS`` has the options of every backend.

    Raises UsageError for an unknown backend or option, CapabilityError on systems other than Linux.
    """
    if backend not in OPTIONS:
        raise UsageError(f"unknown testbed {backend!r}; there are {', '.join(OPTIONS)}")
    known = OPTIONS[backend]
    for option in options.keys() - known:
        raise UsageError(f"the {backend} testbed has no option {option!r}; it has {sorted(known) or 'none'}")
    check_linux(NEEDS[backend])
    if backend == "loopback":
        from thalweg.emulation.testbeds.loopback import LoopbackTestbed

        return LoopbackTestbed(hosts, run_id=run_id)
    if backend == "netns":
        from thalweg.emulation.testbeds.netns import NetnsTestbed

        return NetnsTestbed(hosts, run_id=run_id, **options)
    from thalweg.emulation.testbeds.docker import DockerTestbed

    read_private(options.pop("private", ()))  # checked only: a container has its own copy of every folder
    network = {name: options.pop(name) for name in NETWORK if name in options}
    return DockerTestbed(hosts, run_id=run_id, containers=Containers(**options), **network)
