"""Four cameras, plates read off their frames, an alarm for each that all cameras saw, and an archive of everything.

A second query begins while data flows, shares what is the same, and leaves. ``python docs/examples/cams.py``: frames
are a second of the road apart, and come five a second, five times as fast here. Hosts import this file as ``cams``,
which they are told to allow.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from thalweg import NOTHING, Client, Code, Dataflow, LocalCluster, Nothing, Operator, Run, Source

Frame = NDArray[np.uint8]
Plates = Any  # a pyarrow.Table: pyarrow has no types of its own


class Camera(Source[Frame]):
    """The frames of camera ``n``: every nine seconds a car comes by, ``n`` seconds after it entered the road."""

    def __init__(self, n: int) -> None:
        self.n = n

    def produce(self, index: int) -> Frame:
        frame = np.full((48, 64), 16, np.uint8)
        car, seconds = divmod(index - self.n, 9)
        if car >= 0 and seconds == 0:
            frame[0, :7] = np.frombuffer(f"TW-{car:04}".encode(), np.uint8)
        return frame


class Detect(Operator[Frame, Plates]):
    """The plate on a frame, if there is one, with the time in seconds; nothing for all others."""

    def combine(self, inputs: Sequence[Frame], index: int) -> Plates | Nothing:
        self.watermark_s = float(index + 1)  # frames come in order: nothing before the next one follows
        text = inputs[0][0, :7]
        if text[0] == 16:
            return NOTHING
        return pa.table({"plate": [text.tobytes().decode()], "time": [float(index)]})


def build() -> tuple[Dataflow, str]:
    """The graph, and the name of the join."""
    graph = Dataflow()
    cams = [graph.source(Code("cams:Camera", {"n": n}), at=f"h{n}", rate=5.0) for n in range(1, 5)]
    found = [graph.operator(Code("cams:Detect"), cam) for cam in cams]
    joint = graph.operator(Code("join", {"on": "plate", "window_s": 30}), *found)
    graph.sink("alarms", joint)
    graph.sink("archive", *cams, joint)
    return graph, joint


def second_query() -> Dataflow:
    """What the first camera sees: all of it is in the other graph as well."""
    graph = Dataflow()
    camera = graph.source(Code("cams:Camera", {"n": 1}), at="h1", rate=5.0)
    graph.sink("entered", graph.operator(Code("cams:Detect"), camera))
    return graph


def watch(run: Run[Any]) -> str:
    """A query beside the others, for three plates; then it leaves, without harm to them."""
    other = run.attach(second_query())
    plates = [str(partition.value["plate"][0]) for partition in islice(other, 3)]
    other.detach()
    return f"{len(other.shared)} nodes shared from frame {other.first_index} on, and {', '.join(plates)} entered"


def main(frames: int = 62) -> None:
    graph, joint = build()
    with (
        ThreadPoolExecutor(1) as pool,
        LocalCluster(4, allow=["cams"], time_scale=5.0) as cluster,
        Client(cluster, allow=["cams"]) as client,
    ):
        archived = 0
        run: Run[Any] = client.run(graph, partitions=frames)
        for partition in run:
            if partition.sink == "archive":
                *pictures, _ = partition.value
                archived += sum(map(np.size, pictures))
                if partition.index == 10:
                    run.move({joint: "h3"})  # what it remembers goes with it
                    second = pool.submit(watch, run)
            else:
                for row in partition.value.to_pylist():
                    print(f"frame {partition.index}: all cameras saw {row['plate']}, the first at {row['time']:g} s")
        print(f"the second query: {second.result()}")
    print(f"{archived:,} bytes of frames archived; the join ended at {run.placement[joint]}")


if __name__ == "__main__":
    main()
