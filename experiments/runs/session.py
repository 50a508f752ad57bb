"""Run of one configuration: the part that testbeds and virtual time have in common."""

from __future__ import annotations

import datetime
import shutil
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from thalweg.emulation.scenarios.process_events import read_stand_ins, with_stand_ins
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.experiments.command import Tell
from thalweg.experiments.networks.collapse import Collapse, choose_host, collapse_floor_bps
from thalweg.experiments.records.records import RunInfo, whole_digest
from thalweg.experiments.run_config import (
    CLIENT,
    COLLAPSE_AT_S,
    COLLAPSE_S,
    RunConfig,
    is_scenario_file,
)
from thalweg.experiments.runs.folder import SCENARIO, configuration, empty_folder, prepare_folder, versions
from thalweg.experiments.runs.omitted_sources import Pieces, without_sources
from thalweg.experiments.runs.strategies import make_strategies
from thalweg.experiments.runs.workload import workload_of
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.network.view import Link


class Found(msgspec.Struct):
    """Results of a run so far, by placement: initial hosts of operators, and number of delivered images.

    ``ended``: final hosts of operators, for placements that move them. ``trees``: final tree, for placements that
    changed the tree. ``notes`` are for people.
    """

    placed: dict[str, dict[str, str]] = {}
    ended: dict[str, dict[str, str]] = {}
    trees: dict[str, str] = {}
    delivered: dict[str, int] = {}
    notes: list[str] = []


class Outcome(msgspec.Struct, frozen=True):
    """Results of a run at its end, and the run folder."""

    info: RunInfo
    folder: Path
    found: Found
    dataflow: Dataflow


class Session(ABC):
    """Run of every placement of a configuration in turn, and the folder with the records.

    Raises UsageError or a subclass for unsuitable options, before the start.
    """

    def __init__(self, config: RunConfig, folder: Path, tell: Tell) -> None:
        self.strategies = make_strategies(config.check())
        self.workload = workload_of(config)
        flow = without_sources(self.workload.dataflow(), config)
        self.dataflow = with_stand_ins(flow, read_stand_ins(config.stand_in, config.all_servers))
        for strategy in self.strategies.values():
            strategy.check(self.dataflow)
        self.hosts = (*config.all_servers, CLIENT)
        tell("reading the images", 0, 0)
        images, notes = self.workload.available()
        self.config = msgspec.structs.replace(config, images=images)
        self.folder, self.tell = folder, tell
        self.started = datetime.datetime.now(datetime.UTC)
        self.total = images * len(self.dataflow.sinks)  # partitions to be delivered under each placement
        self.reference: dict[str, str] | None = None  # digests of a single process, by sink
        self.pieces: defaultdict[str, Pieces] = defaultdict(Pieces)  # by placement
        self.references: dict[str, dict[str, str]] = {}  # by placement, only placements that went on without a source
        self.collapse: Collapse | None = None  # collapse of the links
        self.found = Found(notes=notes)

    @abstractmethod
    def run(self) -> None:
        """Run all placements. Raise RunError or HostLostError if the run cannot go on."""

    @abstractmethod
    def save(self) -> RunInfo | None:
        """Write ``run.toml`` and the event log from the records so far. Return None if there are no records."""

    def _compare(self) -> None:
        """Compute the references of placements that went on without sources."""
        for label, pieces in self.pieces.items():
            if pieces.last:
                self.found.notes.append(f"{label} went on without {pieces}")
                if self.reference is not None:
                    self.tell(f"{label}: computing on a single machine", 0, 0)
                    self.references[label] = pieces.digests(self.workload.reference(), self.config)

    def befall(self, one_shot: Mapping[str, str], links: Mapping[Link, BandwidthTrace]) -> Collapse:
        """Return the collapse of links for this run, which depends on one-shot's placement."""
        host, at_s = choose_host(one_shot, self.hosts, CLIENT), self.config.collapse_at_s
        at_s = COLLAPSE_AT_S if at_s is None else at_s
        self.collapse = Collapse(host, collapse_floor_bps(links), at_s, at_s + COLLAPSE_S)
        self.found.notes.append(str(self.collapse))
        return self.collapse

    def execute(self) -> Outcome:
        """Run all placements. Leave ``run.toml`` and ``events.parquet`` in the folder, also after an error."""
        created, info = prepare_folder(self.folder), None
        if is_scenario_file(self.config.scenario):
            shutil.copy(self.config.scenario, self.folder / SCENARIO)
        try:
            try:
                self.run()
                self._compare()
            finally:
                info = self.save()
        except BaseException:
            if not self.found.delivered:  # no placement had begun, so there are no records to keep
                empty_folder(self.folder, remove=created)
            raise
        assert info is not None
        return Outcome(info, self.folder, self.found, self.dataflow)

    def info(self, run: str, **more: Any) -> RunInfo:
        """Return the content of ``run.toml`` for the run with this id."""
        config, dataflow = self.config, self.dataflow
        below = {sink: dataflow.below(sink) for sink in dataflow.sinks}
        return RunInfo(
            run=run,
            testbed=config.testbed,
            seed=config.seed,
            images=config.images,
            placements=list(config.placements),
            reference_digest=whole_digest(self.reference or {}),
            reference_digests=self.reference or {},
            references=self.references,
            queries={sink: [name for name in dataflow.sources if name in made_of] for sink, made_of in below.items()},
            started=self.started.isoformat(timespec="seconds"),
            hosts=list(self.hosts),
            notes=self.found.notes,
            config=configuration(config, self.strategies, self.collapse),
            versions=versions(),
            **more,
        )
