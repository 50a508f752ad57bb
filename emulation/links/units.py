"""Rates, times, shares and sizes as people write them (``0.2mbit``, ``20ms``, ``1%``, ``16kb``) and read them.

Instead of a value with a unit, a bare number may be written, in the base unit of this package.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from thalweg.middleware.errors import UsageError

# tc(8), "PARAMETERS, RATES": SI and IEC prefixes; "bit" is bits per second, "bps" is bytes per second.
_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_PREFIXES |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_RATES = {
    "": 1,
    **{f"{key}{unit}": n * bits for key, n in _PREFIXES.items() for unit, bits in (("bit", 1), ("bps", 8))},
}
_TIMES = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_SHARES = {"": 1, "%": 100}
_SIZES = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20, "g": 2**30, "gb": 2**30}  # tc(8), docker(1)
_QUEUES = {"": 1, "b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "us": 1e-6, "ms": 1e-3, "s": 1.0}
Managed = Literal["fq_codel", "codel", "pie", "red"]
Discipline = Literal["fifo", Managed]
MANAGED: tuple[Managed, ...] = get_args(Managed)
"""Disciplines that keep a queue short by themselves, by marks and drops."""
USUAL_QUEUE_S = 0.1
Kind = Literal["time", "rate", "share"]
_KINDS: Mapping[Kind, Mapping[str, float]] = {"time": _TIMES, "rate": _RATES, "share": _SHARES}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:e([+-]?\d{1,3}))?\s*([a-z%]*)", re.ASCII | re.IGNORECASE)


def parse_rate(value: Any) -> float:
    """Return the bits per second of a rate in tc's notation, at least 0.

    Units (in any case) are bit, kbit, mbit, gbit, tbit (powers of 1000) and kibit … (powers of 1024). As in tc, bps,
    kbps, mbps … are *bytes* per second. A bare number is bits per second. Raises UsageError.
    """
    number, unit_bps = _quantity(
        value, _RATES, "rate; write it as tc does: 64kbit, 0.2mbit, 1gbit, or 25kbps for bytes"
    )
    return number * unit_bps


def remark(value: Any) -> str:
    """Return a note that a rate such as ``10Mbps`` counts bytes, as in tc. The note is empty for a rate in bits."""
    if not _unit(value).endswith("bps"):
        return ""
    bits = f"{value.strip()[: -len('bps')]}bit"
    return f"{value} counts bytes, as tc has it: {format_rate(parse_rate(value))}; for bits write {bits}"


def bytes_per_s(value: Any) -> float:
    """Return the bytes per second of a disk, from a rate with a unit (``parse_rate``) or a bare number of bytes."""
    return parse_rate(value) / (8 if _unit(value) else 1)


def rate_bps(value: Any) -> float:
    """Return the bits per second of a rate above 0, read as in ``parse_rate``. Raises UsageError."""
    parsed_bps = parse_rate(value)
    if parsed_bps <= 0:
        raise UsageError(f"{shown(value)}: a rate must be above 0; for a link that carries nothing use an outage event")
    return parsed_bps


def seconds(value: Any) -> float:
    """Return the seconds of a time: ``"20ms"`` (us, ms, s, min, h, d), or a bare number. Raises UsageError."""
    number, unit_s = _quantity(value, _TIMES, "time; write it as 20ms, 30s, 2min, 1h, or as a number of seconds")
    return number * unit_s


def share(value: Any) -> float:
    """Return a share below 1, from ``"1%"`` or a number such as 0.01. Raises UsageError."""
    number, whole = _quantity(value, _SHARES, "share; write it as 1% or 0.01")
    if number >= whole:
        raise UsageError(f"{value!r} is 100% or more; a share is below 100%, and an outage is an event")
    return number / whole


class Loss(NamedTuple):
    """Losses of packets: the share of lost packets, and the mean number of packets in a burst of losses.

    ``burst`` is 0 if losses are independent.
    """

    share: float
    burst: float = 0.0


def loss(value: Any) -> Loss:
    """Read losses: ``"1%"``, ``"1%,burst=5"``, ``"1%,correlation=25%"``, or ``{"p": "1%", "burst": 5}``.

    ``burst``: mean number of packets in a burst. ``correlation``: between the losses of a packet and the next packet.
    It makes bursts of 1 / ((1 - correlation) (1 - p)) packets. Raises UsageError.
    """
    fields = value
    if isinstance(value, str) and "," in value:
        first, *rest = (part.partition("=") for part in value.split(","))
        if first[1] or not all(word for _, _, word in rest):
            raise UsageError(f"{value!r} is not a loss; {_LOSS}")
        fields = {"p": first[0].strip(), **{key.strip(): word.strip() for key, _, word in rest}}
    if not isinstance(fields, Mapping):
        return Loss(share(fields))
    if unknown := next((key for key in fields if key not in ("p", "burst", "correlation")), None):
        raise UsageError(f"a loss has no {unknown!r}; {_LOSS}")
    if "p" not in fields or len(fields) == 3:
        raise UsageError(
            f"{'a loss needs p' if len(fields) < 3 else 'burst and correlation exclude each other'}; {_LOSS}"
        )
    lost = share(fields["p"])
    if "burst" in fields:
        burst, _ = _quantity(fields["burst"], {"": 1}, "number of packets; write the mean length of a burst, as 5")
    elif "correlation" in fields:
        burst = 1 / ((1 - share(fields["correlation"])) * (1 - lost))
    else:
        return Loss(lost)
    if wrong := burst_objection(lost, burst):
        raise UsageError(wrong)
    return Loss(lost, burst)


MAX_LOSS_BURST = 1e6
_LOSS = 'write it as 1%, as { p = "1%", burst = 5 } (on the command line 1%,burst=5), or with a correlation'


def burst_objection(lost: float, burst: float) -> str:
    """Return why losses of a share cannot come in bursts of this mean length. The text is empty if they can."""
    least = max(1.0, lost / (1 - lost))
    if least <= burst <= MAX_LOSS_BURST:
        return ""
    most = f"at least {least:.3g} packets long for a loss of {lost:.3g}, and at most {MAX_LOSS_BURST:,.0f}"
    return f"bursts of losses are {burst:g} packets long on average; they must be {most}"


class Mtu(NamedTuple):
    """Longest packet that passes, in bytes with its IP header.

    ``silent``: the sender does not learn the MTU, as if a firewall drops the messages of routers.
    """

    bytes: int
    silent: bool = False

    def __str__(self) -> str:
        return f"{self.bytes} silent" if self.silent else f"{self.bytes}"


LEAST_MTU, MOST_MTU = 576, 1500
"""Every IPv4 host accepts packets of the first length (RFC 791). The second is the MTU of the interfaces."""


def mtu(value: Any) -> Mtu:
    """Read an MTU: ``1400``, ``"1400,silent"``, or ``{"bytes": 1400, "silent": True}``. Raises UsageError."""
    known = "write it as 1400, or as { bytes = 1400, silent = true } (on the command line 1400,silent)"
    size, silent = value, False
    if isinstance(value, Mapping):
        size, silent = value.get("bytes"), value.get("silent", False)
        if value.keys() - {"bytes", "silent"} or not isinstance(silent, bool):
            raise UsageError(f"{shown(dict(value))} is not an MTU; {known}")
    elif isinstance(value, str):
        size, comma, word = (part.strip() for part in value.partition(","))
        if (silent := bool(comma)) and word != "silent":
            raise UsageError(f"{value!r} is not an MTU; {known}")
    text = size.strip() if isinstance(size, str) else str(size)
    if isinstance(size, bool) or not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise UsageError(f"{shown(size)} is not an MTU in bytes; {known}")
    if not LEAST_MTU <= int(text) <= MOST_MTU:
        raise UsageError(f"the MTU is {text} bytes; it must lie between {LEAST_MTU} and {MOST_MTU}")
    return Mtu(int(text), silent)


def size_bytes(value: Any) -> int:
    """Return the bytes of a size: ``"16kb"`` (b, kb, mb, gb, powers of 1024 as in tc and Docker), or a bare number.

    The size must be at least 1. Raises UsageError.
    """
    number, unit_bytes = _quantity(value, _SIZES, "size; write it as 16kb, 512mb, 1gb, or as a number of bytes")
    if number * unit_bytes < 1:
        raise UsageError(f"the size {value!r} is less than a byte")
    return round(number * unit_bytes)


def queue(value: Any) -> tuple[float, Literal["s", "bytes", "packets"], Discipline]:
    """Read a queue: ``"100ms"`` of a link's rate, ``"64kb"`` (b, kb, mb, gb), or a number of packets.

    The value may also be a discipline that keeps the queue short by itself: ``"fq_codel"``, ``"codel"``, ``"pie"`` or
    ``"red"``. The size is then the default. Raises UsageError.
    """
    named = value.strip().lower() if isinstance(value, str) else ""
    for discipline in MANAGED:
        if named == discipline:
            return USUAL_QUEUE_S, "s", discipline
    expected = f"queue; write it as 100ms, 64kb, as a number of packets, or as {', '.join(MANAGED)}"
    unit = named.lstrip("0123456789.").strip()
    number, factor = _quantity(value, _QUEUES, expected)
    if number <= 0 or (not unit and number != round(number)):
        raise UsageError(f"{value!r} is not a {expected}")
    return number * factor, "packets" if not unit else "bytes" if unit in _SIZES else "s", "fifo"


def unit(word: str, kind: Kind) -> float:
    """Return the worth of one unit of a kind, in seconds, bit/s or shares. Raises UsageError."""
    worth = _KINDS[kind].get(word.strip().lower())
    if worth is None:
        known = ", ".join(name for name in _KINDS[kind] if name)
        raise UsageError(f"{word!r} is no unit of a {kind}; there are {known}")
    return 1 / worth if kind == "share" else worth


def _unit(value: Any) -> str:
    """Return the unit of a written quantity, in lower case. It is empty for a bare number or for no quantity."""
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    return match[3].lower() if match else ""


def _quantity(value: Any, units: Mapping[str, float], what: str) -> tuple[float, float]:
    """Return a number that is finite and at least 0, and the worth of its unit, 1 for a bare number.

    ``what``: name of the quantity, and how to write it. Raises UsageError.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not 0 <= value < math.inf:
            raise UsageError(f"{value!r} must be finite and at least 0")
        return float(value), 1.0
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    unit = units.get(match[3].lower()) if match else None
    if match is None or unit is None:
        raise UsageError(f"{shown(value)} is not a {what}")
    number = float(f"{match[1]}e{match[2] or 0}")
    if not math.isfinite(number * unit):
        raise UsageError(f"{value!r} is too large to be counted")
    return number, unit


def shown(value: Any) -> str:
    """Return a value as written in a file: ``true``, not ``True``."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def format_rate(rate_bps: float) -> str:
    """Return a rate for people, with three significant digits: ``84 Mbit/s``."""
    for prefix, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate_bps >= 0.9995 * factor:
            value = rate_bps / factor
            return f"{value:.{max(0, 2 - math.floor(math.log10(max(value, 1.0))))}f} {prefix}bit/s"
    return f"{rate_bps:.3g} bit/s" if rate_bps < 100 else f"{rate_bps:.0f} bit/s"


def format_time(time_s: float) -> str:
    """Return a time for people, with three significant digits: ``20 ms``, ``90 s``, ``5 min``, ``2.5 h``."""
    if time_s == 0 or not math.isfinite(time_s):
        return "0 s" if time_s == 0 else "for ever"
    if time_s < 0.9995:
        return f"{time_s * 1e3:.3g} ms"
    if time_s < 120:
        return f"{time_s:.3g} s"
    return f"{time_s / 60:.3g} min" if time_s < 7200 else f"{time_s / 3600:.3g} h"


def format_size(size_bytes: int) -> str:
    """Return bytes with a unit, for people: 512 B, 1.5 KB, 20 MB (powers of 1,000)."""
    scaled, unit = float(size_bytes), "B"
    for larger in ("KB", "MB", "GB"):
        if scaled < 999.5:
            break
        scaled, unit = scaled / 1000, larger
    return f"{size_bytes} B" if unit == "B" else f"{scaled:.{1 if scaled < 9.95 else 0}f} {unit}"
