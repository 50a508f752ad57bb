"""Runs whose client dies and that a later client resumes from the journal: every partition comes once."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from flows import chain
from patience import patience
from runtime_codes import ALLOW, blocks

from thalweg import Failover
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.failover.journal import FILE, Journal
from thalweg.middleware.client.runs.run import Attached, Run
from thalweg.middleware.client.steering.run_options import Planning
from thalweg.middleware.dataflow import Code, Dataflow
from thalweg.middleware.errors import JournalError, JournalGapError, RunError, UsageError
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.middleware.planning import CostModel, Plan, Task
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.operators.reference import digest, reference_run

FLOW = chain(blocks()["h1"], Code("running"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, allow=ALLOW) as started:
        yield started


def at(cluster: LocalCluster, number: int) -> str:
    """Return where client ``number`` listens. It runs outside the process that holds the cluster."""
    return f"{cluster.addresses['h1']}-client-{number}"


def has(count: int, start: int = 0) -> list[tuple[int, str]]:
    """Return the results of a single process."""
    values = islice(reference_run(FLOW, start + count, (*DEFAULT_ALLOW, *ALLOW)), start, None)
    return [(start + place, digest(value)) for place, value in enumerate(values)]


def work(hosts: dict[str, str], listen: str, folder: Path, out: Path, partitions: int, dies_after: int) -> None:
    """Write down the partitions of a run, as an application does. Die after ``dies_after`` of them (-1: never)."""
    with Client(hosts, listen=listen, allow=ALLOW, journal=folder) as client:
        begun = client._journal is not None and client._journal.runs()
        run = client.resume() if begun else client.run(FLOW, {"o": "h2"}, partitions=partitions, failover=Failover(4))
        with out.open("a") as had:
            for count, partition in enumerate(run):
                print(partition.index, digest(partition.value), file=had, flush=True)
                run.commit(partition.index)
                if count + 1 == dies_after:
                    os.kill(os.getpid(), signal.SIGKILL)


def written(out: Path) -> list[tuple[int, str]]:
    return [(int(index), said) for index, said in (line.split() for line in out.read_text().splitlines())]


def test_successors_of_killed_clients_deliver_every_partition_once(cluster: LocalCluster, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    hosts, out, folder = dict(cluster.addresses), tmp_path / "had", tmp_path / "journal"
    for number, dies_after in enumerate((17, 30, -1)):
        arguments = (hosts, at(cluster, number), folder, out, 90, dies_after)
        process = context.Process(target=work, args=arguments)
        process.start()
        process.join(patience(60))
        assert process.exitcode == (0 if dies_after < 0 else -signal.SIGKILL)
    assert written(out) == has(90)
    with Client(hosts, listen=at(cluster, 9), allow=ALLOW, journal=folder) as client:
        assert client._journal is not None
        (run,) = client._journal.runs()
        with pytest.raises(UsageError, match="is over: no partition of it is left"):
            client.resume(run)


def left(cluster: LocalCluster, folder: Path, count: int = 12) -> str:
    """Start a run, commit ``count`` of its partitions, close its client, and return its id."""
    with Client(cluster, allow=ALLOW, journal=folder) as client:
        run = client.run(FLOW, {"o": "h2"}, partitions=40, failover=Failover(4))
        assert [partition.index for partition in islice(run, count + 1)][-1] == count  # it is not committed
    return run.id


def test_taking_the_next_partition_commits_the_partition_before(cluster: LocalCluster, tmp_path: Path) -> None:
    run_id = left(cluster, tmp_path)
    cluster.kill("h2")  # while no client leads the run
    with Client(cluster, allow=ALLOW, journal=tmp_path) as client:
        with pytest.raises(UsageError, match="has no run 'nonsense'"):
            client.resume("nonsense")
        with client.resume(run_id) as run:
            assert run.first_index == 12
            assert [(each.index, digest(each.value)) for each in run] == has(28, 12)
    cluster.start("h2")
    with Client(cluster, allow=ALLOW) as other:
        with pytest.raises(UsageError, match="give this client the journal of the earlier client"):
            other.resume(run_id)
        with (
            other.run(FLOW, {"o": "h2"}) as run,
            pytest.raises(UsageError, match="and this client has none; give it one"),
        ):
            run.commit(0)


@pytest.mark.parametrize(("gone", "place"), [("h1", "h3"), ("h3", "h1")])
def test_a_resumed_run_does_not_wait_for_an_absent_host_or_stand_in_of_a_source(
    cluster: LocalCluster, tmp_path: Path, gone: str, place: str
) -> None:
    """The client knows that the host is absent, and does not wait for it."""
    nodes = [msgspec.structs.replace(node, stand_ins=("h3",) if node.kind == "source" else ()) for node in FLOW.nodes]
    with Client(cluster, allow=ALLOW, journal=tmp_path) as client:
        run = client.run(Dataflow(tuple(nodes)), {"o": "h2"}, partitions=40, failover=Failover(4, wait_s=600))
        assert [partition.index for partition in islice(run, 13)][-1] == 12
    cluster.kill(gone)
    try:
        with Client(cluster, allow=ALLOW, journal=tmp_path) as client, client.resume() as run:
            assert [(each.index, digest(each.value)) for each in run] == has(28, 12)
            assert run.placement["s"] == place
    finally:
        cluster.start(gone)


def test_taking_a_partition_commits_nothing_once_the_application_calls_commit(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with Client(cluster, allow=ALLOW, journal=tmp_path) as client:
        run = client.run(FLOW, {"o": "h2"}, partitions=10, failover=Failover(4))
        run.commit(-1)
        for partition in run:  # all of them; a crash now would bring back the uncommitted ones
            if partition.index == 6:
                run.commit(4)
        with pytest.raises(
            UsageError, match="partition 10 of sink 't' has not been taken: the application has taken 0 to 9"
        ):
            run.commit(10)
    with Client(cluster, allow=ALLOW, journal=tmp_path) as client:
        with pytest.raises(UsageError, match="start is -1"):
            client.resume(start=-1)
        with client.resume() as again:
            with pytest.raises(UsageError, match="goes on in this client"):
                client.resume()
            assert [(each.index, digest(each.value)) for each in again] == has(5, 5)


def test_a_run_is_over_at_the_commit_of_the_last_partition_even_after_the_stream_ended(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with Client(cluster, allow=ALLOW, journal=tmp_path) as client:
        run = client.run(FLOW, {"o": "h2"}, partitions=3, failover=Failover(4))
        run.commit(-1)
        assert [partition.index for partition in run] == [0, 1, 2]
        assert client._journal is not None
        assert client._journal.runs()[run.id] is not None
        run.commit(2)
        assert client._journal.runs()[run.id] is None
        run.close()
        run.commit(2)
        with pytest.raises(UsageError, match="is over: no partition of it is left"):
            client.resume(run.id)


def test_the_later_of_two_clients_with_copies_of_a_journal_leads_the_run(cluster: LocalCluster, tmp_path: Path) -> None:
    """The earlier client gets an error of one line. No partition that it requested comes to the later client."""
    with Client(cluster, allow=ALLOW, journal=tmp_path / "a") as first:
        run = first.run(FLOW, {"o": "h2"}, partitions=300, failover=Failover(4))
        assert [partition.index for partition in islice(run, 6)][-1] == 5
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        hosts = dict(cluster.addresses)
        with Client(hosts, listen=at(cluster, 20), allow=ALLOW, journal=tmp_path / "b") as later:
            again = later.resume()
            came = [(each.index, digest(each.value)) for each in islice(again, 20)]
            told = rf"client 'client' leads the run from another process, process {os.getpid()} on \S+"
            with pytest.raises(RunError, match=rf"^host 'h[123]': {told}; take its partitions there$"):
                list(run)
            came += [(each.index, digest(each.value)) for each in islice(again, 20)]
            assert came == has(40, 5)


def lead(hosts: dict[str, str], listen: str, folder: Path, about: tuple[Any, ...]) -> None:
    """Resume the run in one of two competing processes. Report the partitions that came, or the error that ended it."""
    both, answers, until = about
    with Client(hosts, listen=listen, allow=ALLOW, journal=folder) as client:
        both.wait(patience(60))
        begun, had, why = time.monotonic(), [], ""
        try:
            for partition in client.resume():
                had.append((partition.index, digest(partition.value)))
                if until.is_set() and len(had) >= 8:
                    break
        except RunError as error:
            why = str(error)
        answers.put((os.getpid(), had, why, time.monotonic() - begun))


def test_the_loser_of_two_processes_with_copies_of_a_journal_soon_names_the_leader(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The source has stand-ins, so the client does not believe a single host."""
    there = {"s": ("h2", "h3")}
    nodes = [msgspec.structs.replace(node, stand_ins=there.get(node.name, ())) for node in FLOW.nodes]
    with Client(cluster, allow=ALLOW, journal=tmp_path / "a") as client:
        run = client.run(Dataflow(tuple(nodes)), {"o": "h2"}, failover=Failover(4))
        assert [partition.index for partition in islice(run, 6)][-1] == 5
        run._shut(over=False)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    context = multiprocessing.get_context("spawn")
    answers, until = context.Queue(), context.Event()
    about = context.Barrier(2), answers, until
    processes = {}
    for number, name in enumerate("ab"):
        arguments = (dict(cluster.addresses), at(cluster, 30 + number), tmp_path / name, about)
        process = context.Process(target=lead, args=arguments)
        process.start()
        processes[process.pid] = process
    loser, _, why, took_s = answers.get(timeout=patience(60))
    (leader,) = processes.keys() - {loser}
    who = rf"client 'client' leads the run from another process, process {leader} on {re.escape(socket.gethostname())}"
    assert re.fullmatch(rf"host 'h[123]': {who}; take its partitions there", why), why
    assert took_s < patience(5)
    until.set()
    said, had, why, _ = answers.get(timeout=patience(60))
    assert (said, why) == (leader, "")
    assert had == has(len(had), 5)
    for process in processes.values():
        process.join(patience(20))


@pytest.mark.parametrize("again", [False, True])
def test_a_resumed_run_continues_replanning(cluster: LocalCluster, tmp_path: Path, again: bool) -> None:
    """The run uses the strategy that it was started with, or the planner that is passed to ``resume``."""

    class Away(msgspec.Struct, frozen=True):
        needs: ClassVar = set[str]()

        def plan(self, task: Task, model: CostModel) -> Plan:
            return Plan({**(task.current or {}), "o": "h3"}, task.dataflow, cost_s=1.0, initial_cost_s=2.0)

    with Client(cluster, allow=ALLOW, journal=tmp_path) as client:
        first = client.run(FLOW, "global", failover=Failover(4))
        assert next(first).index == 0
    moves = GlobalMoves(0.1)
    with Client(cluster, allow=ALLOW, journal=tmp_path) as client:
        run = client.resume(adaptation=moves, planning=Planning(planner=Away())) if again else client.resume()
        assert isinstance(run, Run)
        assert run.search is not None
        assert (run.search.options, run.search.label) == (moves if again else GlobalMoves(), "global")
        came = [next(run).value]
        while again and run.placement["o"] != "h3":
            came.append(next(run).value)
        come = [digest(value) for value in came]
        assert come == [said for _, said in has(len(came))]


def test_a_forked_process_does_not_hold_the_lock_of_the_journal(cluster: LocalCluster, tmp_path: Path) -> None:
    client = Client(cluster, allow=ALLOW, journal=tmp_path)
    run = client.run(FLOW, {"o": "h2"}, partitions=3)
    until, ends = os.pipe()
    child = os.fork()
    if not child:
        os.close(ends)
        os.read(until, 1)
        os._exit(0)
    try:
        assert [each.index for each in run] == [0, 1, 2]
        client.close()
        Journal(tmp_path).close()
    finally:
        os.close(ends)
        os.waitpid(child, 0)
        os.close(until)


def test_an_application_may_name_the_partition_from_which_a_run_resumes(cluster: LocalCluster, tmp_path: Path) -> None:
    left(cluster, tmp_path)
    with Client(cluster, allow=ALLOW, journal=tmp_path) as client, client.resume(start=5) as run:
        assert [(each.index, digest(each.value)) for each in islice(run, 8)] == has(8, 5)


def test_a_run_may_begin_with_a_later_partition(cluster: LocalCluster) -> None:
    plain = chain(blocks()["h1"], Code("runtime_codes:Mix"))
    with Client(cluster, allow=ALLOW) as client:
        with client.run(plain, {"o": "h2"}, partitions=5, start=7) as run:
            got = [(each.index, digest(each.value)) for each in run]
        values = islice(reference_run(plain, 12, (*DEFAULT_ALLOW, *ALLOW)), 7, None)
        assert got == [(7 + place, digest(value)) for place, value in enumerate(values)]
        with pytest.raises(UsageError, match="start is -1"):
            client.run(plain, {"o": "h2"}, start=-1)


def test_a_journal_that_lost_the_last_entries_names_the_missing_partitions(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    run_id = left(cluster, tmp_path, 30)
    data = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(data[: len(data) - 4096])
    with Client(cluster, allow=ALLOW, journal=tmp_path) as client:
        with pytest.raises(JournalGapError, match=rf"gap in run {run_id}: partitions \d+ to 29 of sink 't'") as caught:
            client.resume()
        (first, until) = caught.value.missing["t"]
        assert (caught.value.run, until) == (run_id, 30)
        assert 0 < first < 30
        with client.resume(accept_loss=True) as run:
            assert [(each.index, digest(each.value)) for each in run] == has(10, 30)


def test_an_older_copy_of_a_journal_is_resumed_after_a_later_client_has_led_the_run(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The mark names the last leader. A lower process number does not make the resumed run the older one."""
    left(cluster, tmp_path, 10)
    copy = {name: (tmp_path / name).read_bytes() for name in (FILE, f"{FILE}-wal") if (tmp_path / name).exists()}
    for process in (1 << 25, 1 << 24, 3):  # each lower than the one before
        with Client(cluster, allow=ALLOW, journal=tmp_path) as client:
            client._process = process
            again = client.resume(accept_loss=True)
            assert [each.index for each in islice(again, 4)] == [*range(again._first, again._first + 4)]
            again.commit(again._first + 3)
        for name in (FILE, f"{FILE}-wal"):
            (tmp_path / name).unlink(missing_ok=True)
        for name, data in copy.items():
            (tmp_path / name).write_bytes(data)


def test_an_application_may_have_the_missing_partitions_of_a_gap_delivered_again(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """A later client continues from there."""
    left(cluster, tmp_path, 30)
    data = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(data[: len(data) - 4096])
    with Client(cluster, allow=ALLOW, journal=tmp_path) as client:
        again = client.resume(start=17)
        assert [(each.index, digest(each.value)) for each in islice(again, 4)] == has(4, 17)
    with Client(cluster, allow=ALLOW, journal=tmp_path) as client, client.resume() as run:
        assert [(each.index, digest(each.value)) for each in run] == has(20, 20)


def test_the_last_intact_entry_about_replicas_counts_if_a_later_entry_is_damaged(
    cluster: LocalCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left(cluster, tmp_path, 30)
    data = bytearray((tmp_path / FILE).read_bytes())
    data[data.rindex(b"kept") + 40] ^= 0x10
    (tmp_path / FILE).write_bytes(data)
    with Client(cluster, allow=ALLOW, journal=tmp_path) as client, client.resume() as run:
        assert [(each.index, digest(each.value)) for each in run] == has(10, 30)
    assert "is damaged: its last whole entries count" in caplog.text


def test_a_commit_fails_if_the_folder_of_the_journal_was_removed(cluster: LocalCluster, tmp_path: Path) -> None:
    with Client(cluster, allow=ALLOW, journal=tmp_path / "a") as client:
        run = client.run(FLOW, {"o": "h2"}, partitions=10, failover=Failover(4))
        run.commit(next(run).index)
        shutil.rmtree(tmp_path / "a")
        with pytest.raises(JournalError, match="was removed"):
            run.commit(next(run).index)
        assert [each.index for each in run] == [2, 3, 4, 5, 6, 7, 8, 9], "the run goes on"


# --- attached queries -------------------------------------------------------------------------------------


def beside(sink: str, *codes: Code) -> Dataflow:
    """Return a query that shares the source of ``FLOW``. Its operators are named after the sink: ``u0``, ``u1``, …"""
    flow, (source,) = Dataflow(), FLOW.sources
    name = flow.source(blocks()["h1"], at="h1", name=source)
    for number, code in enumerate(codes):
        name = flow.operator(code, name, name=f"{sink}{number}")
    flow.sink(sink, name)
    return flow


ASIDE = beside("u", Code("best-of-last"), Code("running"))
BESIDE = beside("v", Code("best-of-last", {"window": 2}))


def aside_has(count: int, first: int, start: int, flow: Dataflow = ASIDE) -> list[tuple[int, str]]:
    """Return the results of a single process for a query that begins with partition ``first``, from ``start`` on."""
    since = dict.fromkeys((name for name in flow.by_name if name != "s"), first)
    values = reference_run(flow, start + count, (*DEFAULT_ALLOW, *ALLOW), first=since)
    return [(first + place, digest(value)) for place, value in enumerate(values)][start - first :]


def take(query: Run[Any], count: int, out: Path) -> int:
    """Take ``count`` partitions. Write each of them down before its commit. Return the index of the last one."""
    index = -1
    for partition in islice(query, count):
        with out.open("a") as had:
            print(partition.index, digest(partition.value), file=had, flush=True)
        query.commit(partition.index)
        index = partition.index
    return index


def reach(run: Run[Any], *queries: Attached) -> None:
    """Take partitions of the run, and of the queries that have begun, until every query has begun.

    A query begins where the hosts agree, while the application goes on. An application that only waits for its first
    partition may hold up the agreement.
    """
    with ThreadPoolExecutor(len(queries)) as pool:
        begun = {query: pool.submit(lambda query: query.first_index, query) for query in queries}
        index = -1
        while not all(first.done() for first in begun.values()) or index + 1 < max(q.first_index for q in queries):
            index = next(run).index
            run.commit(index)
            for query, first in begun.items():
                if first.done() and first.result() <= index:
                    query.commit(next(query).index)


def work_on_two(hosts: dict[str, str], listen: str, folder: Path) -> None:
    """An application with two queries, which is killed at once after some partitions of each."""
    with Client(hosts, listen=listen, allow=ALLOW, journal=folder) as client:
        if client._journal is not None and client._journal.runs():
            run = client.resume()
            (other,) = run.attached.values()
        else:
            run = client.run(FLOW, {"o": "h2"}, failover=Failover(4))
            index = take(run, 3, folder / "own")
            other = run.attach(ASIDE, {"u0": "h3", "u1": "h2"})
            with ThreadPoolExecutor(1) as pool:  # the query begins while the application goes on, as in ``reach``
                begun = pool.submit(lambda: other.first_index)
                while not begun.done() or index < begun.result():
                    index = take(run, 1, folder / "own")
        for _ in range(6):
            take(run, 2, folder / "own")
            take(other, 1, folder / "other")
            take(other, 1, folder / "other")
        os.kill(os.getpid(), signal.SIGKILL)


def test_attached_queries_go_on_with_a_resumed_run(cluster: LocalCluster, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    for number in range(3):
        arguments = (dict(cluster.addresses), at(cluster, 20 + number), tmp_path)
        process = context.Process(target=work_on_two, args=arguments)
        process.start()
        process.join(patience(60))
        assert process.exitcode == -signal.SIGKILL
    own = written(tmp_path / "own")
    assert own == has(len(own))
    assert len(own) > 39, "36, three before the query, and those until it began"
    got = written(tmp_path / "other")
    first, _ = got[0]
    assert first >= 3
    assert got == aside_has(36, first, first)
    with Client(cluster, allow=ALLOW, journal=tmp_path) as client:
        run = client.resume()
        ((number, other),) = run.attached.items()
        assert (number, run.first_index, other.first_index) == (1, len(own), first + 36)
        assert (other.names["s"], other.shared) == ("s", ("s",))
        other.detach()
        take(run, 20, tmp_path / "own")
        assert run.dataflow.sinks == ("t",), "what it alone used is gone"
        run.close()
        with pytest.raises(UsageError, match="is over"):
            client.resume(run.id)
    assert written(tmp_path / "own") == has(len(own) + 20)


def test_queries_that_were_over_do_not_come_back_with_a_resumed_run(cluster: LocalCluster, tmp_path: Path) -> None:
    with Client(cluster, allow=ALLOW, journal=tmp_path) as client:
        run = client.run(FLOW, {"o": "h2"}, failover=Failover(4))
        first, second = run.attach(ASIDE, {"u0": "h3", "u1": "h2"}), run.attach(BESIDE, {"v0": "h3"})
        reach(run, first, second)
        for _ in range(5):
            for each in (run, first, second):
                take(each, 1, tmp_path / "had")
        first.detach()
        run.close()
        take(second, 20, tmp_path / "had")
        number, begun = second.query, second.first_index
        following = next(second).index  # is not committed, and comes again
    with Client(cluster, allow=ALLOW, journal=tmp_path) as client:
        again = client.resume()
        assert list(again) == []
        ((mine, other),) = again.attached.items()
        assert (mine, other.first_index) == (number, following)
        came = [(each.index, digest(each.value)) for each in islice(other, 8)]
        assert came == aside_has(8, begun, following, BESIDE)
        third = again.attach(ASIDE, {"u0": "h3", "u1": "h2"})
        assert third.query > number
        other.close()
        third.close()
        with pytest.raises(UsageError, match="is over"):
            client.resume(again.id)
