"""Grids and pools of traces by name, and the sites in them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from thalweg.emulation.scenarios.data_sets import TraceSet, find_set, known_sets, place, read_grid, read_traces
from thalweg.emulation.scenarios.delays import read_delays
from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.middleware.errors import TraceError, UsageError


def test_square_grids_and_pairs_are_read_alike(tmp_path: Path) -> None:
    (tmp_path / "square.csv").write_text("node,a,b,c\na,0,20,\nb,22,0,40\nc,30,,0\n")
    (tmp_path / "pairs.csv").write_text("src,dst,rtt_ms\r\na,b,20\r\nb,a,22\r\nc,a,30\r\nb,c,40\r\n")
    for name in ("square", "pairs"):
        grid = read_grid(tmp_path / f"{name}.csv", "latency")
        assert set(grid.sites.names) == {"a", "b", "c"}
        measured = [grid.value(*pair) for pair in (("a", "b"), ("b", "a"), ("c", "a"), ("b", "c"))]
        assert measured == pytest.approx([0.020, 0.022, 0.030, 0.040])
        assert grid.value("a", "c") == pytest.approx(0.030)  # a round trip, measured from the other end
        assert (grid.median, grid.mean) == pytest.approx((0.026, 0.028))
    (tmp_path / "rates.csv").write_text("src,dst,bandwidth_bps\na,b,1e6\nb,a,\n")
    rates = read_grid(tmp_path / "rates.csv", "throughput")
    assert rates.value("a", "b") == 1e6
    assert rates.value("b", "a") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("src,dst,bandwidth_bps\na,b,1\n", r"x.csv:1: .*not 'src,dst,rtt_ms'"),
        ("src,dst,rtt_ms\na,b,fast\n", r"x.csv:2: 'fast' is no number; leave a cell empty if it was never measured"),
        ("src,dst,rtt_ms\na,b\n", r"x.csv:2: 'a,b' is not source,destination,number"),
        ("src,dst,rtt_ms\na,b,1\na,b,2\n", r"x.csv:3: the pair a → b stands there twice"),
        ("src,dst,rtt_ms\na,b,-1\n", r"a → b is -1; it must be at least 0"),
        ("src,dst,rtt_ms\na,a,1\n", r"nothing is measured between two sites"),
        ("node,a,b\na,0,1\n", r"2 sites and 1 rows; a grid is square"),
        ("node,a,b\na,0,1\nc,1,0\n", r"x.csv:3: this is not the row of 'b'"),
        ("node,a,b\na,0,x\nb,1,0\n", r"x.csv:2: 'x' is no number; leave a cell empty if it was never measured"),
        ("node,a,b\na,0,nan\nb,1,0\n", r"x.csv:2: 'nan' is no number; leave a cell empty if it was never measured"),
        ("src,dst,rtt_ms\na,b,NaN\n", r"x.csv:2: 'NaN' is no number; leave a cell empty if it was never measured"),
        ("src,dst,rtt_ms\na,b,inf\n", r"a → b is inf; it must be at least 0"),
        ("node,a,a\na,0,1\na,1,0\n", r"every site needs a name of its own"),
    ],
)
def test_an_invalid_grid_is_refused_with_the_cause(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(TraceError, match=says):
        read_grid(tmp_path / "x.csv", "latency")


def test_links_have_half_the_round_trips_of_a_matrix_of_hosts_or_of_drawn_sites(tmp_path: Path) -> None:
    matrix = tmp_path / "matrix.csv"
    matrix.write_text("node,h2,client,h1\nh2,0,20,\nclient,22,0,40\nh1,30,44,0\n")
    hosts = ("h1", "h2", "client")
    delays_s, drawn = read_delays(str(matrix), hosts, 1)
    assert drawn == {}
    assert delays_s["client", "h1"] == 0.020 and delays_s["h1", "client"] == 0.022 and delays_s["h2", "h1"] == 0.015
    matrix.write_text("src,dst,rtt_ms\na,b,2\nb,c,4\nc,a,6\nb,a,2\nc,b,4\na,c,6\n")
    delays_s, drawn = read_delays(str(matrix), hosts, 1)
    assert set(drawn) == set(hosts) and set(drawn.values()) == {"a", "b", "c"}
    assert sorted(delays_s.values()) == [0.001, 0.001, 0.002, 0.002, 0.003, 0.003]
    assert (delays_s, drawn) == read_delays(str(matrix), hosts, 1)
    for text, says in (
        ("node,h1,client\nh1,0,1\nclient,1,0\n", "has host 'h1' and not 'h2'; name all hosts there, or none of them"),
        ("src,dst,rtt_ms\nh1,h2,1\nh1,client,1\n", "has no round trip between h2 and client"),
        ("src,dst,rtt_ms\nh1,h2,1\nh1,client,1\nh2,client,2e6\n", "h2 → client takes 1000 s one way, more than 60 s"),
        ("src,dst,rtt_ms\na,b,1\n", "no site of 'matrix' is left for host 'client'"),
    ):
        matrix.write_text(text)
        with pytest.raises(UsageError, match=says):
            read_delays(str(matrix), hosts, 1)


def test_a_site_is_found_by_name_with_or_without_the_provider(tmp_path: Path) -> None:
    assert place("aws:eu-west-1") == place("eu-west-1_aws") == ("eu-west-1", "aws")
    assert place("n17") == ("n17", "")
    (tmp_path / "x.csv").write_text("src,dst,rtt_ms\naws:east,gcp:east,1\ngcp:west,aws:north,2\n")
    sites = read_grid(tmp_path / "x.csv", "latency").sites
    assert sites.find("north_aws") == sites.find("north") == "aws:north"
    assert sites.find("gcp:north") is None
    assert sites.find("east") is None  # of which provider?
    assert sites.find("east_gcp") == "gcp:east"


def test_the_names_of_traces_give_the_pairs_of_sites() -> None:
    flat = [BandwidthTrace(name, np.zeros(1), np.ones(1)) for name in ("b2_x__y", "b1_x__y", "p/y_aws__x__2", "plain")]
    pool = TraceSet("set", flat)
    assert pool.pairs == {("x", "y"): {"b2": flat[0], "b1": flat[1]}, ("y_aws", "x"): {"2": flat[2]}}
    assert pool.sites.names == ("x", "y", "y_aws")
    assert pool.batches == ["2", "b1", "b2"]
    assert read_traces(None, 3).pool[0] == read_traces(None, 3).pool[0] != read_traces(None, 4).pool[0]


def test_sets_are_found_beside_the_file_then_in_the_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("mine/own", "all/bandwidth/cars", "all/latency", "all/throughput"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("mine/near.csv", "all/latency/near.csv", "all/latency/far.csv"):
        (tmp_path / file).write_text("")
    mine = tmp_path / "mine"
    monkeypatch.delenv("THALWEG_TRACES", raising=False)
    with pytest.raises(UsageError, match="set THALWEG_TRACES"):
        find_set("far", "latency", mine)
    assert known_sets("latency") == {}
    monkeypatch.setenv("THALWEG_TRACES", str(tmp_path / "all"))
    assert find_set("near", "latency", mine) == find_set("near.csv", "latency", mine) == mine / "near.csv"
    assert find_set("far", "latency", mine) == tmp_path / "all/latency/far.csv"
    assert find_set("own", "bandwidth", mine) == mine / "own"
    assert find_set("cars", "bandwidth", mine) == tmp_path / "all/bandwidth/cars"
    assert set(known_sets("latency")) == {"near", "far"}
    for name, kind, says in [("farr", "latency", "did you mean 'far'"), ("far", "bandwidth", "latency = 'far'")]:
        with pytest.raises(UsageError, match=says):
            find_set(name, kind, mine)  # type: ignore[arg-type]


@pytest.mark.skipif("THALWEG_TRACES" not in os.environ, reason="THALWEG_TRACES names no data sets")
def test_the_real_sets_are_read() -> None:
    sizes = {}
    for kind in ("latency", "throughput"):
        for name, path in known_sets(kind).items():
            grid = read_grid(path, kind)  # type: ignore[arg-type]
            sizes[name] = (len(grid.sites.names), len(grid.measured))
    assert sizes["planetlab490_median"] == (490, 490 * 489)
    assert sizes["skyplane_2022"] == (69, 4692)
    assert sizes["wanify_aws_8region_median"] == (8, 56)
    pool = read_traces(known_sets("bandwidth")["wanify_aws"], 1)
    assert (len(pool.sites.names), len(pool.pairs)) == (7, 42)
    assert pool.sites.find("aws:eu-west-1") == "eu-west-1"
