"""How a run went on that had lost hosts, as its records tell.

Seconds are emulated. A record ``recovered`` is of one generation of a run: it tells how long before the record what was
*detected* (a host was found lost), *decided* (the client knew where the run begins anew), *restored* (all hosts that
are needed had the run, and replicas were being restored), and when its *first output* came to the application. A record
``befallen`` is of what was done to a host's process on purpose.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec

from thalweg.experiments.records.log import Row
from thalweg.experiments.records.moves import Move

PHASES = {"detected": "detected", "decided": "decided", "ready": "restored", "first": "first_output"}


class Recovery(msgspec.Struct, frozen=True):
    """A run has begun anew since this host was lost.

    ``at_s``: when it was detected, or, where that is known, when the host's process was killed. ``phases_s``: how long
    after that; those are missing that the run did not reach. Where it began anew several times before anything came, as
    other hosts were lost, or a source's host had to be waited for, ``generation`` is the last one.
    ``stood_still_s``: the longest time between two deliveries around it. ``made_again``: partitions of all nodes, by
    ``again`` of each; ``moved``: operators and sources, and where they went.
    """

    at_s: float
    host: str
    how: str
    generation: int
    phases_s: dict[str, float]
    stood_still_s: float | None
    made_again: int
    again: dict[str, int]
    moved: dict[str, str]

    @property
    def until_s(self) -> float:
        """When it was over."""
        return self.at_s + max(self.phases_s.values(), default=0.0)

    def moves(self, placement: str) -> list[Move]:
        """The operators that went elsewhere, as moves."""
        lost, phases_s = self.host, self.phases_s
        begun_s, over_s = self.at_s + phases_s.get("detected", 0.0), self.until_s
        return [
            Move(placement, node, lost, host, begun_s, over_s, "moved", None, "its host was lost", "", None, None)
            for node, host in self.moved.items()
        ]


def recoveries_of(
    recovered: Sequence[Row], befallen: Iterable[Row] = (), delivered: Sequence[Row] = ()
) -> list[Recovery]:
    """Of the records of one placement, by time; ``delivered``: in order."""
    killed = [(row.host, row.t_s) for row in befallen if row.detail.outcome == "crash"]
    came = [row.t_s for row in delivered]
    found: list[Recovery] = []
    waiting: dict[str, tuple[float, str, dict[str, float], dict[str, str]]] = {}  # hosts lost, nothing came since
    for row in recovered:
        said = row.detail
        when = {name: row.t_s - ago for phase, name in PHASES.items() if (ago := said.ago.get(phase)) is not None}
        detected_s = when.get("detected", row.t_s)
        for host, how in said.hosts.items():
            at_s = max((at for other, at in killed if host == other and at <= detected_s), default=detected_s)
            waiting.setdefault(host, (at_s, how, {"detected": detected_s, "decided": when["decided"]}, {}))
        for host, (at_s, how, reached, moved) in list(waiting.items()):
            if host in said.hosts:
                moved |= said.moved
            for phase in ("restored", "first_output"):  # in either order: some may go on before all is restored
                if phase in when:
                    reached.setdefault(phase, when[phase])
            if {"restored", "first_output"} <= reached.keys():
                del waiting[host]
                found.append(_recovery(at_s, host, how, row, reached, moved, came))
    last = row if recovered else None
    found += [
        _recovery(at_s, host, how, last, reached, moved, came)
        for host, (at_s, how, reached, moved) in waiting.items()
        if last is not None
    ]
    return sorted(found, key=lambda one: (one.at_s, one.host))


def _recovery(
    at_s: float,
    host: str,
    how: str,
    row: Row,
    when: dict[str, float],
    moved: dict[str, str],
    came: Sequence[float],
) -> Recovery:
    until_s = max([*when.values(), at_s])
    near = [max((at for at in came if at <= at_s), default=0.0), *(at for at in came if at_s < at < until_s)]
    near.append(min((at for at in came if at >= until_s), default=until_s))
    again = {node: count for node, count in row.detail.again.items() if count}
    phases_s = {name: round(at - at_s, 6) for name, at in when.items()}
    still_s = max((after - before for before, after in itertools.pairwise(near)), default=None)
    about = host, how, row.detail.generation, phases_s, still_s, sum(again.values()), again, dict(moved)
    return Recovery(at_s, *about)
