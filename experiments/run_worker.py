"""The client's side of a run, in a process of its own inside the client's host of the testbed.

It speaks JSON, one object a line, with the process that started it: the job in and ``ready`` out, then for every
placement ``go`` in, and ``planned``, ``delivered`` …, ``done`` out. It ends when its standard input is closed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from thalweg.middleware.client import Client
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import ThalwegError, UsageError
from thalweg.middleware.network_view import LinkEstimate, NetworkView
from thalweg.middleware.planning import CostParameters, ProbedPlan, get_cost_model
from thalweg.middleware.recorder import Recorder
from thalweg.operators import Value, digest, write_image


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the worker is to do; ``addresses`` are the hosts' control endpoints."""

    dataflow: Dataflow
    addresses: dict[str, str]
    listen: str
    insecure: bool
    allow: tuple[str, ...]
    time_scale: float
    images: int
    pictures: int
    cost: str
    cost_options: dict[str, Any]
    costs: CostParameters
    records: str
    pictures_to: str


class Go(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Start ``placement`` now. ``truth``: the emulator's own (source, target, bit/s), when planners are to have it."""

    placement: str
    truth: list[tuple[str, str, float]] | None = None


class Word(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the worker says; which fields are set depends on ``event``."""

    event: str
    placement: str = ""
    index: int = -1
    t_s: float = 0.0
    message: str = ""
    usage: bool = False
    detail: dict[str, Any] = {}


def say(word: Word) -> None:
    """One line out."""
    os.write(1, msgspec.json.encode(word) + b"\n")


def main() -> int:
    """Do the job that standard input describes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides when a run ends
    lines = iter(sys.stdin.buffer.readline, b"")
    job = msgspec.json.decode(next(lines), type=Job)
    try:
        recorder = Recorder("client", Path(job.records) / "deliveries.jsonl", job.time_scale)
        with Client(
            job.addresses,
            listen=job.listen,
            insecure=job.insecure,
            allow=job.allow,
            time_scale=job.time_scale,
            records=Path(job.records) / "client.jsonl",
        ) as client:
            say(Word("ready"))
            for line in lines:
                _placement(client, job, msgspec.json.decode(line, type=Go), recorder)
        recorder.close()
    except ThalwegError as error:
        say(Word("failed", message=str(error), usage=isinstance(error, UsageError)))
        return 1
    return 0


def _placement(client: Client, job: Job, go: Go, recorder: Recorder) -> None:
    """Plan and run one placement, recording what it knew and what came."""
    begun = time.time()
    label = go.placement
    recorder.open_run(label, label, begun)
    view = None
    if go.truth is not None:
        view = NetworkView({(a, b): LinkEstimate(rate_bps) for a, b, rate_bps in go.truth})
    plan = client.plan(
        job.dataflow, label, model=get_cost_model(job.cost, **job.cost_options), costs=job.costs, view=view
    )
    now_s = (time.time() - begun) * job.time_scale
    _record_plan(recorder, plan, label, truth=go.truth is not None)
    chosen = {name: plan.result.placement[name] for name in job.dataflow.operators}
    say(Word("planned", label, t_s=now_s, detail={"placement": chosen, "probed": len(plan.asked)}))
    every = max(1, -(-job.images // job.pictures)) if job.pictures else 0
    kept: list[tuple[int, Value]] = []
    run = client.run(job.dataflow, plan.result.placement, partitions=job.images, label=label)
    with run:
        for partition in run:
            record = {
                "index": partition.index,
                "size_bytes": partition.size_bytes,
                "detail": {"digest": digest(partition.value)},
            }
            recorder.write(label, "delivered", record)
            say(Word("delivered", label, partition.index))
            if every and partition.index % every == 0:
                kept.append((partition.index, partition.value))
    recorder.close_run(label)
    folder = Path(job.pictures_to) / label.replace("/", "_").replace(":", "_")
    if kept:
        folder.mkdir(parents=True, exist_ok=True)
    for index, value in kept:
        write_image(np.asarray(value), folder / f"{index:03}.png")
    statistics = msgspec.structs.asdict(client.shell.statistics())
    say(Word("done", label, detail=statistics))


def _record_plan(recorder: Recorder, plan: ProbedPlan, label: str, *, truth: bool) -> None:
    result = plan.result
    detail = {
        "planner": label,
        "placement": result.placement,
        "predicted_s": result.cost_s,
        "initial_s": result.initial_cost_s,
        "critical": list(result.critical),
        "probed": 0 if truth else len(plan.asked),
        "rounds": plan.rounds,
        "evaluated": result.evaluated,
    }
    finite = {key: value for key, value in detail.items() if not (isinstance(value, float) and value - value != 0)}
    recorder.write(label, "placed", {"detail": finite})
    for a, b in sorted(plan.asked):
        rate = plan.view.rate_bps(a, b)
        if rate is not None:
            fields = {"peer": b, "value": rate, "detail": {"src": a, "dst": b, "rate_bps": rate}}
            recorder.write(label, "estimate", fields)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status) if threading.active_count() > 1 else sys.exit(status)
