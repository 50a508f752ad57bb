"""The client's side of a run, in a process of its own inside the client's host of the testbed.

What it says to the process that started it stands in ``job``. It ends when its standard input is closed.
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

from thalweg.experiments.records.trees import ended_as, operators_at
from thalweg.experiments.runs.job import Go, Job, Word
from thalweg.experiments.runs.strategies import begins_with_one_shot, make_strategy, placed_detail
from thalweg.middleware.client.client import Client
from thalweg.middleware.errors import ThalwegError, UsageError
from thalweg.middleware.network.view import Link, LinkEstimate, NetworkView
from thalweg.middleware.planning import ProbedPlan, get_cost_model
from thalweg.middleware.planning.registry import Strategy
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.shell.recorder import Recorder
from thalweg.operators import Value, digest, write_image


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
            limits=CoreConfig(monitor=job.monitor),
        ) as client:
            say(Word("ready"))
            plans = Plans(client, job)
            for line in lines:
                go = msgspec.json.decode(line, type=Go)
                if go.ahead:
                    _plan_ahead(plans, go)
                else:
                    _placement(plans, go, recorder)
        recorder.close()
    except ThalwegError as error:
        say(Word("failed", message=str(error), usage=isinstance(error, UsageError)))
        return 1
    return 0


class Plans:
    """What a run's placements begin with. Those that begin with one-shot share the first plan of it."""

    def __init__(self, client: Client, job: Job) -> None:
        self.client, self.job = client, job
        self.model = get_cost_model(job.cost, **job.cost_options)
        self._made: dict[str, ProbedPlan] = {}  # by placement; the shared one by that for which it was made
        self._one_shot: str | None = None

    def make(self, strategy: Strategy, go: Go) -> ProbedPlan:
        """Plan, if no plan can be shared."""
        shareable = begins_with_one_shot(strategy)
        if shareable and self._one_shot is not None:
            return self._made[self._one_shot]
        view = None
        if go.truth is not None:
            view = NetworkView({Link(a, b): LinkEstimate(rate_bps) for a, b, rate_bps in go.truth})
        job = self.job
        plan = self.client.plan(job.dataflow, strategy.initial, model=self.model, costs=job.costs, view=view)
        self._made[go.placement] = plan
        if shareable:
            self._one_shot = go.placement
        return plan

    def made(self, label: str) -> tuple[ProbedPlan, bool]:
        """The plan of a placement that was planned ahead, and whether it was made for another one."""
        own = self._made.get(label)
        if own is not None:
            return own, False
        assert self._one_shot is not None
        return self._made[self._one_shot], True


def _plan_ahead(plans: Plans, go: Go) -> None:
    """Plan a placement, and let one partition pass, so that no placement pays for what hosts do for the first time."""
    job = plans.job
    plan = plans.make(make_strategy(go.placement, job.strategies.get(go.placement, {})), go)
    result = plan.result
    with plans.client.run(result.dataflow, result.placement, partitions=1) as first:
        for _ in first:
            pass
    say(Word("planned", go.placement, detail={"placement": operators_at(result.dataflow, result.placement)}))


def _placement(plans: Plans, go: Go, recorder: Recorder) -> None:
    """Run one placement, which has been planned, recording what it knew and what came."""
    client, job = plans.client, plans.job
    begun = time.time()
    label = go.placement
    recorder.open_run(label, label, begun)
    strategy = make_strategy(label, job.strategies[label])
    plan, shared = plans.made(label)
    detail = placed_detail(label, plan, shared=shared, truth=go.truth is not None)
    recorder.write(label, "placed", {"detail": detail})
    result = plan.result
    chosen = operators_at(result.dataflow, result.placement)
    say(Word("planned", label, detail={"placement": chosen, "probed": len(plan.asked)}))
    every = max(1, -(-job.images // job.pictures)) if job.pictures else 0
    kept: list[tuple[int, Value]] = []
    moving: dict[str, Any] = {}
    if strategy.adaptation is not None:
        moving = {
            "adaptation": strategy.adaptation,
            "planner": strategy.again,
            "model": plans.model,
            "costs": job.costs,
            "hints": result.hints,
            "known": plan.view.estimates,
        }
    run = client.run(result.dataflow, result.placement, partitions=job.images, label=label, epoch_s=begun, **moving)
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
    detail = {"statistics": statistics}
    if strategy.adaptation is not None:
        detail |= ended_as(result.dataflow, *run.tree)
    say(Word("done", label, detail=detail))


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status) if threading.active_count() > 1 else sys.exit(status)
