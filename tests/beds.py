"""Helpers for testbeds of namespaces: commands in the namespace of the links, and testbeds of ordinary users."""

from __future__ import annotations

import subprocess
from functools import cache

import pytest

from thalweg.emulation.supervisor.client import start_isolated
from thalweg.emulation.testbeds import netns
from thalweg.emulation.testbeds.netns import NetnsTestbed
from thalweg.middleware.errors import CapabilityError


def at_the_bridge(bed: NetnsTestbed, *words: str) -> str:
    """Run a command in the supervisor's namespace, which shapes the links and has no host. Return the output."""
    assert bed.supervisor is not None
    inside = ["nsenter", "--net", "--target", str(bed.supervisor.process.pid)]
    if bed.supervisor.mode.startswith("user"):
        inside += ["--user", "--preserve-credentials"]
    return subprocess.run([*inside, *words], capture_output=True, text=True, check=True).stdout


@cache
def _without_own_folders() -> str:
    try:
        with NetnsTestbed(["a"], private=["run"]):
            return ""
    except CapabilityError as error:
        return str(error)


def need_own_folders() -> None:
    """Skip the test where hosts cannot have folders of their own, as in a chroot."""
    if why := _without_own_folders():
        pytest.skip(why)


def use_user_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have testbeds of namespaces made without the rights of root. Skip the test where that is not possible."""
    try:
        start_isolated("probe", as_user=True).close()
    except CapabilityError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(netns, "start_isolated", lambda run, listener=None: start_isolated(run, listener, as_user=True))
