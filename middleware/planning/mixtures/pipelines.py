"""Trees over hosts as pipelines of nodes, with the seconds of every transfer and of every call of code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from thalweg.middleware.planning.shapes.host_tree import Joining
from thalweg.middleware.planning.shapes.search import TreeLoads


class Pipeline(NamedTuple):
    """Nodes of one tree, producers before consumers and the sink last, as columns.

    - ``host``: number of the node's host. ``consumer``: place of the node's consumer; -1 for the sink.
    - ``inputs``: places of the node's producers. A source has none.
    - ``sends_s``: seconds of the transfer of an output to the consumer; 0 on one host.
    - ``works_s``: seconds of the node's code on a processor, or of a source on a disk, for one partition.
    - ``levels``: number of edges on the longest path to the sink.
    """

    host: list[int]
    consumer: list[int]
    inputs: list[list[int]]
    sends_s: list[float]
    works_s: list[float]
    levels: int


def pipeline_of(loads: TreeLoads, parent: Sequence[int], joining: Joining) -> Pipeline:
    """Return the pipeline of the tree ``parent``, as ``shapes.host_tree.shaped`` forms the dataflow of the tree.

    ``parent``: for every host, the host that it sends to. Host 0 is the root, which has the sink.
    """
    children: list[list[int]] = [[] for _ in parent]
    for host in range(1, len(parent)):
        children[parent[host]].append(host)
    tree = Pipeline([], [], [], [], [], 0)
    sizes: list[float] = []
    level: list[int] = []

    def add(host: int, inputs: list[int], size: float, works_s: float) -> int:
        place = len(tree.host)
        for producer in inputs:
            tree.consumer[producer] = place
            source = tree.host[producer]
            if source != host:
                tree.sends_s[producer] = float(loads.transfer(sizes[producer])[source, host])
        tree.host.append(host)
        tree.consumer.append(-1)
        tree.inputs.append(inputs)
        tree.sends_s.append(0.0)
        tree.works_s.append(works_s)
        sizes.append(size)
        level.append(1 + max([level[producer] for producer in inputs], default=-1))
        return place

    def combine(host: int, inputs: list[int]) -> int:
        found = [sizes[producer] for producer in inputs]
        return add(host, inputs, loads.made(found), loads.compute_s(host, found))

    result: dict[int, int] = {}
    order = [0]
    for host in order:
        order.extend(children[host])
    for host in reversed(order):
        own = loads.sizes[host]
        arriving = [add(host, [], size, float(loads.disk_s[host]) / len(own)) for size in own]
        arriving += [result[child] for child in children[host]]
        if joining == "at-once" and len(arriving) > 1:
            result[host] = combine(host, arriving)
            continue
        result[host] = arriving[0]
        for producer in arriving[1:]:
            result[host] = combine(host, [result[host], producer])
    sink = add(0, [result[0]], 0.0, 0.0)
    return tree._replace(levels=level[sink])
