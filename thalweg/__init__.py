"""Thalweg: combine data over a wide-area network, with operators that move to where the network is fast.

An embedder needs nothing but what is here::

    from thalweg import Client, Code, LocalCluster, complete_binary_tree

    scenes = {f"h{i + 1}": Code("scenes", {"site": i, "sites": 4, "seed": 1}) for i in range(4)}
    with LocalCluster(4) as cluster, Client(cluster) as client:
        for partition in client.run(complete_binary_tree(scenes, Code("composite")), "global"):
            print(partition.index, partition.value.shape)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thalweg.middleware.client.client import Client as Client
    from thalweg.middleware.client.cluster import LocalCluster as LocalCluster
    from thalweg.middleware.client.run import Delivered as Delivered
    from thalweg.middleware.client.run import Run as Run
    from thalweg.middleware.dataflow import Code as Code
    from thalweg.middleware.dataflow import Dataflow as Dataflow
    from thalweg.middleware.dataflow import Node as Node
    from thalweg.middleware.dataflow import Placement as Placement
    from thalweg.middleware.dataflow import complete_binary_tree as complete_binary_tree
    from thalweg.middleware.dataflow import left_deep_tree as left_deep_tree
    from thalweg.middleware.dataflow import star_tree as star_tree
    from thalweg.middleware.errors import CapabilityError as CapabilityError
    from thalweg.middleware.errors import DataflowError as DataflowError
    from thalweg.middleware.errors import HostAbsentError as HostAbsentError
    from thalweg.middleware.errors import HostLostError as HostLostError
    from thalweg.middleware.errors import OperatorError as OperatorError
    from thalweg.middleware.errors import PlacementError as PlacementError
    from thalweg.middleware.errors import ProtocolError as ProtocolError
    from thalweg.middleware.errors import RunError as RunError
    from thalweg.middleware.errors import TestbedError as TestbedError
    from thalweg.middleware.errors import ThalwegError as ThalwegError
    from thalweg.middleware.errors import TraceError as TraceError
    from thalweg.middleware.errors import UsageError as UsageError
    from thalweg.middleware.network.view import Link as Link
    from thalweg.middleware.network.view import LinkEstimate as LinkEstimate
    from thalweg.middleware.network.view import LinksNeeded as LinksNeeded
    from thalweg.middleware.network.view import NetworkView as NetworkView
    from thalweg.middleware.planning import CostParameters as CostParameters
    from thalweg.middleware.planning import Hints as Hints
    from thalweg.middleware.planning import Planner as Planner
    from thalweg.middleware.planning import PlanResult as PlanResult
    from thalweg.middleware.planning import get_cost_model as get_cost_model
    from thalweg.middleware.planning import get_planner as get_planner
    from thalweg.middleware.protocol.adaptation import GlobalMoves as GlobalMoves
    from thalweg.middleware.protocol.adaptation import LocalMoves as LocalMoves
    from thalweg.operators import BestOfLast as BestOfLast
    from thalweg.operators import Composite as Composite
    from thalweg.operators import ImageFolderSource as ImageFolderSource
    from thalweg.operators import Join as Join
    from thalweg.operators import Operator as Operator
    from thalweg.operators import Running as Running
    from thalweg.operators import SceneSource as SceneSource
    from thalweg.operators import Source as Source
    from thalweg.operators import Value as Value

__version__ = "0.1.0"

# Where the names come from. They are imported when first used, so that a host process, which needs few of them, stays
# small and starts fast.
_HOME = {
    "thalweg.middleware.protocol.adaptation": "GlobalMoves LocalMoves",
    "thalweg.middleware.client.client": "Client",
    "thalweg.middleware.client.run": "Delivered Run",
    "thalweg.middleware.client.cluster": "LocalCluster",
    "thalweg.middleware.dataflow": "Code Dataflow Node Placement complete_binary_tree left_deep_tree star_tree",
    "thalweg.middleware.errors": "CapabilityError DataflowError HostAbsentError HostLostError OperatorError"
    " PlacementError ProtocolError RunError TestbedError ThalwegError TraceError UsageError",
    "thalweg.middleware.network.view": "Link LinkEstimate LinksNeeded NetworkView",
    "thalweg.middleware.planning": "CostParameters Hints Planner PlanResult get_cost_model get_planner",
    "thalweg.operators": "BestOfLast Composite ImageFolderSource Join Operator Running SceneSource Source Value",
}

__all__ = sorted(name for names in _HOME.values() for name in names.split())


def __getattr__(name: str) -> Any:
    for module, names in _HOME.items():
        if name in names.split():
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'thalweg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
