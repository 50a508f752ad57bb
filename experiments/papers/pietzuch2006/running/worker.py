"""The client of shares on a testbed, in a process of its own; says ``ready``, and ``done`` with what it got."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from thalweg.experiments.papers.pietzuch2006.running.job import BEFORE, Got, Job, Share
from thalweg.experiments.runs.job import Said, say
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.flow.stream import Delivered
from thalweg.middleware.client.runs.run import Run
from thalweg.middleware.errors import ThalwegError, UsageError
from thalweg.middleware.platform.python import append_folders
from thalweg.operators.reference import digest


def main() -> int:
    """Do the job that standard input describes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started it decides when it ends
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    records = Path(job.records) / "client.jsonl"
    try:
        with Client(
            job.addresses, listen=job.listen, insecure=True, time_scale=job.time_scale, records=records
        ) as client:
            say(Said("ready"))
            with ThreadPoolExecutor(len(job.shares)) as pool:
                found = [pool.submit(follow, client, share, job.partitions) for share in job.shares]
                got = {share.label: each.result() for share, each in zip(job.shares, found, strict=True)}
        placements = {label: placement for label, (_, placement) in got.items()}
        told = {"got": {label: each for label, (each, _) in got.items()}, "placements": placements}
        say(Said("done", detail=msgspec.to_builtins(told)))
        sys.stdin.buffer.read()  # until who started it closes it
    except ThalwegError as error:
        say(Said("failed", message=str(error), usage=isinstance(error, UsageError)))
        return 1
    return 0


def follow(client: Client, share: Share, partitions: int) -> tuple[list[Got], dict[str, str]]:
    """Run a share: its first query, the others after ``BEFORE`` partitions, and the moves when these have begun."""
    first, *others = share.queries
    if share.planner:  # all at a time they wait for one processor; what counts later is the shortest of each link
        for one, host in enumerate(client.hosts):
            client.latencies([(host, other) for other in client.hosts[one + 1 :]])
    run: Run[Any] = client.run(first, share.planner or share.placement, partitions=partitions, label=share.label)
    with run, ThreadPoolExecutor(len(others) + 1) as pool:
        digests = seen(islice(run, BEFORE))
        joined = []
        for query in others:
            joined.append(run.attach(query, {n: share.placement[n] for n in query.operators if n in share.placement}))
        taking = [pool.submit(seen, one) for one in joined]

        def move() -> None:
            for one in joined:
                _ = one.first_index  # which waits until it has begun
            run.move(share.moved)

        moving = pool.submit(move) if share.moved else None
        digests += seen(run)
        if moving is not None:
            moving.result()
        got = [Got(0, digests)]
        got += [Got(one.first_index, each.result()) for one, each in zip(joined, taking, strict=True)]
        return got, dict(run.tree[1])


def seen(partitions: Iterable[Delivered[Any]]) -> list[str]:
    """Their digests; they are taken as fast as they come."""
    return [digest(each.value) for each in partitions]


if __name__ == "__main__":
    append_folders()
    status = main()
    sys.stdout.flush()
    os._exit(status) if threading.active_count() > 1 else sys.exit(status)
