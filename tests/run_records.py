"""Records of hosts for a run that is over. Hosts write them a little after the client is notified of the end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from patience import patience


def rows_of_run(records: Path, label: str, *hosts: str) -> list[tuple[str, dict[str, Any]]]:
    """Return pairs of a host and a row of the run ``label``, of the named hosts or of all hosts with a file.

    Wait until each host has written its last row of the run, which has the kind ``monitor``.
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
