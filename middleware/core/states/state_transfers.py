"""Transfers of operators' states from this host: choice of the network, and repetition.

Rules:

R1. A small state is a control message, ahead of all bulk. A larger state goes over the network with the highest known
    rate to the receiver. Candidates are the networks that both hosts have joined and that are not given up
    (``route_choice``, R3). If no rate is known, the network that all hosts share is used.
R2. A transfer is *stuck* when it has taken ``PATIENT`` times as long as expected, and at least ``least_s`` of the
    routes. If there is a second network, the stuck link is given up, and the state is sent again over the best
    remaining network.
R3. At most one transfer of a state to a host is under way. If a transfer was stuck, the receiver may get the state
    twice, and uses one copy.
R4. An heir's request is answered with the state, unless a transfer is under way and not stuck. The first request after
    a transfer has arrived is not answered, because it was most likely sent before the arrival. A replica is sent at
    each request, unless a transfer is under way and not stuck.
R5. Failed transfers are counted. The sender of the state decides when there are too many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from thalweg.middleware.core.context.notes import HostLost
from thalweg.middleware.core.context.outbox import Outbox
from thalweg.middleware.core.flow.directory import Directory
from thalweg.middleware.core.measuring.monitor import Monitor
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import Part, RunParts
from thalweg.middleware.core.routes.route_choice import PATIENT, STUCK, RouteChoice
from thalweg.middleware.network.view import NET, Link
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

Key = tuple[str, type, str, str | int]  # receiver, kind of message, node, and version, heir or base of the state


def refusal(taken: e.StateTaken, limit: int) -> str:
    """Return why a state cannot be sent: an error of its code, or a size above ``limit`` bytes. Empty: it can."""
    size_bytes = len(taken.state)
    too_large = f"its state has {size_bytes} bytes; this host sends up to {limit}" if size_bytes > limit else ""
    return taken.error or too_large


def fields_of(taken: e.StateTaken) -> dict[str, Any]:
    """Return the fields of a message that are the same for every use of a state."""
    return {
        "node": taken.node,
        "version": taken.version,
        "state_version": taken.state_version,
        "size_bytes": len(taken.state),
        "digest": taken.digest,
    }


@dataclass(slots=True, eq=False)
class StateTransfer:
    """Transfers of a state to a host: network, times and failures."""

    to: str
    via: m.Via | None = None  # network of the transfer that is under way
    since_s: float = 0.0  # start of the transfer under way
    expected_s: float = 0.0  # longest duration by the known rate. 0: unknown
    arrived: bool = False  # the last transfer has arrived, and no request has come since
    failures: int = 0  # failed transfers in a row
    failing_since_s: float | None = None  # time of the first of these failures

    @property
    def under_way(self) -> bool:
        """Return whether a bulk transfer is under way."""
        return self.via is not None


class StateTransfers(Part):
    """Transfers of a run's states from this host."""

    @classmethod
    def of(cls, parts: RunParts) -> StateTransfers:
        directory = parts.get(Directory)
        return cls(parts.context.out, directory.routes, directory.peers, parts.shared.monitor)

    def __init__(self, out: Outbox, routes: RouteChoice, peers: Mapping[str, m.Peer], monitor: Monitor) -> None:
        self._out, self._routes, self._peers, self._monitor = out, routes, peers, monitor
        self._under_way: dict[Key, StateTransfer] = {}

    def send(self, transfer: StateTransfer, message: m.AnyState, state: bytes) -> bool:
        """Send a state, unless a transfer is under way and not stuck (R3). Return whether the state was sent."""
        if message.size_bytes <= m.INLINE_STATE_BYTES:
            self._out.send(transfer.to, msgspec.structs.replace(message, inline=state))
            return True
        if transfer.under_way and not self._leave_if_stuck(transfer, message):
            return False
        via, rate_bps = next(iter(self._known(transfer.to).items()), (NET, 0.0))
        transfer.via, transfer.since_s, transfer.arrived = via, self._out.now, False
        transfer.expected_s = PATIENT * message.size_bytes * 8 / rate_bps if rate_bps else 0.0
        self._under_way[_key(transfer.to, message)] = transfer
        self._out.send(transfer.to, message, state, message.size_bytes, bulk=True, via=via)
        return True

    def answer(self, transfer: StateTransfer, message: m.AnyState, state: bytes) -> None:
        """Answer the receiver's request for a state (R4)."""
        if transfer.arrived:
            transfer.arrived = False
        else:
            self.send(transfer, message, state)

    def _known(self, to: str) -> dict[str, float]:
        """Return the networks to a host that have not been given up, the fastest first, with the rates (R1)."""
        here, rates = self._out.host, dict[str, float]()
        local, remote = (self._peers[host].ends if host in self._peers else {} for host in (here, to))
        for via in (NET, *(via for via in local if via in remote and via != NET)):
            known = self._monitor.latest(Link(here, to, via))
            if (known is not None or via == NET) and not self._routes.is_down(to, via):
                rates[via] = 0.0 if known is None else known.rate_bps
        return dict(sorted(rates.items(), key=lambda entry: -entry[1]))

    def _leave_if_stuck(self, transfer: StateTransfer, message: m.AnyState) -> bool:
        """Return whether a transfer is stuck (R2). If so, give up the link."""
        to, via = transfer.to, transfer.via
        waited_s = self._out.now - transfer.since_s
        if not isinstance(via, str) or waited_s < max(self._routes.least_s, transfer.expected_s):
            return False
        if not self._known(to).keys() - {via}:
            return False
        self._routes.leave(to, via)
        self._monitor.stalled(Link(self._out.host, to, via), message.size_bytes, STUCK * waited_s, self._out.now)
        detail = {"what": "nothing comes through", "via": via, "state": message.node}
        self._out.record("fault", peer=to, node=message.node, duration_s=waited_s, detail=detail)
        return True

    def over(self, to: str, via: m.Via, message: m.AnyState, *, arrived: bool) -> None:
        """Record the end of a transfer. After a stuck transfer, a second transfer may be under way."""
        key = _key(to, message)
        transfer = self._under_way.get(key)
        if transfer is None:
            return
        if transfer.via == via:
            transfer.via = None
            del self._under_way[key]
        if arrived:
            transfer.arrived, transfer.failures, transfer.failing_since_s = True, 0, None
        elif not transfer.under_way:  # R5: count the failure
            transfer.failures += 1
            if transfer.failing_since_s is None:
                transfer.failing_since_s = self._out.now
            if self._known(to).keys() - {via}:
                self._routes.leave(to, via)

    def on_lost(self, note: HostLost) -> None:
        """Forget the transfers to a host that is lost for good."""
        for key, transfer in list(self._under_way.items()):
            if transfer.to == note.host:
                transfer.via = None
                del self._under_way[key]

    HANDLERS = Handlers(notes={HostLost: on_lost})


def _key(to: str, message: m.AnyState) -> Key:
    match message:
        case m.State():
            label: str | int = message.version
        case m.InheritedState():
            label = message.heir
        case _:  # at most one whole replica of a node is under way to a host
            label = message.since
    return to, type(message), message.node, label
