"""Runs over a public and a dedicated network: the traffic of each link, equal results, and the bill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from thalweg.experiments.cli.main import invoke
from thalweg.experiments.records.analysis import summarize_run
from thalweg.experiments.records.bills import Bill
from thalweg.experiments.reports.report import write_report
from thalweg.experiments.views.tables import lines_of
from thalweg.middleware.network.tariffs import HOUR_S, TARIFFS
from thalweg.middleware.network.view import NET, Link

FILE = """
time_scale = 10
hosts = ["client", { name = "h1", interface_rate = { net = "0.1mbit" } }, "h2", "h3"]
[links]
rate = "0.4mbit"
[networks.leased]
price_per_gb = 0.02
price_per_port_hour = 0.3
[[link]]
network = "leased"
from = "h1"
to = "h2"
both = true
rate = "0.4mbit"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "two.toml").write_text(FILE)
    return tmp_path / "two.toml"


def ran(file: Path, capsys: pytest.CaptureFixture[str], testbed: str, *more: str) -> dict[str, Any]:
    folder = file.parent / f"{testbed}{len(list(file.parent.iterdir()))}"
    where = ["--testbed", testbed, "--scenario", str(file), "--out", str(folder), "--json"]
    assert invoke(["run", *where, "--placement", "thalweg", "--image-bytes", "30000", "--pictures", "0", *more]) == 0
    run = json.loads(capsys.readouterr().out.splitlines()[-1])
    placement: dict[str, Any] = run["placements"]["thalweg"]
    assert placement["lost"] == placement["duplicate"] == placement["out_of_order"] == 0
    return placement | {"folder": folder, "reference": run["reference_digest"]}


def test_a_bill_is_bytes_times_price_plus_the_hours_of_rented_links() -> None:
    rented = {Link("a", "b", "leased"): 1e6, Link("b", "a", "leased"): 2e6, Link("a", "c", "leased"): 1e6}
    carried = {Link("a", "b"): 1e9, Link("c", "a"): 2e9, Link("a", "b", "leased"): 5e9}
    bill = Bill.of({NET: TARIFFS["public"], "leased": TARIFFS["dedicated"]}, rented, carried, HOUR_S / 2)
    assert bill.networks[NET].bytes_cost == pytest.approx(0.27)
    assert (bill.networks["leased"].rented, bill.networks["leased"].rent) == (2, pytest.approx(0.3))
    assert bill.total == pytest.approx(0.27 + 5 * 0.02 + 0.3)
    assert bill.text == "$0.67: net 3,000 MB $0.27; leased 5,000 MB $0.1, 2 links for 0.5 h $0.3"


def test_a_virtual_run_bypasses_a_weak_uplink_over_the_rented_link(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ran(file, capsys, "sim", "--images", "12")
    alone = ran(file, capsys, "sim", "--images", "12", "--network", NET)
    assert alone["mean_interarrival_s"] > 1.3 * both["mean_interarrival_s"]
    assert both["bill"]["networks"]["leased"]["size_bytes"] > 12 * 20_000
    assert both["bill"]["networks"]["leased"]["rented"] == 1
    assert alone["bill"]["networks"].keys() == {NET}
    (cost_line,) = [line for line in lines_of(summarize_run(both["folder"])) if " cost " in line]
    assert cost_line.startswith("thalweg cost $") and "leased" in cost_line


def test_a_relay_bypasses_a_weak_link_and_the_summary_names_relayed_partitions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "relays.toml"
    file.write_text((Path(__file__).parents[3] / "docs/examples/relays.toml").read_text())
    answers = {}
    for hops in ("1", "2"):
        options = ["--scenario", str(file), "--hops", hops, "--placement", "download-all", "--images", "12"]
        assert invoke(["run", "--testbed", "sim", "--out", str(tmp_path / hops), "--json", *options]) == 0
        answers[hops] = json.loads(capsys.readouterr().out.splitlines()[-1])["placements"]["download-all"]
        assert answers[hops]["lost"] == answers[hops]["duplicate"] == answers[hops]["out_of_order"] == 0
    assert answers["2"]["mean_interarrival_s"] < answers["1"]["mean_interarrival_s"] / 3
    (relayed,) = answers["2"]["relayed"]
    assert "relayed" not in answers["1"]
    assert (relayed["source"], relayed["target"], relayed["relays"]) == ("h1", "client", ["h2"])
    assert 8 <= relayed["partitions"] <= 12 and relayed["size_bytes"] > 8 * 100_000
    (line,) = [line for line in lines_of(summarize_run(tmp_path / "2")) if "passed on" in line]
    assert line.startswith(f"download-all: h2 passed on {relayed['partitions']} partitions (")
    assert line.endswith(" MB) from h1 to client")


@pytest.mark.long
@pytest.mark.netns
def test_a_run_on_namespaces_uses_and_proves_links_of_both_networks(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ran(file, capsys, "netns", "--images", "8")
    assert both["digest"] == both["reference"]
    net, leased = (both["bill"]["networks"][via] for via in (NET, "leased"))
    assert leased["size_bytes"] > 8 * 20_000
    assert both["bill"]["total"] == pytest.approx(
        sum(network["bytes_cost"] + network["rent"] for network in (net, leased))
    )
    assert leased["rent"] == pytest.approx(0.3 * both["bill"]["hours"])
    rows = pq.read_table(both["folder"] / "events.parquet").to_pylist()
    proofs = [
        (row["host"], row["peer"], json.loads(row["detail"]).get("via")) for row in rows if row["kind"] == "proof"
    ]
    assert len(proofs) == 4 * 3 + 2
    assert {("h1", "h2", "leased"), ("h1", "h2", None)} <= {*proofs}
    write_report([both["folder"]], file.parent / "page.html")
    page = (file.parent / "page.html").read_text()
    assert all(text in page for text in ("h1 → h2 over leased", "thalweg cost $"))
    carried = {row["peer"] for row in rows if row["kind"] == "link" and row["host"] == "h1"}
    assert "h2 over leased" in carried


def test_the_example_shows_an_outage_that_moves_an_edge_to_a_rented_link_and_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run sixty images with both networks and with the public network alone, as the documentation page does."""
    example = Path(__file__).parents[3] / "docs" / "examples" / "two-networks.toml"
    both, alone = tmp_path / "both", tmp_path / "alone"
    runs = []
    for folder, more in ((both, []), (alone, ["--network", NET])):
        where = ["--testbed", "sim", "--scenario", str(example), "--out", str(folder), "--json"]
        assert invoke(["run", *where, "--placement", "thalweg", "--images", "60", *more]) == 0
        runs.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
        placement = runs[-1]["placements"]["thalweg"]
        assert placement["lost"] == placement["duplicate"] == placement["out_of_order"] == 0
        assert placement["digest"] == runs[-1]["reference_digest"]
    took_s = [run["placements"]["thalweg"]["mean_interarrival_s"] for run in runs]
    assert took_s[1] > 1.3 * took_s[0]
    rows = pq.read_table(both / "events.parquet").to_pylist()
    first: dict[int, tuple[float, str]] = {}  # what was stuck comes through as well, later
    for row in rows:
        if row["kind"] == "transfer" and (row["host"], row["peer"]) == ("h4", "h8"):
            first.setdefault(row["index"], (row["t_s"], json.loads(row["detail"] or "{}").get("via", NET)))
    sent = [*first.values()]
    assert {via for at_s, via in sent if at_s < 100} == {NET}
    outage = [via for at_s, via in sent if 100 < at_s <= 140]
    assert outage and {*outage} == {"leased"}
    assert NET in {via for at_s, via in sent if 140 < at_s <= 200} and sent[-1][1] == NET


@pytest.mark.long
@pytest.mark.netns
def test_the_public_network_replaces_a_rented_link_that_is_cut_during_a_transfer(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The link counts as stuck only after some seconds, because connections do not notice a cut cable."""
    cut = '[[event]]\nkind = "outage"\nat = "8s"\nhost = "h1"\nnetwork = "leased"\n'
    file.write_text(FILE + cut)
    run = ran(file, capsys, "netns", "--images", "20")
    assert run["digest"] == run["reference"]
    rows = pq.read_table(run["folder"] / "events.parquet").to_pylist()
    records = [row | {"detail": json.loads(row["detail"] or "{}")} for row in rows if row["host"] == "h1"]
    (stuck,) = [row for row in records if row["kind"] == "fault" and row["detail"].get("via") == "leased"]
    assert stuck["detail"]["parts"] == 1 and stuck["peer"] == "h2"
    sent = {row["index"]: row["detail"].get("via", NET) for row in records if row["kind"] == "transfer"}
    before = [*sent.values()].count("leased")
    assert 0 < before < 20
    assert [sent[index] for index in range(20)] == ["leased"] * before + [NET] * (20 - before)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--network", "leesed"], "--network: {file} has no network 'leesed'; did you mean 'leased'"),
        (["--wanted", "0"], "--wanted is 0; give partitions a second, above 0"),
        (["--hops", "9"], "--hops is 9; give 1, for links from host to host, to 8"),
    ],
)
def test_invalid_network_options_are_refused_before_a_run_starts(
    file: Path, capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert invoke(["run", "--scenario", str(file), "--out", str(file.parent / "r"), *options]) == 2
    error = capsys.readouterr().err
    assert says.format(file=file) in error
    assert error.count("\n") == 1
    assert invoke(["run", *options]) == 2
    assert "is about a scenario file's networks" in capsys.readouterr().err or options[0] == "--wanted"
    assert not (file.parent / "r").exists()
