"""Fields of messages: bounds, checked types, and structs that several messages share."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.network.view import NET
from thalweg.middleware.protocol.run_id import RunId

MAX_PARTITION_BYTES = 1024 * 1024 * 1024  # of any host
DEFAULT_PARTITION_BYTES = 256 * 1024 * 1024
MAX_DIMENSIONS = 8  # of an array
MAX_NETWORKS = 16  # that a host is joined to
MAX_GAP_S = 3600.0  # between two bulk messages; also stands for longer gaps, and for no message before
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Version = Annotated[int, msgspec.Meta(ge=1, le=255)]  # of the protocol
Speaks = tuple[Version, Version]  # oldest and newest version that a host speaks
Demanded = Annotated[int, msgspec.Meta(ge=-1, lt=2**53)]
Room = Annotated[int, msgspec.Meta(ge=0, le=MAX_PARTITION_BYTES)]  # bytes of a transfer
# Endpoints that a socket can dial without an immediate refusal. A message with any other endpoint is dropped.
_TCP = r"tcp://([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Za-z:.%]+\]):[0-9]{1,5}"
_UNIX = r"ipc:///[!-~]{1,106}"  # fits sockaddr_un with the slash; no abstract name, as any user can dial it
Endpoint = Annotated[str, msgspec.Meta(pattern=rf"\A({_TCP}|{_UNIX})\Z", max_length=300)]


class WireMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True, gc=False):
    """Base of all wire structs.

    The tag is the name of the class. A renamed class keeps its tag, so older and newer hosts understand each other.
    """


def tag_of(kind: type[msgspec.Struct]) -> str:
    """Return the tag of a kind of message, which names the kind in frames, records and fault plans."""
    return str(kind.__struct_config__.tag)


class RunMessage(WireMessage, frozen=True):
    """Base of messages about a run."""

    run: RunId


class NodeMessage(RunMessage, frozen=True):
    """Base of messages about operator ``node``, which moves. ``version``: location version of the operator."""

    node: Name
    version: Index


class ProposalMessage(RunMessage, frozen=True):
    """Base of messages about proposal ``number``."""

    number: Index


class Location(msgspec.Struct, frozen=True, array_like=True):
    """Location of a node: ``node`` is on ``host``. The higher location version is newer."""

    node: Name
    host: Name
    version: Index


class NetworkEndpoints(msgspec.Struct, frozen=True, array_like=True):
    """Bulk endpoints of a host in several networks, by the name of the network.

    Raises ValueError (on decoding, msgspec.ValidationError) if the shared network is missing.
    """

    ends: Annotated[dict[Name, Endpoint], msgspec.Meta(max_length=MAX_NETWORKS)]

    def __post_init__(self) -> None:
        if NET not in self.ends:
            raise ValueError(f"the host has no bulk endpoint in network {NET!r}, which all hosts share")


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """Address of a host: its control and bulk endpoints (``tcp://address:port``, or ``ipc:///path``).

    - ``bulk``: one endpoint, or for a host in several networks the endpoints in all of them.
    - ``instance``: differs for each start of the host, empty if unknown. The instance of a client also names its
      process.
    - ``max_partition_bytes``: largest partition that the host accepts.
    """

    name: Name
    control: Endpoint
    bulk: Endpoint | NetworkEndpoints
    instance: Annotated[str, msgspec.Meta(max_length=64)] = ""
    max_partition_bytes: Room = DEFAULT_PARTITION_BYTES

    @property
    def process(self) -> str:
        """Process at the endpoint, as "process 123 on machine", empty if unknown.

        The text is the part of ``instance`` after the first space.
        """
        return self.instance.partition(" ")[2]

    @property
    def ends(self) -> dict[str, str]:
        """Bulk endpoints by network."""
        return self.bulk.ends if isinstance(self.bulk, NetworkEndpoints) else {NET: self.bulk}


class Cause(msgspec.Struct, frozen=True):
    """Exception that the code of a node raised, as far as known.

    ``kind``: class of the exception. ``index``: partition that the code was called for. ``traceback``: lines of that
    code.
    """

    index: Index | None = None
    kind: Annotated[str, msgspec.Meta(max_length=256)] = ""
    traceback: Annotated[str, msgspec.Meta(max_length=8_192)] = ""
