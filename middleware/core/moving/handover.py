"""Hand-over: rules and states of the move of one operator between two hosts.

Rules:

R1. The operator leaves when it is *light*: its output is dispatched, and no input is gathered (Ranganathan et al.,
    section 2). The result of ``snapshot()`` is sent, and the number of the next partition.
R2. Until the commit, the operator stays on its old host, even if the new host is lost. From the commit on, the operator
    is on the new host. Only the old host commits, after the new host has reported that the state is restored.
R3. The commit is the operator's next location version. No other host makes a version, so a host that knows the version
    has proof of the commit. An operator that stays gets a new version as well, so every hand-over has its own version.
R4. The old host keeps the operator's last output (its *tail*) until a later partition is demanded, and answers demands
    for it (``flow``).
R5. A message may be lost or repeated. An offer is repeated until the answer, a state until it is restored, and a commit
    until the operator has resumed. A late message is answered with the newer location.
R6. The operator's code is never sent. A host refuses the operator if it lacks the code or room, or if the state fails
    its digest. Then the operator stays.

``LEAVING`` has the states of the old host (``departures``), and ``COMING`` the states of the new host (``arrivals``).
``COMING`` also serves operators without an old host, which appear in a new tree.
"""

from __future__ import annotations

from thalweg.middleware.core.context.machine import Term
from thalweg.middleware.core.context.outbox import Alarm, Timer
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import Part, RunParts


class DepartureState(Term):
    OFFERED = "offered"
    AGREED = "agreed"  # the new host is ready, and the operator goes on until it is light
    SUSPENDED = "suspended"  # the operator is light, and its state is being read
    SENT = "sent"
    COMMITTED = "committed"
    MOVED = "moved"
    STAYED = "stayed"


class DepartureEvent(Term):
    ACCEPTED = "accepted"
    REFUSED = "refused"
    LIGHTENED = "lightened"
    TAKEN = "taken"
    FAILED = "failed"  # no state, or too large a state
    RESTORED = "restored"
    RESUMED = "resumed"
    EXPIRED = "expired"  # the new host has not answered in time
    LOST = "lost"  # the new host is lost for good
    ENDED = "ended"  # the stream ended before the operator was light


LEAVING: dict[tuple[DepartureState, DepartureEvent], DepartureState] = {
    (DepartureState.OFFERED, DepartureEvent.ACCEPTED): DepartureState.AGREED,
    (DepartureState.OFFERED, DepartureEvent.REFUSED): DepartureState.STAYED,
    (DepartureState.OFFERED, DepartureEvent.EXPIRED): DepartureState.STAYED,
    (DepartureState.OFFERED, DepartureEvent.LOST): DepartureState.STAYED,
    (DepartureState.OFFERED, DepartureEvent.ENDED): DepartureState.STAYED,
    (DepartureState.AGREED, DepartureEvent.LIGHTENED): DepartureState.SUSPENDED,
    (DepartureState.AGREED, DepartureEvent.REFUSED): DepartureState.STAYED,
    (DepartureState.AGREED, DepartureEvent.LOST): DepartureState.STAYED,
    (DepartureState.AGREED, DepartureEvent.ENDED): DepartureState.STAYED,
    (DepartureState.SUSPENDED, DepartureEvent.TAKEN): DepartureState.SENT,
    (DepartureState.SUSPENDED, DepartureEvent.REFUSED): DepartureState.STAYED,
    (DepartureState.SUSPENDED, DepartureEvent.FAILED): DepartureState.STAYED,
    (DepartureState.SUSPENDED, DepartureEvent.LOST): DepartureState.STAYED,
    (DepartureState.SENT, DepartureEvent.RESTORED): DepartureState.COMMITTED,
    (DepartureState.SENT, DepartureEvent.REFUSED): DepartureState.STAYED,
    (DepartureState.SENT, DepartureEvent.EXPIRED): DepartureState.STAYED,
    (DepartureState.SENT, DepartureEvent.LOST): DepartureState.STAYED,
    (DepartureState.COMMITTED, DepartureEvent.RESUMED): DepartureState.MOVED,
    (DepartureState.COMMITTED, DepartureEvent.LOST): DepartureState.MOVED,
}


class ArrivalState(Term):
    PREPARING = "preparing"  # the code is being loaded
    PREPARED = "prepared"
    RESTORING = "restoring"
    RESTORED = "restored"  # the operator waits for the commit
    ACTIVE = "active"
    DISCARDED = "discarded"


class ArrivalEvent(Term):
    OPENED = "opened"
    STATE_CAME = "state came"
    RESTORED = "restored"
    COMMITTED = "committed"
    APPEARED = "appeared"  # the tree with the operator is committed
    FAILED = "failed"
    WITHDRAWN = "withdrawn"  # the operator stays, or has moved to a third host


COMING: dict[tuple[ArrivalState, ArrivalEvent], ArrivalState] = {
    (ArrivalState.PREPARING, ArrivalEvent.OPENED): ArrivalState.PREPARED,
    (ArrivalState.PREPARING, ArrivalEvent.FAILED): ArrivalState.DISCARDED,
    (ArrivalState.PREPARING, ArrivalEvent.WITHDRAWN): ArrivalState.DISCARDED,
    (ArrivalState.PREPARED, ArrivalEvent.STATE_CAME): ArrivalState.RESTORING,
    (ArrivalState.PREPARED, ArrivalEvent.APPEARED): ArrivalState.ACTIVE,
    (ArrivalState.PREPARED, ArrivalEvent.WITHDRAWN): ArrivalState.DISCARDED,
    (ArrivalState.RESTORING, ArrivalEvent.RESTORED): ArrivalState.RESTORED,
    (ArrivalState.RESTORING, ArrivalEvent.FAILED): ArrivalState.DISCARDED,
    (ArrivalState.RESTORING, ArrivalEvent.WITHDRAWN): ArrivalState.DISCARDED,
    (ArrivalState.RESTORED, ArrivalEvent.COMMITTED): ArrivalState.ACTIVE,
    (ArrivalState.RESTORED, ArrivalEvent.WITHDRAWN): ArrivalState.DISCARDED,
}


class MoveAlarm(Alarm, Part):
    """Timer of a run's hand-overs from and to this host."""

    __slots__ = ()

    @classmethod
    def of(cls, parts: RunParts) -> MoveAlarm:
        return cls(parts.context.out, Timer.MOVE)

    HANDLERS = Handlers(timers={Timer.MOVE: Alarm.rung})
