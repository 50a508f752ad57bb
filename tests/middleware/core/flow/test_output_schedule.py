"""Schedule of the reports of a node's outputs in a run with failover."""

from __future__ import annotations

import pytest
from run_ids import R

from thalweg.middleware.core.flow.output_schedule import OutputSchedule, ReportDue
from thalweg.middleware.protocol import events as e


def made(index: int) -> e.OperatorFinished:
    return e.OperatorFinished(R, "o", index)


@pytest.mark.parametrize(
    ("index", "taken_bytes", "now", "due"),
    [(7, 99, 9.9, False), (8, 0, 0.0, True), (9, 0, 0.0, True), (0, 100, 0.0, True), (0, 0, 10.0, True)],
)
def test_outputs_are_reported_by_partition_by_bytes_or_by_time(
    index: int, taken_bytes: int, now: float, due: bool
) -> None:
    books = OutputSchedule()
    books.set_due("o", ReportDue(8, 100, 10.0))
    books.take("o", taken_bytes)
    assert books.is_due(made(index), now) is due
    assert books.begin_anew("o") == taken_bytes
    assert books.begin_anew("o") == 0


def test_a_node_without_a_schedule_reports_every_output() -> None:
    books = OutputSchedule()
    assert books.is_due(made(0), 0.0)
    books.set_due("o", ReportDue(8, 100, 10.0))
    assert not books.is_due(made(0), 0.0)
    books.set_due("o", None)
    assert books.is_due(made(0), 0.0)
    books.set_due("o", ReportDue(8, 100, 10.0))
    books.forget(("o",))
    assert books.is_due(made(0), 0.0)
