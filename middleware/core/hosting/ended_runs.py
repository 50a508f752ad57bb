"""Ended runs of a host, so that no late message opens an ended run again.

Rules:

R1. A run is known as over after the host has closed the run, or after the client has removed the run before it came to
    the host. It stays known for ``lease_s`` times ``patience``, in which the client may go on without contact, and
    for ``late_s`` more, by which messages may be late. If the run was closed because the client was silent, the run
    opens again when the client lets this host join later than before.
R2. Runs are also told apart by their clients. No client can make a host forget or refuse the run of another client.
R3. ``max_past_runs`` runs are known one by one. If there are more, the runs of the client with the most runs become one
    entry, and no run of this client is opened until the entry is forgotten. If the runs are spread over very many
    clients, one entry stands for every client.
"""

from __future__ import annotations

from collections import Counter

from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import NO_RUN, RunId

ALL = ""  # stands for every client, as no name is empty; ``NO_RUN`` stands for every run
FEW = 64  # if no client has 1/FEW of the entries, one entry stands for every client


class EndedRuns:
    """Ended runs by client and run, with the time at which a run may be forgotten. The earliest comes first."""

    def __init__(self, limits: CoreConfig) -> None:
        self._limits = limits
        # R1: the client may be silent for that long, and its last messages may be late
        self._kept_s = limits.patience * limits.lease_s + limits.late_s
        self.until_s: dict[tuple[str, RunId], float] = {}
        self._generations: dict[tuple[str, RunId], int] = {}  # of runs with failover: the last generation that is over
        self._joined: dict[tuple[str, RunId], int] = {}  # of runs whose clients were silent: ``Install.number``

    def add(self, client: str, run: RunId, now: float, *, opened: bool = True, joined: int | None = None) -> None:
        """Note that a run is over now. Without ``opened`` the run has never been on this host.

        ``joined``: number of the last ``Install``. A later ``Install`` opens the run again.
        """
        self._forget(now)
        until_s = self.until_s
        wildcard = next((pattern for pattern in ((ALL, NO_RUN), (client, NO_RUN)) if pattern in until_s), None)
        if wildcard is not None and not opened:
            return  # the run is refused anyway; a refused client sends Remove
        key = wildcard or (client, run.first_generation)
        until_s.pop(key, None)
        self._joined.pop(key, None)
        until_s[key] = now + self._kept_s
        if wildcard is None and joined is not None:
            self._joined[key] = joined
        generation = run.generation
        if wildcard is None and generation > self._generations.get(key, 0):
            self._generations[key] = generation
        if len(until_s) > self._limits.max_past_runs:
            self._merge()

    def revive(self, client: str, run: RunId) -> None:
        """Forget the entry of a run, which goes on here after all."""
        self.until_s.pop((client, run.first_generation), None)

    def _forget(self, now: float) -> None:
        until_s = self.until_s
        while until_s and until_s[oldest := next(iter(until_s))] <= now:
            del until_s[oldest]
            self._generations.pop(oldest, None)
            self._joined.pop(oldest, None)

    def _merge(self) -> None:
        """Merge the entries of the client with the most runs, or of every client, into one entry (R3)."""
        (most, count), *_ = Counter(client for client, _ in self.until_s).most_common(1)
        last_s = next(reversed(self.until_s.values()))
        if count * FEW < len(self.until_s):
            self.until_s = {(ALL, NO_RUN): last_s}
            self._generations.clear()
            self._joined.clear()
            return
        self.until_s = {key: at_s for key, at_s in self.until_s.items() if key[0] != most}
        self._joined = {key: joined for key, joined in self._joined.items() if key in self.until_s}
        self._generations = {key: last for key, last in self._generations.items() if key in self.until_s}
        self.until_s[most, NO_RUN] = last_s

    def knows(self, client: str, run: RunId, now: float, joins: int = 0) -> bool:
        """Return whether a run is over. ``joins``: number of the ``Install`` by which this host would join the run."""
        self._forget(now)
        key, generation = (client, run.first_generation), run.generation
        last = self._generations.get(key, 0)
        if key not in self.until_s or generation > last:
            return False
        return generation < last or joins <= self._joined.get(key, joins)

    def full(self, client: str) -> str:
        """Return why no run of a client can be opened. Empty: runs can be opened."""
        if (client, NO_RUN) in self.until_s or (ALL, NO_RUN) in self.until_s:
            return (
                f"more runs have ended here lately than the {self._limits.max_past_runs} that the host remembers;"
                f" begin another run after {self._kept_s:g} s, or raise the limit max_past_runs"
            )
        return ""
