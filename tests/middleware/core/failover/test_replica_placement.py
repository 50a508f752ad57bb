"""Choice of the hosts that keep replicas: in other domains, over the fastest links."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.faults import FaultPlan
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.experiments.faults.expected_losses import LIMITS
from thalweg.experiments.faults.generated_plans import code_of, draw_trial
from thalweg.middleware.core.failover.replica_placement import domain_of, replica_hosts
from thalweg.middleware.dataflow import Code
from thalweg.middleware.errors import UsageError
from thalweg.middleware.protocol.messages import Failover

DOMAINS = {"h1": "a", "h2": "a", "h3": "b", "h4": "b", "h5": "c", "client": "d"}
RATES = {"h2": 9.0, "h3": 2.0, "h4": 3.0, "h5": 1.0, "client": 8.0}


@pytest.mark.parametrize(
    ("count", "found"),
    [(1, ["h4"]), (2, ["h4", "h5"]), (3, ["h4", "h5", "client"]), (5, ["h4", "h5", "client", "h2", "h3"])],
)
def test_replicas_go_to_other_domains_over_the_fastest_links(count: int, found: list[str]) -> None:
    assert replica_hosts("h1", DOMAINS, count, "client", DOMAINS, RATES) == found


@pytest.mark.parametrize(
    ("before", "found"), [((), "h4"), (("h4",), "h5"), (("h5",), "h4"), (("h3", "h4", "h5"), "h4"), (("client",), "h4")]
)
def test_a_single_replica_alternates_between_hosts_of_other_domains(before: tuple[str, ...], found: str) -> None:
    """The same host is chosen again before a host in the operator's domain, and before the client."""
    rates = {**RATES, "h5": 2.5}
    assert replica_hosts("h1", DOMAINS, 1, "client", DOMAINS, rates, before) == [found]
    assert replica_hosts("h1", DOMAINS, 2, "client", DOMAINS, rates, before) == ["h4", "h5"]


def test_hosts_on_the_same_machine_share_a_domain_by_default() -> None:
    assert domain_of("h1", "tcp://10.0.0.1:7800", {}) == domain_of("h2", "tcp://10.0.0.1:7801", {})
    assert domain_of("h1", "tcp://10.0.0.1:7800", {}) != domain_of("h2", "tcp://10.0.0.2:7800", {})
    assert domain_of("h1", "tcp://10.0.0.1:7800", {"h1": "r"}) == domain_of("h2", "tcp://10.0.0.2:7800", {"h2": "r"})


@given(
    st.dictionaries(st.sampled_from([f"h{n}" for n in range(9)]), st.integers(0, 3), min_size=2),
    st.integers(1, 8),
    st.randoms(use_true_random=False),
)
def test_replicas_share_no_domain_while_an_unused_domain_is_left(
    domains: dict[str, int], count: int, random: object
) -> None:
    here, rates = min(domains), {host: random.random() for host in domains}  # type: ignore[attr-defined]
    chosen = replica_hosts(here, domains, count, max(domains), domains, rates)
    assert len(chosen) == len({*chosen}) == min(count, len(domains) - 1)
    assert here not in chosen
    domain_count = len({*domains.values()} - {domains[here]})
    first = [domains[host] for host in chosen[:domain_count]]
    assert len({*first, domains[here]}) == len(first) + 1


@pytest.mark.parametrize("apart", [False, True])
def test_a_run_keeps_replicas_outside_the_domain_of_the_operators(apart: bool) -> None:
    trial = draw_trial(1)
    flow = replace(
        trial.dataflow,
        nodes=tuple(replace(n, code=Code("running")) if n.kind == "operator" else n for n in trial.dataflow.nodes),
    )
    world = FaultyWorld(
        trial.hosts,
        trial.links,
        partial(code_of, trial),
        FaultPlan(1),
        WorldConfig(interface=trial.interface, core=LIMITS),
    )
    where = {trial.placement[name] for name in flow.operators}
    free_hosts = [host for host in trial.hosts if host not in where]
    domains = dict.fromkeys({*where, *(free_hosts[:-1] if apart else ())}, "there")
    keepers: set[str] = set()

    def look(*_: object) -> None:
        for name, host in world.hosts.items():
            keepers.update(
                name for replicas in host.core.hosted.failover_runs.replicas.values() if name not in where and replicas
            )

    world.failover, world.on_delivered = Failover(every=1, domains=domains), look
    world.run(flow, trial.placement, trial.partitions)
    assert world.failed is None
    assert (keepers == {free_hosts[-1]}) if apart else (keepers and keepers != {free_hosts[-1]})


def test_a_domain_of_an_unknown_host_is_refused() -> None:
    from thalweg.middleware.client.client import Client
    from thalweg.middleware.client.cluster import LocalCluster
    from thalweg.middleware.dataflow import complete_binary_tree

    with LocalCluster(2) as cluster, Client(cluster) as client:
        flow = complete_binary_tree({"h1": Code("scenes"), "h2": Code("scenes")}, Code("running"))
        with pytest.raises(UsageError, match="there is no host 'h9'; did you mean"):
            client.run(flow, {"op0": "h1"}, failover=Failover(domains={"h9": "rack"}))
