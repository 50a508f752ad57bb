"""A Python process whose Thalweg code sees the standard library of another operating system.

Python imports this module at its start from the folder that ``systems.environment`` puts on ``PYTHONPATH``. Child
processes inherit it. ``THALWEG_EMULATE`` holds the system, and for each module of the standard library the names that
the system lacks.

Shown: Thalweg's modules import only those modules and names that typeshed lists for the system. ``sys.platform``,
``os.name`` and ``platform.system()`` have the system's values. ``pyroute2`` cannot be imported, and ``/proc`` and
``/sys`` cannot be opened. On Windows, descriptors of sockets and of files are apart: ``os.read`` takes no socket,
``select`` takes no pipe. Files have no modes, processes no signals, and ``ctypes.CDLL(None)`` fails.

Not shown: paths, file locks, sockets and process ends as the system's own kernel and C library do them, and whether
the wheels of the dependencies work there. Other packages see Linux.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import stat
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

DARWIN, WINDOWS = "darwin", "win32"
SYSTEMS = {DARWIN: "Darwin", WINDOWS: "Windows"}
OF_LINUX = frozenset(
    {"mallopt", "malloc_trim", "prctl", "unshare", "setns", "mount", "umount2", "sethostname", "syscall"}
)
ONLY_ON_LINUX = ("pyroute2",)
real_import = builtins.__import__


def install(system: str, missing: dict[str, list[str]], absent: list[str]) -> None:
    """Have Thalweg's modules see ``system``: without the modules ``absent``, and without the names ``missing``."""
    seen: dict[str, Any] = {name: without(name, names) for name, names in missing.items()}
    seen["sys"] = Forwarded(sys, platform=system)
    seen["platform"] = Forwarded(importlib.import_module("platform"), system=lambda: SYSTEMS[system])
    seen["ctypes"] = Forwarded(importlib.import_module("ctypes"), CDLL=libraries_of(system))
    if system == WINDOWS:
        seen["msvcrt"] = locks_of_windows()
        seen["subprocess"] = Forwarded(importlib.import_module("subprocess"), **processes_of_windows())
        seen["select"].select = only_of_sockets(seen["select"].select)
        seen["selectors"].SelectSelector = seen["selectors"].DefaultSelector = selector_of_windows()
        files_of_windows(seen["os"])
        seen["signal"].set_wakeup_fd = wake_by_any_pipe(seen["signal"].set_wakeup_fd)
    else:
        seen["selectors"].DefaultSelector = seen["selectors"].PollSelector  # in place of KqueueSelector
    refused = {*absent, *ONLY_ON_LINUX}

    def import_as_there(
        name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> ModuleType:
        importer = str((globals or {}).get("__package__") or (globals or {}).get("__name__") or "")
        if level == 0 and importer.partition(".")[0] == "thalweg":
            top = name.partition(".")[0]
            if top in refused:
                raise ModuleNotFoundError(f"No module named {top!r}", name=top)
            if top in seen and (top == name or not fromlist):
                return seen[top]  # type: ignore[no-any-return]
        return real_import(name, globals, locals, fromlist, level)

    builtins.__import__ = import_as_there
    sys.addaudithook(refuse_proc)


class Forwarded:
    """A module with some names replaced. Other names are read from the module and set in it."""

    def __init__(self, module: ModuleType, **replaced: Any) -> None:
        self.__dict__.update(_module=module, **replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)


def without(name: str, names: list[str]) -> ModuleType:
    """Return a copy of a module of the standard library that lacks these names."""
    module = importlib.import_module(name)
    copy = ModuleType(name)
    copy.__dict__.update({key: value for key, value in vars(module).items() if key not in names})
    return copy


def refuse_proc(event: str, arguments: tuple[Any, ...]) -> None:
    """Raise FileNotFoundError where Thalweg's code opens a file of ``/proc`` or ``/sys``; psutil may."""
    if event != "open" or not str(arguments[0]).startswith(("/proc/", "/sys/")):
        return
    frame: Any = sys._getframe()
    while frame is not None:
        opener = str(frame.f_globals.get("__name__")).partition(".")[0]
        if opener == "psutil":
            return
        if opener == "thalweg":
            raise FileNotFoundError(2, "No such file or directory", str(arguments[0]))
        frame = frame.f_back


def libraries_of(system: str) -> Any:
    """Return ``ctypes.CDLL`` without the functions of Linux's C library; on Windows, CDLL(None) is a TypeError."""
    real = importlib.import_module("ctypes").CDLL

    class Library:
        def __init__(self, name: str | None, *more: Any, **options: Any) -> None:
            if name is None and system == WINDOWS:
                raise TypeError("bad argument type for built-in operation")
            self.__dict__["_library"] = real(name, *more, **options)

        def __getattr__(self, name: str) -> Any:
            if name in OF_LINUX:
                raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
            return getattr(self._library, name)

    return Library


# --- Windows ----------------------------------------------------------------------------------------


def is_kind(descriptor: Any, *tests: Any) -> bool:
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    try:
        return any(test(os.fstat(number).st_mode) for test in tests)
    except OSError:
        return False


def only_of_sockets(function: Any) -> Any:
    """Return ``select.select`` that raises the OSError of Windows for files and pipes."""

    def select(reading: Any, writing: Any, failing: Any, *more: Any) -> Any:
        for descriptor in (*reading, *writing, *failing):
            refuse_files(descriptor)
        return function(reading, writing, failing, *more)

    return select


def refuse_files(descriptor: Any) -> None:
    """ZeroMQ's descriptors are sockets on Windows, and neither files nor pipes on Linux."""
    if is_kind(descriptor, stat.S_ISFIFO, stat.S_ISREG, stat.S_ISCHR, stat.S_ISDIR):
        raise OSError(10038, "An operation was attempted on something that is not a socket")


def selector_of_windows() -> Any:
    """Return ``selectors.SelectSelector`` for sockets alone."""
    real: Any = importlib.import_module("selectors").SelectSelector

    class SelectSelector(real):  # type: ignore[misc]
        def register(self, descriptor: Any, events: int, data: Any = None) -> Any:
            refuse_files(descriptor)
            return super().register(descriptor, events, data)

    return SelectSelector


def files_of_windows(module: ModuleType) -> None:
    """Have ``os`` open files with Windows' flags and without modes, and read and write no sockets."""
    module.__dict__.update(name="nt", O_BINARY=0, O_NOINHERIT=0)
    real_open = os.open

    def open_file(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        assert dir_fd is None, "Windows has no dir_fd"
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        made = not os.path.exists(path)
        descriptor = real_open(path, flags, mode)
        if made:
            os.fchmod(descriptor, 0o666)
        return descriptor

    def of_files(function: Any) -> Any:
        def call(descriptor: int, *more: Any) -> Any:
            if is_kind(descriptor, stat.S_ISSOCK):
                raise OSError(9, "Bad file descriptor")
            return function(descriptor, *more)

        return call

    module.__dict__.update(open=open_file, read=of_files(os.read), write=of_files(os.write), close=of_files(os.close))


def wake_by_any_pipe(function: Any) -> Any:
    """Return ``signal.set_wakeup_fd`` that takes a pipe which blocks: POSIX refuses it, Windows does not."""

    def set_wakeup_fd(descriptor: int, **options: Any) -> int:
        os.set_blocking(descriptor, False)
        return function(descriptor, **options)  # type: ignore[no-any-return]

    return set_wakeup_fd


def processes_of_windows() -> dict[str, Any]:
    """Return what ``subprocess`` has otherwise on Windows: its constants, and ``Popen`` without signals."""
    subprocess = importlib.import_module("subprocess")
    signal = importlib.import_module("signal")

    class Popen(subprocess.Popen):  # type: ignore[misc,name-defined]
        def __init__(self, *words: Any, creationflags: int = 0, **options: Any) -> None:
            if options.pop("preexec_fn", None) is not None:
                raise ValueError("preexec_fn is not supported on Windows platforms")
            if options.pop("pass_fds", ()):
                raise ValueError("pass_fds not supported on Windows.")
            options.pop("start_new_session", False)  # without effect there
            options.pop("process_group", None)
            super().__init__(*words, start_new_session=bool(creationflags), **options)

        def send_signal(self, number: int) -> None:
            if number != signal.SIGTERM:
                raise ValueError(f"Unsupported signal: {number}")
            self.terminate()

        def terminate(self) -> None:
            super().send_signal(signal.SIGKILL)  # TerminateProcess

        kill = terminate

    return {"Popen": Popen, "CREATE_NEW_PROCESS_GROUP": 0x200}


def locks_of_windows() -> SimpleNamespace:
    """Return ``msvcrt`` with its locks: one byte at the descriptor's position, refused at once if another has it."""
    fcntl = importlib.import_module("fcntl")

    def locking(descriptor: int, how: int, count: int) -> None:
        assert (how, count) == (2, 1)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PermissionError(13, "Permission denied") from None

    return SimpleNamespace(locking=locking, LK_NBLCK=2)


if "THALWEG_EMULATE" in os.environ:
    install(**json.loads(os.environ["THALWEG_EMULATE"]))
