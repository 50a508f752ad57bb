"""Networks of a scenario file, which join the hosts, with prices and links.

R1. The network ``net``, which all hosts share, has a link for every directed pair. It is public, and need not be
    described.
R2. A further public network has a link for every directed pair too, and ``[links]`` applies to it.
R3. A dedicated network has only the links of its ``[[link]]`` tables, each with a rate and a reverse link.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from thalweg.emulation.scenarios.data_sets import near_miss
from thalweg.emulation.scenarios.toml import Keys, Spot, Text, Written
from thalweg.emulation.testbeds.testbed import MAX_NETWORKS
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.tariffs import TARIFFS, Kind, Tariff
from thalweg.middleware.network.view import NET

EVERY = "*"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,30}[A-Za-z0-9])?")  # it follows a host's name and a dot


class Price(float, metaclass=Written):
    """Dollars, at least 0."""

    @staticmethod
    def read(value: Any) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
            raise UsageError(f"{value!r} is not a price; write dollars as a number, such as 0.09")
        return float(value)


class NetworkKeys(Keys):
    """Keys of ``[networks.NAME]``: dollars for 10^9 bytes, an hour of a link, and an hour of a Gbit/s of a port."""

    kind: Kind | None = None
    price_per_gb: Price | None = None
    price_per_hour: Price | None = None
    price_per_port_hour: Price | None = None
    source: Text | None = None


class Within(Keys):
    """Key that names the network of a table's links."""

    network: Text | None = None


_PRICES = {"price_per_gb": "per_gb", "price_per_hour": "per_hour", "price_per_port_hour": "per_port_hour"}


def read_networks(root: Spot) -> dict[str, Tariff]:
    """Return the tariffs of the networks in the file, by name."""
    tables = root.inner("networks", "[networks]")
    tariffs: dict[str, Tariff] = {}
    for name in tables.value:
        spot = tables.inner(name, f"[networks.{name}]")
        if not _NAME.fullmatch(name):
            raise tables.error(f"network name {name!r} must be letters, digits and - _ between them, at most 32", name)
        spot.only(NetworkKeys)
        values = spot.given(spot.read(NetworkKeys))
        kind = values.get("kind", "public" if name == NET else "dedicated")
        if name == NET and kind != "public":
            raise spot.error(f"{NET!r} joins all hosts, so it is public; give links that are rented a network of their"
                             " own", "kind")  # fmt: skip
        tariffs[name] = _tariff(spot, kind, values)
    if len(tariffs.keys() - {NET}) > MAX_NETWORKS:
        raise tables.error(f"{len(tariffs)} networks; a testbed has at most {MAX_NETWORKS} besides {NET!r}")
    return tariffs


def _tariff(spot: Spot, kind: Kind, given: Mapping[str, Any]) -> Tariff:
    """Return the tariff with the given prices, or without prices, the tariff of the kind."""
    priced = [key for key in _PRICES if key in given]
    if kind == "public" and (rent := next((key for key in priced[::-1] if key != "price_per_gb"), None)):
        raise spot.error(f"{rent}: in a public network no link is rented; leave it out", rent)
    if not priced:
        if "source" in given:
            raise spot.error("source says where prices are from; give prices, or leave it out", "source")
        return TARIFFS[kind]
    return Tariff(kind, **{_PRICES[key]: given[key] for key in priced}, source=given.get("source", ""))


def via_of(spot: Spot, networks: Mapping[str, Tariff]) -> str:
    """Return the network that a table names, or without a name ``net``."""
    via = spot.read(Within).network or NET
    if via not in (NET, *networks):
        raise spot.error(f"network: there is no {via!r}; {near_miss(via, [NET, *networks])}", "network")
    return via


def vias_of(spot: Spot, networks: Mapping[str, Tariff], default: str = NET) -> tuple[str, ...]:
    """Return the networks of an event: the named network, or all for ``*``. ``default``: if it names none."""
    named = spot.value.get("network", default)
    return (NET, *(via for via in networks if via != NET)) if named == EVERY else (via_of(spot, networks),)
