"""A run, and another process that takes the partitions of one of its nodes for a while.

With Thalweg installed, ``python subscriber.py``: the hosts, the client that begins the run (``operator``), and the one
that subscribes (``watcher``) are processes of this machine. It prints one line of JSON: which partitions each got,
and whether they are what one machine gives.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from itertools import islice

from thalweg import Client, Code, Dataflow, LocalCluster
from thalweg.operators.reference import digest, reference_run

THEIRS = 10  # partitions


def cameras() -> Dataflow:
    graph = Dataflow()
    scenes = [Code("scenes", {"site": n, "sites": 2, "seed": 1, "length": 100_000}) for n in range(2)]
    seen = [graph.source(code, at=f"h{n + 1}", rate=40) for n, code in enumerate(scenes)]
    graph.sink("overview", graph.operator(Code("composite"), *seen, name="joint"))
    return graph


def watch(hosts: Mapping[str, str], ticket: str) -> dict[str, object]:
    """The other process: it knows where the hosts are, and was given the run's ticket."""
    with Client(hosts, name="watcher") as client, client.subscribe(ticket, "joint") as joint:
        got = list(islice(joint, THEIRS))
    return {"first": got[0].index, "last": got[-1].index, "digests": [digest(each.value) for each in got]}


def main() -> dict[str, object]:
    with LocalCluster(["h1", "h2"]) as cluster, Client(cluster, name="operator") as client:
        run = client.run(cameras(), "one-shot", subscribers=["watcher"])
        asks = [sys.executable, __file__, json.dumps(dict(cluster.addresses)), run.ticket]
        watcher = subprocess.Popen(asks, stdout=subprocess.PIPE, text=True)
        got = []
        for partition in run:  # which goes on as the other joins and leaves
            got.append(digest(partition.value))
            if watcher.poll() is not None:
                break
        run.close()
        theirs = json.loads(watcher.communicate()[0])
    reference = [digest(value) for value in reference_run(cameras(), len(got))]
    due = reference[theirs["first"] : theirs["last"] + 1]
    return {
        "operator": len(got),
        "watcher": [theirs["first"], theirs["last"]],
        "digests_equal": got == reference and theirs["digests"] == due,
    }


if __name__ == "__main__":
    print(json.dumps(watch(json.loads(sys.argv[1]), sys.argv[2]) if sys.argv[1:] else main()))
