"""Options of a run: checks of their values."""

from __future__ import annotations

import pytest

from thalweg.experiments.run_config import RunConfig
from thalweg.middleware.errors import UsageError


@pytest.mark.parametrize("stripes", ["", "x", "-1", "1.5", "²", "9" * 5000])
def test_an_invalid_number_of_trees_is_refused(stripes: str) -> None:
    with pytest.raises(UsageError, match=r"^--stripes is .*; give a number of trees, or auto$"):
        RunConfig(stripes=stripes).check()


@pytest.mark.parametrize("ahead", ["0", "1025", "x", "", "²"])
def test_an_invalid_number_of_partitions_under_way_is_refused(ahead: str) -> None:
    with pytest.raises(UsageError, match=r"^--ahead is .*; give partitions, 1 to 1024, or auto$"):
        RunConfig(ahead=ahead).check()


def test_the_number_of_partitions_under_way_is_fixed_or_automatic() -> None:
    assert [RunConfig(ahead=ahead).check().depth for ahead in ("1", "17", "auto")] == [1, 17, "auto"]
