"""The list of deliberate faults fits the code; ``make mutants`` makes them."""

from __future__ import annotations

from mutants import MUTANTS, edited


def test_every_deliberate_fault_can_be_made() -> None:
    assert len(MUTANTS) >= 24
    assert len({(one.file, one.old, one.new) for one in MUTANTS}) == len(MUTANTS)
    for one in MUTANTS:
        compile(edited(one), one.file, "exec")
