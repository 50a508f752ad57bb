"""Record that the supervisor keeps of a testbed, from its start to its end and in bounded memory.

Times are of ``time.monotonic()``. If there are too many entries, old ones of little interest are removed first, and
counted.
"""

from __future__ import annotations

import math
import os
import resource
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from thalweg.emulation.kernel.names import end_name
from thalweg.emulation.kernel.world import LinkState, World
from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.recording.counting import Counting
from thalweg.emulation.recording.entries import Happening, Head, HostChange, LinkChange, Process
from thalweg.emulation.recording.samples import WIDTH, Samples
from thalweg.middleware.errors import ThalwegError, counted, one_line
from thalweg.middleware.network.view import Cable, Link

MAX_CHANGES = 40_000  # of links, each at most 400 bytes
MAX_PROCESSES = 5_000
MAX_HAPPENINGS = 2_000
COMMAND_CHARS = 1_000
PART_BYTES = 1 << 19  # of a record in one answer
TAILS, TAIL_BYTES, TAIL_LINES = 100, 4_000, 20  # most logs, and bytes and lines of one
RUNS_CLOCK = 2  # in the number of a process's clock: its processor time (clock_getcpuclockid(3))


class Snapshot:
    """Record at one moment, as ``parts`` pieces of bytes: first the head as JSON, then the samples.

    If the supervisor sent the whole record at once, changes of a replay would be late.
    """

    def __init__(self, head: Head, rows: bytes) -> None:
        self.head, encoded = head, msgspec.json.encode(head)
        self.head_bytes, self._data = len(encoded), encoded + rows
        self.parts = -(-len(self._data) // PART_BYTES)

    def part(self, number: int) -> bytes:
        """Return the bytes of part ``number``, counted from 0."""
        return self._data[number * PART_BYTES : (number + 1) * PART_BYTES]


class Recorder:
    """Record of a testbed: samples and changes of links, rates of hosts, processes and happenings."""

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self._samples = Samples()
        self._counting: Counting | None = None
        self._world: World | None = None
        self._by, self._number = "shape", 0
        self._events: Set[Link] = frozenset()
        self._changes: list[LinkChange] = []
        self._hosts: list[HostChange] = []
        self._processes: dict[int, Process] = {}
        self._running: dict[int, Process] = {}  # by pid
        self._logs: dict[int, str] = {}  # by number
        self._started = 0
        self._happenings: list[Happening] = []
        self._open: dict[str, Happening] = {}
        self._gone: set[Cable] = set()
        self._left_out: dict[str, int] = {}
        self.refusal = ""
        """Reason why the counters of links are no longer read. Empty: they are read."""

    # --- links ----------------------------------------------------------------------------------------

    def watch(self, world: World) -> None:
        """Record the links of a world from now on."""
        self._world, self._counting = world, Counting(world, self._samples)
        world.changed, world.carried = self._link_changed, self._carrier_changed

    @property
    def next_s(self) -> float | None:
        """Time of the next reading of the links' counters. None: ``watch`` has not been called."""
        return None if self._counting is None else self._counting.next_s

    def read_due(self) -> None:
        """If a reading is due, read the counters of links, and record hosts that have ended."""
        counting = self._counting
        if counting is None or self._world is None or counting.next_s > time.monotonic():
            return
        with self._reading():
            counting.read_due()
        for cable in self._world.gone - self._gone:
            self._gone.add(cable)
            now_s = time.monotonic()
            self._add(Happening("end", now_s, now_s, end_name(cable)))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """If the body of the ``with`` statement fails, stop the readings, but not the testbed."""
        try:
            yield
        except Exception as error:
            self.refusal = f"the recording of what links carry has stopped ({one_line(error)})"
            if self._counting is not None:
                self._counting.next_s = math.inf

    def _wake(self) -> None:
        if self._counting is not None and not self.refusal:
            self._counting.wake()

    def begin(self, by: str, links: Iterable[Link] = (), events: Set[Link] = frozenset()) -> None:
        """Begin changes with the cause ``by``. ``events``: the links that an event of a replay changes."""
        self._by, self._events = by, events
        self._number += 1
        if self._counting is not None and not self.refusal and by not in ("play", "verify"):
            with self._reading():
                self._counting.read_before([*links])
            self._wake()

    def _link_changed(self, link: Link, before: LinkShape | None, state: LinkState) -> None:
        counting = self._counting
        assert counting is not None
        if before is None:
            counting.know(link, state)
        if before == state.shape:
            return
        by = "event" if link in self._events else self._by
        now_s = time.monotonic()
        self._changes.append(LinkChange(self._number, now_s, by, counting.number(link), before, state.shape))
        if len(self._changes) > MAX_CHANGES:
            self._thin()

    def _carrier_changed(self, cable: Cable, up: bool) -> None:
        name = end_name(cable)
        if up:
            self.stop(f"carrier of {name}", name)
        else:
            self.go_on("carrier", f"carrier of {name}", name)
        self._wake()

    def reset(self, links: Iterable[Link], count: int) -> None:
        """Record the reset of ``count`` connections over these links."""
        text = ", ".join(link.text for link in links)
        now_s = time.monotonic()
        self._add(Happening("reset", now_s, now_s, f"{counted(count, 'connection')} of {text[:COMMAND_CHARS]}"))

    def _thin(self) -> None:
        """Remove every second rate step of a replay from the older half of the changes.

        If too many are left, only cuts and restores stay, and of these, if still too many, the newer half.
        """
        half = len(self._changes) // 2
        old, recent = self._changes[:half], self._changes[half:]
        remaining, odd = list[LinkChange](), dict[int, bool]()
        for change in old:
            if change.by == "play" and change.of_rate_alone:
                odd[change.link] = not odd.get(change.link, False)
                if odd[change.link]:
                    continue
            remaining.append(change)
        if len(remaining) > half * 7 // 8:
            remaining = [change for change in remaining if change.opens_or_closes]
        if len(remaining) > half * 7 // 8:
            remaining = remaining[len(remaining) // 2 :]
        self._leave_out("changes", half - len(remaining))
        self._changes = remaining + recent

    def host_changes(self, up_bps: Mapping[Cable, float], down_bps: Mapping[Cable, float]) -> Callable[[], None]:
        """Return a function that records the changes of hosts' rates since this call."""
        before = {"up": dict(up_bps), "down": dict(down_bps)}

        def record() -> None:
            now_s = time.monotonic()
            for direction, present in (("up", up_bps), ("down", down_bps)):
                for cable in before[direction].keys() | present.keys():
                    if (rate_bps := present.get(cable)) != before[direction].get(cable):
                        host, via = (cable, "") if isinstance(cable, str) else cable
                        self._hosts.append(HostChange(now_s, host, via, direction, rate_bps))
            self._hosts = self._shortened("rates of hosts", self._hosts, MAX_CHANGES)

        return record

    # --- processes and activities ---------------------------------------------------------------------

    def start(self, pid: int, host: str, argv: Iterable[str], log: str | None = None) -> None:
        """Record the start of a process. ``log``: file of the output, for a process that outlives its starter."""
        self._started += 1
        command = shlex.join(argv)[:COMMAND_CHARS]
        process = Process(self._started, pid, host, command, time.monotonic(), stays=log is not None)
        if log is not None:
            self._logs[self._started] = log
        self._processes[self._started] = self._running[pid] = process
        self._wake()
        if len(self._processes) > MAX_PROCESSES:
            self._forget_processes()

    def end(self, pid: int, status: int, cpu_s: float | None = None) -> None:
        """Record the end of a process, if its start was recorded."""
        if (process := self._running.pop(pid, None)) is not None:
            process.end_s, process.status, process.cpu_s = time.monotonic(), status, cpu_s

    def _forget_processes(self) -> None:
        """Remove the older half of the processes that ended with status 0, or of all ended ones if these are few."""
        ended = [process for process in self._processes.values() if process.end_s is not None]
        fine = [process for process in ended if process.status == 0]
        chosen = fine if len(fine) > MAX_PROCESSES // 8 else ended
        for process in chosen[: (len(chosen) + 1) // 2]:
            del self._processes[process.number]
            self._logs.pop(process.number, None)
        self._leave_out("processes", (len(chosen) + 1) // 2)

    def go_on(self, kind: str, name: str = "", note: str = "") -> None:
        """Record the start of an activity, as ``play`` or ``verify``. An open one of this name, or kind, ends."""
        self.stop(name or kind, note)
        self._open[name or kind] = happening = Happening(kind, time.monotonic(), note=note)
        self._add(happening)

    def stop(self, name: str, note: str = "") -> None:
        """Record the end of an open activity. ``note``: why it ended by itself."""
        if (happening := self._open.pop(name, None)) is not None:
            happening.end_s, happening.note = time.monotonic(), note

    def _add(self, happening: Happening) -> None:
        self._happenings.append(happening)
        self._happenings = self._shortened("plays and checks", self._happenings, MAX_HAPPENINGS)

    def _shortened(self, what: str, entries: list[Any], most: int) -> list[Any]:
        """Return the entries, without the older half if there are more than ``most``."""
        if len(entries) <= most:
            return entries
        self._leave_out(what, len(entries) // 2)
        return entries[len(entries) // 2 :]

    def _leave_out(self, what: str, count: int) -> None:
        if count:
            self._left_out[what] = self._left_out.get(what, 0) + count

    # --- the record as sent ---------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Read every counter, and return the record as of now."""
        links = list[tuple[str, ...]]()
        if self._counting is not None:
            if not self.refusal:
                with self._reading():
                    self._counting.read_all()
            links = [tuple(link) for link in self._counting.numbers]
        rows = self._samples.rows()
        head = Head(
            self.began_s, time.monotonic(), links, self._changes, self._hosts, self._told(), self._happenings,
            self._left_out, self._samples.joined_s, self.refusal, len(rows) // WIDTH,
            0.0 if self._counting is None else self._counting.cost_s,
        )  # fmt: skip
        return Snapshot(head, rows.tobytes())

    def _told(self) -> list[Process]:
        """Return the processes, after an update of their own processor times and of the tails of recent logs."""
        for process in self._running.values():
            with suppress(OSError):
                process.cpu_s = time.clock_gettime(~process.pid << 3 | RUNS_CLOCK)
        for number in [*self._logs][-TAILS:]:
            self._processes[number].tail = tail(self._logs[number])
        return [*self._processes.values()]


def tail(log: str) -> str:
    """Return the last lines of a log file. Empty: the file cannot be read."""
    from thalweg.middleware.platform.files import open_regular  # only reports need it

    try:
        with open_regular(log) as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            text = file.read(TAIL_BYTES).decode(errors="replace")
    except (OSError, ThalwegError):
        return ""
    return "\n".join(text.splitlines()[-TAIL_LINES:])


def children_cpu_s() -> float:
    """Return the processor time, in seconds, of the children for which this process has waited."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
