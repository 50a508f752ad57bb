"""All that a part of the core may do to the world, and what the parts of one run have in common."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from thalweg.middleware.errors import one_line, printable
from thalweg.middleware.network.view import NET
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import LocalMoves
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import NO_RUN, RunId

Local = tuple[m.Message, Any, int]  # what a host says to itself, with a partition's value and size


class Timer(StrEnum):
    """What a host wakes up for: ``TimerKey.timer``."""

    RETRY = "retry"
    LEASE = "lease"
    PROBE = "probe"
    SILENCE = "silence"
    INSTALL = "install"
    REMOVE = "remove"
    PING = "ping"
    MOVE = "move"
    STATES = "states"
    BARRIER = "barrier"
    PLAN = "plan"
    EPOCH = "epoch"
    DECIDE = "decide"
    PACE = "pace"
    SOUND = "sound"
    LEAVE = "leave"
    LOOK = "look"
    VISIT = "visit"
    DRAIN = "drain"
    PLACE = "place"
    STRIPES = "stripes"
    GUESTS = "guests"


NOTED = frozenset(  # kinds of records that shells also log: they are made where no event log is kept, too
    {
        "drained", "fault", "joined", "late", "left-out", "plan", "proposal", "query", "recovered", "relocated",
        "replaced", "reshaped", "undeliverable", "uneven", "unexpected",
    }
)  # fmt: skip


@dataclass(slots=True)
class HostContext:
    """What the outboxes of one host share: the clock, and what lies there for the shell and for the host itself."""

    host: str
    now: float = 0.0  # set by HostCore.handle alone
    commands: list[e.Command] = field(default_factory=list)
    local: deque[Local] = field(default_factory=deque)
    recording: bool = True  # a shell that keeps no records spares the core their making
    sent_bytes: int = 0  # as bulk
    draining: bool = False  # nothing may come here any more
    fresh_s: float = -math.inf  # the start of the last fresh period (R10 of ``host``)


class Outbox:
    """Commands of one run (or with ``NO_RUN`` of the host itself), until ``HostCore.handle`` returns them."""

    __slots__ = ("context", "failed", "host", "run")

    def __init__(self, desk: HostContext, run: RunId = NO_RUN) -> None:
        self.context, self.run = desk, run
        self.host = desk.host
        self.failed = ""  # why the run cannot go on, as the application was told

    def of(self, run: RunId) -> Outbox:
        """The same for another run."""
        return Outbox(self.context, run)

    @property
    def now(self) -> float:
        return self.context.now

    def waited_s(self, since_s: float) -> float:
        """Return for how long an answer has been waited for, not counting time in which this host did not run."""
        return self.context.now - max(since_s, self.context.fresh_s)

    @property
    def recording(self) -> bool:
        return self.context.recording

    def emit(self, command: e.Command) -> None:
        """Anything but a message."""
        self.context.commands.append(command)

    def send(
        self, to: str, message: m.Message, payload: Any = None, size_bytes: int = 0, *, bulk: bool = False,
        via: m.Via = NET,
    ) -> None:  # fmt: skip
        """A message, to this host as well. With ``bulk`` its ``payload`` travels in chunks, over ``via``."""
        if to == self.host:
            self.context.local.append((message, None, 0))
        else:
            self.context.commands.append(e.Send(self.run, to, message, payload, size_bytes, bulk, via))
            if size_bytes:
                self.context.sent_bytes += size_bytes

    def hand_over(self, part: m.Partition, value: Any, size_bytes: int) -> None:
        """A partition that is here already, to a node that is here."""
        self.context.local.append((part, value, size_bytes))

    def wake(self, timer: Timer, at_s: float, what: str = "") -> None:
        """Wake this host at ``at_s``; a later call for the same takes the place of this one."""
        self.emit(e.SetTimer(self.key_of(timer, what), at_s))

    def key_of(self, timer: Timer, what: str = "") -> e.TimerKey:
        """By what a timer is known."""
        return e.TimerKey(timer, self.run, what)

    def record(self, kind: str, **fields: Any) -> None:
        """Record a row of the event log."""
        if self.context.recording or kind in NOTED:
            self.emit(e.Record(self.run, kind, fields))

    def fail(
        self,
        reason: str,
        *,
        node: str = "",
        host: str = "",
        lost: bool = False,
        cause: m.Cause | None = None,
        query: int | None = None,
    ) -> None:
        """Tell the application, once, that the run cannot go on, or that one ``query`` of several cannot."""
        if not self.failed:
            self.failed = one_line(reason) if query is None else ""
            if cause is not None:  # said by others, as the reason may be, and perhaps shown by a terminal
                cause = m.Cause(cause.index, one_line(cause.kind), printable(cause.traceback))
            self.emit(e.Fail(self.run, one_line(reason), node, host, lost, cause, query))


class Alarm:
    """A timer that is set for the earliest time that anybody asks for."""

    __slots__ = ("_key", "_out", "at_s")

    def __init__(self, out: Outbox, timer: Timer) -> None:
        self._out, self._key = out, out.key_of(timer)
        self.at_s: float | None = None

    def by(self, at_s: float) -> None:
        """Ring at ``at_s`` at the latest."""
        if self.at_s is None or at_s < self.at_s:
            self.at_s = at_s
            self._out.emit(e.SetTimer(self._key, at_s))

    def rung(self) -> None:
        """It has rung: nothing is asked for any more."""
        self.at_s = None


class RunContext(msgspec.Struct, frozen=True):
    """What the parts of a run have in common, and none of them changes."""

    out: Outbox
    limits: CoreConfig
    install: m.Install

    @property
    def by_epochs(self) -> LocalMoves | None:
        """How operators' hosts decide at the ends of epochs; None: they do not."""
        return self.install.moves if isinstance(self.install.moves, LocalMoves) else None

    @property
    def leads(self) -> bool:
        """Whether this host's application asked for the run."""
        return self.install.client == self.out.host

    @property
    def fails_over(self) -> bool:
        """Whether the run outlives its hosts."""
        return self.install.failover is not None

    @property
    def only_subscribes(self) -> bool:
        """Whether this host's application has subscribed to the run of another client, and has no other part in it."""
        return not self.leads and all(peer.name != self.out.host for peer in self.install.peers)
