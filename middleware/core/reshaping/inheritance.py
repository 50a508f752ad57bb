"""The states of operators that disappear with their tree, and the operators that take them over, merged.

Rules:

R1. Operators of a combination that have states disappear all together (``shape``). The state of each one after the
    change-over iteration goes to the host of its *heir*, the last operator of the combination that takes its place. The
    state is taken as soon as that partition has been made, as the operator makes no further one.
R2. The heir gathers its first partition at once, like all operators that appear. It runs when all states have come,
    and have been merged and restored.
R3. The host of the heir requests missing states (``awaited_states``). An old host keeps the state that it has taken
    until the tree is retired. The client retires a tree when all heirs have their states, as their hosts do not report
    before that they are through (``Done``).
R4. The operators that made the states are gone. If a state cannot be taken, sent, merged or restored, the run ends with
    one line that names the operator and its host.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.context.notes import Merged, Notes, OutputMade
from thalweg.middleware.core.context.outbox import RunContext
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.flow.node_states import NodeState
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import Part, RunParts
from thalweg.middleware.core.states.awaited_states import AwaitedStates
from thalweg.middleware.core.states.state_transfers import StateTransfer, StateTransfers, refusal
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m


@dataclass
class Legacy:
    """State of operator ``node`` on this host, which ``heir`` takes over on another host, or on this one."""

    node: str
    heir: str
    transfer: StateTransfer
    asked: bool = False  # whether the code has been asked for the state
    message: m.InheritedState | None = None
    state: bytes = b""


@dataclass
class Heir:
    """An operator that appears, or is to, and the operators, with their hosts, whose states it takes over."""

    node: str
    takes: dict[str, str]
    appeared: bool = False
    states: dict[str, e.Inherited] = field(default_factory=dict)
    since_s: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Whether all states have come."""
        return len(self.states) == len(self.takes)


class Inheritance(Part):
    """A host's part in it, on both sides."""

    @classmethod
    def of(cls, parts: RunParts) -> Inheritance:
        return cls(
            parts.context,
            parts.get(Tree),
            parts.get(Directory),
            parts.get(Flow),
            parts.get(StateTransfers),
            parts.get(AwaitedStates),
        )

    def __init__(
        self,
        context: RunContext,
        tree: Tree,
        directory: Directory,
        flow: Flow,
        states: StateTransfers,
        awaited_states: AwaitedStates,
    ) -> None:
        self._out, self._limits = context.out, context.limits
        self._tree, self._directory, self._flow = tree, directory, flow
        self._states, self._awaited_states = states, awaited_states
        self.legacies: dict[str, Legacy] = {}  # by the operators here that disappear
        self.heirs: dict[str, Heir] = {}  # operators that wait for states, or are to appear

    def expect(self, node: str, takes: dict[str, str]) -> None:
        """An operator may appear here, which then takes over these, with their hosts."""
        self.heirs[node] = Heir(node, takes)

    def give_up(self) -> None:
        """Nothing appears after all."""
        self.heirs.clear()

    def begin(self, commit: m.Commit) -> None:
        """Another shape is committed, and this host has both trees."""
        assert commit.shape is not None
        for graft in commit.shape.grafts:
            for name in graft.states:
                if name in self._flow.nodes:
                    self.legacies[name] = Legacy(name, graft.node, StateTransfer(graft.host))
        for heir in list(self.heirs.values()):
            heir.appeared, heir.since_s = True, self._out.now
            for name in [name for name in heir.takes if name not in heir.states]:
                self._awaited_states.expect(name, heir.takes[name], heir.node)
            self._merge(heir)
        for name in list(self.legacies):
            self.on_made(OutputMade(name))

    def retire(self) -> None:
        """The old tree is gone, and with it what its operators left."""
        self.legacies.clear()

    # --- the host of an operator that disappears ------------------------------------------------------

    def on_made(self, note: OutputMade) -> None:
        """R1: take the state of an operator that has made its last partition."""
        legacy, turn = self.legacies.get(note.node), self._tree.turn
        if legacy is None or legacy.asked:
            return
        node = self._flow.nodes[note.node]
        if node.index > turn or (node.index == turn and node.state is NodeState.HOLDING):
            legacy.asked = True
            version = self._directory.locations[note.node].version
            self._out.emit(e.TakeState(self._out.run, note.node, version))

    def on_taken(self, event: e.StateTaken) -> None:
        """Send a state to the host of its heir."""
        legacy = self.legacies.get(event.node)
        if legacy is None or not legacy.asked or event.delta is True:  # it was taken for a replica, before
            return
        error = refusal(event, self._limits.max_state_bytes)
        if error:
            self._report_failure(legacy.node, error, event.cause or None)
            return
        legacy.state = event.state
        legacy.message = message = m.InheritedState(
            run=self._out.run,
            node=legacy.node,
            version=event.version,
            index=self._tree.turn + 1,
            state_version=event.state_version,
            size_bytes=len(event.state),
            digest=event.digest,
            heir=legacy.heir,
        )
        if legacy.transfer.to == self._out.host:
            self.on_state(self._out.host, message, event.state)
        else:
            self._states.send(legacy.transfer, message, event.state)

    def on_request(self, sender: str, message: m.StateRequest) -> None:
        """R3: answer the heir's host, which has not got the state. Else tell the client again why there is none."""
        legacy = self.legacies.get(message.node)
        if legacy is None or (legacy.heir, legacy.transfer.to) != (message.heir, sender):
            return
        if self._flow.has_failed(legacy.node):
            self._flow.failures.repeat(self._flow.nodes)
        if legacy.message is not None and sender != self._out.host:
            self._states.answer(legacy.transfer, legacy.message, legacy.state)

    def on_transfer_over(self, peer: str, message: m.InheritedState, *, arrived: bool) -> None:
        """R4: end the run if transfers of a state fail for longer than the lease."""
        legacy = self.legacies.get(message.node)
        if arrived or legacy is None or legacy.heir != message.heir:
            return
        self._flow.demands.stuck(peer)
        lease_s = self._limits.patience * self._limits.lease_s
        if self._out.now - legacy.transfer.failing_s >= lease_s:  # though that host requests it
            self._report_failure(legacy.node, f"its state has not got to host {peer!r} for {lease_s:g} s")

    # --- the host of an heir --------------------------------------------------------------------------

    def _heir_of(self, message: m.InheritedState) -> Heir | None:
        """Return the heir that waits for a state, even if this host has not handled the commit yet."""
        heir = self.heirs.get(message.heir)
        waits = heir is not None and message.node in heir.takes and message.node not in heir.states
        return heir if waits else None

    def wants(self, message: m.InheritedState) -> bool:
        """Return whether an heir waits for a state that begins to arrive."""
        return self._heir_of(message) is not None

    def on_state(self, sender: str, message: m.InheritedState, state: Any) -> None:
        """Keep a state until all states of the heir have come."""
        heir = self._heir_of(message)
        if heir is None or heir.takes[message.node] != sender:
            return
        limit = self._limits.max_state_bytes
        if message.size_bytes > limit:
            error = f"the state of {message.node!r} has {message.size_bytes} bytes; this host takes up to {limit}"
            self._report_failure(heir.node, error)
        elif state is not None:
            heir.states[message.node] = e.Inherited(state, message.digest, message.state_version)
            self._awaited_states.came(message.node, heir.node)
            self._merge(heir)

    def _merge(self, heir: Heir) -> None:
        """R2: have the states merged and restored when all have come."""
        if heir.appeared and heir.is_complete:
            states = tuple([heir.states[name] for name in heir.takes])
            version = self._directory.locations[heir.node].version
            self._out.emit(e.MergeStates(self._out.run, heir.node, version, states))

    def on_merged(self, event: e.StateRestored) -> Notes:
        """Let an heir run whose states are merged (R2)."""
        heir, out = self.heirs.get(event.node), self._out
        if heir is None or not heir.appeared or not heir.is_complete:
            return
        if event.error:
            error = f"the states of {', '.join(heir.takes)} cannot be merged: {event.error}"
            self._report_failure(heir.node, error, event.cause or None)
            return
        del self.heirs[event.node]
        size = plain_sum(len(inherited.state) for inherited in heir.states.values())
        out.record(
            "merged",
            node=heir.node,
            index=self._tree.turn + 1,
            size_bytes=size,
            duration_s=out.now - heir.since_s,
            detail={"of": list(heir.takes)},
        )
        self._flow.let_run(heir.node)
        yield Merged()

    # --- both -----------------------------------------------------------------------------------------

    def _report_failure(self, node: str, error: str, cause: m.Cause | None = None) -> None:
        """R4: the run cannot go on."""
        self._flow.failed(e.OperatorFailed(self._out.run, node, error[:4000], cause))

    @property
    def awaited(self) -> Collection[str]:
        """Operators that wait for states of the tree before, or are to appear."""
        return self.heirs.keys()

    def awaits(self, message: m.InheritedState) -> bool:
        """Return whether an heir waits for a state that is sent from here."""
        return True

    def validate(self) -> None:
        """The invariants; AssertionError tells which does not hold."""
        if not (self.heirs or self.legacies):
            return
        waiting = {heir.node for heir in self.heirs.values() if heir.appeared}
        assert self._tree.former is not None or not (waiting or self.legacies), (waiting, self.legacies)
        assert self._flow.nodes.keys() >= waiting | self.legacies.keys(), (waiting, self.legacies)

    HANDLERS = Handlers(
        messages={m.InheritedState: on_state, m.StateRequest: on_request},
        events={e.StateTaken: on_taken, e.StateRestored: on_merged},
        notes={OutputMade: on_made},
        transfers={m.InheritedState: on_transfer_over},
    )
