from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from thalweg.emulation.traces.files import HEADER, load_pool, read_csv
from thalweg.emulation.traces.generator import TraceModel, generate_pool
from thalweg.experiments.cli.traces import app
from thalweg.middleware.errors import TraceError, UsageError


@pytest.fixture(autouse=True)
def _no_traces_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THALWEG_TRACES", raising=False)


def run(*arguments: str | Path, env: dict[str, str] | None = None) -> str:
    """Return the standard output of ``thalweg traces ARGUMENTS``. Exceptions pass through."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=env, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def run_json(*arguments: str | Path, env: dict[str, str] | None = None) -> dict[str, Any]:
    content = json.loads(run(*arguments, "--json", env=env).splitlines()[-1])
    assert isinstance(content, dict)
    return content


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, rows in {"x/one": "0,1000000\n10,2000000\n", "x/two": "0,4000000\n10,0\n", "y/three": "0,5\n"}.items():
        path = tmp_path / "traces" / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{HEADER}\n{rows}")
    return tmp_path / "traces"


def test_grids_between_sites_are_listed_and_described(folder: Path) -> None:
    (folder / "latency").mkdir()
    (folder / "bandwidth").mkdir()
    (folder / "x").rename(folder / "bandwidth" / "x")
    (folder / "latency" / "rtt.csv").write_text("src,dst,rtt_ms\naws:x,aws:y,100\naws:y,aws:x,300\n")
    (grid,) = run_json("list", folder)["grids"]
    assert (grid["name"], grid["kind"], grid["sites"], grid["pairs"]) == ("rtt", "latency", 2, 2)
    assert grid["median"] == pytest.approx(0.2)
    assert "200 ms" in run("list", folder)
    assert run_json("describe", folder / "latency" / "rtt.csv")["sites"] == ["aws:x", "aws:y"]
    assert "aws:x, aws:y" in run("describe", folder / "latency" / "rtt.csv")


def test_list_names_data_sets_or_traces(folder: Path) -> None:
    content = run_json("list", folder)
    assert [(item["name"], item["traces"]) for item in content["sets"]] == [("x", 2), ("y", 1)]
    assert [item["name"] for item in content["traces"]] == ["x/one", "x/two", "y/three"]
    assert "x/one" not in run("list", folder)
    assert run_json("list", env={"THALWEG_TRACES": str(folder)}) == content
    table = run("list", folder / "x")
    assert "one" in table
    assert "1.5" in table


def test_describe_prints_every_trace_and_the_whole_pool(folder: Path) -> None:
    content = run_json("describe", folder / "x")
    assert content["pool"] == {
        "traces": 2,
        "median_duration_s": 20.0,
        "mean_bps": 1.75e6,
        "changes": 2,
        "mean_change_s": 10.0,
        "zero_share": 0.25,
        "median_bps": 1.5e6,
        "p5_bps": pytest.approx(0.15e6),
        "p95_bps": pytest.approx(3.7e6),
        "median_change_s": 10.0,
    }
    assert [trace["zero_share"] for trace in content["traces"]] == [0.0, 0.5]
    assert "1.75 Mbit/s" in run("describe", folder / "x")
    assert "time at rate 0" in run("describe", folder / "x" / "two.csv")


def test_the_error_for_a_missing_folder_names_the_variable_to_set() -> None:
    with pytest.raises(UsageError, match="set THALWEG_TRACES"):
        run("list")


def test_generate_writes_the_traces_of_the_generator(tmp_path: Path) -> None:
    out = tmp_path / "new" / "pool"
    content = run_json("generate", "--count", "5", "--duration", "600", "--seed", "7", "--out", out)
    assert content["files"] == [f"{trace.name}.csv" for trace in load_pool(out)]
    assert content["model"]["big_hold_s"] == 600.0
    assert load_pool(out) == generate_pool(TraceModel(), 5, 7, 600.0)
    with pytest.raises(UsageError, match=r"0000_us.csv' and 4 more exists already; .* --force"):
        run("generate", "--count", "5", "--duration", "300", "--out", out)
    assert load_pool(out)[0].duration_s == 600.0
    run("generate", "--count", "5", "--duration", "300", "--out", out, "--force")
    assert load_pool(out)[0].duration_s == 300.0


def test_generate_accepts_every_parameter(tmp_path: Path) -> None:
    classes = ["--link-class", "lan:1gbit:1gbit:1", "--link-class", "wan:125kbps:1mbit:3"]
    still = ["--big-sigma", "0", "--small-sigma", "0", "--jitter", "0", "--stretch", "1", "--mean-s-per-kb", "0"]
    grid = ["--step", "5", "--big-hold", "60", "--small-hold", "30", "--pivot", "1mbit"]
    run("generate", "--count", "4", "--duration", "20", "--out", tmp_path, *classes, *still, *grid)
    pool = load_pool(tmp_path)
    assert sorted(trace.rate_at(0.0) for trace in pool) == [1e6, 1e6, 1e6, 1e9]
    assert [trace.times_s.tolist() for trace in pool] == [[0, 5, 10, 15]] * 4
    for bad in ("us", "us:1:2", "us:1:2:x", "us:fast:2:1"):
        with pytest.raises(UsageError, match=r"--link-class|not a rate"):
            run("generate", "--out", tmp_path / "no", "--link-class", bad)
    assert not (tmp_path / "no").exists()


def test_import_checks_converts_and_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "lte.up").write_text("500\n1000\n1500\n2400\n")
    (tmp_path / "unix.csv").write_text(f"{HEADER}\n1700000000,5\n1700000010,6\n")
    out = tmp_path / "out"
    content = run_json("import", tmp_path / "lte.up", tmp_path / "unix.csv", "--out", out)
    assert content["files"] == ["lte.up.csv", "unix.csv"]
    assert read_csv(out / "unix.csv").times_s.tolist() == [0.0, 10.0]
    lte = read_csv(out / "lte.up.csv")
    assert lte.duration_s == pytest.approx(2.4)
    assert lte.mean_bps == pytest.approx(4 * 12_000 / 2.4)
    with pytest.raises(UsageError, match="exists already"):
        run("import", tmp_path / "lte.up", "--out", out)
    with pytest.raises(UsageError, match="written twice"):
        run("import", tmp_path / "lte.up", tmp_path / "lte.up", "--out", tmp_path / "no")
    (tmp_path / "bad.mahi").write_text("1\n2\nthree\n")
    with pytest.raises(TraceError, match=r"bad\.mahi:3: 'three'"):
        run("import", tmp_path / "lte.up", tmp_path / "bad.mahi", "--out", tmp_path / "no")
    with pytest.raises(TraceError, match=r"lte\.up:1: the header"):
        run("import", tmp_path / "lte.up", "--format", "csv", "--out", tmp_path / "no")
    with pytest.raises(UsageError, match="is a file"):
        run("import", tmp_path / "lte.up", "--out", tmp_path / "unix.csv")
    assert not (tmp_path / "no").exists()


DRIVE = 'at,"where, roughly",mbps,rtt_ms,lost (%)\n1700000000,"a, b",8,40,0\n1700000002,c,2.5e0,"80",100\n'


@pytest.mark.parametrize(
    ("content", "asked", "written", "told"),
    [
        (DRIVE, "--time at --rate mbps --rtt rtt_ms --loss", "0,8000000,0.02,0\n2,2500000,0.04,1\n",
         ["'at' is read in s, as 1700000000 is then 2023-11-14 22:13:20; else write --time at:UNIT",
          "read in mbit; for bytes write --rate mbps:mbps", "'rtt_ms' is read in ms", "'lost (%)' is read in %"]),
        (DRIVE, "--time at:ms --delay rtt_ms:us --rate mbps:kbps", "0,64000,4e-05\n0.002,20000,8e-05\n",
         ["mbps:kbps counts bytes, as tc has it; for bits write --rate mbps:kbit"]),
        ("5,8\n6.5,9\n", "--time 1 --rate 2:kbit", "0,8000\n1.5,9000\n",
         ["column '1' is read in s; else write --time 1:UNIT"]),
        ("time_s,loss\n0,0.5\n1,0\n", "", "0,0.5\n1,0\n", []),
    ],
)  # fmt: skip
def test_columns_and_units_follow_the_options_and_guesses_are_noted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], content: str, asked: str, written: str, told: list[str]
) -> None:
    (tmp_path / "drive.csv").write_text(content)
    words = [*asked.split(), *(["lost (%)"] if asked.endswith("--loss") else [])]
    result = CliRunner().invoke(app, ["import", str(tmp_path / "drive.csv"), *words, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "drive.csv").read_text().partition("\n")[2] == written
    assert [line for line in result.stderr.splitlines() for note in told if note in line] == result.stderr.splitlines()
    assert len(result.stderr.splitlines()) == len(told)
    figures = run_json("describe", tmp_path / "out" / "drive.csv")
    assert ("delay_s" in figures) == ("rtt" in asked)


@pytest.mark.parametrize(
    ("content", "asked", "says"),
    [
        (DRIVE, "--time when --rate mbps", r"drive.csv:1: there is no one column 'when' for --time; .*at"),
        (DRIVE, "--rate mbps", r"drive.csv:1: there is no one column 'time_s' for --time"),
        (DRIVE, "--time at", "name further columns with --rate, --bytes, --delay, --rtt or --loss"),
        (DRIVE, "--time at --rtt rtt_ms --delay rtt_ms", "--delay and --rtt both name the column of delays"),
        (DRIVE, "--time at --rate mbps:furlong", "'furlong' is no unit of a rate; there are bit, bps, kbit"),
        (DRIVE, "--time at --rate mbps --format mahimahi", "a Mahimahi file has no columns"),
        (DRIVE, "--time at --loss mbps", r"drive.csv:2: mbps is 8, more than 1; is its unit right\?"),
        (DRIVE, "--time at --delay rtt_ms:s", r"drive.csv:3: rtt_ms is 80, more than 60 s; is its unit right\?"),
        ("t,r\n0,1\n1,-1\n", "--time t --rate r", "drive.csv:3: r is -1, below 0"),
        ("t,r\n0,1\n1,nan\n", "--time t --delay r", "drive.csv:3: r is 'nan', not a number; where values are missing"),
        ("t,r\n0,1\n1,\n", "--time t --delay r", "drive.csv:3: r is '', not a number"),
        ("t,r\n0,1\n2,1\n1,1\n", "--time t --delay r", "drive.csv:4: t 1 is earlier than the row before's"),
        ("t,r,r\n0,1,1\n", "--time t --delay r", "drive.csv:1: there is no one column 'r' .* stands there 2 times"),
        ('t,r\n0,"1\n', "--time t --delay r", "drive.csv:2: .* is not a line of a CSV file"),
        ("t,r,x\n0,1,a\n1,1\n2,1,a\n", "--time t --rate r", r"drive.csv:3: '1,1' has 2 column\(s\), not the 3"),
        ("t,r\n0,1e300\n", "--time t --rate r:tbit", "drive.csv:2: r is 1e300, too large to be counted"),
    ],
)
def test_wrong_columns_are_refused_in_a_single_line(tmp_path: Path, content: str, asked: str, says: str) -> None:
    (tmp_path / "drive.csv").write_text(content)
    with pytest.raises((TraceError, UsageError), match=says) as caught:
        run("import", tmp_path / "drive.csv", *asked.split(), "--out", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_an_unknown_option_is_a_usage_error() -> None:
    assert CliRunner().invoke(app, ["generate", "--cuont", "3"]).exit_code == 2
