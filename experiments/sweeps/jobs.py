"""Jobs of a sweep on Spark: small batches of trials from a few threads, and the handling of lost workers.

Executors share no disk with the process that runs the sweep, so trials and results travel with the jobs. A job is a
batch of one or two seconds of work, estimated from earlier trials of the same kind. Enough batches are in flight to
keep every core busy. A lost batch is tried once more and then halved down to single trials. A trial that ends its
worker ``ATTEMPTS`` times is recorded as failed. So the remaining trials get results despite a faulty trial.
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
THREADS = 16  # threads that submit jobs; with more than THREADS / 2 cores, a job has several tasks
_WORKER_GONE = re.compile(r"Python worker exited|ExecutorLostFailure|worker.*crashed", re.IGNORECASE)
ATTEMPTS = 3
BATCH_S = 1.5  # short beside a sweep, long beside the 20 ms of a Spark job
BATCH_RUNS = 500
FIRST_GUESS_S = 0.25  # of a trial, before the first result
KEPT = 0.7  # weight of a kind's former estimate when a trial of the kind comes back

Answer = tuple[Outcome, float]
"""What a trial came to, and the seconds it took."""
Submit = Callable[[Sequence[Trial]], Sequence[Answer]]
"""Have these run elsewhere and wait for it. Raises ThalwegError when nothing can be run any more, and
anything else when this batch was lost."""
Finished = Callable[[list[tuple[Trial, Outcome]]], None]


def run_on_spark(
    todo: Sequence[Trial], finished: Finished, *, master: str, function: str | None = None, traces: str | None = None
) -> None:
    """Start Spark, run all trials of ``todo``, and call ``finished`` with each batch in this thread.

    The trials are of a single class. ``function``: import path of the function that runs a trial. None: the function of
    the trial's class. Raises UsageError if executors cannot import the code, RunError if Spark ends.
    """
    from thalweg.experiments.records import spark

    interrupted = signal.getsignal(signal.SIGINT)
    with spark.session(master) as session:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupted)  # replaces the handler of PySpark
        context = session.sparkContext
        kind, codes = type(todo[0]), sorted({code for trial in todo for code in trial.codes})
        function = function or kind.function
        with equipped(context, master, codes, traces):
            cores = max(1, context.defaultParallelism)
            in_flight = min(2 * cores, THREADS)
            check_imports(context, [function, *codes], cores)
            work = partial(run_encoded, function, kind)
            slices = math.ceil(2 * cores / in_flight)

            def submit(batch: Sequence[Trial]) -> list[Answer]:
                encoded = [msgspec.json.encode(trial) for trial in batch]
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
    """Return the failure to record for a trial that was alone in a failed job."""
    text = str(error)
    return WORKER_ENDED if _WORKER_GONE.search(text) else f"Spark could not run it: {last_error(text)}"


def check_imports(context: SparkContext, paths: Sequence[str], cores: int) -> None:
    try:
        problems = context.parallelize(range(cores), cores).map(partial(cannot_import, paths)).collect()
    except Exception as error:
        if _has_ended(context):
            raise RunError("Spark ended before the sweep began") from error
        raise UsageError(
            f"Spark's executors cannot run Thalweg: {last_error(str(error))}; they need the same Python with its"
            " dependencies, which PYSPARK_PYTHON names"
        ) from error
    for problem in problems:
        if problem is not None:
            raise UsageError(f"Spark's executors cannot import {problem}; install it on all of them")


# --- batches ----------------------------------------------------------------------------------------


@dataclass
class _Batch:
    trials: list[Trial]
    lost: int = 0  # number of losses


class Pace:
    """Estimates of the duration of trials, by kind."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[object, ...], float] = {}
        self._mean_s = FIRST_GUESS_S

    @property
    def mean_s(self) -> float:
        """Mean duration over the kinds of trials."""
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
    """Run all of ``todo``, ``in_flight`` batches at a time, and call ``finished`` in this thread with each batch.

    ``slices``: number of executors that work on one batch. ``lost``: failure to record for a trial that was lost
    ``ATTEMPTS`` times, from the last exception. A ThalwegError of ``submit`` is raised after the batches that are
    complete by then are finished.
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
        pool.shutdown(wait=False, cancel_futures=True)  # after an interrupt, batches in flight end with Spark


def _cut(queue: deque[Trial], pace: Pace, in_flight: int, slices: int) -> _Batch:
    """Return the next batch: ``BATCH_S`` per slice, less towards the end, so that the cores end together."""
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
        for part in (trials[:half], trials[half:]):  # the batch was lost twice: halve again at the next loss
            again.append(_Batch(part, lost=0 if len(part) == 1 else 1))
