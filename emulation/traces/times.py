"""Time stamps of field tools: numbers of any epoch, dates in several orders, ctime and clock times.

R1. The first stamps of a column decide how the whole column is read: in the form that fits most of them.
R2. A date without an offset is UTC, so that no clock change falls into a trace.
R3. A clock time that is more than half a day earlier than the row before's belongs to the next day.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

Order = Literal["ymd", "dmy", "mdy", "iso", "named", "clock"]
EPOCHS: Sequence[tuple[float, str]] = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"), (1e8, "s"))
"""Least number that is read as a date, by unit. All are in 1973."""
WORTH = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
HALF_DAY_US, DAY_US = 43_200_000_000, 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MONTHS = {"janfebmaraprmayjunjulaugsepoctnovdec"[3 * month : 3 * month + 3]: month + 1 for month in range(12)}
_CLOCK_TEXT = r"(\d{1,2})[:.](\d\d)(?:[:.](\d\d)(?:[.,:](\d{1,9}))?)?\s*([ap]\.?m\.?)?"
_NUMBERS = re.compile(rf"(\d{{1,4}})([-./])(\d{{1,2}})\2(\d{{1,4}})[ T_]+{_CLOCK_TEXT}", re.ASCII | re.IGNORECASE)
_CLOCK = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?\s*([ap]\.?m\.?)?", re.ASCII | re.IGNORECASE)
_DAY = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*[.,]?\s+)?"
_CTIME = re.compile(
    rf"{_DAY}([a-z]{{3}})[a-z]*\.?\s+(\d{{1,2}}),?\s+{_CLOCK_TEXT}\s+(?:[a-z]{{3,5}}\s+)?(\d{{4}})",
    re.ASCII | re.IGNORECASE,
)
_MAIL = re.compile(
    rf"{_DAY}(\d{{1,2}})[- ]([a-z]{{3}})[a-z]*\.?[- ](\d{{4}}),?\s+{_CLOCK_TEXT}"
    r"(?:\s+([+-]\d\d):?(\d\d)|\s+[a-z]{1,5})?",
    re.ASCII | re.IGNORECASE,
)
_ISO_START = re.compile(r"\d{4}-?\d\d-?\d\d[T ]\d\d|\d{4}-W\d\d", re.ASCII)
_SAID: dict[Order, str] = {
    "ymd": "as year, month, day",
    "dmy": "as day, month, year",
    "mdy": "as month, day, year",
    "iso": "as ISO 8601",
    "named": "as dates with the month's name",
    "clock": "as times of day",
}


class Stamps:
    """Reader of one column's stamps that are no plain numbers. Its times are seconds from the first stamp on."""

    def __init__(self, order: Order) -> None:
        self.order: Order = order
        self.midnights = 0
        self._base_us: int | None = None
        self._clock_us = 0
        self._days_us = 0

    @property
    def reading(self) -> str:
        """Form in which the stamps are read, for a note."""
        return _SAID[self.order]

    def seconds(self, text: str) -> float | None:
        """Return a stamp in seconds since the first stamp, or None if the text has another form."""
        stamp_us = _microseconds(text, self.order)
        if stamp_us is None:
            return None
        if self.order == "clock":  # a clock that goes back has passed midnight (R3)
            if self._base_us is not None and stamp_us < self._clock_us - HALF_DAY_US:
                self.midnights += 1
                self._days_us += DAY_US
            self._clock_us = stamp_us
            stamp_us += self._days_us
        if self._base_us is None:
            self._base_us = stamp_us
        return (stamp_us - self._base_us) / 1e6


def guessed(texts: Sequence[str]) -> Stamps | None:
    """Return the reader of a column that begins with these texts, or None if they are numbers or no times at all."""
    if not texts:
        return None
    orders: list[Order] = ["iso", "ymd", *_day_orders(texts), "named", "clock"]
    fitting = [order for order in orders if _microseconds(texts[0], order) is not None]
    if not fitting:
        return None
    # a first stamp may fit several orders, such as 03/04/2024: the next ones decide (R1)
    return Stamps(max(fitting, key=lambda order: sum(_microseconds(text, order) is not None for text in texts)))


def is_stamp(text: str) -> bool:
    """Return whether a text is a date or a clock time rather than a number or a name."""
    return guessed([text]) is not None


def epoch_unit(number: float) -> str:
    """Return the unit in which a number is a date between 1973 and 5138. It is ``""`` for smaller numbers."""
    return next((unit for least, unit in EPOCHS if abs(number) >= least), "")


def date_of(number: float, unit: str) -> str:
    """Return the date that an epoch stands for, such as ``2023-11-14 22:13:20``."""
    try:
        return (_EPOCH + timedelta(seconds=number * WORTH[unit])).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        return "a date beyond the year 9999"


def _day_orders(texts: Sequence[str]) -> list[Order]:
    """Return the orders of day and month to try, the likelier first. If slashes separate, the month is first."""
    matches = [match for text in texts if (match := _NUMBERS.fullmatch(text))]
    day_first: list[Order] = ["dmy", "mdy"]
    return day_first[::-1] if matches and matches[0][2] == "/" else day_first


def _microseconds(text: str, order: Order) -> int | None:
    try:
        match order:
            case "iso":
                return _since_1970(datetime.fromisoformat(text)) if _ISO_START.match(text) else None
            case "clock":
                match = _CLOCK.fullmatch(text)
                return _clock_us(match.groups()) if match else None
            case "named":
                return _named_us(text)
            case _:
                return _numbered_us(text, order)
    except ValueError:  # such as 30 February
        return None


def _numbered_us(text: str, order: Order) -> int | None:
    match = _NUMBERS.fullmatch(text)
    if match is None:
        return None
    parts = match[1], match[3], match[4]
    if len(parts[order.index("y")]) != 4:
        return None
    year, month, day = (int(parts[order.index(letter)]) for letter in "ymd")
    return _since_1970(datetime(year, month, day, tzinfo=UTC)) + _clock_us(match.groups()[4:])


def _named_us(text: str) -> int | None:
    if match := _CTIME.fullmatch(text):
        name, day, *clock, year = match.groups()
        shift_us = 0
    elif match := _MAIL.fullmatch(text):
        day, name, year, *clock, hours, minutes = match.groups()
        shift = timedelta(hours=int(hours), minutes=int(f"{hours[0]}{minutes}")) if hours else timedelta()
        shift_us = shift // _MICROSECOND
    else:
        return None
    month = _MONTHS.get(name.lower())
    if month is None:
        return None
    return _since_1970(datetime(int(year), month, int(day), tzinfo=UTC)) + _clock_us(clock) - shift_us


def _clock_us(parts: Sequence[str | None]) -> int:
    """Return the microseconds since midnight of hours, minutes, seconds, digits of a fraction, and am or pm."""
    hours, minutes, seconds = (int(part or 0) for part in parts[:3])
    fraction, half = parts[3] or "", (parts[4] or "").lower().replace(".", "")
    if half:
        if not 1 <= hours <= 12:
            raise ValueError(f"{hours} {half}")
        hours = hours % 12 + 12 * (half == "pm")
    if hours > 23 or minutes > 59 or seconds > 60:  # 60 is a leap second
        raise ValueError("no time of day")
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + int(fraction[:6].ljust(6, "0") if fraction else 0)


def _since_1970(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)  # R2: local time has gaps
    return (aware - _EPOCH) // _MICROSECOND
