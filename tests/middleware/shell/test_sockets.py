"""A host's sockets under pressure: their number, hosts that are hung up on, and sends that are refused."""

from __future__ import annotations

import errno
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest
import zmq
from patience import patience
from run_ids import R, run_of

from thalweg.middleware.core.measuring.prober import BEFORE_RUNS
from thalweg.middleware.errors import ProtocolError, UsageError
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell import descriptors
from thalweg.middleware.shell import sockets as module
from thalweg.middleware.shell.bounds import ANSWER_BYTES, ANSWERS_UNREAD
from thalweg.middleware.shell.endpoints import read_networks
from thalweg.middleware.shell.sockets import HostConnections, Listening, Sockets

PING = m.Ping(R)
PROBE = m.Probe(R, 1, m.Peer("a", "tcp://127.0.0.1:1", "tcp://127.0.0.1:2"), echo=False)


def peer(number: int, name: str = "x") -> m.Peer:
    return m.Peer(f"{name}{number}", f"tcp://127.0.0.1:{2 * number + 1}", f"tcp://127.0.0.1:{2 * number + 2}")


@contextmanager
def opened(**limits: float) -> Iterator[Sockets]:
    settings = [f"{name}={value}" for name, value in limits.items()]
    sockets = Sockets("a", Listening("tcp://127.0.0.1:*", insecure=True), None, limits=CoreConfig().limited(settings))
    try:
        yield sockets
    finally:
        sockets.destroy(0)


def lines_of(sockets: Sockets, run: RunId) -> dict[str, HostConnections]:
    return sockets.lines.get(run, {})


def test_hosts_outside_runs_are_limited_and_the_least_recently_met_host_is_hung_up_on() -> None:
    with opened(max_passing=3) as sockets:
        for number in (1, 2, 3, 1, 4):
            sockets.meet(BEFORE_RUNS, [peer(number)])
            assert sockets.post(BEFORE_RUNS, f"x{number}", PING)
        assert list(lines_of(sockets, BEFORE_RUNS)) == ["x3", "x1", "x4"]
        assert {end for end, _ in sockets.dealers} == {
            end for n in (1, 3, 4) for end in (peer(n).control, peer(n).bulk)
        }


def test_hosts_outside_runs_and_then_idle_hosts_are_hung_up_on_beyond_max_sockets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with opened(max_sockets=6, idle_s=0) as sockets:
        sockets.meet(R, [peer(number) for number in range(9)])
        sockets.meet(BEFORE_RUNS, [peer(number, "y") for number in (11, 12, 13)])
        for number in (11, 12, 13):
            assert sockets.post(BEFORE_RUNS, f"y{number}", PING)
        for number in (1, 2, 3):
            assert sockets.post(R, f"x{number}", PING)
        assert all(line.control is None for line in lines_of(sockets, BEFORE_RUNS).values())
        with caplog.at_level(logging.WARNING):
            assert [sockets.post(R, "x4", PING) for _ in range(20)] == [False] * 20  # all are in use
        assert [record.message.partition(";")[0] for record in caplog.records] == [
            "max_sockets=6 are in use: no further host is dialled",
            "'x4' cannot be dialled: Too many open files",
        ]
        for line in lines_of(sockets, R).values():
            line.used = line.host == "x2"
        assert sockets.post(R, "x4", PING)  # in place of a connection that was not used lately
        dialled = {name for name, line in lines_of(sockets, R).items() if line.control is not None}
        assert dialled == {"x2", "x3", "x4"}
        assert sockets.post(R, "x1", PING)  # and the host is dialled again on demand
        assert len(sockets.dealers) == 6


def test_idle_lines_are_hung_up_and_dialled_again_on_demand() -> None:
    with opened(idle_s=10) as sockets:
        sockets.meet(R, [peer(1), peer(2)])
        for run in (R, run_of("s")):
            sockets.meet(run, [peer(2)])
        now = time.monotonic()
        assert sockets.post(R, "x1", PING)
        assert sockets.post(R, "x2", PING)
        sockets.hang_up_idle(now + 1)
        assert sockets.post(run_of("s"), "x2", PING)
        sockets.hang_up_idle(now + 10.5)
        assert len(sockets.dealers) == 4  # idle for 9.5 s
        sockets.hang_up_idle(now + 11.5)
        assert {end for end, _ in sockets.dealers} == {peer(2).control, peer(2).bulk}  # another run talks to it
        assert sockets.post(R, "x1", PING)
        assert len(sockets.dealers) == 4


@pytest.mark.parametrize("failing", ["socket", "connect"])
def test_a_send_is_refused_if_no_socket_can_be_opened_or_connected(
    failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise zmq.ZMQError(errno.EMFILE)

    with opened() as sockets:
        sockets.meet(R, [peer(1)])
        line = sockets.line(R, "x1")
        assert line is not None
        sockets.hold(line, (7, 1, 0.0, time.monotonic()))
        with monkeypatch.context() as patched:
            patched.setattr(zmq.Context if failing == "socket" else zmq.Socket, failing, refuse)
            assert not sockets.post(R, "x1", PING)
            assert not sockets.send_chunk(line, m.Chunk(1, 1, 0, m.Partition(R, "p", "c", 0)), memoryview(b"1"))
            assert not sockets.post_held(line)
        assert (sockets.dealers, sockets.holding) == ({}, {line})
        assert sockets.post(R, "x1", PING)
        assert sockets.holding == set()


def test_credits_that_were_piggybacked_on_a_refused_message_go_on_waiting() -> None:
    with opened() as sockets:
        sockets.meet(R, [peer(1)])
        line = sockets.line(R, "x1")
        assert line is not None
        assert sum(sockets.post(R, "x1", PING) for _ in range(1001)) == 1000  # nobody listens, so the line is full
        for transfer in range(3):
            sockets.hold(line, (transfer, 1, 0.0, time.monotonic()))
        assert not sockets.post(R, "x1", PING)
        assert not sockets.post_held(line)
        assert [credit[0] for credit in line.credits] == [0, 1, 2]
        assert sockets.holding == {line}


def test_few_descriptors_mean_few_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with opened() as sockets:
        open_already = len(os.listdir("/proc/self/fd"))  # what other tests of this process hold takes none of its room
        monkeypatch.setattr(descriptors, "OWN", descriptors.OWN + open_already)
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors.OWN + 40, hard))
        try:
            for number in range(20):
                sockets.meet(BEFORE_RUNS, [peer(number)])
                assert sockets.post(BEFORE_RUNS, f"x{number}", PING)
            assert len(sockets.dealers) == 10
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_message_of_too_many_frames_is_dropped_in_turns_of_bounded_length(
    dial: Callable[..., zmq.Socket[bytes]],
) -> None:
    frame = frames.encode(PING)
    with opened() as sockets:
        flood = dial(sockets.me.control)
        flood.send_multipart([b""] * (5 * module.SKIPPED_FRAMES))
        flood.send(frame)
        said = []
        turns = 0
        while not said or said[-1] != frame:
            assert sockets.control.poll(round(patience(5) * 1000))
            turns += 1
            try:
                taken = sockets.take(sockets.control, 1)
            except ProtocolError as error:
                said.append(str(error))
            else:
                said += [] if taken is None else [taken[2][0].bytes]
        assert said == ["a message has more frames than the 1 that are expected", frame]
        assert turns == 6


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_message_with_a_wrong_number_of_frames_is_refused(dial: Callable[..., zmq.Socket[bytes]], parts: int) -> None:
    with opened() as sockets:
        dial(sockets.me.bulk).send_multipart([b"x"] * parts)
        assert sockets.bulk.poll(round(patience(5) * 1000))
        wrong = pytest.raises(ProtocolError, match=f"a message has {'1' if parts == 1 else 'more'} frames")
        with nullcontext() if parts == 2 else wrong:
            taken = sockets.take(sockets.bulk, 2)
            assert taken is not None and len(taken[2]) == 2


def test_answers_on_dialled_connections_are_bounded_in_size_and_number() -> None:
    """Other hosts choose which hosts this one dials before a run."""
    with opened() as sockets:
        sockets.meet(R, [peer(1)])
        assert sockets.post(R, "x1", PING)
        bounds = {(each.getsockopt(zmq.MAXMSGSIZE), each.getsockopt(zmq.RCVHWM)) for each in sockets.dealers.values()}
        assert bounds == {(ANSWER_BYTES, ANSWERS_UNREAD)}


def test_messages_that_wait_on_a_redialled_connection_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that matter are sent again, and would come twice."""
    closed = list[tuple[zmq.Socket[bytes], int | None]]()
    with opened() as sockets:
        sockets.meet(R, [peer(1)])
        assert sockets.post(R, "x1", PING)
        end = peer(1).control, "x1"
        dealer = sockets.dealers[end]
        with monkeypatch.context() as patched:
            patched.setattr(sockets, "_let_go", lambda *how: closed.append(how))
            sockets.redial(end)
        dealer.close(0)
        assert closed == [(dealer, 0)]
        assert sockets.post(R, "x1", PING)
        assert sockets.dealers[end] is not dealer


def test_an_answer_goes_back_on_an_asking_connection_only_to_the_addressed_host(
    dial: Callable[..., zmq.Socket[bytes]],
) -> None:
    """Without a line to its host, an answer goes back on the asking connection, if that is a connection of the host."""
    with opened() as sockets:
        asker = dial(sockets.me.control, b"bob/1")
        asker.send(frames.encode(PING))
        assert sockets.control.poll(round(patience(5) * 1000))
        taken = sockets.take(sockets.control, 1)
        assert taken is not None
        sender, identity, _ = taken
        assert sender == "bob"
        assert not sockets.post(R, "alice", m.Pong(run_of("of alice")), identity)
        assert not sockets.post(R, "bob", m.Pong(run_of("of nobody")))
        assert sockets.post(R, "bob", m.Pong(run_of("of bob")), identity)
        assert frames.decode_control(asker.recv()) == m.Pong(run_of("of bob"))


def test_bulk_goes_over_the_requested_network() -> None:
    ends = {"fast": "tcp://127.0.0.2:*"}
    here, there = (
        Sockets(name, Listening("tcp://127.0.0.1:*", networks=ends, insecure=True), None) for name in ("a", "b")
    )
    try:
        assert there.me.ends["fast"].startswith("tcp://127.0.0.2:") and there.me.ends["net"].startswith(
            "tcp://127.0.0.1"
        )
        assert frames.decode_control(frames.encode(m.AddMember(R, 1, there.me))) == m.AddMember(R, 1, there.me)
        here.meet(R, [there.me])
        assert here.line(R, "b", "slow") is None
        for number, (via, router) in enumerate((("fast", there.others["fast"]), ("net", there.bulk))):
            line = here.line(R, "b", via)
            assert line is not None and here.send_chunk(line, m.Chunk(number, 1, 0, PROBE), memoryview(b"x"))
            assert router.poll(round(patience(2) * 1000)), via
            taken = there.take(router, 2)
            assert taken is not None and frames.decode_chunk(taken[2][0].bytes).transfer == number
        here.hang_up_idle(time.monotonic() + 1000)
        assert len(here.dealers) == 3  # what was used is kept, with the lines over other networks
        here.hang_up_idle(time.monotonic() + 2000)
        assert not here.dealers and line.bulk is None
    finally:
        here.destroy(0)
        there.destroy(0)


@pytest.mark.parametrize(
    ("setting", "said"),
    [("fast", "NAME=ENDPOINT"), ("net=tcp://127.0.0.2:*", "all share"), ("a b=tcp://127.0.0.2:*", "no name"),
     ("fast=tcp://0.0.0.0:*", "no address"), ("fast=udp://127.0.0.2:*", "form"), ("fast=tcp://127.0.0.2", "form")],
)  # fmt: skip
def test_an_invalid_network_of_a_host_is_refused(setting: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_networks([setting])
