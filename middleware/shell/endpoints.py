"""Where hosts listen: ``tcp://ADDRESS:PORT``, or ``ipc:///FOLDER/NAME``, a Unix socket.

Whoever may enter the folder of a Unix socket may talk to its host, so the folder must be its owner's alone. Each host
has a second endpoint for bulk beside the one for control: the next port unless another is given, or ``NAME.bulk``. A
host dials what listens as it does itself, over TCP, or in the same folder; so no message makes it dial another
program's Unix socket.

Beside the network that all hosts share it may be joined to others: there it has an endpoint for bulk, and no other.
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
GREETING = 10  # bytes, of which the first is 0xff; ZMTP 3.1, section 3.2: either side sends them unasked
_OWN_GREETING = (
    b"\xff" + bytes(8) + b"\x7f\x03"
)  # with the version, and no more: the other side says its mechanism next
_MECHANISM = slice(12, 32)  # in a greeting, padded with zeros
LOOK_UP_S = 1.0  # that one of several addresses of a name has to accept a connection
FORM = "tcp://ADDRESS:PORT or ipc:///FOLDER/NAME"
ANYWHERE = ("0.0.0.0", "[::]", "*")
MAX_NETWORK = 32  # characters of its name, which stands in every estimate of its links


def beside(endpoint: str, bulk_port: int | None = None) -> str:
    """Return the endpoint for partitions of a host whose control endpoint this is.

    Of TCP it has the same address and ``bulk_port``: without one, the port above, or any free port if the control
    endpoint has port 0. A ``bulk_port`` of 0 is any free port. Of a Unix socket it is a second socket in its folder.

    Raises UsageError for what is no endpoint or port, and for a Unix socket that others could dial, or that is in use.
    """
    if bulk_port is not None and not (isinstance(bulk_port, int) and 0 <= bulk_port <= 65535):
        raise UsageError(f"the port for partitions is {bulk_port!r}; give one between 1 and 65535, or 0 for any")
    if endpoint.startswith(UNIX):
        if bulk_port is not None:
            raise UsageError(
                f"{endpoint} is a Unix socket, beside which partitions have their own; leave --bulk-port out"
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
    """The bulk endpoint that a host at ``endpoint`` has unless it was told otherwise; it says itself which it has."""
    if endpoint.startswith(UNIX):
        return endpoint + BULK
    head, _, port = endpoint.rpartition(":")
    return f"{head}:{int(port) % 65535 + 1}" if port.isdigit() else endpoint


def read_networks(settings: Iterable[str]) -> dict[str, str]:
    """What ``NAME=ENDPOINT`` says of further networks; UsageError for what is none."""
    networks: dict[str, str] = {}
    for setting in settings:
        name, equals, endpoint = setting.partition("=")
        if not equals or name in networks:
            raise UsageError(f"the network {setting!r} is not NAME=ENDPOINT, each name once, as fast=tcp://192.0.2.7:*")
        networks[name] = endpoint
    check_networks(networks)
    return networks


def check_networks(networks: Mapping[str, str]) -> None:
    """UsageError for further networks that a host cannot be joined to so: by name the endpoint for bulk there."""
    if len(networks) >= MAX_NETWORKS:
        raise UsageError(f"a host is joined to {MAX_NETWORKS} networks at most, the one that all share included")
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
            raise UsageError(f"network {name!r}: {endpoint!r} names no address; give this host's own in that network")


def _check_unix(endpoint: str) -> None:
    """UsageError for a Unix socket that cannot be listened on, or to which not only its owner would get."""
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
        raise UsageError(f"cannot listen in {folder}: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != owner() or others_may(status, 0o077):
        raise UsageError(f"others may enter {folder}, and so dial {endpoint}; listen in a folder made by mkdir -m 700")
    for path in (endpoint.removeprefix(UNIX), endpoint.removeprefix(UNIX) + BULK):
        with unix_socket() as probe:  # binding takes the name from whoever has it
            if probe.connect_ex(path) == 0:
                raise UsageError(f"{UNIX}{path} is already in use; choose another name with --listen")


def is_ipv6(endpoint: str) -> bool:
    """Return whether a socket of this endpoint is one of IPv6: of an address in brackets, or of all addresses (``*``).

    A socket of IPv6 for all addresses takes IPv4 as well. Of a name libzmq would take no IPv4 address in such a socket.
    """
    return endpoint.startswith((f"{TCP}[", f"{TCP}*"))


def resolve_endpoint(endpoint: str, wait_s: float = LOOK_UP_S) -> str:
    """Return an endpoint with the address that its name stands for.

    Of several addresses, as of IPv4 and IPv6, the first at which something listens is taken. If nothing does, and with
    ``wait_s`` 0, it is the first of IPv4, else the first. An endpoint without a name, or with one that nobody knows, is
    returned as it is.
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
    """The folder of a Unix socket."""
    return os.path.dirname(endpoint.removeprefix(UNIX))


def take_away(bound: Iterable[str]) -> None:
    """Remove the Unix sockets of endpoints that are about to be closed; ZeroMQ leaves them behind."""
    for endpoint in bound:
        if endpoint.startswith(UNIX):
            with contextlib.suppress(OSError):
                os.unlink(endpoint.removeprefix(UNIX))


class SocketFolder:
    """A folder for Unix sockets, of this user alone (mode 0700), whose name leaves room for theirs.

    It is removed when it is cleaned up or dropped, unless it is left to another process.
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
    """Where a client listens: by default beside its hosts' Unix sockets, or at its address on the way to them.

    Raises UsageError where it could not dial them, nor they each other, nor they it, on loopback of this machine.
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
            if own != ways[other][1]:  # it is on another machine
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
    """This machine's address on the way to an endpoint, and its address; loopback's where nobody knows."""
    address, _, port = endpoint.removeprefix(TCP).rpartition(":")
    try:
        family, kind, _, _, remote = socket.getaddrinfo(address.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(remote)  # which sends nothing
            return _in_endpoint(probe.getsockname()[0]), _in_endpoint(probe.getpeername()[0])
    except (OSError, ValueError):  # dialling it will say what is wrong
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
    """What is wrong with what listens there, looked at without ZeroMQ; empty when it speaks that, or nobody knows.

    ``hung_up``: it ends connections that speak ZeroMQ, which a host does not that is only stopped, or busy.
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
        except OSError:  # it has hung up
            greeting = b""
    return "" if greeting[:1] == b"\xff" else "something else than a Thalweg host listens there; is the port right?"


def mechanism_of(endpoint: str, wait_s: float) -> str:
    """How what listens there wants to be sure who dials, ``NULL`` or ``CURVE``; empty when that cannot be seen.

    A handshake may end without a word of it: who has read that two mechanisms differ need not have sent its own.
    """
    greeting = b""
    with contextlib.suppress(OSError, ValueError), _dial(endpoint, wait_s) as dialled:
        dialled.sendall(_OWN_GREETING)
        while len(greeting) < _MECHANISM.stop and (more := dialled.recv(_MECHANISM.stop - len(greeting))):
            greeting += more
    return greeting[_MECHANISM].rstrip(b"\0").decode("ascii", "replace")


def may_dial(own: str, endpoint: str) -> bool:
    """Whether a host that listens at ``own`` may dial another's endpoint."""
    if own.startswith(UNIX) or endpoint.startswith(UNIX):
        return own.startswith(UNIX) and endpoint.startswith(UNIX) and folder_of(own) == folder_of(endpoint)
    return True


def advertised(endpoint: str, address: str | None) -> str:
    """An endpoint as peers dial it, by another address if one is given."""
    if address is None:
        return endpoint
    if endpoint.startswith(UNIX):
        raise UsageError(f"{endpoint} is a Unix socket, which has no other address; leave --advertise out")
    return f"{TCP}{address if address.startswith('[') else _in_endpoint(address)}:{endpoint.rpartition(':')[2]}"


def with_address(endpoint: str, like: str) -> str:
    """``endpoint`` with the address of ``like``, if it listens on all addresses."""
    host, _, port = endpoint.removeprefix(TCP).rpartition(":")
    if host not in ANYWHERE:
        return endpoint
    return f"{TCP}{like.removeprefix(TCP).rpartition(':')[0]}:{port}"
