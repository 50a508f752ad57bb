"""A sweep's trials on Spark: small jobs from a few threads, and lost workers.

Executors share no disk with the process that runs the sweep, so trials go there and results come back with the
jobs. A job is a batch, a second or two of work, by what runs of its kind took before; as many are in flight as keep
every core busy while the next are on their way. A batch that does not come back is tried once more and then halved,
until a trial is alone: one that ends its worker ``ATTEMPTS`` times is recorded as failed. So whatever a trial does, the
others get their result.
"""

from __future__ import annotations

import math
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from thalweg.experiments.records.executors import equipped, last_error
from thalweg.experiments.sweeps.trial import Outcome, Trial, cannot_import, run_encoded
from thalweg.middleware.errors import RunError, ThalwegError, UsageError

if TYPE_CHECKING:
    from pyspark import SparkContext

WORKER_ENDED = "the worker ended while simulating it"
THREADS = 16  # that submit jobs; on a cluster with more cores than half of that a job has several tasks
_WORKER_GONE = re.compile(r"Python worker exited|ExecutorLostFailure|worker.*crashed", re.IGNORECASE)
ATTEMPTS = 3
BATCH_S = 1.5  # short beside a sweep, long beside the 20 ms of a Spark job
BATCH_RUNS = 500
FIRST_GUESS_S = 0.25  # of a run, before any has come back
KEPT = 0.7  # of what is known of a kind's seconds, when another of it comes back

Answer = tuple[Outcome, float]
"""What a trial came to, and the seconds it took."""
Submit = Callable[[Sequence[Trial]], Sequence[Answer]]
"""Have these run elsewhere and wait for it. Raises ThalwegError when nothing can be run any more, and
anything else when this batch was lost."""
Finished = Callable[[list[tuple[Trial, Outcome]]], None]


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
    from py4j.protocol import Py4JError

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


# --- batches ----------------------------------------------------------------------------------------


@dataclass
class _Batch:
    trials: list[Trial]
    lost: int = 0  # how often it did not come back


class Pace:
    """How long runs take, by what they are of."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[object, ...], float] = {}
        self._mean_s = FIRST_GUESS_S

    @property
    def mean_s(self) -> float:
        """Of all kinds."""
        return self._mean_s

    def guess_s(self, trial: Trial) -> float:
        return self._seconds.get(trial.kind, self._mean_s)

    def learn(self, trial: Trial, seconds: float) -> None:
        before = self._seconds.get(trial.kind, seconds)
        self._seconds[trial.kind] = KEPT * before + (1 - KEPT) * seconds
        self._mean_s = sum(self._seconds.values()) / len(self._seconds)


def run_all(
    todo: Sequence[Trial],
    submit: Submit,
    finished: Finished,
    *,
    in_flight: int,
    slices: int = 1,
    lost: Callable[[Exception], str] = str,
) -> None:
    """Have all of ``todo`` run, ``in_flight`` batches at a time, and call ``finished`` here with each batch.

    ``slices``: how many executors work on one batch. ``lost``: what is recorded of a trial that was lost
    ``ATTEMPTS`` times with such an exception. Raises what ``submit`` raises of ThalwegError, after what has come back
    by then has been finished.
    """
    queue, again, pace = deque(todo), deque[_Batch](), Pace()
    pending: dict[Future[Sequence[Answer]], _Batch] = {}
    pool = ThreadPoolExecutor(in_flight, thread_name_prefix="sweep")
    try:
        while queue or again or pending:
            while len(pending) < in_flight and (queue or again):
                batch = again.popleft() if again else _cut(queue, pace, in_flight, slices)
                pending[pool.submit(submit, batch.trials)] = batch
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=lambda future: future.exception() is not None):
                batch, error = pending.pop(future), future.exception()
                if error is None:
                    _take(batch, future.result(), pace, finished)
                elif isinstance(error, ThalwegError) or not isinstance(error, Exception):
                    for late, of in pending.items():
                        if late.done() and late.exception() is None:
                            _take(of, late.result(), pace, finished)
                    raise error
                else:
                    _give_back(batch, error, again, finished, lost)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # interrupted: what is in flight ends with Spark


def _cut(queue: deque[Trial], pace: Pace, in_flight: int, slices: int) -> _Batch:
    """The next batch: ``BATCH_S`` for each slice, less towards the end so that all cores end together."""
    seconds = min(BATCH_S * slices, len(queue) * pace.mean_s / in_flight)
    batch = [queue.popleft()]
    seconds -= pace.guess_s(batch[0])
    while queue and len(batch) < BATCH_RUNS * slices and (seconds := seconds - pace.guess_s(queue[0])) > 0:
        batch.append(queue.popleft())
    return _Batch(batch)


def _take(batch: _Batch, answers: Sequence[Answer], pace: Pace, finished: Finished) -> None:
    rows = []
    for trial, (outcome, seconds) in zip(batch.trials, answers, strict=True):
        pace.learn(trial, seconds)
        rows.append((trial, outcome))
    finished(rows)


def _give_back(
    batch: _Batch, error: Exception, again: deque[_Batch], finished: Finished, lost: Callable[[Exception], str]
) -> None:
    batch.lost += 1
    trials = batch.trials
    if len(trials) == 1:
        if batch.lost >= ATTEMPTS:
            finished([(trials[0], type(trials[0]).outcome(failed=lost(error)))])
        else:
            again.append(batch)
    elif batch.lost == 1:
        again.append(batch)
    else:
        half = len(trials) // 2
        for part in (trials[:half], trials[half:]):  # it has been tried twice: halve at the next loss
            again.append(_Batch(part, lost=0 if len(part) == 1 else 1))
