"""Processes of a run on its testbed: one on every server, and the client's worker. Benchmarks use them too."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NoReturn

import msgspec

from thalweg.emulation.scenarios.events import Deed
from thalweg.emulation.supervisor.client import TestbedProcess
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.emulation.uml.files import inside_uml
from thalweg.experiments.run_config import CLIENT
from thalweg.experiments.runs.job import Ended, Said, There
from thalweg.middleware.client.cluster import fate_of, host_command, host_environment, wait_ready_lines
from thalweg.middleware.errors import HostAbsentError, HostLostError, RunError, UsageError
from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.platform.python import module_command
from thalweg.middleware.shell.endpoints import SocketFolder

PORT = 7800  # control port of every host in a testbed with addresses of its own
UML_PATIENCE = 5.0  # in UML all processes share one slow processor
PATIENCE = UML_PATIENCE if inside_uml() else 1.0
START_S, END_S = 60.0, 5.0
WORKER = "worker"


class Processes:
    """Processes on a testbed's hosts, until ``stack`` unwinds. Their standard error goes to files in ``logs``."""

    def __init__(self, bed: Testbed, stack: ExitStack, logs: Path) -> None:
        self.bed, self.stack, self.logs = bed, stack, logs
        self.patience = PATIENCE
        self.capacities: Mapping[str, HostFigures] = {}  # of hosts that report figures of their processors
        self._running: dict[str, TestbedProcess] = {}  # by the host's name, or WORKER
        self._outputs: dict[str, IO[bytes]] = {}
        self._job: IO[bytes] | None = None
        self.lasting = False  # the run goes on when hosts end
        self.deeds: list[tuple[float, Deed]] = []  # events of hosts, by the time when they are due (``time.monotonic``)
        self.befallen: list[tuple[float, Deed]] = []  # past events, by wall time
        self._commands: dict[str, list[str]] = {}
        self._coming: dict[str, bytes] = {}  # restarted hosts, and their output so far
        self._starts = 0
        self._records = Path()
        self._selector: selectors.BaseSelector  # set while the worker's messages are read
        self._folder = stack.enter_context(SocketFolder()) if bed.backend == "loopback" else ""

    def listen(self, host: str) -> str:
        """Return the control endpoint of a process on ``host``."""
        if self._folder:  # other users share loopback, but not the addresses of a testbed
            return f"ipc://{self._folder}/{list(self.bed.hosts).index(host)}"
        return f"tcp://{self.bed.hosts[host]}:{PORT}"

    def ends(self, host: str) -> dict[str, str]:
        """Return the bulk endpoints of a process on ``host``, by further network."""
        return {via: f"tcp://{addresses[host]}:*" for via, addresses in self.bed.networks.items()}

    def start_hosts(
        self,
        names: Sequence[str],
        records: Path,
        *,
        allow: Collection[str],
        data_roots: Collection[Path] = (),
        time_scale: float = 1.0,
        forecaster: str | None = None,
        limits: Sequence[str] = (),
    ) -> dict[str, str]:
        """Start a host process for each name, with its ``records``.

        Return the control endpoints when all hosts are ready.

        ``limits``: limits of the hosts that are not the defaults, as ``NAME=VALUE``.
        """
        self._records = records
        for name in names:
            command = host_command(
                name,
                self.listen(name),
                allow=allow,
                time_scale=time_scale,
                records=records,
                insecure=True,
                python=self.bed.python,
            )
            command += [f"--data-root={root}" for root in data_roots]
            if forecaster is not None:
                command += ["--forecaster", forecaster]
            command += [f"--limit={limit}" for limit in limits]
            command += [f"--network={via}={end}" for via, end in self.ends(name).items()]
            if figures := self.capacities.get(name):
                command.append(f"--capacity=speed={figures.speed},cores={figures.cores}")
            self._commands[name] = command
            self.start(name, name, command)
        return {name: line["control"] for name, line in self.ready().items()}

    def ready(self) -> dict[str, dict[str, str]]:
        """Return the first line of each started process.

        Raises HostAbsentError, with the last line of a process's errors, if a process does not come up.
        """
        try:
            return wait_ready_lines(
                {name: stream.fileno() for name, stream in self._outputs.items()}, START_S * self.patience
            )
        except HostAbsentError as error:
            last_lines = [line for name in self._running for line in self._last_line(name)]
            raise HostAbsentError(f"{error}" + (f": {last_lines[0]}" if last_lines else "")) from None

    def start_worker(self, module: str, job: msgspec.Struct) -> Iterator[Said]:
        """Start the client's worker, ``python -P -m module``, and return the messages after ``ready``.

        The iterator raises HostLostError as soon as a host process or the worker has ended.
        """
        self._job = self.start(CLIENT, WORKER, module_command(module, python=self.bed.python))
        words = self._words()
        self.tell(job)
        first = next(words)
        if first.event != "ready":
            fail(first)
        return words

    def tell(self, message: msgspec.Struct) -> None:
        """Send one message to the worker."""
        assert self._job is not None
        self._job.write(msgspec.json.encode(message) + b"\n")
        self._job.flush()

    def end(self) -> None:
        """End the worker, then the hosts, with time for every process to finish its log."""
        assert self._job is not None
        self._job.close()
        self._running[WORKER].wait(END_S * self.patience)
        for name, process in self._running.items():
            if name != WORKER:
                process.terminate()
        for process in self._running.values():
            process.wait(END_S * self.patience)

    def start(self, host: str, name: str, command: list[str]) -> IO[bytes]:
        """Start ``command`` on ``host``, and return its standard input.

        Standard error goes to a file of the run folder.
        """
        with (self.logs / f"{name}.err").open("ab") as errors:
            process = self.bed.run(
                host, command, env=host_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        self._running[name] = process
        self.stack.callback(process.close)
        self.stack.callback(process.kill)
        assert process.stdin is not None
        assert process.stdout is not None
        self._outputs[name] = process.stdout
        return process.stdin

    def _words(self) -> Iterator[Said]:
        decoder = msgspec.json.Decoder(Said)
        buffer = b""
        with selectors.DefaultSelector() as selector:
            self._selector = selector
            for name, stream in self._outputs.items():
                selector.register(stream, selectors.EVENT_READ, name)
            while True:
                due_s = self.deeds[0][0] - time.monotonic() if self.deeds else None
                for key, _ in selector.select(None if due_s is None else max(0.0, due_s)):
                    piece = os.read(key.fd, 65536)
                    if key.data == WORKER and piece:
                        *lines, buffer = (buffer + piece).split(b"\n")
                        yield from map(decoder.decode, lines)
                    elif not piece:
                        self._ended(key.data)
                    elif key.data in self._coming:
                        self._heard(key.data, piece)
                while self.deeds and self.deeds[0][0] <= time.monotonic():
                    self._do(self.deeds.pop(0)[1])

    # --- events of hosts --------------------------------------------------------------------------------

    def _ended(self, name: str) -> None:
        """Handle the end of a process. Raise HostLostError unless the run outlives its hosts."""
        killed = name != WORKER and self._fate(name) == fate_of(-signal.SIGKILL)
        if name == WORKER or not self.lasting or (name in self._coming and not killed):
            raise HostLostError(self._epitaph(name))
        self._coming.pop(name, None)  # a host may be killed again before it is up
        self._selector.unregister(self._outputs.pop(name))
        self.tell(Ended(name, self._fate(name)))

    def _heard(self, name: str, piece: bytes) -> None:
        """Handle output of a restarted host. After the first line, tell the worker the host's endpoint."""
        self._coming[name] += piece
        if b"\n" in self._coming[name]:
            self.tell(There(name, msgspec.json.decode(self._coming.pop(name).partition(b"\n")[0])["control"]))

    def _do(self, deed: Deed) -> None:
        self.befallen.append((time.time(), deed))
        if deed.kind == "crash":
            self._running[deed.host].kill()
        elif deed.kind == "drain":
            self._running[deed.host].terminate()
        else:
            self._start_again(deed.host)

    def _start_again(self, name: str) -> None:
        if name in self._outputs:
            if self._running[name].poll() is None:
                return  # the host runs
            self._ended(name)  # its end is not handled yet
        self._starts += 1
        records = self._records / f"{name}-{self._starts}.jsonl"  # the earlier log may end in half a line
        self._coming[name] = b""
        self.start(name, name, [*self._commands[name], "--records", str(records)])
        self._selector.register(self._outputs[name], selectors.EVENT_READ, name)

    def set_out(self, absent: Collection[str]) -> None:
        """Make all hosts run except the ``absent`` ones, for a placement's start.

        Pending events of hosts are dropped.
        """
        self.deeds.clear()
        self.befallen.clear()
        for name in self._commands:
            if name in absent:
                self._running[name].kill()
                if name in self._outputs:
                    self._running[name].wait(END_S)
                    self._ended(name)
            elif name not in self._outputs or self._running[name].poll() is not None:
                self._start_again(name)
        while self._coming:
            for key, _ in self._selector.select(START_S * self.patience):
                if key.data in self._coming:
                    piece = os.read(key.fd, 65536)
                    self._heard(key.data, piece) if piece else self._ended(key.data)

    def _fate(self, name: str) -> str:
        """Return the end of a process as a phrase that follows the name."""
        try:
            return fate_of(self._running[name].wait(2.0))
        except TimeoutError:
            return "has closed its standard output"

    def _epitaph(self, name: str) -> str:
        process = self._running[name]
        try:
            status = process.wait(2.0)
        except TimeoutError:
            status = None
        subject = "the client's worker" if name == WORKER else f"host {name!r}"
        fate = self.bed.fate(process.host)
        last = self._last_line(name)
        return (
            f"{subject} ended with status {status}"
            + (f"; {fate}" if fate else "")
            + (f"; its last line: {last[0]}" if last else "")
        )

    def _last_line(self, name: str) -> list[str]:
        """Return the last line of a process's standard error, as a list that may be empty."""
        return (self.logs / f"{name}.err").read_text(errors="replace").strip().splitlines()[-1:]


def fail(said: Said) -> NoReturn:
    """Raise the error that the worker reports."""
    raise UsageError(said.message) if said.usage else RunError(said.message or f"the worker said {said.event!r}")
