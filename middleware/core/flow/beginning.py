"""How a node begins on a host: with the run, in a later generation of it, or as it comes from another host.

Rules:

R1. Operators of a run that outlives its hosts keep their outputs (``replay_log``), where that is of use: sources make
    theirs again, sinks stay.
R2. In a graph a consumer says itself with which partition it goes on. The only one that a node has does so as well.
R3. So does a sink of another client in every later generation. The run's client knows about how far it is, and no more.
"""

from __future__ import annotations

from collections.abc import Iterable

from thalweg.middleware.core.flow.actions import LAST
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.replay_log import ReplayLog
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.dataflow import Node
from thalweg.middleware.protocol import messages as m


def begun(node: Node, tree: Tree, install: m.Install) -> NodeCore:
    """A node that begins with the run, or in a later generation of it."""
    limit, consumers = install.partitions, tree.consumers[node.name]
    starts = {start.node: start for start in install.starts}
    start = starts.get(node.name)
    guests = {name for name in consumers if install.failover is not None and is_of_guest(name, tree, install)}
    index, free = (0, False) if start is None else (start.index, start.free)
    begins: dict[str, int | None]
    if install.kept_from is not None and start is not None and consumers:
        begins = firsts(consumers, tree, install)
    elif guests and start is not None and start.index < LAST:  # R3: begin at the guest's own partition
        begins = {name: None if name in guests else starts[name].index for name in consumers}
    else:
        begins, free = {name: starts[name].index if name in starts else 0 for name in consumers}, False
    core = NodeCore.begun(node, limit, index, begins, free=free)
    equip(core, tree, install)
    return core


def is_of_guest(name: str, tree: Tree, install: m.Install) -> bool:
    """Whether that is a sink of another client than the run's."""
    node = tree.node_of(name)
    return node.kind == "sink" and node.pinned not in (None, install.client)


def firsts(consumers: Iterable[str], tree: Tree, install: m.Install) -> dict[str, int | None]:
    """With which partition these consumers go on in that generation; None: each says so itself (R2)."""
    several = len(install.dataflow.sinks) > 1 or bool(install.dataflow.several)
    sinks = {start.node: start.index for start in install.starts if several}
    known = {
        name for name in consumers
        if sinks.get(name) == LAST or (tree.node_of(name).kind == "sink" and not is_of_guest(name, tree, install))
    }  # fmt: skip
    return {name: sinks.get(name) if name in known else None for name in consumers}


def equip(node: NodeCore, tree: Tree, install: m.Install) -> None:
    """Tell a node how many partitions may be under way, and have it keep its outputs (R1)."""
    node.window.depth = install.ahead
    kinds = {tree.node_of(name).kind for name in tree.consumers[node.node.name]}
    if install.failover is not None and node.node.kind == "operator" and "operator" in kinds:
        node.window.log = ReplayLog(install.failover.retained_bytes)
