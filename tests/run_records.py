"""What hosts have recorded of a run that is over. They write it a little later than the client has heard so."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from patience import patience


def rows_of_run(records: Path, label: str, *hosts: str) -> list[tuple[str, dict[str, Any]]]:
    """Pairs of a host and a row of the run with that label, of these hosts or of all that have a file.

    Waits until each of them has written that the run is over there: ``monitor`` is its last row of a run.
    """
    names = {*hosts} or {path.stem for path in records.glob("*.jsonl")}
    until_s = time.monotonic() + patience(20)
    while True:
        rows = []
        for name in sorted(names):
            lines = (records / f"{name}.jsonl").read_text().splitlines(keepends=True)
            known = [json.loads(line) for line in lines if line.endswith("\n")]
            rows += [(name, row) for row in known if row["placement"] == label]
        waits = names - {name for name, row in rows if row["kind"] == "monitor"}
        if not waits:
            return rows
        assert time.monotonic() < until_s, f"{sorted(waits)} have not written that the run {label!r} is over"
        time.sleep(0.01)
