"""The states of operators that disappear with their tree, and the operators that take them over, merged.

Rules:

- Operators of a combination that have states disappear all together (``shape``). Each one's state as after the
  change-over iteration goes to the host of its *heir*, the last operator of the combination that takes its place. It is
  taken as soon as that partition has been made: nothing more is to be made of it.
- The heir gathers its first partition at once, as all that appear do. It is not made before all states have come,
  and have been merged and restored.
- The host of the heir claims what has not come, again and again; an old host keeps the state it has taken, and sends it
  again when it is claimed and not under way, until the tree is retired. The client has no tree retired before all
  heirs have their states: their hosts do not say before that they are through (``Done``).
- The operators that made the states are gone, so what cannot be taken, sent, merged or restored ends the run, with one
  line that names the operator and its host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.middleware.core.flow.node import NodeState, RunCode
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

if TYPE_CHECKING:
    from thalweg.middleware.core.host import HostCore
    from thalweg.middleware.core.run import RunState


class Legacy:
    """The state of operator ``node`` here, which ``heir`` on ``host`` takes over."""

    def __init__(self, node: str, heir: str, host: str) -> None:
        self.node, self.heir, self.host = node, heir, host
        self.asked = False  # the code, for the state
        self.taken: e.StateTaken | None = None
        self.error = ""
        self.sending = False  # a bulk transfer of it is under way
        self.failed_s: float | None = None  # since when such transfers have failed
        self.landed = False  # the last one has arrived, and it was not claimed since


class Heir:
    """An operator that appears, or is to, and the operators, with their hosts, whose states it takes over."""

    def __init__(self, node: str, takes: dict[str, str]) -> None:
        self.node, self.takes = node, takes
        self.states: dict[str, e.Inherited] = {}
        self.run: RunCode | None = None  # its first partition, which waits
        self.error = ""
        self.since_s = 0.0
        self.interval_s = 0.0
        self.due_s = 0.0

    @property
    def missing(self) -> list[str]:
        return [name for name in self.takes if name not in self.states]


class Inheritance:
    """A host's part in it, on both sides."""

    def __init__(self, core: HostCore) -> None:
        self.core = core

    def begin(self, run: RunState, commit: m.Commit) -> None:
        """Another shape is committed, and this host has both trees."""
        assert commit.shape is not None
        for graft in commit.shape.grafts:
            for name in graft.states:
                if name in run.nodes:
                    run.legacies[name] = Legacy(name, graft.node, graft.host)
        for heir in run.heirs.values():
            heir.since_s, heir.interval_s = self.core.now, self.core.config.retry_s
            heir.due_s = self.core.now + heir.interval_s
        for heir in list(run.heirs.values()):
            self._check_complete(run, heir)
        for name in list(run.legacies):
            self.check_made(run, name)
        self._arm(run)

    # --- the host of an operator that disappears ------------------------------------------------------

    def check_made(self, run: RunState, name: str) -> None:
        """Take the state of ``name``, if it has made its last partition."""
        legacy, node = run.legacies[name], run.nodes[name]
        made = node.index > run.turn or (node.index == run.turn and node.state is NodeState.HOLDING)
        if made and not legacy.asked:
            legacy.asked = True
            self.core.emit(e.TakeState(run.id, name, run.locations[name].version))

    def on_taken(self, run: RunState, event: e.StateTaken) -> None:
        legacy, limit = run.legacies[event.node], self.core.config.max_state_bytes
        if event.error:
            legacy.error = event.error
        elif len(event.state) > limit:
            legacy.error = f"its state has {len(event.state)} bytes; this host sends up to {limit}"
        else:
            legacy.taken = event
        self._give(run, legacy)

    def _give(self, run: RunState, legacy: Legacy) -> None:
        taken, core = legacy.taken, self.core
        if legacy.error:
            self._say(run, legacy.node, legacy.error)
        if taken is None:
            return
        size = len(taken.state)
        inline = taken.state if size <= m.INLINE_STATE_BYTES else None
        message = m.State(
            run=run.id,
            node=legacy.node,
            version=taken.version,
            index=run.turn + 1,
            demanded=run.turn,
            state_version=taken.state_version,
            size_bytes=size,
            digest=taken.digest,
            inline=inline,
            heir=legacy.heir,
        )
        if legacy.host == core.host:
            self.on_state(core.host, message, taken.state)
        elif inline is not None:
            core.send(run.id, legacy.host, message)
        else:
            legacy.sending = True
            core.emit(e.Send(run.id, legacy.host, message, taken.state, size, bulk=True))

    def on_claim(self, sender: str, message: m.Claim) -> None:
        run = self.core.runs.get(message.run)
        legacy = run.legacies.get(message.node) if run is not None else None
        if run is None or legacy is None or (legacy.heir, legacy.host) != (message.heir, sender) or legacy.sending:
            return
        if legacy.landed:  # it was most likely on its way then
            legacy.landed = False
        else:
            self._give(run, legacy)

    def on_transfer_over(self, peer: str, message: m.State, *, arrived: bool) -> None:
        run = self.core.runs.get(message.run)
        legacy = run.legacies.get(message.node) if run is not None else None
        if run is not None and legacy is not None and legacy.heir == message.heir:
            legacy.sending, legacy.landed = False, arrived
            if arrived:
                legacy.failed_s = None
                return
            self.core.silence.on_waiting(run, peer, run.opened_s)
            lease_s, since_s = self.core.config.lease_s, legacy.failed_s
            legacy.failed_s = self.core.now if since_s is None else since_s
            if self.core.now - legacy.failed_s >= lease_s:  # though that host claims it
                legacy.error = f"its state has not got to host {peer!r} for {lease_s:g} s"
                self._say(run, legacy.node, legacy.error)

    # --- the host of an heir --------------------------------------------------------------------------

    def _heir(self, run: RunState, message: m.State) -> Heir | None:
        """Who waits for that state: also before this host has heard of the commit."""
        bud = run.buds.get(message.heir)
        heir = run.heirs.get(message.heir) if bud is None else bud.heir
        return heir if heir is not None and message.node in heir.missing else None

    def wants(self, run: RunState, message: m.State) -> bool:
        return self._heir(run, message) is not None and message.size_bytes <= self.core.config.max_state_bytes

    def on_state(self, sender: str, message: m.State, payload: Any) -> None:
        run = self.core.runs.get(message.run)
        heir = self._heir(run, message) if run is not None else None
        if run is None or heir is None or heir.takes[message.node] != sender:
            return
        state, limit = payload if message.inline is None else message.inline, self.core.config.max_state_bytes
        if message.size_bytes > limit:
            heir.error = f"the state of {message.node!r} has {message.size_bytes} bytes; this host takes up to {limit}"
            self._say(run, heir.node, heir.error)
        elif state is not None:
            heir.states[message.node] = e.Inherited(state, message.digest, message.state_version)
            if heir.node in run.heirs:
                self._check_complete(run, heir)

    def _check_complete(self, run: RunState, heir: Heir) -> None:
        if not heir.missing:
            states = tuple([heir.states[name] for name in heir.takes])
            self.core.emit(e.MergeStates(run.id, heir.node, run.locations[heir.node].version, states))

    def on_merged(self, run: RunState, event: e.StateRestored) -> None:
        heir, core = run.heirs[event.node], self.core
        if event.error:
            heir.error = f"the states of {', '.join(heir.takes)} cannot be merged: {event.error}"
            self._say(run, heir.node, heir.error)
            return
        del run.heirs[event.node]
        size = sum(len(each.state) for each in heir.states.values())
        detail = {"of": list(heir.takes)}
        duration_s = core.now - heir.since_s
        core.record(
            run.id, "merged", node=heir.node, index=run.turn + 1, size_bytes=size, duration_s=duration_s, detail=detail
        )
        if heir.run is not None:
            core.flow.perform(run, run.nodes[heir.node], [heir.run])
        core.barrier.on_merged(run)

    # --- both -----------------------------------------------------------------------------------------

    def _say(self, run: RunState, node: str, why: str) -> None:
        """Tell the client that the run cannot go on; again when it is claimed or looked after next."""
        self.core.send(run.id, run.install.client, m.Failed(run.id, node, why[:4000]))

    def needs(self, run: RunState, host: str) -> tuple[str, str] | None:
        """An operator here that needs the way to ``host``, and what for."""
        for heir in run.heirs.values():
            for name in heir.missing:
                if heir.takes[name] == host:
                    return heir.node, f"which holds {name!r}"
        return None

    def on_timer(self, run_id: str) -> None:
        """Claim what is missing, and say again what went wrong: that may have been lost."""
        run = self.core.runs.get(run_id)
        if run is None:
            return
        for heir in run.heirs.values():
            if heir.due_s > self.core.now:
                continue
            if heir.error:
                self._say(run, heir.node, heir.error)
            for name in heir.missing:
                host = heir.takes[name]
                self.core.silence.on_waiting(run, host, heir.since_s)
                self.core.send(run.id, host, m.Claim(run.id, name, heir.node))
            heir.interval_s = min(2 * heir.interval_s, self.core.config.retry_max_s)
            heir.due_s = self.core.now + heir.interval_s
        self._arm(run)

    def _arm(self, run: RunState) -> None:
        if run.heirs:
            due_s = min(heir.due_s for heir in run.heirs.values())
            self.core.emit(e.SetTimer(f"claims {run.id}", due_s))
