"""Library for processors with more registers than User-Mode Linux kernels support, loaded before such a kernel.

The kernel's processes do not use AMX. A kernel such as Debian's 6.1 saves only a part of a process's registers. On a
processor with AMX the host refuses to restore the part alone, and the kernel's first process dies at its start
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
    """Return whether a processor has registers that kernels do not support. ``cpuinfo``: its ``/proc/cpuinfo``."""
    flags = next((line for line in cpuinfo.splitlines() if line.startswith("flags")), "")
    return "amx_tile" in flags.split()


@cache
def library() -> bytes:
    """Return the shared library to load before the kernel. Empty: the processor needs none.

    Raises CapabilityError if the library cannot be compiled.
    """
    return compiled() if too_many(Path("/proc/cpuinfo").read_text()) else b""


def compiled() -> bytes:
    """Compile ``registers.c`` and return the shared library. Raises CapabilityError with the reason of a failure."""
    why = "this processor's AMX registers are more than a User-Mode Linux kernel knows, and the library that helps it"
    compiler = find_program("cc") or find_program("gcc")
    if compiler is None:
        raise CapabilityError(f"{why} needs a C compiler; {install_line('one', COMPILER)}")
    with tempfile.TemporaryDirectory(prefix="thalweg-") as folder:
        target = Path(folder, "registers.so")
        words = (compiler, "-O2", "-shared", "-fPIC", "-o", target, SOURCE, "-ldl")
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            message = next((line for line in done.stderr.splitlines() if "error" in line), f"status {done.returncode}")
            complete = install_line("the compiler with its headers", COMPILER)
            raise CapabilityError(f"{why} could not be made ({message.strip()}); {complete}")
        return target.read_bytes()


def in_memory(image: bytes) -> int:
    """Return a descriptor of an unnamed file with these bytes."""
    descriptor = os.memfd_create("registers", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(image)
    return descriptor
