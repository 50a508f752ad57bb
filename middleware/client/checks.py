"""Checks of the options of a run, before the run begins. Each check raises UsageError in one line."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import msgspec

from thalweg.middleware.client.membership.host_registry import HostRegistry
from thalweg.middleware.client.steering.run_options import Networks, Planning
from thalweg.middleware.dataflow import MOST_AHEAD
from thalweg.middleware.errors import ProtocolError, UsageError, expect, nearest, one_line, shown, words
from thalweg.middleware.network.networks import Network, check_networks, where_joined
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import Adaptation


def check_mapping(placement: Mapping[str, str] | str) -> Mapping[str, str] | str:
    """Return a placement, or the name of its planner or strategy, if the types are right."""
    if not isinstance(placement, str):
        expect(placement, Mapping, "a placement is a mapping of nodes to hosts, or the name of a planner or strategy")
        words((*placement, *placement.values()), "a placement maps names of nodes to names of hosts")
    return placement


def check_start(start: int) -> None:
    """Raise UsageError if the first partition of a run is below 0."""
    expect(start, int, "the partition to start with is a whole number")
    if start < 0:
        raise UsageError(f"start is {start}; give the first partition, from 0 on")


def check_request(label: str, adaptation: Adaptation | None, planning: Planning) -> None:
    """Raise UsageError for options of a run that have the wrong type."""
    expect(label, str, "the label of a run is a text")
    expect(adaptation, Adaptation | None, "an adaptation is GlobalMoves, LocalMoves or SpaceMoves")
    expect(planning, Planning, "the options of plans are a Planning")


def check_counts(partitions: int | None, call_timeout_s: float | None) -> None:
    """Raise UsageError for fewer than one partition, or for a time limit of calls that is not above 0."""
    expect(1 if partitions is None else partitions, int, "partitions are a whole number")
    if partitions is not None and partitions < 1:
        raise UsageError(f"partitions must be at least 1, not {partitions}")
    expect(1.0 if call_timeout_s is None else call_timeout_s, int | float, "call_timeout_s is a number of seconds")
    if call_timeout_s is not None and not 0 < call_timeout_s < math.inf:
        raise UsageError(f"call_timeout_s is {call_timeout_s!r}; give seconds above 0, or None for no limit")


def check_ahead(ahead: int | str) -> None:
    """Raise UsageError for fewer than 1 or more than ``MOST_AHEAD`` partitions under way over an edge."""
    if ahead == "auto":
        return
    expect(ahead, int, "ahead is a number of partitions, or 'auto'")
    if not 1 <= int(ahead) <= MOST_AHEAD:
        raise UsageError(f"ahead is {ahead}; give how many partitions may be under way over an edge, 1 to {MOST_AHEAD}")


def check_failover(failover: m.Failover, hosts: int, known: Collection[str]) -> m.Failover:
    """Return the options of failover for a run over ``hosts`` hosts, the client included.

    Raises UsageError for more replicas than other hosts, and for domains with a host that is not ``known``.
    """
    expect(failover, m.Failover, "the argument failover is a Failover")
    for field in msgspec.structs.fields(m.Failover):
        setting = getattr(failover, field.name)
        try:
            msgspec.convert(setting, field.type)
        except msgspec.ValidationError as error:
            raise UsageError(f"{field.name} of failover is {shown(setting)}: {one_line(error)}") from None
    if unknown := next((host for host in failover.domains if host not in known), None):
        raise UsageError(f"domains: there is no host {unknown!r}; {nearest(unknown, known)}")
    if failover.replicas >= hosts:
        raise UsageError(
            f"{failover.replicas} replicas of each state need as many other hosts, and the run has {hosts} hosts in"
            f" all; ask for {hosts - 1} at most, or for more hosts"
        )
    return failover


def joined_networks(requested: Networks, roster: HostRegistry) -> dict[str, Network]:
    """Return the networks of a run, restricted to the hosts joined to them.

    Raises UsageError for a wanted rate or a number of hops out of range, and for a network that no host is joined to.
    """
    networks, wanted_hz, hops = requested.networks, requested.wanted_hz, requested.hops
    expect(networks, Mapping, "networks are a mapping of names to Network objects")
    for network in networks.values():
        expect(network, Network, "each value of networks is a Network")
    expect(1.0 if wanted_hz is None else wanted_hz, int | float, "wanted_hz is a number of partitions a second")
    if wanted_hz is not None and not 0 < wanted_hz < math.inf:
        raise UsageError(f"wanted_hz is {wanted_hz!r}; give partitions a second, or None for as many as there can be")
    expect(hops, int, "hops are a whole number of links")
    if not 1 <= hops <= m.MAX_HOPS:
        raise UsageError(f"hops is {hops}; give 1, for links from host to host, to {m.MAX_HOPS}")
    check_networks(networks, roster.ends, roster.gone)
    return where_joined(networks, roster.ends)


def check_told(message: m.Message) -> None:
    """Raise UsageError for a message that a host would refuse."""
    try:
        frames.decode_control(frames.encode(message))
    except (ProtocolError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"the run cannot be sent to the hosts: {error}") from None
