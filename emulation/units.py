"""Rates as people and tc write them: ``0.2mbit`` is 200,000 bits per second."""

from __future__ import annotations

import math
import re

from thalweg.middleware.errors import UsageError

# tc(8), "PARAMETERS, RATES": SI and IEC prefixes; "bit" is bits per second, "bps" is bytes per second.
_PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_PREFIXES |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_UNITS = {"": 1, "bit": 1, "bps": 8}
_RATE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:e([+-]?\d{1,3}))?\s*(?:([kmgt]i?)?(bit|bps))?", re.ASCII | re.IGNORECASE)


def parse_rate(text: str) -> float:
    """Bits per second of a rate in tc's notation; at least 0.

    Units in any case: bit, kbit, mbit, gbit, tbit (powers of 1000), kibit … (powers of 1024), and as tc has it
    bps, kbps, mbps … for *bytes* per second; a bare number is bits per second. Raises UsageError.
    """
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a rate; write it as tc does: 64kbit, 0.2mbit, 1gbit, or 25kbps for bytes")
    number, exponent, prefix, unit = match.groups()
    rate_bps = float(f"{number}e{exponent or 0}") * _PREFIXES[(prefix or "").lower()] * _UNITS[(unit or "").lower()]
    if not math.isfinite(rate_bps):
        raise UsageError(f"the rate {text!r} is too large to be counted")
    return rate_bps


def format_rate(rate_bps: float) -> str:
    """A rate for people, three significant digits: ``84 Mbit/s``."""
    for prefix, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate_bps >= 0.9995 * factor:
            value = rate_bps / factor
            return f"{value:.{max(0, 2 - math.floor(math.log10(max(value, 1.0))))}f} {prefix}bit/s"
    return f"{rate_bps:.3g} bit/s" if rate_bps < 100 else f"{rate_bps:.0f} bit/s"
