"""Own folders of hosts, and the mount namespaces that contain these folders.

Hosts share the file systems of the machine. An own folder of a host is a tmpfs in a mount namespace. The namespace ends
with the last process of the host and with this process, which holds the namespace by a descriptor alone.

- R1: If anything can be mounted, every host has its own ``/run/netns``. A name of ``ip netns add`` stays on its host.
- R2: No file is written and no folder is made in the machine's folders for this purpose.
- R3: A folder that processes on hosts need is never a host's own.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from thalweg.emulation.kernel import calls
from thalweg.middleware.errors import UsageError

NETNS = "/run/netns"  # of ip-netns(8), also reached as /var/run/netns
SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys", "/usr")
SHARED_MEMORY = "/dev/shm"  # the only folder in a system folder that may be a host's own
LINKS = {"/var": ("run", "lock")}  # links that stay in an own folder: programs reach further folders by these links
VARIABLES = ("TMPDIR", "TEMP", "TMP", "XDG_RUNTIME_DIR")  # name folders that programs expect
OTHER_DESCRIPTORS = 200  # of a supervisor, besides the descriptors of its hosts

Folders = Sequence[str | os.PathLike[str]]

# --- choice of own folders ----------------------------------------------------------------------------


def read_private(given: Folders) -> tuple[str, ...]:
    """Return folders as absolute paths, ``run`` as ``/run``. Nothing is read from the disk.

    Raise UsageError if a value is not the path of a folder, or if no process runs without the folder (R3).
    """
    if isinstance(given, str | bytes):
        raise UsageError(f"private is a list of folders, not the text {given!r}; write {str(given).split(',')}")
    paths = dict[str, None]()
    for name in [os.fspath(folder) for folder in given]:
        path = f"/{name.strip('/')}"
        if not name or not name.isprintable() or any(part in ("", ".", "..") for part in path[1:].split("/")):
            if name and not name.strip("/"):
                raise UsageError("/ has all folders of the machine; name some of them, such as run or tmp")
            raise UsageError(f"{name!r} is no folder that a host can have of its own; write run, tmp or /var/lib/NAME")
        _refuse_system(path)
        paths[path] = None
    return tuple(paths)


def usable_private(given: Folders) -> tuple[str, ...]:
    """Return folders as absolute paths without links.

    Raise UsageError as ``read_private`` does. Also raise it for a folder that this machine lacks, a folder with files
    that processes on hosts need (R3), and a folder inside another folder of the list.
    """
    paths = dict[str, None]()
    for path in read_private(given):
        real = os.path.realpath(path)
        _refuse_system(real)
        if not os.path.isdir(real):
            raise UsageError(f"{path} cannot be a host's own, as this machine has no such folder; make it first")
        for needed, label in _needed():
            if within(needed, real):
                raise UsageError(f"{path} cannot be a host's own, as it has {label} ({needed}); leave it out")
        paths[real] = None
    for path in paths:
        if outer := next((other for other in paths if other != path and within(path, other)), None):
            raise UsageError(f"{path} is in {outer}, which is a host's own already; leave it out")
    return tuple(paths)


def within(path: str, folder: str) -> bool:
    """Return whether ``path`` is ``folder`` or lies in it. Both are absolute and without links."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _refuse_system(path: str) -> None:
    if path == "/":
        raise UsageError("/ has all folders of the machine; name some of them, such as run or tmp")
    if within(path, SHARED_MEMORY):
        return
    if system := next((folder for folder in SYSTEM if within(path, folder)), None):
        raise UsageError(f"{path} cannot be a host's own, as every program needs {system}; leave it out")


def _needed() -> Iterator[tuple[str, str]]:
    """Yield the files that processes on hosts need: a path without links, and a name of it for messages."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from thalweg.middleware.platform.python import PYTHON  # not at the top: a supervisor does not need this module

    for path in (PYTHON, sys.prefix, sys.base_prefix):
        yield os.path.realpath(path), "the interpreter"
    for path in (package, *(entry.path for entry in os.scandir(package) if entry.is_dir())):  # links in a checkout
        yield os.path.realpath(path), "Thalweg"
    with suppress(FileNotFoundError):  # the working directory has been removed
        yield os.path.realpath(os.getcwd()), "the folder from which this is run"


# --- mount namespaces ---------------------------------------------------------------------------------


def own_mounts() -> None:
    """Move this process into a new mount namespace. Mounts there do not reach the machine.

    Raise OSError where mounting is not allowed.
    """
    calls.unshare(calls.NEWNS)
    calls.mount("none", "/", calls.REC | calls.PRIVATE)


def bind(source: str, target: str) -> None:
    """Mount a file or folder, with the mounts in it, over a target. Raise OSError where mounting is not allowed."""
    calls.mount(source, target, calls.BIND | calls.REC)


def _lay_empty(folder: str) -> None:
    """Mount an empty folder over a folder, with the same mode, and the same owner if this process may set the owner."""
    status = os.stat(folder)
    calls.mount("tmpfs", folder, calls.NOSUID | calls.NODEV, f"mode={stat.S_IMODE(status.st_mode):o}")
    with suppress(OSError):  # the user namespace does not map the owner
        os.chown(folder, status.st_uid, status.st_gid)


def _lay_copy(folder: str) -> None:
    """Mount an empty folder over a folder, and bind the old entries there. New names stay in the upper folder (R2)."""
    beneath = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        source = f"/proc/self/fd/{beneath}"
        _lay_empty(folder)
        for entry in [*os.scandir(source)]:
            target = os.path.join(folder, entry.name)
            with suppress(OSError):  # the entry was removed meanwhile, or is a mount that cannot be bound
                if entry.is_symlink():
                    os.symlink(os.readlink(entry.path), target)
                    continue
                if entry.is_dir():
                    os.mkdir(target)
                else:
                    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                bind(entry.path, target)
    finally:
        os.close(beneath)


class _Place(NamedTuple):
    """Mount namespace, and the root that this process has there. In a chroot this is not the namespace's own root."""

    mounts_fd: int
    root_fd: int

    @classmethod
    def here(cls) -> _Place:
        """Return the current mount namespace and root of this process."""
        return cls(
            os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC), os.open("/", os.O_PATH | os.O_CLOEXEC)
        )

    def enter(self) -> None:
        calls.unshare(calls.FS)  # no mount namespace is entered while a library's thread shares this thread's root
        calls.enter(self.mounts_fd, calls.NEWNS)
        os.fchdir(self.root_fd)
        os.chroot(".")


class Places:
    """Mount namespaces of a testbed's hosts. A host's namespace is made when the host's first process starts."""

    def __init__(self, hosts: Sequence[str], private: Sequence[str] = ()) -> None:
        """Prepare the namespaces. Call this in an own mount namespace. ``private``: result of ``usable_private``.

        Raise OSError if a mount namespace cannot be entered, or the ``private`` folders cannot be made.
        """
        self._private, self._of = tuple(private), dict[str, _Place]()
        self._names_apart = False
        if not any(within(NETNS, folder) for folder in private):
            with suppress(OSError):  # if nothing can be mounted, `ip netns add` fails as well
                if not os.path.isdir(NETNS):
                    _lay_copy(os.path.dirname(NETNS))
                    os.mkdir(NETNS, 0o755)
                self._names_apart = True
        _make_room(len(hosts))
        self._own, self._cwd_fd = _Place.here(), os.open(".", os.O_PATH | os.O_CLOEXEC)
        self._return()  # an error is to appear before a process starts
        if private:
            with self.inside(hosts[0]):
                pass

    @contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """Give processes started in this context the folders of ``host``. Raise OSError if they cannot be made."""
        try:
            if host in self._of:
                self._of[host].enter()
            else:
                self._of[host] = self._make()
            yield
        finally:
            self._return()

    def _return(self) -> None:
        self._own.enter()
        os.fchdir(self._cwd_fd)

    def _make(self) -> _Place:
        """Make a mount namespace and stay in it. If hosts have no own folders, return the common namespace instead."""
        if not self._private and not self._names_apart:
            return self._own
        calls.unshare(calls.NEWNS)
        for folder in self._private:
            _lay_private(folder)
        if self._names_apart:
            _lay_empty(NETNS)
        return _Place.here()


def _lay_private(folder: str) -> None:
    """Mount an empty folder over a folder of the machine. Keep the ``LINKS``, make the folders of ``VARIABLES``."""
    links = {name: os.readlink(path) for name in LINKS.get(folder, ()) if os.path.islink(path := f"{folder}/{name}")}
    _lay_empty(folder)
    for name, target in links.items():
        os.symlink(target, f"{folder}/{name}")
    for variable in VARIABLES:
        path = os.path.normpath(os.environ.get(variable, "/"))
        if within(path, folder):
            os.makedirs(path, mode=0o700, exist_ok=True)


def _make_room(hosts: int) -> None:
    """Raise the limit of open descriptors if it is too low for this number of hosts. A host takes four descriptors."""
    import resource  # not at the top: systems without this module compare paths, too

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < (wanted := 4 * hosts + OTHER_DESCRIPTORS):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard < 0 else min(wanted, hard), hard))
