"""Times, shares and sizes as people write them: ``20ms``, ``2min``, ``1%``, ``16kb``; ``rates`` has the rates."""

from __future__ import annotations

import math
import re
from typing import Any

from thalweg.emulation.units import parse_rate
from thalweg.middleware.errors import UsageError

_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)(?:e([+-]?\d{1,3}))?"
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_SIZES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}  # tc(8), docker(1)
_QUANTITY = re.compile(_NUMBER + r"\s*([a-z%]*)", re.ASCII | re.IGNORECASE)


def seconds(value: Any) -> float:
    """Seconds of a time: ``"20ms"`` (us, ms, s, min, h, d), or a bare number of seconds. Raises UsageError."""
    if (bare := _bare(value)) is not None:
        return bare
    number, unit = _split(value)
    if number is None or unit not in _TIMES:
        raise UsageError(f"{value!r} is not a time; write it as 20ms, 30s, 2min, 1h, or as a number of seconds")
    return number * _TIMES[unit]


def share(value: Any) -> float:
    """A share below 1: ``"1%"``, or a number such as 0.01. Raises UsageError."""
    found = _bare(value)
    if found is None:
        number, unit = _split(value)
        if number is None or unit not in ("", "%"):
            raise UsageError(f"{value!r} is not a share; write it as 1% or 0.01")
        found = number / 100 if unit == "%" else number
    if found >= 1:
        raise UsageError(f"{value!r} is all or more than all; a share is below 100%, an outage is an event")
    return found


def size_bytes(value: Any) -> int:
    """Bytes of a size: ``"16kb"`` (b, kb, mb, gb, powers of 1024 as in tc and Docker), or a bare number of bytes.

    At least 1. Raises UsageError.
    """
    found = _bare(value)
    if found is None:
        number, unit = _split(value)
        if number is None or unit not in _SIZES:
            raise UsageError(f"{value!r} is not a size; write it as 16kb, 512mb, 1gb, or as a number of bytes")
        found = number * _SIZES[unit]
    if found < 1:
        raise UsageError(f"the size {value!r} is less than a byte")
    return round(found)


def rate_bps(value: Any) -> float:
    """Bits per second of a rate above 0, as ``parse_rate`` takes it, or a bare number. Raises UsageError."""
    bare = _bare(value)
    found = parse_rate(value if isinstance(value, str) else repr(value)) if bare is None else bare
    if found <= 0:
        raise UsageError("a rate must be above 0; for a link that carries nothing use an outage event")
    return found


def _bare(value: Any) -> float | None:
    """A number that has no unit; None for text. Raises UsageError for one that is negative, nan or infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not 0 <= value < math.inf:
        raise UsageError(f"{value!r} must be finite and at least 0")
    return float(value)


def _split(value: Any) -> tuple[float | None, str]:
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return None, ""
    number = float(f"{match[1]}e{match[2] or 0}")
    return (number if math.isfinite(number) else None), match[3].lower()


def format_time(time_s: float) -> str:
    """A time for people, three significant digits: ``20 ms``, ``90 s``, ``5 min``, ``2.5 h``."""
    if time_s == 0 or not math.isfinite(time_s):
        return "0 s" if time_s == 0 else "for ever"
    if time_s < 0.9995:
        return f"{time_s * 1e3:.3g} ms"
    if time_s < 120:
        return f"{time_s:.3g} s"
    return f"{time_s / 60:.3g} min" if time_s < 7200 else f"{time_s / 3600:.3g} h"
