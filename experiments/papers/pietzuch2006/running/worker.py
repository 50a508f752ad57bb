"""Client of shares on a testbed, in a separate process. Sends ``ready``, and ``done`` with the results."""

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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process decides when this process ends
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    records = Path(job.records) / "client.jsonl"
    try:
        with Client(
            job.addresses, listen=job.listen, insecure=True, time_scale=job.time_scale, records=records
        ) as client:
            say(Said("ready"))
            with ThreadPoolExecutor(len(job.shares)) as pool:
                futures = [pool.submit(follow, client, share, job.partitions) for share in job.shares]
                got = {share.label: future.result() for share, future in zip(job.shares, futures, strict=True)}
        placements = {label: placement for label, (_, placement) in got.items()}
        result = {"got": {label: received for label, (received, _) in got.items()}, "placements": placements}
        say(Said("done", detail=msgspec.to_builtins(result)))
        sys.stdin.buffer.read()  # until the parent process closes it
    except ThalwegError as error:
        say(Said("failed", message=str(error), usage=isinstance(error, UsageError)))
        return 1
    return 0


def follow(client: Client, share: Share, partitions: int) -> tuple[list[Got], dict[str, str]]:
    """Run a share: a first query, later queries after ``BEFORE`` partitions, and moves when every query has begun."""
    first, *later = share.queries
    if share.planner:  # host by host: all at once wait for one processor. The shortest of a link counts later
        for number, host in enumerate(client.hosts):
            client.latencies([(host, peer) for peer in client.hosts[number + 1 :]])
    run: Run[Any] = client.run(first, share.planner or share.placement, partitions=partitions, label=share.label)
    with run, ThreadPoolExecutor(len(later) + 1) as pool:
        digests = seen(islice(run, BEFORE))
        joined = []
        for query in later:
            joined.append(run.attach(query, {n: share.placement[n] for n in query.operators if n in share.placement}))
        taking = [pool.submit(seen, stream) for stream in joined]

        def move() -> None:
            for stream in joined:
                _ = stream.first_index  # waits until the query has begun
            run.move(share.moved)

        moving = pool.submit(move) if share.moved else None
        digests += seen(run)
        if moving is not None:
            moving.result()
        got = [Got(0, digests)]
        got += [Got(stream.first_index, future.result()) for stream, future in zip(joined, taking, strict=True)]
        return got, dict(run.tree[1])


def seen(partitions: Iterable[Delivered[Any]]) -> list[str]:
    """Return the digests of partitions, consumed as fast as they arrive."""
    return [digest(partition.value) for partition in partitions]


if __name__ == "__main__":
    append_folders()
    status = main()
    sys.stdout.flush()
    os._exit(status) if threading.active_count() > 1 else sys.exit(status)
