"""``bench move``: for how long an operator pauses when it moves, against what its state and the network allow.

The bound is ``BOUND_SHARE`` times what the link takes for the state's bytes, and ``BOUND_TRIPS`` round trips. A round
trip is what an empty control message there and back takes (Ping and Pong), the median of those sent to all hosts in
turn while the operator moves. The link's rate is what it is shaped to; on loopback, what a bare DEALER and ROUTER
carry.

Every testbed has the same processes: hosts, and a worker (this module) that is the client, moves and pings.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import zmq

from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.testbeds.open import open_testbed
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.experiments.bench.ballast import Ballast
from thalweg.experiments.bench.link import RawLink
from thalweg.experiments.bench.rounds import Plan, Progress, play, silent
from thalweg.experiments.bench.tree import ALLOW, WORKLOAD
from thalweg.experiments.bench.workload import FixedSource
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import host_command, host_environment, wait_ready_lines
from thalweg.middleware.client.run import Run
from thalweg.middleware.dataflow import Code, Dataflow, complete_binary_tree
from thalweg.middleware.errors import CapabilityError, RunError, ThalwegError, UsageError
from thalweg.middleware.network.view import links_between
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m

BOUND_SHARE, BOUND_TRIPS = 1.2, 4
SIZES_BYTES = (0, 16 * 1024, 256 * 1024, 4 * 1024 * 1024)
PROTOCOLS = ("barrier", "epoch")
HOSTS = ("h1", "h2", "h3", "h4")
SITES = 2
CLIENT = "client"
PORT = 7800
PARTITION_BYTES = 16 * 1024
RAW_BYTES = 1024 * 1024  # of a message of the bare link
REST = 5  # partitions between two moves
PING_EVERY_S = 0.005
START_S = 30.0
MOVE_S = 30.0  # a move that takes longer never will
AGAIN_S = 0.5  # after which a move that did not come about is asked for again


class Job(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the worker is to do: ``moves`` by every protocol, for every size of the state."""

    addresses: dict[str, str]
    listen: str
    sizes_bytes: tuple[int, ...]
    moves: int


class Word(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A line from the worker: what it does now; after each size the round trips in seconds; why it failed."""

    step: str = ""
    size_bytes: int | None = None
    trips_s: tuple[float, ...] = ()
    failed: str = ""


class Pause(msgspec.Struct, frozen=True):
    """A hand-over as the records have it; seconds. ``restored_s`` is from the state's coming in to going on."""

    protocol: str
    moved: bool
    pause_s: float
    taken_s: float
    restored_s: float


# --- the worker ---------------------------------------------------------------------------------------


class Line:
    """Control connections to hosts, as a peer that is none of them."""

    def __init__(self, addresses: dict[str, str], name: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        for host, address in addresses.items():
            socket = self._sockets[host] = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.ROUTING_ID, f"{name}/{secrets.token_hex(4)}".encode())
            socket.setsockopt(zmq.RCVTIMEO, int(START_S * 1000))
            socket.connect(address)

    def send(self, host: str, message: m.Control) -> None:
        self._sockets[host].send(frames.encode(message))

    def trip_s(self, host: str) -> float:
        """Seconds there and back."""
        begun = time.perf_counter()
        self.send(host, m.Ping(""))
        try:
            self._sockets[host].recv()
        except zmq.Again:
            raise RunError(f"host {host!r} did not answer for {START_S:g} s; run the benchmark again") from None
        return time.perf_counter() - begun

    def close(self) -> None:
        self._context.destroy(linger=0)


class Pings:
    """Round trips to all hosts in turn, in a thread, for as long as the context is open."""

    def __init__(self, addresses: dict[str, str]) -> None:
        self.trips_s: list[float] = []
        self._addresses = addresses
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ping, name="bench-ping")

    def _ping(self) -> None:
        with contextlib.closing(Line(self._addresses, "ping")) as line:
            for host in self._addresses:
                line.trip_s(host)  # opens the connection
            for host in itertools.cycle(self._addresses):
                if self._over.wait(PING_EVERY_S):
                    return
                self.trips_s.append(line.trip_s(host))

    def __enter__(self) -> Pings:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def move_dataflow(state_bytes: int) -> Dataflow:
    """Two sources, and one operator with a state of that size."""
    sources = {
        host: Code(f"{WORKLOAD}:FixedSource", {"site": site, "size_bytes": PARTITION_BYTES})
        for site, host in enumerate(HOSTS[:SITES])
    }
    ballast = Code(f"{Ballast.__module__}:Ballast", {"state_bytes": state_bytes})
    return complete_binary_tree(sources, ballast, CLIENT)


class Mover:
    """One run whose operator goes from host to host."""

    def __init__(self, client: Client, line: Line, state_bytes: int) -> None:
        flow = move_dataflow(state_bytes)
        (self._name,) = flow.operators
        self._client, self._line = client, line
        self.run: Run = client.run(flow, {self._name: HOSTS[0]}, label=str(state_bytes))
        self._ballast = Ballast(state_bytes)
        self._sources = [FixedSource(site, PARTITION_BYTES) for site in range(SITES)]

    def take(self, partitions: int) -> None:
        """Take so many partitions; RunError for one that is not what a single process computes."""
        for delivered in itertools.islice(self.run, partitions):
            inputs = [source.produce(delivered.index) for source in self._sources]
            if not np.array_equal(delivered.value, self._ballast.combine(inputs, delivered.index)):
                raise RunError(f"partition {delivered.index} is not what a single process computes")

    def move(self, target: str, protocol: str) -> None:
        """Have the operator move, and take partitions until it has and ``REST`` more have come."""
        begun = time.monotonic()
        asked_s = -math.inf
        while self.run.placement[self._name] != target:
            now = time.monotonic()
            if now - begun > MOVE_S:
                raise RunError(f"the operator did not move to host {target!r} in {MOVE_S:g} s")
            if now - asked_s > AGAIN_S:
                asked_s = now
                self._ask(target, protocol)
            self.take(1)
        self.take(REST)

    def _ask(self, target: str, protocol: str) -> None:
        if protocol == "barrier":
            self.run.move({self._name: target})
            return
        here = self._client.shell.core.runs[self.run.id].directory.locations[self._name]
        self._line.send(here.host, m.Relocate(self.run.id, self._name, here.version, target, "asked for"))


def work(job: Job) -> Iterator[Word]:
    """Do the job; yields what to say."""
    with (
        Client(job.addresses, name=CLIENT, listen=job.listen, allow=ALLOW, insecure=True) as client,
        contextlib.closing(Line(job.addresses, CLIENT)) as line,  # in its name, for hosts obey no other
    ):
        for size_bytes in job.sizes_bytes:
            mover = Mover(client, line, size_bytes)
            with mover.run:
                mover.take(REST)
                targets = itertools.cycle((*HOSTS[1:], HOSTS[0]))
                for target in itertools.islice(targets, len(HOSTS)):  # each way once, for the connections
                    mover.move(target, "barrier")
                yield Word(step=f"state of {size_bytes} bytes")
                with Pings(job.addresses) as pings:
                    for protocol in PROTOCOLS:
                        for target in itertools.islice(targets, job.moves):
                            mover.move(target, protocol)
                mover.take(REST)
            yield Word(size_bytes=size_bytes, trips_s=tuple(pings.trips_s))


def main() -> int:
    """Do the job that standard input describes."""
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    try:
        for word in work(job):
            _say(word)
    except ThalwegError as error:
        _say(Word(failed=str(error)))
        return 1
    return 0


def _say(word: Word) -> None:
    os.write(1, msgspec.json.encode(word) + b"\n")


# --- the launcher -------------------------------------------------------------------------------------


def run_on(
    bed: Testbed, sizes_bytes: Sequence[int], moves: int, records: Path, progress: Progress
) -> dict[int, tuple[float, ...]]:
    """Have a worker move operators on a testbed that is up; the round trips by size of the state, in seconds.

    The hosts' event logs are in ``records`` when this returns. Raises RunError for what the worker could not do.
    """
    loopback = bed.backend == "loopback"
    listen = {host: f"tcp://{address}:{'*' if loopback else PORT}" for host, address in bed.hosts.items()}
    outputs: dict[str, IO[bytes]] = {}
    with contextlib.ExitStack() as stack:
        stack.callback(bed.down, grace_s=5.0)
        for host in HOSTS:
            command = host_command(host, listen[host], allow=ALLOW, records=records, insecure=True)
            outputs[host] = _spawn(stack, bed, host, command)[1]
        ready = wait_ready_lines({host: stream.fileno() for host, stream in outputs.items()}, START_S)
        addresses = {host: ready[host]["control"] for host in HOSTS}
        stdin, stdout = _spawn(stack, bed, CLIENT, [sys.executable, "-m", __name__])
        stdin.write(msgspec.json.encode(Job(addresses, listen[CLIENT], tuple(sizes_bytes), moves)) + b"\n")
        stdin.flush()
        trips_s: dict[int, tuple[float, ...]] = {}
        for text in stdout:
            word = msgspec.json.decode(text, type=Word)
            if word.failed:
                raise RunError(word.failed)
            if word.step:
                progress(f"{bed.backend}: {word.step}")
            if word.size_bytes is not None:
                trips_s[word.size_bytes] = word.trips_s
        if trips_s.keys() != set(sizes_bytes):
            raise RunError("the benchmark's worker ended before it was done")
    return trips_s


def _spawn(stack: contextlib.ExitStack, bed: Testbed, host: str, command: list[str]) -> tuple[IO[bytes], IO[bytes]]:
    process = bed.run(host, command, env=host_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    stack.callback(process.close)
    return process.stdin, process.stdout


def read_pauses(records: Path) -> dict[int, list[Pause]]:
    """What the event logs say of hand-overs, by size of the state, in their order."""
    rows: list[dict[str, Any]] = []
    for path in records.glob("*.jsonl"):
        rows += [json.loads(line) for line in path.read_text().splitlines()]
    arrived = {
        (row["placement"], row["detail"]["version"]): row["detail"]["ago"] for row in rows if row["kind"] == "arrived"
    }
    pauses: dict[int, list[Pause]] = {}
    for row in sorted((row for row in rows if row["kind"] == "relocated"), key=lambda row: float(row["t"])):
        detail = row["detail"]
        there = arrived.get((row["placement"], detail["version"]))
        ago = detail["ago"]
        pause = Pause(
            detail["protocol"],
            detail["outcome"] == "moved",
            row["duration_s"] or 0.0,
            ago["suspended"] - ago["state_out"] if "state_out" in ago else math.nan,
            math.nan if there is None else there["state_in"] - there["resumed"],
        )
        pauses.setdefault(int(row["placement"]), []).append(pause)
    return pauses


def raw_rate_bps(progress: Progress) -> float:
    """What a bare DEALER and ROUTER carry on loopback, bit/s."""
    progress("loopback: the bare link")
    plan = Plan(200, 20)
    with contextlib.closing(RawLink(RAW_BYTES)) as raw:
        rounds = [play(raw, plan.total - plan.warm_up, plan.warm_up) for _ in range(3)]
    return statistics.median(each.per_s for each in rounds) * RAW_BYTES * 8


def bound_s(size_bytes: int, rate_bps: float, trip_s: float) -> float:
    """The longest that an operator with so much state may pause, seconds."""
    return BOUND_SHARE * size_bytes * 8 / rate_bps + BOUND_TRIPS * trip_s


def summary(pauses: Sequence[Pause], trips_s: Sequence[float], size_bytes: int, rate_bps: float) -> dict[str, Any]:
    """The figures of one protocol and size; null where nothing moved."""
    moved = sorted(each.pause_s for each in pauses if each.moved)
    trip_s = statistics.median(trips_s)
    limit_s = bound_s(size_bytes, rate_bps, trip_s)
    row: dict[str, Any] = {
        "size_bytes": size_bytes,
        "moved": len(moved),
        "stayed": len(pauses) - len(moved),
        "trip_s": trip_s,
        "trip_p99_s": _percentile(sorted(trips_s), 0.99),
        "bound_s": limit_s,
        "p50_s": _percentile(moved, 0.5),
        "p99_s": _percentile(moved, 0.99),
        "max_s": _percentile(moved, 1.0),
        "within": sum(pause_s <= limit_s for pause_s in moved) / len(moved) if moved else None,
    }
    for name, values in (
        ("taken_p50_s", [each.taken_s for each in pauses if each.moved]),
        ("restored_p50_s", [each.restored_s for each in pauses if each.moved and each.restored_s == each.restored_s]),
    ):
        row[name] = _percentile(sorted(values), 0.5)
    return row


def _percentile(ordered: Sequence[float], share: float) -> float | None:
    """The nearest rank: the least of ``ordered`` that ``share`` of them do not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def bench_move(
    *,
    sizes_bytes: Sequence[int] = SIZES_BYTES,
    moves: int = 50,
    rate_bps: float = 50e6,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Time moves; the object that ``thalweg bench move --json`` prints.

    Args:
        sizes_bytes: of the moving operator's state.
        moves: by each protocol, for every size and testbed. Before them the operator goes round all hosts once, which
            opens the connections; these moves have the figures of their own whose protocol is ``first``.
        rate_bps: of every link of the shaped network.

    Where the machine has no namespaces there are the figures of loopback only, and ``reason`` says why.
    Raises UsageError for figures out of their range, RunError when an operator does not move or its output is wrong.
    """
    if moves < 1 or not sizes_bytes or min(sizes_bytes) < 0 or not 0 < rate_bps < math.inf:
        raise UsageError("bench move needs at least one move, sizes of at least 0 bytes, and a rate above 0")
    if len(set(sizes_bytes)) < len(sizes_bytes):
        raise UsageError("bench move needs every size once")
    answer: dict[str, Any] = {"bench": "move", "cpus": os.cpu_count(), "load": os.getloadavg()[0], "reason": None}
    rows: list[dict[str, Any]] = []
    for backend in ("loopback", "netns"):
        rate = raw_rate_bps(progress) if backend == "loopback" else rate_bps
        bed = open_testbed(backend, (*HOSTS, CLIENT))
        progress(f"{backend}: starting the hosts")
        try:
            bed.up()
        except CapabilityError as error:
            answer["reason"] = str(error)
            continue
        with tempfile.TemporaryDirectory(prefix="thalweg-") as folder, bed:
            if backend != "loopback":
                bed.shape({link: LinkShape(rate) for link in links_between(bed.hosts)})
            trips_s = run_on(bed, sizes_bytes, moves, Path(folder), progress)
            pauses = read_pauses(Path(folder))
        for size_bytes in sizes_bytes:
            laps, rest = pauses[size_bytes][: len(HOSTS)], pauses[size_bytes][len(HOSTS) :]
            kinds = {"first": laps, **{name: [each for each in rest if each.protocol == name] for name in PROTOCOLS}}
            for protocol, each in kinds.items():
                row = summary(each, trips_s[size_bytes], size_bytes, rate)
                rows.append({"testbed": backend, "rate_bps": rate, "protocol": protocol, **row})
    return answer | {"rows": rows}


if __name__ == "__main__":
    sys.exit(main())
