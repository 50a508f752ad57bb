"""``thalweg run``: a testbed, its hosts, the client's worker, and the records they leave, put together.

Whatever happens, host processes and testbed are gone when ``execute`` returns or raises, and what was recorded until
then is in the run folder.
"""

from __future__ import annotations

import datetime
import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec

from thalweg.emulation.links.shape import BURST_FLOOR_BYTES, PACKET_BYTES
from thalweg.emulation.proofs.windows import worst_sampled
from thalweg.emulation.supervisor.client import TestbedProcess
from thalweg.emulation.testbeds.open import open_testbed
from thalweg.emulation.testbeds.replay import ReplayHandle
from thalweg.emulation.testbeds.shaped import ShapedTestbed
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.emulation.uml.files import inside_uml
from thalweg.experiments.command import Tell
from thalweg.experiments.networks.collapse import Collapse, Rates, check_collapse, choose_host, collapse_floor_bps
from thalweg.experiments.networks.described import Network
from thalweg.experiments.networks.traced import Replayed, Truth, add_truth, build_network
from thalweg.experiments.records.records import IMAGES, RunInfo, save_run, sequence_digest, write_events
from thalweg.experiments.runs.config import CLIENT, RunConfig, host_names, is_scenario_file
from thalweg.experiments.runs.folder import configuration, empty_folder, prepare_folder, versions
from thalweg.experiments.runs.strategies import cost_options, make_strategies, strategy_options
from thalweg.experiments.runs.worker import Go, Job, Word
from thalweg.experiments.runs.workload import build_dataflow, images_available, reference_digests
from thalweg.middleware.client.cluster import host_command, host_environment, wait_ready_lines
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import HostAbsentError, HostLostError, RunError, ThalwegError, UsageError
from thalweg.middleware.network.view import Link
from thalweg.middleware.planning import CostParameters
from thalweg.middleware.planning.registry import Strategy
from thalweg.middleware.protocol.limits import MonitorConfig

SCENARIO = "scenario.toml"  # a copy of the file that a run was given
PORT = 7800  # control port of every host in a testbed with addresses of its own
FREE_BYTES_PER_S = 1e18  # a disk that costs nothing; JSON has no infinity
PATIENCE = 5.0 if inside_uml() else 1.0  # there everything shares one slow processor
START_S = 60.0 * PATIENCE
END_S = 5.0 * PATIENCE
SAMPLE_S = 0.1  # between two readings of the links' counters
GRANULARITY_BYTES = PACKET_BYTES + BURST_FLOOR_BYTES  # what a window may have over: packets are whole, and a burst


class Outcome(msgspec.Struct, frozen=True):
    """What a run left: its folder, and for each placement where the operators began and how many images came.

    ``ended``: where they were at the end, for placements that move them; ``trees``: what the tree was then, for those
    under which it changed.
    """

    info: RunInfo
    folder: Path
    placed: dict[str, dict[str, str]]
    ended: dict[str, dict[str, str]]
    trees: dict[str, str]
    delivered: dict[str, int]


def execute(config: RunConfig, folder: Path, tell: Tell) -> Outcome:
    """Run every placement of ``config`` in turn and leave ``run.toml`` and ``events.parquet`` in ``folder``.

    Raises UsageError and its kin before anything is started, RunError or HostLostError when a run cannot go on.
    """
    config.check()
    strategies = make_strategies(config)
    dataflow = build_dataflow(config)
    hosts = [*host_names(config.servers), CLIENT]
    tell("reading the images", 0, 0)
    images = images_available(config)
    config = msgspec.structs.replace(config, images=images)
    network = None if config.testbed == "loopback" else build_network(config, hosts, len(dataflow.nodes) - 1)
    if network is not None and config.scenario == "collapse":
        check_collapse(network.traces, config.time_scale)
    bed = open_testbed(config.testbed, hosts, **_testbed_options(config, network))
    made = prepare_folder(folder)
    (folder / "logs").mkdir()
    if is_scenario_file(config.scenario):
        shutil.copy(config.scenario, folder / SCENARIO)
    session = _Session(config, strategies, dataflow, hosts, network, bed, folder, tell)
    try:
        with ExitStack() as stack:
            stack.callback(session.save)
            session.run(stack)
    except BaseException:
        if not session.delivered:  # nothing had begun, so there is nothing to keep
            empty_folder(folder, remove=made)
        raise
    assert session.info is not None
    return Outcome(session.info, folder, session.placed, session.ended, session.trees, session.delivered)


def _testbed_options(config: RunConfig, network: Network | None) -> dict[str, Any]:
    """What the testbed is to be made with, besides its hosts."""
    options = {} if network is None else network.testbed_options(config.testbed)
    if config.testbed == "docker":
        mounts = () if config.folder is None else (Path(config.folder).resolve(),)
        options |= {"image": config.image, "mounts": mounts, "same_code": True}
    return options


def reference_digest(dataflow: Dataflow, config: RunConfig, tell: Tell) -> str:
    """What a single process makes of the same sources."""
    images, digests = config.images, []
    try:
        for one in reference_digests(dataflow, images, config.allow):
            digests.append(one)
            tell("composing on a single machine", len(digests), images)
    except ThalwegError:
        raise
    except Exception as error:  # the user's own code
        why = f"{type(error).__name__} at partition {len(digests)}, on a single machine as well: {error}"
        raise RunError(why) from None
    return sequence_digest(digests)


class _Session:
    """One call of ``execute``."""

    def __init__(
        self,
        config: RunConfig,
        strategies: dict[str, Strategy],
        dataflow: Dataflow,
        hosts: list[str],
        network: Network | None,
        bed: Testbed,
        folder: Path,
        tell: Tell,
    ) -> None:
        self.config, self.strategies = config, strategies
        self.dataflow, self.hosts, self.network = dataflow, hosts, network
        self.bed, self.folder, self.tell = bed, folder, tell
        self.logs = folder / "logs"
        self.outbox, self.pictures = self.logs, folder / IMAGES  # as the hosts' processes see them
        self.run_id = f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}-{config.testbed}-{config.seed}"
        self.started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.info: RunInfo | None = None
        self.reference: str | None = None
        self.rows: list[dict[str, Any]] = []  # what the testbed itself has to record
        self.placed: dict[str, dict[str, str]] = {}
        self.ended: dict[str, dict[str, str]] = {}
        self.trees: dict[str, str] = {}
        self.scenario: Collapse | None = None
        self.emulated: Mapping[Link, Rates] = {}  # what the links have, once it is known how they are set
        self.truth = Truth(config.time_scale)
        self.delivered: dict[str, int] = {}
        self.notes: list[str] = []
        self.processes: dict[str, TestbedProcess] = {}

    def run(self, stack: ExitStack) -> None:
        config, tell = self.config, self.tell
        self.reference = reference_digest(self.dataflow, config, tell)
        tell("setting up the testbed", 0, 0)
        stack.callback(self.bed.down)
        self.bed.up()
        stack.callback(self.bed.collect)
        self.outbox, self.pictures = self.bed.outbox(self.logs), self.bed.outbox(self.folder / IMAGES)
        if self.network is not None:
            self.notes += self.network.notes
            self._shape_and_prove(self.network)
            if not self.bed.delay_emulated:
                self.notes.append("links have rates only: no delay is emulated")
        else:
            self.notes.append("links are not shaped")
        tell("starting the hosts", 0, 0)
        addresses, outputs = self._start_hosts(stack)
        worker, words = self._start_worker(stack, addresses, outputs)
        replay = None
        if self.network is not None:
            assert isinstance(self.bed, ShapedTestbed)
            replay = self.network.load(self.bed, SAMPLE_S)
            stack.callback(replay.stop)
            self.emulated = self.network.timeline.rates(emulated=replay.emulated())
        for label in config.placements:
            self._plan_ahead(label, worker, words, replay)
        if config.scenario == "collapse" and replay is not None:
            self._choose_scenario(worker, words, replay)
        for label in config.placements:
            with self._replaying(replay) as began:
                self._write(worker, msgspec.json.encode(Go(label, self._view())))
                self._follow(label, words)
            if replay is not None:
                self._record_replay(label, began, replay)
        self._end(worker)

    def _view(self) -> list[tuple[str, str, float]] | None:
        """What planners are told of the links, if anything."""
        if self.config.view != "truth":
            return None
        return [(a, b, rates.rate_at(0.0)) for (a, b), rates in self.emulated.items()]

    @contextmanager
    def _replaying(self, replay: ReplayHandle | None) -> Iterator[float]:
        """The links follow their traces from the start (Unix time), and their rates are kept to compare with."""
        if replay is None:
            yield time.time()
            return
        began_s = replay.start() + time.time() - time.monotonic()
        try:
            yield began_s
        finally:
            replay.stop()
            self.truth.add(Replayed(began_s, time.time(), self.emulated))

    def _plan_ahead(
        self, label: str, worker: IO[bytes], words: Iterator[Word], replay: ReplayHandle | None
    ) -> dict[str, str]:
        """Let a placement be planned on links as they are at first, so that all begin at the start of their traces."""
        self.tell(f"{label}: planning", 0, 0)
        with self._replaying(replay):
            self._write(worker, msgspec.json.encode(Go(label, self._view(), ahead=True)))
            word = next(words)
        if word.event != "planned":
            self._failed(word)
        placement: dict[str, str] = word.detail["placement"]
        return placement

    def _choose_scenario(self, worker: IO[bytes], words: Iterator[Word], replay: ReplayHandle) -> None:
        """What befalls the links depends on where one-shot puts operators."""
        host = choose_host(self._plan_ahead("one-shot", worker, words, replay), self.hosts, CLIENT)
        assert self.network is not None
        traces = self.network.traces
        one = self.scenario = Collapse(host, collapse_floor_bps(traces))
        links = one.links(traces)
        replay.scale(links, one.factor, one.at_s, one.floor_bps)
        replay.scale(links, 1.0, one.until_s)
        self.emulated = one.rates(replay.emulated())
        self.notes.append(str(one))

    def _shape_and_prove(self, network: Network) -> None:
        self.bed.shape(network.timeline.wall_shapes())
        if limits := network.timeline.wall_interfaces_bps:
            assert isinstance(self.bed, ShapedTestbed)
            self.bed.limit_interfaces(limits)
        if not self.config.prove:
            return
        self.tell("proving the links", 0, 0)
        now = time.time()
        for proof in self.bed.prove():
            columns = ("src", "dst", "delivered_bps", "size_bytes", "seconds")  # these are the record's own
            detail = {key: value for key, value in msgspec.to_builtins(proof).items() if key not in columns}
            self.rows.append(
                {
                    "t": 0.0,
                    "wall": now,
                    "host": proof.src,
                    "peer": proof.dst,
                    "kind": "proof",
                    "value": proof.delivered_bps,
                    "size_bytes": proof.size_bytes,
                    "duration_s": proof.seconds,
                    "detail": detail,
                }
            )

    def _start_hosts(self, stack: ExitStack) -> tuple[dict[str, str], dict[str, IO[bytes]]]:
        """Start a host process on every server; their control endpoints, and their standard outputs."""
        outputs: dict[str, IO[bytes]] = {}
        for name in self.hosts:
            if name == CLIENT:
                continue
            command = host_command(
                name,
                self._listen(name),
                allow=self.config.allow,
                time_scale=self.config.time_scale,
                records=self.outbox,
                insecure=True,
                python=self.bed.python,
            )
            if self.config.forecaster is not None:
                command += ["--forecaster", self.config.forecaster]
            outputs[name] = self._spawn(stack, name, name, command)[1]
        try:
            ready = wait_ready_lines({name: stream.fileno() for name, stream in outputs.items()}, START_S)
        except HostAbsentError as error:
            said = [line for name in outputs for line in self._last_line(name)]
            raise HostAbsentError(f"{error}" + (f": {said[0]}" if said else "")) from None
        return {name: line["control"] for name, line in ready.items()}, outputs

    def _listen(self, host: str) -> str:
        return f"tcp://{self.bed.hosts[host]}:{'*' if self.config.testbed == 'loopback' else PORT}"

    def _spawn(self, stack: ExitStack, host: str, name: str, command: list[str]) -> tuple[IO[bytes], IO[bytes]]:
        """Start ``command`` on ``host``; its standard input and output. Its errors go to a file of the run folder."""
        with (self.logs / f"{name}.err").open("wb") as errors:
            process = self.bed.run(
                host, command, env=host_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        self.processes[name] = process
        stack.callback(process.close)
        stack.callback(process.kill)
        assert process.stdin is not None
        assert process.stdout is not None
        return process.stdin, process.stdout

    def _start_worker(
        self, stack: ExitStack, addresses: dict[str, str], outputs: Mapping[str, IO[bytes]]
    ) -> tuple[IO[bytes], Iterator[Word]]:
        config = self.config
        job = Job(
            dataflow=self.dataflow,
            addresses=addresses,
            listen=self._listen(CLIENT),
            insecure=True,
            allow=config.allow,
            time_scale=config.time_scale,
            images=config.images,
            pictures=config.pictures,
            cost=config.cost,
            cost_options=cost_options(config.cost, "independent"),
            strategies=strategy_options(config),
            monitor=MonitorConfig() if config.forecaster is None else MonitorConfig(forecaster=config.forecaster),
            costs=CostParameters(
                startup_s=config.startup_s, disk_bytes_per_s=config.disk_bytes_per_s or FREE_BYTES_PER_S
            ),
            records=str(self.outbox),
            pictures_to=str(self.pictures),
        )
        command = [self.bed.python, "-m", "thalweg.experiments.runs.worker"]
        stdin, stdout = self._spawn(stack, CLIENT, "worker", command)
        words = self._words(stdout, outputs)
        self._write(stdin, msgspec.json.encode(job))
        first = next(words)
        if first.event != "ready":
            self._failed(first)
        return stdin, words

    @staticmethod
    def _write(stream: IO[bytes], line: bytes) -> None:
        stream.write(line + b"\n")
        stream.flush()

    def _words(self, worker: IO[bytes], outputs: Mapping[str, IO[bytes]]) -> Iterator[Word]:
        """What the worker says; HostLostError as soon as a host process or the worker has ended."""
        decoder = msgspec.json.Decoder(Word)
        buffer = b""
        with selectors.DefaultSelector() as selector:
            selector.register(worker, selectors.EVENT_READ, "worker")
            for name, stream in outputs.items():
                selector.register(stream, selectors.EVENT_READ, name)
            while True:
                for key, _ in selector.select():
                    piece = os.read(key.fd, 65536)
                    if not piece:
                        raise HostLostError(self._epitaph(key.data))
                    if key.data == "worker":
                        *lines, buffer = (buffer + piece).split(b"\n")
                        yield from map(decoder.decode, lines)

    def _epitaph(self, name: str) -> str:
        process = self.processes[name]
        try:
            status = process.wait(2.0)
        except TimeoutError:
            status = None
        what = "the client's worker" if name == "worker" else f"host {name!r}"
        last = self._last_line(name)
        fate = self.bed.fate(process.host)
        return (
            f"{what} ended with status {status}"
            + (f"; {fate}" if fate else "")
            + (f"; its last line: {last[0]}" if last else "")
        )

    def _last_line(self, name: str) -> list[str]:
        """The last line a process wrote to its standard error, if it wrote any."""
        return (self.logs / f"{name}.err").read_text(errors="replace").strip().splitlines()[-1:]

    def _follow(self, label: str, words: Iterator[Word]) -> None:
        """Show a placement's progress until it is done."""
        self.delivered[label] = 0
        total = self.config.images
        for word in words:
            if word.event == "delivered":
                self.delivered[label] += 1
                self.tell(label, self.delivered[label], total)
            elif word.event == "planned":
                self.placed[label] = word.detail["placement"]
                self.tell(label, 0, total)
            elif word.event == "done":
                if "placement" in word.detail:
                    self.ended[label] = word.detail["placement"]
                if "tree" in word.detail:
                    self.trees[label] = word.detail["tree"]
                return
            else:
                self._failed(word)

    @staticmethod
    def _failed(word: Word) -> None:
        raise UsageError(word.message) if word.usage else RunError(word.message or f"the worker said {word.event!r}")

    def _end(self, worker: IO[bytes]) -> None:
        """Let everybody finish their logs."""
        worker.close()
        self.processes["worker"].wait(END_S)
        for name, process in self.processes.items():
            if name != "worker":
                process.terminate()
        for process in self.processes.values():
            process.wait(END_S)

    def _record_replay(self, label: str, began: float, replay: ReplayHandle) -> None:
        """What the links were asked and what they delivered, sampled while the placement ran."""
        scale = self.config.time_scale
        offset = time.time() - time.monotonic()
        samples = self.bed.samples()
        for sample in samples:
            wall = sample.at_s + offset
            detail = {"asked_bps": sample.asked_bps, "backlogged": sample.backlogged}
            self.rows.append(
                {
                    "t": (wall - began) * scale,
                    "wall": wall,
                    "host": sample.src,
                    "peer": sample.dst,
                    "placement": label,
                    "kind": "link",
                    "value": sample.delivered_bps,
                    "detail": detail,
                }
            )
        statistics = msgspec.to_builtins(replay.statistics())
        worst = worst_sampled(samples, SAMPLE_S, GRANULARITY_BYTES)
        if worst:
            link = max(worst, key=lambda link: worst[link].ratio)
            statistics |= {"worst_window": worst[link].ratio, "worst_window_link": ">".join(link)}
        self.rows.append(
            {"t": 0.0, "wall": began, "host": "testbed", "placement": label, "kind": "replay", "detail": statistics}
        )
        if self.scenario is not None:
            self._record_scenario(label, began, time.time())

    def _record_scenario(self, label: str, began: float, ended: float) -> None:
        """When the scenario came; a placement that had ended before then has no such record, but a note."""
        one = self.scenario
        assert one is not None
        wall = began + one.at_s / self.config.time_scale
        if wall > ended:
            self.notes.append(f"{label} had ended before the collapse; ask for more --images")
            return
        self.rows.append(
            {
                "t": one.at_s,
                "wall": wall,
                "host": one.host,
                "placement": label,
                "kind": "scenario",
                "value": one.factor,
                "detail": {"scenario": one.name, **msgspec.to_builtins(one)},
            }
        )

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
            notes=self.notes,
            config=configuration(config, self.strategies, self.scenario),
            versions=versions(),
        )
        for path in self.logs.glob("*.jsonl"):
            add_truth(path, self.truth)
        (self.logs / "testbed.jsonl").write_bytes(msgspec.json.Encoder().encode_lines(self.rows))
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
