"""The processes of a run on its testbed: one on every server, and the client's worker; those of a benchmark."""

from __future__ import annotations

import os
import selectors
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NoReturn

import msgspec

from thalweg.emulation.supervisor.client import TestbedProcess
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.emulation.uml.files import inside_uml
from thalweg.experiments.runs.config import CLIENT
from thalweg.experiments.runs.job import Said
from thalweg.middleware.client.cluster import host_command, host_environment, wait_ready_lines
from thalweg.middleware.errors import HostAbsentError, HostLostError, RunError, UsageError
from thalweg.middleware.network.figures import HostFigures
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
        self._folder = stack.enter_context(SocketFolder()) if bed.backend == "loopback" else ""

    def listen(self, host: str) -> str:
        """Where a process on ``host`` listens."""
        if self._folder:  # loopback is other users' as well; a testbed with addresses of its own is alone there
            return f"ipc://{self._folder}/{list(self.bed.hosts).index(host)}"
        return f"tcp://{self.bed.hosts[host]}:{PORT}"

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
            if one := self.capacities.get(name):
                command.append(f"--capacity=speed={one.speed},cores={one.cores}")
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
        """Start the client's worker, ``python -m module``; what it says from its ``ready`` on.

        HostLostError as soon as a host process or the worker has ended.
        """
        self._job = self.start(CLIENT, WORKER, [self.bed.python, "-m", module])
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
        with (self.logs / f"{name}.err").open("wb") as errors:
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
            for name, stream in self._outputs.items():
                selector.register(stream, selectors.EVENT_READ, name)
            while True:
                for key, _ in selector.select():
                    piece = os.read(key.fd, 65536)
                    if not piece:
                        raise HostLostError(self._epitaph(key.data))
                    if key.data == WORKER:
                        *lines, buffer = (buffer + piece).split(b"\n")
                        yield from map(decoder.decode, lines)

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
