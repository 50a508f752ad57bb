"""How a run begins anew, as tables: at its client, generation by generation, and at a host that is asked to take part.

At the client a generation is *whole* from the start where nothing was lost. Else it is *decided* where each node
begins, until all hosts that are needed have said that they have their part (*restored*), and its first partition has
come; in either order, as what was not lost goes on meanwhile. A host takes a generation from its client when it has
none as new.
"""

from __future__ import annotations

from thalweg.middleware.core.machine import Machine, Term


class Phase(Term):
    WHOLE = "whole"
    DECIDED = "decided"  # all hosts that are needed are being asked
    RESTORED = "restored"  # they have it; nothing has come
    FLOWING = "flowing"  # something has come; not all of them have it


class PhaseEvent(Term):
    LOST = "lost"  # hosts were, with the generation before
    STARTED = "started"  # all hosts that are needed have their part
    DELIVERED = "delivered"
    CLOSED = "closed"  # it is over, or another generation follows


RENEWAL: dict[tuple[Phase, PhaseEvent], Phase] = {
    (Phase.WHOLE, PhaseEvent.LOST): Phase.DECIDED,
    (Phase.DECIDED, PhaseEvent.STARTED): Phase.RESTORED,
    (Phase.DECIDED, PhaseEvent.DELIVERED): Phase.FLOWING,
    (Phase.DECIDED, PhaseEvent.CLOSED): Phase.WHOLE,
    (Phase.RESTORED, PhaseEvent.DELIVERED): Phase.WHOLE,
    (Phase.RESTORED, PhaseEvent.STARTED): Phase.RESTORED,
    (Phase.RESTORED, PhaseEvent.CLOSED): Phase.WHOLE,
    (Phase.FLOWING, PhaseEvent.STARTED): Phase.WHOLE,
    (Phase.FLOWING, PhaseEvent.DELIVERED): Phase.FLOWING,
    (Phase.FLOWING, PhaseEvent.CLOSED): Phase.WHOLE,
    (Phase.WHOLE, PhaseEvent.STARTED): Phase.WHOLE,
    (Phase.WHOLE, PhaseEvent.CLOSED): Phase.WHOLE,
}


class Renewal(Machine):
    """A generation at its client."""

    __slots__ = ("run",)
    TABLE = RENEWAL

    def __init__(self, run: str) -> None:
        self.run, self.state = run, Phase.WHOLE

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
