"""Provisioning problem as arrays: a tree of operators, the needed objects, their servers, and machines for rent.

An operator comes before its consumer. The last operator is the root. Machines are of classes. The rate of a link
depends on the classes at its ends, and ``limit`` is the number of machines of a class. So one form has all problems of
the paper. Constr-Hom has one class, and Constr-LAN several. In Non-Constr-Hom, -LAN and -Het every class is a single
machine. Source: Benoit, Casanova, Rehn-Sonigo, Robert (INRIA RR-6578), sections 2 and 3. The symbols of the paper stand
beside the names.
"""

from __future__ import annotations

import math
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.middleware.errors import UsageError

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
SLACK = 1e-9  # of a capacity: rounding is no overload
GB = 1e9  # bytes, as egress is priced


class Egress(msgspec.Struct, frozen=True):
    """Prices of traffic per GB, in the currency of the machines' prices.

    - ``from_servers``: (l, c) from a server to a machine of a class. ``between``: (c, c) from a machine to another.
    - ``results``: (c,) of the root's results, from its machine to their receiver.
    - ``paid_s``: time that the price of a machine pays for.
    """

    from_servers: Floats
    between: Floats
    results: Floats
    paid_s: float = 3_600.0


class ProvisioningInstance(msgspec.Struct, frozen=True, dict=True, kw_only=True):
    """Provisioning problem: a tree of operators with its objects and servers, and machines for rent.

    - ``operators``: names of n operators. ``parent``: (n,) the consumer of an operator, -1 of the root, the last
      operator.
    - ``leaves``: by operator the objects that it combines, repeated as often as an object is a leaf (Leaf).
    - ``work_mop``: (n,) w_i. ``output_bytes``: (n,) δ_i. Both are of one result.
    - ``objects``: names of k objects. ``object_bytes``: (k,) δ_k. ``frequency_hz``: (k,) f_k.
    - ``servers``: names of l servers. ``holds``: (k, l) whether a server holds an object. ``server_card_bytes_s``: (l,)
      Bs_l.
    - ``server_link_bytes_s``: (l, c) bs_l to a machine of a class.
    - ``classes``: names of c classes. ``speed_mop_s``: (c,) s. ``card_bytes_s``: (c,) Bp. ``price``: (c,).
    - ``cores``: (c,) number of operators that share the speed at once, in equal parts. None: one operator has it all.
    - ``limit``: (c,) number of machines of a class, inf for any number.
    - ``machine_link_bytes_s``: (c, c) bp between machines of two classes, both directions together.
    - ``throughput_hz``: ρ, results a second.
    - ``overlap``: whether a machine receives, computes and sends at once, as in the paper. Otherwise an operator does
      so in turn, as a node of a run (``answer.in_turn_s``).
    - ``egress``: prices of traffic, None if it is free. ``currency``: of prices.
    """

    operators: tuple[str, ...]
    parent: Indices
    leaves: tuple[tuple[int, ...], ...]
    work_mop: Floats
    output_bytes: Floats
    objects: tuple[str, ...]
    object_bytes: Floats
    frequency_hz: Floats
    servers: tuple[str, ...]
    holds: Flags
    server_card_bytes_s: Floats
    server_link_bytes_s: Floats
    classes: tuple[str, ...]
    speed_mop_s: Floats
    card_bytes_s: Floats
    price: Floats
    limit: Floats
    machine_link_bytes_s: Floats
    throughput_hz: float
    cores: Floats | None = None
    overlap: bool = True
    egress: Egress | None = None
    currency: str = "$"

    def check(self) -> ProvisioningInstance:
        """Return self. Raise UsageError naming the first operator, object, server or class that does not fit."""
        n, servers, c = len(self.operators), len(self.servers), len(self.classes)
        if not (n and c and servers):
            fault = f"there are {n} operators, {servers} servers and {c} machine classes"
            raise UsageError(f"{fault}; at least one of each is needed")
        self._check_sizes()
        self._check_tree()
        self._check_numbers()
        links = self.machine_link_bytes_s
        for a, b in np.argwhere(links != links.T)[:1].tolist():
            fault = f"machine_link_bytes_s from {self.classes[a]!r} to {self.classes[b]!r} is {links[a, b]:g}"
            raise UsageError(f"{fault}, and {links[b, a]:g} the other way; a link has one rate for both")
        if not (self.throughput_hz > 0 and math.isfinite(self.throughput_hz)):
            raise UsageError(f"the throughput is {self.throughput_hz:g} results a second; it must be above 0")
        return self

    def _check_sizes(self) -> None:
        """Raise UsageError if the shape of an array does not fit the numbers of names."""
        n, k, servers, c = (len(of) for of in (self.operators, self.objects, self.servers, self.classes))
        sizes: dict[tuple[int, ...], tuple[str, ...]] = {
            (n,): ("parent", "work_mop", "output_bytes"),
            (k,): ("object_bytes", "frequency_hz"),
            (k, servers): ("holds",),
            (servers,): ("server_card_bytes_s",),
            (servers, c): ("server_link_bytes_s",),
            (c,): ("speed_mop_s", "card_bytes_s", "price", "limit", *(("cores",) if self.cores is not None else ())),
            (c, c): ("machine_link_bytes_s",),
        }
        for size, fields in sizes.items():
            for field in fields:
                if (shape := getattr(self, field).shape) != size:
                    raise UsageError(f"{field} has the form {shape}; it must be {size}")

    def _check_numbers(self) -> None:
        """Raise UsageError if a number is missing, too small, or infinite in a field that needs a limit."""
        named = {
            kind: [f"{kind} {name!r}" for name in of]
            for kind, of in (
                ("operator", self.operators),
                ("object", self.objects),
                ("server", self.servers),
                ("class", self.classes),
            )
        }
        to_classes = [f"{a} to {b}" for a in named["server"] for b in named["class"]]
        between = [f"{a} to {b}" for a in named["class"] for b in named["class"]]
        for field, of, least in (
            ("work_mop", named["operator"], 0),
            ("output_bytes", named["operator"], 0),
            ("object_bytes", named["object"], 0),
            ("frequency_hz", named["object"], 0),
            ("server_card_bytes_s", named["server"], 0),
            ("server_link_bytes_s", to_classes, 0),
            ("speed_mop_s", named["class"], math.ulp(0)),
            ("card_bytes_s", named["class"], 0),
            ("price", named["class"], 0),
            ("machine_link_bytes_s", between, 0),
        ):
            values = getattr(self, field).ravel()
            endless = field.endswith("bytes_s")  # a card or a link may have no limit
            fits = (values >= least) & (np.isfinite(values) | endless)
            for wrong in np.flatnonzero(~fits)[:1].tolist():
                fault = "is missing" if np.isnan(values[wrong]) else f"is {values[wrong]:g}"
                right = f"{'above' if least else 'at least'} 0" + (", inf for no limit" if endless else " and finite")
                raise UsageError(f"{field} of {of[wrong]} {fault}; it must be {right}")

    def _check_tree(self) -> None:
        n, parents = self.count, self.parent.tolist()
        for node, parent in enumerate(parents):
            if not (node < parent < n if node < n - 1 else parent == -1):
                fault = f"the consumer of operator {self.operators[node]!r} is number {parent}"
                raise UsageError(
                    f"{fault} of {n}; each comes before its consumer, and the last, the root, has none (-1)"
                )
        if len(self.leaves) != n:
            raise UsageError(f"leaves are of {len(self.leaves)} operators; there are {n}")
        for node, leaves in enumerate(self.leaves):
            if unknown := [at for at in leaves if not 0 <= at < len(self.objects)]:
                fault = f"operator {self.operators[node]!r} needs object {unknown[0]}"
                raise UsageError(f"{fault}; there are {len(self.objects)}, from 0")
            for at in leaves:
                if not self.holds[at].any():
                    fault = f"object {self.objects[at]!r}, which operator {self.operators[node]!r} needs,"
                    raise UsageError(f"{fault} is on no server; name one that holds it")

    # --- derived values -------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Number of operators."""
        return len(self.operators)

    @cached_property
    def rate_bytes_s(self) -> Floats:
        """Rates rate_k (k,): load of a fetched object on every card and link of its route."""
        return self.object_bytes * self.frequency_hz

    @cached_property
    def sent_bytes_s(self) -> Floats:
        """Rates ρ·δ_i (n,) from an operator to a consumer on another machine, 0 of the root."""
        sent = self.throughput_hz * self.output_bytes
        sent[-1] = 0.0
        return sent

    @cached_property
    def asked_mop_s(self) -> Floats:
        """Work ρ·w_i (n,) of operators a second."""
        return self.throughput_hz * self.work_mop

    @cached_property
    def core_mop_s(self) -> Floats:
        """Speeds (c,) of a machine for one operator."""
        return self.speed_mop_s if self.cores is None else self.speed_mop_s / self.cores

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Operators that every operator consumes (Child)."""
        children: list[list[int]] = [[] for _ in self.operators]
        for node, parent in enumerate(self.parent[:-1].tolist()):
            children[parent].append(node)
        return tuple(map(tuple, children))

    @cached_property
    def needs(self) -> Flags:
        """Flags (n, k): whether an operator needs an object."""
        needs = np.zeros((self.count, len(self.objects)), dtype=bool)
        for node, leaves in enumerate(self.leaves):
            needs[node, list(leaves)] = True
        return needs


def reserved(instance: ProvisioningInstance, share: float) -> ProvisioningInstance:
    """Return the problem with a share of every machine and of its card left free."""
    left = 1 - share
    return msgspec.structs.replace(
        instance, speed_mop_s=instance.speed_mop_s * left, card_bytes_s=instance.card_bytes_s * left
    )
