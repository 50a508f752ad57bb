"""Events of hosts' processes in a run: ``--kill h3@40``, ``--drain``, ``--join``, and events of a scenario file.

Times of events are emulated seconds. The time until a killed process starts again is in seconds of the wall clock, as
the supervisor of the machine keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

import msgspec

from thalweg.emulation.links.units import seconds
from thalweg.emulation.scenarios.events import Deed
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.errors import UsageError, nearest

AWAY_S = 5.0  # wall clock: time until a supervisor starts a process again
NEVER = "never"
KINDS = {"kill": "crash", "drain": "drain", "join": "join"}  # of deeds, by option


def read_deed(option: str, text: str, hosts: Collection[str], time_scale: float) -> list[Deed]:
    """Return the events of ``--kill h3@40``, ``h3@40s:restart=10`` or ``h3@40:restart=never``.

    Without ``restart``, a killed process starts again after ``AWAY_S``, and a drained one never. A host that joins
    starts for the first time. Raises UsageError for another form.
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
    deeds = [Deed(at_s, host, KINDS[option])]
    if away_s < math.inf:
        deeds.append(Deed(at_s + away_s * time_scale, host, "restart"))
    return deeds


def deeds_of(
    asked: Iterable[tuple[str, str]], hosts: Collection[str], time_scale: float, others: Iterable[Deed] = ()
) -> list[Deed]:
    """Return the events of options and of a scenario file (``others``), by time. ``asked``: options and values."""
    asked_deeds = [deed for option, text in asked for deed in read_deed(option, text, hosts, time_scale)]
    return sorted([*others, *asked_deeds])


def joining(deeds: Iterable[Deed]) -> set[str]:
    """Return the hosts without a process at the start."""
    return {deed.host for deed in deeds if deed.kind == "join"}


def with_stand_ins(flow: Dataflow, stand_ins: Mapping[str, tuple[str, ...]]) -> Dataflow:
    """Return the dataflow with stand-ins of sources. ``stand_ins``: by the host to which a source is pinned."""
    if not stand_ins:
        return flow
    stand_ins_of = {n.name: stand_ins.get(n.pinned or "", ()) for n in flow.nodes if n.kind == "source"}
    nodes = [msgspec.structs.replace(n, stand_ins=stand_ins_of.get(n.name, n.stand_ins)) for n in flow.nodes]
    return Dataflow(tuple(nodes)).validate()


def read_stand_ins(texts: Iterable[str], hosts: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the stand-ins by server, from ``h3=h4`` or ``h3=h4,h5``: hosts that may run the server's source instead.

    Raises UsageError for another form.
    """
    by_server: dict[str, tuple[str, ...]] = {}
    for text in texts:
        host, _, named = text.partition("=")
        substitutes = tuple(named.split(","))
        for name in (host, *substitutes):
            if name not in hosts:
                raise UsageError(f"--stand-in {text}: there is no server {name!r}; {nearest(name, hosts)}")
        if host in substitutes:
            raise UsageError(f"--stand-in {text}: a server does not stand in for itself")
        by_server[host] = substitutes
    return by_server
