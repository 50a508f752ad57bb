"""Expiry of certificates: a warning before, and notice after.

Rules:

- R1: The host's own certificate is watched, and the certificates of the hosts and clients of open runs.
- R2: A certificate that expires within ``AHEAD_S`` is logged, again after each ``AGAIN_S``.
- R3: An expired certificate is returned once, so that runs with its owner end.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from thalweg.middleware.logbook import Logbook
from thalweg.middleware.shell.security import Keys, MemberCertificate

AHEAD_S = 14 * 86_400.0
AGAIN_S = 86_400.0


class Expiry:
    """Watch over the expiry of the certificates of a host and its peers."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._logged_s: dict[MemberCertificate, float] = {}
        self._over: set[MemberCertificate] = set()

    def check(self, peers: Collection[str], logbook: Logbook) -> Iterator[tuple[str, str]]:
        """Log certificates that expire soon. Yield the certificates that have expired since the last call.

        Each is given as the name of the owner and the rest of a sentence that begins with the name.
        """
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
    """Return a duration in the largest unit with a value of at least two."""
    for unit_s, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {name}"
    return f"{seconds:.0f} s"
