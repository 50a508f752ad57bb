"""A netns testbed in a User-Mode Linux kernel of its own, for a program: both end with the program.

Run inside the kernel, as ``python -P -m thalweg.emulation.uml.testbed``, it leaves the supervisor there. The testbed
then builds it and asks it from outside.
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
INSIDE = "inside"  # what the supervisor is called there, where it is the only one


class UmlTestbed(NetnsTestbed):
    """As ``NetnsTestbed``, on a kernel that has netem."""

    def _supervisor(self, listener: socket.socket | None) -> StartedSupervisor:
        """Raises CapabilityError when there is no kernel to boot, TestbedError when it does not come up."""
        find_kernel()
        find_memory()
        ours, theirs = socket.socketpair()
        log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the keeper)

        def lost() -> str:
            log.seek(0)
            return (log.read().decode(errors="replace").strip().splitlines() or [""])[-1].removeprefix("thalweg: ")

        with theirs:
            words = keeper_words("hold", theirs, module_command(MODULE))
            keeper = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip
        up = False
        try:
            up = ours.recv(1) == UP
        finally:
            if not up:  # or interrupted
                ours.close()
                keeper.wait()
        if not up:
            why = lost() or "it did not come up"
            log.close()
            raise TestbedError(f"no testbed in a User-Mode Linux kernel: {why}")
        return StartedSupervisor(keeper, SupervisorClient(ours, lost), log, "uml")


def leave_supervisor() -> None:
    """Inside the kernel: start a supervisor that stays, and print its socket's name."""
    with listen(INSIDE) as listener:
        started = start_isolated(INSIDE, listener)
        started.client.call(requests.Detach(str(logs(INSIDE))))
        started.leave()
    print(files(INSIDE)[1].name, end="")


if __name__ == "__main__":
    leave_supervisor()
