"""Every pair of run options with every call on a run that goes on: a call works, or is refused in one line.

``PYTHONPATH=tests python tests/middleware/client/test_options.py`` prints the table of the page ``PAGE``.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from patience import patience
from runtime_codes import ALLOW, MIX, blocks

from thalweg import Failover
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.flow.stream import Delivered, Stream
from thalweg.middleware.client.runs.run import Run
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import RunError, ThalwegError
from thalweg.middleware.network.networks import Network
from thalweg.operators.reference import digest, reference_run

OPTIONS = ("failover", "ahead", "stripes", "networks", "journal", "missing")
CALLS = ("subscribe", "attach", "allow", "add_host", "drain", "resume")
Pair = tuple[str, ...]
SINGLES: list[Pair] = [(), *((name,) for name in OPTIONS)]
PAIRS: list[Pair] = [*SINGLES, *itertools.combinations(OPTIONS, 2)]
FEW: list[Pair] = [("failover", "ahead"), ("stripes", "journal")]
PAGE = Path(__file__).parents[3] / "docs/how-to/embed-in-an-application.md"
WORKS = "works"
HEAD = f"| options | {' | '.join(f'`{call}`' for call in CALLS)} |"


def graph(pair: Collection[str], *more: str) -> Dataflow:
    """Return two sources, an operator on both, and one operator for each sink."""
    flow = Dataflow()
    sources = [flow.source(code, at=host) for host, code in blocks(["h1", "h2"]).items()]
    joint = flow.operator(MIX, *sources, name="joint", missing="nothing" if "missing" in pair else "wait")
    for name in more or ("top",):
        flow.sink(f"{name}s", flow.operator(MIX, joint, sources[0], name=name))
    return flow


def arguments(pair: Collection[str]) -> dict[str, Any]:
    """Return the arguments of ``Client.run`` for the options. Two of the six belong to the client and the graph."""
    every: dict[str, dict[str, Any]] = {
        "failover": {"failover": Failover(4)},
        "ahead": {"ahead": 3},
        "stripes": {"stripes": 2},
        "networks": {"networks": {"fast": Network()}},
    }
    return {key: value for name in pair for key, value in every.get(name, {}).items()}


def outcome(call: Callable[[], None]) -> str:
    """Return that a call works, or the line by which it is refused."""
    try:
        call()
    except ThalwegError as error:
        said = str(error)
        assert len(said.splitlines()) == 1
        return said
    return WORKS


class Trial:
    """One run with a pair of options, and the outcomes of the calls on it, in order."""

    def __init__(self, cluster: LocalCluster, bob: Client, pair: Pair, folder: Path) -> None:
        self._cluster, self._bob, self._pair, self._flow = cluster, bob, pair, graph(pair)
        self._journal = folder / "-".join(pair) if "journal" in pair else None
        self._pool = ThreadPoolExecutor(2)
        self._count = 0
        self._client = self._new_client()
        self._run: Run[Any] | None = None

    def _new_client(self) -> Client:
        return Client(self._cluster, allow=ALLOW, name="alice", journal=self._journal)

    def close(self) -> None:
        """Close the client, even if a call waits in vain."""
        self._client.close()
        self._pool.shutdown()

    def results(self) -> dict[str, str]:
        """Return the outcome of every call. A refused run has one reason for all calls."""

        def begin() -> None:
            where = {"joint": "h3", "top": "h3"}
            self._run = self._client.run(self._flow, where, subscribers=["bob"], **arguments(self._pair))

        if (said := outcome(begin)) != WORKS:
            return dict.fromkeys(CALLS, said)
        return {call: outcome(getattr(self, call)) for call in CALLS}

    @property
    def run(self) -> Run[Any]:
        assert self._run is not None
        return self._run

    def take(self, until: Callable[[], bool], most: int = 2000) -> None:
        """Take partitions, each once and in order, until ``until`` is true."""
        for each in islice(self.run, most):
            assert each.index == self._count
            self._count += 1
            if until():
                return
        raise AssertionError(f"{self._pair}: not within {most} partitions")

    def _some_of(self, stream: Stream[Any], flow: Dataflow, sink: str, count: int = 5) -> None:
        """Take ``count`` partitions of a stream and leave, while a second thread takes from the run."""
        left = threading.Event()
        taken = self._pool.submit(self.take, left.is_set, 100_000)
        try:
            came, first = list(islice(stream, count)), stream.first_index
            stream.detach()
        finally:
            left.set()
            taken.result(patience(20))
        self._check(came, first, flow, sink)

    def _check(self, came: list[Delivered[Any]], first: int, flow: Dataflow, sink: str) -> None:
        assert [each.index for each in came] == list(range(first, first + len(came)))
        right = islice(reference_run(flow, None, ALLOW, sink=sink), first, first + len(came))
        assert [digest(each.value) for each in came] == [digest(value) for value in right]

    def subscribe(self) -> None:
        with self._bob.subscribe(self.run.ticket, "tops") as theirs:
            self._some_of(theirs, self._flow, "tops")

    def attach(self) -> None:
        flow = graph(self._pair, "other")
        with self.run.attach(flow, {"joint": "h3", "other": "h2"}) as query:
            self._some_of(query, flow, "others")

    def allow(self) -> None:
        """Withdraw the permission to subscribe. The subscriber is dismissed with an error."""
        came: list[Delivered[Any]] = []
        with self._bob.subscribe(self.run.ticket, "tops") as theirs:
            rest = self._pool.submit(lambda: came.extend(theirs))
            self.take(lambda: len(came) >= 5 or rest.done())
            self.run.allow()
            self.take(rest.done)
            with pytest.raises(RunError, match="no longer allows the subscription"):
                rest.result()
            self._check(came, theirs.first_index, self._flow, "tops")

    def add_host(self) -> None:
        self._client.add_host("h4", self._cluster.start("h4"))
        until = 0

        def moved() -> bool:
            """Request the move again now and then. A query that left may have replaced the trees of a stream."""
            nonlocal until
            if self._count >= until:
                until = self._count + 100
                self.run.move({"joint": "h4"})
            return self.run.placement["joint"] == "h4"

        self.take(moved)

    def drain(self) -> None:
        """Drain a host. Its operators move away, and the process ends."""
        ended = self._pool.submit(self._cluster.drain, "h4", patience(20))
        self.take(ended.done, 100_000)
        assert ended.result() == 0
        self.take(lambda: self.run.placement["joint"] != "h4")

    def resume(self) -> None:
        """Close the client. A later client of the same name continues the run."""
        before = self.run.id
        if self._journal is not None:
            self.run.commit(self._count - 1)
        self._client.close()
        self._client = self._new_client()
        self._run = self._client.resume(before)
        assert self.run.first_index == self._count
        most = self._count + 5
        self.take(lambda: self._count == most)


def table_of(pairs: Collection[Pair]) -> Iterator[tuple[Pair, dict[str, str]]]:
    """Yield the outcomes of every call for each pair of options, on one cluster."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(LocalCluster(3, allow=ALLOW, networks=["fast"]))
        bob = stack.enter_context(Client(cluster, name="bob"))
        pool = stack.enter_context(ThreadPoolExecutor(1))
        for pair in pairs:
            trial = Trial(cluster, bob, pair, folder)
            try:
                yield pair, pool.submit(trial.results).result(patience(20))
            finally:
                trial.close()
                if "h4" in cluster.pids and "h4" not in cluster.poll():
                    cluster.kill("h4")


def markdown(table: dict[Pair, dict[str, str]]) -> str:
    """Return the table of the docs. Refusals are numbers, with their lines below."""
    said = [*dict.fromkeys(cell for row in table.values() for cell in row.values() if cell != WORKS)]
    lines = [HEAD, "|---" * (len(CALLS) + 1) + "|"]
    for pair, row in table.items():
        cells = [WORKS if row[call] == WORKS else f"refused ({said.index(row[call]) + 1})" for call in CALLS]
        lines.append(f"| {', '.join(f'`{name}`' for name in pair) or 'none'} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{number}. `{line}`" for number, line in enumerate(said, 1))])


def test_selected_pairs_of_options_work_with_every_call_as_the_page_says() -> None:
    check(dict(table_of(FEW)))


@pytest.mark.long
def test_every_pair_of_options_works_with_every_call_or_is_refused_as_the_page_says() -> None:
    check(dict(table_of(PAIRS)))


def check(table: dict[Pair, dict[str, str]]) -> None:
    """Check that the page has these rows and the reason of every refusal."""
    page = PAGE.read_text().splitlines()
    said = {line.partition(".")[0]: line.partition("`")[2].removesuffix("`") for line in page if ". `" in line[:5]}
    for pair, row in table.items():
        begin = f"| {', '.join(f'`{name}`' for name in pair) or 'none'} |"
        (line,) = [line for line in page if line.startswith(begin)]
        cells = [cell.strip() for cell in line.removeprefix(begin).strip(" |").split("|")]
        for call, cell in zip(CALLS, cells, strict=True):
            number = cell.removeprefix("refused (").removesuffix(")")
            assert row[call] == said.get(number, cell), (pair, call)


if __name__ == "__main__":
    found: dict[Pair, dict[str, str]] = {}
    for options, cells in table_of(PAIRS):
        found[options] = cells
        print(options, cells, file=sys.stderr, flush=True)
    print(markdown(found))
