"""Standstills of a trial's streams, and whether a message names the fault behind each.

A stream stands still while a sink gets nothing. If a fault of the plan lasts meanwhile, the run has to say so: by its
end with a reason, or by a record of kind ``fault`` that says what is wrong, as at a failover. The message has to name a
host that one of the lasting faults concerns.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from thalweg.emulation.virtual.faults import BulkOutage, Crash, Cut, FaultPlan, LargeOutage, Outage, Stop
from thalweg.middleware.protocol import events as e

JUST_S = 2.0  # before a standstill: what was said then holds for it, as a partition that was on its way came after it
NAMED = re.compile(r"host '([^']+)'")


class Lasting(NamedTuple):
    """A fault that lasts for some time, and the hosts it concerns.

    ``once``: what the run has said of it holds until it ends, as of a host that is gone. Otherwise every standstill
    needs a message of its own, as the run goes on elsewhere and may come back.
    """

    hosts: frozenset[str]
    from_s: float
    until_s: float
    once: bool = False


class Said(NamedTuple):
    """A message of the run, and the hosts that it names."""

    at_s: float
    hosts: frozenset[str]


class Standstill(NamedTuple):
    """Time in which a sink got nothing, and the part of it that a fault lasted without a message."""

    sink: str
    from_s: float
    until_s: float
    unnamed_s: float


def lasting(plan: FaultPlan, hosts: Collection[str]) -> Iterator[Lasting]:
    """Return the faults of a plan that keep messages from one of these hosts for some time.

    Other clients are none of them: their crash holds up no sink of the application.
    """
    for fault in plan.faults:
        match fault:
            case Outage() | BulkOutage() | LargeOutage():
                ends = frozenset((fault.source, fault.target))
                yield Lasting(ends, fault.at_s, fault.until_s)
            case Cut():
                yield Lasting(frozenset(hosts), fault.at_s, fault.at_s + fault.for_s)
            case Crash() if fault.host in hosts:
                back_s = math.inf if fault.restart_after_s is None else fault.restart_after_s
                yield Lasting(frozenset((fault.host,)), fault.at_s, fault.at_s + back_s, once=True)
            case Stop() if fault.host in hosts:
                yield Lasting(frozenset((fault.host,)), fault.at_s, fault.at_s + fault.for_s, once=True)


class Watch:
    """When each sink of the application got a partition, and what the run said meanwhile."""

    def __init__(self, client: str) -> None:
        self._client = client
        self.got_s: defaultdict[str, list[float]] = defaultdict(list)
        self.said: list[Said] = []

    def on_delivered(self, sink: str, now: float) -> None:
        """Note that a sink has got a partition."""
        self.got_s[sink].append(now)

    def on_record(self, host: str, now: float, record: e.Record) -> None:
        """Note a record that tells people what is wrong."""
        detail: dict[str, Any] = record.fields.get("detail", {})
        if record.kind != "fault" or "what" not in detail:
            return
        named = {host, str(record.fields.get("peer", ""))} - {self._client, ""}
        self.said.append(Said(now, frozenset(named | {*NAMED.findall(str(detail.get("what", "")))})))

    def on_failed(self, now: float, why: str) -> None:
        """Note the end of the run, with its reason."""
        self.said.append(Said(now, frozenset(NAMED.findall(why))))

    def standstills(self, faults: Iterable[Lasting], sinks: Iterable[str], over_s: float) -> Iterator[Standstill]:
        """Return the standstills during which a fault lasted. ``sinks`` that have begun wait until ``over_s``."""
        known = [*faults]
        for sink in sinks:
            for from_s, until_s in itertools.pairwise([0.0, *self.got_s[sink], over_s]):
                there = [fault for fault in known if fault.from_s < until_s and from_s < fault.until_s]
                unnamed_s = self._unnamed_s(there, from_s, until_s)
                if unnamed_s > 0:
                    yield Standstill(sink, from_s, until_s, unnamed_s)

    def _unnamed_s(self, there: list[Lasting], from_s: float, until_s: float) -> float:
        """Return for how long a fault of a standstill lasted at most before a message named a host of one of them."""
        concerned = frozenset[str]().union(*[fault.hosts for fault in there])
        longest_s = 0.0
        for fault in there:
            begins_s, ends_s = max(from_s, fault.from_s), min(until_s, fault.until_s)
            counts_s = (fault.from_s if fault.once else begins_s) - JUST_S
            hosts = fault.hosts if fault.once else concerned
            said_s = [said.at_s for said in self.said if said.at_s >= counts_s and said.hosts & hosts]
            told_s = min(said_s, default=math.inf)
            longest_s = max(longest_s, min(ends_s, told_s) - begins_s)
        return longest_s
