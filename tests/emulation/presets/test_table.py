"""Presets: figures with sources, links between hosts with presets, and the reference page."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import pytest

from thalweg.emulation.links.shape import QUEUE, LinkShape, Queue
from thalweg.emulation.presets.table import PRESETS, SOURCES, Line, between, find_preset, line, preset_name
from thalweg.middleware.errors import UsageError

PAGE = Path(__file__).parents[3] / "docs/reference/presets.md"
KEYS = {"rate", "up_rate", "down_rate", "delay", "jitter", "loss", "queue"}


@pytest.mark.parametrize("name", PRESETS)
def test_figures_can_be_read_and_have_sources(name: str) -> None:
    preset = PRESETS[name]
    assert preset.figures.keys() <= KEYS
    assert {figure.source for figure in preset.figures.values()} <= SOURCES.keys()
    rates = {"up_rate", "down_rate"} if preset.of_host else {"rate"}
    assert preset.figures.keys() & {"rate", "up_rate", "down_rate"} == rates
    assert not LinkShape(**between(name, name if preset.of_host else None)).objection()  # type: ignore[arg-type]
    assert line(name).up_bps <= line(name).down_bps


def test_every_source_has_a_figure() -> None:
    used = {figure.source for preset in PRESETS.values() for figure in preset.figures.values()}
    assert used == SOURCES.keys()


def test_jitters_give_round_trips_the_published_variation() -> None:
    """A round trip has the sum of two uniform delays; the difference of two round trips has four of them."""
    for name, deviation_ms in (("4g", 4.0), ("5g", 2.0)):
        assert line(name).jitter_s * 1e3 * math.sqrt(2 / 3) == pytest.approx(deviation_ms, rel=0.01)
    # the mean of |a + b - c - d|, each uniform between -1 and 1: an Irwin-Hall distribution of four
    mean = 2 * 2 * sum(Fraction((-1) ** k * math.comb(4, k) * (2 - k) ** 5, math.factorial(5)) for k in range(2))
    assert line("starlink").jitter_s * 1e3 * float(mean) == pytest.approx(6.7, rel=0.01)


def test_a_link_adds_the_delays_of_both_lines_and_has_the_slower_lines_rate_and_queue() -> None:
    assert between("4g", "starlink") == {
        "rate_bps": 7.6e6, "delay_s": pytest.approx(0.033), "jitter_s": pytest.approx(0.0121), "loss": 0.0,
        "queue": Queue(0.2),
    }  # fmt: skip
    assert between("starlink", "adsl")["rate_bps"] == 5.6e6
    assert between("starlink", "adsl")["queue"] == Queue(0.2)
    assert between(None, "geostationary") == {
        "rate_bps": 18.13e6, "delay_s": 0.315, "jitter_s": 0.0, "loss": 0.0, "queue": QUEUE,
    }  # fmt: skip
    assert between("transatlantic")["rate_bps"] == 287e6
    assert line(None) == Line()


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="there is no preset 'starlnk'; did you mean 'starlink'"):
        find_preset("starlnk")
    with pytest.raises(UsageError, match="there is no preset 4; did you mean '4g'"):
        preset_name(4)
    assert preset_name("4g") == "4g"


def rows() -> list[str]:
    """Return the rows of the page's tables, as the code has them."""
    lines = []
    for name, preset in PRESETS.items():
        rates = ("up_rate", "down_rate") if preset.of_host else ("rate",)
        cells = [
            preset.figures[key].value if key in preset.figures else "" for key in (*rates, "delay", "jitter", "queue")
        ]
        lines.append(f"| `{name}` | {preset.title} | {' | '.join(cells)} |")
        by_source: dict[str, list[str]] = {}
        for key, figure in preset.figures.items():
            by_source.setdefault(figure.source, []).append(f"`{key}`")
        for source, keys in by_source.items():
            text, address = SOURCES[source]
            lines.append(f"| `{name}` | {', '.join(keys)} | [{text}]({address}) |")
    return lines


def test_the_page_has_the_figures_and_sources_of_the_code() -> None:
    lines = PAGE.read_text().splitlines()
    assert [row for row in rows() if row not in lines] == []
    names = tuple(f"| `{name}` |" for name in PRESETS)
    assert {row for row in lines if row.startswith(names)} == set(rows())
