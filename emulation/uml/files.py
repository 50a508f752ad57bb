"""Search for a User-Mode Linux kernel on this machine: program, modules, and room for the memory."""

from __future__ import annotations

import os
import platform
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from thalweg.middleware.errors import CapabilityError
from thalweg.middleware.platform import check_linux
from thalweg.middleware.platform.packages import install_line
from thalweg.middleware.platform.python import find_program

BINARIES = ("linux.uml", "linux")  # of Debian's package user-mode-linux, and of a kernel built by hand
MODULE_FOLDERS = ("/usr/lib/uml/modules", "/lib/modules", "/usr/lib/modules")
MODULES = ("bridge", "veth", "sch_htb", "cls_u32", "sch_netem")  # for shaped links with delays
MORE_MODULES = (
    "ipv6", "ifb", "sch_ingress", "act_mirred", "sch_fq_codel", "sch_codel", "sch_pie", "sch_red", "cls_bpf",
)  # fmt: skip
"""Modules for IPv6 addresses, rates of hosts, managed queues and MTUs. A kernel may lack them."""
NEEDED = "a User-Mode Linux kernel needs"

MEMORY_BYTES = (512 << 20, 2 << 30)  # minimum, maximum. The host provides only the part in use


class Files(NamedTuple):
    """Kernel that can be booted: program, version, and needed modules in the order of loading."""

    binary: str
    version: str
    modules: tuple[str, ...]


@cache
def inside_uml() -> bool:
    """Return whether this process runs in a User-Mode Linux kernel."""
    try:
        return "User Mode Linux" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


def find_kernel() -> Files:
    """Return the kernel on this machine, with modules. Raises CapabilityError, which says how to install a kernel."""
    check_linux(NEEDED)
    if platform.machine() != "x86_64":
        raise CapabilityError(
            f"User-Mode Linux needs Linux on x86-64, this is Linux on {platform.machine()}; use --kernel host"
        )
    binary = next((path for name in BINARIES if (path := find_program(name))), None)
    if binary is None:
        raise CapabilityError(f"no User-Mode Linux kernel is installed; {_install('one')}")
    try:
        completed = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise CapabilityError(f"{binary} is no kernel that runs here ({error}); {_install('one')}") from None
    version = completed.stdout.strip()
    folders = [Path(folder, version) for folder in MODULE_FOLDERS if version]
    folder = next((folder for folder in folders if (folder / "modules.dep").is_file()), None)
    if folder is None:
        raise CapabilityError(
            f"{binary} ({version}) has no modules in {MODULE_FOLDERS[0]}/{version}; {_install('its modules')}"
            " (make modules_install for a kernel of your own)"
        )
    return Files(binary, version, _modules(folder))


def _install(what: str) -> str:
    return install_line(what, "user-mode-linux")


def _modules(folder: Path) -> tuple[str, ...]:
    """Return the files of the modules, each after its dependencies. Raises CapabilityError for a missing module."""
    depends: dict[str, list[str]] = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        path, _, dependencies = line.partition(":")
        depends[path] = dependencies.split()
    files = {Path(path).name.partition(".")[0].replace("-", "_"): path for path in depends}
    builtin_list = folder / "modules.builtin"
    built_in = builtin_list.read_text() if builtin_list.is_file() else ""
    ordered: dict[str, None] = {}

    def add(path: str) -> None:
        for other in depends.get(path, ()):
            add(other)
        ordered[path] = None

    for name in MODULES:
        if name in files:
            add(files[name])
        elif f"/{name}.ko" not in built_in:
            raise CapabilityError(f"the kernel's module {name} is not in {folder}; {_install('all modules')}")
    for name in MORE_MODULES:
        if name in files:
            add(files[name])
    return tuple(str(folder / path) for path in ordered)


def memory_for(free_bytes: int, host_bytes: int) -> int:
    """Return the memory for a kernel, from the free bytes of its file's folder and of the host. 0: too little."""
    least, most = MEMORY_BYTES
    room = min(free_bytes * 9 // 10, host_bytes // 2) >> 20 << 20
    return 0 if room < least else min(room, most)


def find_memory() -> tuple[str, int]:
    """Return the folder for the kernel's memory file, in memory if possible, and the file's size.

    The file is mapped as executable, and some containers forbid that in /dev/shm. Raises CapabilityError if no folder
    has room.
    """
    import psutil  # most testbeds boot no kernel

    host_bytes = psutil.virtual_memory().available
    reasons = []
    for folder in dict.fromkeys(("/dev/shm", tempfile.gettempdir(), "/var/tmp")):
        try:
            room = os.statvfs(folder)
        except OSError:
            continue
        free_bytes = room.f_bavail * room.f_frsize
        if room.f_flag & os.ST_NOEXEC or not os.access(folder, os.W_OK | os.X_OK):
            reasons.append(f"{folder}: nothing there can be executed")
        elif size := memory_for(free_bytes, host_bytes):
            return folder, size
        else:
            reasons.append(f"{folder}: {free_bytes >> 20} MiB free")
    raise CapabilityError(
        f"no room for the memory of a User-Mode Linux kernel, {MEMORY_BYTES[0] >> 20} MiB at least"
        f" ({'; '.join(reasons)}); free some, or set TMPDIR to a folder with room"
    )
