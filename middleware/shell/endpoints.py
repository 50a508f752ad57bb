"""Endpoints at which hosts listen: ``tcp://ADDRESS:PORT``, or ``ipc:///FOLDER/NAME`` for a Unix socket.

Every user who may enter the folder of a Unix socket may connect to its host, so the folder must belong to its owner
alone. Each host has a second endpoint for bulk beside its control endpoint: the next port unless a port is given, or
``NAME.bulk``. A host dials only endpoints of its own kind: over TCP, or in the same folder. So no message makes a host
dial the Unix socket of a different program.

A host may be joined to further networks beside the shared one. There it has only an endpoint for bulk.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import stat
import tempfile
import weakref
from collections.abc import Iterable, Mapping

import msgspec

from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.view import NET
from thalweg.middleware.platform.files import others_may, owner
from thalweg.middleware.platform.waiting import UNIX_SOCKETS, unix_socket
from thalweg.middleware.protocol.messages import MAX_NETWORKS, Endpoint

TCP, UNIX = "tcp://", "ipc://"
BULK = ".bulk"
NOBODY = "nothing listens there"
GREETING = 10  # bytes, the first is 0xff; ZMTP 3.1, section 3.2: both sides send them unasked
_OWN_GREETING = b"\xff" + bytes(8) + b"\x7f\x03"  # up to the version: then the other side sends its mechanism
_MECHANISM = slice(12, 32)  # in a greeting, padded with zeros
LOOK_UP_S = 1.0  # time for each of several addresses of a name to accept a connection
FORM = "tcp://ADDRESS:PORT or ipc:///FOLDER/NAME"
ANYWHERE = ("0.0.0.0", "[::]", "*")
MAX_NETWORK = 32  # characters of a name, which is part of every estimate of a link


def beside(endpoint: str, bulk_port: int | None = None) -> str:
    """Return the endpoint for partitions of a host with this control endpoint.

    For TCP it has the same address and ``bulk_port``. Without ``bulk_port`` it has the port above, or any free port if
    the control endpoint has port 0. A ``bulk_port`` of 0 is any free port. For a Unix socket it is a second socket in
    the folder.

    Raises UsageError for an invalid endpoint or port, and for a Unix socket that others could dial, or that is in use.
    """
    if bulk_port is not None and not (isinstance(bulk_port, int) and 0 <= bulk_port <= 65535):
        raise UsageError(f"the port for partitions is {bulk_port!r}; give one between 1 and 65535, or 0 for any")
    if endpoint.startswith(UNIX):
        if bulk_port is not None:
            raise UsageError(
                f"{endpoint} is a Unix socket, and partitions have a second socket beside it; leave --bulk-port out"
            )
        _check_unix(endpoint)
        return endpoint + BULK
    head, _, port = endpoint.rpartition(":")
    if not endpoint.startswith(TCP) or not head:
        raise UsageError(f"{endpoint!r} is not an endpoint of the form {FORM}")
    anywhere = port in ("*", "0")
    if not anywhere and not (port.isdigit() and 0 < int(port) <= 65535):
        raise UsageError(f"{endpoint!r} has no port between 1 and 65535")
    if bulk_port is not None:
        if port == str(bulk_port) != "0":
            raise UsageError(f"control messages and partitions cannot share port {port}; give another --bulk-port")
        return f"{head}:{bulk_port or '*'}"
    if anywhere:
        return endpoint
    if int(port) == 65535:
        raise UsageError(f"{endpoint!r} leaves no port above it for partitions; give one with --bulk-port")
    return f"{head}:{int(port) + 1}"


def usually_beside(endpoint: str) -> str:
    """Return the default bulk endpoint of a host at ``endpoint``. The host itself reports the real one."""
    if endpoint.startswith(UNIX):
        return endpoint + BULK
    head, _, port = endpoint.rpartition(":")
    return f"{head}:{int(port) % 65535 + 1}" if port.isdigit() else endpoint


def read_networks(settings: Iterable[str]) -> dict[str, str]:
    """Return the further networks of ``NAME=ENDPOINT`` settings. Raises UsageError for an invalid setting."""
    networks: dict[str, str] = {}
    for setting in settings:
        name, equals, endpoint = setting.partition("=")
        if not equals or name in networks:
            raise UsageError(f"the network {setting!r} is not NAME=ENDPOINT, each name once, as fast=tcp://192.0.2.7:*")
        networks[name] = endpoint
    check_networks(networks)
    return networks


def check_networks(networks: Mapping[str, str]) -> None:
    """Raise UsageError if a host cannot join these further networks. ``networks``: endpoint for bulk by name."""
    if len(networks) >= MAX_NETWORKS:
        raise UsageError(
            f"a host is joined to {MAX_NETWORKS} networks at most, including the network that all hosts share"
        )
    for name, endpoint in networks.items():
        if name == NET or not name.isprintable() or not 0 < len(name) <= MAX_NETWORK or set(name) & set(" ,=/>"):
            raise UsageError(
                f"{name!r} is no name of a further network; use 1 to {MAX_NETWORK} printable characters without space"
                f" , = / > and not {NET!r}, which is the network that all share"
            )
        if endpoint.startswith(UNIX):
            continue
        address, _, port = endpoint.removeprefix(TCP).rpartition(":")
        if not endpoint.startswith(TCP) or not address or not (port == "*" or port.isdigit()):
            raise UsageError(f"network {name!r}: {endpoint!r} is not an endpoint of the form {FORM}")
        if address in ANYWHERE:
            raise UsageError(
                f"network {name!r}: {endpoint!r} names no address; give this host's own address in that network"
            )


def _check_unix(endpoint: str) -> None:
    """Raise UsageError for a Unix socket that cannot be listened on, or that is open to other users."""
    if not UNIX_SOCKETS:
        raise UsageError(f"{endpoint} is a Unix socket, which this system does not have; listen at {TCP}127.0.0.1:*")
    try:
        msgspec.convert(endpoint + BULK, Endpoint)
    except msgspec.ValidationError:
        most = 107 - len(BULK)
        raise UsageError(f"{endpoint!r} is not ipc:///FOLDER/NAME with a path of at most {most} characters") from None
    folder = folder_of(endpoint)
    try:
        status = os.stat(folder)
    except OSError as error:
        raise UsageError(f"no socket can be made in {folder}: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != owner() or others_may(status, 0o077):
        raise UsageError(f"others may enter {folder}, and so dial {endpoint}; listen in a folder made by mkdir -m 700")
    for path in (endpoint.removeprefix(UNIX), endpoint.removeprefix(UNIX) + BULK):
        with unix_socket() as probe:  # bind would take the name from a program that has it
            if probe.connect_ex(path) == 0:
                raise UsageError(f"{UNIX}{path} is already in use; choose another name with --listen")


def is_ipv6(endpoint: str) -> bool:
    """Return whether a socket of this endpoint needs IPv6: for an address in brackets, or for every address (``*``).

    An IPv6 socket for every address accepts IPv4 as well. For a name, libzmq would not accept IPv4 addresses with IPv6.
    """
    return endpoint.startswith((f"{TCP}[", f"{TCP}*"))


def resolve_endpoint(endpoint: str, wait_s: float = LOOK_UP_S) -> str:
    """Return an endpoint with the address in place of the name.

    If a name has several addresses, as of IPv4 and IPv6, the first one that accepts a connection is used. If none does,
    or ``wait_s`` is 0, the first IPv4 address is used, else the first address. An endpoint without a name, or with an
    unknown name, is returned as it is.
    """
    address, _, port = endpoint.removeprefix(TCP).rpartition(":")
    if not endpoint.startswith(TCP) or not port.isdigit() or not any(map(str.isalpha, address)) or "[" in address:
        return endpoint
    try:
        every = socket.getaddrinfo(address, int(port), type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return endpoint
    candidates = dict.fromkeys([f"{TCP}{_in_endpoint(str(entry[4][0]))}:{port}" for entry in every])
    for candidate in candidates if len(candidates) > 1 and wait_s > 0 else ():
        with contextlib.suppress(OSError, ValueError), _dial(candidate, wait_s):
            return candidate
    return min(candidates, key=is_ipv6, default=endpoint)


def folder_of(endpoint: str) -> str:
    """Return the folder of a Unix socket."""
    return os.path.dirname(endpoint.removeprefix(UNIX))


def take_away(bound: Iterable[str]) -> None:
    """Remove the Unix sockets of endpoints before they are closed, as ZeroMQ leaves the files behind."""
    for endpoint in bound:
        if endpoint.startswith(UNIX):
            with contextlib.suppress(OSError):
                os.unlink(endpoint.removeprefix(UNIX))


class SocketFolder:
    """Folder for Unix sockets, of this user alone (mode 0700), with a name short enough for socket paths.

    The folder is removed when it is cleaned up or dropped, unless it is left to a different process.
    """

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(prefix="thalweg-")
        try:
            msgspec.convert(f"{UNIX}{self.name}/{'x' * 24}", Endpoint)
        except msgspec.ValidationError:
            os.rmdir(self.name)
            self.name = tempfile.mkdtemp(prefix="thalweg-", dir="/tmp")
        self.cleanup = weakref.finalize(self, shutil.rmtree, self.name, ignore_errors=True)

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, *_: object) -> None:
        self.cleanup()


def listen_among(addresses: Iterable[str], listen: str | None, advertise: str | None = None) -> str:
    """Return the endpoint at which a client listens.

    By default it is a Unix socket beside those of the hosts, or over TCP the client's address on the way to the hosts.
    Raises UsageError if client and hosts cannot dial each other, or hosts elsewhere cannot reach a client on loopback.
    """
    first, *_ = addresses = [*addresses, TCP]
    ways = {} if first.startswith(UNIX) else {other: _way_to(other) for other in addresses[:-1]}
    far = {other: own for other, (own, remote) in ways.items() if not _is_loopback(remote)}
    if listen is None:
        unix = first.startswith(UNIX)
        own = next(iter(far.values()), "127.0.0.1")
        listen = f"{UNIX}{folder_of(first)}/{secrets.token_hex(4)}" if unix else f"{TCP}{own}:*"
    elif advertise is None and _is_loopback(listen.removeprefix(TCP).rpartition(":")[0]):
        for other, own in far.items():
            if own != ways[other][1]:  # the host is on a different machine
                raise UsageError(
                    f"the host at {other} cannot reach a client that listens on loopback, at {listen};"
                    f" leave listen out, or listen at {TCP}{own}:*"
                )
    for other in addresses[:-1]:
        if not may_dial(listen, other):
            raise UsageError(
                f"a client at {listen} and a host at {other} cannot talk; all must listen over TCP, or all on Unix"
                " sockets in one folder"
            )
    return listen


def _way_to(endpoint: str) -> tuple[str, str]:
    """Return this machine's address on the way to an endpoint, and the endpoint's address. Loopback if unknown."""
    address, _, port = endpoint.removeprefix(TCP).rpartition(":")
    try:
        family, kind, _, _, remote = socket.getaddrinfo(address.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(remote)  # sends nothing
            return _in_endpoint(probe.getsockname()[0]), _in_endpoint(probe.getpeername()[0])
    except (OSError, ValueError):  # a later dial reports the error
        return "127.0.0.1", "127.0.0.1"


def _in_endpoint(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("localhost", "[::1]")


def _dial(endpoint: str, wait_s: float) -> socket.socket:
    address, _, port = endpoint.removeprefix(TCP).rpartition(":")
    if not endpoint.startswith(UNIX):
        return socket.create_connection((address.strip("[]"), int(port)), wait_s)
    dialled = unix_socket()
    dialled.settimeout(wait_s)
    try:
        dialled.connect(endpoint.removeprefix(UNIX))
    except BaseException:
        dialled.close()
        raise
    return dialled


def greets_like_a_host(endpoint: str, wait_s: float, *, hung_up: bool) -> str:
    """Return why no host seems to listen at an endpoint, checked without ZeroMQ.

    Empty: a host may listen there, or nothing is known. ``hung_up``: connections of ZeroMQ to the endpoint have ended,
    which a stopped or busy host does not do.
    """
    try:
        dialled = _dial(endpoint, wait_s)
    except TimeoutError:
        return ""
    except socket.gaierror as error:
        return f"its address cannot be found ({error.strerror})"
    except (ConnectionRefusedError, FileNotFoundError):
        return f"{NOBODY}; is thalweg host running?"
    except (OSError, ValueError) as error:
        return f"it cannot be dialled: {error}"
    with dialled:
        try:
            greeting = dialled.recv(GREETING)
        except TimeoutError:
            greeting = b"" if hung_up else b"\xff"
        except OSError:  # the other side has hung up
            greeting = b""
    return "" if greeting[:1] == b"\xff" else "something else than a Thalweg host listens there; is the port right?"


def mechanism_of(endpoint: str, wait_s: float) -> str:
    """Return the security mechanism of a ZeroMQ endpoint, ``NULL`` or ``CURVE``. Empty if it cannot be seen.

    A failed handshake does not report the mechanism: the side that sees two different mechanisms may end without
    sending its own.
    """
    greeting = b""
    with contextlib.suppress(OSError, ValueError), _dial(endpoint, wait_s) as dialled:
        dialled.sendall(_OWN_GREETING)
        while len(greeting) < _MECHANISM.stop and (more := dialled.recv(_MECHANISM.stop - len(greeting))):
            greeting += more
    return greeting[_MECHANISM].rstrip(b"\0").decode("ascii", "replace")


def may_dial(own: str, endpoint: str) -> bool:
    """Return whether a host that listens at ``own`` may dial the endpoint of a second host."""
    if own.startswith(UNIX) or endpoint.startswith(UNIX):
        return own.startswith(UNIX) and endpoint.startswith(UNIX) and folder_of(own) == folder_of(endpoint)
    return True


def advertised(endpoint: str, address: str | None) -> str:
    """Return an endpoint as peers dial it, with a different address if one is given."""
    if address is None:
        return endpoint
    if endpoint.startswith(UNIX):
        raise UsageError(f"{endpoint} is a Unix socket, which has no other address; leave --advertise out")
    return f"{TCP}{address if address.startswith('[') else _in_endpoint(address)}:{endpoint.rpartition(':')[2]}"


def with_address(endpoint: str, like: str) -> str:
    """Return ``endpoint``, with the address of ``like`` if it listens on every address."""
    host, _, port = endpoint.removeprefix(TCP).rpartition(":")
    if host not in ANYWHERE:
        return endpoint
    return f"{TCP}{like.removeprefix(TCP).rpartition(':')[0]}:{port}"
