"""Devices and firewall rules of a testbed of containers on the machine, besides the engine's own.

An ifb device limits everything that a host sends. A rule accepts frames that stay within a network of the testbed.
Without the rule the engine drops multicast and broadcast on an internal network, because these addresses are outside
its subnet. That happens only if the kernel passes bridged frames to iptables. The rules are in the chain that the
engine leaves to its users. Names of devices and comments of rules begin with the testbed's mark, and are removed with
the testbed.

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
    """Accept every frame that stays within a bridge. Without iptables, or the engine's chain, nothing happens."""
    for bridge in bridges:
        rule = ("-i", bridge, "-o", bridge, "-m", "comment", "--comment", mark(run_id), "-j", "ACCEPT")
        _iptables("-I", CHAIN, *rule)


def remove(run_id: str) -> None:
    """Remove a testbed's devices and rules from this machine. Idempotent. Without permission, they stay."""
    with suppress(OSError), closing(NetlinkSocket()) as asking:
        for index, interface in interfaces.present().items():
            if interface.kind == "ifb" and interface.name.startswith(f"{mark(run_id)}."):
                with suppress(OSError):  # the device has already been removed
                    asking.request([interfaces.remove(index)])
    for line in _iptables("-S", CHAIN).splitlines():
        words = [word.strip('"') for word in line.split()]
        if words[:1] == ["-A"] and mark(run_id) in words:
            _iptables("-D", *words[1:])


def _iptables(*words: str) -> str:
    """Return the output of iptables. The output is empty if iptables is missing or fails."""
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
