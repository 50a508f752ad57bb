"""Fields of messages: bounds, checked types, and the structs that several messages have."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.network.view import NET
from thalweg.middleware.protocol.run_id import RunId

MAX_PARTITION_BYTES = 1024 * 1024 * 1024  # of any host
DEFAULT_PARTITION_BYTES = 256 * 1024 * 1024
MAX_DIMENSIONS = 8  # of an array
MAX_NETWORKS = 16  # that a host is joined to
MAX_GAP_S = 3600.0  # between two bulk messages; an hour stands for longer ones, and for none before
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Version = Annotated[int, msgspec.Meta(ge=1, le=255)]  # of the protocol
Speaks = tuple[Version, Version]  # the oldest and the newest that a host speaks
Demanded = Annotated[int, msgspec.Meta(ge=-1, lt=2**53)]
Room = Annotated[int, msgspec.Meta(ge=0, le=MAX_PARTITION_BYTES)]  # bytes of a transfer
# What a socket can dial without refusing it at once: a host that is told anything else drops the message.
_TCP = r"tcp://([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Za-z:.%]+\]):[0-9]{1,5}"
_UNIX = r"ipc:///[!-~]{1,106}"  # with the slash, what fits into sockaddr_un; no abstract name, which any user can dial
Endpoint = Annotated[str, msgspec.Meta(pattern=rf"\A({_TCP}|{_UNIX})\Z", max_length=300)]


class WireMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True, gc=False):
    """Base of all wire structs.

    The tag is the class name. A class that was renamed keeps its tag, so hosts before and after it understand each
    other.
    """


def tag_of(kind: type[msgspec.Struct]) -> str:
    """Return the tag of a kind of message, which names the kind in frames, records and fault plans."""
    return str(kind.__struct_config__.tag)


class RunMessage(WireMessage, frozen=True):
    """What is said of a run."""

    run: RunId


class NodeMessage(RunMessage, frozen=True):
    """What is said of operator ``node``, which changes hosts, in its ``version``-th placement."""

    node: Name
    version: Index


class ProposalMessage(RunMessage, frozen=True):
    """What is said of proposal ``number``."""

    number: Index


class Location(msgspec.Struct, frozen=True, array_like=True):
    """Node ``node`` is on ``host`` since its ``version``-th placement; the higher version is newer."""

    node: Name
    host: Name
    version: Index


class NetworkEndpoints(msgspec.Struct, frozen=True, array_like=True):
    """The bulk endpoints of a host that is joined to several networks, by their names.

    Raises ValueError (on decoding, msgspec.ValidationError) where the network that all share is left out.
    """

    ends: Annotated[dict[Name, Endpoint], msgspec.Meta(max_length=MAX_NETWORKS)]

    def __post_init__(self) -> None:
        if NET not in self.ends:
            raise ValueError(f"a host without a bulk endpoint in network {NET!r}, which all share")


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """Where a host listens: its control and bulk endpoints (``tcp://address:port``, or ``ipc:///path``).

    ``bulk``: where it is joined to further networks, its endpoints in all of them. ``instance`` is another one each
    time the host is started; empty where that is not known. A client's also names its process. The host takes no
    partition of more than ``max_partition_bytes``.
    """

    name: Name
    control: Endpoint
    bulk: Endpoint | NetworkEndpoints
    instance: Annotated[str, msgspec.Meta(max_length=64)] = ""
    max_partition_bytes: Room = DEFAULT_PARTITION_BYTES

    @property
    def process(self) -> str:
        """The process that listens there, as "process 123 on machine", if it says so: behind what tells it apart."""
        return self.instance.partition(" ")[2]

    @property
    def ends(self) -> dict[str, str]:
        """Its bulk endpoints, by network."""
        return self.bulk.ends if isinstance(self.bulk, NetworkEndpoints) else {NET: self.bulk}


class Cause(msgspec.Struct, frozen=True):
    """What a node's code raised: the class, where in that code, and at which partition, as far as that is known."""

    index: Index | None = None
    kind: Annotated[str, msgspec.Meta(max_length=256)] = ""
    traceback: Annotated[str, msgspec.Meta(max_length=8_192)] = ""
