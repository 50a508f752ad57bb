from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from thalweg.emulation.traces.files import write_csv
from thalweg.emulation.traces.pool import Pool, Window, fetch_s
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.experiments.sweeps.pools import STUDY_HOSTS, link_class, open_pool
from thalweg.middleware.errors import ThalwegError, TraceError, UsageError
from thalweg.middleware.network.view import Link

HOSTS = ["client", *(f"server{number}" for number in range(8))]
HOUR_S = 3600.0
MIDNIGHT_UNIX_S = 18_850 * 24 * 3600


def test_parameters_change_a_generated_pool() -> None:
    plain, stretched = open_pool("paper", 1), open_pool("paper:stretch=1.8,big_hold_s=120", 1)
    assert [trace.name for trace in plain.traces] == [trace.name for trace in stretched.traces]
    assert open_pool("paper:stretch=1.2", 1).traces == plain.traces
    spread, wider = (np.std(np.log([trace.mean_bps for trace in pool.traces])) for pool in (plain, stretched))
    assert wider > 1.2 * spread
    for name, says in (
        ("paper:strech=2", "stretch"),
        ("regions:stretch=x", "a number"),
        ("paper:jitter=99", "0 to 10"),
    ):
        with pytest.raises(UsageError, match=says):
            open_pool(name, 1)


def digest(network: dict[Link, Window]) -> str:
    rows = [(*link, window.trace.name, window.start_s, window.rate_at(0.0)) for link, window in sorted(network.items())]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def write(folder: Path, name: str, *rates_bps: float, step_s: float = HOUR_S) -> None:
    times = np.arange(len(rates_bps), dtype=np.float64) * step_s
    write_csv(BandwidthTrace(name, times, np.array(rates_bps)), folder / f"{name}.csv")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of data sets like the folder of the real traces. THALWEG_TRACES names it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THALWEG_TRACES", str(tmp_path / "traces"))
    data_set = tmp_path / "traces" / "bandwidth" / "puffer_max60"
    for number in range(5):
        write(data_set, f"s{number}", 1e6 * (number + 1), 3e6, 2e6)
    return tmp_path / "traces"


# --- drawing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("paper", "13ddce70802318074e7836273e933124e648cffb28b42413b44ab9073ebfa9d3"),
        ("regions", "a5f57803693c83f8fc11ae211200150c687afa9d98b7a3ae0310968b1007394f"),
    ],
)
def test_a_network_is_the_same_on_every_machine(name: str, expected: str) -> None:
    # exp() may differ in its last digit between machines; the generator rounds rates to whole bit/s.
    assert digest(open_pool(name, 3).network(HOSTS[:4], 5)) == expected


def test_seed_and_configuration_change_a_network() -> None:
    networks = [open_pool("paper", seed).network(HOSTS, number) for seed, number in ((1, 0), (1, 1), (2, 0))]
    assert len({digest(network) for network in networks}) == 3


@pytest.mark.parametrize("name", ["paper", "regions"])
def test_adding_hosts_leaves_other_links_alone(name: str) -> None:
    pool = open_pool(name, 1)
    few, many = pool.network(HOSTS, 7), pool.network(["a", *reversed(HOSTS), "z"], 7)
    assert len(few) == 9 * 8
    assert len(many) == 11 * 10
    assert {link: many[link] for link in few} == few


@pytest.mark.parametrize("name", ["paper", "regions", "real"])
def test_both_directions_of_a_pair_have_the_same_trace(root: Path, name: str) -> None:
    network = open_pool(name, 1).network(HOSTS, 2)
    assert all(network[target, source] is window for (source, target), window in network.items())
    assert len({(window.trace.name, window.start_s) for window in network.values()}) == 9 * 8 / 2


def test_traces_and_starts_are_uniform() -> None:
    pool = open_pool("paper", 1)
    windows = [window for number in range(60) for window in set(pool.network(HOSTS, number).values())]
    assert len(windows) == 60 * 36
    expected = len(windows) / len(pool.traces)
    counts = Counter(window.trace.name for window in windows)
    chi_square = sum((counts[trace.name] - expected) ** 2 / expected for trace in pool.traces)
    assert 34 < chi_square < 104  # 63 degrees of freedom: one draw in a thousand is beyond either
    shares = np.array([window.start_s / window.trace.duration_s for window in windows])
    assert shares.min() >= 0.0
    assert shares.max() < 1.0
    assert np.histogram(shares, 10, (0, 1))[0] == pytest.approx(np.full(10, 216), abs=60)


def test_bad_hosts_and_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="'client' is named twice"):
        open_pool("paper", 1).network([*HOSTS, "client"], 0)
    with pytest.raises(UsageError, match="configuration is -1"):
        open_pool("paper", 1).network(HOSTS, -1)
    with pytest.raises(UsageError, match="pool seed is -1"):
        open_pool("real", -1)


# --- regions ----------------------------------------------------------------------------------------


def test_the_class_of_a_link_follows_from_the_places_of_the_hosts() -> None:
    pool = open_pool("regions", 1)
    for number in range(20):
        places = {host: pool.place(host, number) for host in HOSTS}
        for (source, target), window in pool.network(HOSTS, number).items():
            assert window.trace.name.endswith(f"_{link_class(places[source], places[target])}")


def test_the_class_of_a_link_depends_on_the_regions() -> None:
    assert link_class("us-east", "us-south") == link_class("spain", "austria") == "us"
    assert link_class("us-east", "france") == link_class("spain", "us-west") == "atlantic"
    assert {link_class("brazil", place) for place in STUDY_HOSTS} == {"brazil"}
    assert {link_class(place, "brazil") for place in STUDY_HOSTS} == {"brazil"}


def test_places_are_uniform_and_change_with_the_configuration() -> None:
    pool = open_pool("regions", 1)
    counts = Counter(pool.place(host, number) for number in range(100) for host in HOSTS)
    assert counts.keys() == STUDY_HOSTS.keys()
    assert all(70 < count < 160 for count in counts.values())  # 112.5 expected, deviation 10
    assert len({pool.place("client", number) for number in range(30)}) > 4


# --- measured traces --------------------------------------------------------------------------------


def test_measured_pools_are_scaled_to_the_papers_download_all(root: Path) -> None:
    pool = open_pool("real", 1)
    hosts = [*(f"h{i}" for i in range(1, 9)), "client"]
    networks = [pool.network(hosts, number) for number in range(200)]
    took_s = [fetch_s([links[host, "client"] for host in hosts[:-1]], 131_072, 20, 0.1) for links in networks]
    assert np.mean(took_s) == pytest.approx(101.2, rel=0.1)  # on other networks than those it was scaled on
    assert [trace.name for trace in pool.traces] == ["s0", "s1", "s2", "s3", "s4"]
    factors = [trace.rate_at(0.0) / (number + 1) for number, trace in enumerate(pool.traces)]
    assert factors == pytest.approx([factors[0]] * 5)


def test_measured_traces_are_read_once(root: Path) -> None:
    assert open_pool("real", 1).traces is open_pool("real", 2).traces
    assert digest(open_pool("real", 1).network(HOSTS, 0)) != digest(open_pool("real", 2).network(HOSTS, 0))


def test_a_pool_is_named_by_data_set_or_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root / "bandwidth" / "other", "o", 1e6)
    write(root.parent / "other", "not this", 1e6)
    write(root.parent / "mine", "m", 1e6)

    def names(pool: Pool) -> list[str]:
        return [trace.name for trace in pool.traces]

    assert names(open_pool("other", 1)) == ["o"]  # what a data set's name means does not depend on the directory
    assert names(open_pool("./other", 1)) == ["not this"]
    assert names(open_pool("mine", 1)) == names(open_pool(str(root.parent / "mine"), 1)) == ["m"]
    assert names(open_pool("other", 1, str(root / "bandwidth"))) == ["o"]
    monkeypatch.delenv("THALWEG_TRACES")
    real = [f"s{number}" for number in range(5)]
    for folder in (root, root / "bandwidth", root / "bandwidth" / "puffer_max60"):
        assert names(open_pool("real", 1, str(folder))) == real


@pytest.mark.parametrize(
    ("name", "variable", "message"),
    [
        ("real", None, r"needs measured traces; set THALWEG_TRACES to the folder that holds bandwidth/puffer_max60"),
        ("real", "empty", r"puffer_max60, which .* lacks; set THALWEG_TRACES"),
        ("nothing", None, r"no pool 'nothing': choose paper, regions, real, .*which is not set"),
        ("nothing", "traces", r"a data set of THALWEG_TRACES \(puffer_max60\)"),
        ("", "traces", r"no pool ''"),
        ("nothing", "missing", r"cannot be read"),
        ("./empty", "traces", r"there are no traces under"),
    ],
)
def test_an_unknown_pool_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch, name: str, variable: str | None, message: str
) -> None:
    (root.parent / "empty").mkdir()
    if variable is None:
        monkeypatch.delenv("THALWEG_TRACES")
    else:
        monkeypatch.setenv("THALWEG_TRACES", variable)
    with pytest.raises(UsageError, match=message) as caught:
        open_pool(name, 1)
    assert "\n" not in str(caught.value)


def test_a_trace_without_a_positive_rate_is_named(root: Path) -> None:
    write(root.parent / "dead", "flat", 0.0, 0.0)
    with pytest.raises(TraceError, match="'flat' is zero everywhere"):
        open_pool("./dead", 1)


# --- noon -------------------------------------------------------------------------------------------


def test_traces_with_a_time_of_day_start_at_noon(root: Path) -> None:
    day = root / "bandwidth" / "day"
    for name in ("morning", "afternoon", "long", "undated"):
        write(day, name, *[1e6] * (30 if name == "long" else 6))
    (root / "bandwidth_index.csv").write_text(
        "dataset,series,start_unix,source\n"
        f"day,morning,{MIDNIGHT_UNIX_S + 9 * HOUR_S},x\n"
        f"day,afternoon,{MIDNIGHT_UNIX_S + 13 * HOUR_S},x\n"  # over before the next noon
        f"day,long,{MIDNIGHT_UNIX_S + 13 * HOUR_S},x\n"
        "day,undated,,x\n"
        f"another,undated,{MIDNIGHT_UNIX_S},x\n"
    )
    pool = open_pool("day", 1)
    assert {trace.name: noon_s for trace, noon_s in zip(pool.traces, pool.noons_s, strict=True)} == {
        "morning": 3 * HOUR_S,
        "afternoon": None,
        "long": 23 * HOUR_S,
        "undated": None,
    }
    starts: dict[str, set[float]] = {}
    for window in pool.network(HOSTS, 0).values():
        starts.setdefault(window.trace.name, set()).add(window.start_s)
    assert starts["morning"] == {3 * HOUR_S}
    assert starts["long"] == {23 * HOUR_S}
    assert len(starts["afternoon"]) > 2 and len(starts["undated"]) > 2
    together = open_pool(str(root), 1)  # a folder of data sets: names have the data set before them
    noons = dict(zip((trace.name for trace in together.traces), together.noons_s, strict=True))
    assert (noons["day/morning"], noons["puffer_max60/s0"]) == (3 * HOUR_S, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"dataset,series,start_unix\npuffer_max60,s0,noon\n", r"bandwidth_index.csv:2: start_unix is 'noon', not"),
        (b"dataset,series,start_unix\n\npuffer_max60,s0,inf\n", r"bandwidth_index.csv:3: start_unix is 'inf', not"),
        (b"dataset,series,start_unix\n\xff\xfe", r"cannot read .*bandwidth_index.csv.*repair it"),
    ],
)
def test_a_broken_index_is_named(root: Path, content: bytes, message: str) -> None:
    (root / "bandwidth_index.csv").write_bytes(content)
    with pytest.raises(TraceError, match=message) as caught:
        open_pool("real", 1)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ThalwegError)


def test_an_index_without_times_leads_to_no_noon(root: Path) -> None:
    (root / "bandwidth_index.csv").write_text("dataset,series\npuffer_max60,s0\n")
    assert open_pool("real", 1).noons_s == (None,) * 5
