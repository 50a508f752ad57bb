"""Files that no other user can change: owner and mode of a file, and of each folder and link on the way to it.

Rules, which are those of OpenSSH for its own files (``safe_path``), but for R3 to R5:

- R1: A file belongs to the user of the process, or to root. So do all folders and symbolic links on the way to it.
- R2: Others may not write to any of these. A secret file gives others no rights at all.
- R3: A folder above that others may write to is safe if it has the sticky bit, as ``/tmp``: only the owners of files
  rename and remove what is there.
- R4: The group may write if it is the private group of the owner: it has the owner's name, and no other members. This
  is what ``umask 002`` gives on Debian and Ubuntu. It does not count where the file has an access control list.
- R5: In a user namespace that does not map root, as in a testbed of an ordinary user, root's folders seem to belong to
  nobody. Of these, folders that are root's on every system (``OF_ROOT``) are root's.

Windows has neither modes nor owners, and nothing is refused there.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from thalweg.middleware.platform.files import others_may, owner
from thalweg.middleware.platform.processes import maps_root, unmapped_owner

if sys.platform != "win32":
    import grp
    import pwd

MAX_LINKS = 40  # on one way, as in Linux
LIST = "system.posix_acl_access"
OF_ROOT = frozenset(
    ("/", "/etc", "/home", "/media", "/mnt", "/opt", "/run", "/run/user", "/srv", "/tmp", "/usr", "/var", "/var/tmp")
)


def why_unsafe(path: Path, what: str, *, secret: bool = False) -> str:
    """Return why others could change the file or folder, with what to do; an empty text if they cannot.

    ``what`` is what the text calls it. Raises OSError if the file cannot be found.
    """
    if sys.platform == "win32":
        return ""
    way = [*_way(path)]
    for step, status in way[:-1]:
        if why := _why_unsafe_above(step, status, f"replace the {what} {path}"):
            return why
    end, status = way[-1]
    if status.st_uid not in (0, owner()):
        return f"the {what} {path} belongs to {_named(status.st_uid)}; chown {_named(owner())} {end}"
    if secret and others_may(status, 0o077):
        return f"others may read the {what} {path}; chmod 600 {end}"
    if others_may(status, _rights(end, status)):
        return f"others may write to the {what} {path}; chmod go-w {end}"
    return ""


def _way(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Return all folders and links on the way to a file, and the file, from the root on."""
    to_go = [*reversed((Path.cwd() / path).parts)]
    at, links = Path(to_go.pop()), 0
    yield at, at.lstat()
    while to_go:
        name = to_go.pop()
        if name == "..":
            at = at.parent
            yield at, at.lstat()
            continue
        step = at / name
        status = step.lstat()
        yield step, status
        if not stat.S_ISLNK(status.st_mode):
            at = step
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = step.readlink()
        to_go += reversed(target.parts)
        if target.is_absolute():
            at = Path(to_go.pop())


def _why_unsafe_above(step: Path, found: os.stat_result, harm: str) -> str:
    """Return why others could do this harm through a folder or link; an empty text if they cannot."""
    if found.st_uid not in (0, owner()) and not _is_of_root(step, found):
        kind = "link" if stat.S_ISLNK(found.st_mode) else "folder"
        return f"the {kind} {step} belongs to {_named(found.st_uid)}, who could {harm}; keep it elsewhere"
    if stat.S_ISLNK(found.st_mode) or found.st_mode & stat.S_ISVTX:  # R3: only owners rename what is there
        return ""
    if others_may(found, _rights(step, found)):
        return f"others may write to the folder {step}, and so could {harm}; chmod go-w {step}"
    return ""


def _is_of_root(step: Path, found: os.stat_result) -> bool:
    """Return whether a folder is root's, although this namespace does not show it (R5)."""
    return str(step) in OF_ROOT and found.st_uid == unmapped_owner() and not maps_root()


def _rights(path: Path, found: os.stat_result) -> int:
    """Return the rights to write that others may not have, in bits of a mode."""
    return 0o002 if found.st_mode & 0o020 and _is_private(path, found) else 0o022


def _is_private(path: Path, found: os.stat_result) -> bool:
    """Return whether nobody but the owner is in the group of a file (R4)."""
    try:
        user, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
        if hasattr(os, "listxattr") and LIST in os.listxattr(path):
            return False
    except (KeyError, OSError):
        return False
    return group.gr_gid == user.pw_gid and group.gr_name == user.pw_name and {*group.gr_mem} <= {user.pw_name}


def _named(number: int) -> str:
    """Return the name of a user, or the number of one without a name."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
