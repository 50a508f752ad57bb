"""Workload ``plates``: cameras along a road, whose records of plates are filtered, joined and counted.

Every camera's rows are filtered for wanted plates and for cars that are too fast. Sink ``alarms`` gets the rows that
two neighbouring cameras saw within ``JOINED_S`` of event time, with both pictures. Sink ``counts`` gets the number of
rows of each camera in a minute, every ``EVERY_S``. Each filter has two or three consumers.
"""

from __future__ import annotations

import itertools

from thalweg.experiments.run_config import CLIENT, PLATES_RATE, host_names
from thalweg.experiments.runs.base_workload import Workload
from thalweg.experiments.runs.strategies import reshapes_at_random
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import UsageError

WANTED = 12  # plates
FAST_MPS, FOUND = 30.0, 0.35  # the share: of all plates, found by either filter
JOINED_S = 30
COUNTED_S, EVERY_S, COUNTED = 60, 10, 0.02  # the last: share of the bytes without pictures


class Plates(Workload):
    """Workload with a graph of two sinks."""

    def dataflow(self) -> Dataflow:
        from thalweg.operators.plates import wanted

        config = self.config
        if config.servers < 2:
            raise UsageError("--servers is 1; two cameras have to see a plate, so --workload plates needs 2 at least")
        if reshapes_at_random(config):
            raise UsageError("random-reshapes changes trees, and --workload plates is a graph; use random-moves")
        rate = PLATES_RATE if config.rate is None else config.rate
        known = ["or", [">", "speed", FAST_MPS], ["in", "plate", wanted(config.seed, WANTED)]]
        graph, filters = Dataflow(), []
        for camera, host in enumerate(host_names(config.servers)):
            params = {"camera": camera, "seed": config.seed, "length": config.images, "span_s": 1 / rate}
            seen = graph.source(Code("thalweg.operators.plates:PlateSource", params), at=host, rate=rate)
            filters.append(
                graph.operator(_records("records:Select", where=known, share=FOUND), seen, name=f"found{camera + 1}")
            )
        join = _records("join:Join", on="plate", window_s=JOINED_S)
        joints = [
            graph.operator(join, *pair, name=f"joint{number}")
            for number, pair in enumerate(itertools.pairwise(filters), 1)
        ]
        per_camera = {"number": "count", "fastest": ["speed", "max"]}
        count = _records(
            "windows:Window", window_s=COUNTED_S, every=EVERY_S, by="camera", aggregates=per_camera, share=COUNTED
        )
        graph.sink("alarms", graph.operator(_records("records:Union"), *joints, name="all"), at=CLIENT)
        graph.sink("counts", graph.operator(count, *filters, name="count"), at=CLIENT)
        return graph.validate()


def _records(use: str, **params: object) -> Code:
    return Code(f"thalweg.operators.{use}", params)
