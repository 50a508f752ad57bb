"""The states of operators that disappear with their tree, and the operators that take them over, merged.

Rules:

R1. Operators of a combination that have states disappear all together (``shape``). Each one's state as after the
    change-over iteration goes to the host of its *heir*, the last operator of the combination that takes its place. It
    is taken as soon as that partition has been made: nothing more is to be made of it.
R2. The heir gathers its first partition at once, as all that appear do. It is not made before all states have come,
    and have been merged and restored.
R3. The host of the heir claims what has not come, again and again; an old host keeps the state it has taken, and sends
    it again when it is claimed and not under way, until the tree is retired. The client has no tree retired before all
    heirs have their states: their hosts do not say before that they are through (``Done``).
R4. The operators that made the states are gone, so what cannot be taken, sent, merged or restored ends the run, with
    one line that names the operator and its host.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from thalweg.middleware.arithmetic import plain_sum
from thalweg.middleware.core.context.notes import Merged, Notes, OutputMade
from thalweg.middleware.core.context.outbox import RunContext, Timer
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.flow.node_states import NodeState
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.moving.handover import too_large
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import Part, RunParts
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m


@dataclass
class InheritedState:
    """The state of operator ``node`` here, which ``heir`` on ``host`` takes over."""

    node: str
    heir: str
    host: str
    asked: bool = False  # the code, for the state
    taken: e.StateTaken | None = None
    error: str = ""
    cause: m.Cause | None = None
    sending: bool = False  # a bulk transfer of it is under way
    failed_s: float | None = None  # since when such transfers have failed
    landed: bool = False  # the last one has arrived, and it was not claimed since


@dataclass
class Heir:
    """An operator that appears, or is to, and the operators, with their hosts, whose states it takes over."""

    node: str
    takes: dict[str, str]
    appeared: bool = False
    states: dict[str, e.Inherited] = field(default_factory=dict)
    error: str = ""
    cause: m.Cause | None = None
    since_s: float = 0.0
    interval_s: float = 0.0
    due_s: float = 0.0

    @property
    def missing(self) -> list[str]:
        return [name for name in self.takes if name not in self.states] if len(self.states) < len(self.takes) else []


class Inheritance(Part):
    """A host's part in it, on both sides."""

    @classmethod
    def of(cls, parts: RunParts) -> Inheritance:
        return cls(parts.context, parts.get(Tree), parts.get(Directory), parts.get(Flow))

    def __init__(self, context: RunContext, tree: Tree, directory: Directory, flow: Flow) -> None:
        self._out, self._limits, self._client = context.out, context.limits, context.install.client
        self._tree, self._directory, self._flow = tree, directory, flow
        self.legacies: dict[str, InheritedState] = {}  # by the operators here that disappear
        self.heirs: dict[str, Heir] = {}  # operators that wait for states, or are to appear

    def expect(self, node: str, takes: dict[str, str]) -> None:
        """An operator may appear here, which then takes over these, with their hosts."""
        self.heirs[node] = Heir(node, takes)

    def give_up(self) -> None:
        """Nothing appears after all."""
        self.heirs.clear()

    @property
    def _waiting(self) -> list[Heir]:
        """The heirs that are here."""
        return [heir for heir in self.heirs.values() if heir.appeared]

    def begin(self, commit: m.Commit) -> None:
        """Another shape is committed, and this host has both trees."""
        assert commit.shape is not None
        for graft in commit.shape.grafts:
            for name in graft.states:
                if name in self._flow.nodes:
                    self.legacies[name] = InheritedState(name, graft.node, graft.host)
        for heir in self.heirs.values():
            heir.appeared = True
            heir.since_s, heir.interval_s = self._out.now, self._limits.retry_s
            heir.due_s = self._out.now + heir.interval_s
        for heir in list(self.heirs.values()):
            self._check_complete(heir)
        for name in list(self.legacies):
            self.on_made(OutputMade(name))
        self._arm()

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
        legacy = self.legacies.get(event.node)
        if legacy is None or not legacy.asked or event.delta is True:  # it was taken for a replica, before
            return
        legacy.cause = event.cause or None
        legacy.error = event.error or too_large(len(event.state), self._limits.max_state_bytes)
        if not legacy.error:
            legacy.taken = event
        self._give(legacy)

    def _give(self, legacy: InheritedState) -> None:
        snapshot, out, turn = legacy.taken, self._out, self._tree.turn
        if legacy.error:
            self._report_failure(legacy)
        if snapshot is None:
            return
        message = m.State(
            run=out.run,
            node=legacy.node,
            version=snapshot.version,
            index=turn + 1,
            demanded=(),
            state_version=snapshot.state_version,
            size_bytes=len(snapshot.state),
            digest=snapshot.digest,
            heir=legacy.heir,
        )
        if legacy.host == out.host:
            self.on_state(out.host, message, snapshot.state)
        else:
            legacy.sending = self._directory.states.send(legacy.host, message, snapshot.state)

    def on_claim(self, sender: str, message: m.Claim) -> None:
        legacy = self.legacies.get(message.node)
        if legacy is None or (legacy.heir, legacy.host) != (message.heir, sender):
            return
        if legacy.sending and not self._directory.states.stuck(sender, legacy.node, legacy.heir):
            return
        if legacy.landed:  # it was most likely on its way then
            legacy.landed = False
        else:
            self._give(legacy)  # R3: the state was lost on its way

    def on_transfer_over(self, peer: str, message: m.State, *, arrived: bool) -> None:
        legacy = self.legacies.get(message.node)
        if legacy is None or legacy.heir != message.heir:
            return
        legacy.sending, legacy.landed = False, arrived
        if arrived:
            legacy.failed_s = None
            return
        self._flow.demands.stuck(peer)
        lease_s, since_s = self._limits.patience * self._limits.lease_s, legacy.failed_s
        legacy.failed_s = self._out.now if since_s is None else since_s
        if self._out.now - legacy.failed_s >= lease_s:  # though that host claims it
            legacy.error = f"its state has not got to host {peer!r} for {lease_s:g} s"
            self._report_failure(legacy)

    # --- the host of an heir --------------------------------------------------------------------------

    def _heir_of(self, message: m.State) -> Heir | None:
        """Who waits for that state: also before this host has heard of the commit."""
        heir = self.heirs.get(message.heir)
        waits = heir is not None and message.node in heir.takes and message.node not in heir.states
        return heir if waits else None

    def wants(self, message: m.State) -> bool:
        """Whether a state that begins to arrive has been asked for, and is not too large."""
        return self._heir_of(message) is not None and message.size_bytes <= self._limits.max_state_bytes

    def on_state(self, sender: str, message: m.State, payload: Any) -> None:
        heir = self._heir_of(message)
        if heir is None or heir.takes[message.node] != sender:
            return
        state, limit = payload if message.inline is None else message.inline, self._limits.max_state_bytes
        if message.size_bytes > limit:
            heir.error = f"the state of {message.node!r} has {message.size_bytes} bytes; this host takes up to {limit}"
            self._report_failure(heir)
        elif state is not None:
            heir.states[message.node] = e.Inherited(state, message.digest, message.state_version)
            self._check_complete(heir)

    def _check_complete(self, heir: Heir) -> None:
        if heir.appeared and not heir.missing:
            states = tuple([heir.states[name] for name in heir.takes])
            version = self._directory.locations[heir.node].version
            self._out.emit(e.MergeStates(self._out.run, heir.node, version, states))

    def on_merged(self, event: e.StateRestored) -> Notes:
        heir, out = self.heirs.get(event.node), self._out
        if heir is None or not heir.appeared or heir.missing:
            return
        if event.error:
            heir.cause = event.cause or None
            heir.error = f"the states of {', '.join(heir.takes)} cannot be merged: {event.error}"
            self._report_failure(heir)
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
        self._flow.let_run(heir.node)  # R2: all states have come and are merged
        yield Merged()

    # --- both -----------------------------------------------------------------------------------------

    def _report_failure(self, of: InheritedState | Heir) -> None:
        """R4: tell the client that the run cannot go on; again when it is claimed or looked after next."""
        self._out.send(self._client, m.Failed(self._out.run, of.node, of.error[:4000], of.cause))

    @property
    def awaited(self) -> Collection[str]:
        """Operators that wait for states of the tree before, or are to appear."""
        return self.heirs.keys()

    def awaits(self, message: m.State) -> bool:
        """Whether somebody waits for a state that is sent from here."""
        return bool(message.heir)

    def waits_for(self, host: str) -> tuple[str, str] | None:
        """An operator here that needs the way to ``host``, and what for."""
        for heir in self._waiting:
            for name in heir.missing:
                if heir.takes[name] == host:
                    return heir.node, f"which holds {name!r}"
        return None

    def on_timer(self) -> None:
        """R3: claim what is missing, and say again what went wrong: that may have been lost."""
        for heir in self._waiting:
            if heir.due_s > self._out.now:
                continue
            if heir.error:
                self._report_failure(heir)
            for name in heir.missing:
                host = heir.takes[name]
                self._flow.demands.stuck(host, heir.since_s)
                self._out.send(host, m.Claim(self._out.run, name, heir.node))
            heir.interval_s = min(2 * heir.interval_s, self._limits.retry_max_s)
            heir.due_s = self._out.now + heir.interval_s
        self._arm()

    def _arm(self) -> None:
        if self._waiting:
            self._out.wake(Timer.CLAIMS, min(heir.due_s for heir in self._waiting))

    def validate(self) -> None:
        """The invariants; AssertionError tells which does not hold."""
        if not (self.heirs or self.legacies):
            return
        waiting = {heir.node for heir in self._waiting}
        assert self._tree.former is not None or not (waiting or self.legacies), (waiting, self.legacies)
        assert self._flow.nodes.keys() >= waiting | self.legacies.keys(), (waiting, self.legacies)

    HANDLERS = Handlers(
        messages={m.State: on_state, m.Claim: on_claim},
        events={e.StateTaken: on_taken, e.StateRestored: on_merged},
        notes={OutputMade: on_made},
        timers={Timer.CLAIMS: on_timer},
        transfers={m.State: on_transfer_over},
    )
