"""Prices of the networks that join hosts: of bytes, and of links that are rented by the hour.

R1. A public network joins every two hosts. The sender pays by the byte, and nothing for the connection.
R2. A dedicated network joins the hosts between which a link is rented. A link is paid by the hour, used or not, and by
the byte.
R3. A rented link takes a port, which has whole Gbit/s and carries both directions.

Prices are in US dollars. The defaults are list prices of a large provider, as of 2024-06: traffic to the internet
(first tier), a port of 1 Gbit/s for dedicated connections, and their traffic out. With these prices, a port pays from
4.3 GB an hour on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

Kind = Literal["public", "dedicated"]
KINDS: tuple[Kind, ...] = get_args(Kind)
GB = 1e9  # bytes
PORT_BPS = 1e9
HOUR_S = 3600.0


class Tariff(msgspec.Struct, frozen=True):
    """Prices of a network of a ``kind``, in dollars.

    ``per_gb``: for 10^9 bytes. ``per_hour``: for a rented link. ``per_port_hour``: besides, for each Gbit/s of its
    port. ``source``: origin and date of the prices.
    """

    kind: Kind = "public"
    per_gb: float = 0.0
    per_hour: float = 0.0
    per_port_hour: float = 0.0
    source: str = ""

    def carrying(self, size_bytes: float) -> float:
        """Return the dollars for ``size_bytes``."""
        return self.per_gb * size_bytes / GB

    def renting(self, rate_bps: float, seconds: float) -> float:
        """Return the dollars for a link of a rate, both directions (R3), for a time. A public network costs 0 (R1)."""
        if self.kind == "public":
            return 0.0
        ports = max(1, math.ceil(rate_bps / PORT_BPS))
        return (self.per_hour + ports * self.per_port_hour) * seconds / HOUR_S


_SOURCE = "list prices of a large provider, 2024-06"
TARIFFS: Mapping[Kind, Tariff] = {
    "public": Tariff("public", 0.09, source=_SOURCE),
    "dedicated": Tariff("dedicated", 0.02, per_port_hour=0.30, source=_SOURCE),
}
"""Default tariffs, by the kind of the network."""
