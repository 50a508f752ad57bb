"""Messages about netem, decoded by pyroute2, and delay tables compared with the tables of iproute2."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pyroute2  # noqa: F401  (as a whole: others may have imported parts of it)
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.tcmsg import tcmsg

from thalweg.emulation.kernel import htb, netem
from thalweg.emulation.kernel.netlink import attributes
from thalweg.emulation.links.shape import DISTRIBUTIONS, RATE_FLOOR_BPS, LinkShape

SHARES = st.floats(0, 0.999)


@st.composite
def shapes(draw: st.DrawFn) -> LinkShape:
    return LinkShape(
        draw(st.floats(RATE_FLOOR_BPS, 2e9)),
        draw(st.floats(0, 60)),
        draw(st.floats(0, 2)),
        draw(SHARES),
        draw(st.sampled_from(DISTRIBUTIONS)),
        draw(SHARES),
        draw(SHARES),
        draw(SHARES),
        loss_burst=draw(st.sampled_from([0.0, 1e3, 1e6])),
    )


def decoded(shape: LinkShape) -> Any:
    result = tcmsg(message(shape))
    result.decode()
    return result


def message(shape: LinkShape) -> bytes:
    """Return the message about netem itself. The message about the queue below netem is left out."""
    netem_message, _ = htb.leaf(2, 3, shape, "netem")
    return netem_message


def model(shape: LinkShape) -> Any:
    """Return the probabilities of the loss model: burst begins, burst ends, pass in a burst, loss between bursts.

    pyroute2 does not decode the loss model.
    """
    options = attributes(attributes(message(shape)[16 + 20 :])[2][24:])
    if (losses := options.get(5)) is None:
        return None
    values = struct.unpack("=IIII", attributes(losses)[2])
    return tuple(pytest.approx(value / 0xFFFF_FFFF, abs=1e-9) for value in values)


@given(shapes())
def test_every_message_states_the_whole_discipline(shape: LinkShape) -> None:
    discipline = decoded(shape)
    assert discipline.get_attr("TCA_KIND") == "netem"
    options = discipline.get_attr("TCA_OPTIONS")
    assert options["limit"] == htb.netem_limit(shape)
    assert options["delay"] == min(round(round(shape.delay_s * 1e9) / 64), 0xFFFF_FFFF)
    independent = 0.0 if shape.loss_burst else shape.loss
    for field, share in (("loss", independent), ("duplicate", shape.duplicate)):
        assert options[field] == round(share * 0xFFFF_FFFF)
    assert model(shape) == (None if independent == shape.loss else (*shape.gilbert, 0.0, 0.0))
    assert options["gap"] == (1 if shape.reorder else 0)
    assert options.get_attr("TCA_NETEM_REORDER")["prob_reorder"] == round(shape.reorder * 0xFFFF_FFFF)
    assert options.get_attr("TCA_NETEM_CORRUPT")["prob_corrupt"] == round(shape.corrupt * 0xFFFF_FFFF)
    assert not any(options.get_attr("TCA_NETEM_CORR").values())
    raw = attributes(_options(message(shape)))
    assert struct.unpack("=q", raw[netem.TCA_NETEM_LATENCY64])[0] == round(shape.delay_s * 1e9)
    assert struct.unpack("=q", raw[netem.TCA_NETEM_JITTER64])[0] == round(shape.jitter_s * 1e9)
    if round(shape.jitter_s * 1e9):  # a table that was given once can only be replaced, by a straight one for uniform
        assert struct.unpack("=4096h", raw[netem.TCA_NETEM_DELAY_DIST]) == netem.table(shape.distribution)
    else:
        assert netem.TCA_NETEM_DELAY_DIST not in raw


def _options(made: bytes) -> bytes:
    """Return the bytes after the fixed part of TCA_OPTIONS."""
    return attributes(made[36:])[htb.TCA_OPTIONS][24:]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_tables_rise_and_spread_around_the_delay(name: str) -> None:
    table = netem.table(name)
    assert len(table) == 4096
    assert all(a <= b for a, b in pairwise(table))
    assert abs(fmean(table)) < 0.04 * 8192  # Pareto's tail is cut
    assert table[0] >= -32768
    assert table[-1] <= 32767
    assert netem.quantile(name, 0.0) * 8192 == table[0]
    assert netem.quantile(name, 1.0) * 8192 == table[-1]


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("normal", (-32768, -28307, -26871), (27159, 28858)),
        ("pareto", (-5461, -5460, -5460), (32767, 32767)),
        ("paretonormal", (-12305, -11171, -10812), (31365, 31789)),
    ],
)
def test_delay_tables_equal_the_tables_of_iproute2(name: str, first: tuple[int, ...], last: tuple[int, ...]) -> None:
    table = netem.table(name)
    assert table[:3] == first
    assert table[-2:] == last
    libraries = Path("/usr/lib")
    for file in (*libraries.glob(f"tc/{name}.dist"), *libraries.glob(f"*/tc/{name}.dist")):
        text = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        values = [int(word) for line in text for word in line.split()]
        assert max(abs(a - b) for a, b in zip(table, values, strict=True)) <= 1


def test_an_unknown_distribution_is_named() -> None:
    with pytest.raises(ValueError, match="no distribution 'gamma'; there are uniform, normal"):
        netem.table("gamma")
