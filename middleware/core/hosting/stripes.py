"""The streams of this host's application that go over several trees, and the runs that are their stripes.

Rules:

R1. What the run of a stripe says to its application the stream hears (``core.striping``), at the end of the event by
    which it was said; the application hears of the stream alone, but of where operators are, and of plans.
R2. What the application says of a stream as a whole is said of each of its stripes. A stream is forgotten with the last
    of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from thalweg.middleware.core.outbox import Outbox, Timer
from thalweg.middleware.core.run import RunCore
from thalweg.middleware.core.striping import Hooks, Stripe, Striping
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.stripes import stream_of, stripe_of

SAID = frozenset({e.Ready, e.Deliver, e.Fail, e.Forgotten})
OF_STREAMS = frozenset({e.NextRequested, e.RunAbandoned, e.PeerLost, e.PeerJoined})


class Stripes:
    """All of them, by the stream's id. ``current``: the run that a stripe is now, of whatever generation."""

    def __init__(
        self,
        out: Outbox,
        limits: CoreConfig,
        runs: Mapping[str, RunCore],
        current: Callable[[e.NextRequested], e.NextRequested],
        act: Callable[[e.Event], None],
    ) -> None:
        self._out, self._limits, self._runs, self._current, self._act = out, limits, runs, current, act
        self.led: dict[str, Striping] = {}
        self._left: dict[str, set[str]] = {}  # by stream, the runs that are not forgotten

    def begin(self, event: e.StripesRequested) -> None:
        """The application asks for a stream; its stripes' runs are about to begin."""
        out = self._out.of(event.run)
        self.led[event.run] = Striping(out, event, self._limits, Hooks(self._act, self._tell, self._most, self._named))
        self._left[event.run] = {request.install.run for request in event.stripes}

    def concern(self, event: e.Event) -> bool:
        """Whether that is said of a stream as a whole."""
        if type(event) is e.TimerFired:
            return event.key.startswith(f"{Timer.STRIPES} ")
        return type(event) in OF_STREAMS and getattr(event, "run", "") in self.led

    def say(self, event: Any) -> None:
        """R2: what is said of a stream, or that something is due in it."""
        if type(event) is e.TimerFired:
            striping = self.led.get(event.key.partition(" ")[2])
            if striping is not None:
                striping.on_timer()
        elif type(event) is e.NextRequested:
            self.led[event.run].on_next()
        else:
            for run in sorted(self._left[event.run]):
                self._act(msgspec.structs.replace(event, run=run))

    def through(self, finish: Callable[[], None]) -> list[e.Command]:
        """R1: have the streams hear what was said; the commands for all others. ``finish`` does what comes of it."""
        desk, passed = self._out.desk, list[e.Command]()
        while desk.commands:
            told, desk.commands = desk.commands, []
            passed += [command for command in told if type(command) not in SAID or not self._heard(command)]
            finish()
        return passed

    def _heard(self, command: Any) -> bool:
        """Whether that was for a stream alone."""
        stream, number = stream_of(command.run), stripe_of(command.run)
        striping = self.led.get(stream)
        if striping is None or number is None:
            return False
        stripe = striping.stripes[number]
        match command:
            case e.Ready():
                striping.on_ready(stripe)
            case e.Deliver():
                striping.on_delivered(stripe, command)
            case e.Fail():
                striping.on_failed(stripe, command)
            case e.Forgotten(follows=True):
                run = self._run_of(stripe)
                lasting = None if run is None else run.setting.lasting
                starts = () if lasting is None else lasting.starts
                striping.on_follows(stripe, min([start.index for start in starts], default=0))
            case e.Forgotten():
                self._left[stream].discard(stripe.run)
                if not self._left[stream]:  # R2
                    del self.led[stream], self._left[stream]
                    self._out.of(stream).emit(e.Forgotten(stream))
        return type(command) is not e.Forgotten  # which lines are hung up by

    def _run_of(self, stripe: Stripe) -> RunCore | None:
        return self._runs.get(self._named(stripe))

    def _named(self, stripe: Stripe) -> str:
        return self._current(e.NextRequested(stripe.run)).run

    def _tell(self, stripe: Stripe, given: m.Given) -> None:
        run = self._run_of(stripe)
        if run is not None:
            told = msgspec.structs.replace(given, run=run.id)
            for host in sorted(run.directory.hosts):
                run.out.send(host, told)

    def _most(self, stripe: Stripe) -> int:
        """How many partitions a stripe's tree, as it is now, can have under way."""
        run = self._run_of(stripe)
        return 1 if run is None else max(run.tree.dataflow.level.values()) * run.setting.install.ahead
