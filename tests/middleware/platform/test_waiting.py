"""Waiting on any system: epoll, its substitute, and the bell that ends a wait."""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Iterator

import pytest

from thalweg.middleware.platform import waiting


@pytest.fixture(params=["epoll", "selectors"])
def poller(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[waiting.Poller]:
    if request.param == "selectors":
        monkeypatch.delattr(select, "epoll")
    poller = waiting.new_poller()
    assert isinstance(poller, waiting._Selected) is (request.param == "selectors")
    yield poller
    poller.close()


@pytest.fixture(params=["linux", "win32"])
def bell(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[waiting.Bell]:
    """Yield a bell over a pipe, or a bell over sockets."""
    monkeypatch.setattr(sys, "platform", request.param)
    bell = waiting.Bell()
    yield bell
    bell.close()


def test_the_bell_wakes_a_poller_until_the_bell_is_hushed(poller: waiting.Poller, bell: waiting.Bell) -> None:
    poller.register(bell.descriptor, waiting.READABLE)
    assert poller.poll(0.0) == []
    ringer = threading.Thread(target=bell.ring)
    ringer.start()
    assert poller.poll(20.0) == [(bell.descriptor, waiting.READABLE)]
    ringer.join()
    bell.ring()
    bell.hush()
    assert poller.poll(0.0) == []
    with pytest.raises(BlockingIOError):
        bell.hush()


def test_ringing_an_unhushed_bell_raises_an_error_instead_of_waiting(bell: waiting.Bell) -> None:
    def ring(times: int) -> None:
        for _ in range(times):
            bell.ring()

    with pytest.raises(BlockingIOError):
        ring(1_000_000)


def test_a_closed_bell_keeps_no_descriptor(bell: waiting.Bell) -> None:
    before = len(os.listdir("/proc/self/fd"))
    other = waiting.Bell()
    assert len(os.listdir("/proc/self/fd")) == before + 2
    other.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_reading_from_a_signal_pipe_waits_and_writing_does_not() -> None:
    wake, woken = waiting.signal_pipe()
    assert (os.get_blocking(wake), os.get_blocking(woken)) == (True, False)
    os.write(woken, b"x")
    assert os.read(wake, 512) == b"x"
    for end in (wake, woken):
        os.close(end)


def test_a_system_without_unix_sockets_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting.unix_socket().close()
    monkeypatch.setattr(waiting, "UNIX_SOCKETS", False)
    with pytest.raises(OSError, match="this system has no Unix sockets"):
        waiting.unix_socket()
