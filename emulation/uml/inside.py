"""What runs inside a User-Mode Linux kernel: its first process, which starts commands and relays their streams.

It speaks frames (see ``uml.wire``) over the serial line, the only thing that crosses the two kernels. When the line
closes, whoever held the kernel is gone: everything is written back and the kernel powers off. One thread; standard
library only, because the kernel starts it without site-packages.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import termios
import tty
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from thalweg.emulation.supervisor.processes import drain, ended_children, signal_pipe
from thalweg.emulation.uml import system
from thalweg.emulation.uml.relay import Relay
from thalweg.emulation.uml.wire import COUNT, HEAD, LINE_WINDOW, PIECE, PRIVATE, STATUS, STREAM_WINDOW, Frames, Kind

LINE = "/dev/ttyS0"


class Stream:
    """The reading end of a process's output, and how much of it the host has not taken."""

    def __init__(self, descriptor: int, process: Process, kind: Kind) -> None:
        self.descriptor, self.process, self.kind = descriptor, process, kind
        self.untaken = 0
        self.open = True
        os.set_blocking(descriptor, False)


class Process:
    """A command: our ends of its streams, the input it has not read yet, and its exit status once it has ended.

    ``popen`` is None for one that somebody else started and watches.
    """

    def __init__(self, number: int, streams: tuple[int, int, int], popen: subprocess.Popen[bytes] | None) -> None:
        self.number, self.popen = number, popen
        self.stdin: int | None = streams[0]
        os.set_blocking(streams[0], False)
        self.waiting: deque[bytes] = deque()  # of input; an empty piece is its end
        self.streams = {1: Stream(streams[1], self, Kind.OUTPUT), 2: Stream(streams[2], self, Kind.ERRORS)}
        self.status: int | None = None


def pipes(terminals: Sequence[tuple[int, int] | None] = (None, None)) -> tuple[tuple[int, int, int], ...]:
    """Standard streams: a process's ends, and ours. ``terminals``: lines and columns of outputs that go to one."""
    (stdin, feed), (out, stdout), (err, stderr) = os.pipe(), *map(_outlet, terminals)
    return (stdin, stdout, stderr), (feed, out, err)


def _outlet(terminal: tuple[int, int] | None) -> tuple[int, int]:
    """A pipe, or a pseudo-terminal that passes bytes on unchanged (the host's own makes of them what it makes)."""
    if terminal is None:
        return os.pipe()
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    termios.tcsetwinsize(theirs, terminal)
    return ours, theirs


class Agent:
    """The loop of the first process."""

    def __init__(self, line: int) -> None:
        self._line = line
        self._frames = Frames()
        self._selector = selectors.DefaultSelector()
        self.watch(line, selectors.EVENT_READ, self._hear)
        wake = signal_pipe()
        self.watch(wake, selectors.EVENT_READ, lambda: drain(wake))
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._processes: dict[int, Process] = {}
        self._relay = Relay(self)
        self._over = False

    def serve(self) -> None:
        """Work until the line closes."""
        self.send(Kind.HELLO)
        while not self._over:
            for key, _ in self._selector.select():
                if key.fd in self._selector.get_map():  # not dropped by what came before it
                    key.data()
            self._reap()

    def send(self, kind: Kind, number: int = 0, payload: bytes = b"") -> None:
        data = memoryview(HEAD.pack(kind, number, len(payload)) + payload)
        while data:
            data = data[os.write(self._line, data) :]

    def watch(self, descriptor: int, events: int, act: Callable[[], None] | None = None) -> None:
        """Have the loop call ``act`` on ``events`` of a descriptor; nothing if 0."""
        watched = descriptor in self._selector.get_map()
        if events and not watched:
            self._selector.register(descriptor, events, act)
        elif watched and not events:
            self._selector.unregister(descriptor)

    def _hear(self) -> None:
        try:
            data = os.read(self._line, LINE_WINDOW)
        except OSError:
            data = b""
        if not data:
            self._over = True
            return
        self.send(Kind.RECEIVED, 0, COUNT.pack(0, len(data)))
        for kind, number, payload in self._frames.feed(data):
            if kind == Kind.SETUP:
                self._setup(json.loads(payload))
            elif kind == Kind.START:
                self._start(number, json.loads(payload))
            elif kind in (Kind.CONNECT, Kind.LINE, Kind.HANGUP):
                self._relay.hear(kind, number, payload)
            elif number in self._processes:
                self._for_process(kind, self._processes[number], payload)

    def _for_process(self, kind: int, process: Process, payload: bytes) -> None:
        if kind == Kind.INPUT:
            process.waiting.append(payload)
            self._feed(process)
        elif kind == Kind.SIGNAL:
            if process.popen is not None and process.status is None:
                process.popen.send_signal(payload[0])
        elif kind == Kind.TAKEN:
            which, count = COUNT.unpack(payload)
            stream = process.streams[which]
            stream.untaken -= count
            self._pump(stream)
        elif kind == Kind.SHUT:
            self._finish(process.streams[payload[0]])

    def _setup(self, given: dict[str, Any]) -> None:
        try:
            socket.sethostname(given["name"])
            system.loopback_up()
            for path in given["modules"]:
                system.load_module(path)
            resource.setrlimit(resource.RLIMIT_NOFILE, (given["limit"], given["limit"]))
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            self.send(Kind.FAILED, 0, f"{where}{error.strerror or error}".encode())
            return
        self.send(Kind.READY)

    # --- processes ------------------------------------------------------------------------------------

    def _start(self, number: int, job: dict[str, Any]) -> None:
        theirs, ours = pipes(job["terminals"])
        try:
            popen = subprocess.Popen(
                job["argv"],
                stdin=theirs[0],
                stdout=theirs[1],
                stderr=theirs[2],
                env=job["env"],
                cwd=job["cwd"],
                umask=job["umask"],
                start_new_session=True,
            )
        except OSError as error:
            for descriptor in ours:
                os.close(descriptor)
            self.send(Kind.REFUSED, number, f"cannot run {job['argv'][0]!r}: {error.strerror}".encode())
            return
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._adopt(Process(number, ours, popen))

    def lend(self, number: int) -> tuple[int, int, int]:
        """The standard streams of a process that somebody else will start and watch."""
        theirs, ours = pipes()
        self._adopt(Process(number, ours, None))
        return theirs

    def _adopt(self, process: Process) -> None:
        self._processes[process.number] = process
        for stream in process.streams.values():
            self._pump(stream)

    def ended(self, number: int, status: int) -> None:
        """A process has ended; it is reported when all that it wrote has been passed on."""
        if (process := self._processes.get(number)) is not None:
            process.status = status
            for stream in process.streams.values():
                self._pump(stream)

    def drop(self, number: int) -> None:
        """Have no more to do with a process."""
        if (process := self._processes.pop(number, None)) is not None:
            for stream in process.streams.values():
                self._close(stream)
            process.waiting = deque([b""])
            self._feed(process)

    def _feed(self, process: Process) -> None:
        """Give a process the input that waits, as much as it takes."""
        stdin = process.stdin
        while stdin is not None and process.waiting:
            piece = process.waiting.popleft()
            try:
                count = os.write(stdin, piece) if piece else 0
            except BlockingIOError:
                process.waiting.appendleft(piece)
                self.watch(stdin, selectors.EVENT_WRITE, lambda: self._feed(process))
                return
            except OSError:  # it reads no more
                piece = b""
            if not piece:
                self.watch(stdin, 0)
                os.close(stdin)
                process.stdin = None
                return
            self.send(Kind.TAKEN, process.number, COUNT.pack(0, count))
            if count < len(piece):
                process.waiting.appendleft(piece[count:])
        if stdin is not None:
            self.watch(stdin, 0)

    def _pump(self, stream: Stream) -> None:
        """Pass on what a process has written, up to what the host may be sent."""
        while stream.open and stream.untaken < STREAM_WINDOW:
            try:
                data = os.read(stream.descriptor, PIECE)
            except BlockingIOError:
                if stream.process.status is None:
                    self.watch(stream.descriptor, selectors.EVENT_READ, lambda: self._pump(stream))
                    return
                data = b""  # what others still hold open is not waited for
            except OSError:  # a terminal that nobody writes to any more
                data = b""
            if not data:
                self._finish(stream)
                return
            stream.untaken += len(data)
            self.send(stream.kind, stream.process.number, data)
        if stream.open:
            self.watch(stream.descriptor, 0)
        else:
            self._report(stream.process)

    def _finish(self, stream: Stream) -> None:
        self._close(stream)
        self._report(stream.process)

    def _close(self, stream: Stream) -> None:
        if stream.open:
            stream.open = False
            self.watch(stream.descriptor, 0)
            os.close(stream.descriptor)

    def _report(self, process: Process) -> None:
        """Report a process that has ended and been read out, when all that it wrote is with the host."""
        over = process.status is not None and not any(stream.open for stream in process.streams.values())
        if over and process.number in self._processes:
            self.drop(process.number)
            os.sync()
            assert process.status is not None
            self.send(Kind.ENDED, process.number, STATUS.pack(process.status))

    def _reap(self) -> None:
        """Notice processes that ended, and bury the orphans that the first process inherits."""
        for pid in ended_children():
            for process in list(self._processes.values()):
                if process.popen is not None and process.popen.pid == pid:
                    self.ended(process.number, process.popen.wait())
                    break
            else:
                os.waitpid(pid, 0)


def main() -> None:
    """Set the system up, and serve."""
    os.umask(0o022)
    system.mount_all(PRIVATE)
    line = os.open(LINE, os.O_RDWR | os.O_NOCTTY)
    tty.setraw(line)
    try:
        Agent(line).serve()
    finally:
        system.power_off()
