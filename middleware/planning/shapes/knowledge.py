"""Knowledge of the links between hosts in a search for a tree, and the choice of further links to measure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from thalweg.middleware.network.view import Link, NetworkView
from thalweg.middleware.planning.problem.hints import CostParameters
from thalweg.middleware.planning.problem.loads import Floats
from thalweg.middleware.planning.shapes.search import UNKNOWN_S

PROBES_PER_HOST = 6  # with 8 servers and a client, enough for all 36 pairs of hosts
AT_ONCE_PER_HOST = 20  # links that share no interface: enough for all pairs of 40 hosts
FIRST_SHARE = 0.5  # share of the probes that are asked for at the start
HOPE = 0.8  # quantile of known rates that is assumed for an unknown link


def transfers(per_byte: Floats, costs: CostParameters) -> Callable[[float], Floats]:
    """Return a function from a size in bytes to the seconds of transfers, (hosts, hosts).

    A transfer over an unusable link takes ``UNKNOWN_S`` at most, which is finite.
    """

    def transfer_s(size: float) -> Floats:
        with np.errstate(invalid="ignore"):  # 0 bytes over an unusable link; the link stays unusable
            seconds: Floats = np.fmin(costs.startup_s + size * per_byte, UNKNOWN_S)
        np.fill_diagonal(seconds, 0.0)
        return seconds

    return transfer_s


class Knowledge:
    """Rates of the links between ``names``, the client first, and the links that should be measured next.

    ``probes``: most pairs of hosts to be measured. None: a number for each host, larger if links are measured at once.
    """

    def __init__(self, names: Sequence[str], view: NetworkView, probes: int | None, *, at_once: bool = False) -> None:
        self.names, self.count, self._at_once = names, len(names), at_once
        self.rates = np.array(view.rates_bps(names))
        self.unknown: npt.NDArray[np.bool_] = np.isnan(self.rates)
        pairs = self.count * (self.count - 1) // 2
        most = (AT_ONCE_PER_HOST if at_once else PROBES_PER_HOST) * self.count if probes is None else probes
        self.left = min(pairs, most) - (pairs - self._pairs_unknown())

    def _pairs_unknown(self) -> int:
        return int(np.triu(self.unknown & self.unknown.T, 1).sum())

    def _links(self, pairs: Sequence[tuple[int, int]]) -> frozenset[Link]:
        both = [*pairs, *((b, a) for a, b in pairs)] if self._at_once else pairs
        return frozenset(Link(self.names[a], self.names[b]) for a, b in both)

    def first(self) -> frozenset[Link]:
        """Return the links to measure if few are known: rings of all hosts, each with a larger step.

        Empty if a quarter of the possible probes are known already.
        """
        pairs = self.count * (self.count - 1) // 2
        known = pairs - self._pairs_unknown()
        budget = self.left + known
        if known * 4 >= budget:
            return frozenset()
        wanted: list[tuple[int, int]] = []
        most = budget if budget >= pairs else int(budget * FIRST_SHARE)
        for step in range(1, self.count // 2 + 1):
            for a in range(self.count):
                b = (a + step) % self.count
                if self.unknown[a, b] and self.unknown[b, a] and (b, a) not in wanted and len(wanted) < most - known:
                    wanted.append((a, b))
        return self._links(wanted)

    def open(self, parent: Sequence[int]) -> frozenset[Link]:
        """Return the unknown links of a tree, at most as many as probes are left; all of them if no probes are left."""
        used = [(host, parent[host]) for host in range(1, self.count) if self.unknown[host, parent[host]]]
        return self._links(used[: self.left] if self.left > 0 else used)

    def transfers(self, costs: CostParameters) -> Callable[[float], Floats]:
        """Return a function from a size in bytes to the seconds of transfers, (hosts, hosts).

        Unknown links count as fast as hoped while probes are left, and otherwise as unusable.
        """
        rates = self.rates.copy()
        known = rates[np.isfinite(rates) & (rates > 0)]
        hoped = float(np.quantile(known, HOPE)) if self.left > 0 and len(known) else 0.0
        rates[self.unknown] = hoped
        per_byte = np.divide(8.0, rates, out=np.full(rates.shape, math.inf), where=rates > 0)
        return transfers(per_byte, costs)
