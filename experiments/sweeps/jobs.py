"""A sweep's trials on Spark: small jobs from a few threads, and lost workers.

Executors share no disk with the process that runs the sweep, so trials go there and results come back with the
jobs.
"""

from __future__ import annotations

import math
import re
import signal
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from thalweg.experiments.records.executors import equipped, last_error
from thalweg.experiments.sweeps.batches import Answer, Finished, run_all
from thalweg.experiments.sweeps.trial import Trial, cannot_import, run_encoded
from thalweg.middleware.errors import RunError, UsageError

if TYPE_CHECKING:
    from pyspark import SparkContext

WORKER_ENDED = "the worker ended while simulating it"
THREADS = 16  # that submit jobs; on a cluster with more cores than half of that a job has several tasks
_WORKER_GONE = re.compile(r"Python worker exited|ExecutorLostFailure|worker.*crashed", re.IGNORECASE)


def run_on_spark(
    todo: Sequence[Trial], finished: Finished, *, master: str, function: str | None = None, traces: str | None = None
) -> None:
    """Start Spark, run all of ``todo``, which are of one kind of trial, and call ``finished`` with each batch, in this
    thread.

    ``function``: import path of what runs one, None: the trial's own. Raises UsageError when executors cannot import
    what they need, RunError when Spark ends.
    """
    from thalweg.experiments.records import spark

    interrupted = signal.getsignal(signal.SIGINT)
    with spark.session(master) as session:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupted)  # PySpark has put its own there
        context = session.sparkContext
        kind, codes = type(todo[0]), sorted({code for one in todo for code in one.codes})
        function = function or kind.function
        with equipped(context, master, codes, traces):
            cores = max(1, context.defaultParallelism)
            in_flight = min(2 * cores, THREADS)
            check_imports(context, [function, *codes], cores)
            work = partial(run_encoded, function, kind)
            slices = math.ceil(2 * cores / in_flight)

            def submit(batch: Sequence[Trial]) -> list[Answer]:
                encoded = [msgspec.json.encode(one) for one in batch]
                try:
                    answers = context.parallelize(encoded, min(slices, len(batch))).map(work).collect()
                except Exception as error:
                    if _has_ended(context):
                        raise RunError("Spark ended while the sweep ran") from error
                    raise
                return [(msgspec.json.decode(text, type=kind.outcome), seconds) for text, seconds in answers]

            run_all(todo, submit, finished, in_flight=in_flight, slices=slices, lost=_why_lost)


def _has_ended(context: SparkContext) -> bool:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        return bool(context._jsc.sc().isStopped())
    except (Py4JError, OSError, AttributeError):
        return True


def _why_lost(error: Exception) -> str:
    """What is recorded of a trial that was alone in a job that failed."""
    text = str(error)
    return WORKER_ENDED if _WORKER_GONE.search(text) else f"Spark could not run it: {last_error(text)}"


def check_imports(context: SparkContext, paths: Sequence[str], cores: int) -> None:
    try:
        found = context.parallelize(range(cores), cores).map(partial(cannot_import, paths)).collect()
    except Exception as error:
        if _has_ended(context):
            raise RunError("Spark ended before the sweep began") from error
        raise UsageError(
            f"Spark's executors cannot run Thalweg: {last_error(str(error))}; they need the same Python with its"
            " dependencies, which PYSPARK_PYTHON names"
        ) from error
    for problem in found:
        if problem is not None:
            raise UsageError(f"Spark's executors cannot import {problem}; install it on all of them")
