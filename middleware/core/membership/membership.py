"""Client's side of hosts that join or leave a run while it goes on.

Rules:

R1. A host joins while nothing is proposed and no query begins (``proposer``). The client sends the present run
    (``Install``) to the new host, and ``AddMember`` to the remaining hosts, until every host has answered. From then on
    operators may move to the new host. Then the client also sends it an ``AddMember`` for every guest, as it did to the
    remaining hosts when the guest was let in.
R2. A host that was started again has a new instance, and counts as a different host of the same name. A host that was
    only away may have missed news. The host begins with the present run, unless nodes of the run are still there
    (``HostCore``). An earlier ``Lost`` message about the host, with the number of the last ``AddMember`` before it, no
    longer counts.
R3. A host that does not answer for ``liveness_s`` times ``patience``, or cannot take part, has no part in the run. If
    the host is asked again, the pause grows each time (``rejoin_policy``), and waiting changes go before the host
    (``proposer``).
R4. A *drained* host repeats ``Leave`` to the client of every run, and takes nothing more. The operators move away
    (``proposer``). When the host has no node and no output that may be demanded, the run goes on without it. If no
    other host can have a node of the host, the host has to stay. If the node has a stand-in, the run begins anew there
    (``recovery``).
R5. The answer of a joining host may be lost while every other host has answered, so operators may move to the host. If
    the client then gives the host up, the run begins anew without it. Without failover, the queries that use the
    operators end, or the whole run ends.
"""

from __future__ import annotations

import msgspec

from thalweg.middleware.core.context.notes import HostInstalled, HostLost, Notes, NotJoined, Vacating
from thalweg.middleware.core.context.outbox import RunContext, Timer
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import Part, RunParts
from thalweg.middleware.core.queries.queries import Queries
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m


class Membership(Part):
    """Hosts that join or leave one run, at the client of the run."""

    @classmethod
    def of(cls, parts: RunParts) -> Membership:
        return cls(parts.context, parts.get(Tree), parts.get(Directory), parts.get(Queries))

    def __init__(self, context: RunContext, tree: Tree, directory: Directory, queries: Queries) -> None:
        self._context, self._out, self._limits = context, context.out, context.limits
        self._tree, self._directory, self._queries = tree, directory, queries
        self._entering: tuple[m.Peer, float, int] | None = (
            None  # joining host, time of the request, and number of the AddMember
        )

    def enter(self, peer: m.Peer) -> None:
        """Let a host join (R1): send the present run to the host, and announce the host to every host and guest."""
        out, directory = self._out, self._directory
        known = directory.peers.get(peer.name)
        if peer.name in directory.hosts and known is not None and known.instance == peer.instance:
            return  # the host has its part already
        out.emit(e.Meet(out.run, (peer,)))
        admit = m.AddMember(out.run, directory.new_number(), peer, host=True)
        self._entering = peer, out.now, admit.number
        words: dict[str, m.Message] = dict.fromkeys(directory.everyone, admit)
        self._queries.send_until_answered(words | {peer.name: self._as_it_is(peer, admit.number)})

    def _as_it_is(self, peer: m.Peer, number: int) -> m.Install:
        directory, install = self._directory, self._context.install
        if install.failover is not None:  # also the first partitions of nodes of later queries
            known = {start.node for start in install.starts}
            more = [m.Start(name, first) for name, first in self._tree.first.items() if name not in known]
            install = msgspec.structs.replace(install, starts=(*install.starts, *more))
        return msgspec.structs.replace(
            install,
            dataflow=self._tree.dataflow,
            locations=tuple(directory.locations.values()),
            peers=(*{**directory.reachable(), peer.name: peer}.values(), *self._queries.peers),
            afresh=False,
            number=number,
        )

    def on_installed(self, note: HostInstalled) -> Notes:
        """Handle the answer of the joining host, which has taken its part in the run, or cannot."""
        sender, message = note.host, note.message
        if self._entering is None or (self._entering[0].name, self._entering[2]) != (sender, message.number):
            return
        if message.error:
            yield from self._give_up(f"cannot take part: {message.error}")
            return
        self._entering = None
        self._out.record("joined", peer=sender)
        self._queries.introduce(sender)
        yield from self._queries.answered(sender)

    def on_timer(self) -> Notes:
        """Give up the joining host if it has not answered in time (R3)."""
        silent_s = self._limits.patience * self._limits.liveness_s
        if self._entering is not None and self._out.waited_s(self._entering[1]) > silent_s:
            yield from self._give_up(f"has not joined the run within {silent_s:g} s")

    def _give_up(self, how: str) -> Notes:
        assert self._entering is not None
        peer = self._entering[0]
        host = peer.name
        yield NotJoined(peer)
        held = [name for name, entry in self._directory.locations.items() if entry.host == host]
        lasting = self._context.fails_over
        self._directory.lose(host, how)
        if lasting and held:  # R5: operators have moved to the host
            self._directory.doom()
        goes = "begins anew" if lasting and held else "goes on"
        self._out.record("fault", peer=host, detail={"about": "host", "what": f"{how}; the run {goes} without it"})
        about = f"host {host!r}, which holds {', '.join(held)}, {how}"
        if held and not lasting and not self._queries.fail(held, about, host=host, lost=True):
            self._out.fail(about, host=host, lost=True)
        yield HostLost(host)

    def on_leave(self, sender: str, message: m.Leave) -> Notes:
        """Handle the request of a drained host to leave the run (R4)."""
        out, directory = self._out, self._directory
        if sender not in directory.hosts:
            out.send(sender, m.Remove(out.run))
            return
        here = [name for name, entry in directory.locations.items() if entry.host == sender]
        remaining, lasting = directory.hosts - directory.vacating - {sender}, self._context.fails_over
        fixed = [self._tree.node_of(name) for name in here if name in directory.senders]
        still = next((node for node in fixed if not (lasting and remaining.intersection(node.stand_ins))), None)
        if still is not None:
            why = f"host {sender!r} is the only host that may hold {still.kind} {still.name!r}; end the run first"
            out.send(sender, m.Stay(out.run, why))
            return
        directory.vacate(sender)
        if fixed:
            directory.lose(sender, "was drained")
            directory.doom()  # the run begins anew on the stand-ins
            out.emit(e.Parted(out.run, sender))
            out.send(sender, m.Remove(out.run))
        elif here:
            yield Vacating(sender)
        elif message.empty:
            directory.lose(sender, "was drained")
            out.record("drained", peer=sender)
            out.emit(e.Parted(out.run, sender))
            out.send(sender, m.Remove(out.run))
            yield HostLost(sender)

    def on_lost(self, note: HostLost) -> None:
        """Stop waiting for a joining host that is lost."""
        if self._entering is not None and self._entering[0].name == note.host:
            self._entering = None

    HANDLERS = Handlers(
        messages={m.Leave: on_leave},
        notes={HostLost: on_lost, HostInstalled: on_installed},
        timers={Timer.LEAVE: on_timer},
    )
