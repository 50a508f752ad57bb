"""Grants of a host: packages whose code clients may run, and folders that their sources may read.

``PACKAGE`` and ``FOLDER`` are granted to all clients, ``CLIENT=PACKAGE`` and ``CLIENT=FOLDER`` to the runs of one
client. Every client may name the registered code of an installed package.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from thalweg.middleware.errors import UsageError
from thalweg.middleware.loading import DEFAULT_ALLOW, MAX_PICTURE_BYTES, Allowed, check_packages, check_roots

ALL = ""  # the key of the lists for all clients
_OF_CLIENT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(.*)", re.DOTALL)


def own_packages() -> dict[str, tuple[str, ...]]:
    """Return the packages that a host grants to every client by default."""
    return {ALL: DEFAULT_ALLOW}


class Grants(msgspec.Struct, frozen=True):
    """Packages and folders of a host by client, with ``ALL`` as the key for every client.

    ``max_picture_bytes`` and ``own`` are as in ``Allowed``.
    """

    packages: dict[str, tuple[str, ...]] = msgspec.field(default_factory=own_packages)
    data_roots: dict[str, tuple[str, ...]] = {}
    max_picture_bytes: int = MAX_PICTURE_BYTES
    own: bool = False

    @property
    def tells_clients_apart(self) -> bool:
        """Return whether there is a list for a single client."""
        return not {*self.packages, *self.data_roots} <= {ALL}

    def of(self, client: str) -> Allowed:
        """Return the permissions for the runs of a client."""
        packages, roots = (
            tuple(dict.fromkeys(lists.get(ALL, ()) + (lists.get(client, ()) if client else ())))
            for lists in (self.packages, self.data_roots)
        )
        return Allowed(packages, roots, self.max_picture_bytes, client if self.tells_clients_apart else "", self.own)


def read_packages(settings: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the packages of ``--allow`` by client. Thalweg's own packages are for every client.

    Raises UsageError for a package that cannot be found.
    """
    lists = {client: check_packages(names) for client, names in _by_client(settings).items()}
    return {**lists, ALL: (*DEFAULT_ALLOW, *lists.get(ALL, ()))}


def read_roots(settings: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the folders of ``--data-root`` by client. Raise UsageError for a path that is no folder.

    A relative folder with ``=`` in its name must be given as ``./NAME``.
    """
    return {client: check_roots(folders) for client, folders in _by_client(settings).items()}


def _by_client(settings: Iterable[str]) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {}
    for setting in settings:
        match = _OF_CLIENT.fullmatch(setting)
        client, grant = (match[1], match[2]) if match else (ALL, setting)
        if match and not grant:
            raise UsageError(
                f"{setting!r} names client {client!r} and no package or folder; give CLIENT=PACKAGE or CLIENT=FOLDER"
            )
        lists.setdefault(client, []).append(grant)
    return lists
