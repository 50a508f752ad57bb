"""Costs of a placement on networks that have prices: bytes of every link, and hours of rented links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import msgspec

from thalweg.middleware.network.tariffs import HOUR_S, Tariff
from thalweg.middleware.network.view import Link


class NetworkBill(msgspec.Struct, frozen=True):
    """Costs of one network: ``size_bytes`` carried, and ``rented`` links, each for both directions."""

    kind: str
    size_bytes: float
    rented: int
    bytes_cost: float
    rent: float


class Bill(msgspec.Struct, frozen=True):
    """Costs of a placement in dollars, in total and by network. ``hours`` are emulated."""

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
        """Return the bill of a placement after ``seconds``.

        ``rented``: links of dedicated networks and their rates, in bit/s. ``carried_bytes``: bytes by link.
        """
        bills = {}
        for via, tariff in networks.items():
            size_bytes = sum(size for link, size in carried_bytes.items() if link.via == via)
            rates: dict[frozenset[str], float] = {}
            for link, rate_bps in rented.items():
                if link.via == via and tariff.kind == "dedicated":
                    ends = frozenset(link[:2])
                    rates[ends] = max(rate_bps, rates.get(ends, 0.0))
            rent = sum(tariff.renting(rate_bps, seconds) for rate_bps in rates.values())
            bills[via] = NetworkBill(tariff.kind, size_bytes, len(rates), tariff.carrying(size_bytes), rent)
        total = sum(bill.bytes_cost + bill.rent for bill in bills.values())
        return cls(total, seconds / HOUR_S, bills)

    @property
    def text(self) -> str:
        """The bill for people: ``$0.214: net 61 MB $0.005; leased 14 MB $0, 5 links for 0.14 h $0.209``."""
        parts = []
        for via, bill in self.networks.items():
            part = f"{via} {bill.size_bytes / 1e6:,.0f} MB ${bill.bytes_cost:.3g}"
            if bill.rented:
                part += f", {bill.rented} links for {self.hours:.3g} h ${bill.rent:.3g}"
            parts.append(part)
        return f"${self.total:.3g}: {'; '.join(parts)}"
