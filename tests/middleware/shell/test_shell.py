"""Real sockets on loopback: messages that a host accepts, refuses and survives; host processes and their end."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from flows import chain
from patience import patience
from run_ids import R, fired, run_of
from runtime_codes import ALLOW

from thalweg import Failover
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster, host_command, own_environment
from thalweg.middleware.client.membership.hello import identify_hosts
from thalweg.middleware.core.hosting.undecoded import MOST_IN_A_ROW
from thalweg.middleware.core.measuring.prober import BEFORE_RUNS
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.errors import HostLostError, RunError, UsageError
from thalweg.middleware.grants import ALL
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.middleware.logbook import QUIET_S
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.bulk import Bulk
from thalweg.middleware.shell.rejections import ROWS
from thalweg.middleware.shell.shell import Shell, ShellConfig
from thalweg.middleware.shell.sockets import Listening, Sockets

BLOCKS = chain(Code("runtime_codes:Blocks", {"site": 0, "sizes": [1000]}), Code("runtime_codes:Mix"))
SCENES = Code("scenes", {"site": 0, "sites": 1, "seed": 1})
PART = m.Partition(run_of("no-such-run"), "p", "c", 0)
PEER = m.Peer("x", "tcp://127.0.0.1:1", "tcp://127.0.0.1:2")


@contextmanager
def running(config: ShellConfig) -> Iterator[Shell]:
    shell = Shell(config)
    try:
        yield shell
        assert shell.alive
    finally:
        shell.close()
    assert not shell.alive


CONTROL_GARBAGE = [
    [b""],
    [b"garbage"],
    [b"GET / HTTP/1.1\r\n\r\n"],
    [frames.encode(m.Ping(R), frames.PROTOCOL_VERSION + 1)],
    [frames.MAGIC + bytes([frames.PROTOCOL_VERSION]) + b"\xff" * 100],
    [frames.encode(m.Hello())] * 2,
    [frames.encode_piggybacking(m.Hello(), [m.Credit(1, 1, True)] * (frames.MAX_PIGGYBACKED + 1))],
    [b"x" * 100_000],
    [frames.encode(m.Chunk(1, 1, 0, PART)), b"x"],
    [frames.encode(m.ProbeRequest(R, (m.Peer("y", "nowhere", "tcp://*:*"),), PEER))],
    [frames.encode(PART)],
]
BULK_GARBAGE = [
    [b""],
    [b"garbage", b"more"],
    [frames.encode(m.Hello())],
    [frames.encode(m.Hello()), b""],
    [frames.encode(m.Chunk(1, 4, 0, PART, "O", (1,))), b"1234"],
    [frames.encode(m.Chunk(1, 4, 0, PART, "<f4,(", (1,))), b"1234"],
    [frames.encode(m.Chunk(1, 4, 0, PART, "<f4", (9,))), b"1234"],
    [frames.encode(m.Chunk(1, m.MAX_PARTITION_BYTES, 0, PART)), b"1234"],
    [frames.encode(m.Chunk(1, 2 * m.PROBE_BYTES, 0, m.Probe(R, 1, PEER, False))), b"1234"],
    [frames.encode(m.Chunk(1, 1, 0, PART)), b"1", b"2"],
]


def test_garbage_on_both_ports_is_counted_and_the_run_goes_on(
    client: Client, dial: Callable[..., zmq.Socket[bytes]]
) -> None:
    run = client.run(BLOCKS, {"o": "client"})
    assert next(run).index == 0
    control, bulk = dial(client.shell.me.control), dial(client.shell.me.bulk)
    for garbage in CONTROL_GARBAGE:
        control.send_multipart(garbage)
    for garbage in BULK_GARBAGE:
        bulk.send_multipart(garbage)
    nameless = dial(client.shell.me.control, b"nameless")
    nameless.send(frames.encode(m.Hello()))
    sent = len(CONTROL_GARBAGE) + len(BULK_GARBAGE) + 1
    index = 0
    while client.shell.frames_rejected < sent:
        delivered = next(run)
        index += 1
        assert delivered.index == index
        assert index < 3_000, client.shell.frames_rejected
    assert client.shell.frames_rejected == sent
    control.send(frames.encode(m.Hello()))
    assert frames.decode_control(control.recv()).host == "client"  # type: ignore[union-attr]
    for expected in range(index + 1, index + 5):
        assert next(run).index == expected
    run.close()


def test_objects_that_every_message_passes_have_at_most_29_attributes(
    client: Client,
) -> None:
    shell = client.shell
    with client.run(BLOCKS, {"o": "client"}) as taken:
        assert next(taken).index == 0
        run = next(iter(shell.core.runs.values()))
        hot = (
            shell,
            shell._sockets,
            shell._bulk,
            shell._workers,
            shell.core,
            shell.core.links.monitor,
            run,
            run.directory,
        )
        assert {type(each).__name__: len(vars(each)) for each in hot if len(vars(each)) > 29} == {}


def test_an_oversized_message_costs_its_connection_and_does_not_disturb_a_run(
    client: Client, dial: Callable[..., zmq.Socket[bytes]]
) -> None:
    rude = dial(client.shell.me.control)
    with rude.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
        rude.send(bytes(frames.MAX_CONTROL_BYTES + 10_000))
        run = client.run(BLOCKS, {"o": "client"}, partitions=20)
        assert len(list(run)) == 20
        assert monitor.poll(round(patience(10) * 1000)), "the connection is still there"
        rude.disable_monitor()


def test_unexpected_messages_change_nothing(client: Client, dial: Callable[..., zmq.Socket[bytes]]) -> None:
    run = client.run(BLOCKS, {"o": "client"})
    next(run)
    control, bulk = dial(client.shell.me.control), dial(client.shell.me.bulk)
    for message in (
        m.Welcome("x", "tcp://x:1", "tcp://x:2"),
        m.Pong(RunId(run.id), False),
        m.Installed(RunId(run.id), "x", "an error of a stranger"),
        m.Remove(RunId(run.id)),
        m.Removed(RunId(run.id), "x"),
        m.Demand(RunId(run.id), "o", "t", 99),
        m.Demand(RunId(run.id), "ghost", "t", 0),
        m.Located(RunId(run.id), (m.Location("ghost", "x", 9),)),
        m.ProbeResult(run_of("q"), m.Estimate("a", "b", 1, 0, 1, 0)),
        m.Credit(12345, 10, True),
        m.Partition(RunId(run.id), "o", "t", 99, True),
    ):
        control.send(frames.encode(message))
    bulk.send_multipart([frames.encode(m.Chunk(1, 1, 0, m.Partition(RunId(run.id), "o", "t", 77))), b"x"])
    bulk.send_multipart([frames.encode(m.Chunk(2, 9, 4, m.Partition(RunId(run.id), "o", "t", 1))), b"x"])
    control.send(frames.encode(m.Hello()))
    while not isinstance(frames.decode_control(control.recv()), m.Welcome):  # all before it has been handled
        continue
    assert [next(run).index for _ in range(10)] == list(range(1, 11))
    assert client.shell.frames_rejected == 0
    run.close()


def test_a_process_with_the_name_of_the_client_cannot_end_a_run(
    client: Client, dial: Callable[..., zmq.Socket[bytes]]
) -> None:
    """The client took such a message for its own, so the run was closed, and the application waited for ever."""
    run = client.run(BLOCKS, {"o": "client"})
    next(run)
    forged = dial(client.shell.me.control, b"client/1")
    run_id = RunId(run.id)
    forged.send(frames.encode(m.Remove(run_id)))
    forged.send(frames.encode(m.Lost(run_id, "h1", ())))
    stranger = dial(client.shell.me.control)
    for _ in range(1000):  # the two connections are read in turns
        if client.shell.frames_rejected == 2:
            break
        stranger.send(frames.encode(m.Hello()))
        assert isinstance(frames.decode_control(stranger.recv()), m.Welcome)
    assert client.shell.frames_rejected == 2
    assert [next(run).index for _ in range(10)] == list(range(1, 11))
    run.close()


def test_an_unrequested_partition_gets_no_memory(client: Client, dial: Callable[..., zmq.Socket[bytes]]) -> None:
    """The first of many chunks is answered with the end of the transfer at once."""
    run = client.run(BLOCKS, {"o": "client"})
    next(run)
    control, bulk = dial(client.shell.me.control), dial(client.shell.me.bulk)
    control.send(frames.encode(m.Ping(None)))  # makes the connection for answers known
    assert control.recv() == frames.encode(m.Pong(None))
    bulk.send_multipart([frames.encode(m.Chunk(5, 10**8, 0, m.Partition(RunId(run.id), "s", "o", 10**6))), b"x"])
    credit = frames.decode_control(control.recv())
    assert isinstance(credit, m.Credit)
    assert (credit.transfer, credit.received_bytes, credit.done) == (5, 0, True)
    assert client.shell._bulk._incoming == {}
    run.close()


def test_a_message_that_comes_while_a_host_answers_on_the_same_router_is_handled(
    monkeypatch: pytest.MonkeyPatch, dial: Callable[..., zmq.Socket[bytes]]
) -> None:
    """The answer goes through libzmq, which clears the sign that a message has come."""
    came, goes_on, take = threading.Event(), threading.Event(), Bulk.came

    def slowly(*arguments: Any) -> None:
        came.set()
        assert goes_on.wait(patience(5))
        goes_on.clear()
        take(*arguments)  # which answers

    monkeypatch.setattr(Bulk, "came", slowly)
    with running(ShellConfig("h1", insecure=True)) as host:
        asker, bulk = dial(host.me.control), dial(host.me.bulk)
        asker.setsockopt(zmq.RCVTIMEO, round(patience(3) * 1000))
        for _ in range(20):
            bulk.send_multipart([frames.encode(m.Chunk(5, 10, 0, m.Partition(R, "s", "o", 1))), b"x"])
            assert came.wait(patience(5))
            came.clear()
            asker.send(frames.encode(m.Hello()))
            assert select.select([host._sockets.control.get(zmq.FD)], [], [], 5)[0]
            goes_on.set()
            answers = [frames.decode_control(asker.recv()) for _ in range(2)]  # within less than HOUSEKEEPING_S
            assert {type(answer) for answer in answers} == {m.Credit, m.Welcome}


def test_unfinished_transfers_are_bounded_and_only_of_hosts_of_the_run(
    dial: Callable[..., zmq.Socket[bytes]], make_install: Callable[..., m.Install]
) -> None:
    """``o`` is on h2, so its inputs that arrive here are forwarded. h2 has a part in the run, ``x`` has none."""
    with running(ShellConfig("h1", insecure=True, core=CoreConfig(max_transfers=3))) as host:
        asker, bulks = dial(host.me.control, b"client/1"), {}
        asker.send(frames.encode(make_install()))
        asker.send(frames.encode(m.Hello()))
        assert isinstance(frames.decode_control(asker.recv()), m.Welcome)  # the run is known here
        sends = [("x", 0), ("h2", 0), ("h2", 0), *(("h2", index) for index in range(1, 200)), ("client", 0)]
        for number, (name, index) in enumerate(sends):
            chunk = m.Chunk(number, 10**8, 0, m.Partition(R, "s", "o", index))
            bulk = bulks.get(name) or bulks.setdefault(name, dial(host.me.bulk, f"{name}/1".encode()))
            bulk.send_multipart([frames.encode(chunk), b"x"])
        for bulk in bulks.values():
            bulk.send(b"garbage")
        until_s = time.monotonic() + patience(10)
        while host.frames_rejected < len(bulks):  # all before it has been handled
            assert time.monotonic() < until_s
        held = {key: each.what for key, each in host._bulk._incoming.items()}
        assert 1 <= len(held) <= 3
        assert len(set(held.values())) == len(held)
        assert "x" not in {what[0] for what in held.values()}


def test_many_rejected_frames_leave_few_rows_in_the_records(
    tmp_path: Path, dial: Callable[..., zmq.Socket[bytes]]
) -> None:
    records = tmp_path / "log"
    with running(ShellConfig("h1", insecure=True, records=str(records))) as host:
        host._recorder.open_run(R, "", 0.0)
        rude = dial(host.me.control)
        for _ in range(500):
            rude.send(b"garbage")
        until_s = time.monotonic() + patience(10)
        while host.frames_rejected < 500:
            assert time.monotonic() < until_s
        host._housekeeping_s = host._due_s = 0.0
        host.queue_event(fired("retry"))
        while host._rejections.before < 500:
            assert time.monotonic() < until_s
    rows = [msgspec.json.decode(line) for line in records.read_bytes().splitlines()]
    said = [row["detail"]["reason"] for row in rows if row["kind"] == "rejected"]
    assert said == ["a frame of 7 bytes is not Thalweg's"] * ROWS + [f"{500 - ROWS} more"]


def test_a_message_that_does_not_decode_is_logged_with_type_and_sender_once_a_second(
    tmp_path: Path, dial: Callable[..., zmq.Socket[bytes]], caplog: pytest.LogCaptureFixture
) -> None:
    records = tmp_path / "log"
    bad = frames.encode(m.Demand(run_of("r7"), "p", "c", 1, 65))
    with running(ShellConfig("h1", insecure=True, records=str(records))) as host, caplog.at_level("WARNING", "thalweg"):
        host._recorder.open_run(run_of("r7"), "", 0.0)
        rude = dial(host.me.control, b"h9/1")
        begun_s = time.monotonic()
        for _ in range(200):
            rude.send(bad)
        until_s = time.monotonic() + patience(10)
        while host.frames_rejected < 200:
            assert time.monotonic() < until_s
        lines = [line for line in caplog.records if vars(line).get("event") == "message-refused"]
        assert 1 <= len(lines) <= 1 + (time.monotonic() - begun_s) / QUIET_S
    first = vars(lines[0])
    assert lines[0].getMessage() == (
        "a message of type Demand of run r7 from 'h9' was dropped: a control frame does not decode:"
        " Expected `int` <= 64 - at `$[5]`"
    )
    assert (first["host"], first["peer"], first["run"]) == ("h1", "h9", "r7")
    rows = [msgspec.json.decode(line) for line in records.read_bytes().splitlines()]
    row = next(row for row in rows if row["kind"] == "rejected")
    assert (row["peer"], row["detail"]["message"], row["detail"]["run"]) == ("h9", "Demand", "r7")


@pytest.mark.parametrize("lasting", [True, False])
def test_a_host_that_sends_garbage_is_excluded_only_from_the_run_of_the_garbage(
    dial: Callable[..., zmq.Socket[bytes]], lasting: bool
) -> None:
    """A connection under the name of h2 sends the garbage, while h2 itself sends valid messages."""
    with LocalCluster(3, allow=ALLOW, transport="tcp") as cluster, Client(cluster, allow=ALLOW) as client:
        run = client.run(BLOCKS, {"o": "h2"}, failover=Failover() if lasting else None)
        other = client.run(BLOCKS, {"o": "h2"})
        came = [next(run).index, next(other).index]
        garbled = dial(client.shell.me.control, b"h2/1")
        bad = frames.encode(m.Relocated(RunId(run.id), "", True, m.Location("o", "h2", 1)))
        for _ in range(MOST_IN_A_ROW):  # other messages of h2 itself come in between
            garbled.send(bad)
        until_s = time.monotonic() + patience(10)
        if lasting:
            while run.placement["o"] == "h2":
                came.append(next(run).index)
                assert time.monotonic() < until_s, f"it goes on as it was: {len(came)} partitions came"
            assert came[2:] == list(range(1, len(came) - 1))
            assert next(run).index == len(came) - 1
        else:
            with pytest.raises(RunError, match="host 'h2', which holds o, has sent 16 messages of one type in a row"):
                for _ in run:
                    pass
        assert next(other).index == 1


def test_probes_of_finished_runs_are_answered_and_leave_a_single_line(dial: Callable[..., zmq.Socket[bytes]]) -> None:
    with running(ShellConfig("a", insecure=True)) as host, running(ShellConfig("tester", insecure=True)) as other:
        credits: list[m.Credit] = []
        other._bulk.credited = lambda sender, credit, now: credits.append(credit)  # type: ignore[method-assign]
        bulk = dial(host.me.bulk)
        for number in range(1, 21):
            probe = m.Probe(run_of(f"over-{number}"), 1, other.me, True, 0)
            bulk.send_multipart([frames.encode(m.Chunk(number, 0, 0, probe)), b""])
        bulk.send(b"garbage")
        until_s = time.monotonic() + patience(10)
        while host.frames_rejected == 0 or len(credits) < 20:  # all before it has been handled
            assert time.monotonic() < until_s
        assert sorted(credit.transfer for credit in credits) == list(range(1, 21))
        assert {run: lines.keys() for run, lines in host._sockets.lines.items()} == {BEFORE_RUNS: {"tester"}}
        assert len(host._sockets.dealers) == 2


# --- endpoints --------------------------------------------------------------------------------------


def test_a_port_in_use_is_a_usage_error_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with running(ShellConfig("a", insecure=True)) as first:
        for endpoint in (first.me.control, first.me.bulk):
            with pytest.raises(UsageError, match=f"{endpoint} is already in use; choose another port"):
                Shell(ShellConfig("b", listen=endpoint, insecure=True))
            bulk_port = int(endpoint.rpartition(":")[2])
            says = f"{endpoint} for partitions is already in use; choose another port with --bulk-port"
            with pytest.raises(UsageError, match=says):
                Shell(ShellConfig("b", bulk_port=bulk_port, insecure=True))
        port = int(first.me.control.rpartition(":")[2])
        # the kernel may have given the port below to somebody else, which then is what is in use
        with pytest.raises(UsageError, match=f"tcp://127.0.0.1:({port}|{port - 1}) .*is already in use"):
            Shell(ShellConfig("b", listen=f"tcp://127.0.0.1:{port - 1}", insecure=True))  # its bulk port is taken
    for thread in set(threading.enumerate()) - before:
        thread.join(patience(5))
        assert not thread.is_alive(), thread


@pytest.mark.parametrize(
    "listen",
    [
        "ipc://x",
        "ipc:///x y/z",
        "127.0.0.1:7800",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:99999",
        "tcp://127.0.0.1:65535",
        "tcp://:",
    ],
)
def test_an_invalid_endpoint_is_a_usage_error(listen: str) -> None:
    with pytest.raises(UsageError, match=r"tcp://|ipc:///FOLDER/NAME with a path of at most 102"):
        Shell(ShellConfig("a", listen=listen, insecure=True))


def free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def free_ports() -> int:
    """Return the first of two consecutive free ports. They are below the ephemeral ports."""
    return next(port for port in range(20_000, 30_000, 2) if free(port) and free(port + 1))


def test_two_consecutive_ports_are_used_and_advertised() -> None:
    port = free_ports()
    with running(ShellConfig("a", insecure=True, listen=f"tcp://127.0.0.1:{port}", advertise="gate.example")) as shell:
        ends = (f"tcp://gate.example:{port}", f"tcp://gate.example:{port + 1}")
        assert shell.me == m.Peer("a", *ends, shell.me.instance)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 129, "é" * 65, "a\nb", "caf\udce9"])
def test_an_invalid_name_of_a_host_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError, match="is no name of a host"):
        ShellConfig(name)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_an_invalid_time_scale_is_a_usage_error(scale: float) -> None:
    with pytest.raises(UsageError, match="give a positive number"):
        ShellConfig("a", time_scale=scale)


def test_a_host_hangs_up_on_clients_that_are_gone() -> None:
    flow = chain(SCENES, host="a")
    with running(ShellConfig("a", insecure=True)) as host:
        for _ in range(3):
            with Client({"a": host.me.control}, insecure=True) as client:
                assert len(list(client.run(flow, {}, partitions=2))) == 2
                ports = {client.shell.me.control, client.shell.me.bulk}
            identify_hosts({"a": host.me.control})  # what came before is done
            assert not ports & {endpoint for endpoint, _ in host._sockets.dealers}
        assert host._sockets.lines == {}


def test_a_transfer_to_a_host_with_new_endpoints_uses_no_closed_socket() -> None:
    def other_peer(instance: str, port: int) -> m.Peer:
        return m.Peer("x", f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}", instance)

    chunk = m.Chunk(1, 1, 0, PART)
    sockets = Sockets("a", Listening("tcp://127.0.0.1:*", insecure=True), None)
    try:
        sockets.meet(R, [other_peer("before", 1)])
        line = sockets.line(R, "x")
        assert line is not None
        assert sockets.send_chunk(line, chunk, memoryview(b"1"))
        sockets.meet(R, [other_peer("now", 3)])
        sockets.meet(run_of("other"), [other_peer("now", 3)])
        sockets.forget(run_of("other"))  # and with it every dealer that no line is for
        assert ("tcp://127.0.0.1:2", "x") not in sockets.dealers
        assert sockets.send_chunk(line, chunk, memoryview(b"1"))
    finally:
        sockets.destroy(0)


def test_no_event_waits_for_the_next_timer() -> None:
    """Several threads queue one event at a time. It must be handled long before housekeeping would find it."""
    heard = {name: threading.Event() for name in ("a", "b", "c")}

    def on_application(command: e.Command) -> None:
        if isinstance(command, e.Report):
            heard[command.source].set()

    shell = Shell(ShellConfig("h1", insecure=True), on_application)
    late: list[str] = []

    def tell(name: str) -> None:
        message = m.ProbeResult(R, m.Estimate(name, "h1", 1, 0, 1, 0))
        for _ in range(3000):
            heard[name].clear()
            shell.queue_event(e.MessageReceived(name, message))
            if not heard[name].wait(patience(3)):
                late.append(name)
                return

    threads = [threading.Thread(target=tell, args=(name,)) for name in heard]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shell.close()
    assert late == []


# --- host processes ---------------------------------------------------------------------------------


@contextmanager
def host_process(
    name: str, *more: str, listen: str = "tcp://127.0.0.1:*"
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    command = [*host_command(name, listen, allow=ALLOW, insecure=True), *more]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=own_environment()) as process:
        try:
            assert process.stdout is not None
            ready = msgspec.json.decode(process.stdout.readline())
            assert ready["pid"] == process.pid
            yield process, ready["control"]
        finally:
            process.kill()


def test_a_signal_or_the_end_of_the_parent_ends_a_host_promptly_and_cleanly(tmp_path: Path) -> None:
    with ExitStack() as stack:
        hosts = {
            how: stack.enter_context(host_process(how, "--records", str(tmp_path / how)))
            for how in ("sigterm", "sigint", "orphan")
        }
        addresses = {name: control for name, (_, control) in hosts.items()}
        with Client(addresses, insecure=True) as client:
            flow = chain(SCENES, Code("composite"), Code("composite"), host="sigterm")
            run = client.run(flow, {"o": "sigint", "p": "orphan"})
            next(run)  # they are in the middle of a run
            hosts["sigterm"][0].send_signal(signal.SIGTERM)
            hosts["sigint"][0].send_signal(signal.SIGINT)
            stdin = hosts["orphan"][0].stdin
            assert stdin is not None
            stdin.close()
            said = {}
            for name, (process, _) in hosts.items():
                assert process.wait(patience(5)) == 0
                assert process.stderr is not None
                said[name] = process.stderr.read().decode()
            only = "host 'sigterm' is the only host that may hold source 's'; end the run first"
            line = f"WARNING sigterm: the host ends before its nodes have moved away: {only}\n"
            assert said["sigterm"].partition(" ")[2] in (line, "")  # had the run ended
            assert said["sigint"] == said["orphan"] == ""
    for name in hosts:
        rows = [msgspec.json.decode(line) for line in (tmp_path / name).read_bytes().splitlines()]
        assert rows, "the event log is written when the host ends"
        assert all(row["host"] == name for row in rows)


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_a_host_with_closed_standard_streams_serves_and_writes_records(closed: str, tmp_path: Path) -> None:
    listen = "ipc://" + str(tmp_path / "h1")
    host = host_command("h1", listen, allow=ALLOW, insecure=True, records=tmp_path)
    host.remove("--with-parent")
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", *host]
    with (
        (tmp_path / "said").open("wb") as said,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=own_environment()) as process,
    ):
        try:
            until_s = time.monotonic() + patience(60)
            while not (tmp_path / "h1").exists():  # not every one of them can say that it listens
                assert process.poll() is None and time.monotonic() < until_s
            with Client({"h1": listen}, insecure=True) as client:
                run = client.run(chain(SCENES, Code("runtime_codes:Talks")), {"o": "h1"}, partitions=3)
                assert [each.index for each in run] == [0, 1, 2]
                run = client.run(chain(SCENES, Code("runtime_codes:Hushes")), {"o": "h1"}, partitions=1)
                assert len(list(run)) == 1
            process.send_signal(signal.SIGTERM)
            assert process.wait(patience(5)) == 0
        finally:
            process.kill()
    rows = [msgspec.json.decode(line) for line in (tmp_path / "h1.jsonl").read_bytes().splitlines()]
    assert any(row["kind"] == "host_load" for row in rows)
    assert ("partition 2" in (tmp_path / "said").read_text()) == ("2>" not in closed)


def test_a_host_without_free_descriptors_survives_and_the_run_goes_on() -> None:
    with (
        host_process("h1") as (process, control),
        Client({"h1": control}, insecure=True) as client,
        ExitStack() as stack,
    ):
        run = client.run(chain(SCENES, Code("composite")), {"o": "h1"})
        next(run)
        used = len(os.listdir(f"/proc/{process.pid}/fd"))
        before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert before[0] == before[1]  # it takes what it may have
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (used + 8, before[1]))
        address = control.removeprefix("tcp://").split(":")
        for _ in range(40):  # more than it can accept
            stack.enter_context(socket.create_connection((address[0], int(address[1]))))
        for number in range(300):
            stranger = m.Peer(f"x{number}", f"tcp://127.0.0.1:{2 * number + 1}", f"tcp://127.0.0.1:{2 * number + 2}")
            client.shell.queue_event(
                e.ProbesRequested(run_of("probe"), client._registry.peers["h1"], (stranger,), client.shell.me)
            )
        for _ in range(50):
            next(run)
        stack.close()
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
        run.close()
        assert len(list(client.run(chain(SCENES, Code("composite")), {"o": "h1"}, partitions=5))) == 5
        assert process.poll() is None


def test_a_client_outlives_the_restart_of_a_host() -> None:
    flow = chain(SCENES, Code("composite"))
    listen = f"tcp://127.0.0.1:{free_ports()}"
    with ExitStack() as stack:
        before, _ = stack.enter_context(host_process("h1", listen=listen))
        client = stack.enter_context(Client({"h1": listen}, insecure=True))
        assert [each.index for each in client.run(flow, {"o": "h1"}, partitions=3)] == [0, 1, 2]
        before.kill()
        before.wait()
        stack.enter_context(host_process("h1", listen=listen))
        assert [each.index for each in client.run(flow, {"o": "h1"}, partitions=3)] == [0, 1, 2]


def test_answers_of_a_restarted_host_without_the_run_reach_the_client() -> None:
    """The restarted host knows no address of the client, and no message asks it to dial one."""
    flow, listen = chain(SCENES, Code("composite")), f"tcp://127.0.0.1:{free_ports()}"
    config = ShellConfig("h1", listen=listen, insecure=True)
    with ExitStack() as stack:
        with running(config):
            client = stack.enter_context(Client({"h1": listen}, insecure=True))
            first, second = (client.run(flow, {"o": "h1"}) for _ in range(2))
            assert [next(run).index for run in (first, second)] == [0, 0]
        begun_s = time.monotonic()
        with running(config) as again:
            again.core.hosted.broken[RunId(second.id)] = (
                "a defect of another kind"  # as where it dropped the run unheard
            )
            with pytest.raises(HostLostError, match=r"h1.*, no longer knows the run; was its process restarted"):
                list(first)
            with pytest.raises(RunError, match=r"^host 'h1': a defect of another kind$"):
                list(second)
            client.close()
            assert client.shell.core.coordinator.led == {}  # their removal was answered, too
            assert time.monotonic() - begun_s < 12  # not only by silence, which is 15 s


def test_a_message_that_is_no_answer_is_refused_on_a_dialled_connection(
    dial: Callable[..., zmq.Socket[bytes]], make_install: Callable[..., m.Install]
) -> None:
    """A dialled peer may not lead runs over that connection, as its rights are not checked there."""
    with running(ShellConfig("a", insecure=True)) as host, zmq.Context() as context:
        with context.socket(zmq.ROUTER) as bulk:
            bulk.setsockopt(zmq.LINGER, 0)
            port = bulk.bind_to_random_port("tcp://127.0.0.1")
            peer = m.Peer("tester", f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port}")
            dial(host.me.control).send(frames.encode(m.ProbeRequest(BEFORE_RUNS, (peer,), peer)))
            assert bulk.poll(round(patience(5) * 1000))
            identity, *_ = bulk.recv_multipart()
            for frame in (frames.encode(make_install({"s": "a", "o": "a"})), b"garbage"):
                bulk.send_multipart([identity, frame])
            until_s = time.monotonic() + patience(30)
            while host.frames_rejected < 2:
                host._due_s = 0.0
                host.queue_event(fired("retry"))
                time.sleep(0.01)
                assert time.monotonic() < until_s
        assert host.core.runs == {}


def test_a_partition_that_takes_longer_than_the_liveness_limit_ends_no_run() -> None:
    """``b`` on h2 waits for ``a`` on h1. Host h1 answers pings meanwhile."""
    limits = CoreConfig(retry_s=0.1, ping_s=0.1, liveness_s=1.0, lease_s=1.2)
    slow = Code("runtime_codes:Hangs", {"sleeps_s": 1.5})
    nodes = Node("s", "source", (), SCENES, "h1"), Node("a", "operator", ("s",), slow, "h1")
    flow = Dataflow((*nodes, Node("b", "operator", ("a",), Code("composite"), "h2"), Node("t", "sink", ("b",))))
    with ExitStack() as stack:
        hosts = {}
        for name in ("h1", "h2"):
            config = ShellConfig(name, insecure=True, core=limits, allow={ALL: (*DEFAULT_ALLOW, *ALLOW)})
            hosts[name] = stack.enter_context(running(config)).me.control
        client = stack.enter_context(Client(hosts, insecure=True, allow=ALLOW, limits=limits))
        assert [each.index for each in client.run(flow, {}, partitions=1)] == [0]


def finish(*options: str) -> tuple[int, str]:
    """Return the exit status and the error output of a host process that ends by itself."""
    done = subprocess.run(
        [sys.executable, "-m", "thalweg.middleware.shell.daemon", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience(20),
        check=False,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_host_process_that_cannot_start_prints_a_single_line_with_the_reason(tmp_path: Path) -> None:
    other = tmp_path / "nothing" / "log"
    with running(ShellConfig("a", insecure=True)) as shell:
        mistakes = {
            (
                "--listen",
                shell.me.control,
                "--insecure",
            ): f"{shell.me.control} is already in use; choose another port with --listen",
            (
                "--listen",
                "tcp://127.0.0.1:7999",
            ): "without keys tcp://127.0.0.1:7999 is open to every user of this machine",
            (
                "--listen",
                "tcp://0.0.0.0:7999",
            ): "without keys tcp://0.0.0.0:7999 is open to all who reach it; give --keys",
            (
                "--records",
                str(other),
                "--insecure",
            ): f"the records {other} cannot be written: No such file or directory",
            ("--keys", str(other)): f"the certificate {other} cannot be read: No such file or directory",
        }
        for options, says in mistakes.items():
            listen = () if "--listen" in options else ("--listen", "tcp://127.0.0.1:*")
            status, error = finish("--name", "b", *options, *listen)
            assert status == 2
            assert error.startswith(f"thalweg host: {says}"), error
            assert error.count("\n") == 1
    assert finish()[0] == 2


def test_an_invalid_cluster_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one host"):
        LocalCluster(0)
    with pytest.raises(UsageError, match="'h1' twice"):
        LocalCluster(["h1", "h1"])


def test_the_close_of_a_cluster_ends_the_host_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCluster(2) as cluster:
        assert list(identify_hosts(cluster.addresses)) == ["h1", "h2"]
        pids = list(cluster.pids.values())
        cluster.kill("h2")
        assert cluster.poll() == {"h2": -signal.SIGKILL}
    cluster.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
