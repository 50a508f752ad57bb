"""What a client goes on with that another has begun, and written down: ``Client.resume``."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from thalweg.middleware.client.journal import Found, Journal, Stream
from thalweg.middleware.core.relocation.recovery import resumed
from thalweg.middleware.errors import UsageError, nearest, shown
from thalweg.middleware.planning import Stripe
from thalweg.middleware.protocol import messages as m


def find(journal: Journal | None, run: str | None) -> tuple[str, Found]:
    """The run of that name in a journal, or the only one that is not over; raises UsageError where there is none."""
    if journal is None:
        raise UsageError("a run is resumed from a journal; give the client that of the one before: journal=DIR")
    known = journal.runs()
    folder, left = journal.folder, [name for name, each in known.items() if each is not None]
    if run is None and len(left) != 1:
        raise UsageError(f"the journal {folder} has {len(left)} runs that are not over; say which: {', '.join(left)}")
    run_id = left[0] if run is None else run
    if run_id not in known:
        raise UsageError(f"the journal {folder} has no run {shown(run_id)}; {nearest(str(run_id), known)}")
    kept = known[run_id]
    if kept is None:
        raise UsageError(f"run {run_id} is over: nothing of it is left to be had")
    return run_id, kept


def go_on(
    run_id: str, found: Found, start: int | None, client: str, peers: Mapping[str, m.Peer]
) -> tuple[m.Lasting, dict[str, int]]:
    """How ``client`` goes on with a run that was found, on the hosts that are there, and what each sink gets first.

    ``start``: that of the run's own sinks, where the application knows it. Raises UsageError where nothing is left to
    be had.
    """
    kept = found.kept
    assert not isinstance(kept, Stream)
    flow = kept.install.dataflow
    _check_owner(run_id, kept.install.client, client)
    firsts = {sink: query.first for query in found.queries.values() for sink in query.sinks}
    after = {
        sink: max(found.next_of(sink), firsts[sink]) if sink in firsts
        else found.next_of(sink) if start is None else start
        for sink in flow.sinks
    }  # fmt: skip
    _check_left(run_id, min(after.values()), kept.install.partitions)
    _say(found, client)
    return resumed(kept, after, peers, client), after


def go_on_over(
    run_id: str, found: Found, start: int | None, client: str, hosts: Collection[str]
) -> tuple[tuple[Stripe, ...], int]:
    """The trees of a stream that was found, those whose hosts are there if any has all of them, and its next partition.

    Raises UsageError where nothing is left to be had.
    """
    kept = found.kept
    assert isinstance(kept, Stream)
    _check_owner(run_id, kept.client, client)
    (sink,) = kept.trees[0].dataflow.sinks
    first = found.next_of(sink) if start is None else start
    _check_left(run_id, first, kept.end)
    _say(found, client)
    whole = tuple(tree for tree in kept.trees if {*tree.placement.values()} <= {*hosts})
    return whole or kept.trees, first


def _check_owner(run_id: str, owner: str, client: str) -> None:
    if owner != client:
        raise UsageError(f"run {run_id} is of client {owner!r}, and this is {client!r}; take its name")


def _check_left(run_id: str, first: int, end: int | None) -> None:
    if end is not None and first >= end:
        raise UsageError(f"run {run_id} is over: nothing of it is left to be had")


def _say(found: Found, client: str) -> None:
    if found.said:
        logging.getLogger("thalweg").warning("client %r: %s", client, found.said)
