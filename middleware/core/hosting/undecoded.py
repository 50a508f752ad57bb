"""Counts of messages in a row that do not decode, by host and type of message.

A message of the same type that decodes ends the row. Messages of other types do not, as a host whose demands do not
decode may still answer pings. A host that has sent ``MOST_IN_A_ROW`` of them in a row has failed in its runs
(``core.host``, R9).
"""

from __future__ import annotations

MOST_IN_A_ROW = 16
REMEMBERED = 1024  # rows; over TCP without keys a sender may use every name


class UndecodedMessages:
    """Present ``rows`` by host and type of message. The type is empty if it cannot be read."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], int] = {}

    def add(self, sender: str, kind: str) -> bool:
        """Count a message. Return whether the host has failed: after every ``MOST_IN_A_ROW`` messages of the row."""
        row = self.rows.pop((sender, kind), 0) + 1
        self.rows[sender, kind] = row  # the latest row comes last
        if len(self.rows) > REMEMBERED:
            del self.rows[next(iter(self.rows))]
        return row % MOST_IN_A_ROW == 0

    def end(self, sender: str, kind: str) -> None:
        """End the row of a host and type, as a message of the type has decoded."""
        self.rows.pop((sender, kind), None)
