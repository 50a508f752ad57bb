"""Names that hosts cannot have, the addresses of IPv6 that they have beside IPv4, and the file that says both."""

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
def test_no_host_is_called_what_every_host_calls_itself(name: str) -> None:
    assert objection(["a", name]) == f"host name {name!r} is what every host calls itself; choose another"


@pytest.mark.parametrize("name", ["1", "127.1", "10.0.0.1", "0x7f000001", "017700000001", "::1", "fe80::1%eth0"])
def test_no_host_has_a_name_that_a_resolver_reads_as_an_address(name: str) -> None:
    read = socket.getaddrinfo(name.partition("%")[0], None, flags=socket.AI_NUMERICHOST)
    assert read  # without asking anybody
    assert objection(["a", name]) == (
        f"host name {name!r} is an address to every program that looks it up; begin it with a letter"
    )


@pytest.mark.parametrize(
    ("one", "other", "hostname"),
    [("H1", "h1", "h1"), ("a.b", "a-b", "a-b"), ("a b", "a_b", "a-b"), ("a", "a.", "a"), ("é", "ü", "host")],
)
def test_no_two_hosts_are_one_hostname(one: str, other: str, hostname: str) -> None:
    for pair in ([one, other], [other, "else", one]):
        said = objection(pair)
        assert said.startswith(f"host names {pair[0]!r} and {pair[-1]!r} are both {hostname!r} as hostnames")
    assert objection([one]) == objection([other]) == ""


def test_no_host_is_called_as_another_one_is_in_a_network() -> None:
    """A host is ``HOST.NETWORK`` there, which is a hostname like any other."""
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
def test_a_testbed_refuses_them_before_anything_is_built(hosts: list[str]) -> None:
    with pytest.raises(UsageError, match="host name"):
        LoopbackTestbed(hosts)


@given(st.ip_addresses(v=4), st.integers(8, 30))
def test_the_address_beside_is_of_the_subnets_own_prefix_and_ends_as_that_of_ipv4(ip: object, length: int) -> None:
    beside = IPv6Address(ipv6_beside(str(ip), length))
    assert beside in IPv6Network("fd00::/8")  # nobody's but ours, RFC 4193
    assert int(beside) & 0xFFFF_FFFF == int(ip)  # type: ignore[call-overload]
    network = IPv4Network(f"{ip}/{length}", strict=False)
    subnet = IPv6Network((int(beside) >> 64 << 64, 64))
    for address in (network[0], network[-1]):
        assert IPv6Address(ipv6_beside(str(address), length)) in subnet
    after = (int(network[-1]) + 1) % 2**32
    assert IPv6Address(ipv6_beside(str(IPv4Network((after, 32))[0]), length)) not in subnet


def test_the_file_has_every_address_by_name_and_hostname() -> None:
    text = hosts_file({"H 1": ["10.0.0.1", "fd74::1"], "a.leased": ["10.1.0.2"]})
    assert text.splitlines() == [
        "127.0.0.1 localhost",
        "::1 localhost",
        "10.0.0.1 h-1",
        "fd74::1 h-1",
        "10.1.0.2 a.leased a-leased",
    ]
    assert text.endswith("\n")
