"""Summaries of several runs on Spark, and of one run without Spark, and SQL over the placements of all runs.

Rules:

- R1: ``analysis`` alone makes a run's summary. Spark and this process call the same function on the same input.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from thalweg.experiments.records.analysis import RunSummary, reading_log, summarize_run, with_moves
from thalweg.experiments.records.executors import equipped, last_error
from thalweg.experiments.records.records import EVENTS, SCHEMA, RunInfo, load_run
from thalweg.middleware.errors import RunError, UsageError, one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PlacementAggregate(msgspec.Struct, frozen=True):
    """Aggregate of one placement over several runs: mean values, geometric mean of the speed-ups, sums of the moves.

    ``digests_known``: number of runs with a reference for their digest.
    """

    runs: int
    images: int
    delivered: int
    lost: int
    digests_known: int
    digests_wrong: int
    mean_interarrival_s: float | None
    median_interarrival_s: float | None
    p95_interarrival_s: float | None
    speedup: float | None
    relocations: int
    stayed: int
    reshapes: int


class RunsSummary(msgspec.Struct, frozen=True):
    """Summaries of runs, and the aggregate by placement if there are several runs."""

    runs: list[RunSummary]
    aggregate: dict[str, PlacementAggregate] = {}

    def with_moves(self) -> RunsSummary:
        """Return a copy in which every placement has its ``moves``, read from the run folders."""
        return msgspec.structs.replace(self, runs=[with_moves(run) for run in self.runs])

    def to_json(self) -> bytes:
        """Return one JSON object: the summary of a single run, or ``runs`` and ``aggregate`` of several."""
        return msgspec.json.encode(self.runs[0] if len(self.runs) == 1 else self)


COLUMNS = {  # of the table ``placements``, a row for every run and placement, with Spark's types
    "placement": "string",
    "images": "bigint",
    "delivered": "bigint",
    "lost": "bigint",
    "digest_ok": "boolean",
    "mean_interarrival_s": "double",
    "median_interarrival_s": "double",
    "p95_interarrival_s": "double",
    "speedup": "double",
    "relocations": "bigint",
    "stayed": "bigint",
    "reshapes": "bigint",
}

AGGREGATE = """
SELECT placement, count(*) AS runs, sum(images) AS images, sum(delivered) AS delivered, sum(lost) AS lost,
       count(digest_ok) AS digests_known, count(CASE WHEN NOT digest_ok THEN 1 END) AS digests_wrong,
       avg(CASE WHEN mean_interarrival_s > 0 THEN mean_interarrival_s END) AS mean_interarrival_s,
       avg(CASE WHEN median_interarrival_s > 0 THEN median_interarrival_s END) AS median_interarrival_s,
       avg(CASE WHEN p95_interarrival_s > 0 THEN p95_interarrival_s END) AS p95_interarrival_s,
       exp(avg(ln(CASE WHEN speedup > 0 THEN speedup END))) AS speedup,
       sum(relocations) AS relocations, sum(stayed) AS stayed, sum(reshapes) AS reshapes
FROM placements GROUP BY placement
"""


def load_runs(folders: Sequence[Path]) -> dict[Path, RunInfo]:
    """Return the ``RunInfo`` of every folder, each folder once, in the order given.

    Raises UsageError if a folder is not a run folder, its event log is damaged, or two folders hold the same run.
    """
    infos: dict[Path, RunInfo] = {}
    for folder in folders:
        if any(folder.resolve() == known.resolve() for known in infos):
            continue
        infos[folder] = load_run(folder)
        try:
            schema = pq.read_schema(folder / EVENTS)
        except (OSError, pa.ArrowException) as error:
            raise UsageError(f"{folder / EVENTS} is damaged ({one_line(error)[:200]}); run it again") from None
        if not schema.equals(SCHEMA):
            raise UsageError(f"{folder / EVENTS} has not the columns of an event log; run it again")
    seen: dict[str, Path] = {}
    for folder, info in infos.items():
        if info.run in seen:
            raise UsageError(f"{seen[info.run]} and {folder} hold the same run {info.run}; name only one")
        seen[info.run] = folder
    return infos


def analyze_runs(spark: SparkSession, runs: Mapping[Path, RunInfo]) -> RunsSummary:
    """Summarise every run (see ``load_runs``) as a Spark task, in the order given, and aggregate over the runs.

    Raises UsageError for damaged records. Raises RunError if Spark cannot read the logs, for example if a cluster's
    workers do not see the folders.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    context = spark.sparkContext
    tasks = [_task(folder, info) for folder, info in runs.items()]
    together: list[Any] = []
    try:
        with equipped(context, str(context.master), (), None):
            answers = context.parallelize(tasks, len(tasks)).map(_summarized).collect()
        summaries = [_read(answer, folder) for answer, folder in zip(answers, runs, strict=True)]
        if len(summaries) > 1:
            schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            spark.createDataFrame(list(_rows(summaries)), schema).createOrReplaceTempView("placements")
            together = spark.sql(AGGREGATE).collect()
    except (PySparkException, Py4JError) as error:
        why = last_error(str(error))
        raise RunError(
            f"Spark cannot analyse these runs: {why}; do all its workers see them, with the same Python?"
        ) from error
    return RunsSummary(summaries, _in_order(summaries, together))


def analyze_run(folder: Path, info: RunInfo) -> RunsSummary:
    """Summarise one run in this process, as ``analyze_runs`` does on Spark (R1).

    Raises UsageError for damaged records.
    """
    return RunsSummary([_read(_summarized(_task(folder, info)), folder)])


def _task(folder: Path, info: RunInfo) -> tuple[str, bytes]:
    """Return a run as a task for executors. The folder is absolute, as executors have another working directory."""
    return str(folder.resolve()), msgspec.json.encode(info)


def _summarized(task: tuple[str, bytes]) -> tuple[bytes, str | None]:
    """Return a run's summary as JSON and None, or an empty text and the reason why the records are damaged."""
    folder, info = Path(task[0]), msgspec.json.decode(task[1], type=RunInfo)
    try:
        with reading_log(folder):
            return msgspec.json.encode(summarize_run(folder, info)), None
    except UsageError as error:
        return b"", str(error)


def _read(answer: tuple[bytes, str | None], folder: Path) -> RunSummary:
    """Return the summary that a task answered, with the folder as named by the user. Raise UsageError if damaged."""
    text, wrong = answer
    if wrong is not None:
        raise UsageError(wrong)
    return msgspec.structs.replace(msgspec.json.decode(text, type=RunSummary), out=str(folder))


def aggregate(summaries: Sequence[RunSummary]) -> dict[str, PlacementAggregate]:
    """Return the aggregate of several runs by placement, without Spark: SQLite executes the same query."""
    with closing(sqlite3.connect(":memory:")) as database:
        for name, function in (("ln", math.log), ("exp", math.exp)):  # some SQLite versions lack these functions
            database.create_function(name, 1, _of_known(function), deterministic=True)
        database.execute(f"CREATE TABLE placements ({', '.join(COLUMNS)})")
        database.executemany(f"INSERT INTO placements VALUES ({', '.join('?' * len(COLUMNS))})", _rows(summaries))
        return _in_order(summaries, database.execute(AGGREGATE).fetchall())


def _of_known(function: Callable[[float], float]) -> Callable[[float | None], float | None]:
    return lambda value: None if value is None else function(value)


def _rows(summaries: Iterable[RunSummary]) -> Iterator[tuple[Any, ...]]:
    for summary in summaries:
        for name, placement in summary.placements.items():
            yield name, *(getattr(placement, column) for column in list(COLUMNS)[1:])


def _in_order(summaries: Sequence[RunSummary], rows: Iterable[Sequence[Any]]) -> dict[str, PlacementAggregate]:
    """Return the rows of ``AGGREGATE`` as structs, in the order in which the placements first appear."""
    by_name = {row[0]: PlacementAggregate(*row[1:]) for row in rows}
    return {name: by_name[name] for summary in summaries for name in summary.placements if name in by_name}
