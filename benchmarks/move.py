"""Benchmark ``bench move``: the pause of an operator that moves, beside the bound of its state and the network.

The bound is ``BOUND_SHARE`` times the time of the state's bytes on the link, plus ``BOUND_TRIPS`` round trips. A round
trip is the time of an empty control message there and back (Ping and Pong). It is the median of messages to all hosts
in turn while the operator moves. The link's rate is its shaped rate, or on loopback the rate of a bare DEALER and
ROUTER.

With ``loaded``, every link is also full of one flow of TCP. This is done once with the band for urgent messages. It is
done again on a testbed without the band, as on testbeds with very many hosts.

An ordinary application (this module, in a process on the client's host) moves the operator round the hosts by
``Run.move``, at barriers. In another run, under ``HOMING``, it moves the operator away from the host of its sources.
The operator's host then sends the operator back at the end of an epoch. The pauses are those in the hosts' records.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import secrets
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import zmq

from benchmarks.fill import fill
from benchmarks.options import MoveOptions
from benchmarks.raw import ANSWER_S, raw_link
from benchmarks.rounds import Plan, Progress, play, silent
from benchmarks.tree import ALLOW, WORKLOAD
from benchmarks.workload import Ballast, FixedSource
from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.links.units import parse_rate
from thalweg.emulation.testbeds.open import NEEDS, open_testbed
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.experiments.records.log import Row, read_log
from thalweg.experiments.records.moves import PROTOCOLS, move_figures
from thalweg.experiments.records.records import write_events
from thalweg.experiments.run_config import CLIENT
from thalweg.experiments.runs.job import Said, say
from thalweg.experiments.runs.processes import Processes, fail
from thalweg.middleware.client.client import Client
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.errors import CapabilityError, RunError, ThalwegError, UsageError
from thalweg.middleware.network.view import links_between
from thalweg.middleware.platform import check_linux, load_average
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import LocalMoves
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.shell.sockets import URGENT

BOUND_SHARE, BOUND_TRIPS = 1.2, 4
HOSTS = ("h1", "h2", "h3", "h4")
HOME, *AWAY = HOSTS
OPERATOR = "operator"
SITES: dict[str, tuple[str, str]] = {"barrier": ("h1", "h2"), "epoch": (HOME, HOME)}  # hosts of the sources
# An input on the same host saves this long start-up, so home is best, whatever links carry.
HOMING = LocalMoves(period_s=0.02, cost="serialised-critical-path", startup_s=1.0)
PARTITION_BYTES = 16 * 1024
RAW_BYTES = 1024 * 1024  # size of a message on the bare link
LAP = len(HOSTS)  # moves before the timed moves
REST = 5  # partitions between two moves
PING_EVERY_S = 0.005
FULL, NO_BAND = "netns, full", "netns, full, no band"
PLAIN, LOADED = ("loopback", "netns"), ("netns", FULL, NO_BAND)
MOVE_S, MOVE_SHARE = 30.0, 4.0  # a longer move has failed: seconds, plus a multiple of the state's time on the link


# --- the application ----------------------------------------------------------------------------------


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Work of the application: ``moves`` by every protocol, for every size of the state."""

    addresses: dict[str, str]
    listen: str
    sizes_bytes: tuple[int, ...]
    moves: int
    rate_bps: float


class Pings:
    """Round trips to all hosts in turn, measured in a thread while the context is open."""

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self.trips_s: list[float] = []
        self._addresses = addresses
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ping, name="bench-ping")

    def _ping(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        sockets: dict[str, zmq.Socket[bytes]] = {}
        try:
            for host, address in self._addresses.items():
                socket = sockets[host] = context.socket(zmq.DEALER)
                socket.setsockopt(zmq.ROUTING_ID, f"ping/{secrets.token_hex(4)}".encode())
                socket.setsockopt(zmq.TOS, URGENT)  # like control messages
                socket.setsockopt(zmq.RCVTIMEO, int(ANSWER_S * 1000))
                socket.connect(address)
                _trip_s(host, socket)  # opens the connection
            for host in itertools.cycle(sockets):
                if self._over.wait(PING_EVERY_S):
                    return
                self.trips_s.append(_trip_s(host, sockets[host]))
        finally:
            context.destroy(linger=0)

    def __enter__(self) -> Pings:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _trip_s(host: str, socket: zmq.Socket[bytes]) -> float:
    begun = time.perf_counter()
    socket.send(frames.encode(m.Ping(None)))
    try:
        socket.recv()
    except zmq.Again:
        raise RunError(f"host {host!r} did not answer for {ANSWER_S:g} s; run the benchmark again") from None
    return time.perf_counter() - begun


def move_dataflow(sites: Sequence[str], state_bytes: int) -> Dataflow:
    """Return a dataflow of a source on each of ``sites``, and one operator with a state of ``state_bytes``."""
    codes = [Code(f"{WORKLOAD}:FixedSource", {"site": i, "size_bytes": PARTITION_BYTES}) for i in range(len(sites))]
    sources = [Node(f"source{i}", "source", (), code, sites[i]) for i, code in enumerate(codes)]
    ballast = Code(f"{WORKLOAD}:Ballast", {"state_bytes": state_bytes})
    operator = Node(OPERATOR, "operator", tuple(source.name for source in sources), ballast)
    return Dataflow((*sources, operator, Node("sink", "sink", (OPERATOR,), None, CLIENT)))


class Mover:
    """Run whose operator moves round the hosts at barriers, or moves away and returns at the end of an epoch."""

    def __init__(self, client: Client, protocol: str, state_bytes: int, rate_bps: float) -> None:
        self._patience_s = MOVE_S + MOVE_SHARE * state_bytes * 8 / rate_bps
        sites = SITES[protocol]
        self._homing = HOMING if protocol == "epoch" else None
        self.run = client.run(
            move_dataflow(sites, state_bytes),
            {OPERATOR: HOME},
            adaptation=self._homing,
            label=_label(protocol, state_bytes),
        )
        self._ballast = Ballast(state_bytes)
        self._sources = [FixedSource(i, PARTITION_BYTES) for i in range(len(sites))]

    def take(self, partitions: int) -> None:
        """Take so many partitions.

        Raise RunError if a partition differs from the result of a single process.
        """
        for delivered in itertools.islice(self.run, partitions):
            inputs = [source.produce(delivered.index) for source in self._sources]
            if not np.array_equal(delivered.value, self._ballast.combine(inputs, delivered.index)):
                raise RunError(f"partition {delivered.index} is not what a single process computes")

    def moves(self) -> Iterator[None]:
        """Yield after each move by the protocol that is timed."""
        self.take(REST)
        for target in itertools.cycle((*AWAY, HOME) if self._homing is None else AWAY):
            self.run.move({OPERATOR: target})
            self._come(target)
            if self._homing is not None:
                self._come(HOME)
            self.take(REST)
            yield

    def _come(self, host: str) -> None:
        begun = time.monotonic()
        while self.run.placement[OPERATOR] != host:
            if time.monotonic() - begun > self._patience_s:
                raise RunError(f"the operator did not move to host {host!r} in {self._patience_s:.0f} s")
            self.take(1)


def _label(protocol: str, state_bytes: int) -> str:
    return f"{protocol} {state_bytes}"


def work(job: Job) -> Iterator[Said]:
    """Do the job, and yield the application's reports."""
    with Client(job.addresses, name=CLIENT, listen=job.listen, allow=ALLOW, insecure=True) as client:
        yield Said("ready")
        for size_bytes in job.sizes_bytes:
            trips_s: list[float] = []
            for protocol in PROTOCOLS:
                mover = Mover(client, protocol, size_bytes, job.rate_bps)
                with mover.run:
                    moves = mover.moves()
                    deque(itertools.islice(moves, LAP), 0)
                    yield Said("step", message=f"state of {size_bytes} bytes, {protocol}")
                    with Pings(job.addresses) as pings:
                        deque(itertools.islice(moves, job.moves), 0)
                trips_s += pings.trips_s
            yield Said("measured", detail={"size_bytes": size_bytes, "trips_s": trips_s})


def main() -> int:
    """Do the job that standard input describes."""
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    try:
        for report in work(job):
            say(report)
    except ThalwegError as error:
        say(Said("failed", message=str(error)))
        return 1
    return 0


# --- the launcher -------------------------------------------------------------------------------------


def run_on(
    bed: Testbed, sizes_bytes: Sequence[int], moves: int, rate_bps: float, records: Path, progress: Progress
) -> dict[int, list[float]]:
    """Move operators on a testbed that is up. Return the round trips by size of the state, in seconds.

    On return, the hosts' event log is in ``records``. Raise RunError for an error of the application.
    """
    trips_s: dict[int, list[float]] = {}
    with contextlib.ExitStack() as stack:
        processes = Processes(bed, stack, records)
        room = max(CoreConfig().max_state_bytes, *sizes_bytes)
        addresses = processes.start_hosts(HOSTS, records, allow=ALLOW, limits=[f"max_state_bytes={room}"])
        job = Job(addresses, processes.listen(CLIENT), tuple(sizes_bytes), moves, rate_bps)
        reports = processes.start_worker(__name__, job)
        while len(trips_s) < len(sizes_bytes):
            report = next(reports)
            if report.event == "step":
                progress(f"{bed.backend}: {report.message}")
            elif report.event == "measured":
                trips_s[report.detail["size_bytes"]] = report.detail["trips_s"]
            else:
                fail(report)
        processes.end()
    write_events(records, "bench move", sorted(records.glob("*.jsonl")))
    return trips_s


def raw_rate_bps(progress: Progress) -> float:
    """Return the rate of a bare DEALER and ROUTER between two processes of this machine, in bit/s."""
    progress("loopback: the bare link")
    plan = Plan(200, 20)
    with raw_link(RAW_BYTES, "ipc") as raw:
        rounds = [play(raw, plan.total - plan.warm_up, plan.warm_up) for _ in range(3)]
    return statistics.median(result.per_s for result in rounds) * RAW_BYTES * 8


def bound_s(size_bytes: int, rate_bps: float, trip_s: float) -> float:
    """Return the longest permitted pause of an operator with a state of ``size_bytes``, in seconds."""
    return BOUND_SHARE * size_bytes * 8 / rate_bps + BOUND_TRIPS * trip_s


def by_protocol(relocated: Sequence[Row], size_bytes: int) -> dict[str, list[Row]]:
    """Return the moves of one size in their order, by protocol.

    Moves that opened connections are under ``first``.
    """
    kinds: dict[str, list[Row]] = {"first": []}
    for protocol in PROTOCOLS:
        label = _label(protocol, size_bytes)
        matching = (row for row in relocated if row.placement == label and row.detail.protocol == protocol)
        rows = sorted(matching, key=lambda row: row.t_s)
        kinds[protocol] = rows[LAP:]
        if protocol == "barrier":  # an operator that returns at the end of an epoch finds open connections
            kinds["first"] = rows[:LAP]
    return kinds


def summary(
    relocated: Sequence[Row], arrived: Sequence[Row], trips_s: Sequence[float], size_bytes: int, rate_bps: float
) -> dict[str, Any]:
    """Return the figures of one protocol and size. Figures of pauses are null if no operator moved.

    ``restored`` begins with the arrival of the state.
    """
    trip_s = statistics.median(trips_s)
    limit_s = bound_s(size_bytes, rate_bps, trip_s)
    figures = move_figures(defaultdict(list, relocated=relocated, arrived=arrived), 1.0)
    pauses = [row.duration_s or 0.0 for row in relocated if row.detail.outcome == "moved"]
    phases = figures["phases"]
    return {
        "size_bytes": size_bytes,
        "moved": figures["relocations"],
        "stayed": figures["stayed"],
        "trip_s": trip_s,
        "trip_p99_s": _percentile(trips_s, 0.99),
        "bound_s": limit_s,
        "p50_s": _percentile(pauses, 0.5),
        "p95_s": _percentile(pauses, 0.95),
        "p99_s": _percentile(pauses, 0.99),
        "max_s": _percentile(pauses, 1.0),
        "within": sum(pause_s <= limit_s for pause_s in pauses) / len(pauses) if pauses else None,
        "taken_p50_s": phases["state_out"].p50_s if phases else None,
        "restored_p50_s": phases["resumed"].p50_s if phases else None,
    }


def _percentile(values: Sequence[float], share: float) -> float | None:
    """Return the nearest rank: the least of ``values`` that at least ``share`` of the values do not exceed."""
    return float(np.quantile(values, share, method="inverted_cdf")) if values else None


def _check(sizes_bytes: Sequence[int], moves: int, rate_bps: float) -> None:
    """Raise UsageError for figures out of their range."""
    if moves < 1 or not sizes_bytes or min(sizes_bytes) < 0 or not 0 < rate_bps < math.inf:
        raise UsageError("bench move needs at least one move, sizes of at least 0 bytes, and a rate above 0")
    if max(sizes_bytes) > m.MAX_PARTITION_BYTES:
        raise UsageError(f"bench move: a state has at most {m.MAX_PARTITION_BYTES // 1024} KiB")
    if len(set(sizes_bytes)) < len(sizes_bytes):
        raise UsageError("bench move needs every size once")


def bench_move(options: MoveOptions, progress: Progress = silent) -> dict[str, Any]:
    """Time moves. Return the object that ``thalweg bench move --json`` prints.

    On a machine without namespaces, there are the figures of loopback only, and ``reason`` says why. Raise UsageError
    for figures out of their range. Raise RunError if an operator does not move or its output is wrong.
    """
    sizes_bytes, moves, rate_bps = [kib * 1024 for kib in options.sizes_kib], options.moves, parse_rate(options.rate)
    _check(sizes_bytes, moves, rate_bps)
    check_linux(NEEDS["loopback"])
    answer: dict[str, Any] = {"bench": "move", "cpus": os.cpu_count(), "load": load_average(), "reason": None}
    rows: list[dict[str, Any]] = []
    for name in LOADED if options.loaded else PLAIN:
        backend = name.partition(",")[0]
        rate = raw_rate_bps(progress) if backend == "loopback" else rate_bps
        members = (*HOSTS, CLIENT)
        bands: dict[str, Any] = {} if backend == "loopback" else {"control_band": name != NO_BAND}
        bed = open_testbed(backend, members, **bands)
        progress(f"{name}: starting the hosts")
        try:
            bed.up()
        except CapabilityError as error:
            answer["reason"] = str(error)
            continue
        with tempfile.TemporaryDirectory(prefix="thalweg-") as folder, bed:
            if backend != "loopback":
                bed.shape({link: LinkShape(rate) for link in links_between(members)})
            if name in (FULL, NO_BAND):
                fill(bed, members)
            trips_s = run_on(bed, sizes_bytes, moves, rate, Path(folder), progress)
            relocated = list(read_log(Path(folder), "relocated"))
            arrived = list(read_log(Path(folder), "arrived"))
        for size_bytes in sizes_bytes:
            for protocol, moved in by_protocol(relocated, size_bytes).items():
                labels = {row.placement for row in moved}
                arrivals = [row for row in arrived if row.placement in labels]
                row = summary(moved, arrivals, trips_s[size_bytes], size_bytes, rate)
                rows.append({"testbed": name, "rate_bps": rate, "protocol": protocol, **row})
    return answer | {"rows": rows}


if __name__ == "__main__":
    sys.exit(main())
