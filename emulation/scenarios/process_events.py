"""What befalls hosts' processes in a run: ``--kill h3@40``, ``--drain``, ``--join``, and a scenario file's events.

Seconds of when are emulated. How long a host that was killed is away is a matter of its machine's supervisor, as limits
are of hosts: seconds of the wall clock.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

import msgspec

from thalweg.emulation.links.units import seconds
from thalweg.emulation.scenarios.events import Deed
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import UsageError, nearest

AWAY_S = 5.0  # wall clock; what a supervisor waits before it starts a process again
NEVER = "never"
KINDS = {"kill": "crash", "drain": "drain", "join": "join"}  # of deeds, by option


def read_deed(option: str, text: str, hosts: Collection[str], time_scale: float) -> list[Deed]:
    """What ``--kill h3@40``, ``h3@40s:restart=10`` or ``h3@40:restart=never`` means; UsageError for anything else.

    What is drained is not started again unless that is said, and what joins is there then for the first time.
    """
    where, _, more = text.partition(":")
    host, _, at = where.partition("@")
    key, _, value = more.partition("=")
    if option == "join" and (more or not at):
        raise UsageError(f"--join {text!r} is not HOST@SECONDS, as h3@40")
    if not at or (more and (key != "restart" or not value)):
        example = f"h3@40, h3@40:restart=10 or h3@40:restart={NEVER}"
        raise UsageError(f"--{option} {text!r} is not HOST@SECONDS, as {example}")
    if host not in hosts:
        raise UsageError(f"--{option} {text}: there is no server {host!r}; {nearest(host, hosts)}")
    usual_s = AWAY_S if option == "kill" else math.inf
    try:
        at_s, away_s = seconds(at), usual_s if not more else math.inf if value == NEVER else seconds(value)
    except UsageError as error:
        raise UsageError(f"--{option} {text}: {error}") from None
    found = [Deed(at_s, host, KINDS[option])]
    if away_s < math.inf:
        found.append(Deed(at_s + away_s * time_scale, host, "restart"))
    return found


def deeds_of(
    asked: Iterable[tuple[str, str]], hosts: Collection[str], time_scale: float, others: Iterable[Deed] = ()
) -> list[Deed]:
    """All of them, by time; ``asked``: options and what each says, ``others``: a scenario file's."""
    said = [deed for option, text in asked for deed in read_deed(option, text, hosts, time_scale)]
    return sorted([*others, *said])


def joining(deeds: Iterable[Deed]) -> set[str]:
    """The hosts that are not there at first."""
    return {deed.host for deed in deeds if deed.kind == "join"}


def with_stand_ins(flow: Dataflow, stand_ins: Mapping[str, tuple[str, ...]]) -> Dataflow:
    """The same where sources may be elsewhere, by the host to which they are pinned."""
    if not stand_ins:
        return flow
    others = {n.name: stand_ins.get(n.pinned or "", ()) for n in flow.nodes if n.kind == "source"}
    nodes = [msgspec.structs.replace(n, stand_ins=others.get(n.name, n.stand_ins)) for n in flow.nodes]
    return Dataflow(tuple(nodes)).validate()


def read_stand_ins(texts: Iterable[str], hosts: Collection[str]) -> dict[str, tuple[str, ...]]:
    """By server the hosts that ``h3=h4`` or ``h3=h4,h5`` names for its source; UsageError for anything else."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        host, _, named = text.partition("=")
        others = tuple(named.split(","))
        for name in (host, *others):
            if name not in hosts:
                raise UsageError(f"--stand-in {text}: there is no server {name!r}; {nearest(name, hosts)}")
        if host in others:
            raise UsageError(f"--stand-in {text}: a server does not stand in for itself")
        found[host] = others
    return found
