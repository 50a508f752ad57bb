"""Folders of hosts: which of the machine's a host may have as its own, and the mount namespaces that have them.

Hosts share the file systems of the machine. A folder of a host's own is a tmpfs in a mount namespace that the host's
processes are in. It ends with the last of them and with this process, which holds it by a descriptor alone.

- R1: ``/run/netns`` is a host's own wherever anything can be mounted, so that a name of ``ip netns add`` stays there.
- R2: Nothing is written into the machine's folders for it, and no folder is made there.
- R3: A folder that processes on hosts cannot do without is never a host's own.
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

NETNS = "/run/netns"  # of ip-netns(8), as /var/run/netns
SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sbin", "/sys", "/usr")
SHARED_MEMORY = "/dev/shm"  # the one folder of a system folder that may be a host's own
LINKS = {"/var": ("run", "lock")}  # links that stay in an own folder, as programs name other folders by them
VARIABLES = ("TMPDIR", "TEMP", "TMP", "XDG_RUNTIME_DIR")  # of folders that programs expect to be there
OTHER_DESCRIPTORS = 200  # of a supervisor, besides those of its hosts

Folders = Sequence[str | os.PathLike[str]]

# --- which folders may be a host's own ----------------------------------------------------------------


def read_private(given: Folders) -> tuple[str, ...]:
    """Return folders as absolute paths, ``run`` as ``/run``. Nothing is read from the disk.

    Raises UsageError for what is no folder's path, and for a folder without which no process runs (R3).
    """
    if isinstance(given, str | bytes):
        raise UsageError(f"private is a list of folders, not the text {given!r}; write {str(given).split(',')}")
    found = dict[str, None]()
    for name in [os.fspath(folder) for folder in given]:
        path = f"/{name.strip('/')}"
        if not name or not name.isprintable() or any(part in ("", ".", "..") for part in path[1:].split("/")):
            if name and not name.strip("/"):
                raise UsageError("/ has all folders of the machine; name some of them, such as run or tmp")
            raise UsageError(f"{name!r} is no folder that a host can have of its own; write run, tmp or /var/lib/NAME")
        _refuse_system(path)
        found[path] = None
    return tuple(found)


def usable_private(given: Folders) -> tuple[str, ...]:
    """Return folders as absolute paths without links. Raises UsageError as ``read_private`` does, for a folder that
    this machine lacks, for one that has what processes on hosts need (R3), and for one inside another one.
    """
    found = dict[str, None]()
    for path in read_private(given):
        real = os.path.realpath(path)
        _refuse_system(real)
        if not os.path.isdir(real):
            raise UsageError(f"{path} cannot be a host's own, as this machine has no such folder; make it first")
        for needed, what in _needed():
            if within(needed, real):
                raise UsageError(f"{path} cannot be a host's own, as it has {what} ({needed}); leave it out")
        found[real] = None
    for path in found:
        if outer := next((other for other in found if other != path and within(path, other)), None):
            raise UsageError(f"{path} is in {outer}, which is a host's own already; leave it out")
    return tuple(found)


def within(path: str, folder: str) -> bool:
    """Return whether a path is a folder, or is in it; both absolute and without links."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _refuse_system(path: str) -> None:
    if path == "/":
        raise UsageError("/ has all folders of the machine; name some of them, such as run or tmp")
    if within(path, SHARED_MEMORY):
        return
    if system := next((folder for folder in SYSTEM if within(path, folder)), None):
        raise UsageError(f"{path} cannot be a host's own, as every program needs {system}; leave it out")


def _needed() -> Iterator[tuple[str, str]]:
    """Yield what processes on hosts need of this process's files, as paths without links, and what it is."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from thalweg.middleware.platform.python import PYTHON  # a supervisor does without

    for path in (PYTHON, sys.prefix, sys.base_prefix):
        yield os.path.realpath(path), "the interpreter"
    for path in (package, *(entry.path for entry in os.scandir(package) if entry.is_dir())):  # links in a checkout
        yield os.path.realpath(path), "Thalweg"
    with suppress(FileNotFoundError):  # it has been removed
        yield os.path.realpath(os.getcwd()), "the folder from which this is run"


# --- mount namespaces ---------------------------------------------------------------------------------


def own_mounts() -> None:
    """Move this process into a mount namespace made by it, of which nothing reaches the machine.

    Raises OSError where mounting is not allowed.
    """
    calls.unshare(calls.NEWNS)
    calls.mount("none", "/", calls.REC | calls.PRIVATE)


def bind(source: str, target: str) -> None:
    """Lay a file or a folder, with what is mounted in it, over another. Raises OSError where that is not allowed."""
    calls.mount(source, target, calls.BIND | calls.REC)


def _lay_empty(folder: str) -> None:
    """Lay an empty folder over another, with the same rights and the same owner if this process may give it."""
    found = os.stat(folder)
    calls.mount("tmpfs", folder, calls.NOSUID | calls.NODEV, f"mode={stat.S_IMODE(found.st_mode):o}")
    with suppress(OSError):  # an owner that a user namespace does not map
        os.chown(folder, found.st_uid, found.st_gid)


def _lay_copy(folder: str) -> None:
    """Lay a folder over another that has the same in it, bound, so that new names there stay above (R2)."""
    beneath = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        source = f"/proc/self/fd/{beneath}"
        _lay_empty(folder)
        for entry in [*os.scandir(source)]:
            target = os.path.join(folder, entry.name)
            with suppress(OSError):  # removed meanwhile, or a mount that cannot be bound
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
    """A mount namespace, and the root that this process has in it, which differs from its own in a chroot."""

    mounts_fd: int
    root_fd: int

    @classmethod
    def here(cls) -> _Place:
        """Return the place that this process is in."""
        return cls(
            os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC), os.open("/", os.O_PATH | os.O_CLOEXEC)
        )

    def enter(self) -> None:
        calls.unshare(calls.FS)  # a thread of a library's may share this thread's root, with which no other is entered
        calls.enter(self.mounts_fd, calls.NEWNS)
        os.fchdir(self.root_fd)
        os.chroot(".")


class Places:
    """The mount namespaces of hosts. Each is made when the first process of its host starts."""

    def __init__(self, hosts: Sequence[str], private: Sequence[str] = ()) -> None:
        """To be called in a mount namespace of this process's own. ``private``: as ``usable_private`` returns them.

        Raises OSError where a mount namespace cannot be entered, or folders that are asked for cannot be made.
        """
        self._private, self._of = tuple(private), dict[str, _Place]()
        self._names_apart = False
        if not any(within(NETNS, folder) for folder in private):
            with suppress(OSError):  # where nothing can be mounted, `ip netns add` fails as well
                if not os.path.isdir(NETNS):
                    _lay_copy(os.path.dirname(NETNS))
                    os.mkdir(NETNS, 0o755)
                self._names_apart = True
        _make_room(len(hosts))
        self._own, self._cwd_fd = _Place.here(), os.open(".", os.O_PATH | os.O_CLOEXEC)
        self._return()  # what is wrong is to be known before a process starts
        if private:
            with self.inside(hosts[0]):
                pass

    @contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """Processes started here have the folders of ``host``. Raises OSError where they cannot be made."""
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
        """Make a mount namespace, and stay in it."""
        if not self._private and not self._names_apart:
            return self._own
        calls.unshare(calls.NEWNS)
        for folder in self._private:
            _lay_private(folder)
        if self._names_apart:
            _lay_empty(NETNS)
        return _Place.here()


def _lay_private(folder: str) -> None:
    """Lay a host's own folder over one of the machine's. It has the folders that variables of programs name."""
    links = {name: os.readlink(path) for name in LINKS.get(folder, ()) if os.path.islink(path := f"{folder}/{name}")}
    _lay_empty(folder)
    for name, target in links.items():
        os.symlink(target, f"{folder}/{name}")
    for variable in VARIABLES:
        path = os.path.normpath(os.environ.get(variable, "/"))
        if within(path, folder):
            os.makedirs(path, mode=0o700, exist_ok=True)


def _make_room(hosts: int) -> None:
    """Raise the limit of open descriptors if it is too low for so many hosts, of which each takes four."""
    import resource  # paths are compared on systems without it, too

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < (wanted := 4 * hosts + OTHER_DESCRIPTORS):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard < 0 else min(wanted, hard), hard))
