"""Hosts that come to have a part in a run while it goes on, at its client.

Rules:

R1. A host joins while nothing is proposed and no query is let in (``proposer``). It is told the run as it is
    (``Install``), and all others are told of it (``AddMember``), again and again until they have answered. From then on
    operators may move there.
    It is told of each guest then (``AddMember``), as all others were when that was let in.
R2. One that was started again has another instance, and is another host of the same name. One that was only away may
    have missed anything: it begins with the run as it is, unless something is there (``HostCore``). What was said of
    who was there before (``HostLost``, with the number of the last ``AddMember``) counts no more.
R3. One that does not answer for ``liveness_s``, times ``patience``, or cannot take part, has no part in the run. If it
    is asked again, it waits longer each time (``rejoin_policy``), and other changes that wait go before it
    (``proposer``).
R4. A host that is *drained* says so to the client of each run, again and again. It takes nothing more. Its operators
    move away (``proposer``); when nothing is there that somebody may ask for, the run goes on without it. Where it
    holds what can be nowhere else, it has to stay; of what has a stand-in the run begins anew there (``recovery``).
R5. The answer of a host that joins may be lost alone, so that operators move there. If the host is given up then, the
    run begins anew without it. Without failover the queries that use these operators end, or the run does.
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
    """A run's hosts, as its client knows them to come."""

    @classmethod
    def of(cls, parts: RunParts) -> Membership:
        return cls(parts.context, parts.get(Tree), parts.get(Directory), parts.get(Queries))

    def __init__(self, context: RunContext, tree: Tree, directory: Directory, queries: Queries) -> None:
        self._context, self._out, self._limits = context, context.out, context.limits
        self._tree, self._directory, self._queries = tree, directory, queries
        self._entering: tuple[m.Peer, float, int] | None = (
            None  # who joins, since when, and the number of the AddMember
        )

    def enter(self, peer: m.Peer) -> None:
        """R1: a host joins."""
        out, directory = self._out, self._directory
        known = directory.peers.get(peer.name)
        if peer.name in directory.hosts and known is not None and known.instance == peer.instance:
            return  # it is there
        out.emit(e.Meet(out.run, (peer,)))
        admit = m.AddMember(out.run, directory.new_number(), peer, host=True)
        self._entering = peer, out.now, admit.number
        words: dict[str, m.Message] = dict.fromkeys(directory.everyone, admit)
        self._queries.send_until_answered(words | {peer.name: self._as_it_is(peer, admit.number)})

    def _as_it_is(self, peer: m.Peer, number: int) -> m.Install:
        directory, install = self._directory, self._context.install
        if install.failover is not None:  # with where the nodes of later queries begin
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
        """A host has taken its part in the run, or cannot."""
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
        """R3: who does not answer is not waited for any longer."""
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
        if lasting and held:  # R5: operators moved there
            self._directory.doom()
        goes = "begins anew" if lasting and held else "goes on"
        self._out.record("fault", peer=host, detail={"about": "host", "what": f"{how}; the run {goes} without it"})
        about = f"host {host!r}, which holds {', '.join(held)}, {how}"
        if held and not lasting and not self._queries.fail(held, about, host=host, lost=True):
            self._out.fail(about, host=host, lost=True)
        yield HostLost(host)

    def on_leave(self, sender: str, message: m.Leave) -> Notes:
        """R4: a host is to leave."""
        out, directory = self._out, self._directory
        if sender not in directory.hosts:
            out.send(sender, m.Remove(out.run))
            return
        here = [name for name, entry in directory.locations.items() if entry.host == sender]
        remaining, lasting = directory.hosts - directory.vacating - {sender}, self._context.fails_over
        fixed = [self._tree.node_of(name) for name in here if name in directory.senders]
        still = next((node for node in fixed if not (lasting and remaining.intersection(node.stand_ins))), None)
        if still is not None:
            why = f"host {sender!r} is the only one that may hold {still.kind} {still.name!r}; end the run first"
            out.send(sender, m.Stay(out.run, why))
            return
        directory.vacate(sender)
        if fixed:
            directory.lose(sender, "was drained")
            directory.doom()  # the run begins anew, where its stand-ins are
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
        """A host is gone."""
        if self._entering is not None and self._entering[0].name == note.host:
            self._entering = None

    HANDLERS = Handlers(
        messages={m.Leave: on_leave},
        notes={HostLost: on_lost, HostInstalled: on_installed},
        timers={Timer.LEAVE: on_timer},
    )
