"""Messages of the barrier, by which the hosts of a run change over between two partitions (``core.barrier``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.protocol.fields import Index, Location, Name, ProposalMessage, Text
from thalweg.middleware.protocol.reshaping import Shape
from thalweg.middleware.protocol.routes import RoutePreference


class Move(msgspec.Struct, frozen=True, array_like=True):
    """Move of operator ``node`` from ``source`` to ``target``. ``version``: location version of the operator on
    ``source``.
    """

    node: Name
    source: Name
    target: Name
    version: Index


class Propose(ProposalMessage, frozen=True):
    """Proposal of the client, passed on up the tree: sources suspend, and hosts vote on the moves or on a new
    ``shape``.

    ``ways``: routes between hosts after the change-over. A pair of hosts without a route uses the shared network. None:
    routes stay as they are.
    """

    moves: tuple[Move, ...]
    shape: Shape | None = None
    ways: tuple[RoutePreference, ...] | None = None


class Vote(ProposalMessage, frozen=True):
    """Vote of ``host`` on proposal ``number``: the host is ready, or ``error`` says why the host is not.

    ``iteration``: last partition that a source on this host has dispatched, -1 for none.
    """

    host: Name
    iteration: Annotated[int, msgspec.Meta(ge=-1, lt=2**53)]
    error: Text = ""


class Commit(ProposalMessage, frozen=True):
    """Decision of the client, sent to all hosts: proposal ``number`` takes effect after partition ``iteration``.

    ``ways``: routes between hosts from then on. None: routes stay as they are.
    """

    iteration: Annotated[int, msgspec.Meta(ge=-1, lt=2**53)]
    moves: tuple[Move, ...]
    reason: Text = ""
    shape: Shape | None = None
    ways: tuple[RoutePreference, ...] | None = None


class Abort(ProposalMessage, frozen=True):
    """Decision of the client, sent to all hosts: proposal ``number`` is dropped, and the sources resume."""


class Retire(ProposalMessage, frozen=True):
    """Report of the client to all hosts that every partition of the old tree has been delivered.

    Hosts then forget the nodes that are not in the new tree.
    """


class Done(ProposalMessage, frozen=True):
    """Report that ``host`` has finished proposal ``number``. ``locations``: new locations of operators that it handed
    over.

    For a new tree the host sends two reports: when the host has both trees, and with ``retired`` when only the new tree
    is left.
    """

    host: Name
    locations: tuple[Location, ...] = ()
    retired: bool = False
