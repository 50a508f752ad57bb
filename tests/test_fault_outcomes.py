"""Fault plans end as recorded. The first plans run here, all plans with ``python tests/fault_outcomes.py``."""

from __future__ import annotations

import pytest
from fault_outcomes import PLANS, SAMPLE, Block, Row, blocks, compared, lines_of, recorded, row_of

LINES = ["0 delivered - expected=9 delivered=9", "1 ended - expected=9 hosts=[h1]"]


@pytest.mark.parametrize("kind", ["graphs", pytest.param("failover", marks=pytest.mark.long)])
def test_the_first_plans_end_as_recorded(kind: str) -> None:
    block = Block(kind, 0, SAMPLE)
    assert compared(block, lines_of(block), recorded()[block]) == ""


def test_the_table_has_all_plans_and_no_failure() -> None:
    rows = recorded()
    assert [*rows] == blocks()
    for kind, count in PLANS.items():
        letters = "".join(row.letters for block, row in rows.items() if block.kind == kind)
        assert (len(letters), letters.count("F")) == (count, 0)
        assert min(letters.count(letter) for letter in ".ea") > 0


@pytest.mark.parametrize(
    ("lines", "difference"),
    [
        (LINES, ""),
        ([LINES[0], "1 delivered - expected=9 delivered=9"], "graphs: another outcome: 1 delivered"),
        ([LINES[0], "1 ended - expected=9 hosts=[h2]"], "graphs from 0 on: the outcomes are the same"),
    ],
)
def test_a_difference_names_the_plan(lines: list[str], difference: str) -> None:
    printed = compared(Block("graphs", 0, 2), lines, row_of(LINES))
    assert printed.startswith(difference) and bool(printed) == bool(difference)


def test_a_row_has_a_letter_for_every_plan() -> None:
    assert row_of(LINES).letters == ".e"
    assert row_of(LINES) == Row(".e", row_of(LINES).digest) != row_of(LINES[:1])
