from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from fake_apt import fake_apt
from hypothesis import given
from hypothesis import strategies as st

from thalweg.experiments.records import spark
from thalweg.experiments.records.aggregates import RunsSummary, aggregate, analyze_runs, load_runs
from thalweg.experiments.records.analysis import LinkSummary, failures, natural, summarize_run, write_summary
from thalweg.experiments.records.records import whole_digest
from thalweg.experiments.views.tables import aggregate_table, lines_of, links_line, unproved_lines
from thalweg.middleware.errors import CapabilityError, RunError, UsageError
from thalweg.operators import sequence_digest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_summary_of_a_run_has_the_figures_of_the_records(new_run: Any) -> None:
    """Check all figures of a run's table and JSON. The records have figures that are easy to calculate."""
    run = new_run("a b[1]{x}", images=5, time_scale=10.0)
    run.placements = ["download-all", "one-shot", "never"]
    run.deliver("download-all", [(30.0, 0), (40.0, 1), (60.0, 2), (90.0, 3), (110.0, 4)])
    run.deliver("one-shot", [(20.0, 0), (24.0, 1), (32.0, 2), (44.0, 3), (60.0, 4)])
    plan = {"planner": "one-shot", "predicted_s": 9.5, "probed": 3}
    run.add(0.0, "client", "placed", "one-shot", detail=plan)
    for index in range(5):
        run.add(20.0, "h1", "transfer", "one-shot", peer="h2", index=index, size_bytes=1000, value=8.0)
        run.add(20.0, "h2", "transfer", "one-shot", peer="h2", index=index, size_bytes=9999, value=8.0)
    for pause in (1.0, 3.0):
        run.add(30.0, "h1", "relocated", "one-shot", node="op0", duration_s=pause)
    for cpu, rss in ((0.1, 50), (0.3, 70), (0.2, 60)):
        run.add(30.0, "h2", "host_load", "one-shot", value=cpu, size_bytes=rss)
    run.add(31.0, "h2", "host_load", value=9.0, size_bytes=999)  # of no placement
    run.add(31.0, "h2", "repeated", "one-shot")
    for value in (3, 4):
        run.add(31.0, "h2", "nothing", "one-shot", node="o", index=value)
        run.add(31.0, "h2", "late", "one-shot", node="w", index=value, value=value)
        run.add(31.0, "h2", "left-out", "one-shot", node="w", index=value, value=value, detail={"why": "no time"})
        run.add(31.0, "h2", "left-out", "one-shot", node="p", index=value, detail={"why": "no"})
    run.add(31.0, "h2", "of tomorrow", "one-shot", detail={"a": 1})
    run.prove({("h1", "h2"): (1e6, -0.04), ("h2", "h1"): (5e5, 0.03), ("h1", "h3"): (4.9e5, 0.5)}, stalled=0.123)
    run.prove({("h10", "h1"): (0.0, 0.0)})
    summary = summarize_run(run.write())

    base, fast, never = summary.placements.values()
    reference = sequence_digest(run.digest(i) for i in range(5))
    assert (base.images, base.delivered, base.lost, base.duplicate, base.out_of_order) == (5, 5, 0, 0, 0)
    assert base.digest == reference
    assert base.digest_ok is True
    assert (base.mean_interarrival_s, base.median_interarrival_s) == (20.0, 20.0)
    assert base.p95_interarrival_s == pytest.approx(28.5)  # of 10, 20, 20, 30
    assert (base.first_image_s, base.elapsed_s, base.speedup) == (30.0, 110.0, 1.0)
    assert base.wall_s == pytest.approx(11.0)
    assert fast.speedup == 2.0
    assert (fast.mean_interarrival_s, fast.elapsed_s) == (10.0, 60.0)
    assert (fast.transfers, fast.bytes_moved, fast.probes) == (5, 5000, 3)
    assert (fast.planner, fast.predicted_s) == ("one-shot", 9.5)
    assert (fast.relocations, fast.pause_p50_s) == (2, 2.0)
    assert fast.pause_p99_s == pytest.approx(2.98)
    assert fast.messages == {"duplicate": 0, "repeated": 1, "rejected": 0, "fault": 0}
    assert (fast.nothing, fast.late_rows) == ({"o": 2}, {"w": 7})
    assert (fast.skipped_rows, fast.skipped_partitions) == ({"w": 7}, {"p": 2})
    assert "one-shot: w left out 7 late rows, w skipped 7 rows that failed, p skipped 2 partitions" in lines_of(summary)
    assert fast.hosts["h2"].mean_cpu == pytest.approx(0.2)
    assert fast.hosts["h2"].max_rss_bytes == 70
    assert (never.delivered, never.lost, never.digest, never.mean_interarrival_s) == (0, 5, None, None)
    assert (never.speedup, never.wall_s, never.hosts) == (None, None, {})
    assert (summary.links.checked, summary.links.worst_link) == (2, "h1>h2")
    assert summary.links.worst_rate_error == pytest.approx(0.04)
    assert summary.links.stalled == 0.123
    assert "held up by the machine for up to 12% of the time" in links_line(summary)
    assert links_line(summary).startswith("links: 2 of 4 proved, worst rate error 4.0% (h1>h2);")
    assert summary.links.unproved == {"h1>h3": 4.9e5, "h10>h1": 0.0}
    assert failures(summary) == [f"{run.folder}, never: 5 of 5 images were not delivered"]

    output = json.loads(RunsSummary([summary]).to_json())
    assert list(output)[:5] == ["run", "out", "testbed", "seed", "reference_digest"]
    promised = {
        "images", "delivered", "lost", "duplicate", "out_of_order", "digest", "mean_interarrival_s",
        "median_interarrival_s", "elapsed_s", "wall_s", "relocations", "pause_p50_s", "pause_p99_s",
    }  # fmt: skip
    assert promised <= output["placements"]["one-shot"].keys()
    assert output["links"].keys() >= {"checked", "worst_rate_error", "delay_emulated"}
    assert output["links"]["unproved"] == {"h1>h3": 490000.0, "h10>h1": 0.0}
    assert json.loads(write_summary(run.folder, summary).read_bytes()) == output


def links(checked: int, **unproved: float) -> LinkSummary:
    worst = (0.01, "a>b") if checked else (None, None)
    return LinkSummary(checked, *worst, delay_emulated=False, unproved=unproved)


def test_links_that_were_not_proved_are_named_with_the_reason() -> None:
    slow = "below 500 kbit/s on the wire few packets pass in a proof's time"
    assert unproved_lines(links(72)) == []
    assert unproved_lines(links(71, a=1e5)) == [f"  not proved: a; {slow}"]
    assert unproved_lines(links(70, a=1e5, b=4e5, c=0.0)) == [
        f"  not proved: a and b; {slow}",
        "  not proved: c; cut at the time of the proof",
    ]
    six = dict.fromkeys("abcdef", 1e5)
    assert unproved_lines(links(0, **six)) == [f"  not proved: a, b, c, d, e and f; {slow}"]
    assert unproved_lines(links(0, **six, g=1e5)) == [f"  not proved: a, b, c, d, e and 2 others; {slow}"]


def test_a_run_with_only_slow_links_has_no_proved_link(new_run: Any) -> None:
    run = new_run()
    run.flow("one-shot", 10.0, link_rows=16)
    run.prove({("h1", "h2"): (1e5, 0.01), ("h2", "h1"): (2e5, 0.01)})
    assert links_line(summarize_run(run.write())) == "links: none of 2 proved; rates only, no delays"


def test_sinks_have_separate_figures_and_latency_counts_from_the_last_source(new_run: Any) -> None:
    run = new_run("a", images=2)
    for node, t_s, index in (("s1", 1.0, 0), ("s2", 3.0, 0), ("s1", 4.0, 1), ("s2", 5.0, 1)):
        run.add(t_s, "h1", "produced", "one-shot", node=node, index=index)
        run.add(t_s + 90.0, "h1", "produced", "other", node=node, index=index)
    digests = {"fast": ["sha256:a", "sha256:b"], "slow": ["sha256:c", "sha256:d"]}
    for sink, t_s, index, size in (("fast", 2.0, 0, 8), ("slow", 7.0, 0, 8), ("fast", 4.5, 1, 0), ("slow", 15.0, 1, 8)):
        more = {"node": sink, "index": index, "size_bytes": size, "detail": {"digest": digests[sink][index]}}
        run.add(t_s, "client", "delivered", "one-shot", **more)
    run.placements = ["one-shot"]
    by_sink = {sink: sequence_digest(chunks) for sink, chunks in digests.items()}
    references = {"reference_digests": {**by_sink, "slow": "sha256:x"}, "reference_digest": whole_digest(by_sink)}
    row = summarize_run(run.write(**references, queries={"fast": ["s1"], "slow": ["s1", "s2"]})).placements["one-shot"]
    fast, slow = row.queries["fast"], row.queries["slow"]
    assert (row.delivered, row.lost, row.duplicate, row.out_of_order) == (2, 0, 0, 0)
    assert (row.mean_interarrival_s, row.first_image_s, row.elapsed_s) == (8.0, 7.0, 15.0)  # when both sinks had it
    assert (row.digest, row.digest_ok) == (whole_digest(by_sink), True)
    assert (fast.delivered, fast.nothing, fast.digest_ok, slow.digest_ok) == (2, 1, True, False)
    assert (fast.latency_p50_s, slow.latency_p50_s, slow.latency_p99_s) == (1.0, 7.0, pytest.approx(9.94))
    assert (fast.mean_interarrival_s, slow.mean_interarrival_s) == (2.5, 8.0)


@pytest.mark.spark
def test_the_analysis_of_several_runs_reports_every_broken_promise(new_run: Any, spark_session: SparkSession) -> None:
    good, bad = new_run("good", images=4), new_run("bad", images=4, seed=2)
    for run, speed in ((good, 1), (bad, 4)):
        run.placements = ["download-all", "lossy", "twice", "swapped", "altered"]
        run.deliver("download-all", [(10.0, 0), (20.0, 1), (30.0, 2), (40.0, 3)])
        run.deliver("lossy", [(10.0 / speed * (i + 1), i) for i in range(4)])
    for name in ("twice", "swapped", "altered"):
        good.deliver(name, [(5.0, 0), (6.0, 1), (6.0, 2), (7.0, 3)])  # the log's order tells between equal times
    bad.lines["client"].pop()
    bad.deliver("twice", [(5.0, 0), (6.0, 1), (6.5, 1), (7.0, 2), (8.0, 3)])
    bad.deliver("swapped", [(5.0, 0), (6.0, 2), (6.0, 1), (7.0, 3)])
    bad.deliver("altered", [(5.0, 0), (6.0, 1), (7.0, 2)])
    bad.deliver("altered", [(8.0, 3)], seed=3)
    analysis = analyze_runs(spark_session, load_runs([bad.write(), good.write(), bad.folder / "."]))
    summaries = analysis.runs
    assert [summary.run for summary in summaries] == ["run-bad", "run-good"]
    assert summaries == [summarize_run(bad.folder), summarize_run(good.folder)]
    assert_close(msgspec.to_builtins(analysis.aggregate), msgspec.to_builtins(aggregate(summaries)))
    assert failures(summaries[1]) == []
    expected = [
        "lossy: 1 of 4 images were not delivered",
        "twice: 1 image was delivered more than once",
        "twice: digest sha256:",
        "swapped: 1 image came after a later one",
        "swapped: digest sha256:",
        "altered: digest sha256:",
    ]
    for line, text in zip(failures(summaries[0]), expected, strict=True):
        assert line.startswith(f"{bad.folder}, {text}")
    both = json.loads(analysis.to_json())
    assert [run["out"] for run in both["runs"]] == [str(bad.folder), str(good.folder)]
    row = both["aggregate"]["lossy"]
    assert (row["runs"], row["images"], row["delivered"], row["lost"], row["digests_wrong"]) == (2, 8, 7, 1, 1)
    assert row["digests_known"] == 2
    assert row["speedup"] == pytest.approx(2.0)  # the geometric mean of 1 and 4
    assert row["mean_interarrival_s"] == pytest.approx((10 + 2.5) / 2)


@pytest.mark.spark
@pytest.mark.parametrize(("reference", "said"), [(True, "ok"), (False, "–")])
def test_digests_of_several_runs_are_ok_only_if_a_reference_exists(
    new_run: Any, spark_session: SparkSession, reference: bool, said: str
) -> None:
    runs = []
    for name in ("one", "two"):
        run = new_run(name, images=3, seed=len(runs))
        run.placements = ["one-shot"]
        run.deliver("one-shot", [(10.0, 0), (20.0, 1), (30.0, 2)])
        runs.append(run.write(**({} if reference else {"reference_digest": None})))
    analysis = analyze_runs(spark_session, load_runs(runs))
    assert analysis.aggregate == aggregate(analysis.runs)
    table = aggregate_table(analysis.aggregate, len(runs))
    assert [str(cell) for cell in table.columns[-1].cells] == [said]


def test_the_summary_counts_moves_reshapings_and_estimates(new_run: Any) -> None:
    """The records include a move without details, a move without a placement, and an unconfigured placement."""
    run = new_run(images=40, time_scale=30.0)
    run.flow("download-all", 24.0, link_rows=16)
    run.adapt("global", 40)
    run.prove({(f"h{i}", "client"): (1e6 * i, 0.01 * i - 0.045) for i in range(1, 9)})
    for at_s, outcome, pause in ((50.0, "reshaped", 3.0), (90.0, "reshaped", 8.5), (95.0, "stayed", None)):
        more = {} if pause is None else {"duration_s": pause}
        run.add(at_s, "client", "reshaped", "global", detail={"outcome": outcome, "ago": {"first": 0.0}}, **more)
    run.add(30.0, "h1", "relocated", "global", node="op0")
    run.add(31.0, "h1", "relocated", node="op0", duration_s=99.0)
    run.add(31.0, "h1", "estimate", peer="h2", value=2.0, detail={"truth_bps": 1.0, "how": "probe"})
    summary = summarize_run(run.write(placements=["download-all"]))
    moved = summary.placements["global"]
    assert (moved.relocations, moved.stayed, moved.reshapes, moved.unshaped) == (33, 8, 2, 1)
    assert (moved.reshape_pause_p50_s, moved.reshape_pause_max_s) == (5.75, 8.5)
    assert moved.speedup is not None and moved.speedup > 1
    assert moved.timeline_wall is not None
    assert 28 <= moved.timeline_wall.moves <= 32  # the one without details does not say when it was suspended
    assert summary.estimates.count == 3 * 32 + 1
    assert summary.links.worst_rate_error == pytest.approx(0.035)


def assert_close(one: Any, other: Any, where: str = "") -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_close(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-6), where
    else:
        assert one == other, where


@pytest.mark.spark
def test_a_run_that_spark_cannot_read_is_reported_in_a_single_line(new_run: Any, spark_session: SparkSession) -> None:
    run = new_run()
    run.flow("one-shot", 10.0, link_rows=16)
    runs = load_runs([run.write()])
    shutil.rmtree(run.folder)
    with pytest.raises(RunError, match="do all its workers see them") as error:
        analyze_runs(spark_session, runs)
    assert "\n" not in str(error.value)


@pytest.mark.spark
def test_spark_names_the_damaged_record(new_run: Any, spark_session: SparkSession) -> None:
    good, bad = new_run("good"), new_run("bad")
    for run in (good, bad):
        run.flow("one-shot", 10.0, link_rows=16)
    bad.add(1.0, "h1", "relocated", "one-shot", detail={"version": "three"})
    with pytest.raises(UsageError, match=r"bad/events\.parquet: the detail of a record 'relocated' is damaged"):
        analyze_runs(spark_session, load_runs([good.write(), bad.write()]))


@pytest.mark.spark
def test_a_second_spark_session_in_a_process_is_refused(spark_session: SparkSession) -> None:
    with pytest.raises(UsageError, match="already has a Spark session"), spark.session():
        pass


def test_duplicate_runs_and_damaged_records_are_refused(new_run: Any, tmp_path: Path) -> None:
    run = new_run()
    run.flow("one-shot", 10.0, link_rows=16)
    folder = run.write()
    shutil.copytree(folder, tmp_path / "copy")
    with pytest.raises(UsageError, match="hold the same run run-a; name only one"):
        load_runs([folder, tmp_path / "copy"])
    (folder / "events.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UsageError, match=r"events\.parquet is damaged"):
        load_runs([folder])


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (None, "needs Java and none was found; install Java 17 or newer, or set JAVA_HOME"),
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "is Java 11; install Java 17 or newer"),
        ("echo 'java version \"1.8.0_202\"' >&2", "is Java 8; install Java 17 or newer"),
        ("exit 3", "does not tell its version; install Java 17 or newer"),
    ],
)
def test_a_missing_or_old_java_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, says: str
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        (tmp_path / "java").write_text(f"#!/bin/sh\n{script}\n")
        os.chmod(tmp_path / "java", 0o755)
    with pytest.raises(CapabilityError, match=says) as error, spark.session():
        pass
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("real", "virtual", "named"),
    [
        (["openjdk-17-jre-headless", "default-jre-headless"], [], "openjdk-17-jre-headless"),  # Debian 12
        (["openjdk-21-jre-headless"], ["openjdk-17-jre-headless"], "openjdk-21-jre-headless"),  # Debian 13
        (["default-jre-headless"], ["openjdk-17-jre-headless"], "default-jre-headless"),
    ],
)
def test_the_error_names_a_java_package_that_the_system_offers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real: list[str], virtual: list[str], named: str
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    fake_apt(tmp_path, real, virtual)
    with pytest.raises(CapabilityError, match=rf"install Java 17 or newer .*install {named}`, or set JAVA_HOME"):
        spark.find_java()


@pytest.mark.parametrize("master", ["", "local[0]", "local[]", "localhost", "spark://", "http://x"])
def test_an_invalid_spark_master_is_refused(master: str) -> None:
    with pytest.raises(UsageError, match="not a Spark master"):
        spark.check_master(master)


@given(st.lists(st.text("ab0123456789٣²", max_size=6)))
def test_natural_order_sorts_hosts_by_number_among_arbitrary_names(names: list[str]) -> None:
    ordered = sorted([*names, "h10", "h2", "client"], key=natural)
    assert ordered.index("client") < ordered.index("h2") < ordered.index("h10")
