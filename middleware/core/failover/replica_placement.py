"""Which hosts keep the replicas of an operator's state.

Rules:

R1. What fails together is a *failure domain*: a host's is what ``Failover.domains`` says, else its machine, the address
    at which it listens. Each next replica goes to a domain in which neither the operator nor a replica before it is, as
    long as there is one.
R2. Of the hosts that are as good by R1 it goes to the client last: it is busy with what comes out.
R3. Of those that are as good by R2 one replica goes to others than the one before, by turns: so the loss of the
    operator's host together with that of its last replica costs no more than what came since the replica before.
R4. Of those that are as good by R3 it goes where the way is cheapest: where the state takes the shortest time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping


def domain_of(host: str, control: str, domains: Mapping[str, str]) -> tuple[str, str]:
    """R1: a host's failure domain; ``control``: where it listens."""
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
    """Those of ``hosts`` that get the ``count`` replicas of an operator on host ``here``, the best first.

    ``domains``: of hosts, ``here`` among them. ``rates_bps``: of the ways there that are known.
    ``before``: who got the last ones.
    """
    turn = {*before} if count == 1 else set[str]()  # R3: several replicas are apart already
    # R2 to R4: the client last, then hosts by turns, then the fastest ways first
    left = sorted({*hosts} - {here}, key=lambda host: (host == client, host in turn, -rates_bps.get(host, 0.0), host))
    used_domains, chosen = {domains.get(here)}, list[str]()
    while left and len(chosen) < count:
        apart = (host for host in left if domains.get(host) not in used_domains)
        best = next(apart, left[0])  # R1: another failure domain, as long as there is one
        left.remove(best)
        chosen.append(best)
        used_domains.add(domains.get(best))
    return chosen
