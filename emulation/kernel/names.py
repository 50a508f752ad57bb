"""Names of hosts for programs on the hosts: the hostname, and an ``/etc/hosts`` with every host of a testbed.

The file covers the machine's own file in a mount namespace of the supervisor, and ends with the namespace. A hostname
belongs to a namespace too (uts_namespaces(7)), which child processes inherit.
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
    """Return a host's name in the form of a hostname (RFC 1123)."""
    return re.sub(r"[^a-z0-9-]+", "-", name.lower()).strip("-")[:60] or "host"


def objection(hosts: Sequence[str], networks: Sequence[str] = ()) -> str:
    """Return why hosts cannot have these names, and what to do. Return an empty text if they can.

    A resolver must not read a name as an address or as the host itself. Two names must not become the same hostname.
    """
    full_names: dict[str, str] = {}
    for name in hosts:
        known = name.rstrip(".").lower()
        if known == "localhost" or known.endswith((".localhost", ".localdomain")) or known in RESERVED:
            return f"host name {name!r} is the name of every host for itself; choose another"
        if _is_address(name):
            return f"host name {name!r} is an address to every program that looks it up; begin it with a letter"
        for full in (name, *(f"{name}.{via}" for via in networks)):
            other = full_names.get(plain(full))
            full_names[plain(full)] = full
            if other is not None:
                return (
                    f"host names {other!r} and {full!r} are both {plain(full)!r} as hostnames (without case, and with -"
                    " in place of every character but letters and digits); choose others"
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
    """Return the name of a host in a network: ``HOST``, or ``HOST.NETWORK`` in a further network."""
    return cable if isinstance(cable, str) else ".".join(cable)


def named(ends: Mapping[Cable, _Any]) -> dict[str, _Any]:
    """Return the values of ``ends`` by the name of the host in the network (``end_name``)."""
    return {end_name(cable): value for cable, value in ends.items()}


SUBNET_6 = 64  # the prefix of a network's subnet of IPv6
UNIQUE_LOCAL = 0xFD74_6877 << 96
"""First 32 bits of all IPv6 addresses (RFC 4193, unique local), fixed since a testbed's network is isolated."""


def ipv6_beside(ip: str, prefix_length: int) -> str:
    """Return the IPv6 address of the host with this IPv4 address. The /64 contains the address of the IPv4 subnet."""
    subnet = int(ip_interface(f"{ip}/{prefix_length}").network.network_address)
    return str(IPv6Address(UNIQUE_LOCAL | subnet << 64 | int(IPv4Address(ip))))


def hosts_file(addresses: Mapping[str, Sequence[str]]) -> str:
    """Return the text of ``/etc/hosts``: every host by its hostname, and by its own name if the file can hold it."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for name, ips in addresses.items():
        own = name if re.fullmatch(r"[^\s#]+", name) else plain(name)
        lines += [" ".join(dict.fromkeys((ip, own, plain(name)))) for ip in ips]
    return "\n".join(lines) + "\n"


def spread(addresses: Mapping[str, Sequence[str]]) -> None:
    """Make hosts known by name to this process and its children. Call this in an own mount namespace.

    Raise OSError where mounting is not allowed.
    """
    with tempfile.NamedTemporaryFile("w", prefix="thalweg-hosts-") as file:
        file.write(hosts_file(addresses))
        file.flush()
        os.chmod(file.name, 0o644)
        folders.bind(file.name, HOSTS_FILE)


def take_hostname(name: str) -> None:
    """Set the hostname of this process and its later children. Earlier children keep the old hostname."""
    calls.unshare(calls.NEWUTS)
    socket.sethostname(plain(name))
