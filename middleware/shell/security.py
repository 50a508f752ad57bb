"""CURVE keys: off loopback both sides prove that they hold the cluster's key.

A cluster shares one key file (``thalweg host --make-key FILE``). Every socket uses it as server and as client, and a
server admits only that public key.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import msgspec
import zmq

from thalweg.middleware.errors import UsageError

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

_DOMAIN = "thalweg"


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A CURVE key pair in Z85 text."""

    public: str
    secret: str

    @classmethod
    def make(cls) -> Keys:
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    @classmethod
    def load(cls, path: Path) -> Keys:
        try:
            keys = msgspec.json.decode(path.read_bytes(), type=cls)
        except OSError as error:
            raise UsageError(f"cannot read the key file {path}: {error.strerror}") from None
        except msgspec.DecodeError as error:
            raise UsageError(f"{path} is not a key file: {error}; make one with thalweg host --make-key FILE") from None
        try:
            matches = zmq.curve_public(keys.secret.encode()).decode() == keys.public
        except (ValueError, zmq.ZMQError):
            matches = False
        if not matches:
            raise UsageError(f"{path} does not hold a key pair; make one with thalweg host --make-key FILE")
        return keys

    def save(self, path: Path) -> None:
        """Write the file, readable by its owner only; an existing file is left alone."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise UsageError(f"{path} exists; a key file is never overwritten") from None
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(self)) + b"\n")


def secure_router(socket: zmq.Socket[bytes], keys: Keys | None, endpoint: str, *, insecure: bool) -> None:
    """Make a bound socket demand the cluster's key; refuse to be open to a network without one."""
    if keys is None:
        if endpoint.startswith("ipc://"):
            return  # only who may enter its folder can dial it
        address = endpoint.removeprefix("tcp://").rpartition(":")[0]
        if not insecure and not (address.startswith("127.") or address in ("localhost", "[::1]")):
            raise UsageError(
                f"{endpoint} is not loopback, and no key was given; use --keys FILE, or --insecure in a closed network"
            )
        return
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt_string(zmq.CURVE_SECRETKEY, keys.secret)
    socket.setsockopt_string(zmq.CURVE_PUBLICKEY, keys.public)
    socket.setsockopt_string(zmq.ZAP_DOMAIN, _DOMAIN)


def start_authenticator(context: zmq.Context[zmq.Socket[bytes]], keys: Keys) -> ThreadAuthenticator:
    """A thread that admits to the context's servers only who holds ``keys``; to be stopped before the context."""
    from zmq.auth.thread import ThreadAuthenticator  # brings asyncio along, which hosts without keys can do without

    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    admit = SimpleNamespace(callback=lambda domain, key: key == keys.public.encode())
    authenticator.configure_curve_callback(domain=_DOMAIN, credentials_provider=admit)
    return authenticator


def secure_dealer(socket: zmq.Socket[bytes], keys: Keys | None) -> None:
    """Make a dialling socket prove the cluster's key."""
    if keys is not None:
        socket.setsockopt_string(zmq.CURVE_SERVERKEY, keys.public)
        socket.setsockopt_string(zmq.CURVE_PUBLICKEY, keys.public)
        socket.setsockopt_string(zmq.CURVE_SECRETKEY, keys.secret)
