"""Files of the runtime that an event enters, and parts that a run creates, measured in two golden runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

import golden_runs

from thalweg.middleware.core.host import HostCore
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m

RUNTIME = os.path.realpath(Path(__file__).parents[1] / "middleware") + os.sep
CORE = os.path.join(RUNTIME, "core") + os.sep


class Entered(NamedTuple):
    """Event of a host with the resulting commands, the files in the order of calls, and the created parts."""

    host: str
    event: e.Event
    commands: list[e.Command]
    files: list[str]
    parts: list[str]

    @property
    def stays(self) -> int:
        """Return how often the event entered a file from a different file."""
        return sum(now != before for before, now in zip(["", *self.files], self.files, strict=False))

    def line(self, what: str) -> str:
        """Return the figure for people."""
        return f"{len({*self.files})} files that {what} enters, {self.stays} stays, {len(self.files)} calls"


def events_of(play: Callable[[], object]) -> list[Entered]:
    """Play a run, and return the entered files and created parts of each event."""
    events: list[Entered] = []
    paths: dict[str, str] = {}
    handle = HostCore.handle

    def watched(core: HostCore, event: e.Event, now: float) -> list[e.Command]:
        files: list[str] = []
        parts: list[str] = []

        def called(frame: FrameType, what: str, _: Any) -> None:
            if what != "call":
                return
            name = frame.f_code.co_filename
            path = paths[name] if name in paths else paths.setdefault(name, os.path.realpath(name))
            if path.startswith(RUNTIME):
                files.append(path)
                if frame.f_code.co_name == "__init__" and path.startswith(CORE):
                    parts.append(type(frame.f_locals["self"]).__name__)

        sys.setprofile(called)
        try:
            commands = handle(core, event, now)
        finally:
            sys.setprofile(None)
        events.append(Entered(core.host, event, commands, files, parts))
        return commands

    with patch.object(HostCore, "handle", watched):
        play()
    return events


def plain_run() -> tuple[Entered, Entered]:
    """Return two events of a plain run: the Install on a host, and the partition that entered the most files."""
    plain = events_of(golden_runs.trees)
    messages = [(entered, entered.event.message) for entered in plain if isinstance(entered.event, e.MessageReceived)]
    install = next(entered for entered, message in messages if isinstance(message, m.Install))
    partitions = [entered for entered, message in messages if isinstance(message, m.Partition) and not message.end]
    return install, max(partitions, key=lambda entered: len({*entered.files}))


def figures() -> Iterator[str]:
    """Yield a line for each figure of a plain run and of a recovery."""
    install, partition = plain_run()
    yield f"{len(install.parts)} parts that a plain run creates on a host: {' '.join(install.parts)}"
    yield install.line("the Install of a plain run")
    yield partition.line("a partition (the most of them)")
    recoveries = [
        entered
        for entered in events_of(golden_runs.failover)
        for command in entered.commands
        if isinstance(command, e.OpenRun) and command.install.run.generation and entered.host == "client"
    ]
    yield recoveries[0].line("the recovery of a run, at its client,")
