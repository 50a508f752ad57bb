"""What a run may be asked for."""

from __future__ import annotations

import pytest

from thalweg.experiments.runs.config import RunConfig
from thalweg.middleware.errors import UsageError


@pytest.mark.parametrize("stripes", ["", "x", "-1", "1.5", "²", "9" * 5000])
def test_what_is_no_number_of_trees_is_refused(stripes: str) -> None:
    with pytest.raises(UsageError, match=r"^--stripes is .*; give a number of trees, or auto$"):
        RunConfig(stripes=stripes).check()


def test_what_is_no_number_of_partitions_under_way_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^--ahead is 0; give partitions, 1 to 1024$"):
        RunConfig(ahead=0).check()
