"""``thalweg testbed plan``: printed facts of a scenario file, and the picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from thalweg.emulation.scenarios.file import read_scenario
from thalweg.experiments.cli.testbed.app import app
from thalweg.experiments.networks.plan import make_plan, matrix, sampled_rates
from thalweg.middleware.errors import UsageError

TEXT = """
hosts = ["client", "h1@aws:x", "h2"]
time_scale = 10
duration = "10min"
[links]
rate = "1mbit"
[[link]]
from = "h1"
to = "h2"
rate = "4mbit"
delay = "20ms"
[[event]]
kind = "change"
at = "1min"
for = "1min"
host = "h2"
factor = 0.0001
[[event]]
kind = "churn"
at = "2min"
mean_up = "1min"
mean_down = "20s"
[[event]]
kind = "outage"
at = 30
for = 30
from = "h1"
to = "h2"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "wan.toml").write_text(TEXT)
    return tmp_path / "wan.toml"


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def test_a_plan_prints_hosts_links_events_and_requirements(file: Path) -> None:
    shown = call(str(file))
    for words in (
        "wan: 3 hosts, 6 links, seed 1; rates count IP packets",
        "aws:x",
        "4.00 Mbit/s  20 ms",
        "all links of h2  rate × 0.0001",
        "leave and return: up 60 s, away 20 s on average",
        "10 min (duration)",
        "all links full at once: 90.0 Mbit/s of real traffic",
        "4 links fall to 1.00 kbit/s on the wall, and get 8.00 kbit/s",
        "needs netem",
    ):
        assert words in shown, words
    assert "interface" not in shown  # a column of which nobody has anything
    assert max(map(len, shown.splitlines())) <= 200


def test_cells_are_printed_in_full_if_columns_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "path.toml"
    path.write_text('hosts = [{ name = "a", preset = "adsl" }, "b"]\n[links]\npreset = "transatlantic"\nloss = "1%"\n')
    shown = [" ".join(line.split()) for line in call(str(path)).splitlines()]
    assert "a adsl 460 kbit/s 5.60 Mbit/s" in shown
    path.write_text('hosts = ["a", "b"]\n[links]\npreset = "transatlantic"\nloss = "1%"\n')
    shown = [" ".join(line.split()) for line in call(str(path)).splitlines()]
    assert "a b 287 Mbit/s 39.4 ms 1 % queue 100 ms" in shown


def test_json_output_has_the_hosts_links_and_events_of_the_plan(file: Path) -> None:
    output: dict[str, Any] = json.loads(
        call(str(file), "--json", "--until", "5min", "--time-scale", "1").splitlines()[-1]
    )
    assert (output["scenario"], output["time_scale"], output["until_s"], output["needs_netem"]) == (
        "wan",
        1.0,
        300.0,
        True,
    )
    assert [host["name"] for host in output["hosts"]] == ["client", "h1", "h2"]
    (link,) = [entry for entry in output["links"] if entry["delay_s"]]
    assert (link["src"], link["dst"], link["mean_bps"], link["follows"]) == ("h1", "h2", 4e6, None)
    change, churn, outage = output["events"]
    assert change["spans"] == {"all links of h2": [[60.0, 120.0]]}
    assert outage["spans"] == {"h1 → h2": [[30.0, 60.0]]}
    assert set(churn["spans"]) == {"h1", "h2"}
    assert all(120 < start < stop <= 300 for spans in churn["spans"].values() for start, stop in spans)
    assert output["wall"]["full_bps"] == 9e6
    assert output["out"] is None


def test_rates_over_time_are_the_means_of_equal_spans(file: Path) -> None:
    plan = make_plan(read_scenario(file), 120.0)
    with_events, without = sampled_rates(plan, 8)
    links = list(plan.scenario.links)
    assert with_events.shape == without.shape == (6, 8)
    np.testing.assert_allclose(without[links.index(("h1", "h2"))], 4e6)
    expected = [4e6, 4e6, 0, 0, 800, 800, 800, 800]  # the floor of 8 kbit/s on the wall
    np.testing.assert_allclose(with_events[links.index(("h1", "h2"))], expected)
    shown = matrix(plan, {link: float(i) for i, link in enumerate(links)})
    assert np.isnan(np.diag(shown)).all()
    assert shown[1, 2] == links.index(("h1", "h2"))


def test_only_a_plan_with_events_is_drawn_with_a_time_line(file: Path, tmp_path: Path) -> None:
    assert "drawn" in call(str(file), "--out", str(tmp_path / "plan.png"))
    with Image.open(tmp_path / "plan.png") as picture:
        width, height = picture.size
        assert len(set(picture.convert("L").resize((200, 200)).tobytes())) > 20
    still = tmp_path / "still.toml"
    still.write_text('hosts = 40\n[links]\nrate = "1mbit"\n')
    call(str(still), "--out", str(tmp_path / "still.png"))
    with Image.open(tmp_path / "still.png") as picture:
        assert picture.size[0] == width
        assert picture.size[1] < height  # no time line
    with pytest.raises(UsageError, match=r"cannot write .*; choose another --out"):
        call(str(still), "--out", str(tmp_path / "still.nonsense"))


def test_errors_are_reported_before_a_picture_is_drawn(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--until is 0 s; the time line must be longer"):
        call(str(file), "--until", "0")
    file.write_text(TEXT.replace("factor", "facktor"))
    with pytest.raises(UsageError, match=r"wan.toml, line 17: .*did you mean 'factor'"):
        call(str(file), "--out", str(tmp_path / "plan.png"))
    assert not (tmp_path / "plan.png").exists()


def test_the_list_of_events_is_capped_without_the_all_option(tmp_path: Path) -> None:
    event = '[[event]]\nkind = "outage"\nhost = "h2"\nat = "{0}s"\nuntil = "{0}.5s"\n'
    text = 'hosts = 3\n[links]\nrate = "1mbit"\n' + "".join(map(event.format, range(100)))
    (tmp_path / "wan.toml").write_text(text)
    shown = call(str(tmp_path / "wan.toml"))
    assert shown.count(" outage ") == 40
    assert "and 60 events more; --all lists them" in shown
    assert call(str(tmp_path / "wan.toml"), "--all").count(" outage ") == 100


def test_many_links_are_summarized_by_host(tmp_path: Path) -> None:
    (tmp_path / "wan.toml").write_text('hosts = 12\n[links]\nrate = "1mbit"\nloss = "1%"\n')
    shown = call(str(tmp_path / "wan.toml"))
    assert "11 hosts" in shown
    assert len(shown.splitlines()) < 50
    assert len(call(str(tmp_path / "wan.toml"), "--links").splitlines()) > 132
