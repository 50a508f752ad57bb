"""Netns testbed in a User-Mode Linux kernel of its own, for a program. Testbed and kernel end with the program.

Inside the kernel, ``python -P -m thalweg.emulation.uml.testbed`` starts the supervisor and leaves it running. The
testbed then builds its hosts by requests from outside.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile

from thalweg.emulation.supervisor import requests
from thalweg.emulation.supervisor.client import StartedSupervisor, SupervisorClient, start_isolated
from thalweg.emulation.testbeds.detached import listen
from thalweg.emulation.testbeds.known import files, logs
from thalweg.emulation.testbeds.netns import NetnsTestbed
from thalweg.emulation.uml.files import find_kernel, find_memory
from thalweg.emulation.uml.keeper import UP, keeper_words
from thalweg.middleware.errors import TestbedError
from thalweg.middleware.platform.python import module_command

MODULE = "thalweg.emulation.uml.testbed"
INSIDE = "inside"  # name of the supervisor in the kernel, where it is alone


class UmlTestbed(NetnsTestbed):
    """``NetnsTestbed`` on a separate kernel with netem."""

    def _supervisor(self, listener: socket.socket | None) -> StartedSupervisor:
        """Boot a kernel and return its supervisor.

        Raises CapabilityError if there is no kernel to boot, TestbedError if the kernel does not start.
        """
        find_kernel()
        find_memory()
        program_end, keeper_end = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the keeper)

        def lost() -> str:
            log.seek(0)
            return (log.read().decode(errors="replace").strip().splitlines() or [""])[-1].removeprefix("thalweg: ")

        with keeper_end:
            words = keeper_words("hold", keeper_end, module_command(MODULE))
            keeper = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[keeper_end.fileno()],
                start_new_session=True,
            )  # fmt: skip
        up = False
        try:
            up = program_end.recv(1) == UP
        finally:
            if not up:  # also after an interrupt
                program_end.close()
                keeper.wait()
        if not up:
            why = lost() or "it did not come up"
            log.close()
            raise TestbedError(f"no testbed in a User-Mode Linux kernel: {why}")
        return StartedSupervisor(keeper, SupervisorClient(program_end, lost), log, "uml")


def leave_supervisor() -> None:
    """Start a supervisor that stays, and print its socket's name. Called inside the kernel."""
    with listen(INSIDE) as listener:
        started = start_isolated(INSIDE, listener)
        started.client.call(requests.Detach(str(logs(INSIDE))))
        started.leave()
    print(files(INSIDE)[1].name, end="")


if __name__ == "__main__":
    leave_supervisor()
