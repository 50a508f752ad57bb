"""The base install, `pip install thalweg`, in an environment with the required dependencies and nothing else."""

from __future__ import annotations

import os
import subprocess
import tomllib
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from test_docs import python_blocks

import thalweg
from thalweg.middleware.errors import EXTRAS, distribution_of, install

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REFUSED = {  # a command that needs an extra: the extra, and the modules that the error names
    "run --testbed loopback --servers 2 --images 2 --out a": ("analysis", "pyarrow, scipy, highspy and pillow"),
    "compare --servers 2 --images 2 --out c": ("analysis", "pyarrow, scipy, highspy and pillow"),
    "sweep --figure 6 --configurations 1 --out b": ("analysis", "pyarrow, pyspark, scipy and highspy"),
    "analyze .": ("analysis", "pyarrow, matplotlib and networkx"),
    "analyze . --no-plots": ("records", "pyarrow"),
    "report .": ("analysis", "pyarrow, jinja2, pillow, matplotlib and networkx"),
    f"testbed plan {ROOT}/docs/examples/campus.toml --out d.png": ("analysis", "matplotlib"),
    f"place {ROOT}/docs/examples/placement.toml --bound": ("analysis", "highspy"),
    f"provision {ROOT}/docs/examples/provision.toml --launch sim": ("analysis", "pyarrow, scipy, highspy and pillow"),
    "testbed report": ("records", "pyarrow and jinja2"),
    "testbed build": ("docker", "docker"),
    "testbed up --backend docker --hosts 2": ("docker", "docker"),
}
REFUSALS = """
import shlex, sys
from thalweg.experiments.cli.main import invoke
for line in sys.stdin.read().splitlines():
    print("exit status", invoke(shlex.split(line)), file=sys.stderr, flush=True)
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of a fresh environment with the required dependencies, made without a network."""
    folder = tmp_path_factory.mktemp("base")
    venv.create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    wanted, seen = [Requirement(text) for text in PROJECT["dependencies"]], {"thalweg"}
    while wanted:
        requirement = wanted.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or (
            requirement.marker
            and not any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras))
        ):
            continue
        seen.add(name)
        installed = distribution(name)
        wanted += map(Requirement, installed.requires or ())
        for top in {file.parts[0] for file in installed.files or () if file.parts[0] != ".."}:
            if not (site / top).exists():
                (site / top).symlink_to(installed.locate_file(top))
    (site / "thalweg").symlink_to(Path(thalweg.__file__).parent)
    own = site / f"thalweg-{thalweg.__version__}.dist-info"
    own.mkdir()
    (own / "METADATA").write_text(f"Metadata-Version: 2.1\nName: thalweg\nVersion: {thalweg.__version__}\n")
    points = {"console_scripts": PROJECT["scripts"], **PROJECT["entry-points"]}
    lines = [
        f"{name} = {where}" for group, table in points.items() for name, where in ((f"[{group}]", ""), *table.items())
    ]
    (own / "entry_points.txt").write_text("\n".join(line.removesuffix(" = ") for line in lines))
    return folder / "bin"


def run(base: Path, folder: Path, *words: str, said: str = "") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "THALWEG_TRACES")}
    return subprocess.run(
        [base / "python", *words], cwd=folder, env=environment, input=said, capture_output=True, text=True, check=False
    )


def test_the_embedding_example_runs_and_moves(base: Path, tmp_path: Path) -> None:
    blocks = python_blocks((ROOT / "README.md").read_text(encoding="utf-8"))
    (block,) = [block for block in blocks if "class Readings" in block]
    (tmp_path / "readings.py").write_text(block)
    done = run(base, tmp_path, "readings.py")
    assert (done.returncode, done.stderr) == (0, "")
    partitions, moved = done.stdout.splitlines()
    assert partitions == "300 partitions, the last is 299.0"
    assert moved.startswith("Moved(index=")


@pytest.mark.netns
def test_a_testbed_comes_up_and_doctor_names_the_absent_modules(
    base: Path, tmp_path: Path, runtime_folder: Path
) -> None:
    up = run(base, tmp_path, "-m", "thalweg", "testbed", "up", "--hosts", "2", "--rate", "10mbit")
    down = run(base, tmp_path, "-m", "thalweg", "testbed", "down")
    assert (up.returncode, up.stderr, down.returncode) == (0, "", 0)
    assert "2 shaped links" in up.stdout
    doctor = run(base, tmp_path, "-m", "thalweg", "doctor")
    assert doctor.returncode == 0, doctor.stderr
    printed = " ".join(doctor.stdout.split())
    meaning = "records Arrow records between hosts, reports of testbeds"
    assert f"{meaning} no pyarrow, jinja2 not installed; {install('records')}" in printed
    assert "no pyarrow, pyspark, scipy, highspy, matplotlib, pillow, jinja2, networkx not installed" in printed
    assert install("analysis") in printed


def test_a_command_that_needs_an_absent_extra_names_the_install_command(base: Path, tmp_path: Path) -> None:
    done = run(base, tmp_path, "-c", REFUSALS, said="\n".join(REFUSED))
    lines = done.stderr.splitlines()
    assert lines[1::2] == ["exit status 2"] * len(REFUSED), done.stderr
    for (extra, absent), words in zip(REFUSED.values(), lines[::2], strict=True):
        verb, pronoun = ("are", "them") if " and " in absent else ("is", "it")
        assert words == f"thalweg: {absent} {verb} not installed; get {pronoun} with: {install(extra)}"
    assert not list(tmp_path.iterdir())  # refused before anything is made


def test_the_extras_in_the_code_are_the_extras_of_the_project() -> None:
    extras = PROJECT["optional-dependencies"]
    for extra, modules in EXTRAS.items():
        assert [Requirement(text).name for text in extras[extra]] == [distribution_of(module) for module in modules]
    assert {*EXTRAS} == {*extras} - {"all", "dev", "bench", "docs"}
    assert {*EXTRAS} == {"records", *Requirement(extras["all"][0]).extras}
    assert extras["dev"][0] == "thalweg[all]"
