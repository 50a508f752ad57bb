"""Launcher of ``thalweg run``: starts a testbed, its hosts and the client's worker, and gathers the records.

When ``execute`` returns or raises, host processes and testbed are gone, and the records so far are in the run folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from thalweg.emulation.scenarios.process_events import deeds_of, joining
from thalweg.emulation.testbeds.open import open_testbed
from thalweg.experiments.command import Tell
from thalweg.experiments.networks.collapse import check_collapse
from thalweg.experiments.networks.described import Network
from thalweg.experiments.networks.setup import testbed_options
from thalweg.experiments.networks.traced import build_network
from thalweg.experiments.networks.truth import add_truth
from thalweg.experiments.records.records import IMAGES, RunInfo, save_run, write_events
from thalweg.experiments.run_config import CLIENT, RunConfig
from thalweg.experiments.runs.job import Go, Job, Said
from thalweg.experiments.runs.links import Emulated, Unshaped, View
from thalweg.experiments.runs.processes import Processes, fail
from thalweg.experiments.runs.session import Outcome, Session
from thalweg.experiments.runs.strategies import strategy_options
from thalweg.experiments.runs.workload import reference_of

WORKER = "thalweg.experiments.runs.worker"


def execute(config: RunConfig, folder: Path, tell: Tell) -> Outcome:
    """Run every placement of ``config`` on its testbed in turn, and leave records in ``folder``. See ``Session``."""
    return _Session(config, folder, tell).execute()


class _Session(Session):
    """State of one call of ``execute``."""

    def __init__(self, config: RunConfig, folder: Path, tell: Tell) -> None:
        super().__init__(config, folder, tell)
        self.logs = folder / "logs"
        network = None
        if config.testbed != "loopback":
            network = build_network(self.config, self.hosts, len(self.dataflow.nodes) - 1)
            if config.scenario == "collapse":
                check_collapse(network.traces, config.time_scale)
        self.bed = open_testbed(config.testbed, self.hosts, **_testbed_options(config, network))
        self.links = Unshaped(config.time_scale)
        if network is not None:
            self.links = Emulated(network, self.bed)

    def run(self) -> None:
        self.logs.mkdir()
        with ExitStack() as stack:
            self._run(stack)

    def _run(self, stack: ExitStack) -> None:
        """Run all placements on a testbed that ``stack`` takes down."""
        config, tell = self.config, self.tell
        self.reference = reference_of(self.workload.reference(), config, tell)
        tell("setting up the testbed", 0, 0)
        stack.callback(self.bed.down)
        self.bed.up()
        stack.callback(self.bed.collect)
        records = self.bed.outbox(self.logs)  # path as the hosts' processes see it
        self.found.notes += self.links.set_up(config.prove, tell)
        tell("starting the hosts", 0, 0)
        processes = Processes(self.bed, stack, self.logs)
        if isinstance(self.links, Emulated):
            processes.capacities = self.links.network.timeline.capacities
        addresses = processes.start_hosts(
            [host for host in self.hosts if host != CLIENT],
            records,
            allow=config.allow,
            data_roots=self.workload.data_roots(self.dataflow),
            time_scale=config.time_scale,
            forecaster=config.forecaster,
            limits=config.limits,
        )
        pictures = self.bed.outbox(self.folder / IMAGES)
        listen = processes.listen(CLIENT)
        job = Job(
            config,
            self.dataflow,
            strategy_options(config),
            addresses,
            listen,
            records=str(records),
            pictures=str(pictures),
            ends=processes.ends(CLIENT),
            tariffs=self.links.tariffs,
            rented=[*self.links.agreed_bps.items()],
        )
        timeline = self.links.network.timeline if isinstance(self.links, Emulated) else None
        described = () if timeline is None else timeline.deeds
        self.deeds = deeds_of(config.befalling, config.all_servers, config.time_scale, described)
        processes.lasting = bool(self.deeds)
        if self.deeds:
            job = msgspec.structs.replace(job, failover=config.failover({} if timeline is None else timeline.sites))
        words = processes.start_worker(WORKER, job)
        self.links.load(stack)
        for label in config.placements:
            self._set_out(processes, all_there=True)
            self._plan_ahead(label, processes, words)
        if config.scenario == "collapse":
            assert isinstance(self.links, Emulated)
            one_shot = self._plan_ahead("one-shot", processes, words)
            self.links.befall(self.befall(one_shot, self.links.network.traces))
        for label in config.placements:
            self._set_out(processes)
            with self.links.replaying() as began_s:
                processes.tell(Go(label, self._view()))
                begun_s = began_s + time.monotonic() - time.time()
                processes.deeds = [(begun_s + deed.at_s / config.time_scale, deed) for deed in self.deeds]
                self._follow(label, words)
            self.found.notes += self.links.record(label, began_s)
            for wall_s, deed in processes.befallen:
                self.links.record_deed(label, deed, began_s, wall_s)
        processes.end()

    def _set_out(self, processes: Processes, *, all_there: bool = False) -> None:
        """Start and end hosts, so that the hosts of a placement's start are there.

        For planning, all hosts are there.
        """
        if self.deeds:
            processes.set_out(() if all_there else joining(self.deeds))

    def _view(self) -> View | None:
        """Return the rates of the links for planners. None: planners measure."""
        return self.links.view() if self.config.view == "truth" else None

    def _plan_ahead(self, label: str, processes: Processes, words: Iterator[Said]) -> dict[str, str]:
        """Have a placement planned, and return it. Links rest in the state at the start of every placement."""
        self.tell(f"{label}: planning", 0, 0)
        with self.links.resting():
            processes.tell(Go(label, self._view(), ahead=True))
            word = next(words)
        if word.event != "planned":
            fail(word)
        placement: dict[str, str] = word.detail["placement"]
        return placement

    def _follow(self, label: str, words: Iterator[Said]) -> None:
        """Show the progress of a placement until it is done."""
        progress, total = self.found, self.total
        progress.delivered[label] = 0
        for word in words:
            if word.event == "delivered":
                progress.delivered[label] += 1
                self.tell(label, progress.delivered[label], total)
            elif word.event == "missing":
                gaps = {name: [(first, until) for first, until in own] for name, own in word.detail["missing"].items()}
                self.pieces[label].add(word.detail["sink"], word.index, gaps)
            elif word.event == "planned":
                progress.placed[label] = word.detail["placement"]
                self.tell(label, 0, total)
            elif word.event == "done":
                if "placement" in word.detail:
                    progress.ended[label] = word.detail["placement"]
                if "tree" in word.detail:
                    progress.trees[label] = word.detail["tree"]
                return
            else:
                fail(word)

    def save(self) -> RunInfo | None:
        if self.reference is None:
            return None
        for path in self.logs.glob("*.jsonl"):
            add_truth(path, self.links.truth)
        (self.logs / "testbed.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(self.links.rows))
        files = sorted(self.logs.glob("*.jsonl"))
        config = self.config
        info = self.info(
            f"{self.started:%Y%m%dT%H%M%S}-{config.testbed}-{config.seed}",
            time_scale=config.time_scale,
            delay_emulated=self.bed.delay_emulated,
        )
        write_events(self.folder, info.run, files)
        save_run(self.folder, info)
        for path in files:
            path.unlink()
        for path in self.logs.glob("*.err"):
            if path.stat().st_size == 0:
                path.unlink()
        if not any(self.logs.iterdir()):
            self.logs.rmdir()
        return info


def _testbed_options(config: RunConfig, network: Network | None) -> dict[str, Any]:
    """Return the options of the testbed, besides the hosts."""
    options = {} if network is None else testbed_options(network.timeline, config.testbed, control_band=True)
    if config.testbed == "docker":
        mounts = () if config.folder is None else (Path(config.folder).resolve(),)
        options |= {"image": config.image, "mounts": mounts, "same_code": True}
    return options
