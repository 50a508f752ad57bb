"""Two queries that share two operators: what that saves on the links, and that one leaves without harm to the other.

With Thalweg installed, ``python two_queries.py``: on host processes of this machine. ``python two_queries.py netns``,
as root: each in a network namespace of its own, over links of 20 Mbit/s. It prints one line of JSON: that what came is
what one machine gives (``digests_equal``), how many indices are not the ones that were due (``gaps``), and how many
bytes the hosts sent, with the queries together and apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

from thalweg import Client, Code, Dataflow, Delivered, LocalCluster, Run, Testbed
from thalweg.operators.reference import digest, reference_run

HOSTS = ("h1", "h2", "h3")
PARTITIONS, THEIRS, BEFORE = 40, 20, 5  # of the first query, of the second, and of the first before that begins


def query(rule: str) -> Dataflow:
    """The brightest pixels of three cameras, in two steps; and by ``rule`` what these and the third camera show."""
    graph = Dataflow()
    scene = {"sites": 3, "seed": 1, "mean_bytes": 16_384, "relative_deviation": 0}
    cameras = [graph.source(Code("scenes", {"site": n, **scene}), at=host) for n, host in enumerate(HOSTS)]
    pair = graph.operator(Code("composite"), *cameras[:2], name="pair")
    all_three = graph.operator(Code("composite"), pair, cameras[2], name="all")
    graph.sink("shown", graph.operator(Code("composite", {"rule": rule}), all_three, cameras[2], name=rule))
    return graph


FIRST, SECOND = query("max"), query("min")
WHERE = {"pair": "h2", "all": "h3"}


def as_on_one_machine(flow: Dataflow, got: Sequence[Delivered], begins: int) -> bool:
    reference = islice(reference_run(flow, begins + len(got)), begins, None)
    return [digest(each.value) for each in got] == [digest(value) for value in reference]


def gaps(got: Sequence[Delivered], begins: int) -> int:
    return sum(each.index != due for due, each in enumerate(got, begins))


def sent_bytes(records: Path, label: str) -> int:
    """What the hosts sent each other and the client in runs of that label, as their records say."""
    rows = [json.loads(line) for file in records.iterdir() for line in file.read_text().splitlines()]
    return sum(row["detail"]["bytes_sent"] for row in rows if (row["kind"], row["placement"]) == ("monitor", label))


def together(client: Client) -> dict[str, object]:
    """Both queries in one run: the second begins while data flows, and leaves before the end."""
    run: Run = client.run(FIRST, WHERE | {"max": "h3"}, partitions=PARTITIONS, label="together")
    got = list(islice(run, BEFORE))
    other = run.attach(SECOND, {"min": "h3"})

    def take() -> list[Delivered]:
        theirs = list(islice(other, THEIRS))
        other.detach()
        return theirs

    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(take)
        got += run
        theirs = taken.result()
    begins = other.first_index
    equal = as_on_one_machine(FIRST, got, 0) and as_on_one_machine(SECOND, theirs, begins)
    return {
        "shared": other.shared,
        "first_index": begins,
        "delivered": [len(got), len(theirs)],
        "gaps": gaps(got, 0) + gaps(theirs, begins),
        "digests_equal": equal,
    }


def apart(client: Client) -> None:
    """The same partitions by two runs that know nothing of each other."""
    for flow, name, partitions in ((FIRST, "max", PARTITIONS), (SECOND, "min", THEIRS)):
        run = client.run(flow, WHERE | {name: "h3"}, partitions=partitions, label="apart")
        assert len(list(run)) == partitions


def both_ways(client: Client) -> dict[str, object]:
    with client:
        told = together(client)
        apart(client)
    return told


def on_processes(records: Path) -> dict[str, object]:
    with LocalCluster(HOSTS, records=records) as cluster:
        return both_ways(Client(cluster))


def in_namespaces(records: Path) -> dict[str, object]:
    """The hosts in a namespace each, and this program once more, as the client, in one beside them."""
    with Testbed.open("netns", [*HOSTS, "client"], rate="20mbit") as bed, ExitStack() as stack:
        ends = {name: f"tcp://{bed.hosts[name]}:7001" for name in HOSTS}
        for name, end in ends.items():
            options = ["--name", name, "--listen", end, "--insecure", "--records", str(records / f"{name}.jsonl")]
            argv = [sys.executable, "-P", "-m", "thalweg", "host", *options]
            host = bed.start(name, argv, stdout=subprocess.PIPE, env=os.environ)
            stack.callback(host.wait)
            stack.callback(host.terminate)
            assert host.stdout is not None
            stack.enter_context(host.stdout).readline()  # it listens
        told = bed.run("client", [sys.executable, __file__, "client", json.dumps(ends)], check=True, env=os.environ)
    return dict(json.loads(told.stdout))


def main(where: str = "processes") -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder)
        told = in_namespaces(records) if where == "netns" else on_processes(records)
        return told | {f"bytes_{label}": sent_bytes(records, label) for label in ("together", "apart")}


if __name__ == "__main__":
    where, *ends = sys.argv[1:] or ["processes"]
    print(json.dumps(both_ways(Client(json.loads(ends[0]), insecure=True)) if ends else main(where)))
