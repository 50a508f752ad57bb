"""Rules by which the client of a failover run asks lost hosts to take part again, over all generations.

Rules:

R1. A *barred* host is not asked to take part again, and gets no nodes. A host for which the run no longer *waits* may
    be asked.
R2. A host that is lost again and again, each time without a further partition for the application, is a process that
    ends by itself. It is let in later each time, by at most ``RESTS`` of the longest wait for the host of a source.
    After ``MOST_IN_VAIN`` times it is not let in.
R3. A report that a host lacks a replica or outputs costs a generation of the run. A host that reports so more than
    ``MOST_LACKING`` times, and once more for every ``PER`` partitions that have come, loses its part in the run.
R4. A host that was asked to join a run that goes on, and did not join, has delayed further changes of the run. It rests
    for as long as a host may take to join, and twice as long after every further time (``DOUBLED`` times at most). Its
    next process is asked at once.
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
    """Losses of a host.

    ``had``: partitions of the application when the host last came or went. ``in_vain``: losses in a row without
    progress. ``until_s``: end of the rest.
    """

    had: int = -1
    in_vain: int = 0
    until_s: float = 0.0


class FailedJoins(msgspec.Struct):
    """Failures of a host to join (R4): the number in a row, the process, and the end of the rest."""

    times: int = 0
    instance: str = ""
    until_s: float = 0.0


class RejoinPolicy:
    """State of the rules for one run. ``accused``: by reporting host, the first host that it reported as silent."""

    def __init__(self) -> None:
        self.barred: set[str] = set()
        self.waited: set[str] = set()
        self.accused: dict[str, str] = {}
        self._lives: dict[str, RejoinRecord] = {}
        self._vain: dict[str, FailedJoins] = {}
        self._lacked = Counter[str]()
        self._disowned = set[str]()

    def bar(self, host: str) -> None:
        """Bar a host from the run (R1)."""
        self.barred.add(host)

    def wait_no_more(self, host: str) -> None:
        """Let the run begin anew without waiting for a host (R1)."""
        self.waited.add(host)

    def accuse(self, accuser: str, host: str) -> bool:
        """Record that ``accuser`` reports a silent host. Return whether no different host was reported before."""
        return self.accused.setdefault(accuser, host) == host

    def came(self, host: str, had: int) -> None:
        """Record that a host has taken its part when the application had ``had`` partitions."""
        self._lives.setdefault(host, RejoinRecord()).had = had
        self._vain.pop(host, None)

    def lost(self, host: str, had: int, now: float, retry_s: float, wait_s: float) -> int:
        """Record the loss of a host (R2). Return the number of losses in a row without progress."""
        life = self._lives.setdefault(host, RejoinRecord(had))
        life.in_vain = life.in_vain + 1 if had <= life.had else 0
        life.had = had  # the host may never come again
        if life.in_vain > FEW:
            life.until_s = now + min(retry_s * 2.0 ** (life.in_vain - FEW), wait_s * RESTS)
        return life.in_vain

    def not_joined(self, host: str, instance: str, now: float, within_s: float) -> None:
        """Record that a host, as this process, did not join within ``within_s`` (R4)."""
        vain = self._vain.setdefault(host, FailedJoins())
        vain.until_s = now + within_s * 2.0 ** min(vain.times, DOUBLED)
        vain.times, vain.instance = vain.times + 1, instance

    def rests(self, host: str, instance: str, now: float) -> bool:
        """Return whether a host, as this process, is not let in yet (R2, R4)."""
        life, vain = self._lives.get(host), self._vain.get(host)
        rests = life is not None and now < life.until_s
        return rests or (vain is not None and vain.instance == instance and now < vain.until_s)

    def lacks(self, host: str, had: int) -> bool:
        """Count a report of a host that it lacks data. Return whether the host has reported so too often (R3)."""
        self._lacked[host] += 1
        return self._lacked[host] > MOST_LACKING + had // PER

    def disowns(self, host: str) -> int:
        """Record that a host names a second process as the leader. Return the number of hosts that do so."""
        self._disowned.add(host)
        return len(self._disowned)
