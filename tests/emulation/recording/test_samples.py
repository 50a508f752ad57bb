"""Samples of links: bounded memory, and no byte is lost when old samples are joined."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.emulation.recording import samples as module
from thalweg.emulation.recording.samples import FINEST_S, WIDTH, Sample, Samples

ROWS = 50


def rows_of(samples: Samples) -> list[Sample]:
    flat = samples.rows()
    return [Sample(int(flat[i]), *flat[i + 1 : i + WIDTH]) for i in range(0, len(flat), WIDTH)]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEVEL_ROWS", ROWS)


def steady(samples: Samples, links: int, count: int) -> None:
    """Add samples in which every link carries 100 bytes in every step."""
    for step in range(count):
        begin_s, end_s = step * FINEST_S, (step + 1) * FINEST_S
        for link in range(links):
            samples.add(Sample(link, begin_s, end_s, 1e6 * begin_s, 1e6 * end_s, 100, 1, 0, step % 7))


def test_samples_stay_unchanged_while_there_is_room() -> None:
    samples = Samples()
    steady(samples, 2, 10)
    assert len(samples) == 20
    assert samples.joined_s == 0
    assert rows_of(samples)[:2] == [Sample(0, 0, 0.1, 0, 1e5, 100, 1, 0, 0), Sample(1, 0, 0.1, 0, 1e5, 100, 1, 0, 0)]


@pytest.mark.usefixtures("few")
def test_memory_grows_with_the_logarithm_of_time() -> None:
    samples, sizes = Samples(), []
    for count in (500, 1_000, 2_000, 4_000, 8_000):
        samples = Samples()
        steady(samples, 3, count)
        sizes.append(len(samples))
    assert sizes[-1] <= 10 * ROWS
    steps = [later - earlier for earlier, later in pairwise(sizes)]
    assert max(steps) <= ROWS + 3


@pytest.mark.usefixtures("few")
def test_memory_stays_bounded_with_more_links_than_rows_of_a_level() -> None:
    links, sizes = 2 * ROWS, []
    for count in (100, 200, 400, 800):
        samples = Samples()
        steady(samples, links, count)
        sizes.append(len(samples))
        assert sum(row.sent_bytes for row in rows_of(samples)) == 100 * links * count
    room = module.LINK_ROWS * links
    assert max(later - earlier for earlier, later in pairwise(sizes)) <= room + links


@pytest.mark.usefixtures("few")
def test_joined_samples_lose_no_bytes_and_recent_samples_stay_fine() -> None:
    samples = Samples()
    steady(samples, 3, 4_000)
    rows = rows_of(samples)
    for link in range(3):
        own = [row for row in rows if row.link == link]
        assert sum(row.sent_bytes for row in own) == 400_000
        assert sum(row.packets for row in own) == 4_000
        assert sum(row.asked_end_bits - row.asked_begin_bits for row in own) == pytest.approx(4e8)
        assert max(row.waiting_bytes for row in own) == 6
        assert [row.begin_s for row in own[1:]] == pytest.approx([row.end_s for row in own[:-1]])
        assert own[-1].end_s - own[-1].begin_s == pytest.approx(FINEST_S)
        assert own[0].end_s - own[0].begin_s > 8 * FINEST_S
    assert max(row.end_s - row.begin_s for row in rows) <= samples.joined_s + 1e-9


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0.01, 30), st.integers(0, 10**6)), max_size=400))
def test_joining_samples_keeps_the_sum_of_bytes_of_every_link(given_rows: list[tuple[int, float, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEVEL_ROWS", 10)
        samples, now_s, sent = Samples(), dict.fromkeys(range(5), 0.0), Counter[int]()
        for link, seconds, size in given_rows:
            begin_s, now_s[link] = now_s[link], now_s[link] + seconds
            samples.add(Sample(link, begin_s, now_s[link], begin_s, now_s[link], size, 1, 2, 3))
            sent[link] += size
        sums = Counter[int]()
        for row in rows_of(samples):
            sums[row.link] += int(row.sent_bytes)
            assert row.begin_s < row.end_s
        assert sums == sent
