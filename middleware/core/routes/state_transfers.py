"""Over which network operators' states go from this host, and what becomes of one where a link fails.

Rules:

R1. A state goes over the network that is known to carry most to that host, of those that both are joined to and that
    nobody has given up (``route_choice``, R3); over the one that all share where nothing is known of any.
R2. A transfer is *stuck* when it has taken ``PATIENT`` times as long as it should, and ``LEAST`` times the wait before
    something is repeated. Its link is left then, as one that partitions are stuck on; whoever sends the state sends it
    again, over what carries most of the others. Where there is no other network, it is waited for.
R3. What was stuck may come after all, and the other host have the state twice: it takes one (``handover``, R5).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from thalweg.middleware.core.context.outbox import Outbox
from thalweg.middleware.core.measuring.monitor import Monitor
from thalweg.middleware.core.routes.route_choice import PATIENT, STUCK, RouteChoice
from thalweg.middleware.network.view import NET, Link
from thalweg.middleware.protocol import messages as m

Key = tuple[str, str, str, int]  # to which host, the state of which node, for whom (a replica: itself), since when
WHOLE = -1


class _UnderWay(msgspec.Struct, frozen=True):
    """A state's transfer: over which network, since when, and how many bits per second were expected (0: unknown)."""

    via: str
    since_s: float
    size_bytes: int
    rate_bps: float


class StateTransfers:
    """The transfers of states from this host, in one run."""

    def __init__(self, out: Outbox, ways: RouteChoice, peers: Mapping[str, m.Peer], monitor: Monitor) -> None:
        self._out, self._routes, self._peers, self._monitor = out, ways, peers, monitor
        self._under_way: dict[Key, _UnderWay] = {}

    def send(self, to: str, message: m.AnyState, state: bytes) -> bool:
        """Send what ``snapshot()`` gave: a small one ahead of all bulk. Whether its transfer is under way now."""
        if message.size_bytes <= m.INLINE_STATE_BYTES:
            self._out.send(to, msgspec.structs.replace(message, inline=state))
            return False
        via, rate_bps = next(iter(self._known(to).items()), (NET, 0.0))
        self._under_way[_key(to, message)] = _UnderWay(via, self._out.now, message.size_bytes, rate_bps)
        self._out.send(to, message, state, message.size_bytes, bulk=True, via=via)
        return True

    def _known(self, to: str) -> dict[str, float]:
        """R1: the networks to that host that nobody has given up, the fastest first, and what they carry."""
        here, rates = self._out.host, dict[str, float]()
        mine, remote = (self._peers[host].ends if host in self._peers else {} for host in (here, to))
        for via in (NET, *(via for via in mine if via in remote and via != NET)):
            known = self._monitor.latest(Link(here, to, via))
            if (known is not None or via == NET) and not self._routes.is_down(to, via):
                rates[via] = 0.0 if known is None else known.rate_bps
        return dict(sorted(rates.items(), key=lambda entry: -entry[1]))

    def stuck(self, to: str, node: str, heir: str = "") -> bool:
        """R2: whether a whole state that is under way is to be sent again."""
        sent = self._under_way.get((to, node, heir, WHOLE))
        if sent is None:
            return False
        waited_s = self._out.now - sent.since_s
        expected_s = sent.size_bytes * 8 / sent.rate_bps if sent.rate_bps else 0.0
        if waited_s < max(self._routes.least_s, PATIENT * expected_s):
            return False
        if not self._known(to).keys() - {sent.via}:
            return False
        del self._under_way[to, node, heir, WHOLE]
        self._routes.leave(to, sent.via)
        link = Link(self._out.host, to, sent.via)
        self._monitor.stalled(link, sent.size_bytes, STUCK * waited_s, self._out.now)
        detail = {"what": "nothing comes through", "via": sent.via, "state": node}
        self._out.record("fault", peer=to, node=node, duration_s=waited_s, detail=detail)
        return True

    def over(self, to: str, via: m.Via, message: m.AnyState, *, arrived: bool) -> None:
        """A transfer is over; of one that was stuck another may be under way."""
        sent = self._under_way.get(_key(to, message))
        if sent is None or sent.via != via:
            return
        del self._under_way[_key(to, message)]
        if not arrived and self._known(to).keys() - {via}:
            self._routes.leave(to, via)


def _key(to: str, message: m.AnyState) -> Key:
    if isinstance(message, m.Checkpoint):
        return to, message.node, message.node, message.since
    return to, message.node, message.heir, WHOLE
