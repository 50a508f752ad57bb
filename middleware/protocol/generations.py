"""The generations of a run: each has an id of its own, so that whatever is said of a run says of which.

A run that outlives its hosts begins anew, as another generation, when it has lost one (``core.relocation.recovery``).
Generation 0 has the run's own id, by which the application knows it.
"""

from __future__ import annotations

SIGN = "~"  # between a run's id and the generation


def base_of(run: str) -> str:
    """The run's own id."""
    return run.partition(SIGN)[0]


def generation_of(run: str) -> int:
    """The number of the generation; of a name that no client of ours has made up, 0."""
    number = run.partition(SIGN)[2]
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 10 else 0


def following(run: str) -> str:
    """The id of the next generation."""
    return f"{base_of(run)}{SIGN}{generation_of(run) + 1}"
