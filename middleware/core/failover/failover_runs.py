"""The runs that outlive their hosts, of which a host has one generation at a time: what is the run's, and not that's.

Rules:

R1. The replicas are the run's, and go with its last generation.
R2. At its client a run that has lost a host begins anew at the end of the event by which it did, not before; one of
    which the application has got all, not before it wants something else of it, as a query. What the
    application says of it is said of the generation that it is now.
R3. A call of a node's code that an earlier generation has begun is of the generation in which the node goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from thalweg.middleware.core.barrier.proposer import Proposer
from thalweg.middleware.core.failover.recovery import Recovery
from thalweg.middleware.core.parts.replica_table import ReplicaTable
from thalweg.middleware.core.queries.queries import Queries
from thalweg.middleware.core.runs.run import RunCore
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import RunId


class FailoverRuns:
    """Replicas on this host of runs with failover, and the requests that began the runs which this host leads."""

    def __init__(self, runs: Mapping[RunId, RunCore], replicas: ReplicaTable) -> None:
        self._runs = runs
        self._table, self.replicas = replicas, replicas.of_runs  # R1: by client and run
        self.led: dict[RunId, tuple[e.RunRequested, RunId]] = {}  # of this application, and their generations

    def begin(self, event: e.RunRequested, run: RunCore) -> None:
        """Take the request of a run that begins, and that this host leads."""
        self.led[run.id.first_generation] = event, run.id
        if event.journaled:
            recovery = run.parts.get(Recovery)
            recovery.keep_journal()
            if event.kept is not None:
                recovery.adopt(event.kept)
                run.parts.get(Queries).adopt(event.kept.queries)
            recovery.emit_resumable()

    def forget(self, run: RunCore) -> None:
        """R1: a run is over."""
        base = run.id.first_generation
        self._table.drop(run.install.client, base)
        if run.context.leads:
            self.led.pop(base, None)

    def broke(self, run_id: RunId, host: str) -> bool:
        """A run of this application broke as it began anew; whether there was one."""
        existed = self.led.pop(run_id.first_generation, None) is not None
        if existed:
            self._table.drop(host, run_id)
        return existed

    def fallen(self) -> Iterator[tuple[RunCore, float]]:
        """R2: the runs that are to begin anew, and when the loss was noticed."""
        for _, now in list(self.led.values()):
            run = self._runs.get(now)
            if run is None or run.out.failed or (recovery := run.parts.get(Recovery)).asking:
                continue
            waits = not recovery.over or run.parts.get(Proposer).waits
            if (recovery.has_fallen or run.directory.doomed) and waits:
                run.directory.avert_doom()
                yield run, recovery.begin_anew()

    def again(self, old: RunCore, install: m.Install) -> e.RunRequested:
        """R2: with what a run begins anew."""
        base = old.id.first_generation
        request = msgspec.structs.replace(self.led[base][0], install=install, known=())
        self.led[base] = request, install.run
        return request

    def called_by(self, event: e.OperatorFinished | e.OperatorFailed) -> RunCore | None:
        """R3: the run in which a call of a node's code counts."""
        run = self._runs.get(event.run)
        if run is None and self.replicas:
            going_on = (run for run in self._runs.values() if run.flow.calls.called.get(event.node) == event.run)
            run = next(going_on, None)
        return run

    def current(self, event: Any) -> Any:
        """R2: what is said of a run, of the generation that it is now."""
        now = self.current_id(event.run)
        return event if now == event.run else msgspec.structs.replace(event, run=now)

    def current_id(self, run_id: RunId) -> RunId:
        """R2: return the id of the generation that a run is now."""
        _, now = self.led.get(run_id.first_generation, (None, run_id))
        return now
