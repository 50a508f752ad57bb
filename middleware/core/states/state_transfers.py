"""Transfers of operators' states from this host: the network of each, and when a state is sent again.

Rules:

R1. A small state is a control message, ahead of all bulk. A larger one goes over the network that is known to carry
    most to the receiver, of the networks that both hosts are joined to and that have not been given up
    (``route_choice``, R3). If nothing is known, it goes over the network that all hosts share.
R2. A transfer is *stuck* when it has taken ``PATIENT`` times as long as expected, and ``least_s`` of the routes or
    longer. If there is a second network, the stuck link is left, and the state is sent again over the best of the rest.
R3. At most one transfer of a state to a host is under way. The receiver may get a stuck state twice: it uses one.
R4. A request of the receiver is answered with the state, unless a transfer is under way and not stuck. The first
    request after a transfer has arrived is not answered: most likely it was sent before.
R5. Failed transfers are counted. Whoever sends the state decides when they are too many.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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

Key = tuple[str, type, str, str | int]  # receiver, kind of message, node, and which state of the node


def refusal(taken: e.StateTaken, limit: int) -> str:
    """Return why a state cannot leave its host: its code raised an error, or it has more bytes than ``limit``."""
    size_bytes = len(taken.state)
    too_large = f"its state has {size_bytes} bytes; this host sends up to {limit}" if size_bytes > limit else ""
    return taken.error or too_large


@dataclass(slots=True, eq=False)
class StateTransfer:
    """Transfers of one state to one host."""

    to: str
    via: m.Via | None = None  # network of the transfer that is under way
    since_s: float = 0.0  # when that transfer began
    expected_s: float = 0.0  # how long it should take at most, by the known rate
    arrived: bool = False  # the last transfer did, and the receiver has not requested the state since
    failures: int = 0  # failed transfers in a row
    failing_s: float = 0.0  # when the first of them failed

    @property
    def under_way(self) -> bool:
        """Whether a bulk transfer is under way."""
        return self.via is not None


class StateTransfers(Part):
    """Transfers of states from this host, in one run."""

    @classmethod
    def of(cls, parts: RunParts) -> StateTransfers:
        directory = parts.get(Directory)
        return cls(parts.context.out, directory.routes, directory.peers, parts.shared.monitor)

    def __init__(self, out: Outbox, routes: RouteChoice, peers: Mapping[str, m.Peer], monitor: Monitor) -> None:
        self._out, self._routes, self._peers, self._monitor = out, routes, peers, monitor
        self._under_way: dict[Key, StateTransfer] = {}

    def send(self, transfer: StateTransfer, message: m.AnyState, state: bytes) -> bool:
        """Send a state, unless a transfer of it is under way and not stuck (R3). Return whether it was sent."""
        if message.size_bytes <= m.INLINE_STATE_BYTES:
            self._out.send(transfer.to, msgspec.structs.replace(message, inline=state))
            return True
        if transfer.under_way and not self._is_stuck(transfer, message):
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
        """Return the networks to a host that have not been given up, the fastest first, and their rates (R1)."""
        here, rates = self._out.host, dict[str, float]()
        mine, remote = (self._peers[host].ends if host in self._peers else {} for host in (here, to))
        for via in (NET, *(via for via in mine if via in remote and via != NET)):
            known = self._monitor.latest(Link(here, to, via))
            if (known is not None or via == NET) and not self._routes.is_down(to, via):
                rates[via] = 0.0 if known is None else known.rate_bps
        return dict(sorted(rates.items(), key=lambda entry: -entry[1]))

    def _is_stuck(self, transfer: StateTransfer, message: m.AnyState) -> bool:
        """Return whether a transfer is stuck (R2). If so, leave its link."""
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
        """Handle the end of a transfer. After a stuck one another transfer may be under way."""
        key = _key(to, message)
        transfer = self._under_way.get(key)
        if transfer is None:
            return
        if transfer.via == via:
            transfer.via = None
            del self._under_way[key]
        if arrived:
            transfer.arrived, transfer.failures = True, 0
        elif not transfer.under_way:  # R5
            transfer.failing_s = transfer.failing_s if transfer.failures else self._out.now
            transfer.failures += 1
            if self._known(to).keys() - {via}:
                self._routes.leave(to, via)

    def on_lost(self, note: HostLost) -> None:
        """Forget the transfers to a host that is gone for good."""
        for key, transfer in list(self._under_way.items()):
            if transfer.to == note.host:
                transfer.via = None
                del self._under_way[key]

    HANDLERS = Handlers(notes={HostLost: on_lost})


def _key(to: str, message: m.AnyState) -> Key:
    match message:
        case m.State():
            which: str | int = message.version
        case m.InheritedState():
            which = message.heir
        case _:  # of whole replicas one at a time is under way to a host
            which = message.since
    return to, type(message), message.node, which
