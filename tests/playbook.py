"""Unit tests of pure cores as a conversation: ``core << event >> [commands]``, after mitmproxy's ``Playbook``.

    book = Playbook(core)
    book << MessageReceived("h1", Demand(...)) >> [RunOperator(...)]
    book.at(0.5) << TimerFired("retry") >> [Send(...), SetTimer("retry", 1.5)]

``>>`` compares all commands, in order. Records of the event log and hints where to connect are left out unless the
expected list has some. The next ``<<`` fails if the commands of the last event were not compared: write all of them, or
``>> ANY``.
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
    """Return the event of a ``message`` from ``sender``."""
    return e.MessageReceived(sender, message, payload, size_bytes)


class HandOver(msgspec.Struct, frozen=True):
    """Decision of a host, as at the end of an epoch, that ``node`` moves to ``target`` unless the move is prevented."""

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


HostCore._HANDLERS[HandOver] = _hand_over  # only in tests: in the runtime a decision, not an event, begins a hand-over


class Playbook:
    """Conversation with a ``HostCore``, whose invariants are checked after every event."""

    def __init__(self, core: HostCore, now: float = 0.0) -> None:
        self.core = core
        self.now = now
        self.commands: list[e.Command] = []
        self._unread = False

    def at(self, now: float) -> Playbook:
        """Set the clock to ``now``."""
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
        """Return the messages of the last event's ``Send`` commands, to all hosts or to one host."""
        self._unread = False
        return [c.message for c in self.commands if isinstance(c, e.Send) and to in (None, c.to)]

    def only(self, kind: type[Any]) -> list[Any]:
        """Return the last event's commands of one kind."""
        self._unread = False
        return [command for command in self.commands if isinstance(command, kind)]

    def recorded(self) -> list[str]:
        """Return the kinds of the last event's records."""
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
    """Return the verdict for a stimulus that a node answers with no action."""
    return "taken", []


def Demanded(index: int, again: bool = False, by: str = "") -> Stimulus:
    """Return the demand of a consumer, or of the application, for partition ``index``. ``again``: a repeated demand."""
    return lambda node: node.on_demand(index, again, by)


def Skipped(index: int, by: str = "") -> Stimulus:
    """Return the skip of a consumer to partition ``index``. ``LAST``: the consumer takes nothing more."""

    def skips(node: NodeCore) -> tuple[str, list[Action]]:
        can, actions = node.on_skip(index, by)
        return "taken" if can else "lacking", actions

    return skips


def Arrived(producer: str, index: int, value: Any = None, *, end: m.End = False) -> Stimulus:
    """Return the arrival of partition ``index`` of ``producer``, or with ``end`` of the end of the stream."""
    return lambda node: node.on_partition(producer, Output(index, value, 0, end))


def Finished(index: int, value: Any = None, *, end: bool = False) -> Stimulus:
    """Return the completion of partition ``index`` by the node's code."""
    return lambda node: node.on_finished(Output(index, value, 0, end))


def TransferOver(index: int, *, arrived: bool = True) -> Stimulus:
    """Return the end of the transfer of partition ``index``, which has ``arrived`` or may be lost."""
    return lambda node: _told(node.window.on_transfer_over(index, "", arrived=arrived))


class ToLeave:
    """Order to a node to become light as soon as partition ``after`` has been dispatched."""

    def __init__(self, after: int = -1, *, recall: bool = False) -> None:
        self.after, self.recall = after, recall

    def __call__(self, node: NodeCore) -> Any:
        return "taken", node.leave(self.after, recall=self.recall)


def Stayed() -> Stimulus:
    """Return the order to a node to continue, as it stays or has arrived."""
    return lambda node: ("taken", node.stay())


class Suspended:
    """Order to a node to dispatch nothing new."""

    def __call__(self, node: NodeCore) -> Any:
        return _told(node.suspend())


def Resumed() -> Stimulus:
    """Return the permission to a node to dispatch again."""
    return lambda node: ("taken", node.resume())


def Replaced(after: int) -> Stimulus:
    """Return the order that other nodes make the partitions after ``after``."""
    return lambda node: ("taken", node.replace(after))


def ToTurn(after: int, to: str = "new") -> Stimulus:
    """Return the order that another consumer takes the partitions after ``after``."""
    return lambda node: ("taken", node.turn(after, to))


def TurnedTo() -> Stimulus:
    """Return the news that the host keeps the outputs that the old consumer may still demand."""

    def turned(node: NodeCore) -> tuple[str, list[Action]]:
        node.turned()
        return "taken", node.go_on()

    return turned


def Rewired(after: int, *inputs: str) -> Stimulus:
    """Return the order that the node takes these inputs after partition ``after``."""
    return lambda node: ("taken", node.rewire(after, structs.replace(node.node, inputs=inputs)))


class NodePlaybook:
    """Conversation with a node: ``node << Demanded(0) >> [Ask(0)]``.

    A stimulus that must change nothing is written with its verdict: ``node << Demanded(0) >> "duplicate"``.
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
            if isinstance(action, Dispatch):  # the host sends the output; the end of the transfer is unknown
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
    """Return a copy of a node's state without the repeated demand that may pass once, which a duplicate uses up."""
    window, received = node.window, node.received
    copied = {field.name: getattr(node, field.name) for field in fields(NodeCore)}
    copied["window"] = [*window.unacked], {*window.unheard}
    copied["received"] = {**received.inputs}, {*received.asked}, received.last, copy.deepcopy(received.prefetched)
    for name, consumer in window.consumers.items():
        under_way = {index: sent.under_way for index, sent in consumer.sent.items()}
        copied[f"of {name}"] = consumer.demanded, consumer.first, under_way
    return copied


def measured(source: str, target: str, rate_bps: int, count: int = 1) -> m.ProbeResult:
    """Return the result of a probe in run ``r``."""
    return m.ProbeResult(R, m.Estimate(source, target, rate_bps, 0, count, 0))
