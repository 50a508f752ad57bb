"""What the networks that join hosts cost: bytes that go over them, and links that are rented by the hour.

R1. A public network joins every two hosts. Who sends pays by the byte, and nothing for being joined.
R2. A dedicated network joins those hosts between which a link is rented: by the hour, used or not, and by the byte.
R3. A rented link takes a port, which is of whole Gbit/s and carries both directions.

Prices are in US dollars. Sources of the defaults: list prices of a large provider, as of 2024-06: traffic to the
internet (its first tier), and of dedicated connections a port of 1 Gbit/s and traffic out. Of these a port pays
from 4.3 GB an hour on.
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
    """What a network of a ``kind`` costs, in dollars.

    ``per_gb``: 10^9 bytes; ``per_hour``: a rented link; ``per_port_hour``: besides, each Gbit/s of its port.
    ``source``: where the prices are from, and of when.
    """

    kind: Kind = "public"
    per_gb: float = 0.0
    per_hour: float = 0.0
    per_port_hour: float = 0.0
    source: str = ""

    def carrying(self, size_bytes: float) -> float:
        """Dollars for so many bytes."""
        return self.per_gb * size_bytes / GB

    def renting(self, rate_bps: float, seconds: float) -> float:
        """Dollars for a link of that rate, both directions (R3), for so long; 0 in a public network (R1)."""
        if self.kind == "public":
            return 0.0
        ports = max(1, math.ceil(rate_bps / PORT_BPS))
        return (self.per_hour + ports * self.per_port_hour) * seconds / HOUR_S


_SOURCE = "list prices of a large provider, 2024-06"
TARIFFS: Mapping[Kind, Tariff] = {
    "public": Tariff("public", 0.09, source=_SOURCE),
    "dedicated": Tariff("dedicated", 0.02, per_port_hour=0.30, source=_SOURCE),
}
"""What networks cost that say nothing else."""
