"""The option ``--kernel`` of ``run`` and ``testbed``: on which kernel a netns testbed runs."""

from __future__ import annotations

from thalweg.emulation.uml.files import inside_uml
from thalweg.middleware.errors import UsageError


def runs_elsewhere(kernel: str, testbed: str) -> bool:
    """Whether this command line is to be run again, inside a User-Mode Linux kernel (``uml.run_thalweg_inside``).

    Raises UsageError for a kernel that does not go with ``testbed``.
    """
    if kernel == "uml" and testbed != "netns":
        raise UsageError(f"--kernel uml goes with netns, and this testbed is {testbed}; leave one of them out")
    return kernel == "uml" and not inside_uml()
