"""``thalweg run --kill`` and the events of processes: the run goes on, and the records describe the recovery."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from thalweg.emulation.scenarios.events import Deed
from thalweg.emulation.scenarios.file import read_scenario
from thalweg.emulation.scenarios.process_events import deeds_of, read_stand_ins
from thalweg.emulation.scenarios.timeline import compile_timeline
from thalweg.experiments.cli.verbs import app
from thalweg.experiments.records.analysis import summarize_run
from thalweg.experiments.records.log import Detail, Row, read_log
from thalweg.experiments.records.records import load_run
from thalweg.experiments.records.recoveries import recoveries_of
from thalweg.experiments.run_config import RunConfig
from thalweg.experiments.views.timelines import read_courses
from thalweg.middleware.errors import UsageError

KILLS = int(os.environ.get("THALWEG_KILLS", "1"))
SCALE = 60.0
HOSTS = ["h1", "h2", "h3"]
SCENARIO = """
hosts = 4
[links]
rate = "2mbit"
[[event]]
at = "10s"
kind = "crash"
host = "h2"
for = "30s"
[[event]]
at = "50s"
kind = "drain"
host = "h1"
[[event]]
at = "60s"
kind = "join"
host = "h3"
"""


def run(*options: str, out: Path) -> dict[str, Any]:
    """Return the JSON of the only placement of a run, which must deliver everything."""
    done = CliRunner().invoke(app, ["run", *options, "--json", "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (placement,) = json.loads(done.stdout.splitlines()[-1])["placements"].values()
    assert (placement["lost"], placement["duplicate"], placement["out_of_order"], placement["digest_ok"]) == (
        0,
        0,
        0,
        True,
    )
    return dict(placement)


def test_options_for_kills_drains_and_joins_are_read_as_deeds() -> None:
    crash, again = Deed(40.0, "h3", "crash"), Deed(90.0, "h3", "restart")
    assert deeds_of([("kill", "h3@40")], HOSTS, 10.0) == [crash, again], "5 s of the wall clock later"
    assert deeds_of([("kill", "h3@40s:restart=5")], HOSTS, 10.0) == [crash, again]
    assert deeds_of([("kill", "h3@40:restart=never")], HOSTS, 10.0, [Deed(1.0, "h1", "drain")])[1:] == [crash]
    assert deeds_of([("drain", "h3@40"), ("join", "h1@50")], HOSTS, 10.0) == [
        Deed(40.0, "h3", "drain"),
        Deed(50.0, "h1", "join"),
    ]
    assert deeds_of([("drain", "h3@40:restart=5")], HOSTS, 10.0) == [Deed(40.0, "h3", "drain"), again]
    assert read_stand_ins(["h1=h2,h3"], HOSTS) == {"h1": ("h2", "h3")}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kill": ("h3",)}, "--kill 'h3' is not HOST@SECONDS"),
        ({"kill": ("h3@40:never",)}, "is not HOST@SECONDS"),
        ({"kill": ("h9@40",)}, "there is no server 'h9'"),
        ({"kill": ("client@40",)}, "there is no server 'client'"),
        ({"kill": ("h3@soon",)}, "--kill h3@soon: "),
        ({"drain": ("h3",)}, "--drain 'h3' is not HOST@SECONDS"),
        ({"drain": ("h9@40",)}, "--drain h9@40: there is no server 'h9'"),
        ({"join": ("h3@40:restart=5",)}, "--join 'h3@40:restart=5' is not HOST@SECONDS, as h3@40"),
        ({"stand_in": ("h3=h9",)}, "there is no server 'h9'"),
        ({"stand_in": ("h3=h3",)}, "does not stand in for itself"),
        ({"spares": -1}, "--spares is -1"),
        ({"checkpoint": 0}, "--checkpoint is 0"),
    ],
)
def test_invalid_options_of_process_events_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError) as caught:
        RunConfig(testbed="loopback", servers=3, **options).check()
    assert why in str(caught.value)


def test_process_events_of_a_scenario_file_are_read_as_deeds(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SCENARIO)
    timeline = compile_timeline(read_scenario(tmp_path / "s.toml"))
    assert not timeline.changes, "links stay as they are"
    deeds = [(deed.at_s, deed.host, deed.kind) for deed in timeline.deeds]
    assert deeds == [(10, "h2", "crash"), (40, "h2", "restart"), (50, "h1", "drain"), (60, "h3", "join")]


def test_hosts_are_killed_and_come_back_in_virtual_time(tmp_path: Path) -> None:
    kills = ("--kill", "h2@10:restart=0.5", "--kill", "h4@50:restart=never", "--kill", "h3@55:restart=never")
    options = ("--testbed", "sim", "--bytes", "--servers", "3", "--spares", "1", "--stand-in", "h3=h1", *kills)
    options += ("--images", "60", "--image-bytes", "20000", "--time-scale", "60", "--link-mean", "0.2mbit")
    options += ("--operator", "running", "--placement", "one-shot", "--checkpoint", "4")
    placement = run(*options, out=tmp_path / "a")
    first, *rest = placement["recoveries"]
    assert (first["host"], first["at_s"], list(first["phases_s"])) == (
        *("h2", 10.0),
        ["detected", "decided", "restored", "first_output"],
    )
    assert 30.0 <= first["phases_s"]["first_output"] <= first["stood_still_s"] < 100.0
    assert [recovery["host"] for recovery in rest] in (["h4", "h3"], ["h3"]), "h4 may have had nothing"
    assert rest[-1]["moved"]["source@h3"] == "h1"
    again = run(*options, out=tmp_path / "b")
    assert again["recoveries"] == placement["recoveries"], "simulations are the same every time"
    course = read_courses(tmp_path / "a", load_run(tmp_path / "a"))["one-shot"]
    assert next((befell.host, befell.at_s) for befell in course.befell) == ("h2", 10.0)


def test_a_simulated_run_recovers_from_a_crash_in_a_scenario_file(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(SCENARIO.partition('[[event]]\nat = "50s"')[0].replace("10s", "1s"))
    placement = run(
        *("--testbed", "sim", "--bytes", "--scenario", str(tmp_path / "s.toml"), "--images", "30", "--image-bytes"),
        *("20000", "--operator", "running", "--placement", "one-shot"),
        out=tmp_path / "a",
    )
    assert [recovery["host"] for recovery in placement["recoveries"]] == ["h2"]


def befallen(folder: Path) -> list[tuple[str, str | None]]:
    return [(row.host, row.detail.outcome) for row in read_log(folder, "befallen")]


SLOW = ("--bytes", "--link-mean", "0.2mbit")


@pytest.mark.parametrize("testbed", [("sim", *SLOW), ("loopback",)], ids=["sim", "loopback"])
def test_hosts_are_drained_and_join_while_a_run_goes_on(tmp_path: Path, testbed: tuple[str, ...]) -> None:
    """The run waits for the source of the joining host. The source of the drained host goes to its stand-in."""
    placement = run(
        *("--testbed", *testbed, "--servers", "3", "--images", "70", "--image-bytes", "20000", "--time-scale", "40"),
        *("--join", "h2@10", "--drain", "h1@30", "--stand-in", "h1=h3", "--operator", "running"),
        *("--placement", "one-shot"),
        out=tmp_path,
    )
    assert befallen(tmp_path) == [("h2", "join"), ("h1", "drain")]
    assert placement["first_image_s"] >= 10.0, "not before it had joined"
    last = placement["recoveries"][-1]
    assert (last["host"], last["how"], last["moved"]["source@h1"]) == ("h1", "was drained", "h3")


LESS = (
    "--servers",
    "3",
    "--image-bytes",
    "20000",
    "--operator",
    "running",
    "--placement",
    "one-shot",
    "--checkpoint",
    "4",
)
LESS += ("--missing", "nothing")


@pytest.mark.long
def test_a_simulated_run_goes_on_without_a_source_until_the_source_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THALWEG_TRACES", raising=False)  # with the generated ones
    kills = ("--kill", "h2@20:restart=5", "--kill", "h3@320:restart=never")
    options = ("--testbed", "sim", *SLOW, "--images", "200", "--time-scale", "60", *kills)
    placement = run(*options, *LESS, out=tmp_path)
    assert sorted(placement["missing"]) == ["source@h2", "source@h3"]
    ((first, until),), ((second, never),) = placement["missing"]["source@h2"], placement["missing"]["source@h3"]
    assert 0 <= first < until <= second < 200
    assert never is None
    info = load_run(tmp_path)
    assert placement["digest"] == placement["reference_digest"] != info.reference_digest, "of the graph that there was"
    assert any(note.startswith("one-shot went on without source@h2 (partitions ") for note in info.notes)


def test_a_virtual_run_waits_for_a_killed_host_as_long_as_a_testbed_does(tmp_path: Path) -> None:
    """The wait is 30 s of a wall clock, half an hour at this time scale, for any limit of silence."""
    options = ("--testbed", "sim", *SLOW, "--images", "60", "--time-scale", "60", "--limit", "liveness_s=4")
    placement = run(*options, "--kill", "h2@20:restart=15", *LESS[:-2], out=tmp_path)
    assert (placement["delivered"], placement["digest"]) == (60, load_run(tmp_path).reference_digest)


@pytest.mark.long
@pytest.mark.parametrize("testbed", ["loopback", pytest.param("netns", marks=[pytest.mark.netns, pytest.mark.long])])
def test_a_run_of_processes_goes_on_without_a_source(tmp_path: Path, testbed: str) -> None:
    options = ("--testbed", testbed, *(("--link-mean", "0.2mbit", "--no-prove") if testbed == "netns" else ()))
    options += ("--images", "400", "--time-scale", "120", "--kill", "h2@40:restart=never")
    placement = run(*options, *LESS, out=tmp_path)
    ((name, gaps),) = placement["missing"].items()
    assert (name, gaps[-1][1]) == ("source@h2", None)
    assert placement["digest"] == placement["reference_digest"] != load_run(tmp_path).reference_digest


@pytest.mark.long
def test_a_scenario_file_lets_operators_go_on_without_a_source(tmp_path: Path) -> None:
    lost = SCENARIO.partition('[[event]]\nat = "50s"')[0].replace("30s", "1d")
    (tmp_path / "s.toml").write_text(f'missing = "nothing"{lost}')
    options = ("--testbed", "sim", "--bytes", "--scenario", str(tmp_path / "s.toml"), "--images", "30")
    placement = run(
        *options, "--image-bytes", "200000", "--operator", "running", "--placement", "one-shot", out=tmp_path / "a"
    )
    assert [*placement["missing"]] == ["source@h2"]
    (tmp_path / "s.toml").write_text('missing = "fill"' + SCENARIO)
    with pytest.raises(UsageError, match=r"s\.toml, line 1: missing: there is no 'fill'; known are nothing, wait"):
        read_scenario(tmp_path / "s.toml")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--operator", "mixed"), "operator 'op1' (thalweg.operators.array_join:ArrayJoin) does not say that it can"),
        (("--placement", "random-reshapes"), "random-reshapes changes them"),
        (("--placement", "thalweg", "--stripes", "2"), "--missing nothing goes with one tree, and --stripes asks"),
    ],
)
def test_operators_and_placements_that_need_every_source_are_refused(
    tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    options = ("run", "--testbed", "sim", "--missing", "nothing", *options, "--out", str(tmp_path))
    done = CliRunner().invoke(app, options)
    assert isinstance(done.exception, UsageError)
    assert why in str(done.exception)


@pytest.mark.long
@pytest.mark.netns
def test_events_of_a_scenario_file_happen_to_processes_on_namespaces(tmp_path: Path) -> None:
    scenario = SCENARIO.replace('"60s"', '"5s"').replace('"50s"', '"60s"').replace("hosts", "time_scale = 20\nhosts")
    (tmp_path / "s.toml").write_text(scenario)
    placement = run(
        *("--testbed", "netns", "--scenario", str(tmp_path / "s.toml"), "--images", "120", "--image-bytes", "20000"),
        *("--stand-in", "h1=h3", "--operator", "running", "--placement", "one-shot", "--no-prove"),
        out=tmp_path / "a",
    )
    happened = [("h3", "join"), ("h2", "crash"), ("h2", "restart"), ("h1", "drain")]
    assert befallen(tmp_path / "a") == happened
    assert {recovery["host"] for recovery in placement["recoveries"]} == {"h1", "h2", "h3"}
    assert placement["recoveries"][-1]["moved"]["source@h1"] == "h3"


@pytest.mark.long
def test_hosts_are_killed_and_come_back_as_processes(tmp_path: Path) -> None:
    placement = run(
        *("--testbed", "loopback", "--servers", "2", "--images", "150", "--image-bytes", "20000", "--time-scale", "20"),
        *("--kill", "h2@2:restart=0.1", "--operator", "running", "--placement", "one-shot"),
        out=tmp_path,
    )
    assert [recovery["host"] for recovery in placement["recoveries"]] == ["h2"]
    assert placement["recoveries"][0]["phases_s"]["detected"] < 40, (
        "at once, though hosts may be silent for much longer"
    )


@pytest.mark.netns
def test_images_arrive_once_on_namespaces_while_hosts_are_killed(tmp_path: Path) -> None:
    """Kill ``THALWEG_KILLS`` hosts, at most 20 in a run, while operators move at random."""
    left, number, still_s = KILLS, 0, list[float]()
    while left > 0:
        dice, count = Random(number), min(left, 20)
        at_s = [SCALE * (place + dice.uniform(0.2, 1.0)) for place in range(count)]  # a wall second apart
        kills = [f"--kill=h{dice.randrange(1, 4)}@{when:.1f}:restart=0.1" for when in at_s]
        options = ("--testbed", "netns", "--servers", "3", "--images", str(40 + 50 * count), "--image-bytes", "20000")
        options += ("--time-scale", f"{SCALE}", "--link-mean", "0.2mbit", "--operator", "running", "--no-prove")
        placement = run(
            *options, *kills, "--placement", "random-moves", "--moves", "100000", out=tmp_path / str(number)
        )
        killed = [row for row in read_log(tmp_path / str(number), "befallen") if row.detail.outcome == "crash"]
        assert killed, "the run was over before"
        assert placement["recoveries"], "hosts were lost that held something"
        still_s += [recovery["stood_still_s"] / SCALE for recovery in placement["recoveries"]]
        left, number = left - len(killed), number + 1
    median, p99 = np.quantile(still_s, [0.5, 0.99])
    print(f"{KILLS} kills, {len(still_s)} recoveries: it stood still for {median:.2f} s (median), {p99:.2f} s (p99)")


def test_recoveries_before_the_first_output_report_every_host_once() -> None:
    def row(kind: str, host: str, at_s: float, **detail: Any) -> Row:
        return Row("p", host, at_s, at_s, kind, None, None, None, None, None, None, msgspec.convert(detail, Detail))

    first = {"hosts": {"h1": "went"}, "generation": 1, "again": {"s": 3}, "ago": {"detected": 5.0, "decided": 4.0}}
    second = {
        "hosts": {"h1": "was restarted", "h2": "went"},
        "generation": 2,
        "again": {"s": 2, "o": 0},
        "ago": {"detected": 8.0, "decided": 7.0, "ready": 2.0, "first": 0.0},
    }
    rows = [row("recovered", "client", 15.0, **first), row("recovered", "client", 28.0, **second)]
    killed = [row("befallen", "h1", 9.0, outcome="crash"), row("befallen", "h1", 12.0, outcome="restart")]
    came = [row("delivered", "client", at_s) for at_s in (8.0, 28.0, 29.0)]
    earlier, later = recoveries_of(rows, killed, came)
    assert (earlier.host, earlier.at_s, earlier.how, earlier.generation) == ("h1", 9.0, "went", 2)
    assert earlier.phases_s == {"detected": 1.0, "decided": 2.0, "restored": 17.0, "first_output": 19.0}
    assert (later.host, later.at_s, later.phases_s["first_output"]) == ("h2", 20.0, 8.0)
    assert (earlier.stood_still_s, earlier.made_again, earlier.again) == (20.0, 2, {"s": 2})


def test_a_run_without_a_lost_host_has_no_recoveries(tmp_path: Path) -> None:
    run("--testbed", "sim", "--bytes", "--servers", "2", "--images", "3", "--placement", "one-shot", out=tmp_path)
    (placement,) = summarize_run(tmp_path).placements.values()
    assert placement.recoveries == []
