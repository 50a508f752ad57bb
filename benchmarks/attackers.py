"""Attacks on a host in ``bench attack``, run by a process of their own.

The process is started as ``python -P -m benchmarks.attackers``.

It reads an ``Orders`` (msgpack) from its standard input and prints how many frames it sent. An attack is a function
from orders and chance to messages. A message has a sender, a host, a port and frames.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import get_args

import msgspec
import zmq

from thalweg.middleware.core.measuring.prober import BEFORE_RUNS
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.network.view import NET
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.security import Keys, secure_dealer

CONTROL, BULK = 0, 1
BETRAYED = "betrayed"  # the attacker is a host of the run, so the harm to the run has no bound
CONNECTIONS = 200  # open at once; the least recently used is closed
IDLE_S = 2.0  # time for which silent connections are held
DIALLED_S = 2.0  # limit of the wait until a host dials, which takes milliseconds
PATIENCE_S = 20.0  # limit of the time in which a host reads its messages
PART_BYTES, ENDLESS_BYTES = 1024 * 1024, 1024**3
GREETING = b"\xff" + bytes(7) + b"\x01\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)  # of ZMTP 3.0
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x06rude/1"

Attack = tuple[str, int, int, list[bytes]]  # sender, number of the host, control or bulk, frames


class Orders(msgspec.Struct, frozen=True):
    """Orders to the attacking process.

    ``hosts``: endpoints of the hosts. ``member``: a host of the run. ``recorded``: messages of an honest client.
    ``keys``: file of the member's secret certificate, if the hosts ask for keys.
    """

    attack: str
    hosts: tuple[m.Peer, ...]
    run: RunId
    member: str
    install: bytes  # as a control frame
    recorded: tuple[tuple[bytes, ...], ...]
    frames: int
    seed: int
    keys: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return "stranger", "x" * 128, "another"


def noise(orders: Orders, chance: Random) -> Iterator[Attack]:
    """Yield messages of one to four frames with random bytes. Some frames begin with a valid prefix."""
    prefix = frames.encode(m.Hello())[:3]
    while True:
        message = [
            chance.choice((b"", prefix)) + chance.randbytes(chance.choice((0, 1, 9, 100, 3000)))
            for _ in range(chance.choice((1, 1, 1, 2, 2, 2, 3, 4)))
        ]
        yield chance.choice(orders.names), chance.randrange(len(orders.hosts)), chance.choice((CONTROL, BULK)), message


def mutated(message: Iterable[bytes], chance: Random) -> list[bytes]:
    """Return the frames of a message with random changes in a single frame."""
    pieces = [bytearray(frame) for frame in message]
    frame = chance.choice(pieces)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(frame) + 1)
        match chance.randrange(4):
            case 0:
                frame[at : at + 1] = chance.randbytes(1)
            case 1:
                del frame[at : at + chance.choice((1, 2, 9))]
            case 2:
                frame[at:at] = chance.randbytes(chance.choice((1, 2, 9)))
            case _:
                frame[at:at] = frame[: chance.choice((1, 9, 99))]
    return [bytes(piece) for piece in pieces]


def mutations(orders: Orders, chance: Random) -> Iterator[Attack]:
    """Yield recorded messages of an honest client with some bytes changed."""
    for sender, host, port, message in replays(orders, chance):
        yield sender, host, port, mutated(message, chance)


def replays(orders: Orders, chance: Random) -> Iterator[Attack]:
    """Yield recorded messages of an honest client again and again, under the names of strangers."""
    while True:
        message = chance.choice(orders.recorded)
        yield chance.choice(orders.names), chance.randrange(len(orders.hosts)), len(message) - 1, list(message)


def _from(who: str, orders: Orders, message: m.Control, chance: Random) -> Attack:
    return who, chance.randrange(len(orders.hosts)), CONTROL, [frames.encode(message)]


def _bulk(who: str, host: int, message: m.Bulk, number: int, of: int, body: bytes) -> Attack:
    return who, host, BULK, [frames.encode(m.Chunk(number, of, 0, message)), body]


def _nowhere(name: str, chance: Random) -> m.Peer:
    port = chance.randrange(1, 60_000)
    return m.Peer(name, f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.1:{port + 1}")


def new_names(orders: Orders, chance: Random) -> Iterator[Attack]:
    """Yield messages of 1500 clients with new names. Every client probes a host, and asks to be probed."""
    for number in range(1500):
        me = _nowhere(f"stranger-{number}", chance)
        host = chance.randrange(len(orders.hosts))
        yield _bulk(me.name, host, m.Probe(BEFORE_RUNS, number, me, True, 7), number, 0, b"")
        for quantity in get_args(m.Quantity):
            yield me.name, host, CONTROL, [frames.encode(m.ProbeRequest(BEFORE_RUNS, (me,), me, quantity))]


def probes(orders: Orders, chance: Random) -> Iterator[Attack]:
    """Yield probes of a client whose endpoints always change, and requests for probes of whole networks."""
    for number in range(10_000):
        me = _nowhere("stranger", chance)
        run = chance.choice((BEFORE_RUNS, orders.run, RunId(f"run-{number}")))
        yield _bulk(me.name, number % len(orders.hosts), m.Probe(run, number, me, True, 7), number, 0, b"")
        if number % 1000 == 0:
            targets = tuple(_nowhere(f"far-{index}", chance) for index in range(m.MAX_TARGETS))
            for quantity in get_args(m.Quantity):
                yield _from(me.name, orders, m.ProbeRequest(run, targets, me, quantity), chance)
        if number % 8 == 0:
            yield _from(me.name, orders, m.Echo(run, number, source=me, host=m.HostReport(1, 1, 0)), chance)


def lies(orders: Orders) -> list[m.Control]:
    """Return messages about a run and its nodes that only the client or different hosts may send."""
    run, install = orders.run, frames.decode_control(orders.install)
    assert isinstance(install, m.Install)
    node, producer = install.dataflow.operators[0], install.dataflow.sources[0]
    locations = tuple(m.Location(name, orders.member, 2**40) for name in install.dataflow.by_name)
    move = m.Move(node, install.locations[-1].host, orders.member, 1)
    ghost = m.Move("no such node", "h1", orders.member, 7)
    return [
        m.Remove(run), m.Removed(run, "h1"), m.Failed(run, node, "\x1b[2J it burns"), m.Pong(run, False), m.Ping(run),
        m.Located(run, locations), m.Lost(run, "h1", locations), m.Installed(run, "h1", "no"), m.Abort(run, 1),
        m.Retire(run, 1), m.Commit(run, 1, 3, (ghost,)), m.Commit(run, 2, 3, (move,)), m.Propose(run, 3, (move,)),
        m.Vote(run, 1, "h1", 2**50), m.Done(run, 1, "h1", locations), m.Offer(run, node, 1), m.Accept(run, node, 1),
        m.Withdraw(run, node, 1), m.Restored(run, node, 1), m.Resumed(run, node, 1), m.StateRequest(run, node, "heir"),
        m.Refuse(run, node, 1, "no"), m.Relocated(run, node, True, locations[0]), m.State(
            run, node, 1, 3, 1, 0, "", b""),
        m.Partition(run, producer, node, 10**6, True), m.Demand(run, producer, "no such node", 10**6),
        m.Demand(run, producer, node, 10**6, commit=m.Commit(run, 4, 3, (ghost,))), m.Welcome("h1", *there_is("h9")),
        m.ProbeResult(run, m.Estimate("h1", "h2", 1, 0, 2**50, 0)), m.Credit(1, 2**50, True),
        m.ProbeResult(run, latency=m.LinkLatency("h1", "h2", 0, 0, 2**50, 0)), m.Echo(run, 1, True), m.Echo(
            run, 1, latencies=(m.LinkLatency("h1", "h2", 0, 0, 2**50, 0),), nodes=(m.NodeReport(node, 0, 0, 0, 1),)),
    ]  # fmt: skip


def there_is(name: str) -> tuple[str, str]:
    return f"tcp://{name}:1", f"tcp://{name}:2"


def forgeries(orders: Orders, chance: Random) -> Iterator[Attack]:
    """Yield ``lies`` about the run from a stranger."""
    return _told_by("stranger", orders, chance)


def betrayals(orders: Orders, chance: Random) -> Iterator[Attack]:
    """Yield ``lies`` from a host of the run, which may end the run but no host."""
    return _told_by(orders.member, orders, chance)


def _told_by(who: str, orders: Orders, chance: Random) -> Iterator[Attack]:
    messages = lies(orders)
    state = m.State(orders.run, "no such node", 1, 3, 1, 10, "")
    install = frames.decode_control(orders.install)
    assert isinstance(install, m.Install)
    for _ in range(300):
        for message in messages:
            yield _from(who, orders, message, chance)
        for node in install.dataflow.nodes:
            for producer in node.inputs:
                part = m.Partition(orders.run, producer, node.name, chance.randrange(1000))
                yield _bulk(who, chance.randrange(len(orders.hosts)), part, 1, 4, b"evil")
        yield _bulk(who, chance.randrange(len(orders.hosts)), state, 2, 10, b"0123456789")


def transfers(orders: Orders, chance: Random) -> Iterator[Attack]:
    """Yield the first half megabyte of partitions that claim 200 MB and do not go on."""
    install = frames.decode_control(orders.install)
    assert isinstance(install, m.Install)
    edges = [(producer, node.name) for node in install.dataflow.nodes for producer in node.inputs]
    for number in range(6500):
        part = m.Partition(orders.run, *chance.choice(edges), number)
        yield _bulk(
            chance.choice((*orders.names, orders.member)),
            number % len(orders.hosts),
            part,
            number,
            200_000_000,
            bytes(500_000),
        )


def large_installs(orders: Orders, chance: Random) -> Iterator[Attack]:
    """Yield installations of runs with up to as many nodes as a frame can hold."""
    install = frames.decode_control(orders.install)
    assert isinstance(install, m.Install)
    code = Code("composite")
    names = [f"s{number}" for number in range(120_000)]
    nodes = (*(Node(name, "source", (), code, "h1") for name in names), Node("t", "sink", tuple(names), None, "client"))
    locations = tuple(m.Location(node.name, "h1", 1) for node in nodes)
    for number, (size, at) in enumerate(itertools.product((30_000, 60_000, 120_000), range(len(orders.hosts)))):
        some = Dataflow((*nodes[:size], nodes[-1]))
        run_id, placed = RunId(f"large-{number}"), locations[: size // 4]
        large = msgspec.structs.replace(install, run=run_id, dataflow=some, locations=placed)
        yield "stranger", at, CONTROL, [frames.encode(msgspec.structs.replace(large, client="stranger"))]


def runs(orders: Orders, chance: Random) -> Iterator[Attack]:
    """Yield installations of ten thousand runs."""
    install = frames.decode_control(orders.install)
    assert isinstance(install, m.Install)
    peers = (*install.peers, m.Peer("stranger", *there_is("stranger")))  # a client is among the peers of its run
    for number in range(10_000):
        attack = msgspec.structs.replace(install, run=RunId(f"run-{number}"), client="stranger", peers=peers)
        yield _from("stranger", orders, attack, chance)


ATTACKS: dict[str, Callable[[Orders, Random], Iterator[Attack]]] = {
    "random": noise,
    "mutated": mutations,
    "replayed": replays,
    "new names": new_names,
    "probes": probes,
    "forged": forgeries,
    BETRAYED: betrayals,
    "transfers": transfers,
    "installs": large_installs,
    "runs": runs,
}
ENDLESS = ("random", "mutated", "replayed")  # attacks that end after ``Orders.frames`` frames


def attack_with(orders: Orders) -> int:
    """Send the messages of an attack. Return the number of frames after the hosts have read the control messages."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 10_000)
    keys = Keys.load(Path(orders.keys)) if orders.keys else None
    open_now: OrderedDict[tuple[str, int, int], zmq.Socket[bytes]] = OrderedDict()

    def dialled(who: str, host: int, port: int) -> zmq.Socket[bytes]:
        key = who, host, port
        dealer = open_now.get(key)
        if dealer is None:
            dealer = open_now[key] = context.socket(zmq.DEALER)
            dealer.setsockopt(zmq.ROUTING_ID, f"{who}/evil".encode())
            dealer.setsockopt(zmq.LINGER, 2000)
            dealer.setsockopt(zmq.SNDTIMEO, int(PATIENCE_S * 1000))
            dealer.setsockopt(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
            peer = orders.hosts[host]
            secure_dealer(dealer, keys, peer.name)
            dealer.connect(peer.ends[NET] if port == BULK else peer.control)
            if len(open_now) > CONNECTIONS:
                open_now.popitem(last=False)[1].close()
        open_now.move_to_end(key)
        return dealer

    sent = 0
    with contextlib.suppress(zmq.Again):
        for sender, host, port, message in ATTACKS[orders.attack](orders, Random(orders.seed)):
            dialled(sender, host, port).send_multipart(message)
            sent += len(message)
            if sent >= orders.frames and orders.attack in ENDLESS:
                break
        for number in range(len(orders.hosts)):
            last = dialled(orders.member, number, CONTROL)
            last.send(frames.encode(m.Hello()))
            last.recv()
    context.destroy(linger=2000)
    return sent


def parts(endpoint: str, count: int, size: int) -> int:
    """Send a message of ``count`` parts of ``size`` bytes without the last part. Return the number of parts sent."""
    address, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((address, int(port))) as raw:
        return endless(raw, count, size)


def endless(raw: socket.socket, count: int, size: int) -> int:
    """Send the message of ``parts`` on an open connection. Return the number of parts sent."""
    piece = b"\x01" + bytes([size]) + bytes(size) if size < 256 else b"\x03" + size.to_bytes(8, "big") + bytes(size)
    batch = max(1, 60_000 // len(piece))
    raw.sendall(GREETING)
    raw.recv(64, socket.MSG_WAITALL)
    raw.sendall(b"\x04" + bytes([len(READY)]) + READY)
    ready = raw.recv(2, socket.MSG_WAITALL)  # the host's own READY: from now on it takes messages
    if len(ready) < 2:
        return 0  # the host asks for keys
    raw.recv(ready[1], socket.MSG_WAITALL)
    for sent in range(0, count, batch):
        try:
            raw.sendall(piece * batch)
        except OSError:
            return sent
    raw.settimeout(1.0)
    with contextlib.suppress(OSError):
        while raw.recv(4096):  # until the host hangs up, or is silent
            continue
    return count


def connections(endpoint: str) -> int:
    """Open two thousand silent connections, for ``IDLE_S`` or until the host hangs up. Return the number opened."""
    address, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    count = 0
    with selectors.DefaultSelector() as idle, contextlib.ExitStack() as stack:
        for _ in range(2000):
            with contextlib.suppress(OSError):
                connection = stack.enter_context(socket.create_connection((address, int(port)), 1.0))
                idle.register(connection, selectors.EVENT_READ)
                count += 1
        until_s = time.monotonic() + IDLE_S
        while idle.get_map() and (left_s := until_s - time.monotonic()) > 0:
            for key, _ in idle.select(left_s):
                with contextlib.suppress(OSError):
                    if os.read(key.fd, 4096):  # a greeting
                        continue
                idle.unregister(key.fileobj)
    return count


PARTS = {
    "one-byte parts": (5_000_000, 1),
    "endless parts": (ENDLESS_BYTES // PART_BYTES, PART_BYTES),
}


NAMES = (*ATTACKS, *PARTS, "answers", "connections")  # of all attacks


def answers(orders: Orders) -> int:
    """Make each host dial this process twice, answer without end, and return the number of parts sent."""
    count, sent = PARTS["one-byte parts"][0], 0
    with zmq.Context() as context:
        for host in orders.hosts:
            with socket.create_server(("127.0.0.1", 0)) as here, context.socket(zmq.DEALER) as asks:
                here.settimeout(DIALLED_S)
                asks.setsockopt(zmq.ROUTING_ID, b"stranger/evil")
                asks.setsockopt(zmq.LINGER, 0)
                asks.connect(host.ends[NET])
                end = f"tcp://127.0.0.1:{here.getsockname()[1]}"
                probe = m.Probe(BEFORE_RUNS, 0, m.Peer("stranger", end, end), False)
                asks.send_multipart([frames.encode(m.Chunk(1, 1, 0, probe, "|u1", (1,))), b"x"])
                with contextlib.suppress(TimeoutError):  # a host that asks for keys dials no stranger
                    for _ in range(2):
                        raw, _ = here.accept()
                        with raw:
                            sent += endless(raw, count, 1)
    return sent


def main() -> None:
    orders = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Orders)
    if orders.attack in PARTS:
        ends = [end for host in orders.hosts for end in (host.control, host.ends[NET])]
        print(sum(parts(end, *PARTS[orders.attack]) for end in ends))
    elif orders.attack == "connections":
        print(connections(orders.hosts[0].control))
    elif orders.attack == "answers":
        print(answers(orders))
    else:
        print(attack_with(orders))


if __name__ == "__main__":
    main()
