"""Parts of a run are created when they are needed, and are called in one order."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from run_ids import R

from thalweg.middleware.core.context.notes import Ended, HostLost, Light
from thalweg.middleware.core.context.outbox import HostContext, Outbox, RunContext, Timer
from thalweg.middleware.core.flow.flow import Flow
from thalweg.middleware.core.flow.tree import Tree
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.part import Need, Part, PartTable, RunParts, needs_of
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import GlobalMoves, LocalMoves, SpaceMoves
from thalweg.middleware.protocol.limits import CoreConfig

INSTALL = m.Install(R, Dataflow(), (), (), "client")


class Recorder(Part):
    """Part whose handlers keep their arguments."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    @classmethod
    def of(cls, parts: RunParts) -> Recorder:
        return cls()

    def hear(self, what: Any) -> str:
        """Record the argument, and return the name of the part."""
        self.heard.append(what)
        return type(self).__name__


class Lower(Recorder):
    """Part that every run with failover begins with."""

    NEEDED_FOR = Need.FAILOVER
    HANDLERS = Handlers(
        messages={m.Retire: Recorder.hear},
        events={e.StateTaken: Recorder.hear},
        notes={Light: Recorder.hear, HostLost: Recorder.hear},
        timers={Timer.MOVE: Recorder.hear},
        transfers={m.State: Recorder.hear},
    )


class Upper(Recorder):
    """Part that a message creates."""

    HANDLERS = Handlers(
        messages={m.Abort: Recorder.hear, m.Retire: Recorder.hear},
        events={e.StateTaken: Recorder.hear, e.NodeOpened: Recorder.hear},
        notes={HostLost: Recorder.hear, Ended: Recorder.hear},
    )


TABLE = PartTable((Lower, Upper))


def parts_of(install: m.Install = INSTALL) -> RunParts:
    shared: Any = None
    parts = RunParts(TABLE, RunContext(Outbox(HostContext("h1"), R), CoreConfig(), install), shared)
    parts.begin(None)
    return parts


def names(parts: RunParts, what: Any, *, event: bool = False) -> list[str]:
    return [hearer(what) for hearer in parts.hearers(what, event=event)]


def test_a_run_begins_with_only_the_needed_parts() -> None:
    assert list(parts_of()) == []
    lasting = parts_of(msgspec.structs.replace(INSTALL, failover=m.Failover()))
    assert [type(part) for part in lasting] == [Lower]


def test_a_message_creates_the_first_part_with_a_handler() -> None:
    parts = parts_of()
    assert names(parts, m.Abort) == ["Upper"]
    assert names(parts, m.Retire) == ["Lower", "Upper"]  # of which one was there
    assert parts.existing(Lower) is parts.get(Lower)


def test_an_event_creates_a_part_if_no_existing_part_handles_the_event() -> None:
    parts = parts_of()
    assert names(parts, e.StateTaken, event=True) == ["Lower"]
    second = parts_of()
    second.get(Upper)
    assert names(second, e.StateTaken, event=True) == ["Upper"]


@pytest.mark.parametrize("what", [Light, HostLost, Timer.MOVE, ("transfer", m.State)], ids=str)
def test_notes_timers_and_transfers_create_no_part_and_reach_later_parts(what: Any) -> None:
    parts = parts_of()
    assert names(parts, what) == list(parts) == []
    parts.get(Lower)
    assert names(parts, what) == ["Lower"]


def test_parts_are_called_in_the_order_of_the_table_and_not_of_creation() -> None:
    parts = parts_of()
    parts.get(Upper)
    parts.get(Lower)
    assert names(parts, HostLost) == ["Lower", "Upper"]
    assert [type(part) for part in parts] == [Lower, Upper]
    assert [type(part) for part in parts.handling(Ended)] == [Upper]


def test_a_part_that_must_be_put_is_not_created_on_demand() -> None:
    parts = parts_of()
    with pytest.raises(NotImplementedError, match="a Flow is created with the run, or by its host"):
        parts.get(Flow)
    with pytest.raises(AssertionError, match="Tree"):
        parts.get(Tree)
    tree = parts.put(Tree(Dataflow(), {}))
    assert parts.get(Tree) is parts.existing(Tree) is tree


@pytest.mark.parametrize(
    ("install", "adaptation", "needs"),
    [
        (INSTALL, None, set()),
        (msgspec.structs.replace(INSTALL, client="h1"), None, {Need.LEADING}),
        (msgspec.structs.replace(INSTALL, client="h1"), GlobalMoves(), {Need.LEADING, Need.PLANNING}),
        (msgspec.structs.replace(INSTALL, failover=m.Failover()), None, {Need.FAILOVER}),
        (
            msgspec.structs.replace(INSTALL, client="h1", failover=m.Failover()),
            None,
            {Need.LEADING, Need.FAILOVER, Need.RECOVERY},
        ),
        (msgspec.structs.replace(INSTALL, moves=LocalMoves()), None, {Need.EPOCHS}),
        (
            msgspec.structs.replace(INSTALL, moves=SpaceMoves(), news=("latency",)),
            None,
            {Need.COORDINATES, Need.GOSSIP},
        ),
    ],
)
def test_the_needs_of_a_run_follow_from_the_install_message_and_the_request(
    install: m.Install, adaptation: GlobalMoves | None, needs: set[Need]
) -> None:
    context = RunContext(Outbox(HostContext("h1"), R), CoreConfig(), install)
    request = e.RunRequested(install, adaptation) if context.leads else None
    assert needs_of(context, request) == needs
