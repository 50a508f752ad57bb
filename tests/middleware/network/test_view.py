"""A planner's view of the network."""

from __future__ import annotations

import math
import pickle

import msgspec
import pytest

from thalweg.middleware.network.view import Latency, Link, LinkEstimate, LinksNeeded, NetworkView


def test_a_link_has_a_direction_and_a_host_reaches_itself_for_free() -> None:
    view = NetworkView({("a", "b"): LinkEstimate(5.0)})
    assert view.rate_bps("a", "b") == 5.0
    assert view.rate_bps("b", "a") is None
    assert view.rate_bps("a", "a") == math.inf


def test_further_estimates_make_a_new_view_and_leave_the_old_view_unchanged() -> None:
    known = {("a", "b"): LinkEstimate(5.0)}
    view = NetworkView(known)
    more = view.with_estimates({("a", "b"): LinkEstimate(7.0), ("b", "a"): LinkEstimate(9.0)})
    known.clear()
    assert view.rate_bps("a", "b") == 5.0
    assert view.rate_bps("b", "a") is None
    assert (more.rate_bps("a", "b"), more.rate_bps("b", "a")) == (7.0, 9.0)


def test_the_links_that_a_planner_needs_are_named() -> None:
    with pytest.raises(LinksNeeded, match=r"\('a', 'b'\)") as caught:
        raise LinksNeeded([("a", "b"), ("a", "b")])
    assert caught.value.links == {("a", "b")}


def test_a_link_equals_the_pair_of_hosts_except_over_a_further_network() -> None:
    link, other = Link("a", "b"), Link("a", "b", via="store")
    assert (
        link == ("a", "b") and hash(link) == hash(("a", "b")) and (link.source, link.target, link.via) == (*link, "net")
    )
    assert other != link and (other.source, other.target, other.via) == ("a", "b", "store")
    assert msgspec.json.encode((link, other)) == b'[["a","b"],["a","b","store"]]'
    assert pickle.loads(pickle.dumps((link, other))) == (link, other)
    view = NetworkView({link: LinkEstimate(5.0), other: LinkEstimate(7.0)}, {link: Latency(0.1)})
    assert (view.rate_bps("a", "b"), view.rate_bps("a", "b", "store")) == (5.0, 7.0)
    assert (view.latency_s("a", "b"), view.latency_s("a", "b", "store"), view.latency_s("a", "a")) == (0.1, None, 0.0)
