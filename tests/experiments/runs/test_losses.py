"""The runtime over links that lose, delay and reorder packets, in a separate kernel with netem."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from patience import patience

from thalweg import Testbed

pytestmark = [pytest.mark.long, pytest.mark.uml]
EXAMPLE = Path(__file__).parents[3] / "docs/examples/losses.toml"
FLOW_BYTES = 2_500_000
RECEIVE = """
import socket, time
with socket.create_server(("0.0.0.0", 9000)) as listener:
    print("ready", flush=True)
    flow, _ = listener.accept()
    come, begun_s = 0, time.monotonic()
    while chunk := flow.recv(1 << 16):
        come += len(chunk)
    print(come, time.monotonic() - begun_s, flush=True)
"""
SEND = f"""
import socket, sys
with socket.create_connection((sys.argv[1], 9000)) as flow:
    flow.sendall(bytes({FLOW_BYTES}))
"""


def run(folder: Path, *words: str) -> dict[str, Any]:
    """Run the composition in User-Mode Linux and return its JSON object."""
    command = [sys.executable, "-P", "-m", "thalweg", "run", "--kernel", "uml", "--out", str(folder), "--json"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=patience(280), check=False)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def tcp_bps(folder: Path) -> float:
    """Return the rate that a plain TCP flow gets of a link of the example."""
    with Testbed.open("netns", ["client", "h1"], kernel="uml") as bed:
        bed.play(folder / "pair.toml")
        receiver = bed.start("client", [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE)
        assert receiver.stdout is not None
        assert receiver.stdout.readline().strip() == b"ready"
        bed.run("h1", [sys.executable, "-c", SEND, bed.hosts["client"]], timeout_s=patience(120))
        received, seconds = receiver.stdout.readline().split()
        assert int(received) == FLOW_BYTES
        return FLOW_BYTES * 8 / float(seconds)


def test_a_run_over_links_that_lose_and_reorder_survives_moves_and_a_killed_host(tmp_path: Path) -> None:
    output = run(
        tmp_path / "run", "--scenario", str(EXAMPLE), "--placement", "one-shot", "--placement", "random-moves",
        "--moves", "12", "--images", "40", "--image-bytes", "20000", "--kill", "h2@10", "--stand-in", "h2=h3",
    )  # fmt: skip
    assert output["links"]["delay_emulated"]
    assert output["links"]["loss_off"] == 0
    for placement in output["placements"].values():
        assert (placement["delivered"], placement["lost"], placement["duplicate"]) == (40, 0, 0)
        assert (placement["out_of_order"], placement["digest"]) == (0, output["reference_digest"])
        (recovery,) = placement["recoveries"]
        assert recovery["host"] == "h2"
    assert output["placements"]["random-moves"]["relocations"] >= 6


def test_a_stream_reaches_more_than_half_the_rate_of_a_tcp_flow(tmp_path: Path) -> None:
    (tmp_path / "pair.toml").write_text(EXAMPLE.read_text().replace('"client", "h1", "h2", "h3"', '"client", "h1"'))
    output = run(
        tmp_path / "run", "--scenario", str(tmp_path / "pair.toml"), "--placement", "download-all", "--images", "40",
        "--image-bytes", "64000", "--ahead", "4", "--no-prove",
    )  # fmt: skip
    rows = pq.read_table(tmp_path / "run/events.parquet").to_pylist()
    delivered = sorted((row["wall_s"], row["size_bytes"]) for row in rows if row["kind"] == "delivered")
    (first_s, _), (last_s, _) = delivered[0], delivered[-1]
    stream_bps = 8 * sum(size for _, size in delivered[1:]) / (last_s - first_s)
    flow_bps = tcp_bps(tmp_path)
    print(f"stream {stream_bps / 1e3:.0f} kbit/s, TCP flow {flow_bps / 1e3:.0f} kbit/s")
    assert output["placements"]["download-all"]["lost"] == 0
    assert stream_bps > 0.5 * flow_bps
