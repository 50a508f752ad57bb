"""The processes of a run on its testbed: one on every server, and the client's worker; those of a benchmark."""

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
UML_PATIENCE = 5.0  # there everything shares one slow processor
PATIENCE = UML_PATIENCE if inside_uml() else 1.0
START_S, END_S = 60.0, 5.0
WORKER = "worker"


class Processes:
    """What runs on a testbed's hosts, until ``stack`` unwinds; what they say on standard error goes to ``logs``."""

    def __init__(self, bed: Testbed, stack: ExitStack, logs: Path) -> None:
        self.bed, self.stack, self.logs = bed, stack, logs
        self.patience = PATIENCE
        self.capacities: Mapping[str, HostFigures] = {}  # of hosts that are to say something of their processors
        self._running: dict[str, TestbedProcess] = {}  # by the host's name, or WORKER
        self._outputs: dict[str, IO[bytes]] = {}
        self._job: IO[bytes] | None = None
        self.lasting = False  # the run goes on when hosts end
        self.deeds: list[tuple[float, Deed]] = []  # what befalls hosts, by when that is due (``time.monotonic``)
        self.befallen: list[tuple[float, Deed]] = []  # and what has, when on the wall
        self._commands: dict[str, list[str]] = {}
        self._coming: dict[str, bytes] = {}  # hosts that were started again, and what they have said so far
        self._starts = 0
        self._records = Path()
        self._selector: selectors.BaseSelector  # while the worker is listened to
        self._folder = stack.enter_context(SocketFolder()) if bed.backend == "loopback" else ""

    def listen(self, host: str) -> str:
        """Where a process on ``host`` listens."""
        if self._folder:  # loopback is other users' as well; a testbed with addresses of its own is alone there
            return f"ipc://{self._folder}/{list(self.bed.hosts).index(host)}"
        return f"tcp://{self.bed.hosts[host]}:{PORT}"

    def ends(self, host: str) -> dict[str, str]:
        """Where a process on ``host`` listens for bulk in further networks."""
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
        """Start a host process on each, which keeps its ``records``; their control endpoints, when they are ready.

        ``limits``: those of the hosts, as ``NAME=VALUE``, that are not the defaults.
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
            if one := self.capacities.get(name):
                command.append(f"--capacity=speed={one.speed},cores={one.cores}")
            self._commands[name] = command
            self.start(name, name, command)
        return {name: line["control"] for name, line in self.ready().items()}

    def ready(self) -> dict[str, dict[str, str]]:
        """What each process that was started says first.

        Raises HostAbsentError, with its last words, for one that does not come up.
        """
        try:
            return wait_ready_lines(
                {name: stream.fileno() for name, stream in self._outputs.items()}, START_S * self.patience
            )
        except HostAbsentError as error:
            said = [line for name in self._running for line in self._last_line(name)]
            raise HostAbsentError(f"{error}" + (f": {said[0]}" if said else "")) from None

    def start_worker(self, module: str, job: msgspec.Struct) -> Iterator[Said]:
        """Start the client's worker, ``python -P -m module``; what it says from its ``ready`` on.

        HostLostError as soon as a host process or the worker has ended.
        """
        self._job = self.start(CLIENT, WORKER, module_command(module, python=self.bed.python))
        words = self._words()
        self.tell(job)
        first = next(words)
        if first.event != "ready":
            fail(first)
        return words

    def tell(self, message: msgspec.Struct) -> None:
        """One line to the worker."""
        assert self._job is not None
        self._job.write(msgspec.json.encode(message) + b"\n")
        self._job.flush()

    def end(self) -> None:
        """Let everybody finish their logs."""
        assert self._job is not None
        self._job.close()
        self._running[WORKER].wait(END_S * self.patience)
        for name, process in self._running.items():
            if name != WORKER:
                process.terminate()
        for process in self._running.values():
            process.wait(END_S * self.patience)

    def start(self, host: str, name: str, command: list[str]) -> IO[bytes]:
        """Start ``command`` on ``host``; its standard input. Its errors go to a file of the run folder."""
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

    # --- what befalls hosts -----------------------------------------------------------------------------

    def _ended(self, name: str) -> None:
        """A process has ended: HostLostError, unless the run outlives its hosts."""
        killed = name != WORKER and self._fate(name) == fate_of(-signal.SIGKILL)
        if name == WORKER or not self.lasting or (name in self._coming and not killed):
            raise HostLostError(self._epitaph(name))
        self._coming.pop(name, None)  # it was killed again before it came up
        self._selector.unregister(self._outputs.pop(name))
        self.tell(Ended(name, self._fate(name)))

    def _heard(self, name: str, piece: bytes) -> None:
        """A host that was started again says that it listens."""
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
                return  # it is there
            self._ended(name)  # nobody has looked since it did
        self._starts += 1
        records = self._records / f"{name}-{self._starts}.jsonl"  # the one before it may end in half a line
        self._coming[name] = b""
        self.start(name, name, [*self._commands[name], "--records", str(records)])
        self._selector.register(self._outputs[name], selectors.EVENT_READ, name)

    def set_out(self, absent: Collection[str]) -> None:
        """Have all hosts there but these, as a placement begins; what was to befall them does no more."""
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
        """How a process has ended; goes on its name."""
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
        what = "the client's worker" if name == WORKER else f"host {name!r}"
        fate = self.bed.fate(process.host)
        last = self._last_line(name)
        return (
            f"{what} ended with status {status}"
            + (f"; {fate}" if fate else "")
            + (f"; its last line: {last[0]}" if last else "")
        )

    def _last_line(self, name: str) -> list[str]:
        """The last line a process wrote to its standard error, if it wrote any."""
        return (self.logs / f"{name}.err").read_text(errors="replace").strip().splitlines()[-1:]


def fail(said: Said) -> NoReturn:
    """Raise what the worker has failed of."""
    raise UsageError(said.message) if said.usage else RunError(said.message or f"the worker said {said.event!r}")
