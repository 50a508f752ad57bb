"""Unit tests of pure cores as a conversation: ``core << event >> [commands]``, after mitmproxy's ``Playbook``.

    book = Playbook(core)
    book << MessageReceived("h1", Demand(...)) >> [RunOperator(...)]
    book.at(0.5) << TimerFired("retry") >> [Send(...), SetTimer("retry", 1.5)]

``>>`` compares all commands, in order; what does not change what happens (records of the event log, hints where to
connect) is left out unless the expected list has some. The next ``<<`` fails when commands were given that nobody
looked at: a book tells everything, or says ``>> ANY``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

import msgspec
from msgspec import structs
from run_ids import R

from thalweg.middleware.core.barrier.member import Member
from thalweg.middleware.core.flow.actions import Action, Dispatch, Output
from thalweg.middleware.core.flow.node import NodeCore
from thalweg.middleware.core.host import HostCore
from thalweg.middleware.core.moving.departures import Departures
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import RunId


class _Any:
    def __repr__(self) -> str:
        return "ANY"


ANY = _Any()
ASIDES = e.Record | e.Approach | e.Watch | e.Unwatch


def got(sender: str, message: m.Message, payload: object = None, size_bytes: int = 0) -> e.MessageReceived:
    """``message`` has come from ``sender``."""
    return e.MessageReceived(sender, message, payload, size_bytes)


class HandOver(msgspec.Struct, frozen=True):
    """A host has decided, as at the end of an operator's epoch, that ``node`` shall be on ``target``; it may not be."""

    node: str
    target: str
    reason: str = "a test"
    run: RunId = R


def _hand_over(core: HostCore, event: HandOver) -> None:
    run = core.runs.get(event.run)
    if (
        run is not None
        and not run.parts.get(Member).busy
        and not run.parts.get(Departures).obstacle(event.node, event.target)
    ):
        run.handle_notes(
            run.parts.get(Departures).begin(event.node, event.target, protocol="epoch", reason=event.reason)
        )


HostCore._HANDLERS[HandOver] = _hand_over  # of tests alone: what begins a hand-over is a decision, and no event


class Playbook:
    """A conversation with a ``HostCore``, whose invariants are checked after every event."""

    def __init__(self, core: HostCore, now: float = 0.0) -> None:
        self.core = core
        self.now = now
        self.commands: list[e.Command] = []
        self._unread = False

    def at(self, now: float) -> Playbook:
        """Let the clock stand at ``now`` from here on."""
        assert now >= self.now, f"time runs backwards, from {self.now} to {now}"
        self.now = now
        return self

    def __lshift__(self, event: e.Event) -> Playbook:
        missed = _without_asides(self.commands) if self._unread else []
        assert not missed, f"nobody expected {missed}"
        self.commands = self.core.handle(event, self.now)
        self._unread = True
        self.core.validate()
        return self

    def __rshift__(self, expected: Iterable[e.Command] | _Any) -> Playbook:
        self._unread = False
        if isinstance(expected, _Any):
            return self
        wanted = list(expected)
        got = self.commands
        if not any(isinstance(command, ASIDES) for command in wanted):
            got = _without_asides(got)
        assert got == wanted, _difference(wanted, got)
        return self

    def sent(self, to: str | None = None) -> list[Any]:
        """The messages of the last event's ``Send`` commands (to one host), whose order does not matter here."""
        self._unread = False
        return [c.message for c in self.commands if isinstance(c, e.Send) and to in (None, c.to)]

    def only(self, kind: type[Any]) -> list[Any]:
        """The last event's commands of one kind."""
        self._unread = False
        return [command for command in self.commands if isinstance(command, kind)]

    def recorded(self) -> list[str]:
        """The kinds of the last event's records."""
        self._unread = False
        return [command.kind for command in self.commands if isinstance(command, e.Record)]


def _without_asides(commands: list[e.Command]) -> list[e.Command]:
    return [command for command in commands if not isinstance(command, ASIDES)]


def _difference(wanted: list[Any], got: list[Any]) -> str:
    lines = ["the core's commands differ:"]
    for i in range(max(len(wanted), len(got))):
        left = wanted[i] if i < len(wanted) else "(nothing)"
        right = got[i] if i < len(got) else "(nothing)"
        lines.append(f"  {'=' if left == right else '!'} expected {left}\n      got      {right}")
    return "\n".join(lines)


# --- a single node ----------------------------------------------------------------------------------


Stimulus = Callable[[NodeCore], Any]  # -> the node's verdict and its actions


def _told(_: object) -> Any:
    """Of what a node only takes notice of."""
    return "taken", []


def Demanded(index: int, again: bool = False, by: str = "") -> Stimulus:
    """The consumer, or the application, demands partition ``index``; ``again``: as it was not answered in time."""
    return lambda node: node.on_demand(index, again, by)


def Skipped(index: int, by: str = "") -> Stimulus:
    """The consumer goes on with partition ``index``; ``LAST``: it takes nothing more."""

    def skips(node: NodeCore) -> tuple[str, list[Action]]:
        can, actions = node.on_skip(index, by)
        return "taken" if can else "lacking", actions

    return skips


def Arrived(producer: str, index: int, value: Any = None, *, end: m.End = False) -> Stimulus:
    """``producer`` delivers partition ``index``, or with ``end`` the end of its stream."""
    return lambda node: node.on_partition(producer, Output(index, value, 0, end))


def Finished(index: int, value: Any = None, *, end: bool = False) -> Stimulus:
    """The node's code returned partition ``index``."""
    return lambda node: node.on_finished(Output(index, value, 0, end))


def TransferOver(index: int, *, arrived: bool = True) -> Stimulus:
    """The transfer of partition ``index`` is over: it has ``arrived``, or nobody knows."""
    return lambda node: _told(node.window.on_transfer_over(index, "", arrived=arrived))


class ToLeave:
    """The node is to become light once partition ``after`` has been dispatched."""

    def __init__(self, after: int = -1, *, recall: bool = False) -> None:
        self.after, self.recall = after, recall

    def __call__(self, node: NodeCore) -> Any:
        return "taken", node.leave(self.after, recall=self.recall)


def Stayed() -> Stimulus:
    """It stays, or it has come: it goes on."""
    return lambda node: ("taken", node.stay())


class Suspended:
    """It is to dispatch nothing new."""

    def __call__(self, node: NodeCore) -> Any:
        return _told(node.suspend())


def Resumed() -> Stimulus:
    """It may dispatch again."""
    return lambda node: ("taken", node.resume())


def Replaced(after: int) -> Stimulus:
    """Other nodes make what comes after partition ``after``."""
    return lambda node: ("taken", node.replace(after))


def ToTurn(after: int, to: str = "new") -> Stimulus:
    """Another consumer takes what comes after partition ``after``."""
    return lambda node: ("taken", node.turn(after, to))


def TurnedTo() -> Stimulus:
    """The host has kept what the old consumer may still want, as ``Turned`` said."""

    def turned(node: NodeCore) -> tuple[str, list[Action]]:
        node.turned()
        return "taken", node.go_on()

    return turned


def Rewired(after: int, *inputs: str) -> Stimulus:
    """After partition ``after`` it takes these inputs."""
    return lambda node: ("taken", node.rewire(after, structs.replace(node.node, inputs=inputs)))


class NodePlaybook:
    """``node << Demanded(0) >> [Ask(0)]``; what must change nothing: ``node << Demanded(0) >> "duplicate"``.

    ``seen`` collects the transitions (phase, phase) that happened, for coverage of the table.
    """

    def __init__(self, node: NodeCore) -> None:
        self.node = node
        self.verdict = ""
        self.actions: list[Any] = []
        self._before: Any = None

    def __lshift__(self, stimulus: Stimulus) -> NodePlaybook:
        self._before = state_of(self.node)
        self.verdict, self.actions = stimulus(self.node)
        for action in self.actions:
            if isinstance(action, Dispatch):  # the host sends it, and its transfer is over: nobody knows how
                self.node.window.consumers[action.consumer].was_sent(action.output.index, "h2", under_way=False)
        self.node.validate()
        return self

    def __rshift__(self, expected: list[Any] | str) -> NodePlaybook:
        if isinstance(expected, str):
            assert (self.verdict, self.actions) == (expected, [])
            assert state_of(self.node) == self._before, f"a {expected} message changed {self.node!r}"
        else:
            assert self.verdict == "taken", self.verdict
            assert self.actions == expected, _difference(expected, self.actions)
        return self


def state_of(node: NodeCore) -> dict[str, Any]:
    """A copy of a node's state, but for the repeated demand that it lets pass once: a duplicate uses that up."""
    window, received = node.window, node.received
    copied = {each.name: getattr(node, each.name) for each in fields(NodeCore)}
    copied["window"] = [*window.unacked], {*window.unheard}
    copied["received"] = {**received.inputs}, {*received.asked}, received.last, copy.deepcopy(received.prefetched)
    for name, consumer in window.consumers.items():
        under_way = {index: sent.under_way for index, sent in consumer.sent.items()}
        copied[f"of {name}"] = consumer.demanded, consumer.first, under_way
    return copied


def measured(source: str, target: str, rate_bps: int, count: int = 1) -> m.ProbeResult:
    """The result of a probe in run ``r``."""
    return m.ProbeResult(R, m.Estimate(source, target, rate_bps, 0, count, 0))
