"""What comes out of a run: while it goes on, and at its end."""

from __future__ import annotations

from pathlib import Path

import msgspec

from thalweg.experiments.records.records import RunInfo


class Found(msgspec.Struct):
    """What a run has left so far, by placement: where operators began, and how many images came.

    ``ended``: where they were at the end, for placements that move them; ``trees``: what the tree was then, for those
    under which it changed. ``notes`` are for people.
    """

    placed: dict[str, dict[str, str]] = {}
    ended: dict[str, dict[str, str]] = {}
    trees: dict[str, str] = {}
    delivered: dict[str, int] = {}
    notes: list[str] = []


class Outcome(msgspec.Struct, frozen=True):
    """What a run left at its end: its folder, and what was ``Found``."""

    info: RunInfo
    folder: Path
    placed: dict[str, dict[str, str]]
    ended: dict[str, dict[str, str]]
    trees: dict[str, str]
    delivered: dict[str, int]

    @classmethod
    def of(cls, info: RunInfo, folder: Path, found: Found) -> Outcome:
        """The outcome of a run that has ended."""
        return cls(info, folder, found.placed, found.ended, found.trees, found.delivered)
