"""What this host's application takes of another client's run: its subscriptions to that.

Rules:

R1. ``Subscribe`` is sent to the run's client until that answers, and goes on being sent, more seldom, as long as the
    subscription lasts: who has forgotten it says so (``SubscriptionEnded``).
R2. The run is opened here by ``InstallSubscriber`` alone, of the client that was asked, for a subscription that this
    application has asked for. Nothing comes here with it but sinks: no code (``arrivals``, ``query_attachment``),
    nothing to measure, and nothing to decide.
    Which of the sinks that are here is whose is told with it, before the sink is here or after.
R3. A client that has not answered for ``liveness_s``, times ``patience``, is given up. Once the run is open here,
    its lease counts (``host``).
R4. The client is told of a subscription that is wanted no more (``Unsubscribe``) until it answers: it may be about to
    begin. Where no other is wanted, ``TRIES`` times at most: who does not hear it hears with its next ping that the run
    is over here.

R5. A run that begins anew has another ``InstallSubscriber`` for its next generation. The sinks that are here go on in
    it with the partition that each wants next. If the run begins after that one, what lies between is lost, and the
    subscription ends with an error.

What the run's client does about it is in ``subscribers``.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from thalweg.middleware.core.context.outbox import Outbox, Timer
from thalweg.middleware.dataflow import Dataflow, Placement
from thalweg.middleware.errors import one_line
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig

TRIES = 5


class _Wanted(msgspec.Struct):
    """A subscription: the run's node, what the sink is called there once that is known, whether the application knows
    that it has begun, and how often it was left."""

    node: str
    sink: str = ""
    begun: bool = False
    left: int = 0


class RunSubscriptions:
    """The subscriptions to one run, which the client at ``owner`` leads."""

    def __init__(self, out: Outbox, me: m.Peer, owner: m.Peer, limits: CoreConfig) -> None:
        self._out, self._me, self._limits = out, me, limits
        self.owner = owner
        self.wanted: dict[int, _Wanted] = {}
        self.heard_s = out.now  # from the client
        out.emit(e.Meet(out.run, (owner,)))

    def handle_sign_of_life(self, now: float) -> None:
        """R3: note that the client is there, or that it has a fresh period."""
        self.heard_s = now

    @property
    def over(self) -> bool:
        return not self.wanted

    # --- what the application wants -------------------------------------------------------------------

    def request(self, number: int, node: str) -> None:
        """It wants the partitions of ``node``."""
        self.wanted[number] = _Wanted(node)
        self._send(number, self.wanted[number])
        self._out.wake(Timer.VISIT, self._out.now + self._limits.retry_s)

    def leave(self, number: int) -> None:
        """It wants them no more."""
        wanted = self.wanted.get(number)
        if wanted is not None and not wanted.left:
            wanted.left = 1
            self._send(number, wanted)
            self._out.wake(Timer.VISIT, self._out.now + self._limits.retry_s)

    def _send(self, number: int, wanted: _Wanted) -> None:
        run = self._out.run
        self._out.emit(e.Meet(run, (self.owner,)))  # R5: the end of a generation drops the client's address
        word = m.Unsubscribe(run, number) if wanted.left else m.Subscribe(run, number, wanted.node, self._me)
        self._out.send(self.owner.name, word)

    def on_timer(self, open_here: bool) -> None:
        """Say again what was not answered. ``open_here``: whether the client has let this host in."""
        limits, now = self._limits, self._out.now
        silent_s = limits.patience * limits.liveness_s
        if not open_here and now - self.heard_s > silent_s:  # R3: once the run is open here its lease counts instead
            self.end(f"client {self.owner.name!r}, which began it, has not answered for {silent_s:g} s")
        if all(wanted.left > TRIES for wanted in self.wanted.values()):
            # R4: a client that has not heard learns with its next ping that the run is over here
            self.wanted.clear()
        for number, wanted in self.wanted.items():
            wanted.left += wanted.left > 0
            self._send(number, wanted)  # R1: the client answers if it has forgotten the subscription
        if self.wanted:
            lasting = all(wanted.sink and not wanted.left for wanted in self.wanted.values())
            self._out.wake(Timer.VISIT, now + (limits.liveness_s / 2 if lasting else limits.retry_s))

    # --- what becomes of it ---------------------------------------------------------------------------

    def enrols(self, sender: str, message: m.InstallSubscriber) -> bool:
        """R2: whether that was asked for; its sink has that name from now on."""
        wanted = self.wanted.get(message.number)
        if wanted is None or wanted.left or sender != self.owner.name:
            return False
        wanted.sink = message.sink
        return True

    @property
    def sinks(self) -> set[str]:
        """The names in the run of the sinks of these subscriptions, as far as they are known."""
        return {wanted.sink for wanted in self.wanted.values() if wanted.sink}

    def lose(self, sink: str, why: str) -> None:
        """R5: the subscription that has this sink cannot go on; the client is told so until it answers."""
        for number, wanted in self.wanted.items():
            if wanted.sink == sink and not wanted.left:
                reason = f"subscription to {wanted.node!r} of run {self._out.run}: {why}"
                self._out.fail(one_line(reason), node=wanted.node, host=self.owner.name, query=number)
                self.leave(number)

    def begun(self, names: Collection[str], first: int, dataflow: Dataflow, where: Placement) -> None:
        """These nodes are in the run from partition ``first`` on."""
        for number, wanted in self.wanted.items():
            if wanted.sink in names and not wanted.begun:
                wanted.begun = True
                node_names = {wanted.node: wanted.sink}
                self._out.emit(e.QueryStarted(self._out.run, number, first, node_names, dataflow, where))

    def cut(self, gone: Collection[str]) -> None:
        """These nodes are not in the run any more."""
        for number in [number for number, wanted in self.wanted.items() if wanted.sink in gone]:
            self.dismiss(number, f"client {self.owner.name!r} has ended it")

    def dismiss(self, number: int, why: str) -> None:
        """A subscription is over, or with 0 all are; the application is told why, unless it has left."""
        for query in [number] if number else list(self.wanted):
            wanted = self.wanted.pop(query, None)
            if wanted is not None and not wanted.left:
                reason = f"subscription to {wanted.node!r} of run {self._out.run}: {why}"
                self._out.fail(one_line(reason), node=wanted.node, host=self.owner.name, query=query)

    def end(self, why: str) -> None:
        """All are over."""
        self.dismiss(0, why)


def check_visit(message: m.InstallSubscriber, host: str) -> str:
    """Return the reason against a run to which ``host`` has subscribed. Empty: there is none.

    Sinks on this host are allowed. A later generation has those of its subscriptions. The run may also have a sink of a
    subscription that this host has left.
    """
    install = message.install
    if install.run != message.run:
        return f"run {install.run} is not the one that was subscribed to"
    kinds = {node.name: node.kind for node in install.dataflow.nodes}
    here = {entry.node for entry in install.locations if entry.host == host}
    if any(kinds.get(name) != "sink" for name in here) or any(peer.name == host for peer in install.peers):
        return f"{host!r} has a part in the run already"
    if install.moves is not None or install.news or install.afresh:
        return "a guest has no part in what hosts find out and decide"
    return ""
