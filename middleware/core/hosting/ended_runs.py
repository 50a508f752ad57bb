"""The runs that are over at a host, so that nothing of them that comes late opens one again.

Rules:

R1. A run that was closed here, or that its client removed before it came here, is known as over for as long as its
    client may go on with it unheard (``lease_s``, times ``patience``), and what it sends then may be late (``late_s``).
    One that was closed as its client was silent opens again for who lets this host join later than it did before.
R2. Runs are told apart by their clients too: nobody has another's run forgotten, or refused.
R3. ``max_past_runs`` are known one by one. Beyond that those of the client that has most are known as one: until all of
    them may be forgotten none of its runs is opened. Where they are spread over very many names, so it is for all.
"""

from __future__ import annotations

from collections import Counter

from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import NO_RUN, RunId

ALL = ""  # instead of a client's name, which is never empty; instead of a run's id it is ``NO_RUN``
FEW = 64  # the client that has most has at least this part of all


class EndedRuns:
    """Known until when: by client and run, what is forgotten first comes first."""

    def __init__(self, limits: CoreConfig) -> None:
        self._limits = limits
        # R1: the client may be silent for that long, and its last messages may be late
        self._kept_s = limits.patience * limits.lease_s + limits.late_s
        self.until_s: dict[tuple[str, RunId], float] = {}
        self._generations: dict[tuple[str, RunId], int] = {}  # of runs that outlive their hosts: the last that is over
        self._joined: dict[tuple[str, RunId], int] = {}  # of those whose clients were silent: ``Install.number``

    def add(self, client: str, run: RunId, now: float, *, opened: bool = True, joined: int | None = None) -> None:
        """A run is over now; without ``opened`` it has never been here. ``joined``: it opens again by what is later."""
        self._forget(now)
        until_s = self.until_s
        wildcard = next((pattern for pattern in ((ALL, NO_RUN), (client, NO_RUN)) if pattern in until_s), None)
        if wildcard is not None and not opened:
            return  # it is refused as it is, and whoever is refused removes what was
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
        """A run goes on here after all."""
        self.until_s.pop((client, run.first_generation), None)

    def _forget(self, now: float) -> None:
        until_s = self.until_s
        while until_s and until_s[oldest := next(iter(until_s))] <= now:
            del until_s[oldest]
            self._generations.pop(oldest, None)
            self._joined.pop(oldest, None)

    def _merge(self) -> None:
        """R3: know fewer of them apart."""
        (most, count), *_ = Counter(client for client, _ in self.until_s).most_common(1)
        last_s = next(reversed(self.until_s.values()))
        if count * FEW < len(self.until_s):
            self.until_s = {(ALL, NO_RUN): last_s}
            self._generations.clear()
            self._joined.clear()
            return
        self.until_s = {key: at_s for key, at_s in self.until_s.items() if key[0] != most}
        self._joined = {key: joined for key, joined in self._joined.items() if key in self.until_s}
        self.until_s[most, NO_RUN] = last_s

    def knows(self, client: str, run: RunId, now: float, joins: int = 0) -> bool:
        """Whether that run is over, also for who ``joins`` it by the ``Install`` of that number."""
        self._forget(now)
        key, generation = (client, run.first_generation), run.generation
        last = self._generations.get(key, 0)
        if key not in self.until_s or generation > last:
            return False
        return generation < last or joins <= self._joined.get(key, joins)

    def full(self, client: str) -> str:
        """Why none of a client's runs can be opened; empty where they can."""
        if (client, NO_RUN) in self.until_s or (ALL, NO_RUN) in self.until_s:
            return (
                f"more runs have ended here lately than the {self._limits.max_past_runs} that are known one by one;"
                f" begin another after {self._kept_s:g} s, or raise the limit max_past_runs"
            )
        return ""
