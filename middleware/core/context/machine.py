"""State machine with a table ``(state, event) -> state``. The diagrams under ``docs`` are drawn from the tables."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar


class Term(StrEnum):
    """Base of states and events, with the hash of the text. An enum's hash would run Python code at every look-up."""

    __hash__ = str.__hash__


class InvalidTransition(Exception):
    """Defect of the core: a table lacks an entry for an event in the present state. The text names object and event."""


class Machine:
    """Object with a ``state`` that only ``to`` changes. A subclass has a ``TABLE``, and a repr with the name."""

    __slots__ = ("state",)
    TABLE: ClassVar[Mapping[tuple[Any, Any], Any]]
    state: Any

    def to(self, event: StrEnum) -> None:
        """Change the state by the table. Raises InvalidTransition if the table has no entry."""
        try:
            self.state = self.TABLE[self.state, event]
        except KeyError:
            raise InvalidTransition(f"{self!r}: {event}") from None

    def can(self, event: StrEnum) -> bool:
        """Return whether the table has an entry for the event in the present state."""
        return (self.state, event) in self.TABLE
