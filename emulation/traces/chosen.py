"""The columns of a file as people name them: ``timestamp``, ``rtt:ms``, ``3:mbit``.

R1. What stands behind the last colon is a unit, in the words of ``emulation.units``; a file's columns may have colons.
R2. Without one the end of a column's name is its unit where it is one of ``_ENDINGS`` (``rtt_ms``, ``Mbps``), which is
    told: data sets mean bits by ``bps``. Other columns have seconds, bit/s and shares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from thalweg.emulation import units
from thalweg.emulation.traces.columns import DELAY, LOSS, RATE, TIME, Choose, Column
from thalweg.middleware.errors import TraceError, UsageError, nearest

MEANT: Mapping[str, tuple[str, units.Kind, float]] = {
    "--time": (TIME, "time", 1.0),
    "--rate": (RATE, "rate", 1.0),
    "--delay": (DELAY, "time", 1.0),
    "--rtt": (DELAY, "time", 0.5),  # both ways are taken to be alike
    "--loss": (LOSS, "share", 1.0),
}
"""By option: what the column is to us, what it has, and what becomes of it."""
_ENDINGS: Mapping[units.Kind, Mapping[str, str]] = {
    "time": {word: word for word in ("us", "ms", "s")} | {"sec": "s", "seconds": "s"},
    "rate": {f"{n}{word}": f"{n}bit" for n in ("", "k", "m", "g") for word in ("bit", "bps", "bits")},
    "share": {"%": "%", "pct": "%", "percent": "%"},
}


def chosen(words: Mapping[str, str], tell: Callable[[str], None]) -> Choose:
    """What reads the columns that are named by option (``--rate``: ``mbps``, …), times first.

    ``tell``: told of every unit that is taken from a column's name. Raises UsageError for no figure, for a delay that
    is given twice and for no unit; what it returns raises TraceError for no such column.
    """
    asked = {"--time": words.get("--time", TIME), **words}
    if not asked.keys() - {"--time"}:
        raise UsageError("--time says where times are; say what else there is by --rate, --delay, --rtt or --loss")
    if {"--delay", "--rtt"} <= asked.keys():
        raise UsageError("--delay and --rtt both say what delays are; leave one of them out")
    return lambda path, header: [_column(path, header, option, word, tell) for option, word in asked.items()]


def _column(path: Path, header: Sequence[str], option: str, word: str, tell: Callable[[str], None]) -> Column:
    field, kind, times = MEANT[option]
    name, colon, unit = (word, "", "") if word in header else word.rpartition(":")  # R1
    if header.count(name) != 1:
        why = f"stands there {header.count(name)} times" if name in header else nearest(word, header)
        raise TraceError(f"{path}:1: there is no one column {name or word!r} for {option}; {why}")
    if colon:
        if unit.lower().endswith("bps"):
            tell(f"{path}: {word} counts bytes, as tc has it; for bits write {option} {name}:{unit[:-3]}bit")
        return Column(field, header.index(name), name, times * units.unit(unit, kind))
    end = re.split(r"[^a-z%]+", name.lower().rstrip(")] "))[-1]
    found = _ENDINGS[kind].get(end, "")  # R2
    if found and name != field:
        other = f"; for bytes write {option} {name}:{end}" if end.endswith("bps") else ""
        tell(f"{path}: column {name!r} is read in {found}{other}")
    return Column(field, header.index(name), name, times * units.unit(found, kind))
