"""Model of the virtual WAN in SimPy: a process for each node and message, a resource for each disk and processor.

Model and virtual shell share links and their start-up cost, sizes, seconds of disks and processors, and the
demand-driven tree. In both, a host's interface carries one message at a time (control first, older before younger). The
model has no protocol but demands. Operators stay, and nothing is measured, checked, repeated or lost.

A message needs two hosts at once, and takes neither before both are free. SimPy's resources would hold one host while
they wait for the other, which is another model. So interfaces are events of our own, and the rest is SimPy's.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from bisect import insort
from collections.abc import Generator, Mapping
from typing import Any

from thalweg.emulation.virtual.links import BULK, CONTROL, LinkRate
from thalweg.emulation.virtual.world import CodeBook
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.network.view import Link

DEMAND_BYTES = 128  # a demand of Thalweg has 100 to 300, piggybacked messages included
Process = Generator[Any, Any, None]


def installed() -> bool:
    """Return whether SimPy is installed."""
    return importlib.util.find_spec("simpy") is not None


def version() -> str:
    """Return the version of the installed SimPy."""
    return importlib.metadata.version("simpy")


class _Interfaces:
    """Interfaces of the hosts. A host sends or receives one message at a time."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._busy: set[str] = set()
        self._waiting: list[tuple[int, int, str, str, Any]] = []  # rank, number, both ends, the event
        self._number = 0

    def take(self, source: str, target: str, rank: int) -> Any:
        """Return an event that succeeds when the caller has both hosts."""
        event = self._env.event()
        if source in self._busy or target in self._busy:
            self._number += 1
            insort(self._waiting, (rank, self._number, source, target, event))
        else:
            self._busy |= {source, target}
            event.succeed()
        return event

    def give_back(self, source: str, target: str) -> None:
        """Free both hosts, and start the messages that wait for them."""
        busy = self._busy
        free = {source, target}
        busy -= free
        position = 0
        while free and position < len(self._waiting):
            _, _, sender, receiver, event = self._waiting[position]
            if (sender in free or receiver in free) and sender not in busy and receiver not in busy:
                del self._waiting[position]
                busy |= {sender, receiver}
                free -= {sender, receiver}
                event.succeed()
            else:
                position += 1


def arrivals(
    dataflow: Dataflow,
    placement: Mapping[str, str],
    partitions: int,
    links: Mapping[Link, LinkRate],
    code: CodeBook,
    startup_s: float,
) -> list[float]:
    """Return the virtual seconds at which the sink gets each partition.

    ``placement``: host of every node, with pinned nodes. ``code``: sizes and seconds of the nodes' outputs, as in the
    virtual shell.
    """
    simpy: Any = importlib.import_module("simpy")
    env = simpy.Environment()
    interfaces = _Interfaces(env)
    arrived: list[float] = []
    disks, processors = ({host: simpy.Resource(env) for host in set(placement.values())} for _ in range(2))
    demands, outputs = ({node.name: simpy.Store(env) for node in dataflow.nodes} for _ in range(2))

    def make(name: str, inputs: tuple[str, ...], consumer: str, code: Any) -> Process:
        """Run a source or an operator: gather inputs, make the output, hold it until demanded, dispatch it."""
        host = placement[name]
        device = (processors if inputs else disks)[host]
        yield demands[name].get()
        for index in range(partitions):
            for producer in inputs:
                demand(name, producer)
            values = []
            for producer in inputs:
                values.append((yield outputs[producer].get()))
            output = code.make(index, tuple(values))
            with device.request() as turn:
                yield turn
                yield env.timeout(output.seconds)
            if index:
                yield demands[name].get()
            send(host, placement[consumer], output.size_bytes, BULK, outputs[name], output.value)

    def take(name: str, producer: str) -> Process:
        """Run the sink."""
        for _ in range(partitions):
            demand(name, producer)
            yield outputs[producer].get()
            arrived.append(env.now)

    def demand(name: str, producer: str) -> None:
        send(placement[name], placement[producer], DEMAND_BYTES, CONTROL, demands[producer], name)

    def send(source: str, target: str, size_bytes: int, rank: int, into: Any, item: Any) -> None:
        if source == target:
            into.put(item)
        else:
            env.process(transfer(Link(source, target), size_bytes, rank, into, item))

    def transfer(link: Link, size_bytes: int, rank: int, into: Any, item: Any) -> Process:
        yield interfaces.take(*link, rank)
        yield env.timeout(startup_s + links[link].transfer_time_s(size_bytes, env.now + startup_s))
        into.put(item)
        yield env.timeout(0)  # messages that the arrival causes wait with the rest
        interfaces.give_back(*link)

    for node in dataflow.nodes:
        if node.kind == "sink":
            env.process(take(node.name, node.inputs[0]))
        else:
            (consumer,) = dataflow.consumers[node.name]
            env.process(make(node.name, node.inputs, consumer, code(node)))
    env.run()
    return arrived
