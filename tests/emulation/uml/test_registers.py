"""Library that is preloaded into a kernel that knows fewer registers than the processor has."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fake_apt import fake_apt

from thalweg.emulation.uml import registers
from thalweg.emulation.uml.kernel import Kernel
from thalweg.middleware.errors import CapabilityError

needs_compiler = pytest.mark.skipif(not (shutil.which("cc") or shutil.which("gcc")), reason="needs a C compiler")

# As such a kernel does: it restores the beginning of the state of a process that it traces, here the x87 and
# SSE registers and the header behind them, with the first bytes of XMM0 changed.
RESTORES_A_PART = """
import ctypes, os, signal, sys
class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
TRACEME, KILL, GETREGSET, SETREGSET, XSTATE = 0, 8, 0x4204, 0x4205, 0x202
child = os.fork()
if child == 0:
    libc.ptrace(TRACEME, 0, None, None)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
os.waitpid(child, 0)
def state(request, buffer):
    part = Iovec(ctypes.addressof(buffer), len(buffer))
    status = libc.ptrace(request, child, XSTATE, ctypes.addressof(part))
    return status and ctypes.get_errno()
part, whole = ctypes.create_string_buffer(576), ctypes.create_string_buffer(1 << 15)
assert state(GETREGSET, part) == 0 and state(GETREGSET, whole) == 0
ctypes.memset(ctypes.addressof(part) + 512, 3, 1)  # x87 and SSE are in use
ctypes.memmove(ctypes.addressof(part) + 160, b"thalweg!", 8)
status = state(SETREGSET, part)
assert state(GETREGSET, whole) == 0
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
print(status, whole.raw[160:168] == b"thalweg!")
"""


def restore_a_part(variables: dict[str, str], passed: tuple[int, ...] = ()) -> str:
    words = [sys.executable, "-I", "-c", RESTORES_A_PART]
    done = subprocess.run(words, env=variables, pass_fds=passed, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@needs_compiler
def test_a_part_of_the_registers_is_restored_only_with_the_preloaded_library() -> None:
    if sys.platform != "linux" or os.uname().machine != "x86_64" or "avx" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("a part of the registers is all of them here")
    assert restore_a_part({}) == f"{errno.EFAULT} False"
    loaded = registers.in_memory(registers.compiled())
    try:
        assert restore_a_part({"LD_PRELOAD": f"/proc/self/fd/{loaded}"}, (loaded,)) == "0 True"
    finally:
        os.close(loaded)


@needs_compiler
@pytest.mark.uml
def test_a_kernel_starts_with_the_preloaded_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registers, "library", registers.compiled)
    with Kernel() as kernel:
        assert kernel.start(["true"]).wait() == 0


def test_processors_with_too_many_registers_are_known_by_the_flags() -> None:
    assert registers.too_many("processor\t: 0\nflags\t\t: fpu avx512f amx_tile amx_int8\n")
    assert not registers.too_many("processor\t: 0\nflags\t\t: fpu avx512f amx_bf16\n")
    assert not registers.too_many("processor\t: 0\nbugs\t\t: amx_tile\n")


def test_a_missing_compiler_is_reported_with_the_packages_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CapabilityError, match=r"needs a C compiler; install one$"):
        registers.compiled()
    fake_apt(tmp_path, real=["gcc", "libc6-dev"])
    with pytest.raises(CapabilityError, match=r"needs a C compiler; install one .*apt-get install gcc libc6-dev`"):
        registers.compiled()
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'registers.c:11: fatal error: dlfcn.h: No such file' >&2; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(
        CapabilityError, match=r"could not be made \(registers.c:11: fatal error: dlfcn.h: No such file\)"
    ):
        registers.compiled()
