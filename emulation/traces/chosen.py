"""Columns of a file as people name them: ``timestamp``, ``rtt:ms``, ``3:mbit``, ``Date+Time``.

R1. The word behind the last colon is a unit of ``emulation.links.units``. A file's columns may have colons.
R2. Without a unit, the end of the column's name is the unit, if the unit is known (``rtt_ms``, ``Mbps``, ``MB/s``).
    Data sets mean bits by ``bps``.
R3. Without both, times are read in the unit in which they are dates, or else in seconds. Further columns have bit/s,
    seconds, shares and bytes. Cells may have units of their own.
R4. Every guess is reported, unless the column has a name of our own format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from thalweg.emulation.links import units
from thalweg.emulation.traces import cells, times
from thalweg.emulation.traces.columns import (
    BYTES,
    DELAY,
    FIGURES,
    INTERVAL,
    LOSS,
    RATE,
    TIME,
    Choose,
    Column,
    Kind,
    own,
)
from thalweg.middleware.errors import TraceError, UsageError, nearest

MEANT: Mapping[str, tuple[str, Kind, float]] = {
    "--time": (TIME, "time", 1.0),
    "--rate": (RATE, "rate", 1.0),
    "--bytes": (BYTES, "size", 1.0),
    "--per": (INTERVAL, "time", 1.0),
    "--delay": (DELAY, "time", 1.0),
    "--rtt": (DELAY, "time", 0.5),  # both directions count as equal
    "--loss": (LOSS, "share", 1.0),
}
"""Field of the column, kind, and factor for the values, by option."""
_ENDINGS: Mapping[Kind, Mapping[str, str]] = {
    "time": {word: word for word in ("ns", "us", "ms", "s")}
    | dict.fromkeys(("sec", "secs", "second", "seconds"), "s")
    | dict.fromkeys(("msec", "millis", "milliseconds"), "ms")
    | dict.fromkeys(("usec", "micros", "microseconds"), "us"),
    "rate": {f"{n}{word}": f"{n}bit" for n in ("", "k", "m", "g") for word in ("bit", "bps", "bits")},
    "share": {"%": "%", "pct": "%", "percent": "%"},
    "size": {"bytes": "b", "byte": "b"} | {word: word for word in ("kb", "mb", "gb")},
}
_DEFAULT: Mapping[Kind, str] = {"time": "s", "rate": "bit", "share": "shares of 1", "size": "bytes"}
_PER = r"(?:/s|_?[pP]er_?[sS]|_s(?=ec)|ps$)(?:ec|econd)?"
_RATE = re.compile(rf"(?:^|[^A-Za-z])([kKmMgG]?)(b|B|[bB]its?|[bB]ytes?){_PER}$")
_WHOLE = re.compile(r"[+-]?\d+(?:\.\d*)?(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def chosen(words: Mapping[str, str], tell: Callable[[str], None]) -> Choose:
    """Return the function that finds the columns named by option (``--rate``: ``mbps``, …), times first.

    ``tell`` gets a line for each unit that is guessed. Raises UsageError if no figure is named, or if one is named
    twice. The function raises TraceError for an absent column, and UsageError for an unknown unit.
    """
    asked = {"--time": words.get("--time", TIME), **words}
    if not asked.keys() - {"--time", "--per"}:
        raise UsageError(
            "--time names the column of times; name further columns with --rate, --bytes, --delay, --rtt or --loss"
        )
    for first, other in (("--delay", "--rtt"), ("--rate", "--bytes")):
        if {first, other} <= asked.keys():
            field = "delays" if other == "--rtt" else "rates"
            raise UsageError(f"{first} and {other} both name the column of {field}; leave one of them out")
    if ("--bytes" in asked) != ("--per" in asked):
        raise UsageError("--bytes needs --per, the interval in which they came, and --per needs --bytes")

    def choose(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Column]:
        columns = {option: _column(path, header, rows, option, word, tell) for option, word in asked.items()
                 if option != "--per"}  # fmt: skip
        if "--per" in asked:
            if (interval_s := _constant(header, asked["--per"])) is not None:
                size = columns["--bytes"]
                columns["--bytes"] = size._replace(field=RATE, unit=8 * size.unit / interval_s)
            else:
                columns["--per"] = _column(path, header, rows, "--per", asked["--per"], tell)
                tell(f"{path}: the interval {columns['--per'].name!r} of a row is taken to end at its time")
        return list(columns.values())

    return choose


def own_chosen(tell: Callable[[str], None]) -> Choose:
    """Return the function that finds the columns of a file with our own header."""

    def choose(path: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Column]:
        if header[0] == "1":
            raise TraceError(f"{path}:1: the header is absent; name columns by number, as --time 1 --rate 2:mbit")
        fields = [column.field for column in own(path, header)]
        options = {TIME: "--time", RATE: "--rate", DELAY: "--delay", LOSS: "--loss"}
        return chosen({options[field]: field for field in fields}, tell)(path, header, rows)

    return choose


def worth(word: str, kind: Kind) -> float:
    """Return the value of a unit in seconds, bit/s, shares or bytes. Raises UsageError for an unknown unit."""
    if kind == "size":
        return float(units.size_bytes(f"1{word}"))
    return times.WORTH["ns"] if (kind, word.lower()) == ("time", "ns") else units.unit(word, kind)


def unit_at_end(name: str, kind: Kind) -> str:
    """Return the unit that a column's name ends with, or ``""`` (R2)."""
    bare = re.sub(r"[\])}\s]+$", "", name)
    if kind == "rate" and (match := _RATE.search(bare)):
        prefix, letter = match[1].lower(), match[2]
        if letter == "B" or letter.lower().startswith("by"):
            return f"{prefix}bps"
        return f"{prefix}bit"
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", " ", bare)
    return _ENDINGS[kind].get(re.split(r"[^a-z%]+", spaced.lower())[-1], "")


def _constant(header: Sequence[str], word: str) -> float | None:
    """Return the seconds of ``--per 500ms``, or None for the name of a column."""
    if word in header or word.rpartition(":")[0] in header or word.isdigit():
        return None
    try:
        interval_s = units.seconds(word)
    except UsageError:
        return None
    if interval_s <= 0:
        raise UsageError(f"--per is {word}; an interval must be longer than 0")
    return interval_s


def _column(
    path: Path,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    option: str,
    word: str,
    tell: Callable[[str], None],
) -> Column:
    field, kind, factor = MEANT[option]
    name, unit = word, ""
    if word not in header and ":" in word:  # not a colon of the column's own name (R1)
        name, _, unit = word.rpartition(":")
    places = _places(path, header, option, name)
    texts = [" ".join(row[place].strip() for place in places) for row in rows if len(row) > max(places)]
    texts = [text for text in texts if not cells.is_missing(text)]
    column = Column(field, places[0], name, factor, places[1:], kind=kind)
    if kind == "time" and field == TIME and texts and (stamps := times.guessed(texts)) is not None:
        if unit:
            raise UsageError(
                f"{path}: {option} {word} has a unit, but {name!r} has dates or times of day; write {name}"
            )
        tell(f"{path}: column {name!r} is read {stamps.reading}, and starts with {texts[0]}")
        return column._replace(stamps=stamps)
    if places[1:]:
        raise TraceError(f"{path}: {word} is to be dates with times of day, but begins with {(texts or [''])[0]!r}")
    if unit:
        if kind == "rate" and unit.lower().endswith("bps"):
            tell(f"{path}: {word} counts bytes, as tc has it; for bits write {option} {name}:{unit[:-3]}bit")
    else:
        unit, note = _guess(path, option, kind, name, texts, ours=field == name and field in (TIME, *FIGURES))
        if note:
            tell(note)
    value = worth(unit, kind)
    return column._replace(unit=factor * value, worth=value)


def _guess(
    path: Path, option: str, kind: Kind, name: str, texts: Sequence[str], *, ours: bool
) -> tuple[str, str]:  # fmt: skip
    """Return the guessed unit of a column without a unit, and the line that reports the guess (R2, R3, R4)."""
    first = next((text for text in texts if _WHOLE.fullmatch(text)), "") if option == "--time" else ""
    dated = times.epoch_unit(float(first)) if first else ""
    unit = "" if ours else unit_at_end(name, kind)
    if unit:
        if dated and dated != unit:
            date = times.date_of(float(first), dated)
            return unit, (
                f"{path}: column {name!r} is read in {unit} by its name, but {first} is a date in {dated}: {date};"
                f" else write {option} {name}:{dated}"
            )
        if kind == "rate":
            other = f"bits write {option} {name}:{unit[:-3]}bit"
            if not unit.endswith("bps"):
                other = f"bytes write {option} {name}:{unit.removesuffix('bit')}bps"
            return unit, f"{path}: column {name!r} is read in {unit}; for {other}"
        return unit, f"{path}: column {name!r} is read in {unit}"
    if ours:
        if dated in ("", "s"):
            return "", ""
        date = times.date_of(float(first), dated)
        return "", f"{path}: {name} is in s, but {first} is a date in {dated}: {date}; else write --time {name}:{dated}"
    if dated:
        return dated, (f"{path}: column {name!r} is read in {dated}, as {first} is then"
                       f" {times.date_of(float(first), dated)}; else write {option} {name}:UNIT")  # fmt: skip
    if any(cells.parted(text) for text in texts):
        return "", ""  # the reader of the cells reports the units
    return "", f"{path}: column {name!r} is read in {_DEFAULT[kind]}; else write {option} {name}:UNIT"


def _places(path: Path, header: Sequence[str], option: str, name: str) -> tuple[int, ...]:
    names = name.split("+") if option == "--time" and name not in header and "+" in name else [name]
    return tuple(_place(path, header, option, part.strip()) for part in names)


def _place(path: Path, header: Sequence[str], option: str, name: str) -> int:
    if header.count(name) == 1:
        return header.index(name)
    if name not in header and name.isascii() and name.isdigit() and 1 <= int(name[:9]) <= len(header):
        return int(name) - 1
    why = f"stands there {header.count(name)} times" if name in header else nearest(name, header)
    raise TraceError(f"{path}:1: there is no one column {name!r} for {option}; {why}")
