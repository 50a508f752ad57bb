"""``bench attack``: hosts that carry an honest run are attacked by another process, in every way that is known.

Each attack has a cluster of its own, over TCP without keys, so that the attacker is what no closed network would let
in: it dials every host, takes names of its choice, and that of a host of the run which has no node. An honest run goes
on meanwhile, and every partition of it is compared with what a single process computes. Only where a host of the run
lies about it (``betrayed``) may the run end.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from thalweg.experiments.bench.attackers import ATTACKS, BETRAYED, PARTS, Orders
from thalweg.experiments.bench.options import AttackOptions
from thalweg.experiments.bench.rounds import Progress, silent
from thalweg.experiments.bench.tree import ALLOW, bench_dataflow
from thalweg.experiments.bench.workload import VARIANTS, FixedSource, maximum
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.run import Run
from thalweg.middleware.errors import RunError, UsageError, nearest
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.shell import sockets
from thalweg.middleware.shell.values import frames_of

NAMES = (*ATTACKS, *PARTS, "connections")
SITES, SIZE_BYTES = 2, 16_384
MOST_GAP_S, MOST_BYTES = 1.0, 150_000_000
ATTACK_S = 600.0  # what takes longer is broken
LAST_S = 10.0  # the run may take for a partition after the attack


def bench_attack(options: AttackOptions, progress: Progress = silent) -> dict[str, Any]:
    """The object that ``thalweg bench attack --json`` prints: what each attack came to, and whether the bounds hold.

    Raises UsageError for an unknown attack.
    """
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
    dataflow = bench_dataflow(SITES, SIZE_BYTES)
    placement = dict.fromkeys(dataflow.operators, f"h{SITES}")
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(SITES + 1, allow=ALLOW, transport="tcp"))
        client = stack.enter_context(Client(cluster, allow=ALLOW))
        with _listening() as heard:
            run = stack.enter_context(client.run(dataflow, placement))
            honest = Honest(run)
            honest.see(40)
        orders = _orders(name, client, run, heard, options)
        for pid in cluster.pids.values():
            Path(f"/proc/{pid}/clear_refs").write_bytes(b"5")  # the peak begins anew
        with honest:
            begun_s = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-m", "thalweg.experiments.bench.attackers"],
                input=msgspec.msgpack.encode(orders),
                capture_output=True,
                timeout=ATTACK_S,
                check=False,
            )
            took_s = time.monotonic() - begun_s
        ended = cluster.poll()
        peaks = [_peak_bytes(pid) for host, pid in cluster.pids.items() if host not in ended]
    if done.returncode:
        raise RunError(f"the attacker failed: {done.stderr.decode(errors='replace').strip()[-300:]}")
    peak_bytes = max(peaks, default=0)
    row = {
        "attack": name,
        "frames": int(done.stdout),
        "seconds": round(took_s, 2),
        "hosts_ended": len(ended),
        "gap_s": round(honest.gap_s, 3),
        "peak_bytes": peak_bytes,
        "partitions": honest.partitions,
        "wrong": honest.wrong,
        "failed": honest.failed,
    }
    unharmed = honest.gap_s < MOST_GAP_S and not (honest.wrong or honest.failed)
    return {**row, "holds": peak_bytes < MOST_BYTES and not ended and (unharmed or name == BETRAYED)}


def _orders(name: str, client: Client, run: Run, heard: list[tuple[bytes, ...]], options: AttackOptions) -> Orders:
    """What the attacker knows: where hosts are, and what an honest client and an honest source have sent."""
    installs = [frame for frame, *_ in heard if isinstance(_message(frame), m.Install)]
    (source, *_), (operator, *_) = run.dataflow.sources, run.dataflow.operators
    values = FixedSource(0, SIZE_BYTES)
    partitions = []
    for index in range(40):
        chunk = m.Chunk(index, SIZE_BYTES, 0, m.Partition(run.id, source, operator, index), "|u1", (SIZE_BYTES,))
        partitions.append((frames.encode(chunk), values.produce(index).tobytes()))
    hosts = tuple(
        peer for peer in client._peers.values() if peer.name in run.placement.values() and peer.name != client.name
    )
    member = f"h{SITES + 1}"
    return Orders(name, hosts, run.id, member, installs[0], (*heard, *partitions), options.frames, options.seed)


def _message(frame: bytes) -> m.Control:
    return frames.decode_all(frame)[-1]


@contextlib.contextmanager
def _listening() -> Iterator[list[tuple[bytes, ...]]]:
    """The control messages that hosts of this process send meanwhile."""
    heard: list[tuple[bytes, ...]] = []
    send: Any = sockets._send

    def heard_send(socket: Any, data: Any, flags: int, **more: Any) -> Any:
        if flags == sockets.NOBLOCK and isinstance(data, bytes):
            heard.append((data,))
        return send(socket, data, flags, **more)

    sockets._send = heard_send  # type: ignore[assignment]  # a recorder in its place
    try:
        yield heard
    finally:
        sockets._send = send


class Honest:
    """The run that goes on meanwhile: within its context a thread of its own reads it."""

    def __init__(self, run: Run) -> None:
        sources = [FixedSource(site, SIZE_BYTES) for site in range(SITES)]
        self._right = [maximum([source.produce(index) for source in sources]).tobytes() for index in range(VARIANTS)]
        self._run = run
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self.partitions = self.wrong = 0
        self.gap_s = 0.0
        self.failed = ""

    def see(self, partitions: int) -> None:
        """Read so many."""
        for _ in range(partitions):
            delivered = next(self._run)
            self.partitions += 1
            body = frames_of(delivered.value)[2]  # a forged one may be of any kind
            self.wrong += body != self._right[delivered.index % VARIANTS]

    def _read(self) -> None:
        last_s = time.monotonic()
        try:
            while not self._over.is_set():
                self.see(1)
                now = time.monotonic()
                self.gap_s, last_s = max(self.gap_s, now - last_s), now
        except RunError as error:
            self.failed = str(error)
        except StopIteration:
            self.failed = "the run ended"

    def __enter__(self) -> Honest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Once the attack is over it must go on."""
        self._over.set()
        self._thread.join(LAST_S)
        if self._thread.is_alive():
            self.failed = f"no partition in {LAST_S:g} s"


def _peak_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024
