"""``bench link``: one hop on loopback, a source in another process, against a bare DEALER and ROUTER."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import zmq

from thalweg.experiments.bench.options import LinkOptions
from thalweg.experiments.bench.processes import Pythons
from thalweg.experiments.bench.rounds import Plan, Progress, Side, alternate, median_per_s, median_ratio, silent
from thalweg.experiments.bench.tree import ALLOW, ANSWER_S, ThalwegTree, bench_dataflow, check_digests
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.errors import RunError, UsageError

CREDITS = 2  # the next partition is under way while one is taken
ZERO_COPY_BYTES = 1024 * 1024  # measured: below it a copy is cheaper than pyzmq's keeping track of a buffer


class RawLink:
    """A DEALER in another process that sends a partition for every credit, and a ROUTER here that gives them."""

    def __init__(self, size_bytes: int) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._pythons = Pythons()
        try:
            self._router = self._context.socket(zmq.ROUTER)
            self._router.setsockopt(zmq.RCVTIMEO, int(ANSWER_S * 1000))
            self._router.bind("tcp://127.0.0.1:*")
            spec = {"size_bytes": size_bytes, "zero_copy": size_bytes >= ZERO_COPY_BYTES}
            self._pythons.start("hop", "thalweg.experiments.bench.peers_raw", "hop", spec)
            self._pythons.ready()
            self._pythons.tell("hop", [self._router.getsockopt_string(zmq.LAST_ENDPOINT)])
            self._hop = self._receive()[0].bytes
        except BaseException:
            self.close()
            raise

    def _receive(self) -> list[zmq.Frame]:
        try:
            return self._router.recv_multipart(copy=False)
        except zmq.Again:
            raise RunError(f"the bare link was silent for {ANSWER_S:g} s; run the benchmark again") from None

    def stream(self, partitions: int) -> Iterator[Any]:
        asked = 0
        for index in range(partitions):
            while asked < min(partitions, index + CREDITS):
                self._router.send_multipart([self._hop, b""])
                asked += 1
            yield self._receive()[1].buffer

    def close(self) -> None:
        self._pythons.close()
        self._context.destroy(linger=0)


def bench_link(options: LinkOptions, progress: Progress = silent) -> dict[str, Any]:
    """Compare one hop for each partition size; the object that ``thalweg bench link --json`` prints.

    Rates are medians over the rounds, ``ratio`` the median of each round's ratio. Raises UsageError for numbers below
    1, RunError when a side's digest is wrong.
    """
    rounds, sizes_bytes = options.rounds, [kib * 1024 for kib in options.sizes_kib]
    if rounds < 1 or not sizes_bytes or min(sizes_bytes) < 1:
        raise UsageError("bench link needs at least one round, and sizes of at least 1 byte")
    rows: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        progress("starting the processes")
        cluster = stack.enter_context(LocalCluster(1, allow=ALLOW))
        client = stack.enter_context(Client(cluster, allow=ALLOW))
        for size_bytes in sizes_bytes:
            plan = Plan(max(12, options.round_bytes // size_bytes), 4)
            with contextlib.closing(RawLink(size_bytes)) as raw:
                sides: dict[str, Side] = {"thalweg": ThalwegTree(client, bench_dataflow(1, size_bytes), {}), "raw": raw}
                plans = dict.fromkeys(sides, plan)
                played = alternate(sides, plans, rounds, lambda step, n=size_bytes: progress(f"{n} bytes, {step}"))  # type: ignore[misc]
            check_digests(played, plans, 1, size_bytes)
            rows.append(
                {
                    "size_bytes": size_bytes,
                    "thalweg_mb_per_s": round(median_per_s(played["thalweg"]) * size_bytes / 1e6, 1),
                    "raw_mb_per_s": round(median_per_s(played["raw"]) * size_bytes / 1e6, 1),
                    "ratio": round(median_ratio(played["thalweg"], played["raw"]), 3),
                }
            )
    return {"bench": "link", "sizes": rows, "rounds": rounds}
