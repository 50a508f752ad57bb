"""Tables of generations of a run: the recovery at the client, and requests to a host to take part.

At the client, a generation without a loss is *whole* from the start. Otherwise, its starts are *decided* first. It is
*restored* when every needed host has its part, and whole when its first partition has come as well. Both may come in
either order, because operators have continued. A host takes a generation that is newer than its own.
"""

from __future__ import annotations

from thalweg.middleware.core.context.machine import Machine, Term
from thalweg.middleware.protocol.run_id import RunId


class RecoveryPhase(Term):
    WHOLE = "whole"
    DECIDED = "decided"  # every needed host is being asked
    RESTORED = "restored"  # every needed host has its part, and no partition has come
    FLOWING = "flowing"  # a partition has come, and not every needed host has its part


class RecoveryEvent(Term):
    LOST = "lost"  # hosts were lost, and the generation before has ended
    STARTED = "started"  # every needed host has its part
    DELIVERED = "delivered"
    CLOSED = "closed"  # the generation is over, or the next generation follows


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
    """Recovery of one generation, at its client."""

    __slots__ = ("run",)
    TABLE = RENEWAL

    def __init__(self, run: RunId) -> None:
        self.run, self.state = run, RecoveryPhase.WHOLE

    def __repr__(self) -> str:
        return f"run {self.run} is {self.state}"


class GenerationState(Term):
    NONE = "none"  # no generation is here
    HAS = "has"  # a generation is here
    FENCED = "fenced"  # a newer generation is here: the sender is told who leads the run
    OVER = "over"  # the generation is over here: late messages change nothing


class GenerationRequest(Term):
    NEWER = "newer"  # the requested generation is newer, or no generation is here
    SAME = "same"
    OLDER = "older"
    LATE = "late"  # the requested generation was here, and is over


GENERATION: dict[tuple[GenerationState, GenerationRequest], GenerationState] = {
    (GenerationState.NONE, GenerationRequest.NEWER): GenerationState.HAS,
    (GenerationState.NONE, GenerationRequest.LATE): GenerationState.OVER,
    (GenerationState.HAS, GenerationRequest.NEWER): GenerationState.HAS,
    (GenerationState.HAS, GenerationRequest.SAME): GenerationState.HAS,
    (GenerationState.HAS, GenerationRequest.OLDER): GenerationState.FENCED,
    (GenerationState.HAS, GenerationRequest.LATE): GenerationState.OVER,
}


def generation_state(here: int | None, asked: int, *, late: bool) -> GenerationState:
    """Return the reaction of a host to the request to take part in generation ``asked`` of a run.

    ``here``: the generation on this host. None: there is none. ``late``: the requested generation is over here.
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
