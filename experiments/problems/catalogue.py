"""Catalogues of machines for rent, and prices of bytes between regions: CSV or TOML.

A catalogue has a row, or a table ``[[machines]]``, for every machine of a region:

    name,cpus,speed,network,price,region,date,source
    t3.micro,0.2,1000,64mbit,0.0104,aws:us-east-1,2024-06-01,https://…

- ``cpus``: number of processors, also below 1. ``speed``: Mop/s of a processor. ``network``: rate of the card.
- ``price``: by the hour, in ``currency`` (USD). ``date``, ``source``: when and where the price was found.
- ``count``: number of machines, by default any number.

In TOML ``currency``, ``region``, ``date`` and ``source`` may stand once, at the top.

Prices of bytes are a CSV file ``src,dest,cost``, per GB (10^9 bytes) from one region to another.
"""

from __future__ import annotations

import csv
import datetime
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from thalweg.experiments.problems.reading import naming, rate_bps, read_problem, read_text
from thalweg.middleware.errors import UsageError, nearest

DOLLARS = "USD"
_NEEDED = ("name", "cpus", "speed", "network", "price", "date", "source")


class Offer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Machine for rent, with the fields that the module describes. ``network`` is in bit/s."""

    name: str
    cpus: float
    speed: float
    network: float
    price: float
    date: str
    source: str
    region: str = ""
    currency: str = DOLLARS
    count: float = math.inf

    @property
    def label(self) -> str:
        """Name of the machine among machines of other regions."""
        return f"{self.name} in {self.region}" if self.region else self.name

    @property
    def cores(self) -> int:
        """Number of operators that compute on the machine at once, with equal parts of its speed."""
        return max(1, math.ceil(self.cpus))


class CatalogueFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Catalogue in TOML. A value at the top is for all machines without a value of their own."""

    machines: tuple[dict[str, Any], ...] = ()
    currency: str | None = None
    region: str | None = None
    date: Any = None
    source: str | None = None


def read_catalogue(path: Path) -> tuple[Offer, ...]:
    """Return the machines of a catalogue. Raise UsageError naming the file, the machine and the wrong figure."""
    if path.suffix == ".csv":
        rows: Iterable[Mapping[str, Any]] = read_csv(path, ("name", "price"))
        return naming(path, lambda: offers(rows))
    file = read_problem(path, CatalogueFile)
    common = {key: value for key in ("currency", "region", "date", "source") if (value := getattr(file, key))}
    return naming(path, lambda: offers(common | row for row in file.machines))


def offers(rows: Iterable[Mapping[str, Any]]) -> tuple[Offer, ...]:
    """Return the machines with the figures of these rows. Raise UsageError naming a wrong machine."""
    by_label: dict[str, Offer] = {}
    for number, row in enumerate(rows, 1):
        offer = _offer(number, row)
        if offer.label in by_label:
            raise UsageError(f"machine {offer.label!r} is given twice; name each once")
        by_label[offer.label] = offer
    if not by_label:
        raise UsageError("there is no machine; give at least one")
    first = next(iter(by_label.values()))
    for offer in by_label.values():
        if offer.currency != first.currency:
            fault = f"machine {offer.label!r} has a price in {offer.currency}, and {first.label!r} in {first.currency}"
            raise UsageError(f"{fault}; give all in one currency")
    return tuple(by_label.values())


def _offer(number: int, row: Mapping[str, Any]) -> Offer:
    figures = {key: value for key, value in row.items() if value not in ("", None)}
    where = f"machine {figures['name']!r}" if "name" in figures else f"machine {number}"
    for key in figures:
        if key not in Offer.__struct_fields__:
            raise UsageError(
                f"{where} has {key!r}, which is none of its figures; {nearest(key, Offer.__struct_fields__)}"
            )
    for key in _NEEDED:
        if key not in figures:
            raise UsageError(f"{where} has no {key}; give one")
    for key in ("cpus", "speed", "price", "count"):
        if key in figures:
            figures[key] = _number(figures[key], f"the {key} of {where}", least=0.0, above=key in ("cpus", "speed"))
    figures["network"] = rate_bps(_bare(figures["network"]), f"the network of {where}")
    figures["date"] = read_date(figures["date"], where)
    try:
        return msgspec.convert(figures, Offer)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}") from error


def _number(value: Any, what: str, *, least: float, above: bool) -> float:
    value = _bare(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
        raise UsageError(f"{what} is {value!r}; give a number, {'above' if above else 'at least'} {least:g}")
    if above and value == least:
        raise UsageError(f"{what} is {value:g}; it must be above {least:g}")
    return float(value)


def _bare(value: Any) -> Any:
    """Return a text as a number if it is one, because CSV has only texts."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def read_date(value: Any, where: str) -> str:
    """Return a date as text that sorts by time. Raise UsageError about ``where`` for anything else."""
    try:
        return str(datetime.date.fromisoformat(str(value)))
    except ValueError:
        raise UsageError(f"the date of {where} is {value!r}; write it as 2024-06-01") from None


def read_csv(path: Path, needed: Iterable[str]) -> list[dict[str, str]]:
    """Return the rows of a CSV file. Raise UsageError for a missing column, or for a row of another length."""
    lines = csv.reader(read_text(path).splitlines())
    try:
        header = [column.strip() for column in next(lines, [])]
        rows = [[cell.strip() for cell in row] for row in lines if row]
    except csv.Error as error:
        raise UsageError(f"{path}: {error}") from error
    for column in needed:
        if column not in header:
            raise UsageError(f"{path} has no column {column!r}; its first line names the columns, as name,cpus,price")
    for number, row in enumerate(rows, 1):
        if len(row) != len(header):
            raise UsageError(f"{path}, row {number} has {len(row)} cells, and there are {len(header)} columns")
    return [dict(zip(header, row, strict=True)) for row in rows]


def read_egress(path: Path) -> dict[tuple[str, str], float]:
    """Return the price of a GB by source and destination region, from a CSV file."""
    costs: dict[tuple[str, str], float] = {}
    for row in read_csv(path, ("src", "dest", "cost")):
        pair = row["src"], row["dest"]
        costs[pair] = _number(row["cost"], f"{path}: the cost from {pair[0]!r} to {pair[1]!r}", least=0.0, above=False)
    return costs
