"""Choice of the hosts that keep the replicas of an operator's state.

Rules:

R1. Hosts that fail together are a *failure domain*: the domain in ``Failover.domains``, or the machine, which is the
    address at which a host listens. Every replica goes to a domain without the operator and without an earlier replica,
    as long as there is a free domain.
R2. Of hosts that are equal by R1, the client comes last, because it is busy with the results.
R3. Of hosts that are equal by R2, a single replica goes to a host without the replica before, in turns. If the
    operator's host and the host of the last replica are lost together, only the progress since the replica before is
    lost.
R4. Of hosts that are equal by R3, the host with the fastest link gets the replica.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def domain_of(host: str, control: str, domains: Mapping[str, str]) -> tuple[str, str]:
    """Return the failure domain of a host (R1). ``control``: endpoint at which the host listens."""
    domain = domains.get(host)
    return ("machine", control.rpartition(":")[0]) if domain is None else ("domain", domain)


def replica_hosts(
    here: str,
    hosts: Collection[str],
    count: int,
    client: str,
    domains: Mapping[str, object],
    rates_bps: Mapping[str, float],
    before: Collection[str] = (),
) -> list[str]:
    """Return the hosts that get the ``count`` replicas of an operator on host ``here``, the best host first.

    ``domains``: by host, including ``here``. ``rates_bps``: known rates of the links to hosts. ``before``: hosts of the
    last replicas.
    """
    turn = {*before} if count == 1 else set[str]()  # R3: several replicas are on different hosts anyway
    # R2 to R4: the client last, then hosts by turns, then the fastest links first
    left = sorted({*hosts} - {here}, key=lambda host: (host == client, host in turn, -rates_bps.get(host, 0.0), host))
    used_domains, chosen = {domains.get(here)}, list[str]()
    while left and len(chosen) < count:
        apart = (host for host in left if domains.get(host) not in used_domains)
        best = next(apart, left[0])  # R1: another failure domain, as long as there is one
        left.remove(best)
        chosen.append(best)
        used_domains.add(domains.get(best))
    return chosen
