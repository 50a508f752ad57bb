"""How a node begins on a host: with the run, in a later generation of it, or as it comes from another host.

Rules:

R1. Operators of a run that outlives its hosts keep their outputs (``retained``), where that is of use: sources make
    theirs again, sinks stay.
R2. In a graph a consumer says itself with which partition it goes on. The only one that a node has does so as well.
"""

from __future__ import annotations

from collections.abc import Iterable

from thalweg.middleware.core.flow.actions import LAST
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.flow.retained import Retained
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.dataflow import Node
from thalweg.middleware.protocol import messages as m


def begun(node: Node, tree: Tree, install: m.Install) -> NodeCore:
    """A node that begins with the run, or in a later generation of it."""
    limit, consumers = install.partitions, tree.consumers[node.name]
    lasting = install if isinstance(install, m.Lasting) else None
    starts = {} if lasting is None else {start.node: start for start in lasting.starts}
    start = starts.get(node.name)
    if lasting is not None and lasting.kept_from is not None and start is not None and consumers:
        core = NodeCore.anew(node, limit, start, firsts(consumers, tree, lasting))
    else:
        begins = {name: starts[name].index if name in starts else 0 for name in consumers}
        core = NodeCore.resumed(node, limit, 0 if start is None else start.index, begins)
    equip(core, tree, install)
    return core


def firsts(consumers: Iterable[str], tree: Tree, lasting: m.Lasting) -> dict[str, int | None]:
    """With which partition these consumers go on in that generation; None: each says so itself (R2)."""
    several = len(lasting.dataflow.sinks) > 1 or bool(lasting.dataflow.several)
    sinks = {start.node: start.index for start in lasting.starts if several}
    kinds = {name: tree.node_of(name).kind for name in consumers}
    return {
        name: sinks.get(name) if kind == "sink" or sinks.get(name) == LAST else None for name, kind in kinds.items()
    }


def equip(node: NodeCore, tree: Tree, install: m.Install) -> None:
    """Tell a node how many partitions may be under way, and have it keep its outputs (R1)."""
    node.depth = install.ahead
    kinds = {tree.node_of(name).kind for name in tree.consumers[node.node.name]}
    if isinstance(install, m.Lasting) and node.node.kind == "operator" and "operator" in kinds:
        node.log = Retained(install.failover.retained_bytes)
