"""Devices and firewall rules that a testbed of containers makes on the machine, besides the engine's own.

An ifb device limits all that a host sends. A rule lets frames pass that stay within a network of the testbed. Without
the rule the engine drops multicast and broadcast on an internal network, as their addresses are outside its subnet.
That happens only where the kernel passes bridged frames to iptables. The rules stand in the chain that the engine
leaves to its users. Names of devices and comments of rules begin with the testbed's mark, and both go with it.

Source: iptables(8); docs.docker.com, "Packet filtering and firewalls", DOCKER-USER.
"""

from __future__ import annotations

import subprocess
import zlib
from collections.abc import Iterable
from contextlib import closing, suppress

from thalweg.emulation.kernel import interfaces
from thalweg.emulation.kernel.netlink import NetlinkSocket
from thalweg.middleware.platform.python import find_program

SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")
CHAIN = "DOCKER-USER"
LIMIT_S = 10.0


def mark(run_id: str) -> str:
    """Return the mark of a testbed: the prefix of its devices' names, and the comment of its rules."""
    return f"tw{zlib.crc32(run_id.encode()):08x}"


def let_pass(run_id: str, bridges: Iterable[str]) -> None:
    """Accept all frames that stay within these bridges. Without iptables, or the engine's chain, nothing happens."""
    for bridge in bridges:
        rule = ("-i", bridge, "-o", bridge, "-m", "comment", "--comment", mark(run_id), "-j", "ACCEPT")
        _iptables("-I", CHAIN, *rule)


def remove(run_id: str) -> None:
    """Remove a testbed's devices and rules from this machine. Idempotent. Without permission, they stay."""
    with suppress(OSError), closing(NetlinkSocket()) as asking:
        for index, one in interfaces.present().items():
            if one.kind == "ifb" and one.name.startswith(f"{mark(run_id)}."):
                with suppress(OSError):  # it has gone meanwhile
                    asking.request([interfaces.remove(index)])
    for line in _iptables("-S", CHAIN).splitlines():
        words = [word.strip('"') for word in line.split()]
        if words[:1] == ["-A"] and mark(run_id) in words:
            _iptables("-D", *words[1:])


def _iptables(*words: str) -> str:
    """Return the output of iptables. It is empty if there is no iptables, or if iptables fails."""
    program = find_program("iptables", *SYSTEM_FOLDERS)
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "-w", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
