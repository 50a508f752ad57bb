"""Options of failover, and messages about replicas (``core.failover``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from thalweg.middleware.protocol.fields import Demanded, Index, Name, RunMessage, Text
from thalweg.middleware.protocol.run_id import Generation
from thalweg.middleware.protocol.states import StateMessage


class Failover(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Options of a run that survives the loss of hosts, for ``Client.run(…, failover=Failover())``.

    An operator with state sends a replica to ``replicas`` other hosts. A replica is due when, since the last replica,
    the operator has made ``every`` partitions, has consumed ``every_bytes`` of inputs, or ``every_s`` have passed. Up
    to ``increments`` replicas after a whole replica hold only the changes. The code must report the changes
    (``delta()``), or they must be small in a large state. If a host with a source is lost, the run waits for ``wait_s``
    (seconds of the hosts' clocks), and then ends. ``domains``: by host, its failure domain, such as a rack or a site.
    Replicas go to other domains. The default domain is the host's machine. An operator keeps its outputs since the last
    two replicas of its consumer, up to ``retained_bytes``. A third of that in inputs makes a replica due.
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
        """Return the options for hosts' clocks that run ``time_scale`` times as fast as the wall clock."""
        return msgspec.structs.replace(self, every_s=self.every_s * time_scale, wait_s=self.wait_s * time_scale)


class Start(msgspec.Struct, frozen=True, array_like=True):
    """Start of ``node`` in a later generation: with partition ``index``, from the replica on ``holder`` if any.

    ``LAST``: no more outputs of the node are needed. A node that is ``free`` begins with the first partition that its
    consumer needs, because it is a source or has no state.
    """

    node: Name
    index: Index
    holder: Annotated[str, msgspec.Meta(max_length=128)] = ""
    free: bool = False


class HistoryGap(msgspec.Struct, frozen=True, array_like=True):
    """Change of the values that sources deliver to ``node``, from partition ``index`` on, since ``generation``.

    See ``protocol.absent_sources``. The change before was in generation ``before``. Replicas of that generation or
    later are right up to ``index``, older replicas up to ``least``.
    """

    node: Name
    index: Index
    generation: Generation
    before: Generation = 0
    least: Index = 0


class Checkpoint(StateMessage, frozen=True):
    """Replica of an operator's state, for a host that keeps it or starts the operator with it.

    With ``since``, the replica holds only the changes since the replica at that partition.
    """

    since: Demanded = -1


class CheckpointStored(RunMessage, frozen=True, tag="Stable"):
    """Report to the client that ``hosts`` have a replica of ``node`` at partition ``index``.

    No hosts: ``node`` has no state.
    """

    node: Name
    index: Index
    hosts: Annotated[tuple[Name, ...], msgspec.Meta(max_length=64)] = ()


class StateMissing(RunMessage, frozen=True, tag="Lacks"):
    """Report that a host lacks the replica at ``index`` with which ``node`` begins.

    Index 0: the host lacks the outputs with which the node's consumer continues. The report goes to the client. The
    host that was to send the replica reports to the operator's host.
    """

    node: Name
    index: Index
    reason: Text


class CheckpointsObsolete(RunMessage, frozen=True, tag="Settled"):
    """Notice of the client that replicas before ``lines`` are no longer needed, nor outputs of the nodes' producers.

    Replicas of nodes that are gone are not needed either.
    """

    lines: tuple[Start, ...]
