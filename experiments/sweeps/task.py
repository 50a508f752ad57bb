"""What an executor does for a sweep: one simulation after another, whatever they raise.

Executors import this module and what simulates, nothing that writes Parquet or draws.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import msgspec

from thalweg.experiments.sweeps.simulation import Simulated, Simulation
from thalweg.middleware.errors import ThalwegError, one_line

SIMULATE = "thalweg.experiments.sweeps.simulation:simulate"
REASON_CHARS = 300  # of a failure; planners may raise with whole tables in their text

_decode = msgspec.json.Decoder(Simulation).decode
_encode = msgspec.json.Encoder().encode


def simulate_encoded(simulate: str, encoded: bytes) -> tuple[bytes, float]:
    """Run one Simulation (JSON) with the function at import path ``simulate``: a Simulated (JSON), and seconds taken.

    What the simulation raises is its result: ``failed`` says type and text in one line.
    """
    begun = time.perf_counter()
    try:
        result = find(simulate)(_decode(encoded))
        if not isinstance(result, Simulated):
            raise TypeError(f"{simulate} gave {type(result).__name__}, not Simulated")
        text = _encode(result)
    except (Exception, SystemExit) as error:  # a user's planner may raise anything, also by sys.exit()
        text = _encode(Simulated(failed=_reason(error), wall_s=time.perf_counter() - begun))
    return text, time.perf_counter() - begun


def cannot_import(paths: Sequence[str], _: int = 0) -> str | None:
    """Import each ``module:attribute``; what went wrong with the first that fails, or None."""
    for path in paths:
        try:
            find(path)
        except Exception as error:  # importing runs the module, which may raise anything
            return f"{path}: {_reason(error)}"
    return None


@cache
def find(path: str) -> Callable[[Simulation], Any]:
    """What stands at ``module:attribute``."""
    module, _, attribute = path.partition(":")
    found: Callable[[Simulation], Any] = getattr(import_module(module), attribute)
    return found


def _reason(error: BaseException) -> str:
    """``Type: text``, in one line and not too long; the text alone where it is written for people."""
    text = one_line(error) if isinstance(error, ThalwegError) else f"{type(error).__name__}: {one_line(error)}"
    return text if len(text) <= REASON_CHARS else f"{text[: REASON_CHARS - 1]}…"
