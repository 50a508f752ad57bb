"""Client's side of a run, as a process of its own on the client's host of the testbed.

``job`` has the messages between the worker and the launcher. The worker ends when its standard input is closed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.experiments.records.trees import ended_as, operators_at
from thalweg.experiments.run_config import file_name
from thalweg.experiments.runs.job import Ended, Go, Job, Said, Told, say
from thalweg.experiments.runs.omitted_sources import Pieces
from thalweg.experiments.runs.strategies import (
    begins_with_one_shot,
    cost_model,
    cost_parameters,
    make_strategy,
    placed_detail,
)
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.steering.run_options import Networks, Planning
from thalweg.middleware.client.stripes.stripes import trees_of
from thalweg.middleware.errors import HostAbsentError, RunError, ThalwegError, UsageError
from thalweg.middleware.loading import DEFAULT_ALLOW, reorderable
from thalweg.middleware.network.networks import networks_of
from thalweg.middleware.network.view import Link, LinkEstimate, NetworkView
from thalweg.middleware.planning import ProbedPlan
from thalweg.middleware.planning.registry import Strategy
from thalweg.middleware.platform.python import append_folders
from thalweg.middleware.protocol.limits import CoreConfig, MonitorConfig
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.recorder import Recorder
from thalweg.operators import Value, digest, write_image

ONE_SHOT = "one-shot"  # key of the plan for all placements that begin with one-shot


def main() -> int:
    """Execute the job from standard input, and return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides when a run ends
    lines = iter(sys.stdin.buffer.readline, b"")
    job = msgspec.json.decode(next(lines), type=Job)
    try:
        config, records = job.config, Path(job.records)
        monitor = MonitorConfig() if config.forecaster is None else MonitorConfig(forecaster=config.forecaster)
        recorder = Recorder("client", records / "deliveries.jsonl", config.time_scale)
        with (
            contextlib.closing(recorder),
            Client(
                job.addresses,
                listen=job.listen,
                insecure=True,
                allow=config.allow,
                time_scale=config.time_scale,
                records=records / "client.jsonl",
                limits=CoreConfig(monitor=monitor).limited(config.limits),
                networks=job.ends,
            ) as client,
        ):
            say(Said("ready"))
            plans = Plans(client, job)
            goes: queue.SimpleQueue[Go | None] = queue.SimpleQueue()
            threading.Thread(target=_listen, args=(lines, client, goes), name="listener", daemon=True).start()
            while (go := goes.get()) is not None:
                if go.ahead:
                    _plan_ahead(plans, go)
                else:
                    _placement(plans, go, recorder)
    except ThalwegError as error:
        say(Said("failed", message=str(error), usage=isinstance(error, UsageError)))
        return 1
    return 0


def _listen(lines: Iterator[bytes], client: Client, goes: queue.SimpleQueue[Go | None]) -> None:
    """Handle the launcher's messages, also while a placement runs."""
    for line in lines:
        message = msgspec.json.decode(line, type=Told)
        if isinstance(message, Go):
            goes.put(message)
        elif isinstance(message, Ended):
            client.lost(message.host, message.how)
        else:
            with contextlib.suppress(HostAbsentError, RunError):  # the host has ended again, or the client is closed
                client.add_host(message.host, message.control)
    goes.put(None)


class Plans:
    """Initial plans of a run's placements. Placements that begin with one-shot share the first such plan."""

    def __init__(self, client: Client, job: Job) -> None:
        self.client, self.job = client, job
        self.model = cost_model(job.config.cost, "independent")
        self.costs = cost_parameters(job.config)
        known = networks_of(job.tariffs, job.rented) if job.ends else {}
        self.networks = Networks(known, job.config.wanted_hz, job.config.hops)
        self._made: dict[str, tuple[ProbedPlan, str]] = {}  # by placement or ONE_SHOT; with its first placement

    def strategy(self, label: str) -> Strategy:
        """Return the strategy of a placement of the run, or of one-shot, which a collapse needs."""
        return make_strategy(label, self.job.options.get(label, {}))

    def plan(self, go: Go) -> tuple[ProbedPlan, bool]:
        """Return the plan of a placement, and whether the plan was made for a different placement before.

        The plan is made at the first call.
        """
        strategy = self.strategy(go.placement)
        kind = ONE_SHOT if begins_with_one_shot(strategy) else go.placement
        if kind not in self._made:
            view = None
            if go.truth is not None:
                view = NetworkView({Link(*link): LinkEstimate(rate_bps) for link, rate_bps in go.truth})
            dataflow = self.job.dataflow
            plan = self.client.plan(
                dataflow,
                strategy.initial,
                model=self.model,
                costs=self.costs,
                view=view,
                networks=self.networks,
                partitions=self.job.config.images,
            )
            self._made[kind] = plan, go.placement
        plan, maker = self._made[kind]
        return plan, maker != go.placement


def _plan_ahead(plans: Plans, go: Go) -> None:
    """Plan a placement, and deliver one partition, so that no placement pays for the hosts' first-time costs."""
    result, timeout_s = plans.plan(go)[0].result, plans.job.config.call_timeout_s
    more: dict[str, Any] = {"partitions": 1, "call_timeout_s": timeout_s, "networks": plans.networks}
    with plans.client.run(result.dataflow, result.placement, **more) as first:
        for _ in first:
            pass
    say(Said("planned", go.placement, detail={"placement": operators_at(result.dataflow, result.placement)}))


def _placement(plans: Plans, go: Go, recorder: Recorder) -> None:
    """Run one placement that has been planned, and record the plan's estimates and the deliveries."""
    client, config = plans.client, plans.job.config
    begun = time.time()
    label = go.placement
    recorder.open_run(RunId(label), label, begun)
    strategy = plans.strategy(label)
    plan, shared = plans.plan(go)
    detail = placed_detail(label, plan, shared=shared, truth=go.truth is not None)
    recorder.write(RunId(label), "placed", {"detail": detail})
    result = plan.result
    chosen = operators_at(result.dataflow, result.placement)
    say(Said("planned", label, detail={"placement": chosen, "probed": len(plan.asked)}))
    pictures: list[tuple[int, Value]] = []
    more: dict[str, Any] = {"call_timeout_s": config.call_timeout_s, "ahead": config.depth, "networks": plans.networks}
    if strategy.adaptation is not None:
        more |= {
            "adaptation": strategy.adaptation,
            "planning": Planning(
                model=plans.model,
                costs=plans.costs,
                hints=result.hints,
                known=plan.view.estimates,
                planner=strategy.again,
            ),
        }
    more["failover"] = plans.job.failover
    more |= {"partitions": config.images, "label": label, "epoch_s": begun, "nothing": True}
    run = client.run(result.dataflow, result.placement, stripes=trees_of(result), **more)
    mover = None
    if strategy.driver is not None:
        codes = [result.dataflow.by_name[name].code for name in result.dataflow.operators]
        free = reorderable(codes, (*DEFAULT_ALLOW, *config.allow))
        mover = RandomMover(strategy.driver, run, lambda: client.hosts, free.codes)
    pieces = Pieces()
    with run:
        for partition in run:
            if mover is not None:
                mover.on_delivered()
            if pieces.add(partition.sink, partition.index, partition.missing):
                detail = {"sink": partition.sink, "missing": partition.missing}
                say(Said("missing", label, partition.index, detail=detail))
            record = {
                "node": partition.sink,
                "index": partition.index,
                "size_bytes": partition.size_bytes,
                "detail": {"digest": digest(partition.value)},
            }
            recorder.write(RunId(label), "delivered", record)
            say(Said("delivered", label, partition.index))
            if config.pictured(partition.index) and isinstance(partition.value, np.ndarray):
                pictures.append((partition.index, partition.value))
    recorder.close_run(RunId(label))
    folder = Path(plans.job.pictures) / file_name(label)
    if pictures:
        folder.mkdir(parents=True, exist_ok=True)
    for index, value in pictures:
        write_image(np.asarray(value), folder / f"{index:03}.png")
    detail = {} if strategy.moving is None else ended_as(result.dataflow, *run.tree)
    say(Said("done", label, detail=detail))


if __name__ == "__main__":
    append_folders()
    status = main()
    sys.stdout.flush()
    os._exit(status) if threading.active_count() > 1 else sys.exit(status)
