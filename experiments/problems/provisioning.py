"""Provisioning problems: a tree of operators, objects and their servers, machines for rent, and a wanted throughput.

``docs/examples/provision.toml`` documents the form of their files, and is such a file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from thalweg.emulation.links.units import size_bytes
from thalweg.emulation.traces.files import ENVIRONMENT_VARIABLE
from thalweg.experiments.problems.catalogue import DOLLARS, Offer, offers, read_catalogue, read_date, read_egress
from thalweg.experiments.problems.reading import naming, quantity, rate_bps, read_problem
from thalweg.experiments.provisioning.instance import Egress, Flags, Indices, ProvisioningInstance
from thalweg.middleware.errors import UsageError, nearest


class ObjectSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Object with ``bytes`` a copy, fetched ``frequency`` times a second, by default once for every result."""

    name: str
    bytes: str | float
    frequency: float | None = None


class ServerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Server of ``objects``: rates of its card (``network``) and of its link to every machine (``link``)."""

    name: str
    objects: tuple[str, ...]
    network: str | float | None = None
    link: str | float | None = None
    region: str = ""


class OperatorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Operator. ``inputs``: objects and operators. ``work`` (in Mop) and ``bytes`` are of one result."""

    name: str
    inputs: tuple[str, ...]
    work: float
    bytes: str | float


class ProvisioningFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """File of a provisioning problem. ``throughput``: results a second.

    - ``catalogue``: file of machines, or ``machines`` here. ``machine_link``: rate between two machines.
    - ``egress``: file of prices of bytes, in ``egress_currency`` and of ``egress_date``. The file is beside this file
      or in the collection of data sets (``prices/``).
    - ``client``: region that receives the results.
    """

    throughput: float
    objects: tuple[ObjectSpec, ...]
    servers: tuple[ServerSpec, ...]
    operators: tuple[OperatorSpec, ...]
    catalogue: str | None = None
    machines: tuple[dict[str, Any], ...] = ()
    machine_link: str | float | None = None
    egress: str | None = None
    egress_currency: str = DOLLARS
    egress_date: Any = None
    client: str = ""


class Problem(msgspec.Struct, frozen=True):
    """Provisioning problem as arrays, with the offers of its classes. ``prices_of``: dates and sources of prices."""

    instance: ProvisioningInstance
    offers: tuple[Offer, ...]
    prices_of: tuple[str, ...]

    @property
    def core_mop_s(self) -> float:
        """Speed of one whole processor, the fastest of all offers."""
        return max(offer.speed for offer in self.offers)


def load_provisioning(path: Path) -> Problem:
    """Return the problem in a file. Raise UsageError naming the file and its missing, unknown or wrong part."""
    file = read_problem(path, ProvisioningFile)
    if (file.catalogue is None) == (not file.machines):
        raise UsageError(f"{path} needs either a catalogue, or machines")
    listed = None if file.catalogue is None else read_catalogue(path.parent / file.catalogue)
    prices = None if file.egress is None else read_egress(_prices_file(path.parent, file.egress))
    return naming(path, lambda: _problem(file, listed or offers(file.machines), prices))


def _prices_file(folder: Path, name: str) -> Path:
    """Return the path of a file of prices: beside the problem's file, or in the collection of data sets."""
    beside, collection = folder / name, os.environ.get(ENVIRONMENT_VARIABLE)
    known = [Path(collection, "prices", candidate) for candidate in (name, f"{name}.csv")] if collection else []
    return next((path for path in (beside, *known) if path.is_file()), beside)


def _problem(
    file: ProvisioningFile, listed: Sequence[Offer], prices: Mapping[tuple[str, str], float] | None
) -> Problem:
    if not (file.throughput > 0 and math.isfinite(file.throughput)):
        raise UsageError(f"throughput is {file.throughput:g} results a second; it must be above 0")
    _check_names(file)
    instance = _instance(file, listed, prices)
    dates = {f"{offer.date} {offer.source}" for offer in listed}
    if file.egress is not None:
        when = "undated" if file.egress_date is None else read_date(file.egress_date, "egress")
        dates.add(f"{when} {Path(file.egress).name}")
    return Problem(instance.check(), tuple(listed), tuple(sorted(dates)))


def _instance(
    file: ProvisioningFile, listed: Sequence[Offer], prices: Mapping[tuple[str, str], float] | None
) -> ProvisioningInstance:
    """Return the problem as arrays. The offers are the classes of machines."""
    operators = _upward(file)
    objects = {item.name: at for at, item in enumerate(file.objects)}
    cards = np.array([offer.network / 8 for offer in listed])
    links = np.array([_bytes_s(server.link, f"the link of server {server.name!r}") for server in file.servers])
    count = len(listed)
    frequency = [file.throughput if item.frequency is None else item.frequency for item in file.objects]
    return ProvisioningInstance(
        operators=tuple(operator.name for operator in operators),
        parent=_parents(operators),
        leaves=_leaves(operators, objects),
        work_mop=np.array([operator.work for operator in operators]),
        output_bytes=np.array([_size(operator.bytes, f"operator {operator.name!r}") for operator in operators]),
        objects=tuple(objects),
        object_bytes=np.array([_size(item.bytes, f"object {item.name!r}") for item in file.objects]),
        frequency_hz=np.array(frequency),
        servers=tuple(server.name for server in file.servers),
        holds=_holdings(file.servers, objects),
        server_card_bytes_s=np.array(
            [_bytes_s(server.network, f"the network of server {server.name!r}") for server in file.servers]
        ),
        server_link_bytes_s=np.repeat(links[:, np.newaxis], count, axis=1),
        classes=tuple(offer.label for offer in listed),
        speed_mop_s=np.array([offer.cpus * offer.speed for offer in listed]),
        cores=np.array([float(offer.cores) for offer in listed]),
        card_bytes_s=cards,
        price=np.array([offer.price for offer in listed]),
        limit=np.array([offer.count for offer in listed]),
        machine_link_bytes_s=np.full((count, count), _bytes_s(file.machine_link, "machine_link")),
        throughput_hz=file.throughput,
        egress=None if prices is None else _egress(file, listed, prices),
        currency=listed[0].currency,
    )


def _parents(operators: Sequence[OperatorSpec]) -> Indices:
    """Return the number of each operator's consumer, and -1 for the root."""
    number = {operator.name: at for at, operator in enumerate(operators)}
    parent = np.full(len(operators), -1, dtype=np.intp)
    for operator in operators:
        parent[[number[name] for name in operator.inputs if name in number]] = number[operator.name]
    return parent


def _leaves(operators: Sequence[OperatorSpec], objects: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of the objects among the inputs of each operator."""
    return tuple(tuple(objects[name] for name in operator.inputs if name in objects) for operator in operators)


def _holdings(servers: Sequence[ServerSpec], objects: Mapping[str, int]) -> Flags:
    """Return for every object (row) and server (column) whether the server holds the object."""
    held = [[name in server.objects for server in servers] for name in objects]
    return np.array(held).reshape(len(objects), len(servers))


def _check_names(file: ProvisioningFile) -> None:
    """Raise UsageError if a name is used twice, or an unknown object or input is named."""
    objects = [item.name for item in file.objects]
    known = [*objects, *(operator.name for operator in file.operators)]
    _check_each_once("object or operator", known)
    _check_each_once("server", [server.name for server in file.servers])
    if not file.operators:
        raise UsageError("there is no operator; give at least one")
    for server in file.servers:
        for name in server.objects:
            if name not in objects:
                raise UsageError(f"server {server.name!r} holds unknown object {name!r}; {nearest(name, objects)}")
    _check_inputs(file.operators, objects, known)


def _check_each_once(what: str, names: Sequence[str]) -> None:
    """Raise UsageError if a name is repeated or empty."""
    if twice := next((name for at, name in enumerate(names) if name in names[:at]), None):
        raise UsageError(f"{what} {twice!r} is given twice; give each its own name")
    if not all(names):
        raise UsageError(f"{what} '' has no name; give each its own name")


def _check_inputs(operators: Sequence[OperatorSpec], objects: Sequence[str], known: Sequence[str]) -> None:
    """Raise UsageError if an operator has no inputs or an unknown input, or if an operator's result is used twice."""
    consumer_of: dict[str, str] = {}
    for operator in operators:
        if not operator.inputs:
            raise UsageError(f"operator {operator.name!r} has no inputs; name objects or operators")
        for name in operator.inputs:
            if name not in known:
                raise UsageError(f"operator {operator.name!r} takes unknown {name!r}; {nearest(name, known)}")
            if name not in objects and consumer_of.setdefault(name, operator.name) != operator.name:
                raise UsageError(
                    f"operator {name!r} is an input of {consumer_of[name]!r} and of {operator.name!r}; in a tree it has"
                    " one consumer"
                )
            if name not in objects and operator.inputs.count(name) > 1:
                raise UsageError(f"operator {operator.name!r} takes {name!r} twice; name it once")


def _upward(file: ProvisioningFile) -> list[OperatorSpec]:
    """Return the operators, inputs before consumers. Raise UsageError for a cycle, or for several trees."""
    by_name = {operator.name: operator for operator in file.operators}
    inputs = {name for operator in file.operators for name in operator.inputs}
    roots = [name for name in by_name if name not in inputs]
    order: list[OperatorSpec] = []
    stack = [by_name[name] for name in roots[:1]]
    while stack:
        operator = stack.pop()
        order.append(operator)
        stack += [by_name[name] for name in operator.inputs if name in by_name]
    if len(roots) > 1:
        raise UsageError(f"operators {', '.join(map(repr, roots))} have no consumer; a tree has one root")
    if left := [name for name in by_name if name not in {operator.name for operator in order}]:
        consumer = {name: operator.name for operator in file.operators for name in operator.inputs if name in by_name}
        name = left[0]
        for _ in left:  # an operator that feeds a cycle is not on the cycle
            name = consumer[name]
        raise UsageError(f"operator {name!r} is on a cycle: it is made of its own results")
    return order[::-1]


def _egress(file: ProvisioningFile, listed: Sequence[Offer], prices: Mapping[tuple[str, str], float]) -> Egress:
    if file.egress_currency != listed[0].currency:
        fault = f"egress costs {file.egress_currency}, and machines {listed[0].currency}"
        raise UsageError(f"{fault}; give both in one currency (egress_currency)")
    for owner, region in (
        *((f"server {server.name!r}", server.region) for server in file.servers),
        *((f"machine {offer.name!r}", offer.region) for offer in listed),
        ("the client", file.client),
    ):
        if not region:
            raise UsageError(f"{owner} has no region, by which egress has prices; give one")

    def price(one: str, other: str) -> float:
        if one == other:
            return prices.get((one, other), 0.0)
        if (one, other) not in prices:
            raise UsageError(f"egress {file.egress} has no cost from {one!r} to {other!r}; {_near(one, other, prices)}")
        return prices[one, other]

    machines = [offer.region for offer in listed]
    return Egress(
        np.array([[price(server.region, region) for region in machines] for server in file.servers]),
        np.array([[price(source, target) for target in machines] for source in machines]),
        np.array([price(region, file.client) for region in machines]),
    )


def _near(one: str, other: str, prices: Mapping[tuple[str, str], float]) -> str:
    known = {region for pair in prices for region in pair}
    unknown = next((region for region in (one, other) if region not in known), "")
    return nearest(unknown, sorted(known)) if unknown else "add a row"


def _size(value: str | float, of: str) -> float:
    """Return a size in bytes. A size of 0 is allowed."""
    if value == 0:
        return 0.0
    return float(quantity(size_bytes, value, f"the bytes of {of}"))


def _bytes_s(rate: str | float | None, what: str) -> float:
    """Return a rate of bit/s in bytes/s. None: there is no limit."""
    return math.inf if rate is None else rate_bps(rate, what) / 8
