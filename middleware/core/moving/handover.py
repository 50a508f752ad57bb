"""One operator changes hosts: a hand-over between the host it leaves and the host it comes to, as data.

Rules:

R1. The operator leaves when it is *light*: its output has gone, and none of its inputs is in hand (Ranganathan et al.,
    section 2). What travels is what ``snapshot()`` gives then, and the number of its next partition.
R2. Until the hand-over is committed the operator is where it was, whatever becomes of the other host; from then on it
    is at the other. Only the host it leaves commits, and only when the other has said that the state is restored.
R3. The commit is the operator's next location version. Nobody else makes one, so knowing it is proof of the commit. An
    operator that stays gets a new version as well, so that every hand-over has one of its own.
R4. The host it leaves keeps the operator's last output (its *tail*) until a later partition is demanded, and answers
    demands for it (``flow``).
R5. Every message may be lost or come twice: an offer is repeated until it is answered, a state until it is restored, a
    commit until the operator has resumed. What is late is answered with the newer location.
R6. The operator's code is never sent. A host that does not have it, has no room, or is given a state that fails its
    digest, refuses, and the operator stays.

``LEAVING`` are the states of the host the operator leaves (``departures``), ``COMING`` those of the host it comes to
(``arrivals``), also where it comes from nowhere: an operator that appears in another tree.
"""

from __future__ import annotations

from thalweg.middleware.core.context.machine import Term
from thalweg.middleware.core.context.outbox import Alarm, Timer
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import Part, RunParts


class DepartureState(Term):
    OFFERED = "offered"
    AGREED = "agreed"  # the other host is ready; the operator works on until it is light
    SUSPENDED = "suspended"  # light; its state is being taken
    SENT = "sent"
    COMMITTED = "committed"
    MOVED = "moved"
    STAYED = "stayed"


class DepartureEvent(Term):
    ACCEPTED = "accepted"
    REFUSED = "refused"
    LIGHTENED = "lightened"
    TAKEN = "taken"
    FAILED = "failed"  # no state, or one that is too large
    RESTORED = "restored"
    RESUMED = "resumed"
    EXPIRED = "expired"  # no answer in time
    LOST = "lost"  # the other host is gone for good
    ENDED = "ended"  # the stream was over before the operator was light


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
    RESTORED = "restored"  # waits for the commit
    ACTIVE = "active"
    DISCARDED = "discarded"


class ArrivalEvent(Term):
    OPENED = "opened"
    STATE_CAME = "state came"
    RESTORED = "restored"
    COMMITTED = "committed"
    APPEARED = "appeared"  # it is in another tree, which is committed
    FAILED = "failed"
    WITHDRAWN = "withdrawn"  # the operator stays, or has gone elsewhere


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
    """The timer of all hand-overs from and to this host, in one run."""

    __slots__ = ()

    @classmethod
    def of(cls, parts: RunParts) -> MoveAlarm:
        return cls(parts.context.out, Timer.MOVE)

    HANDLERS = Handlers(timers={Timer.MOVE: Alarm.rung})
