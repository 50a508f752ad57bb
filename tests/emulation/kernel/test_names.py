"""Names that hosts cannot have, IPv6 addresses of hosts, and the hosts file."""

from __future__ import annotations

import socket
from ipaddress import IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.emulation.kernel.names import hosts_file, ipv6_beside, objection
from thalweg.emulation.testbeds.loopback import LoopbackTestbed
from thalweg.middleware.errors import UsageError


@pytest.mark.parametrize(
    "name", ["localhost", "LocalHost", "localhost.", "a.localhost", "localhost.localdomain", "ip6-localhost"]
)
def test_a_host_may_not_be_named_localhost(name: str) -> None:
    assert objection(["a", name]) == f"host name {name!r} is the name of every host for itself; choose another"


@pytest.mark.parametrize("name", ["1", "127.1", "10.0.0.1", "0x7f000001", "017700000001", "::1", "fe80::1%eth0"])
def test_a_host_name_that_a_resolver_reads_as_an_address_is_refused(name: str) -> None:
    read = socket.getaddrinfo(name.partition("%")[0], None, flags=socket.AI_NUMERICHOST)
    assert read  # without asking anybody
    assert objection(["a", name]) == (
        f"host name {name!r} is an address to every program that looks it up; begin it with a letter"
    )


@pytest.mark.parametrize(
    ("one", "other", "hostname"),
    [("H1", "h1", "h1"), ("a.b", "a-b", "a-b"), ("a b", "a_b", "a-b"), ("a", "a.", "a"), ("é", "ü", "host")],
)
def test_two_host_names_with_the_same_hostname_are_refused(one: str, other: str, hostname: str) -> None:
    for pair in ([one, other], [other, "else", one]):
        error = objection(pair)
        assert error.startswith(f"host names {pair[0]!r} and {pair[-1]!r} are both {hostname!r} as hostnames")
    assert objection([one]) == objection([other]) == ""


def test_a_host_name_that_equals_a_hostname_in_a_network_is_refused() -> None:
    """In a network a host has the further hostname ``HOST.NETWORK``."""
    for name in ("a-leased", "A.Leased", "a.leased"):
        assert objection(["a", name]) == ""
        assert "are both 'a-leased' as hostnames" in objection(["a", name], ["leased"]), name
        assert "are both 'a-leased' as hostnames" in objection([name, "a"], ["leased"]), name


def test_ordinary_names_pass() -> None:
    ordinary = ["client", "h1", "h2", "h10", "aws-eu-west", "m1.example", "1a", "h_1", "localhost1", "x.local", "face"]
    assert objection(ordinary) == ""
    assert objection(ordinary, ["leased", "spare"]) == ""
    assert objection([f"h{number}" for number in range(1, 1024)], ["leased"]) == ""


@pytest.mark.parametrize("hosts", [["localhost"], ["1", "2"], ["h1", "H1"]])
def test_a_testbed_refuses_bad_host_names_before_the_build(hosts: list[str]) -> None:
    with pytest.raises(UsageError, match="host name"):
        LoopbackTestbed(hosts)


@given(st.ip_addresses(v=4), st.integers(8, 30))
def test_an_ipv6_address_has_the_prefix_of_the_subnet_and_ends_with_the_ipv4_address(ip: object, length: int) -> None:
    beside = IPv6Address(ipv6_beside(str(ip), length))
    assert beside in IPv6Network("fd00::/8")  # nobody's but ours, RFC 4193
    assert int(beside) & 0xFFFF_FFFF == int(ip)  # type: ignore[call-overload]
    network = IPv4Network(f"{ip}/{length}", strict=False)
    subnet = IPv6Network((int(beside) >> 64 << 64, 64))
    for address in (network[0], network[-1]):
        assert IPv6Address(ipv6_beside(str(address), length)) in subnet
    after = (int(network[-1]) + 1) % 2**32
    assert IPv6Address(ipv6_beside(str(IPv4Network((after, 32))[0]), length)) not in subnet


def test_the_hosts_file_has_every_address_by_name_and_hostname() -> None:
    text = hosts_file({"H 1": ["10.0.0.1", "fd74::1"], "a.leased": ["10.1.0.2"]})
    assert text.splitlines() == [
        "127.0.0.1 localhost",
        "::1 localhost",
        "10.0.0.1 h-1",
        "fd74::1 h-1",
        "10.1.0.2 a.leased a-leased",
    ]
    assert text.endswith("\n")
