"""The next tree of a run, and messages by which its operators take states over (``core.reshaping``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.dataflow import Node
from thalweg.middleware.protocol.fields import Location, Name
from thalweg.middleware.protocol.states import StateMessage


class Graft(msgspec.Struct, frozen=True, array_like=True):
    """A node of the next tree, with its inputs there. ``like``: the node is new; else the present tree has it.

    A new operator has the code of operator ``like``, is on ``host``, and begins with the merged states of the present
    operators ``states``. For a node of another query ``like`` is the node itself.
    """

    node: Name
    inputs: tuple[Name, ...]
    host: Name
    like: Annotated[str, msgspec.Meta(max_length=128)] | Node = ""
    states: tuple[Name, ...] = ()


class Shape(msgspec.Struct, frozen=True, array_like=True):
    """The next tree (``reshaping``): its nodes, and where the client believes the operators of the present one to be.

    For another query (``query_attachment``): the nodes that are added.
    """

    grafts: tuple[Graft, ...]
    present: tuple[Location, ...]

    @property
    def grows(self) -> bool:
        """Whether nodes are only added, for another query."""
        return any(isinstance(graft.like, Node) for graft in self.grafts)


class InheritedState(StateMessage, frozen=True, kw_only=True):
    """State of an operator that disappears with its tree, for the operator ``heir`` of the next tree."""

    heir: Name
