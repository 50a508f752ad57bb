"""What another tree is, and what is said as states are taken over in it (``core.reshaping``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.dataflow import Node
from thalweg.middleware.protocol.fields import Location, Name, RunMessage


class Graft(msgspec.Struct, frozen=True, array_like=True):
    """In another tree ``node`` takes these ``inputs``: one that is there already, or with ``like`` one that appears.

    An operator that appears has the code of operator ``like`` and is on ``host``. It begins with the ``states`` of
    these operators of the present tree, merged. A node of another query appears ``like`` what is written there.
    """

    node: Name
    inputs: tuple[Name, ...]
    host: Name
    like: Annotated[str, msgspec.Meta(max_length=128)] | Node = ""
    states: tuple[Name, ...] = ()


class Shape(msgspec.Struct, frozen=True, array_like=True):
    """Another tree (``reshaping``): what is grafted, and where the operators of the present one are thought to be.

    Or what the nodes of another query are (``query_attachment``), beside all that is there.
    """

    grafts: tuple[Graft, ...]
    present: tuple[Location, ...]

    @property
    def grows(self) -> bool:
        """Whether another query begins, and all that is there stays as it is."""
        return any(isinstance(graft.like, Node) for graft in self.grafts)


class Claim(RunMessage, frozen=True):
    """``heir``, which appears in another tree, waits for the state of ``node``, which has not come yet."""

    node: Name
    heir: Name
