"""``thalweg run`` as a user runs it: real processes, real namespaces, real interrupts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from patience import patience
from PIL import Image

from thalweg.experiments.records.analysis import summarize_run
from thalweg.experiments.records.moves import read_changes

THALWEG = [sys.executable, "-m", "thalweg"]


def thalweg(
    *arguments: str, cwd: Path, timeout: float = 120, within: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "THALWEG_TRACES"}
    return subprocess.run(
        [*within, *THALWEG, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def result(*arguments: str, cwd: Path, within: Sequence[str] = ()) -> dict[str, Any]:
    """Return the JSON that a successful command line prints."""
    done = thalweg(*arguments, "--json", cwd=cwd, within=within)
    assert done.returncode == 0, done.stderr
    output: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return output


def descendants() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def test_a_run_on_loopback_delivers_the_reference_results(tmp_path: Path) -> None:
    output = result(
        *("run", "--testbed", "loopback", "--servers", "4", "--images", "6", "--image-bytes", "20000"),
        *("--placement", "download-all", "--placement", "one-shot", "--out", "a"),
        cwd=tmp_path,
    )
    assert set(output["placements"]) == {"download-all", "one-shot"}
    for placement in output["placements"].values():
        assert placement["delivered"] == placement["images"] == 6
        assert placement["lost"] == placement["duplicate"] == placement["out_of_order"] == 0
        assert placement["digest"] == output["reference_digest"]
        assert placement["mean_interarrival_s"] > 0
    assert (tmp_path / "a" / "run.toml").exists()
    assert sorted(path.name for path in (tmp_path / "a" / "images" / "one-shot").iterdir())[0] == "000.png"
    kinds = set(pq.read_table(tmp_path / "a" / "events.parquet").column("kind").to_pylist())
    assert {"delivered", "placed", "transfer", "host_load", "estimate"} <= kinds
    again = thalweg("run", "--testbed", "loopback", "--out", "a", cwd=tmp_path)
    assert again.returncode == 2
    assert "a is not empty" in again.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--limit=max_nodes=2", "the run has 4 nodes, and the host takes 2; start it with --limit max_nodes"),
        ("--call-timeout=0.000001", "has not returned within 1e-06 s (call_timeout_s)"),
    ],
)
def test_limits_reach_every_host(tmp_path: Path, option: str, says: str) -> None:
    more = "--servers", "2", "--images", "2", "--placement", "one-shot", "--out", "a"
    ended = thalweg("run", "--testbed", "loopback", *more, option, cwd=tmp_path)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
    assert says in ended.stderr


@pytest.mark.netns
def test_netns_shapes_the_links_that_the_flow_crosses(tmp_path: Path) -> None:
    output = result(
        *("run", "--testbed", "netns", "--servers", "4", "--images", "8", "--image-bytes", "30000", "--seed", "3"),
        *("--time-scale", "180", "--link-mean", "0.1mbit", "--out", "a", "--placement", "thalweg"),
        cwd=tmp_path,
    )
    placement = output["placements"]["thalweg"]
    assert (placement["delivered"], placement["digest"]) == (8, output["reference_digest"])
    assert 0 < output["links"]["checked"] <= 20
    table = pq.read_table(tmp_path / "a" / "events.parquet").to_pylist()
    delivered = [(row["placement"], row["wall_s"]) for row in table if row["kind"] == "delivered"]
    over_s = dict(sorted(delivered, key=lambda one: one[1]))  # the last of each placement
    estimates = [row for row in table if row["kind"] == "estimate"]
    assert estimates
    for row in estimates:  # once all is delivered no trace is replayed, and there is no true rate
        begun_s = row["wall_s"] - (row["duration_s"] or 0.0) / 180
        assert json.loads(row["detail"]).get("truth_bps", 0.0) > 0 or begun_s > over_s.get(row["placement"], 0.0), row
    assert {row["kind"] for row in table} >= {"proof", "link", "replay"}


def own_mounts(*, root: bool = True) -> list[str]:
    """Return the beginning of a command line that gives a command private mounts, or skip the test.

    A user namespace gives private mounts to every user, but not in a chroot. ``root``: root needs no user namespace.
    """
    alone, users = ["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]
    for command in [alone, users] if root else [users]:
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    pytest.skip("needs mounts of its own: root, or user namespaces outside a chroot")


@pytest.mark.long
@pytest.mark.netns
def test_hosts_know_the_load_if_proc_belongs_to_a_different_process_namespace(tmp_path: Path) -> None:
    """A part of /proc is covered, as in containers. Then the kernel lets no process inside mount /proc again."""
    users = own_mounts(root=False)
    within = (*users, "sh", "-c", f'mount --bind /dev/null /proc/uptime && exec {" ".join(users)} "$@"', "sh")
    output = thalweg("doctor", cwd=tmp_path, within=within).stdout
    assert "namespaces as root, without /proc" in output
    output = result(
        *("run", "--servers", "2", "--placement", "one-shot", "--images", "3", "--image-bytes", "4000", "--out", "a"),
        *("--time-scale", "200"),
        cwd=tmp_path,
        within=within,
    )
    loads = output["placements"]["one-shot"]["hosts"]
    assert {"client", "h1", "h2"} == loads.keys()
    for load in loads.values():
        assert 0 < load["mean_cpu"] < 3
        assert 1 << 24 < load["max_rss_bytes"] < 1 << 30


@pytest.mark.long
def test_random_moves_deliver_the_reference_results(tmp_path: Path) -> None:
    output = result(
        *("run", "--testbed", "loopback", "--servers", "4", "--images", "40", "--image-bytes", "4000", "--seed", "7"),
        *("--placement", "random-moves", "--moves", "10", "--operator", "mixed", "--forecaster", "median"),
        *("--out", "a"),
        cwd=tmp_path,
    )
    placement = output["placements"]["random-moves"]
    assert placement["delivered"] == 40
    assert placement["digest"] == output["reference_digest"]
    assert placement["relocations"] == 10
    config = tomllib.loads((tmp_path / "a" / "run.toml").read_text())["config"]
    assert config["adaptation"]["random-moves"] == {"type": "random-moves", "moves": 10, "seed": 7}
    assert (config["operator"], config["forecaster"]) == ("mixed", "median")


@pytest.mark.long
def test_a_run_with_random_reshapes_delivers_the_reference_results(tmp_path: Path) -> None:
    done = thalweg(
        *("run", "--testbed", "loopback", "--servers", "4", "--images", "80", "--image-bytes", "4000", "--seed", "7"),
        *("--placement", "random-reshapes", "--reshapes", "8", "--moves", "4", "--out", "a"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    line = re.search(
        r"^random-reshapes: the tree changed 8 times and ended as client\(.+\)$", done.stdout, re.MULTILINE
    )
    assert line is not None, done.stdout
    kinds = pq.read_table(tmp_path / "a" / "events.parquet").column("kind").to_pylist()
    assert kinds.count("delivered") == 80
    assert kinds.count("relocated") >= 4
    summary = summarize_run(tmp_path / "a")
    assert summary.placements["random-reshapes"].digest_ok


COLLAPSING = """
hosts = ["client", "h1", "h2", "h3"]
time_scale = 50
[links]
rate = "400kbit"
[[link]]
from = "*"
to = "client"
rate = "40kbit"
[[link]]
from = "h1"
to = "client"
rate = "800kbit"
[[link]]
from = "h2"
to = "client"
rate = "400kbit"
[[event]]
kind = "change"
at = "60s"
from = "h1"
to = "client"
rate = "20kbit"
"""


@pytest.mark.long
@pytest.mark.netns
def test_the_tree_avoids_a_link_that_collapses(tmp_path: Path) -> None:
    """The link that carries all images at first needs 8 s for each image in the end.

    The route over h2 needs half a second.
    """
    (tmp_path / "collapsing.toml").write_text(COLLAPSING)
    output = result(
        *("run", "--scenario", "collapsing.toml", "--images", "150", "--image-bytes", "20000", "--no-prove"),
        *("--period", "30"),
        *("--placement", "thalweg", "--placement", "thalweg-once", "--out", "a"),
        cwd=tmp_path,
    )
    again, once = (output["placements"][name] for name in ("thalweg", "thalweg-once"))
    for placement in (again, once):
        assert placement["delivered"] == 150
        assert placement["lost"] == placement["duplicate"] == placement["out_of_order"] == 0
        assert placement["digest"] == output["reference_digest"]
    assert (once["reshapes"], again["reshapes"] >= 1) == (0, True)
    changes = read_changes(tmp_path / "a")
    (node,) = changes[-1].inputs["sink"]
    assert changes[-1].hosts[node] == "h2" or node == "source@h2"
    assert again["elapsed_s"] < 0.7 * once["elapsed_s"]


@pytest.mark.long
@pytest.mark.netns
def test_a_collapse_hits_every_placement_alike(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    for rate_bps in (60_000, 90_000, 100_000, 150_000):
        rows = f"time_s,bandwidth_bps\n0,{rate_bps}\n300,{rate_bps * 1.1}\n600,{rate_bps * 0.9}\n"
        (tmp_path / "traces" / f"{rate_bps}.csv").write_text(rows)
    done = thalweg(
        *("run", "--testbed", "netns", "--servers", "4", "--images", "36", "--seed", "1", "--traces", "traces"),
        *("--time-scale", "300", "--link-mean", "0.1mbit", "--scenario", "collapse", "--out", "a"),
        *("--placement", "one-shot", "--placement", "global"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    collapse = tomllib.loads((tmp_path / "a" / "run.toml").read_text())["config"]["collapse"]
    host = collapse["host"]
    assert host != "client"
    assert f"the links of {host} have 10% of their rate" in done.stdout
    assert "operators ended elsewhere" in done.stdout
    log = pq.read_table(tmp_path / "a" / "events.parquet").to_pylist()
    for row in log:
        row["detail"] = json.loads(row["detail"]) if row["detail"] else {}
    placed = [row for row in log if row["kind"] == "placed"]
    assert [(row["placement"], row["detail"]["shared"]) for row in placed] == [
        ("one-shot", False),
        ("global", True),
    ]
    plans = [row["detail"]["placement"] for row in placed]
    assert plans[0] == plans[1]
    came = [row for row in log if row["kind"] == "scenario"]
    assert [(row["placement"], row["host"], row["t_s"]) for row in came] == [
        ("one-shot", host, 300.0),
        ("global", host, 300.0),
    ]
    asked: dict[tuple[str, str], dict[bool, list[float]]] = {}
    for row in log:
        if row["kind"] == "link" and row["placement"] == "one-shot" and abs(row["t_s"] - 300.0) > 100.0:
            both = asked.setdefault((row["host"], row["peer"]), {False: [], True: []})
            both[row["t_s"] > 300.0].append(row["detail"]["asked_bps"])
    ratios = {link: np.mean(both[True]) / np.mean(both[False]) for link, both in asked.items() if all(both.values())}
    fell = {link for link, ratio in ratios.items() if ratio < 0.25}
    assert fell == {link for link in ratios if host in link} != set()
    estimates = [row for row in log if row["kind"] == "estimate" and row["placement"] == "one-shot"]
    assert estimates
    assert all(row["detail"]["truth_bps"] > 0 for row in estimates)


@pytest.mark.timed
@pytest.mark.netns
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]
)
def test_an_interrupted_run_leaves_no_processes(tmp_path: Path, number: signal.Signals, status: int) -> None:
    before = descendants()
    options = "run --testbed netns --servers 3 --images 500 --time-scale 60 --link-mean 0.05mbit --out a"
    error_file, log = tmp_path / "said", tmp_path / "a" / "logs" / "client.jsonl"
    environment = {key: value for key, value in os.environ.items() if key != "THALWEG_TRACES"}
    command = [*THALWEG, *options.split(" ")]
    with (
        error_file.open("wb") as errors,
        subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=errors) as process,
    ):
        try:
            for _ in range(600):  # at most a minute: until the flow runs
                if log.exists() or process.poll() is not None:
                    break
                time.sleep(0.1)
            assert log.exists(), error_file.read_text()
            process.send_signal(number)
            assert process.wait(timeout=patience(20)) == status
        finally:
            process.kill()
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


@pytest.mark.netns
@pytest.mark.parametrize("testbed", ["sim", "loopback"])
def test_a_full_disk_is_reported_in_a_single_line_and_nothing_is_left(tmp_path: Path, testbed: str) -> None:
    script = 'mount -t tmpfs -o size=8k none $0; "$@"; status=$?; ls -A $0; exit $status'
    within = [*own_mounts(), "sh", "-c", script, str(tmp_path)]
    run = f"run --testbed {testbed} --servers 2 --placement one-shot --images 20 --out {tmp_path}/r"
    done = thalweg(*run.split(), cwd=tmp_path, within=within)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"thalweg: the disk of {tmp_path}/r is full, and nothing is left of the run")
    assert done.stderr.count("\n") == 1


@pytest.mark.long
def test_images_of_a_user_are_delivered_and_a_corrupt_image_is_refused_or_skipped(tmp_path: Path) -> None:
    write_folder(tmp_path / "mine", 2, 3)
    common = ("run", "--testbed", "loopback", "--servers", "2", "--folder", "mine", "--placement", "one-shot")
    assert result(*common, "--out", "a", cwd=tmp_path)["placements"]["one-shot"]["delivered"] == 3
    (tmp_path / "mine" / "site1" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\nnot an image")
    bad = thalweg(*common, "--out", "b", cwd=tmp_path)
    assert bad.returncode == 2
    assert "1.png" in bad.stderr
    assert len(bad.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "b").exists()
    skipped = result(*common, "--out", "c", "--skip-corrupt", cwd=tmp_path)
    assert skipped["placements"]["one-shot"]["delivered"] == 2
    assert "'site1' has 2 images and others up to 3" in (tmp_path / "c" / "run.toml").read_text()


def test_a_host_that_never_comes_up_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host ends before it listens. The error has the host's last message, and no folder is left."""
    from thalweg.experiments.run_config import RunConfig
    from thalweg.experiments.runs import launcher, processes
    from thalweg.middleware.errors import HostAbsentError

    fails = [sys.executable, "-c", "import sys; sys.exit('no room for h2')"]
    real = processes.host_command
    monkeypatch.setattr(processes, "host_command", lambda name, *a, **k: fails if name == "h2" else real(name, *a, **k))
    config = RunConfig(testbed="loopback", servers=2, images=2, image_bytes=20_000)
    with pytest.raises(HostAbsentError, match="host 'h2' ended before it listened: no room for h2"):
        launcher.execute(config, tmp_path / "a", lambda what, done, total: None)
    assert not (tmp_path / "a").exists()
