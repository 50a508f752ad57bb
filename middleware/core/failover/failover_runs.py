"""State of every failover run on this host that outlives a generation of the run.

Rules:

R1. The replicas belong to the run, and are dropped with its last generation.
R2. At its client, a run that has lost a host begins anew at the end of the event with the loss, not before. If the
    application has got every partition, the run begins anew only when the application requests more, such as a query.
    Requests of the application apply to the present generation.
R3. A call of a node's code from an earlier generation belongs to the generation in which the node continues.
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
    """Replicas on this host of runs with failover, and the requests of the runs led by this host."""

    def __init__(self, runs: Mapping[RunId, RunCore], replicas: ReplicaTable) -> None:
        self._runs = runs
        self._table, self.replicas = replicas, replicas.of_runs  # R1: by client and run
        self.led: dict[RunId, tuple[e.RunRequested, RunId]] = {}  # of this application, with the generations

    def begin(self, event: e.RunRequested, run: RunCore) -> None:
        """Record the request of a new run led by this host. Adopt the records of an earlier client, if given."""
        self.led[run.id.first_generation] = event, run.id
        if event.journaled:
            recovery = run.parts.get(Recovery)
            recovery.keep_journal()
            if event.kept is not None:
                recovery.adopt(event.kept)
                run.parts.get(Queries).adopt(event.kept.queries)
            recovery.emit_resumable()

    def forget(self, run: RunCore) -> None:
        """Forget a finished run and its replicas (R1)."""
        base = run.id.first_generation
        self._table.drop(run.install.client, base)
        if run.context.leads:
            self.led.pop(base, None)

    def broke(self, run_id: RunId, host: str) -> bool:
        """Forget a run of this application that broke as it began anew. Return whether it was known."""
        existed = self.led.pop(run_id.first_generation, None) is not None
        if existed:
            self._table.drop(host, run_id)
        return existed

    def fallen(self) -> Iterator[tuple[RunCore, float]]:
        """Yield the runs to begin anew now, with the times at which the losses were noticed (R2)."""
        for _, now in list(self.led.values()):
            run = self._runs.get(now)
            if run is None or run.out.failed or (recovery := run.parts.get(Recovery)).asking:
                continue
            waits = not recovery.over or run.parts.get(Proposer).waits
            if (recovery.has_fallen or run.directory.doomed) and waits:
                run.directory.avert_doom()
                yield run, recovery.begin_anew()

    def again(self, old: RunCore, install: m.Install) -> e.RunRequested:
        """Return the request with which a run begins anew (R2)."""
        base = old.id.first_generation
        request = msgspec.structs.replace(self.led[base][0], install=install, known=())
        self.led[base] = request, install.run
        return request

    def called_by(self, event: e.OperatorFinished | e.OperatorFailed) -> RunCore | None:
        """Return the run to which the result of a node's code belongs (R3)."""
        run = self._runs.get(event.run)
        if run is None and self.replicas:
            going_on = (run for run in self._runs.values() if run.flow.calls.called.get(event.node) == event.run)
            run = next(going_on, None)
        return run

    def current(self, event: Any) -> Any:
        """Return an event of the application, addressed to the run's present generation (R2)."""
        now = self.current_id(event.run)
        return event if now == event.run else msgspec.structs.replace(event, run=now)

    def current_id(self, run_id: RunId) -> RunId:
        """Return the id of the present generation of a run (R2)."""
        _, now = self.led.get(run_id.first_generation, (None, run_id))
        return now
