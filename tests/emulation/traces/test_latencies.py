from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from thalweg.emulation.traces.latencies import read_series
from thalweg.middleware.errors import TraceError


def test_empty_cells_of_a_latency_series_are_filled_from_other_slices(tmp_path: Path) -> None:
    path = tmp_path / "series.csv"
    path.write_text("slice,a-b,a-c,b-c\n0,10,,30\n1,,20,\n2,12,,31\n")
    series = read_series(path)
    assert series.hosts == ("a", "b", "c")
    assert series.round_trip_s[:, 0, 1].tolist() == [0.010, 0.010, 0.012]
    assert series.round_trip_s[:, 2, 0].tolist() == [0.020, 0.020, 0.020]
    assert (series.round_trip_s == series.round_trip_s.transpose(0, 2, 1)).all()
    assert (np.diagonal(series.round_trip_s, axis1=1, axis2=2) == 0).all()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slice,a-b\n0,x\n", "line 2: a-b is 'x'; give milliseconds above 0"),
        ("slice,a-b\n0,1\n1,-4\n", "line 3: a-b is '-4'"),
        ("slice,a-b\n0,1,2\n", "line 2: it has 2 round trips, and the first line has 1"),
        ("slice,a-b,a-c\n0,1,2\n", "lacks pairs of its hosts"),
        ("slice,a-b\n0,\n", "a-b is never measured; leave out one of the two hosts"),
        ("", "cannot be read as a series of round trips"),
    ],
)
def test_an_invalid_latency_series_is_refused_with_the_cause(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "series.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=says):
        read_series(path)
