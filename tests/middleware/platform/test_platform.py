"""Facts about the machine, and the line that refuses parts that need Linux."""

from __future__ import annotations

import os
import sys

import pytest

from thalweg.middleware import platform
from thalweg.middleware.errors import CapabilityError


@pytest.mark.parametrize(("system", "name"), [("darwin", "macOS"), ("win32", "Windows"), ("freebsd14", "freebsd14")])
def test_a_part_that_needs_linux_is_refused_on_other_systems(
    system: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform.check_linux("namespaces need")
    monkeypatch.setattr(sys, "platform", system)
    assert not platform.on_linux()
    with pytest.raises(CapabilityError) as refused:
        platform.check_linux("namespaces need")
    said = f"namespaces need Linux, and this is {name}; simulate with --testbed sim, or use a Linux machine"
    assert str(refused.value) == said
    with pytest.raises(CapabilityError, match=f"netem needs Linux, and this is {name}; do without"):
        platform.check_linux("netem needs", "do without")


def test_facts_about_the_machine_are_alike_on_every_system(monkeypatch: pytest.MonkeyPatch) -> None:
    assert platform.usable_processors() == len(os.sched_getaffinity(0))
    memory = platform.memory_bytes()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert platform.usable_processors() == os.cpu_count()
    assert platform.memory_bytes() == pytest.approx(memory, rel=0.01)
    load = platform.load_average()
    monkeypatch.delattr(os, "getloadavg")
    assert platform.load_average() >= 0.0
    assert load >= 0.0
