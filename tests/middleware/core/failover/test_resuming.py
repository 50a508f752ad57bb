"""Fault plans in which the client crashes too, and a later client of its name resumes the run from its journal.

``THALWEG_RESUMES=1000 pytest -s tests/middleware/core/failover/test_resuming.py -k partitions`` runs 1,000 plans of
trees, and 1,000 of graphs. The application commits a partition at once, or some partitions later. A later client gives
it the uncommitted partitions again. This client knows all hosts that are there, or has yet to find some of them.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from thalweg.emulation.virtual.faults import Crash, FaultPlan
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.emulation.virtual.world import VirtualHost
from thalweg.experiments.faults import trials
from thalweg.experiments.faults.generated_plans import CLIENT, drawn_plan
from thalweg.experiments.faults.queries import QUERIED
from thalweg.middleware.core.failover.recovery import resumed
from thalweg.middleware.core.flow.actions import LAST
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.adaptation import Adaptation

PLANS = int(os.environ.get("THALWEG_RESUMES", "6"))
FIRST_SEED = int(os.environ.get("THALWEG_RESUMES_SEED", "5990000"))
AGAIN_S = (0.05, 0.5, 0.5, 3.0, 12.0, 90.0)  # after the last of these hosts have forgotten the run


class Resuming(FaultyWorld):
    """World in which clients crash and resume the run.

    ``resumes`` counts the clients that have resumed the run. The application commits ``lag`` partitions late, and with
    a lag it does not commit the end.
    """

    resumes = 0

    def __init__(self, *about: Any, **more: Any) -> None:
        super().__init__(*about, **more)
        self.chance = chance = Random(f"{self.plan.seed} client")
        self.lag, self.told = chance.choice([0, 0, 1, 3, 7, 20]), chance.random() < 0.4
        self.kept: e.ResumableRun | None = None
        self.done_with: dict[str, int] = {}
        self.ended: set[str] = set()
        self.moves: Adaptation | None = None
        at_s = 0.0
        for _ in range(chance.choice([1, 1, 2, 3])):
            at_s += chance.uniform(0.3, 15.0)
            back_s = chance.choice(AGAIN_S)
            self._schedule(at_s, self._client_dies, back_s)
            at_s += back_s

    # --- the journal ------------------------------------------------------------------------------------

    def _request(self, *args: Any) -> e.RunRequested:
        asked = super()._request(*args)
        self.moves = asked.adaptation
        return replace(asked, journaled=True)

    def _rare(self, host: VirtualHost, command: e.Command) -> None:
        if isinstance(command, e.Keep):
            self.kept = command.kept
        else:
            super()._rare(host, command)

    def _delivered(self, host: VirtualHost, command: e.Deliver) -> None:
        if command.end and not self.lag:
            self.ended.add(command.sink)
        super()._delivered(host, command)
        if not command.end:
            done = max(self.done_with.get(command.sink, -1), command.index - self.lag)
            self.done_with[command.sink] = done
            self._soon(host, e.OutputCommitted(self.run_id, command.sink, done))

    # --- the client -------------------------------------------------------------------------------------

    def _client_dies(self, back_s: float) -> None:
        if self.open and not self.failed and self.kept is not None and CLIENT not in self.down:
            self._crash(Crash(CLIENT, self.now))
            self.on_delivered.__self__.watch.no_client.append((self.now, self.now + back_s))  # type: ignore[union-attr]
            self._schedule(self.now + back_s, self._client_is_back, None)

    def _client_is_back(self, _: None) -> None:
        self._restart(CLIENT)
        assert self.kept is not None
        log = self.on_delivered.__self__  # type: ignore[union-attr]
        flow, starts = self.kept.install.dataflow, dict[str, int]()
        for sink in flow.sinks:
            first = self.done_with.get(sink, -1) + 1
            starts[sink] = LAST if sink in self.ended else first
            log.indices[sink] = [index for index in log.indices[sink] if index < first or sink in self.ended]
        if min(starts.values()) >= (self.kept.install.partitions or LAST):
            self.open = set()  # there is nothing left to be had
            return
        self.resumes += 1
        self.progress_s = max(self.progress_s, self.now)
        present = {name: self.hosts[name].core.me for name in self.names if name not in self.down}
        unheard = [name for name in present if name != CLIENT and self.chance.random() < 0.1]
        known = {name: peer for name, peer in present.items() if name not in unheard}
        install = resumed(self.kept, starts, known, CLIENT)
        self.trees = {None: (install.dataflow, {entry.node: entry.host for entry in install.locations})}
        self.on_tree(install.dataflow)
        resumable, free = replace(self.kept, queries={0: flow.sinks}), self._reorderable
        asks = e.RunRequested(install, self.moves, free.codes, (), free.merging, journaled=True, kept=resumable)
        self._handle(self.hosts[CLIENT], asks)
        for name in sorted({*self.names} - {*known, CLIENT}):
            self._handle(self.hosts[CLIENT], e.PeerLost(self.run_id, name, "cannot be reached"))
        for name in unheard:
            self._schedule(self.now + self.chance.uniform(0.1, 3.0), self._is_found, name)

    def _is_found(self, name: str) -> None:
        if not self.down & {name, CLIENT}:
            self._handle(self.hosts[CLIENT], e.PeerJoined(self.run_id, self.hosts[name].core.me))

    # --- hosts, of whose processes the client may be told at once ----------------------------------------

    def _crash(self, fault: Crash) -> None:
        new = fault.host not in self.down
        super()._crash(fault)
        if self.told and new and CLIENT not in self.down:
            self._handle(self.hosts[CLIENT], e.PeerLost(self.run_id, fault.host, "was killed"))

    def _restart(self, name: str) -> None:
        super()._restart(name)
        if self.told and name in self.names and name != CLIENT:  # no guest
            self._is_found(name)


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> list[Resuming]:
    """The worlds of the trials, in which clients resume the run."""
    created: list[Resuming] = []

    def world(*about: Any, **more: Any) -> Resuming:
        created.append(Resuming(*about, **more))
        return created[-1]

    monkeypatch.setattr(trials, "FaultyWorld", world)
    return created


def plan_of(seed: int, *, graph: bool) -> FaultPlan:
    """Return the plan of a seed, without its faults of the client."""
    plan = drawn_plan(seed, graph=graph, lasting=True)
    return replace(plan, faults=tuple([fault for fault in plan.faults if getattr(fault, "host", "") != CLIENT]))


@pytest.mark.long
@pytest.mark.parametrize("graph", [False, True])
def test_partitions_come_once_and_in_order_under_every_succession_of_clients(
    worlds: list[Resuming], graph: bool
) -> None:
    outcomes, seed = Counter[str](), FIRST_SEED
    while outcomes.total() < PLANS:
        if not (graph and seed % 5 in QUERIED):
            result, _ = trials.run_trial(plan_of(seed, graph=graph))
            assert result.outcome != "failed", result
            outcomes[result.outcome] += 1
        seed += 1
    resumes = sum(world.resumes for world in worlds)
    print(f"{PLANS} plans from seed {FIRST_SEED}: {dict(outcomes)}, gone on with {resumes} times")
    assert outcomes["delivered"] > PLANS / 3  # others end for want of a source
    assert resumes > PLANS / 2
