"""Messages that do not decode here: for each host and type of message the length of the present row of them.

A message of that type that decodes ends the row. Messages of other types do not, as a host whose demands do not decode
may still answer pings. A host that has sent ``MOST_IN_A_ROW`` in a row has failed for the runs that it has a part in
(``core.host``, R9).
"""

from __future__ import annotations

MOST_IN_A_ROW = 16
REMEMBERED = 1024  # rows: over TCP without keys anybody may give any name


class UndecodedMessages:
    """The only writer of these ``rows``, by host and type of message; empty where the type cannot be read."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], int] = {}

    def add(self, sender: str, kind: str) -> bool:
        """Count one more; return whether the row has got so long that the host has failed (again)."""
        row = self.rows.pop((sender, kind), 0) + 1
        self.rows[sender, kind] = row  # the latest is the last
        if len(self.rows) > REMEMBERED:
            del self.rows[next(iter(self.rows))]
        return row % MOST_IN_A_ROW == 0

    def end(self, sender: str, kind: str) -> None:
        """A message of this host and type has decoded."""
        self.rows.pop((sender, kind), None)
