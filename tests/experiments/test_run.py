"""``thalweg run`` as a user runs it: real processes, real namespaces, real interrupts."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from PIL import Image

THALWEG = [sys.executable, "-m", "thalweg"]


def thalweg(*arguments: str, cwd: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "THALWEG_TRACES"}
    return subprocess.run(
        [*THALWEG, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def descendants() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def test_loopback_delivers_what_a_single_machine_makes(tmp_path: Path) -> None:
    done = thalweg(
        *("run", "--testbed", "loopback", "--servers", "4", "--images", "6", "--image-bytes", "20000"),
        *("--placement", "download-all", "--placement", "one-shot", "--out", "a", "--json"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert set(result["placements"]) == {"download-all", "one-shot"}
    for placement in result["placements"].values():
        assert placement["delivered"] == placement["images"] == 6
        assert placement["lost"] == placement["duplicate"] == placement["out_of_order"] == 0
        assert placement["digest"] == result["reference_digest"]
        assert placement["mean_interarrival_s"] > 0
    assert (tmp_path / "a" / "run.toml").exists()
    assert sorted(path.name for path in (tmp_path / "a" / "images" / "one-shot").iterdir())[0] == "000.png"
    kinds = set(pq.read_table(tmp_path / "a" / "events.parquet").column("kind").to_pylist())
    assert {"delivered", "placed", "transfer", "host_load", "estimate"} <= kinds
    again = thalweg("run", "--testbed", "loopback", "--out", "a", cwd=tmp_path)
    assert again.returncode == 2
    assert "a is not empty" in again.stderr


@pytest.mark.netns
def test_netns_shapes_the_links_that_the_flow_crosses(tmp_path: Path) -> None:
    done = thalweg(
        *("run", "--testbed", "netns", "--servers", "4", "--images", "8", "--image-bytes", "30000", "--seed", "3"),
        *("--time-scale", "60", "--link-mean", "0.1mbit", "--out", "a", "--json"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    for placement in result["placements"].values():
        assert placement["delivered"] == 8
        assert placement["digest"] == result["reference_digest"]
    assert 0 < result["links"]["checked"] <= 20
    table = pq.read_table(tmp_path / "a" / "events.parquet").to_pylist()
    estimates = [json.loads(row["detail"]) for row in table if row["kind"] == "estimate"]
    assert estimates
    assert all(one["truth_bps"] > 0 for one in estimates)
    assert {row["kind"] for row in table} >= {"proof", "link", "replay"}


@pytest.mark.netns
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_nothing(tmp_path: Path, number: signal.Signals, status: int) -> None:
    before = descendants()
    options = "run --testbed netns --servers 3 --images 500 --time-scale 60 --link-mean 0.05mbit --out a"
    process = subprocess.Popen(
        [*THALWEG, *options.split(" ")],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "THALWEG_TRACES"},
        stderr=subprocess.PIPE,
        text=True,
    )
    logs = tmp_path / "a" / "logs" / "client.jsonl"
    assert process.stderr is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stderr, selectors.EVENT_READ)
        for _ in range(300):  # at most 30 s: until the flow runs
            if logs.exists() or selector.select(0.1):
                break
    assert logs.exists(), process.stderr.read()
    process.send_signal(number)
    assert process.wait(timeout=5) == status
    process.stderr.close()
    assert descendants() == before
    held = [
        p.info["pid"] for p in psutil.process_iter(["pid", "cmdline"]) if str(tmp_path) in (p.info["cmdline"] or [])
    ]
    assert held == []


def write_folder(folder: Path, sites: int, images: int) -> None:
    for site in range(sites):
        path = folder / f"site{site}"
        path.mkdir(parents=True)
        for index in range(images):
            pixels = np.full((20 + site, 30), 40 * site + index, np.uint8)
            Image.fromarray(pixels).save(path / f"{index}.png")


def test_own_images_and_a_corrupt_one(tmp_path: Path) -> None:
    write_folder(tmp_path / "mine", 2, 3)
    common = ("run", "--testbed", "loopback", "--servers", "2", "--folder", "mine", "--placement", "one-shot")
    good = thalweg(*common, "--out", "a", "--json", cwd=tmp_path)
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout.splitlines()[-1])["placements"]["one-shot"]["delivered"] == 3
    (tmp_path / "mine" / "site1" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\nnot an image")
    bad = thalweg(*common, "--out", "b", cwd=tmp_path)
    assert bad.returncode == 2
    assert "1.png" in bad.stderr
    assert len(bad.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "b").exists()
    skipped = thalweg(*common, "--out", "c", "--skip-corrupt", "--json", cwd=tmp_path)
    assert skipped.returncode == 0, skipped.stderr
    assert json.loads(skipped.stdout.splitlines()[-1])["placements"]["one-shot"]["delivered"] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--placement", "one-shoot"], "did you mean 'one-shot'"),
        (["--servers", "0"], "--servers is 0"),
        (["--servers", "1000"], "addresses"),
        (["--images", "0"], "--images is 0"),
        (["--tree", "bushy"], "unknown tree 'bushy'"),
        (["--testbed", "moon"], "moon"),
        (["--traces", "missing"], "missing"),
        (["--link-mean", "fast"], "'fast' is not a rate"),
        (["--link-mean", "900mbit", "--time-scale", "100"], "lower --link-mean or --time-scale"),
        (["--cost", "beauty"], "beauty"),
        (["--dtype", "float"], "dtype"),
    ],
)
def test_bad_input_is_one_line_and_status_2(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = thalweg("run", *arguments, "--out", "a", cwd=tmp_path, timeout=30)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "a").exists()


def test_a_host_that_never_comes_up_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that ends before it listens: one line with its own last words, and no folder left."""
    from thalweg.experiments import runner
    from thalweg.experiments.config import RunConfig
    from thalweg.middleware.errors import HostAbsentError

    fails = [sys.executable, "-c", "import sys; sys.exit('no room for h2')"]
    real = runner.host_command
    monkeypatch.setattr(runner, "host_command", lambda name, *a, **k: fails if name == "h2" else real(name, *a, **k))
    config = RunConfig(testbed="loopback", servers=2, images=2, image_bytes=20_000)
    with pytest.raises(HostAbsentError, match="host 'h2' ended before it listened: no room for h2"):
        runner.execute(config, tmp_path / "a", lambda what, done, total: None)
    assert not (tmp_path / "a").exists()
