"""Provisioning problems as Benoit et al. (2008) draw them (section 7): trees, objects, servers and Dell's price list.

The paper gives neither the trees' shape nor units. The values here fit the paper's figures best. N counts all nodes of
a full binary tree that grows by splitting a leaf at random, so (N - 1)/2 nodes are operators. δ is in MB where it is
raised to α, and w in Mop. A GHz is 1,000 Mop/s, a Gb/s 125 MB/s. Servers' cards have 10,000 MB/s, and all links 1,000
MB/s.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from thalweg.experiments.provisioning.instance import ProvisioningInstance
from thalweg.middleware.errors import UsageError

MB = 1e6
MOP_S = 1_000.0  # Mop/s of a GHz
CARD_BYTES_S = 125 * MB  # of a Gb/s
BASE = 7_548.0  # $ of the machine without options
PROCESSORS = {11.72: 0.0, 19.20: 1_550.0, 25.60: 2_399.0, 38.40: 3_949.0, 46.88: 5_299.0}  # Table 1: GHz, $ more
CARDS = {1.0: 0.0, 2.0: 399.0, 4.0: 1_197.0, 10.0: 2_800.0, 20.0: 5_999.0}  # Table 1: Gb/s, $ more
TYPES, SERVERS = 15, 6
SERVER_CARD_BYTES_S, LINK_BYTES_S = 10_000 * MB, 1_000 * MB
SIZES_MB = {"small": (5.0, 30.0), "big": (450.0, 530.0)}
Shape = Literal["random", "left-deep", "n-ary"]


class Drawing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of drawn problems, those of section 7.2 and further problems.

    - ``nodes``: N, all nodes of the tree. With ``counted="operators"`` the tree has N operators.
    - ``alpha``: the exponent of work. ``sizes``: of objects. ``frequency_hz``: of fetching objects.
    - ``copies``: the number of servers with an object. ``machines``: all 25 of Table 1, or the dearest only (one
      class).
    - ``shape``: the leaf to split is random, or the last one, or random and split into 2 to 4.
    """

    nodes: int = 60
    alpha: float = 0.9
    sizes: Literal["small", "big"] = "small"
    frequency_hz: float = 1 / 2
    copies: int = 3
    machines: Literal["all", "one"] = "all"
    shape: Shape = "random"
    counted: Literal["nodes", "operators"] = "nodes"
    throughput_hz: float = 1.0

    def __post_init__(self) -> None:
        least = 1 if self.counted == "operators" else 3
        if self.nodes < least:
            raise UsageError(f"a tree of {self.nodes} {self.counted} has no operator; give at least {least}")
        if not 0 <= self.alpha <= 10:
            raise UsageError(f"α is {self.alpha:g}; give an exponent of work from 0 to 10")
        if not 1 <= self.copies <= SERVERS:
            raise UsageError(f"an object is on {self.copies} servers; there are {SERVERS}")

    @property
    def operators(self) -> int:
        """Number of the tree's operators."""
        return self.nodes if self.counted == "operators" else (self.nodes - 1) // 2


def drawn(drawing: Drawing, random: np.random.Generator) -> ProvisioningInstance:
    """Return one problem. Tree, objects and servers depend on the random numbers alone, not on α, f and machines."""
    children, leaves = _grown(drawing.operators, drawing.shape, random)
    sizes = random.uniform(*SIZES_MB[drawing.sizes], TYPES)
    kinds = random.integers(0, TYPES, sum(leaves)).tolist()
    ranks = np.argsort(random.random((TYPES, SERVERS)), axis=1)
    order = _bottom_up(children)
    number = {node: at for at, node in enumerate(order)}
    parent = np.full(len(order), -1, dtype=np.intp)
    held: list[tuple[int, ...]] = []
    into_mb, work = np.zeros(len(order)), np.zeros(len(order))
    for at, node in enumerate(order):
        own_kinds, kinds = tuple(kinds[: leaves[node]]), kinds[leaves[node] :]
        held.append(own_kinds)
        inputs = [number[child] for child in children[node]]
        parent[inputs] = at
        into_mb[at] = into_mb[inputs].sum() + sizes[list(own_kinds)].sum()
        work[at] = into_mb[at] ** drawing.alpha
    processors, cards = (PROCESSORS, CARDS) if drawing.machines == "all" else (_last(PROCESSORS), _last(CARDS))
    bought = [(ghz, gbps, BASE + more + extra) for ghz, more in processors.items() for gbps, extra in cards.items()]
    count = len(bought)
    return ProvisioningInstance(
        operators=tuple(f"n{at + 1}" for at in range(len(order))),
        parent=parent,
        leaves=tuple(held),
        work_mop=work,
        output_bytes=into_mb * MB,
        objects=tuple(f"o{at + 1}" for at in range(TYPES)),
        object_bytes=sizes * MB,
        frequency_hz=np.full(TYPES, drawing.frequency_hz),
        servers=tuple(f"s{at + 1}" for at in range(SERVERS)),
        holds=ranks < drawing.copies,
        server_card_bytes_s=np.full(SERVERS, SERVER_CARD_BYTES_S),
        server_link_bytes_s=np.full((SERVERS, count), LINK_BYTES_S),
        classes=tuple(f"{ghz:g} GHz, {gbps:g} Gb/s" for ghz, gbps, _ in bought),
        speed_mop_s=np.array([ghz * MOP_S for ghz, _, _ in bought]),
        card_bytes_s=np.array([gbps * CARD_BYTES_S for _, gbps, _ in bought]),
        price=np.array([price for _, _, price in bought]),
        limit=np.full(count, np.inf),
        machine_link_bytes_s=np.full((count, count), LINK_BYTES_S),
        throughput_hz=drawing.throughput_hz,
    ).check()


def _last(table: dict[float, float]) -> dict[float, float]:
    return dict([max(table.items())])


def _grown(operators: int, shape: Shape, random: np.random.Generator) -> tuple[list[list[int]], list[int]]:
    """Return the children and the number of leaves of every operator. The first operator is the root."""
    children: list[list[int]] = []
    leaves: list[int] = []
    open_leaves: list[int] = [-1]  # the operator above each leaf; -1 is above the root
    for node in range(operators):
        at = len(open_leaves) - 1 if shape == "left-deep" else int(random.integers(len(open_leaves)))
        above = open_leaves.pop(at)
        children.append([])
        leaves.append(int(random.integers(2, 5)) if shape == "n-ary" else 2)
        open_leaves += [node] * leaves[node]
        if above >= 0:
            children[above].append(node)
            leaves[above] -= 1
    return children, leaves


def _bottom_up(children: list[list[int]]) -> list[int]:
    """Return the operators in an order from the leaves to the root."""
    order = [0]
    for node in order:
        order += children[node]
    return order[::-1]
