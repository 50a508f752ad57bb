"""The runs that outlive their hosts, of which a host has one generation at a time: what is the run's, and not that's.

Rules:

R1. The replicas are the run's, and go with its last generation.
R2. At its client a run that has lost a host begins anew at the end of the event by which it did, not before; one of
    which the application has got all, not before it wants something else of it, as a query. What the
    application says of it is said of the generation that it is now.
R3. A call of a node's code that an earlier generation has begun is of the generation in which the node goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from thalweg.middleware.core.barrier.proposer import Proposer
from thalweg.middleware.core.context.outbox import HostContext
from thalweg.middleware.core.failover.checkpoints import Replicas
from thalweg.middleware.core.failover.recovery import Recovery
from thalweg.middleware.core.hosting.coordinator import CoordinatorHooks
from thalweg.middleware.core.queries.queries import Queries
from thalweg.middleware.core.runs.run import RunCore
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.generations import base_of, generation_of


class FailoverRuns:
    """What a host keeps of such runs, and at their client how they began, and since when they lack a host."""

    def __init__(self, desk: HostContext, runs: Mapping[str, RunCore]) -> None:
        self._desk, self._runs = desk, runs
        self.replicas: dict[tuple[str, str], Replicas] = {}  # R1: by client and run
        self.led: dict[str, tuple[e.RunRequested, str]] = {}  # of this application, and their generations
        self._fallen: dict[str, float] = {}  # R2: by run, when it lost a host

    def replicas_of(self, install: m.Install) -> Replicas:
        """Those that are here of a run."""
        return self.replicas.setdefault((install.client, base_of(install.run)), {})

    def begin(self, event: e.RunRequested, run: RunCore) -> None:
        """At its client a run begins."""
        self.led[base_of(run.id)] = event, run.id
        if event.journaled:
            recovery = run.parts.get(Recovery)
            recovery.keep_journal()
            if event.kept is not None:
                recovery.adopt(event.kept)
                run.parts.get(Queries).adopt(event.kept.queries)
            recovery.emit_resumable()

    def forget(self, run: RunCore) -> None:
        """R1: a run is over."""
        base = base_of(run.id)
        self.replicas.pop((run.install.client, base), None)
        if run.context.leads:
            self.led.pop(base, None)
            self._fallen.pop(run.id, None)

    def broke(self, run_id: str, host: str) -> bool:
        """A run of this application broke as it began anew; whether there was one."""
        existed = self.led.pop(base_of(run_id), None) is not None
        if existed:
            self.replicas.pop((host, base_of(run_id)), None)
        return existed

    def hooks(self, run: RunCore, over: Callable[[str], bool]) -> CoordinatorHooks:
        """What the coordinator asks of a run; ``over``: whether its application has got all that it will get."""

        def recovers(host: str, *, again: bool, wait: bool) -> bool:
            if not run.context.fails_over or run.out.failed or over(run.id):
                return False
            if wait and not again and not generation_of(run.id):  # it lacks the code, as others may
                return False
            run.parts.get(Recovery).give_up(host, again=again, wait=wait)
            self._fallen.setdefault(run.id, self._desk.now)
            return True

        recovery = run.parts.get(Recovery)

        def speaks_of(host: str, name: str) -> bool:
            nodes, locations = run.tree.dataflow.by_name, run.directory.locations
            concerned = (name, *nodes[name].inputs) if name in nodes else (name,)
            return any(node in locations and locations[node].host == host for node in concerned)

        judging = recovery.judge, recovery.fell, recovery.rests, lambda host: recovery.rejoin_policy.disowns(host)
        return CoordinatorHooks(run.parts.get(Queries).fail, recovers, recovery.leans_on, *judging, speaks_of)

    def fallen(self) -> Iterator[tuple[RunCore, float]]:
        """R2: the runs that are to begin anew, and when the loss was noticed."""
        for _, now in list(self.led.values()):
            run = self._runs.get(now)
            if run is None or run.out.failed or (recovery := run.parts.get(Recovery)).asking:
                continue
            waits = not recovery.over or run.parts.get(Proposer).waits
            if (run.id in self._fallen or run.directory.doomed) and waits:
                run.directory.avert_doom()
                yield run, self._fallen.pop(run.id, self._desk.now)

    def wait(self, run: RunCore, detected_s: float) -> None:
        """R2: somebody is asked before it does."""
        self._fallen[run.id] = detected_s

    def again(self, old: RunCore, install: m.Install) -> e.RunRequested:
        """R2: with what a run begins anew."""
        base = base_of(old.id)
        request = msgspec.structs.replace(self.led[base][0], install=install, known=())
        self.led[base] = request, install.run
        return request

    def called_by(self, event: e.OperatorFinished | e.OperatorFailed) -> RunCore | None:
        """R3: the run in which a call of a node's code counts."""
        run = self._runs.get(event.run)
        if run is None and self.replicas:
            going_on = (run for run in self._runs.values() if run.flow.called.get(event.node) == event.run)
            run = next(going_on, None)
        return run

    def current(self, event: Any) -> Any:
        """R2: what is said of a run, of the generation that it is now."""
        _, now = self.led.get(base_of(event.run), (None, event.run))
        return event if now == event.run else msgspec.structs.replace(event, run=now)
