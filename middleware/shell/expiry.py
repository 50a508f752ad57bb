"""Certificates that expire: a warning ahead, and notice once they have.

Rules:

- R1: The own certificate is watched, and those of the hosts and clients of open runs.
- R2: One that expires within ``AHEAD_S`` is logged, again after each ``AGAIN_S``.
- R3: One that has expired is returned once, so that the runs end that need it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from thalweg.middleware.logbook import Logbook
from thalweg.middleware.shell.security import Keys, MemberCertificate

AHEAD_S = 14 * 86_400.0
AGAIN_S = 86_400.0


class Expiry:
    """The certificates of one host and its peers, as far as they expire."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._logged_s: dict[MemberCertificate, float] = {}
        self._over: set[MemberCertificate] = set()

    def check(self, peers: Collection[str], logbook: Logbook) -> Iterator[tuple[str, str]]:
        """Log what expires soon, and return what has expired since the last call: the name, and how to go on."""
        now, own, known = time.time(), self._keys.own, self._keys.members.all
        for member in (own, *[known[name] for name in peers if name in known and name != own.name]):
            if member.expires is None or member in self._over:
                continue
            left_s = member.expires.timestamp() - now
            if left_s <= 0:
                self._over.add(member)
                self._logged_s.pop(member, None)
                yield member.name, f"has a certificate that expired on {member.until}; make one with thalweg keys new"
            elif left_s <= AHEAD_S and now - self._logged_s.get(member, 0.0) >= AGAIN_S:
                self._logged_s[member] = now
                text = f"the certificate of {member.name!r} expires on {member.until}, in {_in_words(left_s)}"
                logbook.write("certificate-expires", text, peer=member.name)


def _in_words(seconds: float) -> str:
    """Return a duration in the largest unit of which it has two."""
    for unit_s, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {name}"
    return f"{seconds:.0f} s"
