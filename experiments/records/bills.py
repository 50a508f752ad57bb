"""What a placement has cost on networks that have prices: the bytes of every link, and the hours of those rented."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import msgspec

from thalweg.middleware.network.tariffs import HOUR_S, Tariff
from thalweg.middleware.network.view import Link


class NetworkBill(msgspec.Struct, frozen=True):
    """What one network has cost: ``size_bytes`` that went over it, and ``rented`` links, each for both directions."""

    kind: str
    size_bytes: float
    rented: int
    bytes_cost: float
    rent: float


class Bill(msgspec.Struct, frozen=True):
    """What a placement has cost in dollars, and by network; ``hours`` are emulated."""

    total: float
    hours: float
    networks: dict[str, NetworkBill]

    @classmethod
    def of(
        cls,
        networks: Mapping[str, Tariff],
        rented: Mapping[Link, float],
        carried_bytes: Mapping[Link, float],
        seconds: float,
    ) -> Self:
        """``rented``: the links of dedicated networks and their rates, bit/s; ``seconds``: how long."""
        found = {}
        for via, tariff in networks.items():
            size_bytes = sum(size for link, size in carried_bytes.items() if link.via == via)
            rates: dict[frozenset[str], float] = {}
            for link, rate_bps in rented.items():
                if link.via == via and tariff.kind == "dedicated":
                    ends = frozenset(link[:2])
                    rates[ends] = max(rate_bps, rates.get(ends, 0.0))
            rent = sum(tariff.renting(rate_bps, seconds) for rate_bps in rates.values())
            found[via] = NetworkBill(tariff.kind, size_bytes, len(rates), tariff.carrying(size_bytes), rent)
        total = sum(one.bytes_cost + one.rent for one in found.values())
        return cls(total, seconds / HOUR_S, found)

    @property
    def text(self) -> str:
        """For people: ``$0.214: net 61 MB $0.005; leased 14 MB $0, 5 links for 0.14 h $0.209``."""
        parts = []
        for via, one in self.networks.items():
            part = f"{via} {one.size_bytes / 1e6:,.0f} MB ${one.bytes_cost:.3g}"
            if one.rented:
                part += f", {one.rented} links for {self.hours:.3g} h ${one.rent:.3g}"
            parts.append(part)
        return f"${self.total:.3g}: {'; '.join(parts)}"
