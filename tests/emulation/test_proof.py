"""The rounds in which links are proven."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from thalweg.emulation.proof import DATAGRAM_BYTES, datagram_bytes, link_rounds, tournament


@given(st.integers(2, 40))
def test_in_a_tournament_everybody_meets_everybody_once(players: int) -> None:
    names = [str(i) for i in range(players)]
    rounds = tournament(names)
    assert len(rounds) == players - 1 + players % 2
    for pairs in rounds:
        assert len({name for pair in pairs for name in pair}) == 2 * len(pairs)
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert sorted(map(sorted, met)) == sorted(sorted(pair) for pair in combinations(names, 2))


HOSTS = st.integers(0, 8).map(lambda i: f"h{i}")
LINKS = st.tuples(HOSTS, HOSTS).filter(lambda link: link[0] != link[1])


@given(st.dictionaries(LINKS, st.floats(1e5, 3e8)), st.floats(1e6, 1e9))
def test_groups_hold_every_link_once_and_share_no_end(rates: dict[tuple[str, str], float], together: float) -> None:
    groups = link_rounds(rates, together)
    assert sorted(link for group in groups for link in group) == sorted(rates)
    for group in groups:
        assert len({source for source, _ in group}) == len({target for _, target in group}) == len(group)
        assert len(group) == 1 or sum(rates[link] for link in group) <= together


@given(st.floats(64e3, 1e9), st.floats(0.1, 1))
def test_slow_links_get_small_datagrams(rate_bps: float, seconds: float) -> None:
    size = datagram_bytes(rate_bps, seconds)
    assert DATAGRAM_BYTES[0] <= size <= DATAGRAM_BYTES[1]
