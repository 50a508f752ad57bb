"""Networks of a run: their links, their hosts, and networks that are refused."""

from __future__ import annotations

import pytest

from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.networks import Network, check_networks, links_of, where_joined
from thalweg.middleware.network.tariffs import TARIFFS
from thalweg.middleware.network.view import Link

RENTED = TARIFFS["dedicated"]


def test_rented_links_carry_the_name_of_the_network() -> None:
    networks = {"net": Network(TARIFFS["public"]), "fast": Network(RENTED, {("a", "b"): 1e6, ("b", "a"): 2e6})}
    assert links_of(networks) == {Link("a", "b", "fast"): 1e6, Link("b", "a", "fast"): 2e6}
    check_networks(networks, {"a": ("net", "fast"), "b": ("net", "fast")})


@pytest.mark.parametrize(
    ("links", "said"),
    [(None, "give their rates"), ({("a", "a"): 1e6}, "to itself"), ({("a", "b"): 0.0}, "bits a second"),
     ({("a", "x"): 1e6}, "no host 'x'"), ({("a", "c"): 1e6}, "a > c of network 'fast': host 'c' is not joined")],
)  # fmt: skip
def test_invalid_networks_are_refused(links: dict[tuple[str, str], float] | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_networks({"fast": Network(RENTED, links)}, {"a": ("net", "fast"), "b": ("net", "fast"), "c": ("net",)})


def test_a_network_without_rented_links_joins_every_host_that_has_the_network() -> None:
    hosts = {"a": ("net", "fast"), "b": ("net", "fast"), "c": ("net",)}
    networks = where_joined({"net": Network(), "fast": Network()}, hosts)
    assert [networks["fast"].joins("a", other) for other in "bc"] == [True, False]
    assert networks["net"].joins("a", "c") and Network().joins("x", "y")
    assert not Network(RENTED, {("a", "b"): 1e6}).joins("b", "a")


def test_a_network_that_no_host_has_is_refused() -> None:
    with pytest.raises(UsageError, match="no host is joined to a network 'fats'; did you mean 'fast'"):
        check_networks({"fats": Network()}, {"a": ("net", "fast")})


def test_a_network_also_joins_hosts_that_come_later() -> None:
    asked = {"net": Network(), "fast": Network(hosts=frozenset({"a", "c"})), "rent": Network(RENTED, {("a", "c"): 1e6})}
    before = {"a": ("net", "fast", "rent"), "b": ("net", "fast")}
    with pytest.raises(UsageError, match="no host 'c'"):
        check_networks(asked, before)
    check_networks(asked, before, absent={"c": "was down"})
    early = where_joined(asked, before)
    assert not any(early[name].joins("a", other) for name in asked for other in "c")
    assert not early["fast"].joins("a", "b"), "it is for others"
    later = where_joined(asked, {**before, "c": ("net", "fast", "rent")})
    assert all(later[name].joins("a", "c") for name in asked)
