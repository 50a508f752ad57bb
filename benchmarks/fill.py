"""Filler of links with bulk: a process on every host sends one flow of TCP to every other host.

Run on a host as ``python -P -m benchmarks.fill OWN OTHER…`` (addresses). The process prints a line when the server
listens, and begins to send when it reads a line. It prints a second line when every incoming flow has brought data.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from thalweg.emulation.supervisor.client import TestbedProcess
from thalweg.emulation.testbeds.testbed import Testbed
from thalweg.middleware.errors import RunError
from thalweg.middleware.platform.python import module_command

MODULE = "benchmarks.fill"
PORT = 47_809  # any free port: the namespaces are our own
PIECE_BYTES = 1 << 16


def fill(bed: Testbed, hosts: Sequence[str]) -> None:
    """Fill every link between the hosts until the testbed is taken down. Return when every link is in use."""
    filling = {}
    for host in hosts:
        targets = [bed.hosts[other] for other in hosts if other != host]
        argv = module_command(MODULE, bed.hosts[host], *targets, python=bed.python)
        filling[host] = bed.run(host, argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    for host, process in filling.items():
        _heard(host, process)
    for process in filling.values():
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    for host, process in filling.items():
        _heard(host, process)


def _heard(host: str, process: TestbedProcess) -> None:
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RunError(f"host {host!r} could not fill its links; run the benchmark again")


def _send(target: str) -> None:
    with suppress(ConnectionError), socket.socket() as flow:  # the target may end first
        with suppress(OSError):  # cubic fills a queue; BBR, which some systems use by default, keeps it short
            flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        flow.connect((target, PORT))
        while True:
            flow.sendall(bytes(PIECE_BYTES))


def _receive(flow: socket.socket, begun: threading.Semaphore) -> None:
    with suppress(ConnectionError):
        flow.recv(PIECE_BYTES)
        begun.release()
        while flow.recv(PIECE_BYTES):
            pass


def main(own: str, *others: str) -> None:
    begun = threading.Semaphore(0)
    with socket.create_server((own, PORT), backlog=len(others)) as server:
        print(flush=True)
        sys.stdin.readline()
        for other in others:
            threading.Thread(target=_send, args=(other,), daemon=True).start()
        for _ in others:
            threading.Thread(target=_receive, args=(server.accept()[0], begun), daemon=True).start()
    for _ in others:
        begun.acquire()
    print(flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
