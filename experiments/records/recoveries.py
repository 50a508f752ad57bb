"""Recoveries of a run that had lost hosts, from the run's records.

Seconds are emulated. A record ``recovered`` belongs to one generation of a run. It says how long before the record the
following phases were. *detected*: a host was found lost. *decided*: the client knew the restart points. *restored*: all
needed hosts had the run, and replicas were being restored. *first output*: the application got its first partition of
the generation. A record ``befallen`` tells of a fault that was caused on purpose in a host's process.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec

from thalweg.experiments.records.log import Row
from thalweg.experiments.records.moves import Move

PHASES = {"detected": "detected", "decided": "decided", "ready": "restored", "first": "first_output"}


class Recovery(msgspec.Struct, frozen=True):
    """Recovery of a run after the loss of one host.

    ``at_s``: time at which the host's process was killed if that is known, else time of the detection. ``phases_s``: by
    phase, seconds after ``at_s``; phases that the run did not reach are missing. A run may begin anew several times
    before its first output, as further hosts were lost or a source's host was awaited. Then ``generation`` is the last
    generation. ``stood_still_s``: longest time between two deliveries around the recovery. ``made_again``: partitions
    of all nodes that were computed again, by node in ``again``. ``moved``: operators and sources with their new hosts.
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
        """Time of the recovery's last phase."""
        return self.at_s + max(self.phases_s.values(), default=0.0)

    def moves(self, placement: str) -> list[Move]:
        """Return the recovery's changes of hosts as moves from the lost host."""
        lost, phases_s = self.host, self.phases_s
        begun_s, over_s = self.at_s + phases_s.get("detected", 0.0), self.until_s
        return [
            Move(placement, node, lost, host, begun_s, over_s, "moved", None, "its host was lost", "", None, None)
            for node, host in self.moved.items()
        ]


def recoveries_of(
    recovered: Sequence[Row], befallen: Iterable[Row] = (), delivered: Sequence[Row] = ()
) -> list[Recovery]:
    """Return the recoveries of one placement by time, from its records. ``delivered`` is in the order of time."""
    killed = [(row.host, row.t_s) for row in befallen if row.detail.outcome == "crash"]
    came = [row.t_s for row in delivered]
    recoveries: list[Recovery] = []
    waiting: dict[str, tuple[float, str, dict[str, float], dict[str, str]]] = {}  # lost hosts, not recovered
    for row in recovered:
        detail = row.detail
        when = {name: row.t_s - ago for phase, name in PHASES.items() if (ago := detail.ago.get(phase)) is not None}
        detected_s = when.get("detected", row.t_s)
        for host, how in detail.hosts.items():
            at_s = max((at for crashed, at in killed if host == crashed and at <= detected_s), default=detected_s)
            waiting.setdefault(host, (at_s, how, {"detected": detected_s, "decided": when["decided"]}, {}))
        for host, (at_s, how, reached, moved) in list(waiting.items()):
            if host in detail.hosts:
                moved |= detail.moved
            for phase in ("restored", "first_output"):  # in either order: outputs may come before all is restored
                if phase in when:
                    reached.setdefault(phase, when[phase])
            if {"restored", "first_output"} <= reached.keys():
                del waiting[host]
                recoveries.append(_recovery(at_s, host, how, row, reached, moved, came))
    last = row if recovered else None
    recoveries += [
        _recovery(at_s, host, how, last, reached, moved, came)
        for host, (at_s, how, reached, moved) in waiting.items()
        if last is not None
    ]
    return sorted(recoveries, key=lambda one: (one.at_s, one.host))


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
