"""Plan files: nodes and hosts, runs on testbeds, and errors of wrong plans."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from thalweg.experiments.cli.main import invoke
from thalweg.experiments.run_config import RunConfig
from thalweg.experiments.runs.plan_file import GivenPlan, given_plan
from thalweg.experiments.runs.workload import reference_of, workload_of
from thalweg.middleware.errors import UsageError
from thalweg.operators.busy import Busy, Filled

SCENARIO = """
hosts = ["client", "s1", {name = "m1", cpus = 0.2, speed = 0.2}, {name = "m2", cpus = 0.2, speed = 0.2}]
interface_rate = "30mbit"
[links]
rate = "100mbit"
"""
NODES = """
scenario = "scenario.toml"
nodes = [
  {name = "x@s1", object = "x", host = "s1", bytes = 100_000, rate = 2},
  {name = "y@s1", object = "y", host = "s1", bytes = 50_000, rate = 2},
  {name = "n1", host = "m1", inputs = ["x@s1", "y@s1"], bytes = 20_000, compute_s = 0.05},
  {name = "n2", host = "m2", inputs = ["n1", "x@s1"], bytes = 1000, compute_s = 0.04},
]
"""


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    (tmp_path / "plan.toml").write_text(NODES)
    return tmp_path / "plan.toml"


def run(plan: Path, *options: str) -> int:
    return invoke(["run", "--plan", str(plan), "--images", "20", "--out", str(plan.parent / "out"), "--json", *options])


def ran(plan: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert run(plan, *options) == 0
    (placement,) = json.loads(capsys.readouterr().out.splitlines()[-1])["placements"].items()
    assert placement[0] == "fixed"
    answer: dict[str, Any] = placement[1]
    return answer


def test_a_virtual_run_of_a_plan_is_as_fast_as_the_objects_are_served(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(plan, capsys, "--testbed", "sim")["mean_interarrival_s"] == pytest.approx(0.5, rel=0.01)


def test_a_slow_machine_or_a_small_card_sets_the_pace(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (plan.parent / "scenario.toml").write_text(SCENARIO.replace("speed = 0.2", "speed = 0.05"))
    assert ran(plan, capsys, "--testbed", "sim")["mean_interarrival_s"] == pytest.approx(1.05, rel=0.02)
    # in turn 150 kB on a card of 170 kB a second, a quarter of a second, 20 kB; with headers
    slow = SCENARIO.replace('"m1", ', '"m1", interface_rate = "1.36mbit", ')
    (plan.parent / "scenario.toml").write_text(slow)
    for path in (plan.parent / "out").iterdir():
        path.unlink()
    assert ran(plan, capsys, "--testbed", "sim")["mean_interarrival_s"] == pytest.approx(1.28, rel=0.02)


@pytest.mark.long
def test_the_composition_workload_runs_with_the_placement_of_a_plan(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THALWEG_TRACES", raising=False)
    plan.write_text('placement = {op0 = "h2", op1 = "h1", op2 = "h2"}')
    assert run(plan, "--testbed", "loopback", "--servers", "4", "--image-bytes", "4kb", "--no-json") == 2
    assert ran(plan, capsys, "--testbed", "loopback", "--servers", "4", "--image-bytes", "4kb")["digest_ok"] is True
    assert GivenPlan(plan).placement == {"op0": "h2", "op1": "h1", "op2": "h2"}
    rows = pq.read_table(plan.parent / "out" / "events.parquet").to_pylist()
    assert {(row["node"], row["host"], row["peer"]) for row in rows if row["kind"] == "transfer"} == {
        ("source@h1", "h1", "h2"),  # op0
        ("source@h3", "h3", "h1"),  # op1
        ("source@h4", "h4", "h1"),
        ("op1", "h1", "h2"),  # op2
        ("op2", "h2", "client"),
    }


def test_generated_outputs_depend_on_names_and_inputs_and_take_the_requested_time() -> None:
    source = Filled("x", 10_000, 2)
    assert [len(source.produce(index) or b"") for index in range(3)] == [10_000, 10_000, 0]
    assert source.produce(0) == Filled("x", 10_000).produce(0) != source.produce(1)
    inputs = [b"a", b"b"]
    begun_s = time.thread_time()
    output = Busy("n", 5000, 0.02).combine(inputs, 7)
    assert 0.02 <= time.thread_time() - begun_s < 0.05
    assert output == Busy("n", 5000).combine(inputs, 7) and len(output) == 5000
    assert output not in (Busy("n", 5000).combine(inputs[::-1], 7), Busy("m", 5000).combine(inputs, 7))


def test_a_single_machine_calculates_the_reference_without_the_work(plan: Path) -> None:
    config = RunConfig(workload="planned", placements=("fixed",), plan=str(plan), images=3, servers=3)
    assert given_plan(config).placement == {"n1": "h2", "n2": "h3"}
    begun_s = time.thread_time()
    (digest,) = reference_of(workload_of(config).reference(), config, lambda *_: None).values()
    assert digest.startswith("sha256:") and time.thread_time() - begun_s < 0.09  # the work takes 0.27 s


@pytest.mark.parametrize(
    ("edit", "options", "said"),
    [
        (("bytes = 1000", "byte = 1000"), (), "did you mean 'bytes'?"),
        (('host = "m2"', 'host = "m9"'), (), "names host 'm9', which"),
        (('["n1", "x@s1"]', '["x@s1"]'), (), "the client takes the only node that feeds no other node"),
        (('["n1", "x@s1"]', '["n1", "z"]'), (), "takes its input from unknown node 'z'"),
        (("", ""), ("--workload", "plates"), "has nodes of its own; leave --workload out"),
        (("", ""), ("--testbed", "netns"), "computes 50% of the time, and netns keeps no host to its processors"),
        (("", ""), ("--testbed", "loopback"), "computes 50% of the time, and loopback keeps no host to its processors"),
        (("0.05}", "0.05}, {bytes=1,name='a',host='m1',inputs=['n1']}"), (), "the only node that feeds no other node"),
        (("nodes = [", "nodes = []\n#"), (), "plan.toml: "),
        (("20_000", "-1"), (), "Expected `int` >= 0 - at `$.nodes[2].bytes`"),
        (("0.04", "inf"), (), "Expected `float` <"),
        ((NODES[NODES.index('  {name = "y@s1"') :], "]"), ("--testbed", "netns"), "has no operator"),
        (("20_000", "900_000_000"), ("--testbed", "docker"), "and this machine carries about"),
        (("scenario.toml", "nowhere.toml"), (), "nowhere.toml"),
    ],
)
def test_an_invalid_plan_is_refused_in_a_single_line(
    plan: Path, edit: tuple[str, str], options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan.write_text(NODES.replace(*edit) if edit[0] else NODES)
    assert run(plan, *(options or ("--testbed", "sim"))) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line and "plan.toml" in line


def test_too_many_processors_and_a_missing_plan_are_refused(plan: Path) -> None:
    (plan.parent / "scenario.toml").write_text(SCENARIO.replace("cpus = 0.2", "cpus = 600"))
    with pytest.raises(UsageError, match="have 1200 processors together, and this machine"):
        GivenPlan(plan).check("docker")
    for options in ({"workload": "planned"}, {"placements": ("fixed",)}):
        with pytest.raises(UsageError, match="add --plan FILE"):
            RunConfig(**options).check()
    with pytest.raises(UsageError, match="--plan sets the hosts of operators under --placement fixed; add --placement"):
        RunConfig(plan="a.toml").check()
