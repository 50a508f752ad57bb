"""Processors that have more registers than User-Mode Linux kernels know: what is loaded before such a kernel.

The kernel's own processes have no use for AMX. But where the processor has it, the host does not take back the part of
a process's registers that a kernel such as Debian's 6.1 saves, and the kernel's first process dies as it starts
(``registers.c``).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from thalweg.middleware.errors import CapabilityError
from thalweg.middleware.platform.packages import install_line
from thalweg.middleware.platform.python import find_program

SOURCE = Path(__file__).with_suffix(".c")
COMPILER = "gcc libc6-dev"  # the packages of a compiler with its headers


def too_many(cpuinfo: str) -> bool:
    """Whether a processor of which ``/proc/cpuinfo`` says that has registers that kernels do not know."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    return "amx_tile" in flags.split()


@cache
def library() -> bytes:
    """The shared library to load before the kernel's own; empty where the processor needs none.

    CapabilityError where it cannot be made.
    """
    return compiled() if too_many(Path("/proc/cpuinfo").read_text()) else b""


def compiled() -> bytes:
    """The shared library of ``registers.c``; CapabilityError says what is missing, or what the compiler said."""
    why = "this processor's AMX registers are more than a User-Mode Linux kernel knows, and the library that helps it"
    compiler = find_program("cc") or find_program("gcc")
    if compiler is None:
        raise CapabilityError(f"{why} needs a C compiler; {install_line('one', COMPILER)}")
    with tempfile.TemporaryDirectory(prefix="thalweg-") as folder:
        made = Path(folder, "registers.so")
        words = (compiler, "-O2", "-shared", "-fPIC", "-o", made, SOURCE, "-ldl")
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = next((line for line in done.stderr.splitlines() if "error" in line), f"status {done.returncode}")
            complete = install_line("the compiler with its headers", COMPILER)
            raise CapabilityError(f"{why} could not be made ({said.strip()}); {complete}")
        return made.read_bytes()


def in_memory(image: bytes) -> int:
    """A descriptor of a file without a name that has these bytes."""
    made = os.memfd_create("registers", os.MFD_CLOEXEC)
    with open(made, "wb", closefd=False) as file:
        file.write(image)
    return made
