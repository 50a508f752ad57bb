"""The virtual WAN's model written with SimPy: a process a node and a message, a resource a disk and a processor.

What it has in common with the virtual shell: links and their start-up cost, sizes, seconds of disks and processors,
one message at a time on a host's interface (control first, older before younger), the demand-driven tree. What it lacks
is everything else: there is no protocol but demands, operators stay, nothing is measured, checked, repeated or lost.

A message needs two hosts at once, and takes neither before it can have both. SimPy's resources hold one while waiting
for the other, which is another model; so interfaces are events of our own, the rest is SimPy's.
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

DEMAND_BYTES = 128  # a demand of our own has 100 to 300, with the news that it carries
Process = Generator[Any, Any, None]


def installed() -> bool:
    """Whether SimPy is."""
    return importlib.util.find_spec("simpy") is not None


def version() -> str:
    """That of the installed SimPy."""
    return importlib.metadata.version("simpy")


class _Interfaces:
    """The hosts' interfaces: a host sends or receives one message at a time."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._busy: set[str] = set()
        self._waiting: list[tuple[int, int, str, str, Any]] = []  # rank, number, both ends, the event
        self._number = 0

    def take(self, source: str, target: str, rank: int) -> Any:
        """An event: both hosts are the caller's."""
        event = self._env.event()
        if source in self._busy or target in self._busy:
            self._number += 1
            insort(self._waiting, (rank, self._number, source, target, event))
        else:
            self._busy |= {source, target}
            event.succeed()
        return event

    def give_back(self, source: str, target: str) -> None:
        """Both hosts take up what else waits for them."""
        busy = self._busy
        free = {source, target}
        busy -= free
        position = 0
        while free and position < len(self._waiting):
            _, _, one, other, event = self._waiting[position]
            if (one in free or other in free) and one not in busy and other not in busy:
                del self._waiting[position]
                busy |= {one, other}
                free -= {one, other}
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
    """The virtual seconds at which the sink gets each partition.

    ``placement``: of every node, the pinned ones too. ``code``: sizes and seconds of what nodes make, as in the virtual
    shell.
    """
    simpy: Any = importlib.import_module("simpy")
    env = simpy.Environment()
    interfaces = _Interfaces(env)
    arrived: list[float] = []
    disks, processors = ({host: simpy.Resource(env) for host in set(placement.values())} for _ in range(2))
    demands, outputs = ({node.name: simpy.Store(env) for node in dataflow.nodes} for _ in range(2))

    def make(name: str, inputs: tuple[str, ...], consumer: str, code: Any) -> Process:
        """A source or an operator: gather, make, hold until demanded, dispatch."""
        host = placement[name]
        device = (processors if inputs else disks)[host]
        yield demands[name].get()
        for index in range(partitions):
            for producer in inputs:
                demand(name, producer)
            values = []
            for producer in inputs:
                values.append((yield outputs[producer].get()))
            made = code.make(index, tuple(values))
            with device.request() as turn:
                yield turn
                yield env.timeout(made.seconds)
            if index:
                yield demands[name].get()
            send(host, placement[consumer], made.size_bytes, BULK, outputs[name], made.value)

    def take(name: str, producer: str) -> Process:
        """The sink."""
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
        yield env.timeout(0)  # what the arrival gives rise to waits with the rest
        interfaces.give_back(*link)

    for node in dataflow.nodes:
        if node.kind == "sink":
            env.process(take(node.name, node.inputs[0]))
        else:
            (consumer,) = dataflow.consumers[node.name]
            env.process(make(node.name, node.inputs, consumer, code(node)))
    env.run()
    return arrived
