"""Scenario files: hosts, links by tables and data sets, and errors that name the line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from thalweg.emulation.links.shape import LinkShape, Queue
from thalweg.emulation.scenarios.file import Scenario, read_scenario
from thalweg.emulation.scenarios.timeline import compile_timeline
from thalweg.emulation.traces.files import load_pool
from thalweg.emulation.traces.pool import assign_traces, scale_pool
from thalweg.middleware.errors import UsageError
from thalweg.middleware.network.figures import HostFigures

HOSTS = 'hosts = ["client", "h1", "h2"]\n'
LINKS = '[links]\nrate = "1mbit"\n'
EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Data sets of three sites, and a folder of traces without sites."""
    sets = tmp_path / "sets"
    for name in ("bandwidth/measured", "bandwidth/cars", "latency", "throughput"):
        (sets / name).mkdir(parents=True)
    pairs = [("aws:x", "aws:y", 100), ("aws:y", "aws:x", 120), ("aws:x", "gcp:z", 40), ("aws:y", "gcp:z", 60)]
    (sets / "latency/rtt.csv").write_text("src,dst,rtt_ms\n" + "".join(f"{a},{b},{v}\n" for a, b, v in pairs))
    rates = [(a, b, v * 10_000) for a, b, v in pairs] + [("gcp:z", "aws:x", 1e6)]
    (sets / "throughput/grid.csv").write_text(
        "src,dst,bandwidth_bps\n" + "".join(f"{a},{b},{v}\n" for a, b, v in rates)
    )
    for number, name in enumerate(("b1_x__y", "b1_y__x", "b2_x__y", "b1_y__z_gcp", "b2_z_gcp__y")):
        rows = "".join(f"{60 * i},{(i + 1) * 10**number}\n" for i in range(5))
        (sets / f"bandwidth/measured/{name}.csv").write_text(f"time_s,bandwidth_bps\n{rows}")
    for number in range(4):
        rows = f"time_s,bandwidth_bps\n0,{number + 1}e6\n7,2e6\n"
        (sets / f"bandwidth/cars/{number}.csv").write_text(rows)
    monkeypatch.setenv("THALWEG_TRACES", str(sets))
    return tmp_path


def scenario(folder: Path, text: str, **options: float) -> Scenario:
    (folder / "wan.toml").write_text(text)
    return read_scenario(folder / "wan.toml", **options)  # type: ignore[arg-type]


# --- hosts --------------------------------------------------------------------------------------------


def test_hosts_are_read_from_a_number_names_sites_or_tables(folder: Path) -> None:
    assert list(scenario(folder, "hosts = 3\n" + LINKS).hosts) == ["client", "h1", "h2"]
    hosts = scenario(
        folder,
        'memory = "1gb"\nhosts = ["client", "h1@aws:x", "gcp:z", "@n-7", {name = "h4", memory = 4096, cpus = 0.5}]\n'
        + LINKS,
    ).hosts
    assert [(host.name, host.site, host.cpus, host.memory_bytes) for host in hosts.values()] == [
        ("client", None, None, 2**30), ("h1", "aws:x", None, 2**30), ("z", "gcp:z", None, 2**30),
        ("n-7", "n-7", None, 2**30), ("h4", None, 0.5, 4096),
    ]  # fmt: skip
    fast = scenario(folder, 'speed = 0.5\nhosts = ["a", {name = "b", speed = 2, cores = 4}]\n' + LINKS)
    assert compile_timeline(fast).capacities == {"a": HostFigures(0.5), "b": HostFigures(2.0, 4)}
    with pytest.raises(UsageError, match="line 1: cores: a host's cores are 0; give 1 to 65536"):
        scenario(folder, 'hosts = ["a", {name = "b", cores = 0}]\n' + LINKS)
    tables = 'time_scale = 10\ninterface_rate = "2mbit"\n[[hosts]]\nname = "a"\n[[hosts]]\nname = "b"\n'
    limited = scenario(folder, tables + 'interface_rate = "1mbit"\n' + LINKS)
    assert compile_timeline(limited).wall_interfaces_bps == {"a": 2e7, "b": 1e7}  # on the wall


def test_hosts_have_up_and_down_rates_and_scenarios_have_options(folder: Path) -> None:
    hosts = 'hosts = ["a", {name = "b", up_rate = "1mbit", down_rate = {net = "8mbit"}}]\n'
    timeline = compile_timeline(scenario(folder, 'down_rate = "9mbit"\ntime_scale = 10\n' + hosts + LINKS))
    assert timeline.up_bps == {"b": 1e6}
    assert timeline.down_bps == {"a": 9e6, "b": 8e6}
    assert timeline.interfaces_bps == {}
    assert (timeline.ipv6, timeline.control_band, timeline.private) == (True, None, ())
    ipv4_only = compile_timeline(scenario(folder, "ipv6 = false\ncontrol_band = false\n" + HOSTS + LINKS))
    assert (ipv4_only.ipv6, ipv4_only.control_band) == (False, False)
    private = compile_timeline(scenario(folder, 'private = ["run", "/tmp"]\n' + HOSTS + LINKS)).private
    assert private == ("/run", "/tmp")
    assert compile_timeline(scenario(folder, 'private = "var"\n' + HOSTS + LINKS)).private == ("/var",)
    with pytest.raises(UsageError, match=r"wan.toml, line 2: private: /proc cannot be a host's own, as every program"):
        scenario(folder, HOSTS + 'private = ["run", "proc"]\n' + LINKS)


def test_a_testbed_gets_the_lesser_rate_of_a_host_and_the_interface(folder: Path) -> None:
    class Told:
        """Stand-in for a testbed that keeps the limits."""

        limits: tuple[object, ...] = ()
        lines: Mapping[str, str] = {}

        def limit_hosts(self, *limits: object) -> None:
            self.limits = limits

        def shape(self, *_: object) -> None:
            pass

    hosts = (
        'interface_rate = "4mbit"\ntime_scale = 2\nhosts = ["a", {name = "b", up_rate = "1mbit", down_rate = 5e6}]\n'
    )
    testbed = Told()
    compile_timeline(scenario(folder, hosts + LINKS)).shape_testbed(testbed)  # type: ignore[arg-type]
    assert testbed.limits == ({"a": 8e6, "b": 2e6}, {"a": 8e6, "b": 8e6}, "net")


def test_hosts_without_a_site_get_a_site_with_measurements_to_the_other_sites(folder: Path) -> None:
    text = 'hosts = ["a", "b", "c@aws:y"]\n' + LINKS + 'latency = "rtt"\n'
    parsed = scenario(folder, text)
    sites = {host.name: (host.site, host.drawn) for host in parsed.hosts.values()}
    assert sites["c"] == ("aws:y", False)
    assert {sites["a"], sites["b"]} == {("aws:x", True), ("gcp:z", True)}
    assert parsed.links["a", "b"].delay_s == parsed.links["b", "a"].delay_s == pytest.approx(0.02)
    assert scenario(folder, text).hosts == parsed.hosts
    (folder / "own.csv").write_text("node,b,a\nb,0,30\na,40,0\n")
    own = scenario(folder, 'hosts = ["a", "b"]\n' + LINKS + 'latency = "own.csv"\n')  # by the hosts' own names
    assert (own.links["a", "b"].delay_s, own.links["b", "a"].delay_s) == pytest.approx((0.02, 0.015))
    drawn = {scenario(folder, text, seed=seed).hosts["a"].site for seed in range(20)}
    assert drawn == {"aws:x", "gcp:z"}


# --- links --------------------------------------------------------------------------------------------


def test_the_last_link_table_wins_figure_by_figure(folder: Path) -> None:
    links = scenario(
        folder,
        HOSTS
        + """
        [links]
        rate = "10mbit"
        delay = "20ms"
        jitter = "2ms"
        distribution = "pareto"
        burst = "16kb"
        [[link]]
        from = "h1"
        to = "*"
        loss = "1%"
        delay = 0.5
        [[link]]
        from = ["client", "h1"]
        to = "h2"
        both = true
        rate = "1mbit"
        duplicate = 0.1
        queue = "50ms"
        [[link]]
        host = "h2"
        reorder = "5%"
        corrupt = "0.1%"
        """,
    ).links
    plain = LinkShape(1e7, 0.02, 0.002, 0.0, "pareto", burst_bytes=16_384)
    last = LinkShape(1e6, 0.02, 0.002, 0.0, "pareto", 0.1, 0.05, 0.001, 16_384, queue=Queue(0.05))
    assert links == {
        ("client", "h1"): plain,
        ("client", "h2"): last,
        ("h1", "client"): LinkShape(1e7, 0.5, 0.002, 0.01, "pareto", burst_bytes=16_384),
        ("h1", "h2"): LinkShape(1e6, 0.5, 0.002, 0.01, "pareto", 0.1, 0.05, 0.001, 16_384, queue=Queue(0.05)),
        ("h2", "client"): last,
        ("h2", "h1"): last,
    }


def test_shapes_for_a_testbed_are_in_wall_clock_time(folder: Path) -> None:
    text = "time_scale = 10\n" + HOSTS + LINKS + 'delay = "20ms"\njitter = "2ms"\n'
    parsed = scenario(folder, text)
    assert compile_timeline(parsed).wall_shapes()["h1", "h2"] == LinkShape(1e7, 0.002, 0.0002)
    assert parsed.needs_netem
    as_is = compile_timeline(scenario(folder, text, time_scale=1.0))
    assert as_is.wall_shapes()["h1", "h2"] == LinkShape(1e6, 0.02, 0.002)
    assert not scenario(folder, HOSTS + LINKS).needs_netem
    late = '[[event]]\nkind = "change"\nat = "1h"\nhost = "h1"\nloss = "1%"\n'
    assert scenario(folder, HOSTS + LINKS + late).needs_netem


def test_a_scenario_draws_traces_from_a_pool_like_a_run(folder: Path) -> None:
    text = "seed = 5\n" + HOSTS + '[links]\ntraces = "cars"\nlink_mean = "0.2mbit"\n'
    parsed = scenario(folder, text)
    pool = scale_pool(load_pool(folder / "sets/bandwidth/cars"), 2e5)
    assert parsed.traces == assign_traces(pool, ["client", "h1", "h2"], 5)
    assert parsed.links["h1", "h2"].rate_bps == parsed.traces["h1", "h2"].rate_at(0.0)
    (folder / "one.csv").write_text("time_s,bandwidth_bps\n0,5\n1,6\n")
    with_trace = scenario(folder, text + '[[link]]\nfrom = "h1"\nto = "h2"\ntrace = "one.csv"\n')
    assert with_trace.traces["h1", "h2"].rates_bps.tolist() == [5, 6]
    fixed = scenario(folder, text + '[[link]]\nhost = "h1"\nrate = "1mbit"\n')
    assert set(fixed.traces) == {("client", "h2"), ("h2", "client")}


def test_links_between_named_sites_follow_the_series_of_the_pair_from_the_same_moment(folder: Path) -> None:
    text = 'hosts = ["a@aws:x", "b@aws:y"]\n[links]\ntraces = "measured"\n'
    names, shifts = set(), set()
    for seed in range(12):
        traces = scenario(folder, text, seed=seed).traces
        names.add((traces["a", "b"].name, traces["b", "a"].name))
        shifts.add(tuple(traces[link].offset(1e-9).rate_at(0.0) for link in (("a", "b"), ("b", "a"))))
        phase = [traces[link].rates_bps / traces[link].rates_bps.min() for link in (("a", "b"), ("b", "a"))]
        assert phase[0].tolist() == phase[1].tolist()  # what varied together still does
    assert names == {("b1_x__y", "b1_y__x"), ("b2_x__y", "b1_y__x")}
    assert len(shifts) > 3
    other = text.replace("]\n", ', "c@gcp:z"]\n', 1)
    with pytest.raises(UsageError, match=r"line 3: traces 'measured' has nothing for a \(aws:x\) → c \(gcp:z\); give"):
        scenario(folder, other)
    filled = scenario(folder, other + 'missing = "fill"\n')
    assert filled.traces["b", "c"].name == "b1_y__z_gcp"
    assert filled.traces["a", "c"].name in {trace.name for trace in load_pool(folder / "sets/bandwidth/measured")}


def test_grids_give_rates_and_delays_by_site(folder: Path) -> None:
    text = 'hosts = ["a@aws:x", "b@gcp:z"]\n[links]\nthroughput = "grid"\nlatency = "rtt"\n'
    assert scenario(folder, text).links == {
        ("a", "b"): LinkShape(4e5, 0.02),
        ("b", "a"): LinkShape(1e6, 0.02),
    }
    scaled = scenario(folder, text + 'link_mean = "1.68mbit"\n').links["a", "b"].rate_bps
    assert scaled == pytest.approx(2 * 4e5)  # the grid's own mean is 0.84 Mbit/s
    other = text.replace("]\n", ', "c@aws:y"]\n', 1)
    with pytest.raises(UsageError, match=r"line 3: throughput 'grid' has nothing for b \(gcp:z\) → c \(aws:y\)"):
        scenario(folder, other)
    assert scenario(folder, other + 'missing = "fill"\n').links["b", "c"] == LinkShape(1e6, 0.03)
    with pytest.raises(UsageError, match="both are at one site; give the link a delay of its own"):
        scenario(folder, text.replace("gcp:z", "aws:x").replace('throughput = "grid"', "rate = 1000"))


# --- errors -------------------------------------------------------------------------------------------

EVENT = HOSTS + LINKS + "[[event]]\nat = 1\n"  # lines 1 to 5


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "a scenario needs hosts"),
        (HOSTS, 1, "client → h1 has no rate; give"),
        (HOSTS + "[links]\nrate = 10mbit\n", 3, "not TOML: .* quotes"),
        ("sede = 1\n" + HOSTS + LINKS, 1, "no key 'sede'; did you mean 'seed'"),
        ("layer = 4\n" + HOSTS + LINKS, 1, "neither 3 .* nor 2"),
        ("time_scale = 0\n" + HOSTS + LINKS, 1, "above 0"),
        ("hosts = 1024\n" + LINKS, 1, "1 to 1023"),
        ('hosts = [\n"h1",\n"h1"]\n' + LINKS, 3, "two hosts are named 'h1'"),
        ('hosts = [\n"h 1"]\n' + LINKS, 2, "host name 'h 1' must be"),
        ('hosts = ["a@"]\n' + LINKS, 1, "no site after the @"),
        ('[[hosts]]\nname = "a"\ncpu = 3\n' + LINKS, 3, "a host has no key 'cpu'; did you mean 'cpus'"),
        ('hosts = ["a@aws:xx"]\n' + LINKS + 'latency = "rtt"', 1, "no site 'aws:xx' in 'rtt'; did you mean 'aws:x'"),
        ("hosts = 9\n" + LINKS + 'latency = "rtt"', 1, "no site of 'rtt' is left for host 'h3'"),
        (HOSTS + LINKS + 'dealy = "3ms"', 4, "no key 'dealy'; did you mean 'delay'"),
        (HOSTS + LINKS + "interface_rate = 1e6", 4, "write it above the first table"),
        (HOSTS + LINKS + 'delay = "3 mins"', 4, "delay: '3 mins' is not a time"),
        (HOSTS + LINKS + 'delay = "90s"', 4, "is its unit right"),
        (HOSTS + LINKS + "loss = 1", 4, "a share is below 100%"),
        (HOSTS + LINKS + 'reorder = "1%"', 4, "give link client → h1 a delay"),
        (HOSTS + LINKS + 'traces = "cars"', 4, "rate and traces set the same figure"),
        (HOSTS + '[links]\ntraces = "carts"', 3, "did you mean 'cars'"),
        (HOSTS + '[links]\ntraces = "rtt"', 3, "it is a set for latency = 'rtt'"),
        (HOSTS + LINKS + "link_mean = 1000", 4, "which has neither"),
        (HOSTS + LINKS + "[[link]]\nrate = 5", 4, "names no links"),
        (HOSTS + LINKS + '[[link]]\nfrom = ["h1",\n"h3"]', 6, "no host 'h3'; known are client, h1, h2"),
        (HOSTS + LINKS + '[[link]]\nfrom = "h1"\nto = "h1"', 5, "must be different hosts"),
        (HOSTS + LINKS + '[[link]]\nhost = "h1"\nboth = true', 6, "leave out both"),
        (HOSTS + LINKS + '[[link]]\nfrom = "h1"\ntrace = "no.csv"', 6, "No such file"),
        (HOSTS + LINKS + '[link]\nfrom = "h1"', 4, r"write \[\[link\]\] before each"),
        ('hosts = ["client", "localhost"]\n' + LINKS, 1, "'localhost' is the name of every host for itself"),
        ('hosts = ["client",\n"0x7f000001"]\n' + LINKS, 2, "'0x7f000001' is an address to every program"),
        ('hosts = ["H1", "h1"]\n' + LINKS, 1, "'H1' and 'h1' are both 'h1' as hostnames"),
        ('hosts = ["a.b", "a-b"]\n' + LINKS, 1, "'a.b' and 'a-b' are both 'a-b' as hostnames"),
        ('ipv6 = "no"\n' + HOSTS + LINKS, 1, "ipv6"),
        ('hosts = ["a", {name = "b", up_rate = {leased = 5}}]\n' + LINKS, 1, "up_rate: there is no network 'leased'"),
        ('hosts = ["a", "b"]\ndown_rate = "8 mbits"\n' + LINKS, 2, "down_rate: '8 mbits' is not a rate"),
        (HOSTS + LINKS + 'queue = "fq"', 4, "queue; write it as 100ms, 64kb, as a number of packets, or as fq_codel"),
        (EVENT, 4, "needs a kind: change, outage"),
        (EVENT + 'kind = "outrage"', 6, "no 'outrage'; did you mean 'outage'"),
        (EVENT + 'kind = "outage"\nhost = "h1"\nrate = 5', 8, "'outage' has no key 'rate'"),
        (EVENT + 'kind = "outage"\nhost = "h1"\nuntil = 1', 8, "until is a time after at"),
        (EVENT + 'kind = "outage"\nhost = "h1"\nfor = 1\nuntil = 3', 9, "leave one of them out"),
        (EVENT + 'kind = "change"\nhost = "h1"', 4, "changes nothing; give one of factor"),
        (EVENT + 'kind = "change"\nhost = "h1"\nfactor = 2\nrate = 5', 8, "leave one of them out"),
        (EVENT + 'kind = "flap"\nhost = "h1"\ndown = 5', 4, "needs up; write for example up = \"20s\""),
        (EVENT + 'kind = "flap"\nhost = "h1"\ndown = "1ms"\nup = "1ms"', 4, "more than 2,000,000 changes"),
        (EVENT + 'kind = "partition"\ngroups = [["h1"],\n["h2", "h1"]]', 8, "'h1' stands there twice"),
        (EVENT + 'kind = "partition"\ngroups = [["h1"]]', 7, "at least two"),
        (EVENT + 'kind = "crash"\nhost = "h4"', 7, "no host 'h4'"),
        (EVENT + 'kind = "crash"\nhost = "client"', 7, "the client's own process stays"),
        (EVENT + 'kind = "drain"\nhost = "h1"\nfor = "5s"', 8, "a drain does not last; for goes with a crash"),
        (EVENT + 'kind = "churn"\nhosts = ["h4"]\nmean_up = 1\nmean_down = 1', 7, "no host 'h4'"),
    ],
)  # fmt: skip
def test_every_error_is_a_single_line_with_the_line_number(folder: Path, text: str, line: int, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        scenario(folder, text)
    assert str(caught.value).startswith(f"{folder / 'wan.toml'}, line {line}: ")
    assert "\n" not in str(caught.value)


def test_unreadable_files_and_wrong_time_scales_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none\.toml: No such file"):
        read_scenario(folder / "none.toml")
    (folder / "wan.toml").write_bytes(b"hosts = 3\n# \xff\n")
    with pytest.raises(UsageError, match="line 2: this is not UTF-8"):
        read_scenario(folder / "wan.toml")
    with pytest.raises(UsageError, match="time scale"):
        scenario(folder, HOSTS + LINKS, time_scale=float("nan"))


@pytest.mark.parametrize("name", ["campus", "rates-only", "five-continents", "two-networks", "dedicated"])
def test_the_examples_are_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "five-continents":
        if REAL is None:
            pytest.skip("THALWEG_TRACES names no data sets")
        monkeypatch.setenv("THALWEG_TRACES", REAL)
    example = read_scenario(EXAMPLES / f"{name}.toml")
    assert example.needs_netem == (name in ("campus", "five-continents"))
    rented = [link for link in example.links if link.via == "leased"]
    assert len(rented) == 2 * {"two-networks": 5, "dedicated": 8}.get(name, 0)
    if name == "five-continents":
        assert {trace.name.partition("_")[2] for trace in example.traces.values()} >= {"eu-west-1__us-west-1"}
        assert example.links["client", "tokyo"].delay_s == pytest.approx(0.107, abs=0.001)


REAL = os.environ.get("THALWEG_TRACES")
