"""Stars, one for each host, and shallow trees that are made of stars by hanging hosts elsewhere.

In a star, every host sends to one host, which combines all inputs and sends the result to the root. Stars fill quickly,
and a star for each host uses every link. But a star is as slow as the slowest link into its host. So the slowest link
of a tree is replaced: its host is hung below another host, over a link that is not slower. The load of a link is the
sum of the times of all trees, so the trees spread over the links (compare ``shapes.mixture``, whose trees are deep).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thalweg.middleware.planning.problem.loads import Floats

BETTER = 0.9  # a host is hung elsewhere if the load there is at most this part of the load here
ROUNDS = 20  # over all trees; later rounds change next to nothing


def stars(hosts: int) -> list[list[int]]:
    """Return a star for every host as a list of parents. Host 0 is the root, whose star is first."""
    return [[0, *(0 if host in {0, other} else host for other in range(1, hosts))] for host in range(hosts)]


def hung(trees: Sequence[Sequence[int]], transfer_s: Floats, combine_s: float, deepest: int) -> list[list[int]]:
    """Return the trees with hosts hung elsewhere, until no slowest link of a tree can be replaced.

    ``transfer_s``: (hosts, hosts) seconds of a result between two hosts. ``combine_s``: seconds of the combination of
    two inputs. ``deepest``: most edges between a host and the root.
    """
    count = len(transfer_s)
    seconds, hosts = transfer_s.tolist(), range(count)
    parents = [list(tree) for tree in trees]
    used = np.zeros((count, count))  # trees that use a link
    inputs = np.zeros(count)  # inputs from other hosts, of all trees
    for tree in parents:
        for host in range(1, count):
            used[host, tree[host]] += 1
            inputs[tree[host]] += 1
    for _ in range(ROUNDS):
        changed = False
        for tree in parents:
            for _ in hosts:
                host = max(range(1, count), key=lambda host: used[host, tree[host]] * seconds[host][tree[host]])
                now = tree[host]
                below, depth = _below(tree, host), _depths(tree)
                height = max([depth[other] for other in below]) - depth[host]
                free = [other for other in hosts if other not in below and depth[other] + 1 + height <= deepest]
                loads = {
                    other: max((used[host, other] + 1) * seconds[host][other], (inputs[other] + 1) * combine_s)
                    for other in free
                    if other != now
                }
                best = min(loads, key=lambda other: loads[other], default=now)
                if best == now or loads[best] > BETTER * used[host, now] * seconds[host][now]:
                    break
                used[host, now] -= 1
                inputs[now] -= 1
                used[host, best] += 1
                inputs[best] += 1
                tree[host], changed = best, True
        if not changed:
            break
    return parents


def _below(tree: Sequence[int], host: int) -> set[int]:
    """Return a host and the hosts below it."""
    below, level = {host}, {host}
    while level := {other for other in range(1, len(tree)) if tree[other] in level} - below:
        below |= level
    return below


def _depths(tree: Sequence[int]) -> list[int]:
    """Return the number of edges from every host to the root."""
    depths = [0] + [-1] * (len(tree) - 1)
    for host in range(1, len(tree)):
        path = [host]
        while depths[tree[path[-1]]] < 0:
            path.append(tree[path[-1]])
        for other in reversed(path):
            depths[other] = depths[tree[other]] + 1
    return depths
