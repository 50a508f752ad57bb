"""Hosts for which a run may end, because a fault plan keeps the hosts away for long."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

import msgspec

from thalweg.emulation.virtual.faults import BulkOutage, Crash, Cut, FaultPlan, LargeOutage, OfLink, Stop
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.experiments.faults.generated_plans import CLIENT
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.network.view import NET, Link, links_between
from thalweg.middleware.protocol.absent_sources import is_absent, may_miss, without_source
from thalweg.middleware.protocol.limits import CoreConfig, MonitorConfig

LIMITS = CoreConfig(
    retry_max_s=2.0,
    ping_s=1.0,
    liveness_s=30.0,
    detect_s=30.0,
    lease_s=60.0,
    handoff_s=6.0,
    barrier_s=6.0,
    probe_s=4.0,
    monitor=MonitorConfig(probe_train=False),
)
LONG_CUT_S = LIMITS.liveness_s / 2  # the storm and further cuts can make up the rest
LONG_SILENCE_S = LIMITS.liveness_s / 2  # the same between two hosts other than the client
LONG_STALL_S = 6.0  # of lost bulk alone, for which a link is given up
WAIT_S = 40.0  # for a lost host with a source


def excused(plan: FaultPlan, world: FaultyWorld, why: str, suspects: Collection[str]) -> bool:
    """Return whether a failure names a host of ``suspects``, or both ends of a link that was cut for long."""
    dead = any(f"host {host!r}" in why and f"host {peer!r}" in why for host, peer in may_be_dead(plan, world.names))
    return dead or any(f"host {name!r}" in why for name in suspects)


def to_be_asked_again(plan: FaultPlan, world: FaultyWorld) -> set[str]:
    """Return hosts that crash after the run's end, or that crashed without a part in the run and were back in time."""
    cut = may_be_lost(
        msgspec.structs.replace(plan, faults=tuple(fault for fault in plan.faults if not isinstance(fault, Crash))),
        world.names,
    )
    failed_s = world.now if world.failed_s is None else world.failed_s
    late = {name for name in crashed(plan) if world.crashed_s.get(name, math.inf) > failed_s}
    back = {name for name, at_s in world.back_s.items() if name not in world.fallen and failed_s - at_s >= LONG_CUT_S}
    return (late | back) - cut


def may_be_missed(plan: FaultPlan, world: FaultyWorld) -> set[str]:
    """Return the hosts without which a run that outlives its hosts may end: hosts with sources that are gone for long.

    A host does not count if a stand-in for its sources is up, or if the run may go on without it. In a stream over
    several trees, every tree has stand-ins of its own by then. The last tree says why the stream ends.
    """
    gone = {fault.host for fault in plan.faults
            if (isinstance(fault, Crash) and (fault.restart_after_s or math.inf) > WAIT_S / 2)
            or (isinstance(fault, Stop) and fault.for_s > WAIT_S / 2)}  # fmt: skip
    remaining = tuple(fault for fault in plan.faults if not isinstance(fault, Crash | Stop))
    gone |= may_be_lost(msgspec.structs.replace(plan, faults=remaining), world.names)
    flows = [flow for number, (flow, _) in world.trees.items() if number is not None] or [world.tree[0]]
    return set().union(*(needed(flow, gone, world.there_at_failure) for flow in flows))


def needed(flow: Dataflow, gone: Collection[str], there: Collection[str]) -> set[str]:
    """Return the hosts of ``gone`` without which a run may end, because no host in ``there`` has their sources.

    The hosts are missing at once. Of two sources, either may be the last.
    """
    sources = [node for node in flow.nodes if node.kind == "source" and not is_absent(node)]
    alone = [node for node in sources if node.pinned in gone and not {*there} & {*node.stand_ins}]
    absent = {node.name: without_source(node, 0, CLIENT) for node in alone}
    lost = set()
    for node in alone:
        rest = Dataflow(tuple([node if item.name == node.name else absent.get(item.name, item) for item in flow.nodes]))
        if node.pinned is not None and not may_miss(rest, node.name):
            lost.add(node.pinned)
    return lost


def crashed(plan: FaultPlan) -> set[str]:
    """Return the hosts that a plan crashes."""
    return {fault.host for fault in plan.faults if isinstance(fault, Crash)}


def may_be_lost(plan: FaultPlan, hosts: Sequence[str]) -> set[str]:
    """Return the hosts that the client may give up: crashed, stopped for long, or cut off from the client for long."""
    stopped = {fault.host for fault in plan.faults if isinstance(fault, Stop) and fault.for_s >= LONG_CUT_S}
    links = itertools.chain.from_iterable((Link(name, CLIENT), Link(CLIENT, name)) for name in hosts if name != CLIENT)
    cut = {name for link in links if _cut_s(plan, link) >= LONG_CUT_S for name in link}
    return crashed(plan) | stopped | cut - {CLIENT}


def may_be_dead(plan: FaultPlan, hosts: Sequence[str]) -> list[Link]:
    """Return the links between two hosts that either host may give up, because they are cut for long.

    A link that loses bulk alone may be given up sooner.
    """
    gray = {Link(fault.source, fault.target) for fault in plan.faults if isinstance(fault, BulkOutage | LargeOutage)}
    long_s = {link: LONG_STALL_S if link in gray else LONG_SILENCE_S for link in links_between(hosts)}
    return [link for link, least_s in long_s.items() if _cut_s(plan, link) >= least_s]


def _cut_s(plan: FaultPlan, link: Link) -> float:
    """Return the longest time for which a link loses everything, bulk or large messages. Close cuts count as one.

    Cuts of further networks do not count, because partitions can take the shared network as well.
    """
    source, target = link
    spans = [(loss.at_s, loss.until_s) for loss in plan.faults
             if isinstance(loss, OfLink) and (loss.source, loss.target) == link and loss.via in ("", NET)]  # fmt: skip
    spans += [(cut.at_s, cut.at_s + cut.for_s) for cut in plan.faults
              if isinstance(cut, Cut) and (source in cut.hosts) != (target in cut.hosts)]  # fmt: skip
    longest_s, begun_s, until_s = 0.0, -1.0, -1.0
    for from_s, to_s in sorted(spans):
        begun_s = from_s if from_s > until_s + LIMITS.ping_s else begun_s
        until_s = max(until_s, to_s)
        longest_s = max(longest_s, until_s - begun_s)
    return longest_s
