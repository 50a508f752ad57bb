from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from fake_apt import write_program
from hidden import EXTRAS_MODULES, main_without
from patience import patience
from rich.console import Console
from typer.testing import CliRunner

from thalweg.emulation.links.units import format_size
from thalweg.experiments.cli.analyze import analyze
from thalweg.experiments.records import spark
from thalweg.experiments.records.aggregates import RunsSummary, analyze_runs, load_runs
from thalweg.experiments.records.moves import Errors, EstimateErrors
from thalweg.experiments.views.tables import estimates_lines, print_runs, seconds
from thalweg.middleware.errors import CapabilityError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(analyze)
ALONE = "import typer; from thalweg.experiments.cli.analyze import analyze; typer.run(analyze)"


def filled(run: Any) -> Any:
    run.flow("download-all", 24.0, link_rows=160)
    run.flow("one-shot", 12.0, link_rows=160)
    run.prove({("h1", "client"): (2e6, 0.01)})
    return run


def test_analyze_prints_the_table_and_then_the_paths(new_run: Any) -> None:
    folder = filled(new_run("a [1]")).write(notes=["rates only: the kernel has no netem"])
    with (folder / "events.parquet").open("rb") as file:
        assert file.read(4) == b"PAR1"
    done = CliRunner().invoke(app, [str(folder)])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    rows = {words[0]: words for line in lines if line.endswith("ok     ") and (words := line.split())}
    assert rows["download-all"][4:] == ["1.00", "20/20", "ok"]
    assert float(rows["one-shot"][4]) > 1.3
    assert "links: 1 proved, worst rate error 1.0% (h1>client); rates only, no delays" in lines
    assert lines[lines.index(f"note: {folder}: rates only: the kernel has no netem") + 1 :] == [
        f"summary: {folder / 'summary.json'}   plots: {folder / 'plots'}{os.sep}",
        "",
        "what was seen, in the time of the emulated network:",
        f"  download-all (every operator at the client): an image every {rows['download-all'][1]} s",
        f"  one-shot (operators placed once): an image every {rows['one-shot'][1]} s,"
        f" {float(rows['one-shot'][4]):.1f} times as often as with download-all",
        "pictures:",
        f"  {folder / 'plots' / 'arrivals.png'}  when images came to the client",
    ]
    assert len(list((folder / "plots").glob("*.png"))) == 5
    assert json.loads((folder / "summary.json").read_text())["run"] == "run-a [1]"


@pytest.mark.spark
@pytest.mark.usefixtures("shared_spark")
def test_moves_are_listed_if_few_or_on_request(new_run: Any) -> None:
    few, many = new_run("few"), new_run("many", seed=2)
    few.adapt("global", 10)
    many.adapt("random-moves", 30)
    folders = [str(few.write()), str(many.write())]
    done = CliRunner().invoke(app, [folders[0], "--no-plots"])
    assert done.stdout.count("stayed: ") == 2
    assert done.stdout.count(" fell to 0.1") == 8
    done = CliRunner().invoke(app, [folders[1], "--no-plots"])
    assert f"random-moves: 30 handovers; thalweg analyze {folders[1]} --moves lists them" in done.stdout
    assert "stayed: " not in done.stdout
    done = CliRunner().invoke(app, [*folders, "--no-plots", "--moves"])
    assert done.stdout.count("stayed: ") == 8
    done = CliRunner().invoke(app, [folders[1], "--no-plots", "--moves", "--json"])
    placement = json.loads(done.stdout)["placements"]["random-moves"]
    assert (placement["relocations"], placement["stayed"], len(placement["moves"])) == (24, 6, 30)
    assert "moves" not in json.loads((many.folder / "summary.json").read_text())["placements"]["random-moves"]
    done = CliRunner().invoke(app, [folders[0], "--no-plots", "--json"])
    assert "moves" not in json.loads(done.stdout)["placements"]["global"]


@pytest.mark.long
@pytest.mark.spark
def test_analyze_alone_prints_json_and_errors_and_leaves_no_temporary_files(new_run: Any, tmp_path: Path) -> None:
    good, bad = filled(new_run("good")), filled(new_run("bad", seed=2))
    bad.lines["client"] = [line for line in bad.lines["client"] if '"index": 7,' not in line]
    for name in ("cwd", "tmp"):
        (tmp_path / name).mkdir()
    command = [sys.executable, "-W", "error", "-c", ALONE, str(good.write()), str(bad.write()), "--json"]
    done = subprocess.run(
        [*command, "--no-plots", "--master", "local[2]"],
        capture_output=True, text=True, check=False, cwd=tmp_path / "cwd", timeout=patience(120),
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(Path(spark.__file__).parents[3])},
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    output = json.loads(done.stdout)
    assert [run["placements"]["one-shot"]["lost"] for run in output["runs"]] == [0, 1]
    assert output["aggregate"]["one-shot"]["delivered"] == 39
    lost = "1 of 20 images were not delivered"
    wrong = [f"thalweg: {bad.folder}, {name}: {lost}" for name in ("download-all", "one-shot")]
    assert done.stderr.splitlines() == wrong
    assert list((tmp_path / "cwd").iterdir()) == []
    assert list((tmp_path / "tmp").iterdir()) == []
    assert sorted(path.name for path in bad.folder.iterdir()) == ["events.parquet", "run.toml", "summary.json"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{there}"], "is neither a run folder (no run.toml) nor a sweep (no sweep.toml)"),
        (["{there}/x"], "does not exist; name folders that `run` or `sweep` wrote"),
        (["{there}/x", "--master", "moon"], "is not a Spark master"),
    ],
)
def test_bad_input_starts_nothing(tmp_path: Path, arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, [argument.format(there=tmp_path) for argument in arguments])
    assert isinstance(done.exception, UsageError)
    assert says in str(done.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of programs of a machine without Java and apt."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return programs


def analyze_alone(*words: str, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the verb in a new process without these modules."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", main_without(*without), "analyze", *words],
        capture_output=True, text=True, check=False, timeout=240,
        env=os.environ | {"PYTHONPATH": str(Path(spark.__file__).parents[3])},
    )  # fmt: skip


def changeable(folder: Path) -> dict[str, bytes]:
    """Remove all files that ``analyze`` wrote into a run folder, and return their contents."""
    written = [folder / "summary.json", *sorted((folder / "plots").glob("*"))]
    contents = {str(path.relative_to(folder)): path.read_bytes() for path in written}
    for path in written:
        path.unlink()
    return contents


def full(run: Any) -> Any:
    """Fill a run so that every table and every line has content."""
    filled(run)
    run.adapt("global", 10)
    run.prove({("h2", "client"): (1e5, 0.3)}, stalled=0.2)
    return run


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.usefixtures("shared_spark")
@pytest.mark.parametrize("words", [["--moves"], pytest.param(["--json", "--no-plots"], marks=pytest.mark.long)])
def test_a_run_has_the_same_figures_with_and_without_spark(new_run: Any, words: list[str]) -> None:
    folder = full(new_run()).write()
    on_spark = CliRunner().invoke(app, [str(folder), *words, "--master", "local[2]"])
    written = changeable(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("JAVA_HOME", raising=False)
        patch.setenv("PATH", os.fspath(folder / "no-programs"))
        alone = analyze_alone(str(folder), *words)
    assert (on_spark.exit_code, alone.returncode, alone.stderr) == (0, 0, "")
    assert alone.stdout == on_spark.stdout
    assert changeable(folder) == written
    assert len(written) == (1 if "--no-plots" in words else 9)


@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize(
    "without", [pytest.param((), marks=pytest.mark.long), ("pyspark", "py4j")], ids=["no Java", "no PySpark"]
)
def test_a_single_run_is_analysed_without_java(new_run: Any, without: tuple[str, ...]) -> None:
    folder = filled(new_run()).write()
    done = analyze_alone(str(folder), without=without)
    assert (done.returncode, done.stderr) == (0, "")
    assert "what was seen, in the time of the emulated network:" in done.stdout
    assert f"summary: {folder / 'summary.json'}   plots: {folder / 'plots'}{os.sep}" in done.stdout
    assert json.loads((folder / "summary.json").read_text())["placements"]["one-shot"]["delivered"] == 20
    assert (folder / "plots" / "arrivals.png").is_file()


@pytest.mark.usefixtures("no_java")
def test_a_single_run_without_plots_needs_only_the_records_extra(new_run: Any) -> None:
    folder = filled(new_run()).write()
    absent = tuple(name for name in EXTRAS_MODULES if name != "pyarrow")
    done = analyze_alone(str(folder), "--no-plots", "--json", without=absent)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["placements"]["one-shot"]["delivered"] == 20


def test_a_failed_start_of_spark_is_reported_with_the_reason(
    new_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = filled(new_run()).write()
    java = """#!/bin/sh
case "$*" in
*-version*) echo 'openjdk version "17.0.1"' >&2 ;;
*) echo "cannot allocate memory" >&2; exit 1 ;;
esac
"""
    (tmp_path / "bin").mkdir()
    write_program(tmp_path / "bin" / "java", java)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    done = analyze_alone(str(folder), "--no-plots", "--master", "local")
    assert (done.returncode, done.stdout) == (2, "")
    assert "thalweg: Spark does not start on local: cannot allocate memory" in done.stderr


@pytest.mark.usefixtures("no_java")
def test_several_runs_or_a_named_master_are_refused_without_java(new_run: Any) -> None:
    folders = [filled(new_run(name, seed=seed)).write() for seed, name in enumerate(("one", "two"), 1)]
    for words in ([*map(str, folders)], [str(folders[0]), "--master", "local[*]"]):
        done = CliRunner().invoke(app, words)
        assert isinstance(done.exception, CapabilityError)
        assert str(done.exception).startswith("Spark needs Java and none was found; install Java 17 or newer")
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir()) == ["events.parquet", "run.toml"]


@pytest.mark.usefixtures("no_java")
def test_damaged_records_are_refused_without_java(new_run: Any) -> None:
    run = filled(new_run())
    run.add(9.0, "client", "delivered", "one-shot", size_bytes=1)  # of no index
    run.add(9.5, "client", "delivered", "one-shot", index=3, size_bytes=1)
    done = CliRunner().invoke(app, [str(run.write()), "--no-plots"])
    assert isinstance(done.exception, UsageError)
    assert "events.parquet is damaged (TypeError: " in str(done.exception)
    assert str(done.exception).endswith("; run it again")


def test_help_has_an_example() -> None:
    done = CliRunner().invoke(app, ["--help"])
    assert "Example: thalweg analyze runs/a runs/b" in done.stdout


@pytest.mark.spark
def test_tables_fit_80_columns(new_run: Any, spark_session: SparkSession) -> None:
    runs = []
    for name in ("one", "two"):
        run = new_run(name, images=12000 if name == "one" else 20)
        run.placements = ["download-all", "one-shot", "global", "a-placement-with-a-rather-long-name-of-its-own"]
        for factor, placement in enumerate(run.placements, 1):
            run.deliver(placement, [(3456.7 * factor * (i + 1), i) for i in range(20 - factor // 4)])
        run.move("a-placement-with-a-rather-long-name-of-its-own", "an-operator-of-mine", "h10", "client", 123456.7)
        run.stay("global", "op0", "h1", "h2", 1.0, "the-target-h2-does-not-answer-and-this-is-one-very-long-word")
        run.estimate(1.0, "h1", "h2", 9e9, 1.0)
        run.estimate(1.0, "h1", "h2", 9e5, 1e5, "probe")
        runs.append(run.write())
    analysis = analyze_runs(spark_session, load_runs(runs))
    out = io.StringIO()
    print_runs(analysis, Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "20/12000" in out.getvalue()
    assert "all 2 runs" in out.getvalue()
    assert "stayed: " not in out.getvalue()
    handovers = io.StringIO()
    print_runs(RunsSummary(analysis.runs[:1]), Console(file=handovers, width=80))
    assert max(map(len, handovers.getvalue().splitlines())) <= 80
    assert "stayed: " in handovers.getvalue()
    heads = [line for line in lines if "median s" in line]
    cells = [line for line in lines if line.lstrip().startswith("one-shot")]
    assert [head.index("median s") + len("median s") for head in heads] == [
        cell.index("6913", cell.index("6913") + 4) + 4 for cell in cells
    ]
    assert [line.split()[-1] for line in cells] == ["differs", "ok", "differ"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.01234, "0.0123"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1234")],
)
def test_seconds_have_three_digits(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (65_536, "66 KB"), (999_600, "1.0 MB"), (12_345_678_901, "12 GB")],
)
def test_sizes_have_a_unit(value: int, text: str) -> None:
    assert format_size(value) == text


def test_estimates_are_split_by_method_only_if_both_methods_occur() -> None:
    passive, probe = Errors(3, 0.05, 0.1), Errors(1, 0.2, 0.2)
    assert estimates_lines(EstimateErrors()) == []
    assert estimates_lines(EstimateErrors(3, 0.05, 0.1, passive)) == ["estimates: 3, median error 5.0%, p95 10.0%"]
    assert estimates_lines(EstimateErrors(4, 0.06, 0.18, passive, probe)) == [
        "estimates: 4, median error 6.0%, p95 18.0%",
        "  passive: 3, median error 5.0%, p95 10.0%",
        "  probe: 1, median error 20.0%, p95 20.0%",
    ]
