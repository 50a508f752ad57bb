"""A picture of what a run did: the sites' images beside their composite."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from thalweg.experiments.runs.config import RunConfig
from thalweg.experiments.runs.session import Outcome
from thalweg.experiments.runs.workload import build_dataflow
from thalweg.middleware.dataflow import Code
from thalweg.middleware.loading import DEFAULT_ALLOW, load_code
from thalweg.operators import contact_sheet

_SHOWN_SITES = 4
_SHOWN_IMAGES = 3


def write_sheet(config: RunConfig, outcome: Outcome) -> Path | None:
    """``images/sheet.png`` of the run folder: some sites' images and the composite, for the first few images."""
    if config.pictures == 0 or not any(outcome.found.delivered.values()):
        return None
    dataflow = build_dataflow(config)
    sources = []
    for name in dataflow.sources:
        code = dataflow.by_name[name].code
        assert code is not None
        sources.append(load_code(code))
    composite = load_code(Code("composite", {"rule": config.rule}), (*DEFAULT_ALLOW, *config.allow))
    rows = []
    for index in range(min(_SHOWN_IMAGES, outcome.info.images)):
        seen = [np.asarray(source.produce(index)) for source in sources]
        rows.append([*seen[:_SHOWN_SITES], np.asarray(composite.combine(seen, index))])
    labels = [f"server h{site + 1}" for site in range(min(_SHOWN_SITES, len(sources)))]
    path = outcome.folder / "images" / "sheet.png"
    path.parent.mkdir(exist_ok=True)
    contact_sheet(rows, [*labels, f"composite of {len(sources)}"], path)
    return path
