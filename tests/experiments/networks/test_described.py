"""Runs on networks that scenario files describe: roles of hosts, contradictions of the file, and digests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from thalweg.emulation.scenarios.file import read_scenario
from thalweg.experiments.cli.main import invoke
from thalweg.experiments.networks.described import described, read, roles
from thalweg.experiments.run_config import RunConfig
from thalweg.middleware.errors import UsageError

FILE = """
name = "two oceans"
hosts = ["paris@aws:eu-west-3", "client@aws:us-east-1", "tokyo@aws:ap-northeast-1"]
time_scale = 60
interface_rate = "2mbit"

[links]
rate = "0.4mbit"
delay = "30ms"

[[event]]
kind = "change"
at = "60s"
for = "5min"
host = "tokyo"
factor = 0.5

[[event]]
kind = "outage"
at = "5min"
for = "20s"
from = "paris"
to = "client"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "oceans.toml"
    path.write_text(FILE)
    return path


def test_hosts_take_roles_and_keep_links(file: Path) -> None:
    assert roles(read_scenario(file), "a") == {"client": "client", "paris": "h1", "tokyo": "h2"}
    network = described(RunConfig(scenario=str(file), time_scale=60.0))
    timeline = network.timeline
    assert timeline.wall_shapes()["h1", "client"].delay_s == pytest.approx(0.03 / 60)
    assert timeline.wall_shapes()["h1", "client"].rate_bps == pytest.approx(24e6)
    assert timeline.wall_interfaces_bps == dict.fromkeys(("client", "h1", "h2"), 120e6)
    assert {change.link for change in timeline.changes if change.effect.cut} == {("h1", "client")}
    rates = timeline.rates(emulated=network.traces)
    assert rates["h2", "h1"].rate_at(30.0) == pytest.approx(0.4e6)
    assert rates["h2", "h1"].rate_at(90.0) == pytest.approx(0.2e6)
    assert rates["h1", "client"].bits_between(300.0, 320.0) == 0.0
    assert "h2 is tokyo (aws:ap-northeast-1)" in network.notes[0]


def test_the_first_host_is_the_client_if_no_host_is_named_client(file: Path) -> None:
    file.write_text(FILE.replace("client@", "ohio@").replace('to = "client"', 'to = "ohio"'))
    assert roles(read_scenario(file), "a") == {"paris": "client", "ohio": "h1", "tokyo": "h2"}
    file.write_text('hosts = ["alone"]\n[links]\nrate = "1mbit"\n')
    with pytest.raises(UsageError, match="needs a client and at least one server"):
        roles(read_scenario(file), "a")


def test_the_no_delay_option_removes_delays_and_leaves_rates(file: Path) -> None:
    network = described(RunConfig(scenario=str(file), no_delay=True, time_scale=60.0))
    shape = network.timeline.wall_shapes()["h1", "client"]
    assert (shape.delay_s, shape.rate_bps) == (0.0, pytest.approx(24e6))
    assert not read(file, no_delay=True).needs_netem
    assert any(change.effect.cut for change in network.timeline.changes)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--servers", "5"], "--servers is 5, and {file} has 2 hosts besides the client"),
        (["--link-mean", "1mbit"], "--link-mean scales traces that a run draws"),
        (["--testbed", "loopback"], "changes links, and loopback has none"),
        (["--time-scale", "60000"], "busy links of 400 kbit/s at --time-scale 60000"),
    ],
)
def test_options_that_contradict_the_file_are_refused(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert invoke(["run", "--scenario", str(file), "--out", str(tmp_path / "r"), *arguments]) == 2
    error = capsys.readouterr().err
    assert said.format(file=file) in error
    assert error.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_an_unknown_scenario_and_no_delay_without_a_file_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["run", "--scenario", "colapse"]) == 2
    assert invoke(["run", "--no-delay"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "there is collapse, or a file that ends in .toml" in first
    assert "no such file is given" in second


def run(
    testbed: list[str], file: Path, folder: Path, capsys: pytest.CaptureFixture[str], images: int = 6, *more: str
) -> Any:
    arguments = ["run", "--scenario", str(file), "--placement", "one-shot", "--images", str(images), "--json", *more]
    assert invoke([*arguments, "--testbed", *testbed, "--out", str(folder)]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_delays_losses_and_events_of_the_file_slow_a_virtual_run(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Delays, losses and events each lengthen the run. A second run of the same file takes the same time."""
    links = FILE.partition("[[event]]")[0]
    cases = {
        "plain": (links, ("--no-delay",)),
        "delays": (links.replace("30ms", "2s"), ()),
        "losses": (links.replace("delay = ", 'loss = "5%"\ndelay = '), ()),
        "events": (FILE, ("--no-delay",)),
    }
    elapsed_s = {}
    for name, (text, more) in cases.items():
        file.write_text(text)
        placement = run(["sim"], file, tmp_path / name, capsys, 120, *more)["placements"]["one-shot"]
        assert placement["delivered"] == 120
        elapsed_s[name] = placement["elapsed_s"]
        assert (tmp_path / name / "scenario.toml").read_text() == text
    assert elapsed_s["delays"] > elapsed_s["plain"] + 2 * 2.0
    assert elapsed_s["losses"] > elapsed_s["plain"] * 1.05
    assert elapsed_s["events"] > elapsed_s["plain"] + 20.0
    again = run(["sim"], file, tmp_path / "again", capsys, 120, "--no-delay")["placements"]["one-shot"]
    assert again["elapsed_s"] == elapsed_s["events"]


@pytest.mark.parametrize("name", ["campus", "delays"])
def test_the_examples_are_played_in_virtual_time(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[3] / "docs" / "examples" / f"{name}.toml"
    answer = run(["sim"], example, tmp_path / "r", capsys)
    assert answer["placements"]["one-shot"]["delivered"] == 6


@pytest.mark.long
@pytest.mark.timed
@pytest.mark.netns
def test_a_virtual_run_takes_as_long_as_a_run_on_namespaces(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The links change during the run. Only rates are set, because every kernel can shape rates."""
    seconds = [
        run(testbed, file, tmp_path / testbed[0], capsys, 120, "--no-delay")["placements"]["one-shot"]["elapsed_s"]
        for testbed in (["netns", "--no-prove"], ["sim"])
    ]
    assert seconds[0] > 320.0  # the last event is over
    assert seconds[1] == pytest.approx(seconds[0], rel=0.1)


@pytest.mark.timed
@pytest.mark.netns
def test_a_run_of_a_file_on_namespaces_has_the_reference_digest_and_proven_links(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run(["netns"], file, tmp_path / "r", capsys, 6, "--no-delay")
    assert answer["placements"]["one-shot"]["digest"] == answer["reference_digest"]
    assert answer["links"]["checked"] == 6
    assert answer["links"]["worst_rate_error"] < 0.05
    assert 0.5 < answer["links"]["worst_window"] < 1.1
    assert answer["links"]["lag_max_s"] < 1.0
    assert (tmp_path / "r" / "scenario.toml").read_text() == FILE


@pytest.mark.timed
@pytest.mark.docker
def test_a_run_of_a_file_in_containers_has_the_reference_digest_records_and_images(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], docker_image: str
) -> None:
    answer = run(["docker", "--image", docker_image], file, tmp_path / "r", capsys, 6, "--no-delay")
    assert answer["testbed"] == "docker"
    assert answer["placements"]["one-shot"]["digest"] == answer["reference_digest"]
    assert answer["links"]["worst_rate_error"] < 0.05
    assert answer["placements"]["one-shot"]["transfers"] > 0  # the records came back
    assert len(list((tmp_path / "r" / "images" / "one-shot").glob("*.png"))) == 6
    assert not (tmp_path / "r" / "logs").exists()


@pytest.mark.long
@pytest.mark.docker
def test_a_killed_container_ends_the_run_with_the_name_of_the_host(tmp_path: Path, docker_image: str) -> None:
    import threading

    from thalweg.emulation.containers import engine as docker_engine
    from thalweg.experiments.runs.launcher import execute
    from thalweg.middleware.errors import HostLostError

    _, client = docker_engine.sdk()

    def kill() -> None:
        (victim,) = client.containers.list(filters={"label": [f"{docker_engine.HOST}=h2"]})
        victim.kill()

    began = threading.Event()

    def tell(what: str, done: int, total: int) -> None:
        if what == "one-shot" and done == 2 and not began.is_set():
            began.set()
            threading.Thread(target=kill).start()

    config = RunConfig(testbed="docker", image=docker_image, servers=3, placements=("one-shot",), images=400,
                       link_mean_bps=0.2e6, time_scale=60.0, prove=False)  # fmt: skip
    with pytest.raises(HostLostError, match=r"host 'h2' ended .*its container has ended \(status 137"):
        execute(msgspec.structs.replace(config), tmp_path / "r", tell)
    assert began.is_set()
    assert (tmp_path / "r" / "events.parquet").is_file()  # what was recorded until then
