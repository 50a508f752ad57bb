"""Names of hosts as programs on them see them: the hostname, and ``/etc/hosts`` with all of a testbed's.

The file lies over the machine's own in a mount namespace of the supervisor's, which ends with it. A hostname belongs to
a namespace too (uts_namespaces(7)), which processes inherit.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface
from typing import TypeVar

from thalweg.emulation.kernel import calls, folders
from thalweg.middleware.network.view import Cable

HOSTS_FILE = "/etc/hosts"

_Any = TypeVar("_Any")


def plain(name: str) -> str:
    """A host's name as a hostname (RFC 1123)."""
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:60] or "host"


def objection(hosts: Sequence[str], networks: Sequence[str] = ()) -> str:
    """Return why hosts cannot have these names, and what to do. The text is empty if they can.

    A resolver must not read a name as an address or as the host itself. No two names may become one hostname.
    """
    taken: dict[str, str] = {}
    for name in hosts:
        known = name.rstrip(".").lower()
        if known == "localhost" or known.endswith((".localhost", ".localdomain")) or known in RESERVED:
            return f"host name {name!r} is what every host calls itself; choose another"
        if _is_address(name):
            return f"host name {name!r} is an address to every program that looks it up; begin it with a letter"
        for full in (name, *(f"{name}.{via}" for via in networks)):
            other = taken.get(plain(full))
            taken[plain(full)] = full
            if other is not None:
                return (
                    f"host names {other!r} and {full!r} are both {plain(full)!r} as hostnames (without case, and with -"
                    " for all else than letters and digits); choose others"
                )
    return ""


RESERVED = ("ip6-localhost", "ip6-loopback", "ip6-allnodes", "ip6-allrouters", "broadcasthost")


def _is_address(name: str) -> bool:
    """Return whether a resolver reads a name as an address, in a form of inet_aton(3) or of IPv6."""
    with suppress(OSError):
        socket.inet_aton(name)
        return True
    with suppress(ValueError):
        ip_address(name.partition("%")[0])
        return True
    return False


def end_name(cable: Cable) -> str:
    """What a host is called in a network: ``HOST.NETWORK`` where not all share that."""
    return cable if isinstance(cable, str) else ".".join(cable)


def named(ends: Mapping[Cable, _Any]) -> dict[str, _Any]:
    """Something of every cable by what its host is called there."""
    return {end_name(cable): one for cable, one in ends.items()}


SUBNET_6 = 64  # the prefix of a network's subnet of IPv6
UNIQUE_LOCAL = 0xFD74_6877 << 96
"""First 32 bits of all IPv6 addresses (RFC 4193, unique local). A testbed's network is isolated, so they are fixed."""


def ipv6_beside(ip: str, prefix_length: int) -> str:
    """Return the IPv6 address of the host with this IPv4 address. The /64 contains the address of the IPv4 subnet."""
    subnet = int(ip_interface(f"{ip}/{prefix_length}").network.network_address)
    return str(IPv6Address(UNIQUE_LOCAL | subnet << 64 | int(IPv4Address(ip))))


def hosts_file(addresses: Mapping[str, Sequence[str]]) -> str:
    """The text of ``/etc/hosts``: every host by its own name, where that can stand there, and as a hostname."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for name, ips in addresses.items():
        own = name if re.fullmatch(r"[^\s#]+", name) else plain(name)
        lines += [" ".join(dict.fromkeys((ip, own, plain(name)))) for ip in ips]
    return "\n".join(lines) + "\n"


def spread(addresses: Mapping[str, Sequence[str]]) -> None:
    """Let this process, and all that it starts, know hosts by name. To be called in a mount namespace of its own.

    Raises OSError where mounting is not allowed.
    """
    with tempfile.NamedTemporaryFile("w", prefix="thalweg-hosts-") as file:
        file.write(hosts_file(addresses))
        file.flush()
        os.chmod(file.name, 0o644)
        folders.bind(file.name, HOSTS_FILE)


def take_hostname(name: str) -> None:
    """Have a hostname from now on, which what has been started already does not share."""
    calls.unshare(calls.NEWUTS)
    socket.sethostname(plain(name))
