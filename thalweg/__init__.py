"""Thalweg: combine data over a wide-area network, with operators that move to where the network is fast.

An embedder needs nothing but what is here::

    from thalweg import Client, Code, LocalCluster, complete_binary_tree

    scenes = {f"h{i + 1}": Code("scenes", {"site": i, "sites": 4, "seed": 1}) for i in range(4)}
    with LocalCluster(4) as cluster, Client(cluster) as client:
        for partition in client.run(complete_binary_tree(scenes, Code("composite")), "global"):
            print(partition.index, partition.value.shape)
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thalweg.emulation.links.shape import LinkShape
    from thalweg.emulation.proofs.proof import LinkProof
    from thalweg.emulation.supervisor.client import TestbedProcess
    from thalweg.emulation.wan import Testbed
    from thalweg.middleware.client.client import Client
    from thalweg.middleware.client.cluster import LocalCluster
    from thalweg.middleware.client.flow.feeds import Feed
    from thalweg.middleware.client.flow.stream import Delivered
    from thalweg.middleware.client.moving.moves import Moved, MoveHandle
    from thalweg.middleware.client.queries.subscription import Subscription
    from thalweg.middleware.client.runs.run import Run
    from thalweg.middleware.client.steering.run_options import Networks, Planning
    from thalweg.middleware.dataflow import (
        Code,
        Dataflow,
        Node,
        Placement,
        complete_binary_tree,
        left_deep_tree,
        star_tree,
    )
    from thalweg.middleware.errors import (
        CapabilityError,
        CommandError,
        DataflowError,
        HostAbsentError,
        HostLostError,
        JournalError,
        JournalGapError,
        MoveRefused,
        OperatorError,
        PlacementError,
        ProtocolError,
        RunError,
        TestbedError,
        ThalwegError,
        TraceError,
        UsageError,
    )
    from thalweg.middleware.network.networks import Network
    from thalweg.middleware.network.view import Link, LinkEstimate, LinksNeeded, NetworkView
    from thalweg.middleware.parcels import NOTHING, Nothing
    from thalweg.middleware.planning import CostParameters, Hints, Planner, PlanResult, get_cost_model, get_planner
    from thalweg.middleware.protocol.adaptation import GlobalMoves, LocalMoves
    from thalweg.middleware.protocol.messages import Failover
    from thalweg.operators import (
        ArrayJoin,
        BestOfLast,
        Composite,
        ImageFolderSource,
        Operator,
        Running,
        SceneSource,
        Source,
        Value,
    )

__all__ = [
    "NOTHING",
    "ArrayJoin",
    "BestOfLast",
    "CapabilityError",
    "Client",
    "Code",
    "CommandError",
    "Composite",
    "CostParameters",
    "Dataflow",
    "DataflowError",
    "Delivered",
    "Failover",
    "Feed",
    "GlobalMoves",
    "Hints",
    "HostAbsentError",
    "HostLostError",
    "ImageFolderSource",
    "JournalError",
    "JournalGapError",
    "Link",
    "LinkEstimate",
    "LinkProof",
    "LinkShape",
    "LinksNeeded",
    "LocalCluster",
    "LocalMoves",
    "MoveHandle",
    "MoveRefused",
    "Moved",
    "Network",
    "NetworkView",
    "Networks",
    "Node",
    "Nothing",
    "Operator",
    "OperatorError",
    "Placement",
    "PlacementError",
    "PlanResult",
    "Planner",
    "Planning",
    "ProtocolError",
    "Run",
    "RunError",
    "Running",
    "SceneSource",
    "Source",
    "Subscription",
    "Testbed",
    "TestbedError",
    "TestbedProcess",
    "ThalwegError",
    "TraceError",
    "UsageError",
    "Value",
    "complete_binary_tree",
    "get_cost_model",
    "get_planner",
    "left_deep_tree",
    "star_tree",
]
__version__ = "0.1.0"
logging.getLogger("thalweg").addHandler(logging.NullHandler())  # what becomes of log records is the application's

# Where the names come from. They are imported when first used, so that a host process, which needs few of them, stays
# small and starts fast.
_HOME = {
    "thalweg.emulation.links.shape": "LinkShape",
    "thalweg.emulation.proofs.proof": "LinkProof",
    "thalweg.emulation.supervisor.client": "TestbedProcess",
    "thalweg.emulation.wan": "Testbed",
    "thalweg.middleware.protocol.adaptation": "GlobalMoves LocalMoves",
    "thalweg.middleware.protocol.messages": "Failover",
    "thalweg.middleware.client.client": "Client",
    "thalweg.middleware.client.flow.feeds": "Feed",
    "thalweg.middleware.client.moving.moves": "MoveHandle Moved",
    "thalweg.middleware.client.runs.run": "Run",
    "thalweg.middleware.client.steering.run_options": "Networks Planning",
    "thalweg.middleware.client.flow.stream": "Delivered",
    "thalweg.middleware.client.queries.subscription": "Subscription",
    "thalweg.middleware.client.cluster": "LocalCluster",
    "thalweg.middleware.dataflow": "Code Dataflow Node Placement complete_binary_tree left_deep_tree star_tree",
    "thalweg.middleware.errors": "CapabilityError CommandError DataflowError HostAbsentError HostLostError JournalError"
    " JournalGapError MoveRefused OperatorError PlacementError ProtocolError RunError TestbedError ThalwegError"
    " TraceError UsageError",
    "thalweg.middleware.network.networks": "Network",
    "thalweg.middleware.network.view": "Link LinkEstimate LinksNeeded NetworkView",
    "thalweg.middleware.parcels": "NOTHING Nothing",
    "thalweg.middleware.planning": "CostParameters Hints Planner PlanResult get_cost_model get_planner",
    "thalweg.operators": "ArrayJoin BestOfLast Composite ImageFolderSource Operator Running SceneSource Source Value",
}


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names.split():
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'thalweg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
