"""Events as changes of links: overlaps, repetition, chance, and the calls of a testbed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.emulation.links.effects import NEUTRAL, Effect, LinkChange
from thalweg.emulation.links.shape import LinkShape
from thalweg.emulation.scenarios.events import CUT, Event
from thalweg.emulation.scenarios.file import Scenario, read_scenario
from thalweg.emulation.scenarios.timeline import Timeline, apply, combined, compile_timeline
from thalweg.emulation.testbeds.open import open_testbed
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import UsageError

HEAD = 'hosts = ["client", "h1", "h2"]\n[links]\nrate = "1mbit"\ndelay = "20ms"\n'


def scenario(folder: Path, events: str, head: str = HEAD) -> Scenario:
    (folder / "wan.toml").write_text(head + events)
    return read_scenario(folder / "wan.toml")


def event(kind: str, at: float, **fields: Any) -> str:
    rows = "".join(
        f"{key.rstrip('_')} = {str(value).lower() if isinstance(value, bool) else repr(value)}\n"
        for key, value in fields.items()
    )
    return f'[[event]]\nkind = "{kind}"\nat = {at}\n{rows}'


def test_later_events_win_figure_by_figure_factors_multiply_and_a_cut_wins(tmp_path: Path) -> None:
    parsed = scenario(
        tmp_path,
        event("change", 10, for_=30, from_="h1", to="h2", factor=0.5, delay="1s")
        + event("change", 20, for_=30, from_="h1", to="h2", factor=0.1, loss="1%", delay="2s")
        + event("change", 25, for_=5, from_="h1", to="h2", rate="8mbit")
        + event("outage", 35, for_=10, host="h2"),
    )
    changes = compile_timeline(parsed).by_link
    assert changes["h1", "h2"] == [
        (10.0, Effect(0.5, delay_s=1.0)),
        (20.0, Effect(0.05, delay_s=2.0, loss=0.01, loss_burst=0.0)),
        (25.0, Effect(0.05, rate_bps=8e6, delay_s=2.0, loss=0.01, loss_burst=0.0)),
        (30.0, Effect(0.05, delay_s=2.0, loss=0.01, loss_burst=0.0)),
        (35.0, Effect(0.05, delay_s=2.0, loss=0.01, loss_burst=0.0, cut=True)),
        (40.0, Effect(0.1, delay_s=2.0, loss=0.01, loss_burst=0.0, cut=True)),
        (45.0, Effect(0.1, delay_s=2.0, loss=0.01, loss_burst=0.0)),
        (50.0, NEUTRAL),
    ]
    assert changes["client", "h2"] == [(35.0, CUT), (45.0, NEUTRAL)]
    assert ("client", "h1") not in changes
    times = [change.at_s for change in compile_timeline(parsed).changes]
    assert times == sorted(times)


def test_a_flap_is_down_first_and_a_partition_spares_hosts_in_no_group(tmp_path: Path) -> None:
    text = event("flap", 5, for_=7, from_="h1", to="h2", down=2, up=3)
    text += event("partition", 100, groups=[["client"], ["h1"]])
    changes = compile_timeline(scenario(tmp_path, text)).by_link
    assert changes["h1", "h2"] == [(5.0, CUT), (7.0, NEUTRAL), (10.0, CUT), (12.0, NEUTRAL)]
    assert changes["client", "h1"] == changes["h1", "client"] == [(100.0, CUT)]  # for good
    assert len(changes) == 3


def test_a_flap_without_an_end_ends_with_the_scenario(tmp_path: Path) -> None:
    text = event("flap", 0, from_="h1", to="h2", down=2, up=3)
    parsed = scenario(tmp_path, text, 'duration = "11s"\n' + HEAD)
    cut, free = CUT, NEUTRAL
    first = [(0.0, cut), (2.0, free), (5.0, cut), (7.0, free), (10.0, cut)]
    assert compile_timeline(parsed).by_link["h1", "h2"] == [*first, (11.0, free)]
    assert compile_timeline(parsed, 13.0).by_link["h1", "h2"] == [*first, (12.0, free)]
    with pytest.raises(UsageError, match="shorter duration"):
        compile_timeline(parsed, 1e8)


def test_a_span_too_short_for_floating_point_has_no_effect() -> None:
    link = ("a", "b")
    kinds = {"kind": "flap", "links": (link,), "effect": CUT, "who": "", "what": "", "down_s": 0.001, "up_s": 0.001}
    event = Event(at_s=1e15, until_s=1e15 + 1, **kinds)  # type: ignore[arg-type]
    spans = [span for span, _ in zip(event.spans(2e15, 1, 0), range(3), strict=False)]
    assert [stop_s - start_s for start_s, stop_s, _ in spans] == [0.0] * 3
    brief = Event(kind="change", at_s=1e15, until_s=1e15 + 0.01, links=(link,), effect=CUT, who="", what="")
    held = Event(kind="change", at_s=1e15, until_s=1e15 + 2, links=(link,), effect=Effect(0.5), who="", what="")
    built = Scenario(name="", hosts={}, links={link: LinkShape(1e6)}, traces={}, events=(brief, held))
    assert compile_timeline(built).by_link == {link: [(1e15, Effect(0.5)), (1e15 + 2, NEUTRAL)]}


def test_an_impossible_event_is_refused_before_shapes_or_limits_are_set(tmp_path: Path) -> None:
    head = 'interface_rate = "3mbit"\n' + HEAD
    parsed = scenario(tmp_path, event("change", 3, from_="h1", to="h2", factor=5000), head)
    untouched = Recorder()
    with pytest.raises(UsageError, match="link h1 → h2, as an event changes it: 5000 Mbit/s"):
        apply(compile_timeline(parsed), untouched)  # type: ignore[arg-type]
    assert (untouched.shaped, *untouched.limits) == ({}, {}, {})


def test_churn_is_reproducible_and_has_the_asked_mean_durations(tmp_path: Path) -> None:
    parsed = scenario(tmp_path, event("churn", 10, mean_up="2min", mean_down="30s"), 'duration = "20h"\n' + HEAD)
    changes = compile_timeline(parsed).changes
    assert changes == compile_timeline(parsed).changes
    short = compile_timeline(parsed, 3600.0).changes
    assert short[:-4] == changes[: len(short) - 4]
    assert all(change.at_s > 10 for change in changes)
    away = {host: [span for span in parsed.events[0].spans(72_000, 1, 0) if all(host in x for x in span[2])]
            for host in ("client", "h1", "h2")}  # fmt: skip
    assert away["client"] == []  # spared unless it is named
    for host in ("h1", "h2"):
        downs = [stop - start for start, stop, _ in away[host]]
        assert len(downs) == pytest.approx(72_000 / 150, rel=0.15)
        assert sum(downs) / len(downs) == pytest.approx(30, rel=0.2)
        assert {link for _, _, links in away[host] for link in links} == {link for link in parsed.links if host in link}
    assert [span[:2] for span in away["h1"]] != [span[:2] for span in away["h2"]]
    assert (
        compile_timeline(scenario(tmp_path, event("churn", 10, mean_up=120, mean_down=30), "seed = 2\n" + HEAD)).changes
        != changes
    )
    named = scenario(tmp_path, event("churn", 10, mean_up=120, mean_down=30, hosts=["client"]))
    assert {host for link in compile_timeline(named).by_link for host in link} == {"client", "h1", "h2"}
    assert ("h1", "h2") not in compile_timeline(named).by_link


EFFECTS = st.sampled_from([CUT, Effect(0.5), Effect(0.1, delay_s=0.1), Effect(rate_bps=5.0), Effect(delay_s=0.3)])
SPANS = st.tuples(st.integers(0, 20), st.integers(1, 10) | st.just(float("inf")), EFFECTS)


@given(st.lists(SPANS, max_size=7))
def test_the_changes_give_the_combined_effect_of_the_events_at_every_moment(
    spans: list[tuple[int, float, Effect]],
) -> None:
    link = ("a", "b")
    events = tuple(
        Event(kind="change", at_s=at, until_s=at + held, links=(link,), effect=effect, who="", what="")
        for at, held, effect in spans
    )
    built = Scenario(name="", hosts={}, links={link: LinkShape(1e6)}, traces={}, events=events)
    changes = compile_timeline(built).by_link.get(link, [])
    assert all(later[1] != earlier[1] for earlier, later in pairwise(changes))
    for moment in [i / 2 for i in range(70)]:
        holds = combined(event.effect for event in events if event.at_s <= moment < event.until_s)
        assert next((effect for at_s, effect in reversed(changes) if at_s <= moment), NEUTRAL) == holds


def test_rates_over_time_have_the_floor_that_testbeds_have(tmp_path: Path) -> None:
    text = event("change", 10, for_=10, from_="h1", to="h2", factor=0.0001) + event("outage", 15, for_=1, host="h2")
    parsed = scenario(tmp_path, text, "time_scale = 10\n" + HEAD)
    rates = compile_timeline(parsed).rates()
    assert [rates["h1", "h2"].rate_at(t_s) for t_s in (0, 12, 15, 17, 20)] == [1e6, 800, 0, 800, 1e6]
    assert rates["h2", "h1"].bits_between(0, 20) == pytest.approx(19e6)


def test_a_link_has_a_shape_for_every_change_and_keeps_all_shapes_under_a_new_name(tmp_path: Path) -> None:
    text = event("change", 10, for_=10, from_="h1", to="h2", factor=0.5, delay="1s") + event("outage", 15, host="h2")
    original = compile_timeline(scenario(tmp_path, text, "time_scale = 10\n" + HEAD))
    renamed = original.renamed({"client": "client", "h1": "h2", "h2": "h1"})
    assert renamed.shapes(("h2", "h1")) == [
        (0.0, LinkShape(1e6, 0.02)),
        (10.0, LinkShape(0.5e6, 1.0)),
        (15.0, LinkShape(0.5e6, 1.0, cut=True)),
        (20.0, LinkShape(1e6, 0.02, cut=True)),
    ]
    assert list(renamed.hosts) == ["client", "h2", "h1"] == [host.name for host in renamed.hosts.values()]
    assert renamed.by_link["h2", "h1"] == original.by_link["h1", "h2"]
    assert renamed.wall_shapes()["h2", "h1"] == LinkShape(1e7, 0.002)
    rising = BandwidthTrace("a", np.array([0.0, 5.0]), np.array([1e6, 3e6]))
    followed = Timeline.of_traces({("a", "b"): rising}, 2.0)
    assert followed.shapes(("a", "b")) == [(0.0, LinkShape(1e6))]
    assert followed.rates() == {("a", "b"): rising}


class Recorder:
    """Stand-in for a testbed that keeps all requests."""

    backend = "recorder"
    limited = False
    lines: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.shaped: dict[Any, LinkShape] = {}
        self.replayed: list[Any] = []
        self.changed: list[LinkChange] = []
        self.limits: tuple[dict[str, float | None], dict[str, float | None]] = ({}, {})

    def shape(self, links: dict[Any, LinkShape], tell: Any = None) -> None:
        self.shaped |= links

    def replay(self, traces: dict[Any, Any], time_scale: float) -> Any:
        self.replayed = [traces, time_scale]
        return SimpleNamespace(change=self._change)

    def _change(self, changes: Iterable[LinkChange]) -> None:
        self.changed += changes

    def limit_hosts(self, up_bps: dict[str, float | None], down_bps: dict[str, float | None], via: str) -> None:
        assert via == "net"
        self.limits = self.limits[0] | up_bps, self.limits[1] | down_bps


def test_a_testbed_gets_shapes_limits_traces_and_changes(tmp_path: Path) -> None:
    still = Recorder()
    assert apply(compile_timeline(scenario(tmp_path, "")), still) is None  # type: ignore[arg-type]
    assert still.shaped["h1", "h2"] == LinkShape(1e6, 0.02)
    head = 'time_scale = 2\ninterface_rate = "3mbit"\n' + HEAD
    parsed = scenario(tmp_path, event("outage", 3, from_="h1", to="h2"), head)
    moving = Recorder()
    assert apply(compile_timeline(parsed), moving) is not None  # type: ignore[arg-type]
    assert moving.limits == (dict.fromkeys(("client", "h1", "h2"), 6e6),) * 2
    assert moving.shaped["h1", "h2"] == LinkShape(2e6, 0.01)
    traces, *more = moving.replayed
    assert {link: trace.mean_bps for link, trace in traces.items()} == {("h1", "h2"): 1e6}
    assert more == [2.0]
    assert moving.changed == [LinkChange(3.0, ("h1", "h2"), CUT)]
    with pytest.raises(UsageError, match="the loopback testbed has no links to shape"):
        apply(compile_timeline(parsed), open_testbed("loopback", list(parsed.hosts)))


def test_up_and_down_rates_are_limited_separately_by_the_lower_limit(tmp_path: Path) -> None:
    head = (
        'time_scale = 2\ninterface_rate = "3mbit"\nup_rate = "2mbit"\ndown_rate = "4mbit"\n'
        'hosts = ["client", { name = "h1", interface_rate = "1mbit", down_rate = "0.5mbit" }]\n'
        '[links]\nrate = "8mbit"\n'
    )
    asked = Recorder()
    assert apply(compile_timeline(scenario(tmp_path, "", head)), asked) is None  # type: ignore[arg-type]
    assert asked.limits == ({"client": 4e6, "h1": 2e6}, {"client": 6e6, "h1": 1e6})
    one_way = Recorder()
    head = 'down_rate = "4mbit"\nhosts = ["client", "h1"]\n[links]\nrate = "8mbit"\n'
    assert apply(compile_timeline(scenario(tmp_path, "", head)), one_way) is None  # type: ignore[arg-type]
    assert one_way.limits == ({"client": None, "h1": None}, {"client": 4e6, "h1": 4e6})
    free = Recorder()
    free.limited = True  # by what was played before
    assert apply(compile_timeline(scenario(tmp_path, "")), free) is None  # type: ignore[arg-type]
    assert {bps for limits in free.limits for bps in limits.values()} == {None}


@pytest.mark.timed
@pytest.mark.netns
def test_events_take_effect_on_namespaces_and_are_undone_by_the_next_start(tmp_path: Path) -> None:
    text = event("outage", 2, for_=4, from_="h1", to="h2") + event("change", 4, from_="h2", to="h1", factor=0.25)
    parsed = scenario(tmp_path, text, "time_scale = 10\n" + HEAD.replace('delay = "20ms"\n', ""))
    seen: dict[float, tuple[bool, float]] = {}
    with open_testbed("netns", list(parsed.hosts)) as bed:
        handle = apply(compile_timeline(parsed), bed)
        assert handle is not None
        t0_s = handle.start()
        while (at_s := time.monotonic() - t0_s) < 0.75:
            seen[at_s] = look(bed)
        late = handle.statistics()
        handle.start()
        assert look(bed) == (False, 1e7)
    for at_s, (cut, rate_bps) in seen.items():
        if all(abs(at_s - edge) > 0.05 for edge in (0.2, 0.4, 0.6)):
            assert cut == (0.2 <= at_s < 0.6)
            assert rate_bps == (2.5e6 if at_s >= 0.4 else 1e7)
    assert late.steps == 3
    assert late.lag_max_s < 0.1


def look(bed: Any) -> tuple[bool, float]:
    """Return whether h1 → h2 is cut now, and the rate of h2 → h1."""
    bed.status()
    return bed.shapes["h1", "h2"].cut, bed.shapes["h2", "h1"].rate_bps


def test_delays_and_losses_follow_repeated_traces_and_events_win_over_traces(tmp_path: Path) -> None:
    (tmp_path / "rtt.csv").write_text("time_s,delay_s,loss\n0,0.01,0\n5,0.03,0.5\n10,0.03,1\n")  # 15 s
    (tmp_path / "loss.csv").write_text("time_s,bandwidth_bps,loss\n0,2000000,0.25\n")
    head = 'duration = "25s"\nhosts = ["a", "b"]\n[links]\nrate = "1mbit"\ntrace = "rtt.csv"\n'
    other = '[[link]]\nfrom = "b"\nto = "a"\ntrace = "loss.csv"\n'
    parsed = scenario(tmp_path, other + event("change", 7, for_=10, from_="a", to="b", delay="1s"), head)
    assert parsed.needs_netem
    assert parsed.links["a", "b"] == LinkShape(1e6, 0.01)  # type: ignore[index]
    assert parsed.links["b", "a"] == LinkShape(2e6, 0.01, loss=0.25)  # type: ignore[index]
    timeline = compile_timeline(parsed)
    assert timeline.by_link["a", "b"] == [  # type: ignore[index]
        (0.0, Effect(delay_s=0.01, loss=0.0)),
        (5.0, Effect(delay_s=0.03, loss=0.5)),
        (7.0, Effect(delay_s=1.0, loss=0.5)),
        (10.0, Effect(delay_s=1.0, cut=True)),
        (15.0, Effect(delay_s=1.0, loss=0.0)),
        (17.0, Effect(delay_s=0.01, loss=0.0)),
        (20.0, Effect(delay_s=0.03, loss=0.5)),
    ]
    assert timeline.by_link["b", "a"] == [  # type: ignore[index]
        (at_s, Effect(delay_s=delay_s, loss=0.25)) for at_s, delay_s in [(0, 0.01), (5, 0.03), (15, 0.01), (20, 0.03)]
    ]
    assert timeline.rates()["a", "b"].bits_between(9.0, 16.0) == 2e6  # type: ignore[index]
    plain = parsed.rates_only()
    assert not plain.needs_netem
    assert {effect.cut for _, effect in compile_timeline(plain).by_link["a", "b"]} == {False, True}  # type: ignore[index]
    with pytest.raises(UsageError, match=r"line 5: loss and trace set the same figure"):
        scenario(tmp_path, "", head.replace("rate", "loss", 1).replace('"1mbit"', '"1%"'))
    with pytest.raises(UsageError, match=r"500,000; .* give the scenario a duration \(of 7.72 h\)"):
        compile_timeline(scenario(tmp_path, "", head.replace('"25s"', '"1000h"').replace('["a", "b"]', "10")))


def test_trace_steps_that_are_too_close_together_become_means(tmp_path: Path) -> None:
    (tmp_path / "owd.csv").write_text("time_s,delay_s\n0,0.01\n0.05,0.03\n0.1,0.5\n0.15,0.5\n0.2,0.5\n")
    head = 'duration = "1s"\nhosts = ["a", "b"]\n[links]\nrate = "1mbit"\ntrace = "owd.csv"\n'
    changes = compile_timeline(scenario(tmp_path, "", head)).by_link["a", "b"]  # type: ignore[index]
    assert [(at_s, effect.delay_s) for at_s, effect in changes[:3]] == [(0.0, 0.02), (0.1, 0.5), (0.25, 0.02)]
