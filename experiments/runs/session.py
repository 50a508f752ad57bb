"""One run of a configuration, wherever its hosts are: what is the same on testbeds and in virtual time."""

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
    """What a run has left so far, by placement: where operators began, and how many images came.

    ``ended``: where they were at the end, for placements that move them; ``trees``: what the tree was then, for those
    under which it changed. ``notes`` are for people.
    """

    placed: dict[str, dict[str, str]] = {}
    ended: dict[str, dict[str, str]] = {}
    trees: dict[str, str] = {}
    delivered: dict[str, int] = {}
    notes: list[str] = []


class Outcome(msgspec.Struct, frozen=True):
    """What a run has left at its end, and in which folder."""

    info: RunInfo
    folder: Path
    found: Found
    dataflow: Dataflow


class Session(ABC):
    """Every placement of a configuration in turn, and the folder that they leave.

    Raises UsageError and its kin for what does not fit, before anything is begun.
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
        self.reference: dict[str, str] | None = None  # by sink the digest of a single process
        self.pieces: defaultdict[str, Pieces] = defaultdict(Pieces)  # by placement
        self.references: dict[str, dict[str, str]] = {}  # by placement, of those that went on without a source
        self.collapse: Collapse | None = None  # what befalls the links
        self.found = Found(notes=notes)

    @abstractmethod
    def run(self) -> None:
        """Run all placements; RunError or HostLostError when that cannot go on."""

    @abstractmethod
    def save(self) -> RunInfo | None:
        """Write run.toml and the event log from whatever has been recorded; None if nothing has."""

    def _compare(self) -> None:
        """Work out what one machine gives of what went on without sources."""
        for label, pieces in self.pieces.items():
            if pieces.last:
                self.found.notes.append(f"{label} went on without {pieces}")
                if self.reference is not None:
                    self.tell(f"{label}: computing on a single machine", 0, 0)
                    self.references[label] = pieces.digests(self.workload.reference(), self.config)

    def befall(self, one_shot: Mapping[str, str], links: Mapping[Link, BandwidthTrace]) -> Collapse:
        """What befalls the links, which depends on where one-shot puts operators."""
        host, at_s = choose_host(one_shot, self.hosts, CLIENT), self.config.collapse_at_s
        at_s = COLLAPSE_AT_S if at_s is None else at_s
        self.collapse = Collapse(host, collapse_floor_bps(links), at_s, at_s + COLLAPSE_S)
        self.found.notes.append(str(self.collapse))
        return self.collapse

    def execute(self) -> Outcome:
        """Run them, and leave ``run.toml`` and ``events.parquet`` in the folder, whatever happens."""
        made, info = prepare_folder(self.folder), None
        if is_scenario_file(self.config.scenario):
            shutil.copy(self.config.scenario, self.folder / SCENARIO)
        try:
            try:
                self.run()
                self._compare()
            finally:
                info = self.save()
        except BaseException:
            if not self.found.delivered:  # nothing had begun, so there is nothing to keep
                empty_folder(self.folder, remove=made)
            raise
        assert info is not None
        return Outcome(info, self.folder, self.found, self.dataflow)

    def info(self, run: str, **more: Any) -> RunInfo:
        """What ``run.toml`` says of the run of that id."""
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
