"""A state that moves by a table: ``(state, event) -> state``, from which the diagrams under ``docs`` are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar


class Term(StrEnum):
    """Base of states and events. Their hash is their text's: an enum's own would be Python code at every look-up."""

    __hash__ = str.__hash__


class InvalidTransition(Exception):
    """A defect of the core: its table does not say what the event does in that state; carries who and where."""


class Machine:
    """Something with a ``state`` that only ``to`` moves. A subclass has a ``TABLE``, and says in its repr who it is."""

    __slots__ = ("state",)
    TABLE: ClassVar[Mapping[tuple[Any, Any], Any]]
    state: Any

    def to(self, event: StrEnum) -> None:
        """Move as the table says. Raises InvalidTransition where it says nothing."""
        try:
            self.state = self.TABLE[self.state, event]
        except KeyError:
            raise InvalidTransition(f"{self!r}: {event}") from None

    def can(self, event: StrEnum) -> bool:
        """Whether the table says what the event does now."""
        return (self.state, event) in self.TABLE
