"""Start of a node on a host: with the run, in a later generation of the run, or after a move from another host.

Rules:

R1. In a run with failover, an operator that feeds an operator keeps its outputs (``replay_log``). Other nodes need no
    log: sources make outputs again, and sinks stay where they are.
R2. If only the nodes of lost hosts restart, every consumer announces its next partition. If the graph has several
    sinks, or a node has several consumers, there is an exception. The client names the partition of every sink that has
    ended or belongs to the run's client.
R3. In every later generation, a sink of another client announces its partition too. The run's client knows the progress
    of the sink only roughly.
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
    """Return a node that begins with the run, or with a later generation of the run."""
    limit, consumers = install.partitions, tree.consumers[node.name]
    starts = {start.node: start for start in install.starts}
    start = starts.get(node.name)
    guests = {name for name in consumers if install.failover is not None and is_of_guest(name, tree, install)}
    index, free = (0, False) if start is None else (start.index, start.free)
    begins: dict[str, int | None]
    if install.kept_from is not None and start is not None and consumers:
        begins = firsts(consumers, tree, install)
    elif guests and start is not None and start.index < LAST:  # R3: a guest announces its own partition
        begins = {name: None if name in guests else starts[name].index for name in consumers}
    else:
        begins, free = {name: starts[name].index if name in starts else 0 for name in consumers}, False
    core = NodeCore.begun(node, limit, index, begins, free=free)
    equip(core, tree, install)
    return core


def is_of_guest(name: str, tree: Tree, install: m.Install) -> bool:
    """Return whether a node is the sink of a client that did not start the run."""
    node = tree.node_of(name)
    return node.kind == "sink" and node.pinned not in (None, install.client)


def firsts(consumers: Iterable[str], tree: Tree, install: m.Install) -> dict[str, int | None]:
    """Return the partition with which every consumer continues in the generation of ``install``.

    None: the consumer announces the partition (R2).
    """
    several = len(install.dataflow.sinks) > 1 or bool(install.dataflow.several)
    sinks = {start.node: start.index for start in install.starts if several}
    known = {
        name for name in consumers
        if sinks.get(name) == LAST or (tree.node_of(name).kind == "sink" and not is_of_guest(name, tree, install))
    }  # fmt: skip
    return {name: sinks.get(name) if name in known else None for name in consumers}


def equip(node: NodeCore, tree: Tree, install: m.Install) -> None:
    """Set the number of partitions of a node that may be under way, and create the replay log if R1 requires one."""
    node.window.depth = install.ahead
    kinds = {tree.node_of(name).kind for name in tree.consumers[node.node.name]}
    if install.failover is not None and node.node.kind == "operator" and "operator" in kinds:
        node.window.log = ReplayLog(install.failover.retained_bytes)
