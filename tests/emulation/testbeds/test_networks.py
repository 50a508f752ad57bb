"""Hosts on several networks at once: cables, links and proofs of every network, and refusals."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from patience import patience

from thalweg import Testbed, TestbedError, UsageError
from thalweg.emulation.containers import engine
from thalweg.emulation.containers.limits import Containers
from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.proofs.proof import failures
from thalweg.emulation.testbeds.docker import DockerTestbed
from thalweg.emulation.testbeds.netns import NetnsTestbed
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.network.view import NET, Link, links_between

NAMES = ["a", "b", "c"]
LEASED = [Link("a", "b", "leased"), Link("b", "a", "leased")]
REACHED = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), 2)
except OSError as error:
    print(error.strerror)
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[Testbed]:
    with Testbed.open("netns", NAMES, rate="20mbit", networks=["leased", "spare"]) as bed:
        leased = bed.on("leased")
        leased.set("a", "b", rate="4mbit", both=True)
        leased.set("a", "c", rate="6mbit", both=True)
        yield bed


def said(bed: Testbed, host: str, *words: str) -> str:
    return bed.run(host, [sys.executable, "-c", REACHED, *words]).stdout.strip()


@pytest.mark.netns
@pytest.mark.program("ip", "ping")
def test_ipv6_link_local_pings_pass_only_where_there_is_a_link(bed: Testbed) -> None:
    def reaches(source: str, target: str) -> bool:
        shown = bed.run(target, ["ip", "-6", "-o", "addr", "show", "dev", "eth1", "scope", "link"], check=True).stdout
        address = f"{shown.split('inet6 ')[1].split('/')[0]}%eth1"
        return bed.run(source, ["ping", "-6", "-c3", "-i0.2", f"-W{patience(1)}", address]).returncode == 0

    if not bed.hosts_6:
        pytest.skip("this kernel has no IPv6")
    assert reaches("a", "b")
    assert not reaches("b", "c")
    assert bed._bed.status()["strangers"] == {}


@pytest.mark.netns
@pytest.mark.program("ip")
def test_every_network_has_an_interface_addresses_and_only_the_links_that_were_set(bed: Testbed) -> None:
    leased, spare = bed.on("leased"), bed.on("spare")
    assert bed.hosts["b"] == "10.77.0.2"
    assert leased.hosts["b"] == "10.78.0.2"
    assert spare.hosts["b"] == "10.79.0.2"
    shown = bed.run("b", ["ip", "-o", "-4", "addr"]).stdout
    assert [line.split()[1] for line in shown.splitlines() if "10.7" in line] == ["eth0", "eth1", "eth2"]
    assert leased.links.keys() == {*LEASED, Link("a", "c", "leased"), Link("c", "a", "leased")}
    assert not spare.links
    assert said(bed, "a", bed.hosts["b"]) == said(bed, "a", leased.hosts["b"]) == "Connection refused"
    assert "unreachable" in said(bed, "b", leased.hosts["c"])  # there is no link, and no way round
    assert "unreachable" in said(bed, "a", spare.hosts["b"])
    if not bed._bed.unnamed:
        assert said(bed, "a", "b.leased") == "Connection refused"


@pytest.mark.netns
def test_a_cut_in_a_network_leaves_the_other_networks_alone(bed: Testbed) -> None:
    leased = bed.on("leased")
    leased.cut("a", "b", both=True)
    assert said(bed, "a", leased.hosts["b"]) != said(bed, "a", bed.hosts["b"]) == "Connection refused"
    leased.restore()
    bed.on(NET).cut("a")
    assert said(bed, "a", leased.hosts["b"]) == "Connection refused"
    assert [link for link, shape in bed.links.items() if shape.cut] == [
        link for link in bed.on(NET).links if "a" in link
    ]
    bed.restore()
    assert not any(shape.cut for shape in bed.links.values())


@pytest.mark.timed
@pytest.mark.netns
@pytest.mark.program("ping")
def test_links_of_all_networks_are_proven_replayed_and_sampled(bed: Testbed) -> None:
    proofs = {proof.link: proof for proof in bed.prove()}
    assert proofs.keys() == bed.links.keys()
    assert proofs[LEASED[0]].asked_bps == 4e6
    assert {proof.link for proof in bed.on("leased").prove()} == bed.on("leased").links.keys()
    backend = bed._bed
    steps = {LEASED[0]: BandwidthTrace.constant("l", 5e6), Link("a", "b"): BandwidthTrace.constant("n", 10e6)}
    backend.replay(steps).start()
    assert bed.links[LEASED[0]].rate_bps == 5e6
    assert bed.links[Link("a", "b")].rate_bps == 10e6
    backend.start_sampling(0.05)
    bed.run("a", ["ping", "-c3", "-i0.05", "-s1000", bed.on("leased").hosts["b"]])
    backend.stop_sampling()
    assert {sample.link for sample in backend.samples()} == {*LEASED}
    backend.stop_replay()


@pytest.mark.timed
@pytest.mark.netns
def test_a_cable_limit_holds_for_a_single_network_and_direction(bed: Testbed) -> None:
    into = [Link("b", "a", "leased"), Link("c", "a", "leased"), Link("b", "a")]
    out = [Link(link.target, link.source, link.via) for link in into]
    own = {link: bed.links[link].rate_bps for link in (*into, *out)}
    for up_bps, down_bps, limited in (({}, {"a": 2e6}, into[:2]), ({"a": 2e6}, {}, out[:2])):
        bed._bed.limit_hosts(up_bps, down_bps, "leased")
        proofs = bed._bed.prove([*into, *out])
        assert failures(proofs) == []
        asked = {proof.link: proof.asked_bps for proof in proofs}
        assert asked == {link: 2e6 if link in limited else pytest.approx(bps) for link, bps in own.items()}
        status = bed._bed.status()
        assert status["up_bps"] == {f"{host}.leased": bps for host, bps in up_bps.items()}
        assert status["down_bps"] == {f"{host}.leased": bps for host, bps in down_bps.items()}
        bed._bed.limit_hosts({"a": None}, {"a": None}, "leased")
    with pytest.raises(UsageError, match="no network 'leesed'; did you mean 'leased'"):
        bed._bed.limit_hosts({"a": 1e6}, via="leesed")


@pytest.mark.timed
@pytest.mark.docker
def test_containers_have_an_interface_in_every_network(docker_image: str) -> None:
    hosts, links = Containers(docker_image), links_between(NAMES[:2])
    with DockerTestbed(NAMES, subnet="10.93.0.0/24", networks=["leased"], containers=hosts) as backend:
        bed = Testbed(backend)
        bed.set(rate="20mbit")
        bed.on("leased").set("a", "b", rate="4mbit", both=True)
        proofs = {proof.link: proof for proof in bed.prove(*NAMES[:2], both=True) + bed.on("leased").prove()}
        assert proofs.keys() == {*LEASED, *links}
        leased, python = bed.on("leased").hosts, [backend.python, "-c", REACHED]
        assert [bed.run("a", [*python, ip]).stdout.strip() for ip in (leased["b"], bed.hosts["c"])] == [
            "Connection refused"
        ] * 2
        assert "No route to host" in bed.run("a", [*python, leased["c"]]).stdout


@pytest.mark.docker
def test_an_engine_that_refuses_a_second_interface_leaves_no_container_or_network(
    docker_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker, client = engine.sdk()

    def refuse(*_: object, **__: object) -> None:
        raise docker.errors.APIError("no more interfaces")

    monkeypatch.setattr(client.api, "connect_container_to_network", refuse)
    refused = DockerTestbed(["a"], networks=["leased"], containers=Containers(docker_image))
    with pytest.raises(TestbedError, match=f"^making the containers of testbed {refused.run_id}.*no more interfaces$"):
        refused.up()
    labels = {"label": [f"{engine.RUN}={refused.run_id}"]}
    assert not client.api.containers(all=True, filters=labels)
    assert not client.api.networks(filters=labels)


@pytest.mark.netns
def test_unknown_and_impossible_networks_are_refused(bed: Testbed) -> None:
    with pytest.raises(UsageError, match="no network 'x'"):
        bed.on("x")
    with pytest.raises(UsageError, match="this testbed has no network 'x'"):
        bed._bed.shape({Link("a", "b", "x"): LinkShape(1e6)})
    for wrong in (["n", "n"], [NET], [""], list("abcdefgh")):
        with pytest.raises(UsageError, match="network"):
            NetnsTestbed(["a"], networks=wrong)
    with pytest.raises(UsageError, match="no subnet behind"):
        NetnsTestbed(["a"], subnet="255.255.0.0/16", networks=["n"])
