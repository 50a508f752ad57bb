"""How a run begins anew, as tables: at its client, generation by generation, and at a host that is asked to take part.

At the client a generation is *whole* from the start where nothing was lost. Else it is *decided* where each node
begins, until all hosts that are needed have said that they have their part (*restored*), and its first partition has
come; in either order, as what was not lost goes on meanwhile. A host takes a generation from its client when it has
none as new.
"""

from __future__ import annotations

from thalweg.middleware.core.context.machine import Machine, Term
from thalweg.middleware.protocol.run_id import RunId


class RecoveryPhase(Term):
    WHOLE = "whole"
    DECIDED = "decided"  # all hosts that are needed are being asked
    RESTORED = "restored"  # they have it; nothing has come
    FLOWING = "flowing"  # something has come; not all of them have it


class RecoveryEvent(Term):
    LOST = "lost"  # hosts were, with the generation before
    STARTED = "started"  # all hosts that are needed have their part
    DELIVERED = "delivered"
    CLOSED = "closed"  # it is over, or another generation follows


RENEWAL: dict[tuple[RecoveryPhase, RecoveryEvent], RecoveryPhase] = {
    (RecoveryPhase.WHOLE, RecoveryEvent.LOST): RecoveryPhase.DECIDED,
    (RecoveryPhase.DECIDED, RecoveryEvent.STARTED): RecoveryPhase.RESTORED,
    (RecoveryPhase.DECIDED, RecoveryEvent.DELIVERED): RecoveryPhase.FLOWING,
    (RecoveryPhase.DECIDED, RecoveryEvent.CLOSED): RecoveryPhase.WHOLE,
    (RecoveryPhase.RESTORED, RecoveryEvent.DELIVERED): RecoveryPhase.WHOLE,
    (RecoveryPhase.RESTORED, RecoveryEvent.STARTED): RecoveryPhase.RESTORED,
    (RecoveryPhase.RESTORED, RecoveryEvent.CLOSED): RecoveryPhase.WHOLE,
    (RecoveryPhase.FLOWING, RecoveryEvent.STARTED): RecoveryPhase.WHOLE,
    (RecoveryPhase.FLOWING, RecoveryEvent.DELIVERED): RecoveryPhase.FLOWING,
    (RecoveryPhase.FLOWING, RecoveryEvent.CLOSED): RecoveryPhase.WHOLE,
    (RecoveryPhase.WHOLE, RecoveryEvent.STARTED): RecoveryPhase.WHOLE,
    (RecoveryPhase.WHOLE, RecoveryEvent.CLOSED): RecoveryPhase.WHOLE,
}


class RunGeneration(Machine):
    """A generation at its client."""

    __slots__ = ("run",)
    TABLE = RENEWAL

    def __init__(self, run: RunId) -> None:
        self.run, self.state = run, RecoveryPhase.WHOLE

    def __repr__(self) -> str:
        return f"run {self.run} is {self.state}"


class GenerationState(Term):
    NONE = "none"  # nothing of the run is here
    HAS = "has"  # a generation
    FENCED = "fenced"  # one that is newer than what was asked for: who asks is told who leads the run
    OVER = "over"  # that generation is over here: what is late changes nothing


class GenerationRequest(Term):
    NEWER = "newer"  # to take part in a generation that is newer than what is here, if anything is
    SAME = "same"
    OLDER = "older"
    LATE = "late"  # in one that was here, and is over


GENERATION: dict[tuple[GenerationState, GenerationRequest], GenerationState] = {
    (GenerationState.NONE, GenerationRequest.NEWER): GenerationState.HAS,
    (GenerationState.NONE, GenerationRequest.LATE): GenerationState.OVER,
    (GenerationState.HAS, GenerationRequest.NEWER): GenerationState.HAS,
    (GenerationState.HAS, GenerationRequest.SAME): GenerationState.HAS,
    (GenerationState.HAS, GenerationRequest.OLDER): GenerationState.FENCED,
    (GenerationState.HAS, GenerationRequest.LATE): GenerationState.OVER,
}


def generation_state(here: int | None, asked: int, *, late: bool) -> GenerationState:
    """What a host that has generation ``here`` of a run, or none, does about one that it is ``asked`` to take part in.

    ``late``: that one is over here.
    """
    event = (
        GenerationRequest.NEWER
        if here is None or asked > here
        else GenerationRequest.SAME
        if asked == here
        else GenerationRequest.OLDER
    )
    return GENERATION[
        GenerationState.NONE if here is None else GenerationState.HAS, GenerationRequest.LATE if late else event
    ]
