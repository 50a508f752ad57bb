"""Next tree of a run, and messages with states for operators of the next tree (``core.reshaping``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.dataflow import Node
from thalweg.middleware.protocol.fields import Location, Name
from thalweg.middleware.protocol.states import StateMessage


class Graft(msgspec.Struct, frozen=True, array_like=True):
    """Node of the next tree, with its inputs there. If ``like`` is empty, the present tree has the node already.

    A new operator has the code of operator ``like``, is on ``host``, and begins with the merged states of the present
    operators ``states``. For a node of a further query, ``like`` is the node itself.
    """

    node: Name
    inputs: tuple[Name, ...]
    host: Name
    like: Annotated[str, msgspec.Meta(max_length=128)] | Node = ""
    states: tuple[Name, ...] = ()


class Shape(msgspec.Struct, frozen=True, array_like=True):
    """Next tree of a run (``reshaping``): grafts, and locations of the present operators as the client knows them.

    For a further query (``query_attachment``), the grafts are the nodes to add.
    """

    grafts: tuple[Graft, ...]
    present: tuple[Location, ...]

    @property
    def grows(self) -> bool:
        """Return whether nodes are only added, for a further query."""
        return any(isinstance(graft.like, Node) for graft in self.grafts)


class InheritedState(StateMessage, frozen=True, kw_only=True):
    """State of an operator that disappears with its tree, for the operator ``heir`` of the next tree."""

    heir: Name
