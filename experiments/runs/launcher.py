"""``thalweg run``: a testbed, its hosts, the client's worker, and the records they leave, put together.

Whatever happens, host processes and testbed are gone when ``execute`` returns or raises, and what was recorded until
then is in the run folder.
"""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from thalweg.emulation.testbeds.open import open_testbed
from thalweg.emulation.testbeds.shaped import ShapedTestbed
from thalweg.experiments.command import Tell
from thalweg.experiments.networks.collapse import Collapse, check_collapse, choose_host, collapse_floor_bps
from thalweg.experiments.networks.described import Network
from thalweg.experiments.networks.setup import testbed_options
from thalweg.experiments.networks.traced import build_network
from thalweg.experiments.networks.truth import add_truth
from thalweg.experiments.records.records import IMAGES, RunInfo, save_run, write_events
from thalweg.experiments.runs.config import CLIENT, RunConfig, host_names, is_scenario_file
from thalweg.experiments.runs.folder import SCENARIO, configuration, empty_folder, prepare_folder, versions
from thalweg.experiments.runs.job import Go, Job, Word
from thalweg.experiments.runs.links import Emulated, Unshaped
from thalweg.experiments.runs.outcome import Found, Outcome
from thalweg.experiments.runs.processes import Processes, fail
from thalweg.experiments.runs.strategies import cost_options, make_strategies, strategy_options
from thalweg.experiments.runs.workload import build_dataflow, cost_parameters, images_available, reference_digest
from thalweg.middleware.protocol.limits import MonitorConfig


def execute(config: RunConfig, folder: Path, tell: Tell) -> Outcome:
    """Run every placement of ``config`` in turn and leave ``run.toml`` and ``events.parquet`` in ``folder``.

    Raises UsageError and its kin before anything is started, RunError or HostLostError when a run cannot go on.
    """
    session = _Session(config.check(), folder, tell)
    made = prepare_folder(folder)
    session.logs.mkdir()
    if is_scenario_file(config.scenario):
        shutil.copy(config.scenario, folder / SCENARIO)
    try:
        with ExitStack() as stack:
            stack.callback(session.save)
            session.run(stack)
    except BaseException:
        if not session.found.delivered:  # nothing had begun, so there is nothing to keep
            empty_folder(folder, remove=made)
        raise
    assert session.info is not None
    return Outcome.of(session.info, folder, session.found)


class _Session:
    """One call of ``execute``."""

    def __init__(self, config: RunConfig, folder: Path, tell: Tell) -> None:
        self.strategies = make_strategies(config)
        self.dataflow = build_dataflow(config)
        self.hosts = [*host_names(config.servers), CLIENT]
        tell("reading the images", 0, 0)
        self.config = config = msgspec.structs.replace(config, images=images_available(config))
        self.folder, self.tell = folder, tell
        self.logs = folder / "logs"
        network = None
        if config.testbed != "loopback":
            network = build_network(config, self.hosts, len(self.dataflow.nodes) - 1)
            if config.scenario == "collapse":
                check_collapse(network.traces, config.time_scale)
        self.bed = open_testbed(config.testbed, self.hosts, **_testbed_options(config, network))
        self.links = Unshaped(config.time_scale)
        if network is not None:
            assert isinstance(self.bed, ShapedTestbed)
            self.links = Emulated(network, self.bed)
        now = datetime.datetime.now(datetime.UTC)
        self.run_id = f"{now:%Y%m%dT%H%M%S}-{config.testbed}-{config.seed}"
        self.started = now.isoformat(timespec="seconds")
        self.info: RunInfo | None = None
        self.reference: str | None = None
        self.found = Found()

    def run(self, stack: ExitStack) -> None:
        """All placements, on a testbed that ``stack`` takes down."""
        config, tell = self.config, self.tell
        self.reference = reference_digest(self.dataflow, config, tell)
        tell("setting up the testbed", 0, 0)
        stack.callback(self.bed.down)
        self.bed.up()
        stack.callback(self.bed.collect)
        records = self.bed.outbox(self.logs)  # as the hosts' processes see it
        self.found.notes += self.links.set_up(config.prove, tell)
        tell("starting the hosts", 0, 0)
        processes = Processes(self.bed, stack, self.logs)
        addresses = processes.start_hosts([host for host in self.hosts if host != CLIENT], config, records)
        pictures = self.bed.outbox(self.folder / IMAGES)
        words = processes.start_worker(self._job(addresses, processes.listen(CLIENT), records, pictures))
        self.links.load(stack)
        for label in config.placements:
            self._plan_ahead(label, processes, words)
        if config.scenario == "collapse":
            self._collapse(self._plan_ahead("one-shot", processes, words))
        for label in config.placements:
            with self.links.replaying() as began_s:
                processes.tell(Go(label, self._view()))
                self._follow(label, words)
            self.found.notes += self.links.record(label, began_s)
        processes.end()

    def _job(self, addresses: dict[str, str], listen: str, records: Path, pictures: Path) -> Job:
        config = self.config
        return Job(
            dataflow=self.dataflow,
            addresses=addresses,
            listen=listen,
            insecure=True,
            allow=config.allow,
            time_scale=config.time_scale,
            images=config.images,
            pictures=config.pictures,
            cost=config.cost,
            cost_options=cost_options(config.cost, "independent"),
            strategies=strategy_options(config),
            monitor=MonitorConfig() if config.forecaster is None else MonitorConfig(forecaster=config.forecaster),
            costs=cost_parameters(config),
            records=str(records),
            pictures_to=str(pictures),
        )

    def _view(self) -> list[tuple[str, str, float]] | None:
        """What planners are told of the links, if anything."""
        return self.links.view() if self.config.view == "truth" else None

    def _plan_ahead(self, label: str, processes: Processes, words: Iterator[Word]) -> dict[str, str]:
        """Let a placement be planned on links as they are at first, so that all begin at the start of their traces."""
        self.tell(f"{label}: planning", 0, 0)
        with self.links.replaying():
            processes.tell(Go(label, self._view(), ahead=True))
            word = next(words)
        if word.event != "planned":
            fail(word)
        placement: dict[str, str] = word.detail["placement"]
        return placement

    def _collapse(self, one_shot: dict[str, str]) -> None:
        """What befalls the links depends on where one-shot puts operators."""
        assert isinstance(self.links, Emulated)
        floor_bps = collapse_floor_bps(self.links.network.traces)
        collapse = Collapse(choose_host(one_shot, self.hosts, CLIENT), floor_bps)
        self.links.befall(collapse)
        self.found.notes.append(str(collapse))

    def _follow(self, label: str, words: Iterator[Word]) -> None:
        """Show a placement's progress until it is done."""
        found, total = self.found, self.config.images
        found.delivered[label] = 0
        for word in words:
            if word.event == "delivered":
                found.delivered[label] += 1
                self.tell(label, found.delivered[label], total)
            elif word.event == "planned":
                found.placed[label] = word.detail["placement"]
                self.tell(label, 0, total)
            elif word.event == "done":
                if "placement" in word.detail:
                    found.ended[label] = word.detail["placement"]
                if "tree" in word.detail:
                    found.trees[label] = word.detail["tree"]
                return
            else:
                fail(word)

    def save(self) -> None:
        """Write run.toml and the event log from whatever has been recorded."""
        if self.reference is None:
            return
        config = self.config
        self.info = RunInfo(
            run=self.run_id,
            testbed=config.testbed,
            seed=config.seed,
            images=config.images,
            placements=list(config.placements),
            time_scale=config.time_scale,
            delay_emulated=self.bed.delay_emulated,
            reference_digest=self.reference,
            started=self.started,
            hosts=self.hosts,
            notes=self.found.notes,
            config=configuration(config, self.strategies, self.links.collapse),
            versions=versions(),
        )
        for path in self.logs.glob("*.jsonl"):
            add_truth(path, self.links.truth)
        (self.logs / "testbed.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(self.links.rows))
        files = sorted(self.logs.glob("*.jsonl"))
        write_events(self.folder, self.run_id, files)
        save_run(self.folder, self.info)
        for path in files:
            path.unlink()
        for path in self.logs.glob("*.err"):
            if path.stat().st_size == 0:
                path.unlink()
        if not any(self.logs.iterdir()):
            self.logs.rmdir()


def _testbed_options(config: RunConfig, network: Network | None) -> dict[str, Any]:
    """What the testbed is to be made with, besides its hosts."""
    options = {} if network is None else testbed_options(network.timeline, config.testbed)
    if config.testbed == "docker":
        mounts = () if config.folder is None else (Path(config.folder).resolve(),)
        options |= {"image": config.image, "mounts": mounts, "same_code": True}
    return options
