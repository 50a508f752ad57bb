"""Digests of short virtual runs. A change that keeps the behaviour keeps the digests.

There are two kinds of digests. A digest of behaviour covers everything that a user of a run sees (``behaviour.py``),
for each capability and for pairs of capabilities (``golden_runs.py``). Renames and other encodings leave it equal. A
digest of events covers each event that a host's core handles, with its time and host, and the encodings of messages.
One more field in a message changes it. If a commit changes a digest on purpose, it records the digest again and says
why.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import golden
import golden_runs
import numpy as np
import pytest
from behaviour import Behaviour
from golden_runs import RUNS as GOLDEN
from patience import patience

from thalweg.emulation.virtual import world
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.emulation.virtual.hostile import KINDS
from thalweg.experiments.cli.main import invoke
from thalweg.experiments.faults.generated_plans import drawn_plan
from thalweg.experiments.faults.trials import run_trial
from thalweg.middleware.core.context.outbox import Outbox
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

ROOT = Path(__file__).parents[1]

RUNS = {
    "--placement global --period 60 --seed 3": "a50c25570682fbe5bd552e81e8a9fa75af9e5ade57d8475ddde98819f1b93d03",
    "--placement local --period 60 --seed 1 --k 2": "4575597fce5fd7a98ab75b28937d6432f7f80e0541dfcfeb0b6a4826d660a4e3",
    "--placement thalweg --period 60 --seed 2": "01013c9cb0222b26679a7cdee01c445ff05e93cda780175afea2f59c73342632",
    "--placement random-moves --moves 20 --seed 4": "110086435307c9a0efdb85042ce820c99eec668806b8194c35cd5edb14fdba69",
    "--placement one-shot --bytes --seed 1": "d8ae40201bbe40728ff17bd5a6b4abf94c6989093543cbcdaeaca2158b18dd35",
}
FAULTS = {22: "2922794eedb7db5d30f2237d540bd3235831e97406537d4ad51047659a253780"}


def told(options: str, folder: Path) -> list[str]:
    """Return the command line that prints the run's digest."""
    size = ["--servers", "8", "--images", "12" if "--bytes" in options else "40", "--link-mean", "0.2mbit"]
    return ["run", "--testbed", "sim", *size, *options.split(), "--out", str(folder / "a"), "--json"]


def digest(printed: str) -> str:
    (placement,) = json.loads(printed.splitlines()[-1])["placements"].values()
    return str(placement["log_digest"]).removeprefix("sha256:")


def early_processor() -> dict[str, str]:
    """Return the environment of an early processor. Sets and tables have other hashes, too."""
    later = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    early = {"OPENBLAS_CORETYPE": "Nehalem", "NPY_DISABLE_CPU_FEATURES": " ".join(later), "PYTHONHASHSEED": "7"}
    return {name: value for name, value in os.environ.items() if name != "THALWEG_TRACES"} | early


@pytest.mark.parametrize("options", RUNS)
def test_a_run_has_the_recorded_digest_of_events(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("THALWEG_TRACES", raising=False)  # the generated ones
    assert invoke(told(options, tmp_path)) == 0
    assert digest(capsys.readouterr().out) == RUNS[options]


def test_a_run_has_the_recorded_digest_of_events_on_an_early_processor(tmp_path: Path) -> None:
    """On an early processor LAPACK adds up in a different order, and numpy uses no later instructions."""
    options = next(options for options in RUNS if "thalweg" in options)
    line = [sys.executable, "-m", "thalweg", *told(options, tmp_path)]
    done = subprocess.run(line, env=early_processor(), capture_output=True, text=True, timeout=patience(60), check=True)
    assert digest(done.stdout) == RUNS[options]


@pytest.mark.parametrize("seed", FAULTS)
def test_a_fault_plan_has_the_recorded_digest_of_events(seed: int) -> None:
    result, _ = run_trial(drawn_plan(seed), digest=True)
    assert result.digest == f"sha256:{FAULTS[seed]}"


# --- behaviour ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_run_has_the_recorded_behaviour_and_shows_enough_lines(name: str) -> None:
    seen, run = GOLDEN[name].play(), GOLDEN[name]
    few = {words: (seen.counts[words], least) for words, least in run.shows.items() if seen.counts[words] < least}
    assert not few, "the run does not show what it covers: by word how many lines, and how many are due"
    assert seen.digest == golden.recorded().get(name), f"see: python tests/golden.py --diff CHECKOUT {name!r}"


def test_the_recorded_runs_are_the_golden_runs_in_order() -> None:
    assert [*golden.recorded()] == [*GOLDEN]


IN_NUMPY = [name for name in GOLDEN if name.split()[0] in ("planner", "steering", "images")]


@pytest.mark.parametrize(
    "names",
    [[*IN_NUMPY, "failover and stripes"], pytest.param([*GOLDEN], marks=pytest.mark.long)],
    ids=["some", "all"],
)
def test_golden_runs_behave_the_same_in_a_second_process_on_an_early_processor(names: list[str]) -> None:
    line = [sys.executable, golden.__file__, *names]
    done = subprocess.run(line, env=early_processor(), capture_output=True, text=True, timeout=patience(120))
    assert done.stdout == f"{len(names)} of {len(names)} runs do what they did\n", done.stderr


def test_a_run_with_four_partitions_under_way_is_faster_than_with_a_single_partition() -> None:
    last_s = [float(golden_runs.ahead(depth).text.splitlines()[-1].split()[0]) for depth in (1, 4)]
    assert last_s[1] < 0.7 * last_s[0]


def test_a_hostile_host_changes_nothing_that_a_user_sees() -> None:
    assert golden_runs.hostile(0.2).digest == golden_runs.hostile(3600.0).digest


# --- content of a digest of behaviour ----------------------------------------------------

NAMELESS = (
    "failover",
    "queries and moves",
    "failover and stripes",
    "a hostile host",
    "faults that end",
    "two networks",
)


def test_neither_names_nor_encodings_of_messages_are_in_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {kind.__name__ for kind in KINDS}
    text = " ".join(GOLDEN[name].play().text for name in NAMELESS)
    assert not {*text.replace("=", " ").split()} & names

    def encode(*_: object) -> bytes:
        raise AssertionError("a message is encoded")

    monkeypatch.setattr(world.frames, "encode", encode)
    with renamed(KINDS):
        digests = {name: GOLDEN[name].play().digest for name in NAMELESS}
    assert digests == {name: golden.recorded()[name] for name in NAMELESS}


@contextmanager
def renamed(classes: Iterable[type]) -> Iterator[None]:
    """Give classes other names until the block ends."""
    names = {kind: kind.__name__ for kind in classes}
    try:
        for kind, name in names.items():
            kind.__name__ = f"Renamed{name}"
        yield
    finally:
        for kind, name in names.items():
            kind.__name__ = name


@pytest.mark.long
def test_a_checkout_with_other_names_and_more_fields_behaves_the_same(tmp_path: Path) -> None:
    """Some messages and a module are renamed, and two messages get a further field."""
    for folder in ("middleware", "operators", "emulation", "experiments", "thalweg"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)
    shutil.copytree(ROOT / "tests", tmp_path / "tests")
    renamed = {"Demand": "Wanted2", "Install": "Begins", "StateMissing": "Lacking", "barrier": "moving_words"}
    protocol = tmp_path / "middleware/protocol"
    (protocol / "barrier.py").rename(protocol / "moving_words.py")
    for path in tmp_path.rglob("*.py"):
        text = before = path.read_text(encoding="utf-8")
        for name, other in renamed.items():
            where = rf"protocol\.{name}\b" if name == "barrier" else rf"\b{name}\b"
            text = re.sub(where, lambda match, name=name, other=other: match[0].replace(name, other), text)
        if path == protocol / "flow.py":
            text = text.replace("class Partition(", "    more: bool = False\n\n\nclass Partition(").replace(
                "\n\n\n    more", "\n    more"
            )
        if path == protocol / "hosting.py":
            text = text.replace("    call_timeout_s:", "    more: str = 'as long as a message'\n    call_timeout_s:")
        if text != before:
            path.write_text(text, encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    line = [sys.executable, str(tmp_path / "tests/golden.py")]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=patience(200))
    assert done.stdout == f"{len(GOLDEN)} of {len(GOLDEN)} runs do what they did\n", done.stderr


def _twice(patch: pytest.MonkeyPatch) -> None:
    delivered = FaultyWorld._delivered

    def again(self: FaultyWorld, host: object, command: e.Deliver) -> None:
        if command.index == 5 and self.on_delivered is not None:
            self.on_delivered(command, self.now)
        delivered(self, host, command)

    patch.setattr(FaultyWorld, "_delivered", again)


def _later(patch: pytest.MonkeyPatch) -> None:
    handle = Behaviour.on_delivered
    patch.setattr(Behaviour, "on_delivered", lambda seen, part, now: handle(seen, part, now + 1e-6 * (part.index == 5)))


def _without_phase(patch: pytest.MonkeyPatch) -> None:
    record = Outbox.record

    def skipped(self: Outbox, kind: str, **fields: Any) -> None:
        if kind == "relocated":
            fields["detail"]["ago"].pop("state_out", None)
        record(self, kind, **fields)

    patch.setattr(Outbox, "record", skipped)


def _elsewhere(patch: pytest.MonkeyPatch) -> None:
    tree = golden_runs.tree

    def other(*code: Any) -> Any:
        flow, where = tree(*code)
        return flow, where | {"a": "h3"}

    patch.setattr(golden_runs, "tree", other)


CHANGES = {
    "a partition is delivered twice": _twice,
    "a partition is delivered a microsecond later": _later,
    "a phase of a move is skipped": _without_phase,
    "an operator begins on another host": _elsewhere,
    "links are slower by a millionth": lambda patch: patch.setattr(
        golden_runs, "RATES_BPS", tuple(rate * 0.999999 for rate in golden_runs.RATES_BPS)
    ),
    "one checkpoint less": lambda patch: patch.setattr(golden_runs, "FAILOVER", m.Failover(every=5, wait_s=5.0)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_behaviour_changes_the_digest(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CHANGES[change](monkeypatch)
    assert GOLDEN["failover and ahead"].play().digest != golden.recorded()["failover and ahead"]


def test_two_checkouts_are_compared_with_and_without_their_times() -> None:
    ours = "1.0 h1 move a s=0.5 node=b\n2.0 h1 over\n"
    assert golden.compared(ours, ours) == ([], 0.0)
    assert golden.compared(ours, "1.5 h1 move a s=0.7 node=b\n2.0 h1 over\n") == ([], 0.5)
    other = "1.0 h1 move a s=0.5 node=c\n2.25 h1 over\n"
    assert golden.compared(ours, other) == (["+1.000000 h1 move a node=b", "-1.000000 h1 move a node=c"], 0.25)


def test_a_comparison_plays_the_second_checkout_with_the_runs_of_that_checkout(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The second checkout has the files of this checkout, except for a placement."""
    for folder in ("middleware", "operators", "emulation", "experiments", "thalweg"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "tests").mkdir()
    for name in ("golden.py", "behaviour.py", "golden_runs.py"):
        text = (ROOT / "tests" / name).read_text(encoding="utf-8")
        (tmp_path / "tests" / name).write_text(text.replace('"c": "h6"', '"c": "h5"'), encoding="utf-8")
    assert golden.main(["--diff", str(tmp_path), "trees", "relays"]) == 1
    printed = capfd.readouterr().out
    assert printed.startswith("trees: ") and " lines differ; other times are at most " in printed
    assert printed.endswith(f"1 of 2 runs differ from those of {tmp_path}\n")
