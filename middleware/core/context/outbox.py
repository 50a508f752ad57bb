"""Effects of the core on its surroundings, and values shared by the parts of one run."""

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

Local = tuple[m.Message, Any, int]  # message of a host to itself, with a partition's value and size


class Timer(StrEnum):
    """Purposes of timers: ``TimerKey.timer``."""

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


NOTED = frozenset(  # kinds of records that shells also log, so they are made even without an event log
    {
        "drained", "fault", "joined", "late", "left-out", "plan", "proposal", "query", "recovered", "relocated",
        "replaced", "reshaped", "undeliverable", "uneven", "unexpected",
    }
)  # fmt: skip


@dataclass(slots=True)
class HostContext:
    """Values shared by the outboxes of one host: clock, commands for the shell, and messages of the host to itself."""

    host: str
    now: float = 0.0  # set by HostCore.handle alone
    commands: list[e.Command] = field(default_factory=list)
    local: deque[Local] = field(default_factory=deque)
    recording: bool = True  # false if the shell keeps no records; then the core makes only those in NOTED
    sent_bytes: int = 0  # of bulk
    draining: bool = False  # nothing more may come to this host
    fresh_s: float = -math.inf  # the start of the last fresh period (R10 of ``host``)


class Outbox:
    """Commands of one run, or with ``NO_RUN`` of the host itself, until ``HostCore.handle`` returns them."""

    __slots__ = ("context", "failed", "host", "run")

    def __init__(self, desk: HostContext, run: RunId = NO_RUN) -> None:
        self.context, self.run = desk, run
        self.host = desk.host
        self.failed = ""  # why the run cannot go on, as the application knows

    def of(self, run: RunId) -> Outbox:
        """Return an outbox of the host for another run."""
        return Outbox(self.context, run)

    @property
    def now(self) -> float:
        return self.context.now

    def waited_s(self, since_s: float) -> float:
        """Return for how long an answer has been awaited, in seconds.

        Time before the last fresh period does not count, because the host did not run.
        """
        return self.context.now - max(since_s, self.context.fresh_s)

    @property
    def recording(self) -> bool:
        return self.context.recording

    def emit(self, command: e.Command) -> None:
        """Add a command that is no message."""
        self.context.commands.append(command)

    def send(
        self, to: str, message: m.Message, payload: Any = None, size_bytes: int = 0, *, bulk: bool = False,
        via: m.Via = NET,
    ) -> None:  # fmt: skip
        """Send a message to another host, or to the host itself.

        With ``bulk`` the ``payload`` travels in chunks, over ``via``.
        """
        if to == self.host:
            self.context.local.append((message, None, 0))
        else:
            self.context.commands.append(e.Send(self.run, to, message, payload, size_bytes, bulk, via))
            if size_bytes:
                self.context.sent_bytes += size_bytes

    def hand_over(self, part: m.Partition, value: Any, size_bytes: int) -> None:
        """Deliver a partition from this host to a node on the same host."""
        self.context.local.append((part, value, size_bytes))

    def wake(self, timer: Timer, at_s: float, what: str = "") -> None:
        """Set a timer for ``at_s``. A later call with the same ``timer`` and ``what`` replaces the time."""
        self.emit(e.SetTimer(self.key_of(timer, what), at_s))

    def key_of(self, timer: Timer, what: str = "") -> e.TimerKey:
        """Return the key of a timer of the run."""
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
        """Notify the application that the run has failed, or one ``query`` of several. The run fails only once."""
        if not self.failed:
            self.failed = one_line(reason) if query is None else ""
            if cause is not None:  # text of other hosts, which a terminal may show
                cause = m.Cause(cause.index, one_line(cause.kind), printable(cause.traceback))
            self.emit(e.Fail(self.run, one_line(reason), node, host, lost, cause, query))


class Alarm:
    """Timer for the earliest of several requested times."""

    __slots__ = ("_key", "_out", "at_s")

    def __init__(self, out: Outbox, timer: Timer) -> None:
        self._out, self._key = out, out.key_of(timer)
        self.at_s: float | None = None

    def by(self, at_s: float) -> None:
        """Set the timer for ``at_s``, unless it is due earlier."""
        if self.at_s is None or at_s < self.at_s:
            self.at_s = at_s
            self._out.emit(e.SetTimer(self._key, at_s))

    def rung(self) -> None:
        """Note that the timer has fired. No time is requested until the next call of ``by``."""
        self.at_s = None


class RunContext(msgspec.Struct, frozen=True):
    """Constant values shared by the parts of a run."""

    out: Outbox
    limits: CoreConfig
    install: m.Install

    @property
    def by_epochs(self) -> LocalMoves | None:
        """Settings for the decisions of operators' hosts at the ends of epochs. None: the hosts do not decide."""
        return self.install.moves if isinstance(self.install.moves, LocalMoves) else None

    @property
    def leads(self) -> bool:
        """Return whether this host's application has requested the run."""
        return self.install.client == self.out.host

    @property
    def fails_over(self) -> bool:
        """Return whether the run has failover, and outlives the loss of hosts."""
        return self.install.failover is not None

    @property
    def only_subscribes(self) -> bool:
        """Return whether this host only subscribes to the run, which another client leads."""
        return not self.leads and all(peer.name != self.out.host for peer in self.install.peers)
