"""Optimal placement problem as arrays: the needs of operators, and the capacities of hosts and links.

Operators are numbered so that producers come before consumers. Hosts are numbered in the order that decides ties. A
placement is an array with the host of every operator. Source: Cardellini, Grassi, Lo Presti, Nardelli (DEBS 2016),
sections 3 to 5. The paper's symbols stand beside the names.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from thalweg.middleware.errors import PlacementError, UsageError

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
Flags = npt.NDArray[np.bool_]
SLACK = 1e-9  # of a capacity: an excess up to this share is rounding, not overload


def _finite(values: Floats) -> Flags:
    return (values >= 0) & np.isfinite(values)


def _share(values: Floats) -> Flags:
    return (values > 0) & (values <= 1)


class Metrics(msgspec.Struct, frozen=True):
    """Metrics of one placement: response time R, availability A, traffic T, network usage N and elastic energy EE.

    R is in seconds. Both fields of log A have a factor for every link in use. ``log_availability`` has a factor for
    every operator, and ``log_availability_of_hosts`` a factor for every host in use (``availability="hosts"``). T is in
    the unit of rates, N in this unit times seconds, EE in this unit times seconds squared.
    """

    response_s: float
    log_availability: float
    log_availability_of_hosts: float
    traffic: float
    usage: float
    energy: float


class OdpInstance(msgspec.Struct, frozen=True, dict=True, kw_only=True):
    """Optimal placement problem: operators and streams to be placed, and hosts with their links.

    - ``names``, ``hosts``: names of the n operators and of the h hosts.
    - ``edges``: (m, 2) producer and consumer of every stream.
    - ``rate``: (m,) λ_ij of every stream, in any unit.
    - ``execution_s``: (n,) R_i. ``demand``: (n,) C_i.
    - ``capacity``: (h,) C_u. ``speed``: (h,) S_u. ``availability``: (h,) A_u.
    - ``delay_s``: (h, h) d_uv. ``link_availability``: (h, h) A_uv. ``bandwidth``: (h, h) B_uv in the unit of rates, inf
      for no limit. A stream within one host takes no time, never fails and has no limit.
    - ``candidates``: (n, h) whether an operator may be on a host. A pinned operator has one candidate.
    """

    names: tuple[str, ...]
    hosts: tuple[str, ...]
    edges: Indices
    rate: Floats
    execution_s: Floats
    demand: Floats
    capacity: Floats
    speed: Floats
    availability: Floats
    delay_s: Floats
    link_availability: Floats
    bandwidth: Floats
    candidates: Flags

    def check(self) -> OdpInstance:
        """Return self. Raise UsageError naming the first operator, host, stream or link with a wrong value."""
        names, hosts, count = self.names, self.hosts, len(self.hosts)
        if not (names and hosts):
            raise UsageError(f"there are {len(names)} operators and {count} hosts; at least one of each is needed")
        sizes = {
            (len(self.edges),): ("rate",),
            (len(names),): ("execution_s", "demand"),
            (count,): ("capacity", "speed", "availability"),
            (count, count): ("delay_s", "link_availability", "bandwidth"),
            (len(names), count): ("candidates",),
        }
        for size, fields in sizes.items():
            for field in fields:
                if (shape := getattr(self, field).shape) != size:
                    raise UsageError(
                        f"{field} has the form {shape}; {len(names)} operators on {count} hosts need {size}"
                    )
        for producer, consumer in self.edges.tolist():
            if not 0 <= producer < consumer < len(names):
                fault = f"a stream goes from operator {producer} to {consumer} of {len(names)}"
                raise UsageError(f"{fault}; each comes before its consumers")
        for node in np.flatnonzero(~self.candidates.any(axis=1))[:1].tolist():
            raise UsageError(f"operator {names[node]!r} has no candidate; name a host that it may be on")
        streams = [f"the stream from {names[a]!r} to {names[b]!r}" for a, b in self.edges.tolist()]
        operators, machines = (
            [f"{kind} {name!r}" for name in of] for kind, of in (("operator", names), ("host", hosts))
        )
        links = [f"the link from {a!r} to {b!r}" for a in hosts for b in hosts]
        everywhere, apart = np.True_, self.unlike > 0
        positive = "above 0 and finite, 2 for twice as fast"
        for field, fits, where, of, right in (
            ("rate", _finite(self.rate), everywhere, streams, "at least 0 and finite"),
            ("execution_s", _finite(self.execution_s), everywhere, operators, "at least 0 and finite"),
            ("demand", _finite(self.demand), everywhere, operators, "at least 0 and finite"),
            ("capacity", self.capacity >= 0, everywhere, machines, "at least 0, inf for no limit"),
            ("speed", _finite(self.speed) & (self.speed > 0), everywhere, machines, positive),
            ("availability", _share(self.availability), everywhere, machines, "above 0, at most 1"),
            ("link_availability", _share(self.link_availability), apart, links, "above 0, at most 1"),
            ("delay_s", _finite(self.delay_s), apart & self.reachable, links, "given, at least 0 and finite"),
            ("bandwidth", self.bandwidth >= 0, apart, links, "at least 0, inf for no limit"),
        ):
            for wrong in np.flatnonzero(where & ~fits)[:1].tolist():
                value = getattr(self, field).ravel()[wrong]
                fault = "is missing" if np.isnan(value) else f"is {value:g}"
                raise UsageError(f"{field} of {of[wrong]} {fault}; it must be {right}")
        return self

    @cached_property
    def reachable(self) -> Flags:
        """(h, h) flags: whether a stream may go from the first host to the second."""
        reachable = np.zeros((len(self.hosts), len(self.hosts)), dtype=bool)
        for producer, consumer in self.edges.tolist():
            reachable |= self.candidates[producer][:, None] & self.candidates[consumer]
        return reachable

    @property
    def count(self) -> int:
        """Number of operators."""
        return len(self.names)

    @cached_property
    def ways_s(self) -> Floats:
        """(h, h) delays d_uv, 0 within one host. A missing delay, which no stream uses, is 0 as well."""
        return np.nan_to_num(np.where(np.eye(len(self.hosts), dtype=bool), 0.0, self.delay_s), nan=0.0, posinf=0.0)

    @cached_property
    def unlike(self) -> Floats:
        """(h, h) 1 for two different hosts, 0 for the same host."""
        return 1.0 - np.eye(len(self.hosts))

    @cached_property
    def log_links(self) -> Floats:
        """(h, h) log A_uv, 0 within one host."""
        return np.log(np.where(np.eye(len(self.hosts), dtype=bool), 1.0, self.link_availability))

    @cached_property
    def inputs(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Producers of every operator, each with the number of the stream."""
        return self._beside(1)

    @cached_property
    def outputs(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Consumers of every operator, each with the number of the stream."""
        return self._beside(0)

    def _beside(self, own: int) -> tuple[tuple[tuple[int, int], ...], ...]:
        neighbours: list[list[tuple[int, int]]] = [[] for _ in self.names]
        for number, ends in enumerate(self.edges.tolist()):
            neighbours[ends[own]].append((ends[1 - own], number))
        return tuple(map(tuple, neighbours))

    @cached_property
    def limited(self) -> bool:
        """Return whether a link that a stream may take could be too narrow. If no link could, (17) has no effect."""
        return bool((self.bandwidth < self.rate.sum())[self.reachable & (self.unlike > 0)].any())

    # --- placements -----------------------------------------------------------------------------

    def where(self, placement: Iterable[str]) -> Indices:
        """Return a placement as an array. ``placement``: host names, in the order of the operators."""
        number = {host: at for at, host in enumerate(self.hosts)}
        return np.array([number[host] for host in placement], dtype=np.intp)

    def responses_s(self, where: Indices) -> Floats:
        """Return the response times R (rows,) of many placements (rows, n).

        R is the longest path from a source to a sink, (1) to (4).
        """
        took = self.execution_s / self.speed[where]
        done = took.copy()
        for node, inputs in enumerate(self.inputs):
            if inputs:
                ready = [done[:, other] + self.ways_s[where[:, other], where[:, node]] for other, _ in inputs]
                done[:, node] += np.maximum.reduce(ready)
        responses_s: Floats = done.max(axis=1)
        return responses_s

    def metrics(self, where: Indices) -> Metrics:
        """Return the metrics of one placement."""
        ends = where[self.edges[:, 0]], where[self.edges[:, 1]]
        links = float(self.log_links[ends].sum())
        hosts = np.log(self.availability)
        ways = self.ways_s[ends]
        return Metrics(
            response_s=float(self.responses_s(where[None])[0]),
            log_availability=float(hosts[where].sum()) + links,
            log_availability_of_hosts=float(hosts[np.unique(where)].sum()) + links,
            traffic=float((self.rate * self.unlike[ends]).sum()),
            usage=float((self.rate * ways).sum()),
            energy=float((self.rate * ways**2).sum()),
        )

    def loads(self, where: Indices) -> Floats:
        """Return the sum of demands on every host, (h,)."""
        return np.bincount(where, self.demand, len(self.hosts)).astype(np.float64, copy=False)

    def flows(self, where: Indices) -> Floats:
        """Return the sum of stream rates from every host to every other host, (h, h)."""
        hosts = len(self.hosts)
        ends = where[self.edges[:, 0]] * hosts + where[self.edges[:, 1]]
        flows: Floats = np.bincount(ends, self.rate, hosts * hosts).reshape(hosts, hosts) * self.unlike
        return flows

    def shortfall(self, where: Indices) -> str:
        """Return a text with the first constraint that a placement breaks, and by how much. Empty: no constraint."""
        for node, host in enumerate(where.tolist()):
            if not self.candidates[node, host]:
                return f"operator {self.names[node]!r} is on {self.hosts[host]!r}, which is no candidate of it"
        loads = self.loads(where)
        for host in np.flatnonzero(loads > self.capacity * (1 + SLACK))[:1].tolist():
            fault = f"host {self.hosts[host]!r} has a capacity of {self.capacity[host]:g}"
            return f"{fault}, {loads[host] - self.capacity[host]:g} short of {loads[host]:g} (11)"
        if self.limited:
            flows = self.flows(where)
            for u, v in np.argwhere(flows > self.bandwidth * (1 + SLACK))[:1].tolist():
                fault = (
                    f"the link from {self.hosts[u]!r} to {self.hosts[v]!r} has a bandwidth of {self.bandwidth[u, v]:g}"
                )
                return f"{fault}, {flows[u, v] - self.bandwidth[u, v]:g} short of {flows[u, v]:g} (17)"
        return ""

    def lacks(self, where: Indices) -> Floats:
        """Return by how much many placements (rows, n) break constraints, (rows,).

        The result adds up the missing room, the missing bandwidth, and the number of operators on hosts that are no
        candidates.
        """
        rows, hosts = np.arange(len(where))[:, None], len(self.hosts)
        loads = np.zeros((len(where), hosts))
        np.add.at(loads, (rows, where), np.broadcast_to(self.demand, where.shape))
        total = np.maximum(0.0, loads - self.capacity * (1 + SLACK)).sum(axis=1)
        total += (~self.candidates[np.arange(self.count), where]).sum(axis=1)
        if self.limited:
            flows = np.zeros((len(where), hosts, hosts))
            ends = where[:, self.edges[:, 0]], where[:, self.edges[:, 1]]
            np.add.at(flows, (rows, *ends), np.broadcast_to(self.rate, ends[0].shape))
            over = np.where(self.unlike > 0, flows - self.bandwidth * (1 + SLACK), 0.0)
            total += np.maximum(0.0, over).sum(axis=(1, 2))
        lacks: Floats = total
        return lacks

    def require(self, where: Indices) -> None:
        """Raise PlacementError if a placement breaks a constraint."""
        if shortfall := self.shortfall(where):
            raise PlacementError(shortfall)


def sampled(instance: OdpInstance, share: float, random: np.random.Generator) -> OdpInstance:
    """Return the instance with a random ``share`` of the candidates of every operator.

    Every operator keeps at least one candidate.
    """
    candidates = np.zeros_like(instance.candidates)
    for node, allowed in enumerate(instance.candidates):
        hosts = np.flatnonzero(allowed)
        candidates[node, random.choice(hosts, max(1, round(share * len(hosts))), replace=False)] = True
    return msgspec.structs.replace(instance, candidates=candidates)
