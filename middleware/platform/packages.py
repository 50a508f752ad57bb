"""Advice on how to install a program on this system, which names a package only if apt can install it.

Rules:

- R1: apt is asked for an installation candidate. A purely virtual package is known to apt and has none.
- R2: The question has a time limit, and each question is asked once in a process.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from functools import cache

from thalweg.middleware.platform import on_linux
from thalweg.middleware.platform.python import find_program

APT_S = 10.0  # for one question; apt first builds its index, which takes seconds on a busy machine
_CANDIDATE = re.compile(r"\s+Candidate: (?!\(none\))")


def install_line(program: str, *choices: str) -> str:
    """Return the line that tells how to install a program on this system.

    ``program``: the object of "install". ``choices``: names of its package on different systems, the preferred name
    first. A choice may be several packages, as in ``"gcc libc6-dev"``. The line has the command for the first choice
    that apt can install. If there is no such choice, the line names the program alone.
    """
    installable = _installable(choices)
    if packages := _first(choices, installable):
        command = f"apt-get install {packages}"
        if os.geteuid() == 0:
            return f"install {program} with `{command}`"
        sudo = find_program("sudo") is not None
        return f"install {program} with `sudo {command}`" if sudo else f"install {program} as root with `{command}`"
    unknown = " (apt-get finds no package of it; `apt-get update` may help)"
    return f"install {program}{'' if installable is None else unknown}"


def find_package(*choices: str) -> str:
    """Return the first choice whose packages apt can all install; empty without one, and without apt."""
    return _first(choices, _installable(choices))


def _first(choices: Sequence[str], installable: frozenset[str] | None) -> str:
    return next((choice for choice in choices if (installable or frozenset()).issuperset(choice.split())), "")


def _installable(choices: Sequence[str]) -> frozenset[str] | None:
    """Return the packages that apt can install; None without an answer by apt."""
    apt = find_program("apt-cache") if on_linux() else None
    return None if apt is None else _ask(apt, tuple(" ".join(choices).split()))


@cache
def _ask(apt: str, names: Sequence[str]) -> frozenset[str] | None:
    environment = os.environ | {"LC_ALL": "C"}  # "Candidate" is translated otherwise
    try:
        answer = subprocess.run(
            [apt, "policy", *names],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=APT_S,
            env=environment,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = set()
    package = ""
    for line in answer.stdout.splitlines():
        if not line.startswith(" "):
            package = line.rpartition(":")[0]
        elif _CANDIDATE.match(line):  # R1: a purely virtual package has none
            found.add(package)
    return frozenset(found)
