"""Subscriptions of this host's application to one run of another client.

Rules:

R1. ``Subscribe`` is repeated until the run's client answers, and less often afterwards, as long as the subscription
    lasts. A client that has forgotten the subscription answers with ``SubscriptionEnded``.
R2. Only ``InstallSubscriber`` opens the run here, from the client that was asked, for a subscription that this
    application has requested. Only sinks come here: no code (``arrivals``, ``query_attachment``), no measurements, and
    no decisions. The message names the sink of the subscription, before or after the sink appears here.
R3. If the client has not answered for ``liveness_s`` times ``patience``, the subscriptions end. Once the run is open
    here, the lease of the run counts instead (``host``).
R4. ``Unsubscribe`` is repeated until the client answers, because the subscription may be about to begin. If no
    subscription is wanted, it is repeated ``TRIES`` times at most. Then a client that has missed ``Unsubscribe`` learns
    from its next ping that the run is over here.

R5. If the run begins anew, another ``InstallSubscriber`` comes for the next generation. Every sink here goes on with
    the next partition that it wants. If the run begins after that partition, partitions are lost, and the subscription
    ends with an error.

The part of the run's client is ``subscribers``.
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
    """State of a subscription to ``node``.

    ``sink``: the sink's name in the run, once it is known. ``begun``: whether the application was notified of the
    start. ``left``: how often ``Unsubscribe`` was sent.
    """

    node: str
    sink: str = ""
    begun: bool = False
    left: int = 0


class RunSubscriptions:
    """Subscriptions to one run of the client ``owner``."""

    def __init__(self, out: Outbox, me: m.Peer, owner: m.Peer, limits: CoreConfig) -> None:
        self._out, self._me, self._limits = out, me, limits
        self.owner = owner
        self.wanted: dict[int, _Wanted] = {}
        self.heard_s = out.now  # time of the client's last sign of life
        out.emit(e.Meet(out.run, (owner,)))

    def handle_sign_of_life(self, now: float) -> None:
        """Note that the client is alive, or has a fresh period of silence (R3)."""
        self.heard_s = now

    @property
    def over(self) -> bool:
        return not self.wanted

    # --- what the application wants -------------------------------------------------------------------

    def request(self, number: int, node: str) -> None:
        """Ask the run's client for the partitions of ``node``, as subscription ``number`` of the application."""
        self.wanted[number] = _Wanted(node)
        self._send(number, self.wanted[number])
        self._out.wake(Timer.VISIT, self._out.now + self._limits.retry_s)

    def leave(self, number: int) -> None:
        """End a subscription, and notify the run's client (R4)."""
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
        """Repeat due messages, and give up a silent client. ``open_here``: whether the run is open on this host."""
        limits, now = self._limits, self._out.now
        silent_s = limits.patience * limits.liveness_s
        if not open_here and now - self.heard_s > silent_s:  # R3: an open run has a lease instead
            self.end(f"client {self.owner.name!r}, which began it, has not answered for {silent_s:g} s")
        if all(wanted.left > TRIES for wanted in self.wanted.values()):
            # R4: a client that has missed the messages learns from its next ping that the run is over here
            self.wanted.clear()
        for number, wanted in self.wanted.items():
            wanted.left += wanted.left > 0
            self._send(number, wanted)  # R1: the client answers if it has forgotten the subscription
        if self.wanted:
            lasting = all(wanted.sink and not wanted.left for wanted in self.wanted.values())
            self._out.wake(Timer.VISIT, now + (limits.liveness_s / 2 if lasting else limits.retry_s))

    # --- what becomes of it ---------------------------------------------------------------------------

    def enrols(self, sender: str, message: m.InstallSubscriber) -> bool:
        """Return whether a message belongs to a wanted subscription (R2). If so, note the name of the sink."""
        wanted = self.wanted.get(message.number)
        if wanted is None or wanted.left or sender != self.owner.name:
            return False
        wanted.sink = message.sink
        return True

    @property
    def sinks(self) -> set[str]:
        """Known names of the subscriptions' sinks in the run."""
        return {wanted.sink for wanted in self.wanted.values() if wanted.sink}

    def lose(self, sink: str, why: str) -> None:
        """End the subscription with this sink, and report the reason to the application (R5)."""
        for number, wanted in self.wanted.items():
            if wanted.sink == sink and not wanted.left:
                reason = f"subscription to {wanted.node!r} of run {self._out.run}: {why}"
                self._out.fail(one_line(reason), node=wanted.node, host=self.owner.name, query=number)
                self.leave(number)

    def begun(self, names: Collection[str], first: int, dataflow: Dataflow, where: Placement) -> None:
        """Notify the application of subscriptions that begin, because the run has their sinks now.

        ``names``: nodes that the run has from partition ``first`` on.
        """
        for number, wanted in self.wanted.items():
            if wanted.sink in names and not wanted.begun:
                wanted.begun = True
                node_names = {wanted.node: wanted.sink}
                self._out.emit(e.QueryStarted(self._out.run, number, first, node_names, dataflow, where))

    def cut(self, gone: Collection[str]) -> None:
        """End the subscriptions whose sinks have left the run."""
        for number in [number for number, wanted in self.wanted.items() if wanted.sink in gone]:
            self.dismiss(number, f"client {self.owner.name!r} has ended it")

    def dismiss(self, number: int, why: str) -> None:
        """End a subscription, or with 0 all subscriptions.

        Report the reason to the application, unless the application has left the subscription.
        """
        for query in [number] if number else list(self.wanted):
            wanted = self.wanted.pop(query, None)
            if wanted is not None and not wanted.left:
                reason = f"subscription to {wanted.node!r} of run {self._out.run}: {why}"
                self._out.fail(one_line(reason), node=wanted.node, host=self.owner.name, query=query)

    def end(self, why: str) -> None:
        """End all subscriptions, and report the reason to the application."""
        self.dismiss(0, why)


def check_visit(message: m.InstallSubscriber, host: str) -> str:
    """Return the reason against a run to which ``host`` has subscribed. Empty: there is none.

    Sinks on this host are allowed: a later generation has the sinks of the host's subscriptions. The run may also have
    a sink of a subscription that this host has left.
    """
    install = message.install
    if install.run != message.run:
        return f"run {install.run} is not the run of the subscription"
    kinds = {node.name: node.kind for node in install.dataflow.nodes}
    here = {entry.node for entry in install.locations if entry.host == host}
    if any(kinds.get(name) != "sink" for name in here) or any(peer.name == host for peer in install.peers):
        return f"{host!r} has a part in the run already"
    if install.moves is not None or install.news or install.afresh:
        return "a guest takes no part in the measurements and decisions of hosts"
    return ""
