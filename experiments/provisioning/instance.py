"""A provisioning problem as arrays: a tree of operators, the objects it needs, their servers, machines to be had.

Operators are numbered so that each comes before its consumer; the last is the root. Machines are of classes. A link's
rate depends on the classes at its ends, and ``limit`` says how many machines of a class there are, which makes one form
of all of the paper's problems: Constr-Hom has one class, Constr-LAN several, and in Non-Constr-Hom, -LAN and -Het every
class is one machine, which is there once. Source: Benoit, Casanova, Rehn-Sonigo, Robert (INRIA RR-6578), sections 2 and
3; their symbols stand beside the names.
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
    """What bytes cost on their way: prices per GB, in what machines are priced in, for the ``paid_s`` that those pay.

    - ``from_servers``: (l, c) from a server to a machine of a class; ``between``: (c, c) from a machine to another
    - ``results``: (c,) of the root's results, from its machine to whoever wants them
    """

    from_servers: Floats
    between: Floats
    results: Floats
    paid_s: float = 3_600.0


class ProvisioningInstance(msgspec.Struct, frozen=True, dict=True, kw_only=True):
    """What is computed, from what, and what can be rented for it.

    - ``operators``: names of the n operators; ``parent``: (n,) the consumer of each, -1 of the root, which is the last
    - ``leaves``: of every operator the objects it combines, one as often as it is a leaf (Leaf)
    - ``work_mop``: (n,) w_i; ``output_bytes``: (n,) δ_i, both of one result
    - ``objects``: names of k objects; ``object_bytes``: (k,) δ_k; ``frequency_hz``: (k,) f_k
    - ``servers``: names of l servers; ``holds``: (k, l) which objects each has; ``server_card_bytes_s``: (l,) Bs_l
    - ``server_link_bytes_s``: (l, c) bs_l to a machine of every class
    - ``classes``: names of c classes; ``speed_mop_s``: (c,) s; ``card_bytes_s``: (c,) Bp; ``price``: (c,)
    - ``cores``: (c,) how many operators share that speed at once, each with its part; None: one has all of it
    - ``limit``: (c,) how many machines there are of a class, inf where any number can be had
    - ``machine_link_bytes_s``: (c, c) bp between machines of two classes, both ways together
    - ``throughput_hz``: ρ, results a second
    - ``overlap``: whether a machine receives, computes and sends at once, as the paper's does; without it each operator
      does so in turn, as a node of a run (``answer.in_turn_s``)
    - ``egress``: what bytes cost, None where they are free; ``currency``: of prices
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
        """Return self; UsageError naming the first operator, object, server or class that does not fit."""
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
        """Raise UsageError if an array has not the form that the names ask for."""
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
        """Raise UsageError if a number is missing, negative or without a limit where it needs one."""
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

    # --- what follows from it -------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many operators there are."""
        return len(self.operators)

    @cached_property
    def rate_bytes_s(self) -> Floats:
        """(k,) rate_k: what fetching an object takes of every card and link on its way."""
        return self.object_bytes * self.frequency_hz

    @cached_property
    def sent_bytes_s(self) -> Floats:
        """(n,) ρ·δ_i, 0 of the root: what an operator sends to its consumer if that is on another machine."""
        sent = self.throughput_hz * self.output_bytes
        sent[-1] = 0.0
        return sent

    @cached_property
    def asked_mop_s(self) -> Floats:
        """(n,) ρ·w_i."""
        return self.throughput_hz * self.work_mop

    @cached_property
    def core_mop_s(self) -> Floats:
        """(c,) what a machine computes for one operator."""
        return self.speed_mop_s if self.cores is None else self.speed_mop_s / self.cores

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Of every operator those it consumes (Child)."""
        children: list[list[int]] = [[] for _ in self.operators]
        for node, parent in enumerate(self.parent[:-1].tolist()):
            children[parent].append(node)
        return tuple(map(tuple, children))

    @cached_property
    def needs(self) -> Flags:
        """(n, k) which objects an operator needs."""
        needs = np.zeros((self.count, len(self.objects)), dtype=bool)
        for node, leaves in enumerate(self.leaves):
            needs[node, list(leaves)] = True
        return needs


def reserved(instance: ProvisioningInstance, share: float) -> ProvisioningInstance:
    """The same where a share of every machine and its card is left free."""
    left = 1 - share
    return msgspec.structs.replace(
        instance, speed_mop_s=instance.speed_mop_s * left, card_bytes_s=instance.card_bytes_s * left
    )
