"""What the client of a run that outlives its hosts makes of each of them, over all of its generations.

Rules:

R1. Who is *barred* is not asked to take part again, and nothing is put there. Who is *waited* for no more may be.
R2. A host that is lost again and again, before anything more has come to the application each time, is a process that
    ends by itself. It is let in again later each time, by ``RESTS`` of what a source's host is waited for at most, and
    after ``MOST_IN_VAIN`` times not any more.
R3. What a host lacks, as it says, costs a generation of the run each time. Who says so more than ``MOST_LACKING``
    times, and once more for every ``PER`` partitions that have come, has no part in the run any more.
R4. A host that was asked to join a run that goes on, and did not join, has held up other changes of the run. It rests
    for as long as a host may take to join, and for twice as long after each further time (``DOUBLED`` times at most).
    Its next process is asked at once.
"""

from __future__ import annotations

from collections import Counter

import msgspec

FEW = 3  # losses in a row after which a host is let in at once
MOST_IN_VAIN = 16
RESTS = 1 / 4
MOST_LACKING, PER = 8, 16
DOUBLED = 4  # times that the rest of a host doubles


class RejoinRecord(msgspec.Struct):
    """A host: what the application ``had`` when it came or went, how often that was in vain, when it may be back."""

    had: int = -1
    in_vain: int = 0
    until_s: float = 0.0


class FailedJoins(msgspec.Struct):
    """R4: the ``times`` in a row that a host did not join, its process, and when it is asked again."""

    times: int = 0
    instance: str = ""
    until_s: float = 0.0


class RejoinPolicy:
    """``accused``: by which host, the first of which it has said that it does not answer."""

    def __init__(self) -> None:
        self.barred: set[str] = set()
        self.waited: set[str] = set()
        self.accused: dict[str, str] = {}
        self._lives: dict[str, RejoinRecord] = {}
        self._vain: dict[str, FailedJoins] = {}
        self._lacked = Counter[str]()
        self._disowned = set[str]()

    def bar(self, host: str) -> None:
        """R1: ask a host no more to take part."""
        self.barred.add(host)

    def wait_no_more(self, host: str) -> None:
        """R1: begin anew without waiting for a host."""
        self.waited.add(host)

    def accuse(self, accuser: str, host: str) -> bool:
        """Note that by ``accuser`` a host does not answer. Return whether it is the first of which it has said so."""
        return self.accused.setdefault(accuser, host) == host

    def came(self, host: str, had: int) -> None:
        """A host has taken its part, when the application had so many partitions."""
        self._lives.setdefault(host, RejoinRecord()).had = had
        self._vain.pop(host, None)

    def lost(self, host: str, had: int, now: float, retry_s: float, wait_s: float) -> int:
        """R2: a host is lost; how often in a row before anything more came."""
        life = self._lives.setdefault(host, RejoinRecord(had))
        life.in_vain = life.in_vain + 1 if had <= life.had else 0
        life.had = had  # it may never come again
        if life.in_vain > FEW:
            life.until_s = now + min(retry_s * 2.0 ** (life.in_vain - FEW), wait_s * RESTS)
        return life.in_vain

    def not_joined(self, host: str, instance: str, now: float, within_s: float) -> None:
        """R4: note that a host, as this process, did not join within the time that it may take."""
        vain = self._vain.setdefault(host, FailedJoins())
        vain.until_s = now + within_s * 2.0 ** min(vain.times, DOUBLED)
        vain.times, vain.instance = vain.times + 1, instance

    def rests(self, host: str, instance: str, now: float) -> bool:
        """R2, R4: return whether a host, as this process, is not let in yet."""
        life, vain = self._lives.get(host), self._vain.get(host)
        rests = life is not None and now < life.until_s
        return rests or (vain is not None and vain.instance == instance and now < vain.until_s)

    def lacks(self, host: str, had: int) -> bool:
        """R3: whether that host has said so once too often."""
        self._lacked[host] += 1
        return self._lacked[host] > MOST_LACKING + had // PER

    def disowns(self, host: str) -> int:
        """That host says that another process leads the run; how many have said so."""
        self._disowned.add(host)
        return len(self._disowned)
