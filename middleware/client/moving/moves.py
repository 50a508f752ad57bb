"""Handles of the moves that an application requests, with the outcome of each move."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from typing import Any

import msgspec

from thalweg.middleware.errors import MoveRefused, in_seconds
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.run_id import NO_RUN, RunId


class Moved(msgspec.Struct, frozen=True):
    """Outcome of a move that was carried out.

    From partition ``index`` on, the operators of ``placement`` are on these hosts. If every operator was there already,
    ``index`` is None and ``placement`` is empty.
    """

    index: int | None
    placement: dict[str, str]


class MoveHandle:
    """Handle of a move that was requested by ``Run.move`` or ``Run.reshape``. A dropped handle does not end the move.

    ``what`` describes the move. ``await handle`` is ``handle.result()`` for tasks. Any thread may call the methods.
    """

    def __init__(self, what: str, parts: int = 1) -> None:
        self.what = what
        self.names: Mapping[str, str] = {}  # by name in the run, the application's name of an operator
        self._parts, self._ended = parts, list[e.MoveEnded]()
        self._lock = threading.Lock()
        self._future: Future[list[e.MoveEnded]] = Future()
        self._future.set_running_or_notify_cancel()  # cancellation of a waiting task does not cancel the move

    def __repr__(self) -> str:
        return f"<{self.what}: {'over' if self.done() else 'under way'}>"

    def done(self) -> bool:
        """Return whether the outcome of the move is known."""
        return self._future.done()

    def result(self, timeout_s: float | None = None) -> Moved:
        """Wait until the operators have moved, and return their hosts and the first partition there.

        Take partitions meanwhile, in another thread or before, because an operator moves between two partitions.

        Raises MoveRefused with the reason if an operator stays. Raises TimeoutError if the outcome is unknown after
        ``timeout_s`` wall-clock seconds. The move goes on then.
        """
        try:
            return self._result(self._future.result(timeout_s))
        except TimeoutError:
            assert timeout_s is not None
            raise TimeoutError(f"{self.what} is not over after {in_seconds(timeout_s)}, and goes on") from None

    def __await__(self) -> Generator[Any, None, Moved]:
        ended = yield from asyncio.wrap_future(self._future).__await__()
        return self._result(ended)

    def ended(self, command: e.MoveEnded) -> None:
        """Note the outcome of one part of the move. The last part completes the handle."""
        with self._lock:
            self._ended.append(command)
            if len(self._ended) == self._parts:
                self._future.set_result(self._ended)

    def _result(self, ended: list[e.MoveEnded]) -> Moved:
        names, moved, stayed = self.names, dict[str, str](), dict[str, str]()
        for part in ended:
            moved |= {names.get(name, name): host for name, host in part.moved.items()}
            stayed |= {names.get(name, name): why for name, why in part.stayed.items()}
        index = max([part.index for part in ended if part.index is not None], default=None)
        reasons = [f"{name!r}: {why}" for name, why in stayed.items()] + [part.why for part in ended if part.why]
        if reasons:
            text = "; ".join(dict.fromkeys(reasons))
            raise MoveRefused(f"{self.what} was refused: {text}", reason=text, moved=moved, stayed=stayed, index=index)
        return Moved(index, moved)


class Moves:
    """Moves that the runs of a client have requested, and that have no outcome yet.

    The core answers every request, even if the run is over. Only a failed run and a closed client get no answer.
    """

    def __init__(self, tell: Callable[[e.Event], None]) -> None:
        self._tell, self._numbers, self._lock = tell, itertools.count(), threading.Lock()
        self._asked: dict[int, tuple[str, MoveHandle]] = {}  # by number, the stream and the handle
        self._over = ""  # reason why there are no more outcomes

    def request(self, handle: MoveHandle, event: e.PlacementProposed) -> None:
        """Request a move or another tree from the core. The handle gets the outcome. Any thread may call this."""
        with self._lock:
            number, over = next(self._numbers), self._over
            if not over:
                self._asked[number] = event.run.stream, handle
        if over:
            handle.ended(e.MoveEnded(event.run, number, why=over))
        else:
            self._tell(msgspec.structs.replace(event, number=number))

    def ended(self, command: e.MoveEnded) -> None:
        """Pass the outcome of a move from the core to the handle."""
        with self._lock:
            _, handle = self._asked.pop(command.number, ("", None))
        if handle is not None:
            handle.ended(command)

    def failed(self, run: str, why: str) -> None:
        """End the moves of a run that has failed."""
        with self._lock:
            numbers = [number for number, (stream, _) in self._asked.items() if stream == run]
        for number in numbers:
            self.ended(e.MoveEnded(RunId(run), number, why=why))

    def close(self, why: str) -> None:
        """End all moves, because the client is closed."""
        with self._lock:
            self._over = self._over or why
            numbers = [*self._asked]
        for number in numbers:
            self.ended(e.MoveEnded(NO_RUN, number, why=why))

    def forked(self, why: str) -> None:
        """End all moves in a fork of the client's process. Threads of that process may hold the old locks."""
        self._lock = threading.Lock()
        for _, handle in self._asked.values():
            handle._lock = threading.Lock()
        self.close(why)
