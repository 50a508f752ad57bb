"""Answer as hosts run it: a graph of sources, operators and a sink, its placement, and the links between hosts.

- R1: Every object has a source on every server from which it is fetched. A machine fetches an object once, because
  consumers of a node on the same host are sent one partition.
- R2: An operator takes every needed object once, then the results of its children.
- R3: The root's results go to ``client``, a host of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np

from thalweg.experiments.provisioning.answer import Answer
from thalweg.experiments.provisioning.instance import ProvisioningInstance
from thalweg.middleware.dataflow import Code, Dataflow, Node, Placement
from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.network.view import Link, LinkEstimate, NetworkView
from thalweg.middleware.planning.problem.hints import CostParameters, Hints
from thalweg.middleware.planning.problem.task import Task

SINK = "results"
FREE = CostParameters(startup_s=0.0, disk_bytes_per_s=float("inf"))  # the paper counts bytes and work alone
CodeOf = Callable[[str, float, float], Code]
"""What makes the results of a node: its name, the bytes of one, and the work, Mop; 0 of an object."""


def in_order(answer: Answer) -> Answer:
    """Return the answer with machines numbered by their first operators, independent of the search."""
    _, first = np.unique(answer.machine_of, return_index=True)
    order = np.argsort(first)
    return Answer(np.argsort(order)[answer.machine_of], answer.class_of[order], answer.server_of[order])


def machine_hosts(answer: Answer) -> tuple[str, ...]:
    """Return the names of the machines as hosts."""
    return tuple(f"m{at + 1}" for at in range(answer.machines))


def graph(instance: ProvisioningInstance, answer: Answer, code_of: CodeOf, client: str) -> tuple[Dataflow, Placement]:
    """Return the graph, in which objects are served ρ times a second, and the placement of its nodes."""
    machines, nodes, placement = machine_hosts(answer), list[Node](), Placement()
    sources: dict[tuple[int, int], str] = {}
    # R1: one source, however many machines fetch the object
    for leaf, server in sorted({(leaf, server) for _, leaf, server in fetched(answer)}):
        host = instance.servers[server]
        name = sources[leaf, server] = f"{instance.objects[leaf]}@{host}"
        code = code_of(instance.objects[leaf], float(instance.object_bytes[leaf]), 0.0)
        nodes.append(Node(name, "source", (), code, host, rate=instance.throughput_hz))
        placement[name] = host
    for node, name in enumerate(instance.operators):
        machine = int(answer.machine_of[node])
        objects = [sources[leaf, int(answer.server_of[machine, leaf])] for leaf in dict.fromkeys(instance.leaves[node])]
        # R2: objects come first, each once
        inputs = (*objects, *(instance.operators[child] for child in instance.children[node]))
        code = code_of(name, float(instance.output_bytes[node]), float(instance.work_mop[node]))
        nodes.append(Node(name, "operator", inputs, code))
        placement[name] = machines[machine]
    nodes.append(Node(SINK, "sink", (instance.operators[-1],), None, client))
    return Dataflow(tuple(nodes)).validate(), placement | {SINK: client}


def fetched(answer: Answer) -> list[tuple[int, int, int]]:
    """Return the machine, the object and the server of every fetch."""
    pairs: list[list[int]] = np.argwhere(answer.server_of >= 0).tolist()
    return [(machine, leaf, int(answer.server_of[machine, leaf])) for machine, leaf in pairs]


def links(instance: ProvisioningInstance, answer: Answer, client: str) -> dict[Link, float]:
    """Return the bytes/s of every link, inf if only its ends' cards limit it. The client's links have no limit."""
    machines, classes = machine_hosts(answer), answer.class_of.tolist()
    rates = {Link(*ends): float("inf") for ends in permutations((client, *instance.servers, *machines), 2)}
    for machine, kind in zip(machines, classes, strict=True):
        for server, name in enumerate(instance.servers):
            for link in (Link(name, machine), Link(machine, name)):
                rates[link] = float(instance.server_link_bytes_s[server, kind])
        for other, its in zip(machines, classes, strict=True):
            if other != machine:
                rates[Link(machine, other)] = float(instance.machine_link_bytes_s[kind, its])
    return rates


def cards(instance: ProvisioningInstance, answer: Answer) -> dict[str, float]:
    """Return the bytes/s of every host's card, except the client's."""
    servers = zip(instance.servers, instance.server_card_bytes_s.tolist(), strict=True)
    return {**dict(servers), **dict(zip(machine_hosts(answer), instance.card_bytes_s[answer.class_of], strict=True))}


def task(instance: ProvisioningInstance, answer: Answer, core_mop_s: float, client: str = "client") -> Task:
    """Return the task whose current placement is the answer. ``core_mop_s``: speed of a host of speed 1.

    A link is at most as fast as the cards at both ends. So a transfer takes the time that (6) counts.
    """
    dataflow, placement = graph(instance, answer, lambda *_: Code("unused"), client)
    limits = cards(instance, answer) | {client: float("inf")}
    rates = {
        link: min(rate, limits[link[0]], limits[link[1]]) for link, rate in links(instance, answer, client).items()
    }
    sizes = dict(zip(instance.operators, instance.output_bytes.tolist(), strict=True))
    for _, leaf, server in fetched(answer):
        sizes[f"{instance.objects[leaf]}@{instance.servers[server]}"] = float(instance.object_bytes[leaf])
    work = dict(zip(instance.operators, (instance.work_mop / core_mop_s).tolist(), strict=True))
    speeds = zip(machine_hosts(answer), (instance.core_mop_s[answer.class_of] / core_mop_s).tolist(), strict=True)
    cores = np.ones(len(instance.classes)) if instance.cores is None else instance.cores
    hosts = {
        name: HostFigures(speed, int(cores[kind]))
        for (name, speed), kind in zip(speeds, answer.class_of.tolist(), strict=True)
    }
    return Task(
        (dataflow,),
        tuple(limits),
        NetworkView({link: LinkEstimate(8 * rate) for link, rate in rates.items()}),
        Hints(sizes, work, hosts=hosts),
        FREE,
        placement,
    )
