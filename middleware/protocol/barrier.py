"""Messages by which all hosts change over between two partitions (``core.barrier``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.protocol.fields import Index, Location, Name, ProposalMessage, Text
from thalweg.middleware.protocol.reshaping import Shape
from thalweg.middleware.protocol.routes import RoutePreference


class Move(msgspec.Struct, frozen=True, array_like=True):
    """Operator ``node``, since its ``version``-th placement on ``source``, is to go to ``target``."""

    node: Name
    source: Name
    target: Name
    version: Index


class Propose(ProposalMessage, frozen=True):
    """From the client, passed on up the tree: sources suspend, hosts vote on these moves, or on another ``shape``.

    ``ways``: the networks between hosts from then on, the one that all share where none is given; None: as they were.
    """

    moves: tuple[Move, ...]
    shape: Shape | None = None
    ways: tuple[RoutePreference, ...] | None = None


class Vote(ProposalMessage, frozen=True):
    """``host`` is ready for proposal ``number``, or not for the reason in ``error``.

    ``iteration``: the last partition that a source of this host has dispatched, -1 for none.
    """

    host: Name
    iteration: Annotated[int, msgspec.Meta(ge=-1, lt=2**53)]
    error: Text = ""


class Commit(ProposalMessage, frozen=True):
    """From the client to all: proposal ``number`` takes place after partition ``iteration``.

    ``ways``: the networks between hosts from then on; None: as they were.
    """

    iteration: Annotated[int, msgspec.Meta(ge=-1, lt=2**53)]
    moves: tuple[Move, ...]
    reason: Text = ""
    shape: Shape | None = None
    ways: tuple[RoutePreference, ...] | None = None


class Abort(ProposalMessage, frozen=True):
    """From the client to all: proposal ``number`` is off, sources resume."""


class Retire(ProposalMessage, frozen=True):
    """From the client to all: all of the old tree's partitions are delivered; forget what is not in the new one."""


class Done(ProposalMessage, frozen=True):
    """``host`` is through with proposal ``number``; ``locations`` are those of the operators it handed over.

    Of another shape it says twice that it is: when it has both trees, and, ``retired``, when it has the new one only.
    """

    host: Name
    locations: tuple[Location, ...] = ()
    retired: bool = False
