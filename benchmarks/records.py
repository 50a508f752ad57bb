"""Benchmark ``bench records``: source, filter and windowed count on loopback, beside Bytewax on the same query."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.options import RecordsOptions
from benchmarks.rounds import Progress, silent
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import RunError, UsageError
from thalweg.middleware.parcels import NOTHING
from thalweg.middleware.shell.packing import arrow
from thalweg.operators import Source
from thalweg.operators.records import Select
from thalweg.operators.windows import Window

ALLOW = ("benchmarks",)
KEYS, VARIANTS = 16, 8
WINDOW_S = 8  # batches of one second each
WHERE = [">", "value", 0.5]
COUNT: dict[str, Any] = {"window_s": WINDOW_S, "by": "key", "aggregates": {"n": "count"}}
ROWS_SHARE = 16  # share of the batches for a side that works row by row
Counts = dict[tuple[int, int], int]  # by window and key


class Batches(Source[Any]):
    """Source of record batches of ``rows`` rows, with second i in all rows of batch i. Keys and values repeat."""

    def __init__(self, rows: int) -> None:
        random = np.random.default_rng(1)
        drawn = [(random.integers(0, KEYS, rows), random.random(rows)) for _ in range(VARIANTS)]
        self.columns = [(arrow().array(keys), arrow().array(values)) for keys, values in drawn]
        self.rows = rows

    def produce(self, index: int) -> Any:
        self.watermark_s = index + 1
        keys, values = self.columns[index % VARIANTS]
        return arrow().record_batch({"time": np.full(self.rows, index), "key": keys, "value": values})


def query(rows: int) -> Dataflow:
    flow = Dataflow()
    source = flow.source(Code("benchmarks.records:Batches", {"rows": rows}), at="h1", name="source")
    fast = flow.operator(Code("thalweg.operators.records:Select", {"where": WHERE}), source, name="filter")
    count = flow.operator(Code("thalweg.operators.windows:Window", COUNT), fast, name="count")
    flow.sink("sink", count)
    return flow


def counted(tables: Iterator[Any]) -> Counts:
    rows = [row for table in tables if table is not NOTHING for row in table.to_pylist()]
    return {(row["window_start"], row["key"]): row["n"] for row in rows}


def on_thalweg(client: Client, rows: int, batches: int) -> tuple[Counts, float]:
    """Run the query.

    Return its counts, and the seconds from the first batch at the sink to the last, scaled to all batches.
    """
    begun, came = 0.0, []
    with client.run(query(rows), {"filter": "h2", "count": "h3"}, partitions=batches, nothing=True) as run:
        for delivered in run:
            begun = begun or time.perf_counter()
            came.append(delivered.value)
    return counted(iter(came)), (time.perf_counter() - begun) * batches / (batches - 1)


def on_bytewax_batches(rows: int, batches: int) -> tuple[Counts, float]:
    """Run the query in Bytewax with the same batches, filtered and counted by the same pyarrow code."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow as Flow
    from bytewax.testing import TestingSink, TestingSource, run_main

    source, select = Batches(rows), Select(WHERE)
    came: list[Any] = []

    def count(window: Window | None, table: Any) -> tuple[Window, Any]:
        window = window or Window(**COUNT)
        window.watermark_s = None
        return window, window.combine([table], 0)

    flow = Flow("batches")
    stream = op.input("in", flow, TestingSource(map(source.produce, range(batches + 1))))
    stream = op.map("filter", stream, lambda batch: ("all", select.combine([batch], 0)))
    stream = op.stateful_map("count", stream, count)
    op.output("out", op.map("value", stream, lambda keyed: keyed[1]), TestingSink(came))
    begun = time.perf_counter()
    run_main(flow)
    return counted(iter(came)), (time.perf_counter() - begun) * batches / (batches + 1)


def on_bytewax_rows(rows: int, batches: int) -> tuple[Counts, float]:
    """Run the query as in Bytewax's documentation: an item for each row, Bytewax's own filter and windows."""
    import bytewax.operators as op
    from bytewax.dataflow import Dataflow as Flow
    from bytewax.operators.windowing import EventClock, TumblingWindower, count_window
    from bytewax.testing import TestingSink, TestingSource, run_main

    zero = datetime(1970, 1, 1, tzinfo=UTC)
    tables = [Batches(rows).produce(index).to_pydict() for index in range(min(batches, VARIANTS))]
    came: list[Any] = []

    def items() -> Iterator[tuple[datetime, str, float]]:
        for index in range(batches):
            table, at = tables[index % VARIANTS], zero + timedelta(seconds=index)
            for key, value in zip(table["key"], table["value"], strict=True):
                yield at, str(key), value

    flow = Flow("rows")
    stream = op.input("in", flow, TestingSource(items(), batch_size=rows))
    stream = op.filter("filter", stream, lambda item: item[2] > 0.5)
    clock = EventClock(lambda item: item[0], wait_for_system_duration=timedelta(0))
    windows = TumblingWindower(length=timedelta(seconds=WINDOW_S), align_to=zero)
    counts = count_window("count", stream, clock, windows, lambda item: item[1])
    op.output("out", counts.down, TestingSink(came))
    begun = time.perf_counter()
    run_main(flow)
    took_s = time.perf_counter() - begun
    return {(window * WINDOW_S, int(key)): n for key, (window, n) in came}, took_s


def bench_records(options: RecordsOptions, progress: Progress = silent) -> dict[str, Any]:
    """Compare the sides. Return the object that ``thalweg bench records --json`` prints.

    Rates are medians over the rounds. Bytewax's rates are null without Bytewax. Raise UsageError for too few batches,
    and RunError if a side's counts differ from those of a loop over all batches.
    """
    rows, batches = options.rows, options.batches
    if batches < 2 * WINDOW_S * ROWS_SHARE:
        raise UsageError(f"bench records takes at least {2 * WINDOW_S * ROWS_SHARE} batches; give --batches")
    seconds: dict[str, list[float]] = {}
    with LocalCluster(3, allow=ALLOW, transport=options.transport) as cluster, Client(cluster, allow=ALLOW) as client:
        sides: dict[str, tuple[Callable[[], tuple[Counts, float]], int]] = {
            "thalweg": (lambda: on_thalweg(client, rows, batches), batches)
        }
        if options.others and find_spec("bytewax") is not None:
            few = batches // ROWS_SHARE
            sides["bytewax_batches"] = (lambda: on_bytewax_batches(rows, batches), batches)
            sides["bytewax_rows"] = (lambda: on_bytewax_rows(rows, few), few)
        for number in range(options.rounds + 1):  # the first warms up
            for name, (play, played) in sides.items():
                progress(f"{name}, round {number} of {options.rounds}")
                counts, took_s = play()
                _check(name, counts, rows, played)
                if number:
                    seconds.setdefault(name, []).append(took_s / (played * rows))
    rates = {name: round(1 / statistics.median(times)) for name, times in seconds.items()}
    return {
        "bench": "records",
        "thalweg_rows_per_s": rates["thalweg"],
        "bytewax_batches_rows_per_s": rates.get("bytewax_batches"),
        "bytewax_rows_per_s": rates.get("bytewax_rows"),
        "rows": rows,
        "batches": batches,
        "rounds": options.rounds,
        "transport": options.transport,
    }


def _check(side: str, counts: Counts, rows: int, batches: int) -> None:
    """Compare the counts of all complete windows with a loop over the batches. Raise RunError if they differ."""
    columns = [(keys.to_numpy(), values.to_numpy()) for keys, values in Batches(rows).columns]
    counts_of = [np.bincount(keys[values > 0.5], minlength=KEYS) for keys, values in columns]
    for start in range(0, batches - WINDOW_S + 1, WINDOW_S):
        expected = sum(counts_of[index % VARIANTS] for index in range(start, start + WINDOW_S))
        if [counts.get((start, key), 0) for key in range(KEYS)] != np.asarray(expected).tolist():
            raise RunError(f"the side {side!r} counted otherwise than a loop over all batches")
