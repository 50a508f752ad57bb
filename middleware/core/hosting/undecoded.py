"""Hosts whose messages do not decode here: for each the length of the present row of them.

A message that decodes ends the row. A host that has sent ``MOST_IN_A_ROW`` in a row has failed for the runs that it has
a part in (``core.host``, R9).
"""

from __future__ import annotations

MOST_IN_A_ROW = 16
REMEMBERED = 1024  # hosts: over TCP without keys anybody may give any name


class UndecodedMessages:
    """The only writer of these ``rows``, by host."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}

    def add(self, sender: str) -> bool:
        """Count one more; return whether the row has got so long that the host has failed (again)."""
        row = self.rows.pop(sender, 0) + 1
        self.rows[sender] = row  # the latest is the last
        if len(self.rows) > REMEMBERED:
            del self.rows[next(iter(self.rows))]
        return row % MOST_IN_A_ROW == 0

    def end(self, sender: str) -> None:
        """A message of this host has decoded."""
        self.rows.pop(sender, None)
