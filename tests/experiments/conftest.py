"""Fixtures: one Spark session for the whole test run, and run folders like those of real runs."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from thalweg.experiments.records import records, spark
from thalweg.operators import sequence_digest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WALL = 1_750_000_000.0  # when every synthetic run starts, Unix time
TREE = {  # one-shot: where the transfers of one image go
    "download-all": [(f"h{i}", "client") for i in range(1, 9)],
    "one-shot": [
        ("h1", "h2"), ("h3", "h2"), ("h4", "h6"), ("h5", "h6"), ("h7", "h6"), ("h8", "h2"), ("h2", "h6"),
        ("h6", "client"),
    ],
}  # fmt: skip


@pytest.fixture(scope="session")
def spark_session() -> Iterator[SparkSession]:
    """Return the only Spark session of the test run. The tests that use it are marked ``spark``."""
    with spark.session("local[2]") as session:
        yield session


@pytest.fixture
def shared_spark(spark_session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the code use the test run's session."""
    monkeypatch.setattr(spark, "session", lambda master: nullcontext(spark_session))


def digest(seed: int, index: int) -> str:
    """Return a substitute for the digest of an image, equal for all placements of a seed."""
    return hashlib.sha256(f"{seed}/{index}".encode()).hexdigest()


class Run:
    """Writer of a run folder as of `thalweg run`: a log for every host, gathered at the end."""

    def __init__(self, folder: Path, *, seed: int = 1, images: int = 20, time_scale: float = 120.0) -> None:
        self.folder, self.seed, self.images, self.time_scale = folder, seed, images, time_scale
        self.random = random.Random(seed)
        self.lines: dict[str, list[str]] = {}
        self.placements: list[str] = []
        folder.mkdir(parents=True)

    def digest(self, index: int) -> str:
        return digest(self.seed, index)

    def add(self, t: float, host: str, kind: str, placement: str | None = None, **more: Any) -> None:
        record = {"t": t, "wall": WALL + t / self.time_scale, "host": host, "kind": kind}
        if placement is not None:
            record["placement"] = placement
        self.lines.setdefault(host, []).append(json.dumps(record | more))

    def deliver(self, placement: str, times: list[tuple[float, int]], seed: int | None = None) -> None:
        """Add deliveries at the client, as (emulated time, image index), in the order of the log."""
        for t, index in times:
            detail = {"digest": digest(self.seed if seed is None else seed, index)}
            self.add(t, "client", "delivered", placement, index=index, size_bytes=131072, detail=detail)

    def flow(self, placement: str, mean_s: float, link_rows: int = 600, places: dict[str, str] | None = None) -> None:
        """Add a whole placement: deliveries every ``mean_s`` or so, transfers, links and host load."""
        self.placements.append(placement)
        links = TREE.get(placement, TREE["one-shot"])
        self.add(0.0, "client", "started", placement)
        plan = {"planner": placement, "predicted_s": mean_s * 0.9, "placement": places or {"op0": "h2"}}
        probed = 0 if placement == "download-all" else 2
        self.add(0.0, "client", "placed", placement, detail=plan | {"probed": probed})
        now, times = mean_s * 3, []
        for index in range(self.images):
            times.append((now, index))
            for source, target in links:
                took = self.random.lognormvariate(0, 0.3) * mean_s / 3
                size = int(self.random.gauss(131072, 32768 / 4))
                self.add(
                    now - self.random.random() * mean_s / 2, source, "transfer", placement, peer=target,
                    node="op0", index=index, size_bytes=size, duration_s=took, value=size * 8 / took,
                )  # fmt: skip
            now += mean_s * self.random.lognormvariate(-0.125, 0.5)
        self.deliver(placement, times)
        steps = max(2, link_rows // len(links))
        for source, target in links:
            asked = self.random.uniform(1e5, 4e5)
            for step in range(steps):
                t = now * step / steps
                if step % max(1, steps // 40) == 0:
                    asked = min(6e5, max(4e4, asked * self.random.lognormvariate(0, 0.35)))
                busy = (t // mean_s) % 3 != 0
                got = asked * self.random.uniform(0.95, 1.0) if busy else asked * self.random.uniform(0, 0.4)
                detail = {"asked_bps": asked * self.time_scale, "backlogged": busy}  # on the wire
                self.add(t, source, "link", placement, peer=target, value=got * self.time_scale, detail=detail)
        for host in ["client", *(f"h{i}" for i in range(1, 9))]:
            for step in range(60):
                cpu = abs(self.random.gauss(0.04 if host != "h2" else 0.12, 0.02))
                rss = 48_000_000 + step * 20_000 + (6_000_000 if host == "client" else 0)
                self.add(now * step / 60, host, "host_load", placement, value=cpu, size_bytes=rss)
        self.add(now, "client", "finished", placement)

    def move(
        self,
        placement: str,
        node: str,
        source: str,
        target: str,
        at: float,
        *,
        version: int = 1,
        pause: float = 4.0,
        size_bytes: int = 65_536,
        protocol: str = "barrier",
        reason: str = "",
    ) -> None:
        """Add a hand-over that is suspended at ``at`` and decided 1 s before.

        The state is sent after 1/4 of the pause and received after 1/2. The operator resumes after 3/4, and its first
        output follows 2 s later. The old host settles the hand-over when the pause is over.
        """
        more = {"node": node, "index": version, "size_bytes": size_bytes}
        ago = {"decided": pause + 1.0, "suspended": pause, "state_out": pause * 3 / 4}
        said = {"outcome": "moved", "protocol": protocol, "reason": reason, "why": "", "version": version, "ago": ago}
        self.add(at + pause, source, "relocated", placement, peer=target, duration_s=pause, detail=said, **more)
        said = {"version": version, "ago": {"state_in": pause / 4 + 2.0, "resumed": 2.0}}
        output = at + pause * 3 / 4 + 2.0
        self.add(output, target, "arrived", placement, peer=source, duration_s=pause / 4 + 2.0, detail=said, **more)

    def stay(self, placement: str, node: str, source: str, target: str, at: float, why: str, version: int = 1) -> None:
        """Add a hand-over that is given up before its suspension."""
        said = {"outcome": "stayed", "protocol": "epoch", "reason": "cheaper there", "why": why, "version": version}
        detail = said | {"ago": {"decided": 0.5}}
        self.add(at, source, "relocated", placement, node=node, peer=target, size_bytes=0, detail=detail)

    def estimate(
        self, t: float, source: str, target: str, rate: float, truth: float | None, how: str | None = "passive"
    ) -> None:
        """Add a bandwidth estimate. ``how`` None stands for a record of a version that only probed."""
        detail = {"src": source, "dst": target, "rate_bps": rate, "truth_bps": truth, "how": how}
        detail = {key: value for key, value in detail.items() if value is not None}
        self.add(t, source, "estimate", self.placements[-1], peer=target, value=rate, detail=detail)

    def adapt(self, placement: str, moves: int, operators: int = 7) -> None:
        """Add a placement under which operators move: its flow, moves by both protocols, stays, plans, estimates."""
        dice, end_s = self.random, 12.0 * self.images
        at = {f"op{i}": f"h{dice.randint(1, 8)}" for i in range(operators)}
        places = at | {"sink": "client"} | {f"source@h{i}": f"h{i}" for i in range(1, 9)}
        self.flow(placement, 12.0, link_rows=80, places=places)
        for number in range(moves):
            node, when = f"op{dice.randrange(operators)}", end_s * (number + dice.random()) / moves
            target = dice.choice([host for host in ("client", *(f"h{i}" for i in range(1, 9))) if host != at[node]])
            if number % 5 == 4:
                self.stay(placement, node, at[node], target, when, f"{target} has no room", number)
                continue
            protocol = dice.choice(["barrier", "epoch"])
            options = {"pause": dice.lognormvariate(1, 0.4), "size_bytes": dice.randrange(1 << 18)}
            reason = f"h{number} > {target} fell to 0.1 Mbit/s, 12.3 s instead of 20.1 s"
            self.move(
                placement, node, at[node], target, when, version=number, protocol=protocol, reason=reason, **options
            )
            at[node] = target
            self.add(when, "client", "plan", placement, duration_s=dice.random(), detail={"decision": "propose"})
            self.add(when, at[node], "epoch", placement, node=node, detail={"decision": dice.choice(["move", "stay"])})
            self.add(when, "client", "proposal", placement, detail={"outcome": dice.choice(["committed", "aborted"])})
            for how in ("passive", "passive", "probe"):
                truth = dice.uniform(5e4, 6e5)
                self.estimate(when, at[node], "client", truth * dice.lognormvariate(0, 0.08), truth, how)
        for host in ("h1", "h2"):
            detail = {"news_bytes": 4_000, "probe_bytes": 1_000, "bytes_sent": 1_000_000}
            self.add(end_s, host, "monitor", placement, detail=detail)

    def prove(self, errors: dict[tuple[str, str], tuple[float, float]], stalled: float | None = None) -> None:
        """Add link proofs, given as link to (asked bits per second on the wire, relative error)."""
        for (source, target), (asked, error) in errors.items():
            detail = {"asked_bps": asked, "error": abs(error)} | ({} if stalled is None else {"stalled": stalled})
            self.add(0.0, source, "proof", peer=target, value=asked * (1 + error), detail=detail)

    def write(self, **changes: Any) -> Path:
        reference = sequence_digest(digest(self.seed, i) for i in range(self.images))
        info = {
            "run": f"run-{self.folder.name}", "testbed": "netns", "seed": self.seed, "images": self.images,
            "placements": self.placements, "time_scale": self.time_scale, "reference_digest": reference,
            "config": {"servers": 8, "link_mean_bps": 2e5}, "versions": {"thalweg": "0.1.0"},
        }  # fmt: skip
        logs = []
        for host, lines in self.lines.items():
            logs.append(self.folder / f"{host}.jsonl")
            logs[-1].write_text("\n".join(lines) + "\n", encoding="utf-8")
        records.write_events(self.folder, info["run"], logs)
        for log in logs:
            log.unlink()
        records.save_run(self.folder, records.RunInfo(**(info | changes)))
        return self.folder


@pytest.fixture
def new_run(tmp_path: Path) -> Callable[..., Run]:
    """Return a function of a name (and the arguments of ``Run``) that makes a run folder to fill."""
    return lambda name="a", **options: Run(tmp_path / "runs" / name, **options)
