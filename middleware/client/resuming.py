"""Continuation of a journaled run by a later client: ``Client.resume``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import msgspec

from thalweg.middleware.client.failover.journal import (
    Journal,
    JournaledQuery,
    JournaledRun,
    ResumableStream,
)
from thalweg.middleware.client.failover.mark import LiveRun
from thalweg.middleware.client.membership.host_registry import HostRegistry
from thalweg.middleware.client.run_planning import RunPlanning, cost_model_of
from thalweg.middleware.client.steering.replanning import Replanner, first_ways
from thalweg.middleware.client.steering.run_options import Networks
from thalweg.middleware.client.stripes.stripes import with_state
from thalweg.middleware.core.failover.recovery import resumed
from thalweg.middleware.dataflow import FIXED, Placement, Reorderable
from thalweg.middleware.errors import JournalGapError, UsageError, expect, nearest, shown
from thalweg.middleware.loading import Allow, reorderable
from thalweg.middleware.logbook import Logbook
from thalweg.middleware.network.networks import Network, where_joined
from thalweg.middleware.planning import CostModel, Planner, Stripe, get_strategy
from thalweg.middleware.planning.asking import Probe
from thalweg.middleware.planning.planners.planner import needs_while
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import GlobalMoves


def find(
    journal: Journal | None, run: str | None, *, accept_loss: bool = False, start: int | None = None
) -> tuple[str, JournaledRun]:
    """Return the run with id ``run`` in a journal, or the only run that is not over.

    Args:
        accept_loss: continue although the journal lacks entries of the run.
        start: the first partition of the run's own sinks, if the application knows it.

    Raises UsageError if there is none, JournalGapError if entries are missing.
    """
    if journal is None:
        raise UsageError(
            "a run is resumed from a journal; give this client the journal of the earlier client: journal=DIR"
        )
    known, gone = journal.runs(), journal.gone()
    folder, left = journal.folder, [name for name, record in known.items() if record is not None]
    if run in gone or (run is None and gone and not (accept_loss and left)):
        _refuse_gone(folder, gone, next(iter(gone)) if run is None else str(run))
    if journal.doubt and not accept_loss and run not in known:
        raise JournalGapError(
            f"the journal {folder} cannot show that it has all of its runs, as {journal.doubt};"
            " accept_loss=True goes on with the runs that it has"
        )
    if accept_loss and journal.doubt:
        journal.accept_doubt()
    run_id = _only(journal, left) if run is None else run
    if run_id not in known:
        raise UsageError(f"the journal {folder} has no run {shown(run_id)}; {nearest(str(run_id), known)}")
    record = known[run_id]
    if record is None:
        raise UsageError(f"run {run_id} is over: no partition of it is left")
    _see_gap(journal, run_id, record, accept_loss=accept_loss, start=start)
    return run_id, record


def _only(journal: Journal, left: Sequence[str]) -> str:
    """Return the only run of a journal that is not over. Raise UsageError if there is none, or several."""
    if not left:
        raise UsageError(f"the journal {journal.folder} has no run to resume: {journal.said or 'begin one'}")
    if len(left) > 1:
        several = f"{len(left)} runs to resume; name one of them: {', '.join(left)}"
        raise UsageError(f"the journal {journal.folder} has {several}")
    return left[0]


def _refuse_gone(folder: Path, gone: Mapping[str, LiveRun], run: str) -> NoReturn:
    """Raise JournalGapError for a run whose entries are all lost from the journal."""
    committed = gone[run].had
    counts = [f"partitions up to {last} of sink {shown(sink)} were committed" for sink, last in committed.items()]
    begin = f"begin it anew with Client.run(…, start={min(committed.values()) + 1})" if committed else "begin it anew"
    why = f"the journal {folder} has lost all entries of run {run}"
    missing = {sink: (0, last + 1) for sink, last in committed.items()}
    raise JournalGapError(f"{why}: {', '.join([*counts, begin])}", run=run, missing=missing)


def _see_gap(journal: Journal, run: str, found: JournaledRun, *, accept_loss: bool, start: int | None) -> None:
    """Raise JournalGapError if the journal lacks needed entries of a run, unless the application accepts the loss."""
    parts = [
        f"partitions {first} to {until - 1} of sink {shown(sink)} were committed, and have no entries"
        for sink, (first, until) in found.missing.items()
    ]
    if found.lost:
        parts.append(f"entries of the kinds {', '.join(map(shown, found.lost))} are missing")
    if found.doubt:
        ends = [f"{index} of sink {shown(sink)}" for sink, index in found.had.items()]
        known = f": more may have been committed than partition {', '.join(ends)}" if ends else ""
        parts.append(f"it cannot show that it is complete, as {found.doubt}{known}")
    known_start = start is not None and not (found.lost or found.doubt or found.queries)
    if not parts or known_start:
        return
    gap = f"the journal {journal.folder} has a gap in run {run}: {'; '.join(parts)}"
    if not accept_loss:
        ways = "accept_loss=True goes on after the last partition that is known to be committed"
        firsts = [first for first, _ in found.missing.values()]
        enough = firsts and not (found.lost or found.doubt or found.queries)  # as for known_start
        again = f", and start={min(firsts)} gives the missing partitions again" if enough else ""
        raise JournalGapError(f"{gap}; {ways}{again}", run=run, missing=found.missing)
    journal.logbook.write("journal-trouble", f"{gap}; the application accepts the gap", run=run, reason=gap)
    journal.accept(run)


class ResumedMoves(msgspec.Struct, frozen=True):
    """Options of ``Client.resume`` for the moves of a resumed run."""

    adaptation: GlobalMoves | None
    planner: Planner
    model: str | CostModel


class Resumer(NamedTuple):
    """Parts of a client that resume a run.

    ``probe`` measures links, ``allow`` has the packages whose code may be loaded.

    ``process``: the number of this process (``protocol.run_id``).
    """

    registry: HostRegistry
    planning: RunPlanning
    probe: Probe
    allow: Allow
    process: int


class ResumedRun(msgspec.Struct, frozen=True):
    """State from which a client continues a run: places of its nodes, first partition of each sink, and open queries.

    ``search``, ``moves`` and ``free``: the planner of moves, its options, and the operators that may be reordered.
    ``ways`` and ``networks``: the networks of links at the start, and the requested networks.
    """

    install: m.Install
    where: Placement
    starts: dict[str, int]
    queries: dict[int, JournaledQuery]
    search: Replanner | None
    moves: GlobalMoves | None
    free: Reorderable
    ways: tuple[m.RoutePreference, ...]
    networks: Mapping[str, Network]
    kept: e.ResumableRun

    def request(self, sinks: Collection[str]) -> e.RunRequested:
        """Return the request to the client's core. ``sinks``: the open sinks of the run itself."""
        queries = {number: query.sinks for number, query in self.queries.items()}
        recovery = msgspec.structs.replace(self.kept, queries=({0: tuple(sinks)} if sinks else {}) | queries)
        moves = self.moves, self.free.codes, (), self.free.merging
        return e.RunRequested(self.install, *moves, journaled=True, kept=recovery)


def go_on(run_id: str, found: JournaledRun, start: int | None, moving: ResumedMoves, by: Resumer) -> ResumedRun:
    """Return the state from which a client continues a run of a journal, on the hosts that are present.

    ``start``: the first partition of the run's own sinks, if the application knows it. Raises UsageError if the run is
    over.
    """
    recovery, roster = found.kept, by.registry
    assert not isinstance(recovery, ResumableStream)
    starts = _starts(run_id, found, recovery, start, roster.name)
    peers = {host: roster.peers[host] for host in roster.hosts}
    install = resumed(recovery, starts, peers, roster.name, by.process, found.term)
    install = msgspec.structs.replace(install, version=roster.version)
    where = {entry.node: entry.host for entry in install.locations}
    moves, planner = moving.adaptation, moving.planner
    expect(moves, GlobalMoves | None, "the adaptation of a resumed run is GlobalMoves")
    if moves is None and found.by:
        strategy = get_strategy(found.by)
        if isinstance(strategy.adaptation, GlobalMoves):
            moves, planner = strategy.adaptation, strategy.again
    search, free, flow = None, FIXED, install.dataflow
    asked = found.asked or Networks()
    networks = where_joined(asked.networks, roster.ends)
    if networks or moves is not None:
        task = by.planning.task(flow, None, None)
        task = task.but(networks=networks, wanted_hz=asked.wanted_hz, hops=asked.hops)
    ways = first_ways(task, where, by.probe)[0] if networks else ()
    if moves is not None:
        costing = cost_model_of(moving.model)
        search = Replanner(task, costing, moves, planner, found.by or "global")
        free = reorderable((flow.by_name[name].code for name in flow.operators), by.allow)
        install = msgspec.structs.replace(install, news=needs_while(moves, planner) or True)
    left = {number: query for number, query in found.queries.items() if starts.keys() >= {*query.sinks}}
    return ResumedRun(install, where, starts, left, search, moves, free, ways, asked.networks, recovery)


def _starts(run_id: str, found: JournaledRun, kept: e.ResumableRun, start: int | None, client: str) -> dict[str, int]:
    """Return the first partition of each sink. Raise UsageError if the run is over or belongs to a different client."""
    _check_owner(run_id, kept.install.client, client)
    firsts = {sink: query.first for query in found.queries.values() for sink in query.sinks}
    starts = {
        sink: max(found.next_of(sink), firsts[sink]) if sink in firsts
        else found.next_of(sink) if start is None else start
        for sink in kept.install.dataflow.sinks
    }  # fmt: skip
    _check_left(run_id, min(starts.values()), kept.install.partitions)
    _log_trouble(found, client)
    return starts


class ResumedStream(NamedTuple):
    """Trees over which a client continues a stream, and ``start``, their first partition.

    ``had``: the last committed partition of each sink, unless it is before ``start``.
    """

    trees: tuple[Stripe, ...]
    start: int
    had: Mapping[str, int]


def options_of(kept: ResumableStream, on: ResumedStream, by: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``Client.run`` that continue a stream over several trees.

    ``by``: the strategy that the stream was started with. Its moves apply if ``options`` have no adaptation.
    """
    moving: dict[str, Any] = {}
    if options["adaptation"] is None and by:
        strategy = get_strategy(by)
        planning = msgspec.structs.replace(options["planning"], planner=strategy.again)
        moving = {"adaptation": strategy.adaptation, "planning": planning}
    return {
        **options, **moving, "stripes": on.trees, "start": on.start, "window": kept.window, "ahead": kept.ahead,
        "partitions": None if kept.end is None else kept.end - on.start, "label": kept.label,
        "call_timeout_s": kept.call_timeout_s, "failover": kept.failover,
    }  # fmt: skip


class ResumingClient(NamedTuple):
    """Client that continues a stream: name, present hosts, and packages whose code may be loaded."""

    client: str
    hosts: Collection[str]
    allow: Allow


def go_on_over(run_id: str, found: JournaledRun, start: int | None, here: ResumingClient) -> ResumedStream:
    """Return the trees and the first partition with which a client continues a stream of a journal.

    Trees with an absent host are left out, unless every tree has an absent host. The stream begins with the next
    partition. If operators above the trees have state, the stream begins with its first partition, because their states
    are lost. Raises UsageError if the stream is over.
    """
    stream = found.kept
    assert isinstance(stream, ResumableStream)
    _check_owner(run_id, stream.client, here.client)
    flow = stream.trees[0].dataflow
    firsts = {sink: found.next_of(sink) if start is None else start for sink in flow.sinks}
    first = min(firsts.values())
    _check_left(run_id, first, stream.end)
    _log_trouble(found, here.client)
    whole = tuple(tree for tree in stream.trees if {*tree.placement.values()} <= {*here.hosts})
    begin = stream.start if with_state(flow, here.allow) else first
    return ResumedStream(
        whole or stream.trees, begin, {sink: index - 1 for sink, index in firsts.items() if index > begin}
    )


def _check_owner(run_id: str, owner: str, client: str) -> None:
    if owner != client:
        raise UsageError(
            f"run {run_id} belongs to client {owner!r}, and this client is {client!r}; take the name {owner!r}"
        )


def _check_left(run_id: str, first: int, end: int | None) -> None:
    if end is not None and first >= end:
        raise UsageError(f"run {run_id} is over: no partition of it is left")


def _log_trouble(found: JournaledRun, client: str) -> None:
    if found.said:
        Logbook(client).write("journal-trouble", found.said, reason=found.said)
