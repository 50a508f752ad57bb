"""Rates and losses in reports of iperf3 (``--json`` or ``--json-stream``), with a row for every interval.

R1. The rate is of all streams together (``sum``). Intervals that iperf3 omitted are left out.
R2. Losses are read if each interval has them, as in a report of a receiver of UDP.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.emulation.traces.cells import Note, decoded
from thalweg.emulation.traces.columns import LOSS, RATE
from thalweg.emulation.traces.foreign import Rows
from thalweg.emulation.traces.trace import default_duration_s
from thalweg.middleware.errors import SHOWN, TraceError, counted, one_line
from thalweg.middleware.files.reading import MAX_JSON_BYTES, read_bounded

ROUNDED_S = 2e-3  # iperf3 reports the times of intervals that are a little late


def read(path: Path, note: Note) -> Rows:
    """Return the intervals of a report as rows. Raises TraceError with file and line, or with the interval."""
    try:
        text = decoded(read_bounded(path, MAX_JSON_BYTES))[0].removeprefix("\ufeff")
    except OSError as error:
        raise TraceError(f"cannot read {error.filename}: {error.strerror}") from error
    intervals = _intervals(path, text)
    sums = [_sum(path, number, interval) for number, interval in enumerate(intervals, 1)]
    totals = [total for total in sums if total.get("omitted") is not True]
    if len(totals) < len(sums):
        note(f"{path}: {counted(len(sums) - len(totals), 'interval')} omitted by iperf3 left out")
    if any("sum_bidir_reverse" in interval for interval in intervals):
        note(f"{path}: the reverse direction of --bidir is left out; measure it by itself with --reverse")
    if not totals:
        raise TraceError(f"{path}: no intervals; run iperf3 with --json and without --interval 0")
    starts = np.array([_number(path, number, total, "start") for number, total in enumerate(totals, 1)])
    ends = np.array([_number(path, number, total, "end") for number, total in enumerate(totals, 1)])
    rates = np.array([_number(path, number, total, "bits_per_second") for number, total in enumerate(totals, 1)])
    starts[1:] = np.where(np.abs(ends[:-1] - starts[1:]) < ROUNDED_S, ends[:-1], starts[1:])
    for place in np.flatnonzero(ends <= starts)[:1].tolist():
        raise TraceError(
            f"{path}: interval {place + 1} starts at {starts[place]:g} s and ends at {ends[place]:g} s; each interval"
            " must take time"
        )
    for place in np.flatnonzero(starts[1:] < ends[:-1])[:1].tolist():
        raise TraceError(
            f"{path}: interval {place + 2} starts at {starts[place + 1]:g} s, before interval {place + 1} ends; import"
            " each run of iperf3 by itself"
        )
    begin = float(starts[0])
    figures = {RATE: rates}
    if all("lost_percent" in total for total in totals):  # R2: TCP reports no losses
        figures[LOSS] = (
            np.array([_number(path, number, total, "lost_percent") for number, total in enumerate(totals, 1)]) / 100
        )
        if figures[LOSS].max() > 1:
            raise TraceError(
                f"{path}: interval {int(figures[LOSS].argmax()) + 1} has lost more than 100 % of its packets"
            )
    starts -= starts[0]
    duration_s, usual_s = float(ends[-1] - begin), default_duration_s(starts)
    return Rows(starts, figures, usual_s if abs(usual_s - duration_s) < ROUNDED_S else duration_s)


def _intervals(path: Path, text: str) -> Sequence[Any]:
    """Return the intervals of one JSON object, or of a stream with one event a line."""
    lines = text.strip().split("\n")
    streamed = len(lines) > 1 and '"event"' in lines[0] and lines[0].rstrip().endswith("}")
    documents = [(number, line) for number, line in enumerate(lines, 1) if line.strip()] if streamed else [(1, text)]
    result: list[Any] = []
    for number, document in documents:
        try:
            content = json.loads(document)
        except RecursionError:
            raise TraceError(f"{path}:{number}: nested too deep for a report of iperf3; name another file") from None
        except json.JSONDecodeError as error:
            line = error.lineno + number - 1
            raise TraceError(f"{path}:{line}: not JSON: {error.msg}; was iperf3 stopped while it wrote?") from None
        except ValueError:
            raise TraceError(f"{path}:{number}: not JSON: a number has too many digits; name another file") from None
        if not isinstance(content, dict):
            raise TraceError(f"{path}:{number}: no report of iperf3, which is a JSON object; name another file")
        if isinstance(failed := content.get("error"), str):
            raise TraceError(f"{path}: iperf3 failed: {one_line(failed)[:SHOWN]}; measure again")
        if streamed:
            result += [content.get("data")] if content.get("event") == "interval" else []
        elif isinstance(intervals := content.get("intervals"), list):
            result = intervals
        else:
            raise TraceError(f"{path}: it has no list 'intervals'; is this a report of iperf3 --json?")
    return result


def _sum(path: Path, number: int, interval: Any) -> dict[str, Any]:
    """Return the figures of all streams together in an interval."""
    total = interval.get("sum") if isinstance(interval, dict) else None
    if not isinstance(total, dict):
        raise TraceError(f"{path}: interval {number} has no 'sum'; is this a report of iperf3 --json?")
    return total


def _number(path: Path, number: int, total: dict[str, Any], key: str) -> float:
    value = total.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e300:
        raise TraceError(f"{path}: interval {number} has no {key!r} of at least 0; is this a report of iperf3 --json?")
    return float(value)
