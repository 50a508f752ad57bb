"""Benchmark ``bench attack``: another process attacks hosts that carry an honest run, in every known manner.

Each attack has a cluster of its own, over TCP. Without keys the attacker does what no closed network would permit. It
connects to every host under names of its choice, and under the name of a host of the run without nodes. With keys it
has the keys of that host, and tries the other names too. Meanwhile honest runs with separate clients continue. Each
partition of a run is compared with the result of a single process. Only an attack by a host of the run (``betrayed``)
may end the first run. Hosts, clients and the attacker share one machine, perhaps with other programs. So the bound on
gaps excludes the time for which a thread waited for a processor (``contention``).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.attackers import BETRAYED, NAMES, Orders
from benchmarks.contention import Pauses
from benchmarks.options import AttackOptions
from benchmarks.rounds import Progress, silent
from benchmarks.tree import ALLOW, bench_dataflow
from benchmarks.workload import VARIANTS, FixedSource, maximum
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.runs.run import Run
from thalweg.middleware.errors import RunError, UsageError, nearest
from thalweg.middleware.platform import check_linux
from thalweg.middleware.platform.python import module_command
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.values import frames_of

SITES, SIZE_BYTES = 2, 16_384
MEMBER = f"h{SITES + 1}"
MOST_GAP_S, MOST_BYTES = 1.0, 150_000_000  # the gap excludes waits for a processor
ATTACK_S = 600.0  # an attack that takes longer is broken
SAID = 40  # partitions before the attack
LAST_S = 10.0  # for a partition after the attack, and on any machine during it


def bench_attack(options: AttackOptions, progress: Progress = silent) -> dict[str, Any]:
    """Return the object that ``thalweg bench attack --json`` prints, with the figures of each attack.

    ``holds``: whether the bounds hold. Raise UsageError for an unknown attack, and CapabilityError on a system where no
    ``Guard`` watches connections.
    """
    check_linux("the bounds of a host that is attacked need", "use a Linux machine")
    chosen = options.only or NAMES
    for name in chosen:
        if name not in NAMES:
            raise UsageError(f"unknown attack {name!r}; {nearest(name, NAMES)}")
    rows = []
    for name in chosen:
        progress(f"attack: {name}")
        rows.append(_attacked(name, options))
    return {
        "bench": "attack",
        "attacks": rows,
        "frames": sum(row["frames"] for row in rows),
        "most_gap_s": MOST_GAP_S,
        "most_bytes": MOST_BYTES,
        "holds": all(row["holds"] for row in rows),
    }


def _attacked(name: str, options: AttackOptions) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(SITES + 1, allow=ALLOW, transport=options.transport))
        runs = _begin_runs(cluster, options, stack)
        pids = (*cluster.pids.values(), os.getpid())
        honest = [Honest(run, pids) for _, run in runs]
        for run in honest:
            run.see(SAID)
        orders = _orders(name, *runs[0], options, cluster.certificate(MEMBER, "host"))
        for pid in cluster.pids.values():
            Path(f"/proc/{pid}/clear_refs").write_bytes(b"5")  # resets the peak
        attacker, took_s = _run_attacker(orders, honest)
        ended = cluster.poll()
        peaks = [_peak_bytes(pid) for host, pid in cluster.pids.items() if host not in ended]
    if attacker.returncode:
        raise RunError(f"the attacker failed: {attacker.stderr.decode(errors='replace').strip()[-300:]}")
    peak_bytes = max(peaks, default=0)
    row = {
        "attack": name,
        "frames": int(attacker.stdout),
        "seconds": round(took_s, 2),
        "hosts_ended": len(ended),
        "gap_s": round(max(run.gap_s for run in honest), 3),
        "net_gap_s": round(max(run.net_gap_s for run in honest), 3),
        "peak_bytes": peak_bytes,
        "partitions": sum(run.partitions for run in honest),
        "wrong": sum(run.wrong for run in honest),
        "failed": next((run.failed for run in honest if run.failed), ""),
    }
    unharmed = all(run.unharmed for run in honest[name == BETRAYED :])
    return {**row, "holds": peak_bytes < MOST_BYTES and not ended and unharmed}


def _begin_runs(cluster: LocalCluster, options: AttackOptions, stack: contextlib.ExitStack) -> list[tuple[Client, Run]]:
    """Begin the honest runs. Return pairs of a client and a run."""
    names = [f"client{number or ''}" for number in range(options.runs)]
    clients = [stack.enter_context(Client(cluster, name=name, allow=ALLOW)) for name in names]
    flows = [bench_dataflow(SITES, SIZE_BYTES, client.name) for client in clients]
    placement = dict.fromkeys(flows[0].operators, f"h{SITES}")
    return [(c, stack.enter_context(c.run(flow, placement))) for c, flow in zip(clients, flows, strict=True)]


def _run_attacker(orders: Orders, honest: Iterable[Honest]) -> tuple[subprocess.CompletedProcess[bytes], float]:
    """Run the attacker to its end while the honest runs continue. Return the ended process, and its seconds."""
    with contextlib.ExitStack() as reading:
        for run in honest:
            reading.enter_context(run)
        begun_s = time.monotonic()
        done = subprocess.run(
            module_command("benchmarks.attackers"),
            input=msgspec.msgpack.encode(orders),
            capture_output=True,
            timeout=ATTACK_S,
            check=False,
        )
        return done, time.monotonic() - begun_s


def _orders(name: str, client: Client, run: Run, options: AttackOptions, keys: Path | None) -> Orders:
    """Return the attacker's orders: hosts' addresses, and recorded messages of an honest client and source."""
    run_id = RunId(run.id)
    install, flow = client.shell.core.runs[run_id].install, run.dataflow
    (source, *_), (operator, *_), top = flow.sources, flow.operators, flow.by_name[flow.sinks[0]].inputs[0]
    values = FixedSource(0, SIZE_BYTES)
    messages: list[m.Control] = [install, m.Ping(run_id), m.Hello()]
    messages += [m.Demand(run_id, top, flow.sinks[0], index, version=1) for index in range(SAID)]
    recorded: list[tuple[bytes, ...]] = [(frames.encode(message),) for message in messages]
    for index in range(SAID):
        chunk = m.Chunk(index, SIZE_BYTES, 0, m.Partition(run_id, source, operator, index), "|u1", (SIZE_BYTES,))
        recorded.append((frames.encode(chunk), values.produce(index).tobytes()))
    carriers = set(run.placement.values()) - {client.name}
    hosts = tuple(peer for peer in install.peers if peer.name in carriers)
    known, keyed = tuple(recorded), "" if keys is None else str(keys)
    return Orders(name, hosts, run_id, MEMBER, recorded[0][0], known, options.frames, options.seed, keyed)


class Honest:
    """Honest run during an attack. Within the context, a separate thread reads the partitions.

    ``pids``: processes of the run's hosts and of its client.
    """

    def __init__(self, run: Run, pids: Collection[int]) -> None:
        sources = [FixedSource(site, SIZE_BYTES) for site in range(SITES)]
        self._right = [maximum([source.produce(index) for source in sources]).tobytes() for index in range(VARIANTS)]
        self._run, self._pids = run, pids
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.partitions = self.wrong = 0
        self.gap_s = self.net_gap_s = 0.0
        self.failed = ""

    def see(self, partitions: int) -> None:
        """Read ``partitions`` partitions, and compare each with the expected value."""
        for _ in range(partitions):
            delivered = next(self._run)
            self.partitions += 1
            body = frames_of(delivered.value)[2]  # a forged value may be of any kind
            self.wrong += body != self._right[delivered.index % VARIANTS]

    def _read(self) -> None:
        pauses = Pauses(self._pids)
        try:
            while not self._over.is_set():
                self.see(1)
                pauses.go_on()
                self.gap_s, self.net_gap_s = pauses.longest_s, pauses.longest_net_s
        except RunError as error:
            self.failed = str(error)
        except StopIteration:
            self.failed = "the run ended"

    @property
    def unharmed(self) -> bool:
        return self.net_gap_s < MOST_GAP_S and self.gap_s < LAST_S and not (self.wrong or self.failed)

    def __enter__(self) -> Honest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for one more partition after the attack. Without a partition in ``LAST_S``, the run has failed."""
        self._over.set()
        self._thread.join(LAST_S)
        if self._thread.is_alive():
            self.failed = f"no partition in {LAST_S:g} s"


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
