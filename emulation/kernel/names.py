"""Names of hosts as programs on them see them: the hostname, and ``/etc/hosts`` with all of a testbed's.

The file lies over the machine's own in a mount namespace of the supervisor's, which ends with it. A hostname belongs to
a namespace too (uts_namespaces(7)), which processes inherit.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import tempfile
from collections.abc import Mapping
from typing import TypeVar

from thalweg.middleware.network.view import Cable

HOSTS_FILE = "/etc/hosts"
_NEWNS, _NEWUTS = 0x0002_0000, 0x0400_0000  # linux/sched.h
_BIND, _REC, _PRIVATE = 0x1000, 0x4000, 0x4_0000  # sys/mount.h

_Any = TypeVar("_Any")


def _libc() -> ctypes.CDLL:
    """Return the C library, when it is needed: names are compared on systems without it, too."""
    return ctypes.CDLL(None, use_errno=True)


def _check(status: int) -> None:
    if status != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def plain(name: str) -> str:
    """A host's name as a hostname (RFC 1123)."""
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:60] or "host"


def end_name(cable: Cable) -> str:
    """What a host is called in a network: ``HOST.NETWORK`` where not all share that."""
    return cable if isinstance(cable, str) else ".".join(cable)


def named(ends: Mapping[Cable, _Any]) -> dict[str, _Any]:
    """Something of every cable by what its host is called there."""
    return {end_name(cable): one for cable, one in ends.items()}


def hosts_file(addresses: Mapping[str, str]) -> str:
    """The text of ``/etc/hosts``: every host by its own name, where that can stand there, and as a hostname."""
    lines = ["127.0.0.1 localhost"]
    for name, ip in addresses.items():
        own = name if re.fullmatch(r"[^\s#]+", name) else plain(name)
        lines.append(" ".join(dict.fromkeys((ip, own, plain(name)))))
    return "\n".join(lines) + "\n"


def spread(addresses: Mapping[str, str]) -> None:
    """Let this process, and all that it starts, know hosts by name. Raises OSError where mounting is not allowed."""
    _check(_libc().unshare(_NEWNS))
    _check(_libc().mount(b"none", b"/", None, _REC | _PRIVATE, None))  # nothing of it reaches the machine
    with tempfile.NamedTemporaryFile("w", prefix="thalweg-hosts-") as file:
        file.write(hosts_file(addresses))
        file.flush()
        os.chmod(file.name, 0o644)
        _check(_libc().mount(file.name.encode(), HOSTS_FILE.encode(), None, _BIND, None))


def take_hostname(name: str) -> None:
    """Have a hostname from now on, which what has been started already does not share."""
    _check(_libc().unshare(_NEWUTS))
    socket.sethostname(plain(name))
