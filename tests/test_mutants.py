"""The list of deliberate faults fits the code and the tests. ``make mutants`` tries the faults."""

from __future__ import annotations

from mutants import MUTANTS, ROOT, edited


def test_every_deliberate_fault_can_be_made() -> None:
    assert len(MUTANTS) >= 106
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        compile(edited(mutant), mutant.file, "exec")


def test_every_deliberate_fault_names_tests_that_exist() -> None:
    for mutant in MUTANTS:
        assert mutant.tests, mutant.breaks
        for test in mutant.tests:
            file, _, name = test.partition("::")
            text = (ROOT / file).read_text()
            assert not name or f"def {name.partition('[')[0]}(" in text, test
