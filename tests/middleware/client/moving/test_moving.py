"""Operators that change hosts, end to end: real host processes on loopback, and the records they leave."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from flows import chain
from run_records import rows_of_run
from runtime_codes import ALLOW, MIX, assert_reference, blocks

from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster, host_command, own_environment, wait_ready_lines
from thalweg.middleware.client.runs.run import Run
from thalweg.middleware.core.barrier.proposer import Proposer
from thalweg.middleware.dataflow import Code, Dataflow, complete_binary_tree
from thalweg.middleware.errors import MoveRefused, PlacementError, RunError, UsageError
from thalweg.middleware.planning.registry import RandomMoves
from thalweg.middleware.protocol.adaptation import LocalMoves
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.daemon import main as host_main

HOSTS = ("h1", "h2", "h3")
LIMIT = 5000  # partitions taken while a move is waited for: seconds, where a move takes milliseconds

Row = dict[str, Any]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


@pytest.fixture(scope="module")
def cluster(records: Path) -> Iterator[LocalCluster]:
    with LocalCluster(HOSTS, allow=ALLOW, records=str(records)) as started:
        yield started
        assert started.poll() == {}, "a host ended during the tests"


@contextmanager
def host(cluster: LocalCluster, name: str, *options: str, allow: Sequence[str] = ALLOW) -> Iterator[str]:
    """Start a further host process with options of its own. Yield its control endpoint."""
    folder = cluster.addresses[HOSTS[0]].rpartition("/")[0]
    command = [*host_command(name, f"{folder}/{name}", allow=allow), *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=own_environment(), start_new_session=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield wait_ready_lines({name: process.stdout.fileno()}, 30.0)[name]["control"]
        finally:
            process.stdin.close()  # it ends with its parent


class Taken:
    """A run with the values that were taken from it."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.values: list[Any] = []

    def take(self, partitions: int) -> None:
        for delivered in itertools.islice(self.run, partitions):
            assert delivered.index == len(self.values)
            self.values.append(delivered.value)

    def until(self, there: Callable[[], bool]) -> None:
        for _ in range(LIMIT):
            if there():
                return
            self.take(1)
        pytest.fail(f"not in {LIMIT} partitions; the placement is {self.run.placement}")

    def move(self, placement: dict[str, str]) -> None:
        """Request moves, and take partitions until they are carried out."""
        self.run.move(placement)
        self.until(lambda: self.run.placement == {**self.run.placement, **placement})

    def check(self) -> None:
        """Compare the values with those of a single process."""
        assert_reference(self.values, self.run.dataflow, len(self.values))


def rows_of(records: Path, label: str, kind: str) -> list[Row]:
    """Return the records of one kind of a run whose client has closed, in time order."""
    rows = [row for _, row in rows_of_run(records, label) if row["kind"] == kind]
    return sorted(rows, key=lambda row: float(row["t"]))


def scenes() -> dict[str, Code]:
    params = {"sites": len(HOSTS), "seed": 3, "length": 10_000, "mean_bytes": 8000.0}
    return {host: Code("scenes", {"site": i, **params}) for i, host in enumerate(HOSTS)}


def stubborn(how: str) -> Dataflow:
    """``s`` on h1 -> ``o``, which cannot move -> ``p``, which can."""
    return chain(Code("runtime_codes:Blocks", {"site": 0}), Code("runtime_codes:Stubborn", {"how": how}), MIX)


# --- moved --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sources", "code"),
    [
        ("mix", blocks(), MIX),
        pytest.param("large", blocks(sizes=[400_000]), MIX, marks=pytest.mark.long),
        pytest.param("mean", scenes(), Code("running", {"aggregate": "mean"}), marks=pytest.mark.long),
        ("four ahead", scenes(), Code("running", {"aggregate": "mean"})),
        ("join", scenes(), Code("thalweg.operators.array_join:ArrayJoin", {"window": 3})),
        ("best", scenes(), Code("best-of-last", {"window": 4})),
    ],
)
def test_operators_go_round_all_hosts_while_partitions_flow(
    cluster: LocalCluster, records: Path, tmp_path: Path, name: str, sources: dict[str, Code], code: Code
) -> None:
    flow = complete_binary_tree(sources, code)
    first, second = flow.operators
    steps = [
        {first: "h2"},
        {second: "client"},
        {first: "client", second: "h3"},
        {first: "h3"},
        {first: "h1", second: "h1"},
    ]
    with Client(cluster, allow=ALLOW, records=tmp_path / "client.jsonl") as client:
        ahead = 4 if name == "four ahead" else 1
        with client.run(flow, {first: "h1", second: "h1"}, label=name, ahead=ahead) as run:
            taken = Taken(run)
            taken.take(3)
            for step in steps:
                taken.move(step)
                taken.take(3)
        taken.check()
    moves = [step.items() for step in steps]
    relocated = [*rows_of(records, name, "relocated"), *rows_of(tmp_path, name, "relocated")]
    arrived = [*rows_of(records, name, "arrived"), *rows_of(tmp_path, name, "arrived")]
    assert sorted((row["node"], row["peer"]) for row in relocated) == sorted(itertools.chain(*moves))
    versions = sorted((row["node"], row["detail"]["version"], row["peer"], row["host"]) for row in relocated)
    assert versions == sorted((row["node"], row["detail"]["version"], row["host"], row["peer"]) for row in arrived)
    for row in relocated:
        detail = row["detail"]
        assert (detail["outcome"], detail["protocol"], detail["why"]) == ("moved", "barrier", "")
        assert (row["size_bytes"] > 0) == (code is not MIX)
        assert detail["ago"]["decided"] >= detail["ago"]["suspended"] >= detail["ago"]["state_out"] > 0
        assert row["duration_s"] == detail["ago"]["suspended"]
    proposals = rows_of(tmp_path, name, "proposal")
    assert [row["detail"]["outcome"] for row in proposals] == ["committed"] * len(steps)
    assert [{node: there for node, _, there in row["detail"]["moves"]} for row in proposals] == steps


def test_a_run_moves_operators_by_barrier_and_by_epoch(cluster: LocalCluster, records: Path, tmp_path: Path) -> None:
    flow = complete_binary_tree(scenes(), Code("running", {"aggregate": "mean"}))
    with Client(cluster, allow=ALLOW, records=tmp_path / "client.jsonl") as client:
        restless = LocalMoves(period_s=0.2, k=3, gate=False, seed=5)
        with client.run(flow, dict.fromkeys(flow.operators, "h1"), adaptation=restless, label="random") as run:
            taken, mover = Taken(run), RandomMover(RandomMoves(40, seed=5), run, client.hosts)
            for _ in range(400):
                taken.take(1)
                mover.on_delivered()
        taken.check()
    rows = [*rows_of(records, "random", "relocated"), *rows_of(tmp_path, "random", "relocated")]
    moved = [row["detail"]["protocol"] for row in rows if row["detail"]["outcome"] == "moved"]
    assert len(moved) >= 40  # some were requested, and some decided by the hosts
    assert {"barrier", "epoch"} == set(moved)


# --- stayed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "allow", "why"),
    [
        ((), (), r"host 'h4': 'op0' cannot run there: .*runtime_codes"),
        (("--max-operators", "0"), ALLOW, "host 'h4': it has room for 0 operators"),
    ],
    ids=["code", "room"],
)
def test_a_refusing_target_host_keeps_every_operator_in_place(
    cluster: LocalCluster, tmp_path: Path, options: tuple[str, ...], allow: tuple[str, ...], why: str
) -> None:
    flow = complete_binary_tree(blocks(), MIX)
    with ExitStack() as stack:
        addresses = {**cluster.addresses, "h4": stack.enter_context(host(cluster, "h4", *options, allow=allow))}
        client = stack.enter_context(Client(addresses, allow=ALLOW, records=tmp_path / "client.jsonl"))
        with client.run(flow, {"op0": "h1", "op1": "h1"}, label="refused") as run:
            taken = Taken(run)
            taken.take(3)
            asked = run.move({"op0": "h4", "op1": "h2"})
            taken.take(3)
            taken.move({"op1": "h3"})  # when the other proposal is over
            with pytest.raises(MoveRefused) as caught:
                asked.result(0)
            assert re.match(why, caught.value.reason)
            taken.take(3)
            assert (run.placement["op0"], run.placement["op1"]) == ("h1", "h3")
        taken.check()
    refused, committed = rows_of(tmp_path, "refused", "proposal")
    assert refused["detail"]["outcome"] == "aborted"
    assert re.match(why, refused["detail"]["why"])
    assert committed["detail"]["moves"] == [["op1", "h1", "h3"]]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("snapshot", r"ValueError in snapshot\(\): not now"),
        ("type", r"snapshot\(\) returned str, not bytes"),
        ("size", r"its state has 67108865 bytes; this host sends up to 67108864"),
        ("restore", r"host 'h2' refuses it: ValueError in restore\(\): not here"),
        ("version", r"host 'h2' refuses it: its state is of version \d+; the code here reads \d+"),
    ],
)
def test_an_operator_with_a_state_that_cannot_move_stays(
    cluster: LocalCluster, records: Path, how: str, why: str
) -> None:
    with Client(cluster, allow=ALLOW) as client:
        with client.run(stubborn(how), {"o": "h1", "p": "h3"}, label=how) as run:
            taken = Taken(run)
            taken.take(3)
            run.move({"o": "h2", "p": "h2"})
            taken.until(lambda: run.placement["p"] == "h2")
            taken.move({"p": "h1"})  # when the other proposal is over
            taken.take(3)
            assert run.placement["o"] == "h1"
        taken.check()
    (stayed,) = [row for row in rows_of(records, how, "relocated") if row["node"] == "o"]
    assert (stayed["host"], stayed["peer"], stayed["detail"]["outcome"]) == ("h1", "h2", "stayed")
    assert re.fullmatch(why, stayed["detail"]["why"])
    assert not [row for row in rows_of(records, how, "arrived") if row["node"] == "o"]


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ({"op9": "h1"}, "names node 'op9', which the dataflow does not have"),
        ({"op0": "h9"}, "unknown host 'h9'; the hosts are client, h1, h2, h3"),
        ({"op0": "h2", "op1": "h1"}, "operator 'op1' is pinned to 'h3', not 'h1'"),
        ({"source@h1": "h1"}, "node 'source@h1' is a source; only operators move"),
        ({"source@h1": "h2"}, "source 'source@h1' is pinned to 'h1'"),
        ({"sink": "client"}, "node 'sink' is a sink; only operators move"),
    ],
    ids=["node", "host", "pinned", "source", "source elsewhere", "sink"],
)
def test_an_invalid_move_is_refused_at_once(cluster: LocalCluster, placement: dict[str, str], message: str) -> None:
    nodes = complete_binary_tree(blocks(), MIX).nodes
    flow = Dataflow(tuple(msgspec.structs.replace(n, pinned="h3") if n.name == "op1" else n for n in nodes))
    with Client(cluster, allow=ALLOW) as client, client.run(flow, {"op0": "h1"}) as run:
        taken = Taken(run)
        with pytest.raises(PlacementError, match=re.escape(message)):
            run.move(placement)
        taken.take(3)
        assert run.placement["op0"] == "h1"
        taken.check()


def test_a_negative_limit_of_operators_is_refused() -> None:
    with pytest.raises(UsageError, match="--max-operators is -1"):
        host_main(["--name", "h1", "--max-operators", "-1"])


# --- hosts that die -----------------------------------------------------------------------------------

HASTY = CoreConfig(ping_s=0.2, liveness_s=1.5)


def test_the_run_goes_on_without_a_host_that_holds_nothing(tmp_path: Path) -> None:
    flow = complete_binary_tree(blocks(HOSTS[:2]), MIX)
    with (
        LocalCluster(HOSTS, allow=ALLOW) as cluster,
        Client(cluster, allow=ALLOW, limits=HASTY, records=tmp_path / "client.jsonl") as client,
    ):
        with client.run(flow, {"op0": "h1"}, label="killed") as run:
            taken = Taken(run)
            taken.move({"op0": "h3"})
            taken.move({"op0": "h1"})
            taken.until(
                lambda: client.shell.core.runs[RunId(run.id)].parts.get(Proposer).proposal is None
            )  # or the next one waits
            cluster.kill("h3")
            run.move({"op0": "h3"})
            taken.move({"op0": "h2"})
            taken.take(3)
        taken.check()
        client.close()
        text = (tmp_path / "client.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    *_, lost, back = [row["detail"] for row in rows if row["kind"] == "proposal"]
    assert (lost["outcome"], lost["why"]) == ("aborted", "host 'h3' went away")
    assert (back["outcome"], back["moves"]) == ("committed", [["op0", "h1", "h2"]])


def test_the_loss_of_the_host_of_an_operator_ends_the_run_with_a_single_line_error() -> None:
    flow = complete_binary_tree(blocks(HOSTS[:2]), MIX)
    with LocalCluster(HOSTS, allow=ALLOW) as cluster, Client(cluster.addresses, allow=ALLOW, limits=HASTY) as client:
        run = client.run(flow, {"op0": "h1"})
        taken = Taken(run)
        taken.move({"op0": "h3"})
        cluster.kill("h3")
        with pytest.raises(RunError, match=r"^host 'h3', which holds op0, has been silent for 1\.5 s$"):
            taken.take(LIMIT)
        taken.check()
