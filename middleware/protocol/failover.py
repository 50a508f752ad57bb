"""Options of failover, and messages about replicas (``core.failover``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.protocol.fields import Demanded, Index, Name, RunMessage, Text
from thalweg.middleware.protocol.run_id import Generation
from thalweg.middleware.protocol.states import StateMessage


class Failover(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How a run outlives its hosts: what ``Client.run(…, failover=Failover())`` says.

    An operator with state leaves a replica of it with ``replicas`` other hosts whenever it has made ``every``
    partitions since the last one, or has taken ``every_bytes`` of inputs, or ``every_s`` have passed. Up to
    ``increments`` after each whole one are what has changed since the one before, where its code tells (``delta()``),
    or its state is large and little of it is another. A lost host
    that has a source is waited for as long as ``wait_s`` (seconds of the hosts' clocks); then the run ends.
    ``domains``: by host, what it fails together with, as a rack or a site: replicas go to others; of a host that is not
    in it, its machine. An operator keeps its outputs since its consumer's last two, up to ``retained_bytes``; a third
    of that in inputs makes one due.
    """

    every: Annotated[int, msgspec.Meta(ge=1)] = 16
    every_bytes: Annotated[int, msgspec.Meta(ge=1)] = 256 * 1024 * 1024
    every_s: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    replicas: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    wait_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    domains: dict[Name, Name] = msgspec.field(default_factory=dict)
    increments: Annotated[int, msgspec.Meta(ge=0, le=1024)] = 16
    retained_bytes: Annotated[int, msgspec.Meta(ge=1)] = 256 * 1024 * 1024

    def dilated(self, time_scale: float) -> Failover:
        """The same times of wall-clock time on hosts' clocks that run ``time_scale`` times as fast."""
        return msgspec.structs.replace(self, every_s=self.every_s * time_scale, wait_s=self.wait_s * time_scale)


class Start(msgspec.Struct, frozen=True, array_like=True):
    """In a later generation of a run ``node`` begins with partition ``index``, from its replica at ``holder`` if any.

    ``LAST`` says that nothing more is wanted of it. One that is ``free`` begins with whatever its consumer wants first:
    it is a source, or has no state.
    """

    node: Name
    index: Index
    holder: Annotated[str, msgspec.Meta(max_length=128)] = ""
    free: bool = False


class HistoryGap(msgspec.Struct, frozen=True, array_like=True):
    """From partition ``index`` on ``node`` was given something else since ``generation``
    (``protocol.absent_sources``).

    Of what was before that, replicas up to there are right, if they were in generation ``before``, when the like of it
    had been last; older ones up to ``least``.
    """

    node: Name
    index: Index
    generation: Generation
    before: Generation = 0
    least: Index = 0


class Checkpoint(StateMessage, frozen=True):
    """Replica of an operator's state, for a host to keep or to start the operator with.

    With ``since``, it holds only the changes since the replica at that partition.
    """

    since: Demanded = -1


class CheckpointStored(RunMessage, frozen=True, tag="Stable"):
    """To the client: ``hosts`` have a replica of ``node`` at partition ``index``; with none of them it has no state."""

    node: Name
    index: Index
    hosts: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)] = ()


class StateMissing(RunMessage, frozen=True, tag="Lacks"):
    """A host has not what ``node`` begins with, its replica at ``index``; or 0: what its consumer goes on with.

    To the client, or to the operator's host by who was to send the replica.
    """

    node: Name
    index: Index
    reason: Text


class CheckpointsObsolete(RunMessage, frozen=True, tag="Settled"):
    """From the client: of these nodes no replica is needed that is older, and none of nodes that are gone.

    Nor is what their producers have kept of before.
    """

    lines: tuple[Start, ...]
