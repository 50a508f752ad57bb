"""Passing of states from operators that disappear with their tree to operators of the new tree, which merge them.

Rules:

R1. The operators of a combination with states disappear together (``shape``). A state after the change-over iteration
    goes to the host of the *heir*, the last operator of the new combination. The state is read as soon as the operator
    has made the change-over iteration, its last partition.
R2. The heir gathers its first partition at once, like every new operator. It runs when all states have come, and are
    merged and restored.
R3. The host of the heir requests missing states (``awaited_states``). The old host keeps the state until the tree is
    retired. The client retires the tree when every heir has its states, because a host does not answer ``Done`` before.
R4. The old operators are gone. If a state cannot be read, sent, merged or restored, the run ends with one line that
    names the operator and the host.
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
from thalweg.middleware.core.states.state_transfers import StateTransfer, StateTransfers, fields_of, refusal
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m


@dataclass
class Legacy:
    """State of operator ``node`` on this host, for ``heir`` on this or a different host."""

    node: str
    heir: str
    transfer: StateTransfer
    asked: bool = False  # the state has been requested from the code
    message: m.InheritedState | None = None
    state: bytes = b""


@dataclass
class Heir:
    """New operator here, which may not have appeared yet. ``takes``: operators with states for it, and the hosts."""

    node: str
    takes: dict[str, str]
    appeared: bool = False
    states: dict[str, e.Inherited] = field(default_factory=dict)
    since_s: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Return whether every state has come."""
        return len(self.states) == len(self.takes)


class Inheritance(Part):
    """States that operators here leave to heirs, and heirs on this host."""

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
        self.legacies: dict[str, Legacy] = {}  # by operator here that disappears
        self.heirs: dict[str, Heir] = {}  # by operator: heirs that wait for states, or are to appear

    def expect(self, node: str, takes: dict[str, str]) -> None:
        """Expect heir ``node`` to appear here. ``takes``: the operators with the states, and the hosts."""
        self.heirs[node] = Heir(node, takes)

    def give_up(self) -> None:
        """Forget the expected heirs, because the new tree is not committed."""
        self.heirs.clear()

    def begin(self, commit: m.Commit) -> None:
        """Begin to pass states on, because a new tree is committed and this host has both trees."""
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
        """Forget the states of the old tree, which is retired."""
        self.legacies.clear()

    # --- the host of an operator that disappears ------------------------------------------------------

    def on_made(self, note: OutputMade) -> None:
        """Read the state of an operator that has made its last partition (R1)."""
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
        if legacy is None or not legacy.asked or event.delta is True:  # the state was read earlier, for a replica
            return
        error = refusal(event, self._limits.max_state_bytes)
        if error:
            self._report_failure(legacy.node, error, event.cause or None)
            return
        legacy.state = event.state
        legacy.message = message = m.InheritedState(
            run=self._out.run, index=self._tree.turn + 1, heir=legacy.heir, **fields_of(event)
        )
        if legacy.transfer.to == self._out.host:
            self.on_state(self._out.host, message, event.state)
        else:
            self._states.send(legacy.transfer, message, event.state)

    def on_request(self, sender: str, message: m.StateRequest) -> None:
        """Answer the request of an heir's host with a missing state (R3).

        If the code of the operator has failed, repeat the report to the client.
        """
        legacy = self.legacies.get(message.node)
        if legacy is None or (legacy.heir, legacy.transfer.to) != (message.heir, sender):
            return
        if self._flow.has_failed(legacy.node):
            self._flow.failures.repeat(self._flow.nodes)
        if legacy.message is not None and sender != self._out.host:
            self._states.answer(legacy.transfer, legacy.message, legacy.state)

    def on_transfer_over(self, peer: str, message: m.InheritedState, *, arrived: bool) -> None:
        """End the run if transfers of a state fail for longer than the lease (R4)."""
        legacy = self.legacies.get(message.node)
        if arrived or legacy is None or legacy.heir != message.heir:
            return
        self._flow.demands.stuck(peer)
        lease_s = self._limits.patience * self._limits.lease_s
        since_s = legacy.transfer.failing_since_s  # None: the transfer that failed has been replaced
        if since_s is not None and self._out.now - since_s >= lease_s:  # although the host may request the state
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
        """Merge and restore the states of an heir if all have come (R2)."""
        if heir.appeared and heir.is_complete:
            states = tuple([heir.states[name] for name in heir.takes])
            version = self._directory.locations[heir.node].version
            self._out.emit(e.MergeStates(self._out.run, heir.node, version, states))

    def on_merged(self, event: e.StateRestored) -> Notes:
        """Let an heir run after the merge of its states (R2)."""
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
        """Report an operator with which the run cannot go on (R4)."""
        self._flow.failed(e.OperatorFailed(self._out.run, node, error[:4000], cause))

    @property
    def awaited(self) -> Collection[str]:
        """Operators here that wait for states of the old tree, or are to appear."""
        return self.heirs.keys()

    def awaits(self, message: m.InheritedState) -> bool:
        """Return whether an heir waits for a state that is sent from here."""
        return True

    def validate(self) -> None:
        """Check the invariants. Raise AssertionError if an invariant is violated."""
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
