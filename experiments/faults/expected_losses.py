"""For which hosts a run may end, as its fault plan has taken them away for so long."""

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
LONG_CUT_S = LIMITS.liveness_s / 2  # the storm, and what else is cut, can make it the rest
LONG_SILENCE_S = LIMITS.liveness_s / 2  # the same between two hosts of which neither is the client
LONG_STALL_S = 6.0  # that bulk alone is lost, on a way that is given up for that
WAIT_S = 40.0  # for a lost host that has a source


def excused(plan: FaultPlan, world: FaultyWorld, why: str, suspects: Collection[str]) -> bool:
    """Whether a failure names a host that is rightly given up, or two between which a way is cut."""
    dead = any(f"host {one!r}" in why and f"host {other!r}" in why for one, other in may_be_dead(plan, world.names))
    return dead or any(f"host {name!r}" in why for name in suspects)


def to_be_asked_again(plan: FaultPlan, world: FaultyWorld) -> set[str]:
    """Hosts that crashed before they had a part in the run and were back in time, or crash after its end."""
    cut = may_be_lost(
        msgspec.structs.replace(plan, faults=tuple(each for each in plan.faults if not isinstance(each, Crash))),
        world.names,
    )
    failed_s = world.now if world.failed_s is None else world.failed_s
    late = {name for name in crashed(plan) if world.crashed_s.get(name, math.inf) > failed_s}
    back = {name for name, at_s in world.back_s.items() if name not in world.fallen and failed_s - at_s >= LONG_CUT_S}
    return (late | back) - cut


def may_be_missed(plan: FaultPlan, world: FaultyWorld) -> set[str]:
    """Return the hosts without which a run that outlives its hosts may end: they have sources, and are gone for long.

    Not where somebody there stands in for these, or the run may go on without. Of a stream over several trees each tree
    has stand-ins of its own by then, and the tree that is left last says why the stream ends.
    """
    gone = {fault.host for fault in plan.faults
            if (isinstance(fault, Crash) and (fault.restart_after_s or math.inf) > WAIT_S / 2)
            or (isinstance(fault, Stop) and fault.for_s > WAIT_S / 2)}  # fmt: skip
    others = tuple(fault for fault in plan.faults if not isinstance(fault, Crash | Stop))
    gone |= may_be_lost(msgspec.structs.replace(plan, faults=others), world.names)
    flows = [flow for number, (flow, _) in world.trees.items() if number is not None] or [world.tree[0]]
    return set().union(*(needed(flow, gone, world.there_at_failure) for flow in flows))


def needed(flow: Dataflow, gone: Collection[str], there: Collection[str]) -> set[str]:
    """Those of the hosts that are gone without which a run may end, as no host that is there has their sources.

    All of these are missing at once: of two sources each may be the one that is left.
    """
    sources = [node for node in flow.nodes if node.kind == "source" and not is_absent(node)]
    alone = [node for node in sources if node.pinned in gone and not {*there} & {*node.stand_ins}]
    absent = {node.name: without_source(node, 0, CLIENT) for node in alone}
    found = set()
    for node in alone:
        rest = Dataflow(tuple([node if each.name == node.name else absent.get(each.name, each) for each in flow.nodes]))
        if node.pinned is not None and not may_miss(rest, node.name):
            found.add(node.pinned)
    return found


def crashed(plan: FaultPlan) -> set[str]:
    """The hosts that a plan crashes."""
    return {fault.host for fault in plan.faults if isinstance(fault, Crash)}


def may_be_lost(plan: FaultPlan, hosts: Sequence[str]) -> set[str]:
    """The hosts that the client may rightly give up: they crash, stop for long, or a way to or from them is cut."""
    stopped = {fault.host for fault in plan.faults if isinstance(fault, Stop) and fault.for_s >= LONG_CUT_S}
    links = itertools.chain.from_iterable((Link(name, CLIENT), Link(CLIENT, name)) for name in hosts if name != CLIENT)
    cut = {name for link in links if _cut_s(plan, link) >= LONG_CUT_S for name in link}
    return crashed(plan) | stopped | cut - {CLIENT}


def may_be_dead(plan: FaultPlan, hosts: Sequence[str]) -> list[Link]:
    """The ways between two hosts that either of them may rightly take for dead: they are cut for long.

    A way that loses bulk alone may be given up sooner.
    """
    gray = {Link(each.source, each.target) for each in plan.faults if isinstance(each, BulkOutage | LargeOutage)}
    long_s = {link: LONG_STALL_S if link in gray else LONG_SILENCE_S for link in links_between(hosts)}
    return [link for link, least_s in long_s.items() if _cut_s(plan, link) >= least_s]


def _cut_s(plan: FaultPlan, link: Link) -> float:
    """Return the longest time that a link loses all, or what is bulk or large. Cuts with little between them are one.

    Cuts of further networks do not count, as partitions have the network that all share besides.
    """
    source, target = link
    spans = [(each.at_s, each.until_s) for each in plan.faults
             if isinstance(each, OfLink) and (each.source, each.target) == link and each.via in ("", NET)]  # fmt: skip
    spans += [(each.at_s, each.at_s + each.for_s) for each in plan.faults
              if isinstance(each, Cut) and (source in each.hosts) != (target in each.hosts)]  # fmt: skip
    longest_s, begun_s, until_s = 0.0, -1.0, -1.0
    for from_s, to_s in sorted(spans):
        begun_s = from_s if from_s > until_s + LIMITS.ping_s else begun_s
        until_s = max(until_s, to_s)
        longest_s = max(longest_s, until_s - begun_s)
    return longest_s
