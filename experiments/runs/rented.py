"""Rented machines as files for a run: a scenario with the hosts, and a plan.

- R1: A host's ``cpus`` are the machine's speed, in processors as fast as the fastest for rent. An operator's time is
  the time that it needs on such a processor.
- R2: A link without a limit of its own carries as much as the cards at its ends, at most ``UNLIMITED_BYTES_S``.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import msgspec
import numpy as np

from thalweg.experiments.problems.provisioning import Problem
from thalweg.experiments.provisioning.answer import Answer, cost, violations
from thalweg.experiments.provisioning.instance import ProvisioningInstance
from thalweg.experiments.provisioning.placed import cards, graph, links, machine_hosts
from thalweg.experiments.records.records import to_toml
from thalweg.experiments.run_config import CLIENT
from thalweg.experiments.runs.plan_file import PlanFile, PlannedNode
from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import UsageError

UNLIMITED_BYTES_S = 1.25e9  # 10 Gbit/s, more than any card here sends
SCENARIO, PLAN = "scenario.toml", "plan.toml"


def next_cheaper(instance: ProvisioningInstance, answer: Answer) -> Answer | None:
    """Return the dearest cheaper platform that fails a constraint and differs in the class of one machine.

    The result is None without such a platform.
    """
    own = cost(instance, answer)
    best: tuple[float, Answer] | None = None
    for machine in range(answer.machines):
        for kind in range(len(instance.classes)):
            classes = answer.class_of.copy()
            classes[machine] = kind
            other = Answer(answer.machine_of, classes, answer.server_of)
            costs = cost(instance, other)
            dearer = best is None or costs > best[0]
            if costs < own * (1 - 1e-9) and dearer and violations(instance, other):
                best = costs, other
    return None if best is None else best[1]


def write_platform(problem: Problem, answer: Answer, folder: Path) -> Path:
    """Write the scenario and the plan of a run to a folder, and return the plan's path.

    Raises UsageError for a problem that no run can have.
    """
    instance = problem.instance
    for number, name in enumerate(instance.objects):
        if instance.needs[:, number].any() and not math.isclose(instance.frequency_hz[number], instance.throughput_hz):
            frequency = f"object {name!r} is fetched {instance.frequency_hz[number]:g} times a second"
            wanted = f"a run fetches one for each result, of which {instance.throughput_hz:g} are wanted"
            raise UsageError(f"{frequency}, and {wanted}; leave its frequency out")
    hosts = [CLIENT, *instance.servers, *machine_hosts(answer)]
    if twice := next((name for at, name in enumerate(hosts) if name in hosts[:at]), None):
        raise UsageError(f"a run calls a host {twice!r} itself; give the server another name")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SCENARIO).write_text(to_toml(_scenario(problem, answer)), encoding="utf-8")
    (folder / PLAN).write_text(to_toml(msgspec.to_builtins(_plan(problem, answer))), encoding="utf-8")
    return folder / PLAN


def _scenario(problem: Problem, answer: Answer) -> dict[str, object]:
    instance, limits = problem.instance, cards(problem.instance, answer)
    hosts: list[dict[str, object]] = [{"name": CLIENT}]
    for name, limit in limits.items():
        hosts.append({"name": name} | ({"interface_rate": round(8 * limit)} if math.isfinite(limit) else {}))
    cores = np.ones(len(instance.classes)) if instance.cores is None else instance.cores
    # R1: of every machine, its speed in processors of the fastest kind
    for host, kind in zip(hosts[1 + len(instance.servers) :], answer.class_of.tolist(), strict=True):
        cpus = float(instance.speed_mop_s[kind]) / problem.core_mop_s
        host |= {"cpus": cpus, "speed": cpus / float(cores[kind]), "cores": int(cores[kind])}
    rates = {}
    # R2: without a limit, the link carries what the cards at its ends do
    for link, limit in links(instance, answer, CLIENT).items():
        ends = [limits.get(host, math.inf) for host in link]
        rates[link] = round(8 * (limit if math.isfinite(limit) else min(*ends, UNLIMITED_BYTES_S)))
    common = Counter(rates.values()).most_common(1)[0][0]
    return {
        "name": "rented",
        "hosts": hosts,
        "links": {"rate": common},
        "link": [{"from": a, "to": b, "rate": rate} for (a, b), rate in rates.items() if rate != common],
    }


def _plan(problem: Problem, answer: Answer) -> PlanFile:
    def of(name: str, size_bytes: float, work_mop: float) -> Code:
        computing = {"compute_s": work_mop / problem.core_mop_s} if work_mop else {}
        return Code(name, {"bytes": round(size_bytes), **computing})

    dataflow, placement = graph(problem.instance, answer, of, CLIENT)
    nodes = []
    for node in dataflow.nodes:
        if node.code is not None:
            fields = {"name": node.name, "host": placement[node.name], **node.code.params, "inputs": node.inputs}
            if not node.inputs:
                fields |= {"rate": node.rate, "object": node.code.use}
            nodes.append(msgspec.convert(fields, PlannedNode))
    return PlanFile(SCENARIO, tuple(nodes))
