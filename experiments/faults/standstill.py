"""Standstills of a trial's streams, and a check that a message names the fault behind every standstill.

A stream stands still while a sink receives nothing. If a fault of the plan lasts meanwhile, a message is needed. It is
the end of the run with a reason, or a record of kind ``fault`` with an error, as at a failover. The message has to name
a host that a lasting fault concerns.
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

JUST_S = 2.0  # before a standstill, in which messages count: a partition on its way may arrive after the message
NAMED = re.compile(r"host '([^']+)'")


class Lasting(NamedTuple):
    """Fault that lasts for some time, and the concerned hosts.

    ``once``: one message is valid until the fault ends, as for a lost host. Otherwise every standstill needs a message,
    because the run goes on elsewhere and may return.
    """

    hosts: frozenset[str]
    from_s: float
    until_s: float
    once: bool = False


class Message(NamedTuple):
    """Message of the run to people, and the named hosts."""

    at_s: float
    hosts: frozenset[str]


class Standstill(NamedTuple):
    """Time in which a sink received nothing, and the part of it that a fault lasted without a message."""

    sink: str
    from_s: float
    until_s: float
    unnamed_s: float


def lasting(plan: FaultPlan, hosts: Collection[str]) -> Iterator[Lasting]:
    """Yield the faults of a plan that keep messages from one of ``hosts`` for some time.

    Other clients are not among the hosts: their crash holds up no sink of the application.
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
    """Record of the partitions of every sink of the application by time, and of the messages of the run.

    ``no_client``: spans in which the run has no client, so that nobody can be notified. The spans are no standstills.
    """

    def __init__(self, client: str) -> None:
        self._client = client
        self.got_s: defaultdict[str, list[float]] = defaultdict(list)
        self.messages: list[Message] = []
        self.no_client: list[tuple[float, float]] = []

    def on_delivered(self, sink: str, now: float) -> None:
        """Record that a sink has received a partition."""
        self.got_s[sink].append(now)

    def on_record(self, host: str, now: float, record: e.Record) -> None:
        """Record the message to people in a record of a fault."""
        detail: dict[str, Any] = record.fields.get("detail", {})
        if record.kind != "fault" or "what" not in detail:
            return
        named = {host, str(record.fields.get("peer", ""))} - {self._client, ""}
        self.messages.append(Message(now, frozenset(named | {*NAMED.findall(str(detail.get("what", "")))})))

    def on_failed(self, now: float, why: str) -> None:
        """Record the end of the run, with its reason."""
        self.messages.append(Message(now, frozenset(NAMED.findall(why))))

    def standstills(self, faults: Iterable[Lasting], sinks: Iterable[str], over_s: float) -> Iterator[Standstill]:
        """Yield the standstills in which a fault lasted unnamed. ``sinks`` that have begun wait until ``over_s``."""
        known = [*faults]
        for sink in sinks:
            spans = [0.0, *self.got_s[sink], over_s]
            spans = sorted([*spans, *[at_s for span in self.no_client for at_s in span if at_s < over_s]])
            for from_s, until_s in itertools.pairwise(spans):
                if any(gone_s <= from_s and until_s <= back_s for gone_s, back_s in self.no_client):
                    continue
                lasting = [fault for fault in known if fault.from_s < until_s and from_s < fault.until_s]
                unnamed_s = self._unnamed_s(lasting, from_s, until_s)
                if unnamed_s > 0:
                    yield Standstill(sink, from_s, until_s, unnamed_s)

    def _unnamed_s(self, faults: list[Lasting], from_s: float, until_s: float) -> float:
        """Return the longest time that a fault of a standstill lasted before a message named a host of the faults."""
        concerned = frozenset[str]().union(*[fault.hosts for fault in faults])
        longest_s = 0.0
        for fault in faults:
            begins_s, ends_s = max(from_s, fault.from_s), min(until_s, fault.until_s)
            counts_s = (fault.from_s if fault.once else begins_s) - JUST_S
            hosts = fault.hosts if fault.once else concerned
            fitting = [message for message in self.messages if message.at_s >= counts_s and message.hosts & hosts]
            named_s = min([message.at_s for message in fitting], default=math.inf)
            longest_s = max(longest_s, min(ends_s, named_s) - begins_s)
        return longest_s
