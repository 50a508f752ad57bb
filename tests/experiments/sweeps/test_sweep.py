from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from patience import patience
from sweep_fakes import result

from thalweg.experiments.records import spark
from thalweg.experiments.sweeps import jobs as sweep_spark
from thalweg.experiments.sweeps import results as sweep_results
from thalweg.experiments.sweeps.jobs import ATTEMPTS, Answer, run_all
from thalweg.experiments.sweeps.results import Results, row, schema
from thalweg.experiments.sweeps.simulation import Simulated, Simulation
from thalweg.experiments.sweeps.simulations import Simulations
from thalweg.experiments.sweeps.sweep import SweepOutcome, _opened, load_results, load_sweep, run_sweep
from thalweg.experiments.sweeps.trial import run_encoded
from thalweg.middleware.errors import RunError, UsageError

FOUR = ("download-all", "one-shot", "local", "global")
SMALL = Simulations(placements=("download-all", "global"), pools=2, configurations=5)
ROOT = Path(sweep_spark.__file__).parents[3]
CLUSTER = "local-cluster[1,2,1024]"


def fill(folder: Path, sweep: Simulations, size: int = 3, *, failed: Sequence[int] = ()) -> list[Simulation]:
    """Write results of the whole sweep in parts of ``size``, some of them of failures."""
    simulations = sweep.trials()
    with _opened(folder, sweep, []) as results:
        for begin in range(0, len(simulations), size):
            part = enumerate(simulations[begin : begin + size], begin)
            results.write(
                row(simulation, Simulated(failed="no") if i in failed else result(simulation)) for i, simulation in part
            )
    return simulations


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "results").iterdir())


# --- what is swept ----------------------------------------------------------------------------------


def test_configurations_are_spread_over_pools_and_ordered_by_network() -> None:
    sweep = Simulations(placements=FOUR, pools=3, configurations=7, first_pool=50)
    simulations = sweep.trials()
    networks = list(dict.fromkeys((simulation.pool_seed, simulation.configuration) for simulation in simulations))
    assert networks == [(50, 0), (50, 1), (50, 2), (51, 0), (51, 1), (52, 0), (52, 1)]
    assert [simulation.placement for simulation in simulations[:8]] == [*FOUR, *FOUR]
    assert len({simulation.key for simulation in simulations}) == 28


def test_periods_reach_local_and_global_and_k_reaches_only_local() -> None:
    sweep = Simulations(
        placements=("download-all", "local", "global"), pools=1, configurations=1, periods_s=(60.0, 600.0), ks=(0, 2),
        trees=("binary", "left-deep"), images=7, parameters={"interface": "independent", "hysteresis": 1.0},
    )  # fmt: skip
    left_deep = [
        (trial.placement, trial.period_s, trial.k, trial.hysteresis)
        for trial in sweep.trials()
        if trial.tree == "left-deep"
    ]
    locals_ = [("local", period, k, 1.0) for period in (60.0, 600.0) for k in (0, 2)]
    globals_ = [("global", 60.0, None, 1.0), ("global", 600.0, None, 1.0)]
    assert left_deep == [("download-all", None, None, None), *locals_, *globals_]
    assert {(trial.images, trial.interface) for trial in sweep.trials()} == {(7, "independent")}
    sweep.check()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"placements": ()}, "has no placements"),
        ({"placements": ("globl",)}, "did you mean 'global'"),
        ({"placements": ("nowhere.at.all:Planner",)}, "cannot be imported: No module named 'nowhere'"),
        ({"servers": (0,)}, "--servers is 0"),
        ({"images": 0}, "--images is 0"),
        ({"images": 1}, "--images is 1; give 2 or more, because times between images are compared"),
        ({"first_pool": -1}, "--first-pool is -1; it must be at least 0"),
        ({"trees": ("bush",)}, "unknown tree 'bush'; known are binary"),
        ({"periods_s": (0.0,)}, "period_s is 0.0"),
        ({"configurations": 1}, "--pools 1 to 1"),
        ({"pools": 0}, "at least 1 each"),
        ({"pool": "puddle"}, "no pool 'puddle'"),
        ({"parameters": {"servers": 3}}, "no parameter 'servers'"),
        ({"parameters": {"view": "dim"}}, "an option does not fit: Invalid enum value 'dim'"),
        ({"parameters": {"cost": "nothing"}}, "unknown cost model 'nothing'"),
    ],
)
def test_an_invalid_sweep_is_refused_before_work_starts(
    changes: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THALWEG_TRACES", raising=False)
    with pytest.raises(UsageError, match=says):
        run_sweep(msgspec.structs.replace(SMALL, **changes), tmp_path / "s")
    assert not (tmp_path / "s").exists()


# --- the folder -------------------------------------------------------------------------------------


def test_the_folder_records_the_whole_sweep_and_refuses_a_different_sweep(tmp_path: Path) -> None:
    sweep = msgspec.structs.replace(SMALL, parameters={"view": "truth"}, versions={"thalweg": "0.0.1"})
    folder = tmp_path / "deep" / "s"
    fill(folder, sweep)
    recorded = load_sweep(folder, Simulations)
    assert (recorded.placements, recorded.parameters["view"], recorded.parameters["startup_s"]) == (
        FOUR[::3],
        "truth",
        0.05,
    )
    assert recorded.id == sweep.id
    assert recorded.trials() == sweep.trials()
    notes: list[str] = []
    with _opened(folder, msgspec.structs.replace(sweep, versions={"thalweg": "9"}), notes):
        pass
    assert notes == [f"{folder} was begun with thalweg 0.0.1 and goes on with 9"]
    before = (folder / "sweep.toml").read_bytes()
    for changes, says in (
        ({"placements": FOUR}, "its placements is download-all, global, not download-all, one-shot, local, global;"),
        ({"parameters": {"view": "probe"}}, "its view is truth, not probe; choose another --out, or remove"),
        ({"periods_s": (60.0,)}, "its periods_s is not given, not 60.0"),
    ):
        with pytest.raises(UsageError, match=says):
            run_sweep(msgspec.structs.replace(sweep, **changes), folder)
    assert (folder / "sweep.toml").read_bytes() == before


def test_a_folder_without_a_sweep_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(UsageError, match="is not empty and no sweep's folder; choose another --out"):
        run_sweep(SMALL, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(UsageError, match="cannot be used: Not a directory; choose another --out"):
        run_sweep(SMALL, tmp_path / "notes.txt")
    for load in (load_sweep, load_results):
        with pytest.raises(UsageError, match="is not a sweep folder"):
            load(tmp_path, Simulations)


@pytest.mark.parametrize(
    ("text", "says"), [("a = ", "cannot be read"), ("servers = 3", "is damaged"), ("format = 2", "upgrade thalweg")]
)
def test_a_damaged_sweep_toml_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "sweep.toml").write_text(text)
    with pytest.raises(UsageError, match=says):
        run_sweep(SMALL, tmp_path)


def test_a_second_sweep_cannot_write_to_the_folder_at_the_same_time(tmp_path: Path) -> None:
    with _opened(tmp_path, SMALL, []), pytest.raises(UsageError, match=r"another sweep writes to .* now; wait"):
        run_sweep(SMALL, tmp_path)


# --- results ----------------------------------------------------------------------------------------


def test_a_row_holds_all_fields_of_a_simulation_and_of_the_result(tmp_path: Path) -> None:
    names = ["key", *Simulation.__struct_fields__, *Simulated.__struct_fields__]
    columns = schema(Simulation)
    assert columns.names == names
    assert [columns.field(name).type for name in ("key", "k", "gate", "period_s", "allow", "view", "failed")] == [
        pa.string(), pa.int64(), pa.bool_(), pa.float64(), pa.list_(pa.string()), pa.string(), pa.string()
    ]  # fmt: skip
    assert (columns.field("failed").nullable, columns.field("servers").nullable) == (True, False)
    simulation = Simulation(placement="local", k=2, gate=False, allow=("a", "b"))
    results = Results(tmp_path, Simulation)
    results.open()
    results.write([row(simulation, Simulated(failed="x", mean_interarrival_s=1.5))])
    (back,) = sweep_results.read_results(tmp_path, Simulation).to_pylist()
    assert back.pop("key") == simulation.key
    assert msgspec.convert({name: back[name] for name in Simulation.__struct_fields__}, Simulation) == simulation
    assert (back["failed"], back["mean_interarrival_s"], back["elapsed_s"]) == ("x", 1.5, None)


def test_a_part_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simulations = fill(tmp_path, SMALL)
    seen: list[list[str]] = []

    def full(path: Path) -> None:
        seen.append(parts(tmp_path))
        raise OSError(28, "No space left on device")

    before = parts(tmp_path)
    with _opened(tmp_path, SMALL, []) as results:
        monkeypatch.setattr("thalweg.middleware.files.writing._sync", full)
        with pytest.raises(RunError, match=r"part-00004.parquet cannot be written: No space left on device; free"):
            results.write([row(simulations[0], result(simulations[0]))])
    assert seen == [[f".part-00004.parquet.{os.getpid()}", *before]]  # complete, under a name that nobody reads
    assert parts(tmp_path) == before


def test_a_part_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    fill(tmp_path, SMALL, 100)
    part = tmp_path / "results/part-00000.parquet"
    table = pq.read_table(part).take([0] * 3000)
    column = table.schema.get_field_index("failed")
    table = table.set_column(column, table.schema.field(column), pa.array(["x" * 100_000] * 3000))  # in the file once
    pq.write_table(table, part)
    assert part.stat().st_size < 1_000_000
    with pytest.raises(UsageError, match=r"part-00000.parquet is damaged .300000000 bytes of text in 3000 rows"):
        load_results(tmp_path, Simulations)


def test_damaged_parts_are_set_aside_and_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    simulations = fill(tmp_path, SMALL)
    folder = tmp_path / "results"
    torn, flipped = folder / "part-00001.parquet", folder / "part-00002.parquet"
    torn.write_bytes(torn.read_bytes()[:200])
    content = bytearray(flipped.read_bytes())
    content[60] ^= 255  # in the first column's values
    flipped.write_bytes(content)
    (folder / ".part-00004.parquet.123").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"part-00001.parquet is damaged .*; give the sweep's command again"):
        load_results(tmp_path, Simulations)
    with _opened(tmp_path, SMALL, []) as results:
        assert results.finished == {simulation.key for simulation in [*simulations[:3], *simulations[9:]]}
        assert [note.partition("; ")[0] for note in results.notes] == [f"{torn} is damaged", f"{flipped} is damaged"]
        assert results.write([row(simulations[3], result(simulations[3]))]).name == "part-00004.parquet"
    assert [name for name in parts(tmp_path) if not name.endswith("parquet")] == [
        "part-00001.parquet.damaged", "part-00002.parquet.damaged"
    ]  # fmt: skip
    assert load_results(tmp_path, Simulations).num_rows == 5


def test_failed_rows_are_removed_when_a_sweep_resumes(tmp_path: Path) -> None:
    simulations = fill(tmp_path, SMALL, failed=(0, 3, 4, 5))
    with _opened(tmp_path, SMALL, []) as results:
        assert results.finished == {simulation.key for i, simulation in enumerate(simulations) if i not in (0, 3, 4, 5)}
    assert parts(tmp_path) == ["part-00000.parquet", "part-00002.parquet", "part-00003.parquet"]
    assert load_results(tmp_path, Simulations)["key"].to_pylist() == [simulations[i].key for i in (1, 2, 6, 7, 8, 9)]


def test_parts_with_different_columns_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, SMALL)
    path = tmp_path / "results" / "part-00000.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["plans"]), path)
    with pytest.raises(UsageError, match=r"has other columns than this version writes \(the first is plans\)"):
        run_sweep(SMALL, tmp_path)


def test_labels_of_placements_name_the_varied_options(tmp_path: Path) -> None:
    sweep = Simulations(
        placements=("download-all", "local"), pools=1, configurations=3, servers=(4, 8), ks=(0, 2), periods_s=(120.0,)
    )
    assert sweep.summarize(schema(Simulation).empty_table())["local, 4 servers, k = 2"].runs == 0
    fill(tmp_path, sweep, failed=(0,))
    results = sweep.summarize(load_results(tmp_path, Simulations))
    labels = [f"local, {servers} servers, k = {k}" for servers in (4, 8) for k in (0, 2)]
    assert list(results) == ["download-all, 4 servers", *labels[:2], "download-all, 8 servers", *labels[2:]]
    base, local = results["download-all, 4 servers"], results["local, 4 servers, k = 2"]
    assert (base.runs, base.failed, base.mean_interarrival_s, base.median_speedup) == (3, 1, 115.0, 1.0)
    assert (local.failed, local.mean_interarrival_s, local.median_speedup) == (0, pytest.approx(22.0), 5.0)


# --- batches ----------------------------------------------------------------------------------------


class Elsewhere:
    """Executor that simulates in this process. The simulations in ``ends`` end their worker."""

    def __init__(self, ends: set[str], seconds: float = 0.2) -> None:
        self.ends, self.seconds = ends, seconds
        self.batches: list[int] = []
        self.rows: dict[str, Simulated] = {}
        self.asked: dict[str, int] = {}

    def submit(self, batch: Sequence[Simulation]) -> list[Answer]:
        self.batches.append(len(batch))
        for simulation in batch:
            self.asked[simulation.key] = self.asked.get(simulation.key, 0) + 1
        if any(simulation.key in self.ends for simulation in batch):
            raise ValueError("Python worker exited unexpectedly (crashed)")
        return [(result(simulation), self.seconds) for simulation in batch]

    def finished(self, rows: list[tuple[Simulation, Simulated]]) -> None:
        assert not {simulation.key for simulation, _ in rows} & self.rows.keys()
        self.rows.update({simulation.key: simulated for simulation, simulated in rows})


def test_only_a_simulation_that_ends_the_worker_fails() -> None:
    simulations = msgspec.structs.replace(SMALL, configurations=20).trials()
    culprits = {simulations[7].key, simulations[39].key}
    executor = Elsewhere(culprits)
    run_all(simulations, executor.submit, executor.finished, in_flight=2, lost=sweep_spark._why_lost)
    assert executor.rows == {
        simulation.key: Simulated(failed="the worker ended while simulating it")
        if simulation.key in culprits
        else result(simulation)
        for simulation in simulations
    }
    assert min(executor.asked[key] for key in culprits) >= ATTEMPTS
    assert sum(executor.asked.values()) < 2 * len(simulations)


def test_the_size_of_batches_follows_the_duration_of_runs() -> None:
    simulations = Simulations(placements=("one-shot",), pools=1, configurations=400).trials()
    slow, fast = Elsewhere(set(), seconds=2.0), Elsewhere(set(), seconds=0.01)
    run_all(simulations[:40], slow.submit, slow.finished, in_flight=1)  # of two threads either may begin first
    run_all(simulations, fast.submit, fast.finished, in_flight=2)
    assert slow.batches[0] > 1
    assert set(slow.batches[1:]) == {1}
    assert max(fast.batches) > 50
    assert min(fast.batches[-2:]) < 20  # so that all cores end together; either of two threads may begin last
    assert len(fast.rows) == 400


def test_finished_results_are_kept_if_spark_ends() -> None:
    simulations = SMALL.trials()
    executor = Elsewhere(set())

    def submit(batch: Sequence[Simulation]) -> list[Answer]:
        if executor.batches:
            raise RunError("Spark ended")
        return executor.submit(batch)

    with pytest.raises(RunError, match="Spark ended"):
        run_all(simulations, submit, executor.finished, in_flight=1)
    assert 0 < len(executor.rows) == executor.batches[0] < len(simulations)


def test_an_exception_of_a_simulation_becomes_the_result() -> None:
    answers = {}
    for placement in ("download-all", "one-shot", "global"):
        encoded = msgspec.json.encode(Simulation(placement=placement))
        text, seconds = run_encoded("sweep_fakes:leaving", Simulation, encoded)
        answers[placement] = msgspec.json.decode(text, type=Simulated).failed
        assert seconds >= 0
    assert answers == {
        "download-all": None,
        "one-shot": "SystemExit: 3",
        "global": "TypeError: sweep_fakes:leaving gave str, not Simulated",
    }


def test_executors_import_nothing_that_writes_or_draws() -> None:
    code = (
        "import sys, thalweg.experiments.sweeps.trial;"
        "print(sorted({'pyarrow', 'matplotlib', 'pyspark', 'zmq'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


# --- on Spark ---------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.usefixtures("shared_spark")
def test_failing_planners_and_ended_workers_do_not_stop_a_sweep(tmp_path: Path) -> None:
    sweep = Simulations(placements=FOUR, pools=1, configurations=3, parameters={"allow": [str(tmp_path / "first")]})
    progress: list[tuple[str, int, int]] = []
    folder = tmp_path / "s"
    outcome = run_sweep(
        sweep, folder, master="local[2]", function="sweep_fakes:troubled", tell=lambda *what: progress.append(what)
    )
    assert (outcome.runs, outcome.done, outcome.failed, outcome.skipped) == (12, 8, 4, 0)
    assert outcome.reasons == {"local: ValueError: no plan for 8": 3, "global: the worker ended while simulating it": 1}
    assert (progress[0], progress[-1]) == (("starting Spark", 0, 12), ("simulating", 12, 12))
    assert sorted(load_results(folder, Simulations)["key"].to_pylist()) == sorted(trial.key for trial in sweep.trials())

    outcome = run_sweep(sweep, folder, master="local[2]", function="sweep_fakes:result")
    assert (outcome.done, outcome.failed, outcome.skipped) == (12, 0, 8)
    table = load_results(folder, Simulations)
    assert sorted(table["key"].to_pylist()) == sorted(trial.key for trial in sweep.trials())
    assert sweep.summarize(table)["global"].median_speedup == 10.0

    outcome = run_sweep(sweep, folder, master="local[2]", function="no:such")  # nothing left: Spark is not needed
    assert (outcome.skipped, outcome.wall_s < 3) == (12, True)


@pytest.mark.spark
@pytest.mark.usefixtures("shared_spark")
def test_a_function_that_executors_cannot_import_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"executors cannot import sweep_fakes:nothing: AttributeError: .*; install"):
        run_sweep(SMALL, tmp_path, master="local[2]", function="sweep_fakes:nothing")
    assert load_results(tmp_path, Simulations).num_rows == 0


@pytest.mark.long
@pytest.mark.spark
def test_a_cluster_receives_the_package_and_the_planner(tmp_path: Path) -> None:
    try:
        spark.check_master(CLUSTER)
    except UsageError:
        pytest.skip(f"sessions do not take {CLUSTER}")
    import pyspark

    home = tmp_path / "spark"  # workers leave their files in Spark's own folder
    home.mkdir()
    for path in Path(str(pyspark.__file__)).parent.iterdir():
        if path.name != "work":  # of whoever ran without a folder of its own
            (home / path.name).symlink_to(path)
    (tmp_path / "tmp").mkdir()
    code = (
        "import sys; from pathlib import Path; from thalweg.experiments.sweeps.sweep import *\n"
        "from thalweg.experiments.sweeps.simulations import Simulations\n"
        "sweep = Simulations(placements=('sweep_fakes:Mine',), pools=1, configurations=2)\n"
        "outcome = run_sweep(sweep, Path(sys.argv[1]), master=sys.argv[2], function='sweep_fakes:where')\n"
        "print(msgspec.json.encode(outcome, enc_hook=str).decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s"), CLUSTER], capture_output=True, text=True, check=False,
        timeout=patience(180), env=os.environ | {
            "SPARK_HOME": str(home), "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(ROOT / "tests")
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcome = msgspec.json.decode(done.stdout, type=SweepOutcome, dec_hook=lambda kind, text: kind(text))
    ((reason, count),) = outcome.reasons.items()
    package, planner = reason.removeprefix("sweep_fakes:Mine: RuntimeError: ").split()
    assert (count, package.endswith("thalweg.zip/thalweg/__init__.py")) == (2, True)
    assert Path(planner).is_relative_to(home / "work")
    assert list((tmp_path / "tmp").iterdir()) == []
