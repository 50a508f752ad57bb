"""Names that help pages list: every listed name works, and every registered name is listed."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_lines import verbs
from made_traces import steps

from benchmarks import attack, attackers, odp
from benchmarks.options import AttackOptions
from thalweg.emulation.presets.table import PRESETS as LINES_AND_PATHS
from thalweg.emulation.scenarios.timeline import Timeline
from thalweg.emulation.testbeds.netns import SUBNET
from thalweg.emulation.testbeds.open import OPTIONS as BACKENDS
from thalweg.emulation.traces.files import HEADER
from thalweg.emulation.traces.topologies import PRESETS
from thalweg.experiments.cli import pages, provision
from thalweg.experiments.cli.commands import page_of
from thalweg.experiments.cli.main import invoke
from thalweg.experiments.cli.stopping import Stopped
from thalweg.experiments.cli.testbed import iperf, up
from thalweg.experiments.networks.setup import DETACHABLE, ContainerLimits, make_testbed
from thalweg.experiments.papers.benoit2008.renting import POOLS as TREES_TO_RENT
from thalweg.experiments.papers.study import STUDIES, find_study
from thalweg.experiments.provisioning.heuristics import HEURISTICS
from thalweg.experiments.runs import launcher
from thalweg.experiments.runs.workload import WORKLOADS
from thalweg.experiments.simulation.recorded import execute_as_on_testbeds
from thalweg.experiments.sweeps import sweep
from thalweg.experiments.sweeps.grid import Sweep
from thalweg.experiments.sweeps.pools import GENERATED, REAL, REAL_DATA_SET
from thalweg.experiments.sweeps.sweep import SweepOutcome
from thalweg.middleware.dataflow import TREES
from thalweg.middleware.network.forecasting import FORECASTERS
from thalweg.middleware.network.view import Link
from thalweg.middleware.planning.registry import COST_MODELS, MOVERS, PLANNERS, needs_latencies
from thalweg.middleware.protocol.limits import CoreConfig, MonitorConfig
from thalweg.middleware.shell import daemon
from thalweg.operators.composition import SELECT

EXAMPLES = Path(__file__).parents[3] / "docs/examples"
RUN = "run --testbed sim --servers 3 --images 2 --link-mean 0.2mbit"
COMPARE = "compare --servers 3 --images 3 --seed 1 --repeats 1 --link-mean 0.2mbit"
SWEEP = "sweep --servers 3 --images 2 --configurations 1 --pools 1"
PLAN = '[placement]\nop0 = "h1"\nop1 = "h2"\n'
NODES = """
[[nodes]]
name = "camera"
host = "h1"
bytes = 1000
rate = 1.0
[[nodes]]
name = "count"
host = "h2"
inputs = ["camera"]
bytes = 10
"""
Key = tuple[str, str]  # a verb, and an option
Try = Callable[[str], object]  # of a name; raises or asserts where it does not work


def listed() -> dict[Key, list[str]]:
    """Return the names that the printed pages list, by verb and option, without forms of import paths."""
    printed = {"host": pages.page_of(daemon.parser())}
    for words, command in verbs():
        context = command.make_context(" ".join(("thalweg", *words)), [], resilient_parsing=True)
        printed.setdefault(" ".join(words), page_of(command, context, whole=True))
    names_of: dict[Key, list[str]] = {}
    for verb, page in printed.items():
        flag = ""
        for line in re.findall(r"^│ (.*?) *│$", pages.render(page), re.MULTILINE):
            if option := re.match(r"(?:-\w, )?(--[\w-]+)", line):
                flag = option[1]
            if (item := re.match(r" {2,}- (.*)", line)) and ":" not in (names := re.split(": |$", item[1])[0]):
                names_of.setdefault((verb, flag), []).extend(names.split(", "))
    return names_of


@pytest.fixture(scope="module")
def names() -> Iterator[dict[Key, list[str]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "WIDTH", 2000)  # each item is on one line
        patch.setenv("COLUMNS", "2000")
        yield listed()


# --- what is registered -------------------------------------------------------------------------------

RATES = {name for name in COST_MODELS if not needs_latencies(name)}
STRATEGIES = {*PLANNERS, *MOVERS}
WITHOUT_PLAN = STRATEGIES - {"fixed"}
WITHOUT_NODES = WORKLOADS.keys() - {"planned"}
STATEFUL = {"running", "array-join", "best-of-last", "mixed"}

REGISTERED: dict[Key, set[str]] = {
    ("run", "--workload"): {*WORKLOADS},
    ("run", "--testbed"): {*BACKENDS, "sim"},
    ("run", "--placement"): STRATEGIES,
    ("run", "--cost"): RATES,
    ("run", "--tree"): {*TREES},
    ("run", "--rule"): {*SELECT, "latest"},
    ("run", "--operator"): {"composite", *STATEFUL},
    ("run", "--forecaster"): {*FORECASTERS},
    ("compare", "--workload"): WITHOUT_NODES,
    ("compare", "--placement"): WITHOUT_PLAN,
    ("compare", "--cost"): RATES,
    ("compare", "--tree"): {*TREES},
    ("sweep", "--figure"): {name for study in STUDIES for name in find_study(study).figures},
    ("sweep", "--pool"): {*GENERATED, REAL, *PRESETS, *TREES_TO_RENT},
    ("sweep", "--placement"): WITHOUT_PLAN,
    ("sweep", "--cost"): RATES,
    ("sweep", "--tree"): {*TREES},
    ("place", "--planner"): {*PLANNERS},
    ("place", "--cost"): {*COST_MODELS},
    ("provision", "--heuristic"): {provision.BEST, *HEURISTICS},
    ("host", "--forecaster"): {*FORECASTERS},
    ("testbed up", "--backend"): {*DETACHABLE},
    ("testbed up", "--preset"): {*LINES_AND_PATHS},
    ("testbed set", "--preset"): {*LINES_AND_PATHS},
    ("testbed verify", "--backend"): {*DETACHABLE},
    ("testbed verify", "--with"): {iperf.TOOL},
    ("bench plan", "--tree"): {*TREES},
    ("bench sim", "--placement"): WITHOUT_PLAN,
    ("bench odp", "--only"): {"experiment", "fat", "sequential", "random", "local search"},
    ("bench attack", "--only"): {*attackers.NAMES},
}


def test_pages_list_the_registered_names(names: dict[Key, list[str]]) -> None:
    assert {key: sorted(own) for key, own in names.items()} == {key: sorted(own) for key, own in REGISTERED.items()}


# --- trying each --------------------------------------------------------------------------------------


@pytest.fixture
def called(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command line and require exit status 0. Testbeds are replaced by virtual time."""
    monkeypatch.setattr(launcher, "execute", execute_as_on_testbeds)
    monkeypatch.delenv("THALWEG_TRACES", raising=False)
    monkeypatch.chdir(tmp_path)
    number = 0

    def call(line: str, *more: str, out: bool = True) -> str:
        nonlocal number
        number += 1
        words = [*line.split(), *more, *(["--out", str(tmp_path / f"out{number}")] if out else [])]
        status = invoke(words)
        output = capsys.readouterr()
        assert status == 0, f"{' '.join(words)}: {output.err}"
        return output.out

    return call


@pytest.fixture
def swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., None]:
    """Run the first trial of the sweep of a command line in this process. With ``run=False``, only check it."""

    def call(line: str, *more: str, run: bool = True) -> None:
        tried = []

        def run_sweep(asked: Sweep, folder: Path, **_: object) -> SweepOutcome:
            asked.check()
            tried.append(asked)
            if run:
                trial = asked.trials()[-1]
                module, _, function = type(trial).function.partition(":")
                result = getattr(importlib.import_module(module), function)(trial)
                assert result.failed is None
            raise Stopped(15)

        with monkeypatch.context() as patch:
            patch.setattr(sweep, "run_sweep", run_sweep)
            status = invoke([*line.split(), *more, "--out", str(tmp_path / "sweep")])
        output = capsys.readouterr()
        assert status == 143 and tried, f"{line} {more}: {output.err}"

    return call


def each(own: list[str], attempt: Try) -> None:
    assert own
    for name in own:
        attempt(name)


def test_listed_placements_run(names: dict[Key, list[str]], called: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    plan = ["--plan", str(tmp_path / "plan.toml")]
    each(names["run", "--placement"], lambda name: called(RUN, "--placement", name, *plan * (name == "fixed")))


@pytest.mark.parametrize("placement", ["one-shot", "local", "thalweg"])
def test_listed_cost_models_of_a_run_work(
    placement: str, names: dict[Key, list[str]], called: Callable[..., str]
) -> None:
    each(names["run", "--cost"], lambda name: called(RUN, "--placement", placement, "--cost", name))


@pytest.mark.parametrize("flag", ["--tree", "--rule", "--forecaster", "--operator"])
def test_other_listed_names_of_a_run_work(flag: str, names: dict[Key, list[str]], called: Callable[..., str]) -> None:
    def attempt(name: str) -> None:
        real = ["--bytes"] if flag == "--rule" or name in STATEFUL else []
        called(RUN, "--placement", "one-shot", flag, name, *real)

    each(names["run", flag], attempt)


def test_listed_workloads_run(names: dict[Key, list[str]], called: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "nodes.toml").write_text(NODES)
    (tmp_path / "three.toml").write_text('hosts = ["client", "h1", "h2"]\n[links]\nrate = "1mbit"\n')

    def attempt(name: str) -> None:
        if name == "planned":
            plan, scenario = str(tmp_path / "nodes.toml"), str(tmp_path / "three.toml")
            called("run --testbed sim --images 2 --workload planned", "--plan", plan, "--scenario", scenario)
        else:
            called(RUN, "--placement", "one-shot", "--workload", name)

    each(names["run", "--workload"], attempt)


def test_listed_testbeds_are_accepted(names: dict[Key, list[str]], called: Callable[..., str]) -> None:
    each(names["run", "--testbed"], lambda name: called(f"run --servers 3 --images 2 --testbed {name}"))


@pytest.mark.parametrize("flag", ["--interface", "--view", "--missing", "--dtype", "--kernel"])
def test_choices_beside_options_of_a_run_work(
    flag: str, called: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["run", "--help-all"]) == 0
    match = re.search(rf"│ {flag} ([\w|]+)", capsys.readouterr().out)
    assert match is not None

    def attempt(name: str) -> None:
        if name == "uml":  # refused here: it is another kernel that takes it
            assert invoke([*RUN.split(), flag, name]) == 2
            assert "--kernel uml goes with --testbed netns" in capsys.readouterr().err
        elif name == "host":
            called(RUN, flag, name)
        else:
            called(RUN, "--placement", "one-shot", flag, name)

    each(match[1].split("|"), attempt)


@pytest.mark.parametrize("flag", ["--workload", "--placement", "--cost", "--tree"])
def test_listed_names_of_a_comparison_work(flag: str, names: dict[Key, list[str]], called: Callable[..., str]) -> None:
    placement = [] if flag == "--placement" else ["--placement", "one-shot"]
    each(names["compare", flag], lambda name: called(COMPARE, flag, name, *placement, "--limit", "0.9"))


@pytest.mark.parametrize("flag", ["--placement", "--cost", "--tree"])
def test_listed_names_of_a_sweep_work(flag: str, names: dict[Key, list[str]], swept: Callable[..., None]) -> None:
    placement = [] if flag == "--placement" else ["--placement", "one-shot"]
    each(names["sweep", flag], lambda name: swept(SWEEP, flag, name, *placement))


def test_listed_figures_can_be_swept(names: dict[Key, list[str]], swept: Callable[..., None]) -> None:
    each(
        names["sweep", "--figure"],
        lambda name: swept("sweep --configurations 1 --pools 1", "--figure", name, run=False),
    )


def test_listed_pools_can_be_swept(
    names: dict[Key, list[str]], swept: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces = tmp_path / "traces"
    (traces / "bandwidth" / REAL_DATA_SET).mkdir(parents=True)
    for number in range(3):
        rows = "".join(f"{10 * row},{100_000 * (1 + (row + number) % 3)}\n" for row in range(4000))
        (traces / "bandwidth" / REAL_DATA_SET / f"{number}.csv").write_text(f"{HEADER}\n{rows}")

    monkeypatch.setenv("THALWEG_TRACES", str(traces))  # as a sweep sets it for who runs its trials

    def attempt(name: str) -> None:
        if name in (*GENERATED, REAL):
            swept(SWEEP, "--placement", "one-shot", "--pool", name)
        else:
            figure = "sbon-table1" if name in PRESETS else "benoit-2"
            swept(f"sweep --configurations 1 --pools 1 --figure {figure}", "--pool", name, run=False)

    each(names["sweep", "--pool"], attempt)


def test_listed_planners_and_cost_models_solve_a_placement_file(
    names: dict[Key, list[str]], called: Callable[..., str], tmp_path: Path
) -> None:
    text = (EXAMPLES / "optimal.toml").read_text()
    problem = tmp_path / "problem.toml"
    problem.write_text(f'{text}\n[placement]\ntag = "edge-1"\njoin = "cloud"\ncount = "cloud"\n')
    each(names["place", "--planner"], lambda name: called(f"place {problem} --planner {name}", out=False))
    each(names["place", "--cost"], lambda name: called(f"place {problem} --cost {name}", out=False))


def test_listed_heuristics_find_machines(names: dict[Key, list[str]], called: Callable[..., str]) -> None:
    problem = EXAMPLES / "provision.toml"
    each(
        names["provision", "--heuristic"],
        lambda name: called(f"provision {problem} --time-limit 20s --heuristic {name}", out=False),
    )


def test_listed_forecasters_of_a_host_are_accepted(names: dict[Key, list[str]]) -> None:
    def attempt(name: str) -> None:
        options = daemon.parser().parse_args(["--forecaster", name])
        assert CoreConfig(monitor=MonitorConfig(forecaster=options.forecaster)).limited([]).monitor.forecaster == name

    each(names["host", "--forecaster"], attempt)


@pytest.mark.parametrize("verb", ["testbed up", "testbed verify"])
def test_listed_backends_make_testbeds(verb: str, names: dict[Key, list[str]]) -> None:
    timeline = Timeline.of_traces({Link("h1", "h2"): steps((10.0, 1e6))})

    def attempt(name: str) -> None:
        testbed = make_testbed(timeline, name, SUBNET, ContainerLimits(idle=True))
        assert testbed.backend == name

    each(names[verb, "--backend"], attempt)


@pytest.mark.parametrize("verb", ["testbed up", "testbed set"])
def test_listed_presets_shape_links(verb: str, names: dict[Key, list[str]]) -> None:
    def attempt(name: str) -> None:
        timeline = up._of_options(up.UpOptions(hosts=2, preset=name, rate_bps=1e6))
        assert {shape.rate_bps for shape in timeline.links.values()} == {1e6}
        assert all(shape.delay_s for shape in timeline.links.values())
        assert all(bool(host.up_bps) is LINES_AND_PATHS[name].of_host for host in timeline.hosts.values())

    each(names[verb, "--preset"], attempt)


def test_listed_trees_are_planned_by_the_benchmark(names: dict[Key, list[str]], called: Callable[..., str]) -> None:
    each(
        names["bench plan", "--tree"],
        lambda name: called(f"bench plan --servers 2 --problems 1 --json --tree {name}", out=False),
    )


def test_the_benchmark_lists_the_placements_of_a_sweep(names: dict[Key, list[str]]) -> None:
    """The names are compared without a run, because a simulation takes seconds for each placement."""
    assert names["bench sim", "--placement"] == names["sweep", "--placement"]


def test_listed_problems_exist_in_the_benchmark(names: dict[Key, list[str]]) -> None:
    available = {"local search", *(row.problem for row in odp.rows())}
    each(
        names["bench odp", "--only"], lambda name: [problem for problem in available if problem.startswith(name)].pop()
    )


def test_listed_attacks_exist_in_the_benchmark(names: dict[Key, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """The attacks themselves are executed in tests of the benchmark."""
    monkeypatch.setattr(attack, "_attacked", lambda name, _: {"attack": name, "frames": 0, "holds": True})
    each(
        names["bench attack", "--only"],
        lambda name: attack.bench_attack(AttackOptions(only=(name,)))["attacks"][0]["attack"],
    )
