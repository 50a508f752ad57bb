"""The report of a testbed: an HTML page and Parquet tables with the same content."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from patience import patience

from thalweg import CapabilityError, Testbed, UsageError
from thalweg.emulation.links.shape import LinkShape, Queue
from thalweg.emulation.recording.entries import Happening, HostChange, LinkChange, Process
from thalweg.emulation.recording.recording import Recording
from thalweg.emulation.recording.samples import WIDTH
from thalweg.emulation.reports import plots, report, timeline
from thalweg.emulation.reports.report import About, last_lines, page_text, write_report
from thalweg.middleware import errors
from thalweg.middleware.network.view import Link

LINK, BACK, LEASED = Link("a", "b"), Link("b", "a"), Link("a", "c", "leased")
SHAPE = LinkShape(1e6, queue=Queue(0.2))


def sample(link: int, begin_s: float, end_s: float, sent: float, drops: float = 0) -> list[float]:
    return [link, begin_s, end_s, 1e6 * begin_s, 1e6 * end_s, sent, sent / 1000, drops, 0]


def made_up() -> Recording:
    """Return a record of ten seconds.

    A link pair is cut from 4 s to 6 s, and a further link from 7 s on. A process fails, and a process is ended.
    """
    down = SHAPE._replace(cut=True)
    return Recording(
        began_unix_s=1.7e9, now_s=10.0, links=[LINK, BACK, LEASED],
        samples=np.array([
            sample(0, 1, 2, 100_000), sample(0, 2, 4, 200_000), sample(1, 2, 4, 5_000), sample(0, 4, 5, 0, drops=7),
        ]),
        changes=[
            LinkChange(1, 0.5, "shape", 0, None, SHAPE), LinkChange(1, 0.5, "shape", 1, None, SHAPE),
            LinkChange(2, 4.0, "cut", 0, SHAPE, down), LinkChange(2, 4.0, "cut", 1, SHAPE, down),
            LinkChange(3, 6.0, "restore", 0, down, SHAPE), LinkChange(3, 6.0, "restore", 1, down, SHAPE),
            LinkChange(4, 7.0, "event", 2, None, down),
            LinkChange(5, 8.0, "play", 0, SHAPE, SHAPE._replace(rate_bps=5e5)),
        ],
        host_changes=[HostChange(3.0, "a", "", "up", 2e6), HostChange(9.0, "a", "", "up", None)],
        processes=[
            Process(1, 2, "b", "python3 '<serve> & co.py'", 1.0, 5.0, 3, 0.25),
            Process(2, 3, "a", "sleep 1000", 1.0, 2.0, -15, 0.0),
            Process(3, 4, "a", "sleep 1000", 2.5, None, None, 0.0, True, "one\ntwo"),
        ],
        happenings=[Happening("play", 8.0, 9.0, "the replay has stopped: it failed"), Happening("verify", 9.0)],
        left_out={"processes": 12}, joined_s=0.0, refusal="", cost_s=0.01,
    )  # fmt: skip


ABOUT = About("lab", "netns", {"a": "10.77.0.1", "b": "10.77.0.2", "c": "10.77.0.3"}, outputs={1: ["<b>Traceback</b>"]})


class Reader(HTMLParser):
    """Texts and titles of a page, references to other places, and tags that are not closed."""

    VOID = ("meta", "br", "img", "input", "path")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.titles: list[str] = []
        self.elsewhere: list[str] = []
        self.stack: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.stack.append(tag)
        for name, value in attrs:
            if name == "title":
                self.titles.append(value or "")
            if name in ("src", "href") and not (value or "").startswith(("#", "data:")):
                self.elsewhere.append(value or "")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def read(record: Recording) -> Reader:
    return Reader(page_text(record, ABOUT, {}))


def test_the_page_has_links_cuts_and_processes_and_loads_nothing_from_elsewhere() -> None:
    page = read(made_up())
    assert (page.stack, page.elsewhere) == ([], [])
    assert {"a → b", "b → a", "✂ a ⇄ b", "✂ a → c over leased", "Testbed lab"} <= {*page.texts}
    assert "sleep 1000: ended by SIGTERM (from 1.000 s to 2.000 s)" in page.titles
    assert "a ⇄ b cut from 4.000 s to 6.000 s, 2 s (cut)" in page.titles
    assert "12 older processes are left out, to keep the record small" in page.texts


def test_the_page_begins_with_failed_processes_errors_and_open_cuts() -> None:
    page = page_text(made_up(), ABOUT, {})
    wrong = re.search(r'<ul class="wrong">(.*?)</ul>', page)
    assert wrong is not None
    assert wrong.start() < page.index("<h2"), page
    items = re.findall(r"<li>(.*?)</li>", wrong[1])
    assert items == [
        "b: python3 &lt;serve&gt; &amp; co.py: ended with 3 (from 1.000 s to 5.000 s): &lt;b&gt;Traceback&lt;/b&gt;",
        "the replay has stopped: it failed, at 9.000 s",
        "a → c over leased cut since 7.000 s (event)",
    ]


def test_many_failed_processes_hide_no_other_failure() -> None:
    record = made_up()
    record.processes = [Process(i, i, "a", "false", 1.0, 2.0, 1) for i in range(report.WRONG + 3)]
    wrong = re.search(r'<ul class="wrong">(.*?)</ul>', page_text(record, ABOUT, {}))
    assert wrong is not None
    items = re.findall(r"<li>(.*?)</li>", wrong[1])
    assert items[report.WRONG :] == [
        "and 3 more processes that failed",
        "the replay has stopped: it failed, at 9.000 s",
        "a → c over leased cut since 7.000 s (event)",
    ]


def test_the_parquet_tables_have_counters_cuts_changes_and_processes(tmp_path: Path) -> None:
    page = write_report(made_up(), ABOUT, tmp_path / "new" / "report")
    assert page == tmp_path / "new" / "report" / "index.html"
    tables = {path.stem: pq.read_table(path).to_pylist() for path in page.parent.glob("*.parquet")}
    assert [row["bytes"] for row in tables["counters"]] == [100_000, 200_000, 5_000, 0]
    first = tables["counters"][0]
    assert (first["source"], first["target"], first["network"]) == ("a", "b", None)
    assert (first["asked_bps"], first["delivered_bps"], first["packets"]) == (1e6, 8e5, 100)
    assert first["time"].timestamp() == 1.7e9 + 2
    assert [(row["source"], row["begin_s"], row["end_s"], row["by"], row["network"]) for row in tables["cuts"]] == [
        ("a", 4.0, 6.0, "cut", None), ("b", 4.0, 6.0, "cut", None), ("a", 7.0, None, "event", "leased")
    ]  # fmt: skip
    assert [row["changed"] for row in tables["changes"][::2]] == [["rate_bps", "queue"], ["cut"], ["cut"],
                                                                  ["rate_bps", "cut", "queue"]]  # fmt: skip
    assert (tables["changes"][-1]["rate_bps"], tables["changes"][-1]["rate_before_bps"]) == (5e5, 1e6)
    assert [row["rate_bps"] for row in tables["host_rates"]] == [2e6, None]
    assert [(row["status"], row["end_s"], row["detached"]) for row in tables["processes"]] == [
        (3, 5.0, False), (-15, 2.0, False), (None, None, True)
    ]  # fmt: skip
    assert [row["kind"] for row in tables["events"]] == ["play", "verify"]


def test_a_page_of_the_last_seconds_leaves_out_earlier_entries() -> None:
    record = made_up().since(4.5)
    assert len(record.samples) == 1
    assert [process.number for process in record.processes] == [1, 3]
    page = read(record)
    assert "✂ a ⇄ b" in page.texts  # it was cut at that moment
    assert "the last 5.5 s of 10 s" in page.texts
    assert "0.500 s" not in page.texts  # the moment of a change that was made before


def test_the_tables_of_the_last_seconds_leave_out_earlier_entries(tmp_path: Path) -> None:
    page = write_report(made_up(), ABOUT, tmp_path, last_s=3.5)
    tables = {path.stem: pq.read_table(path).to_pylist() for path in page.parent.glob("*.parquet")}
    assert [(row["at_s"], row["rate_before_bps"]) for row in tables["changes"]] == [(7.0, None), (8.0, 1e6)]
    assert [row["begin_s"] for row in tables["cuts"]] == [7.0]
    assert [row["at_s"] for row in tables["host_rates"]] == [9.0]
    texts = Reader(page.read_text()).texts
    assert "✂ a ⇄ b" not in texts
    assert "3 shaped" in texts  # whenever they were


def test_an_empty_record_makes_a_page() -> None:
    empty = Recording(1.7e9, 0.5, [], np.empty((0, WIDTH)), [], [], [], [], {}, 0.0, "", 0.0)
    page = read(empty)
    assert page.stack == []
    assert "No process was started, and nothing was changed." in page.texts


def test_the_page_of_many_links_stays_small_and_shows_the_busiest_links_first(monkeypatch: pytest.MonkeyPatch) -> None:
    record = made_up()
    record.links = [Link(f"h{i}", f"h{j}") for i in range(20) for j in range(20) if i != j]
    record.samples = np.array([sample(i, 1, 2, 1_000 * (i + 1)) for i in range(380)])
    record.changes = [LinkChange(1, 0.5, "shape", i, None, SHAPE) for i in range(380)]
    monkeypatch.setattr(report, "LISTED", 300)
    text = page_text(record, ABOUT, {})
    assert len(text) < 600_000
    assert text.count('<figure class="plot">') == report.OPEN_PLOTS + report.FOLDED_PLOTS
    assert text.index("h19 → h18") < text.index("h0 → h1")  # the busiest first
    texts = Reader(text).texts
    assert "260 links that carried less are not drawn. They are in the table, and in counters.parquet." in texts
    assert "80 more are in the Parquet file." in texts
    assert "380 rows" in texts


def test_a_plot_has_the_bytes_of_its_samples_and_breaks_where_there_is_no_rate() -> None:
    record, scale = made_up(), timeline.Scale(0.0, 10.0)
    (first, *_) = plots.sums(record, scale)
    assert (first.link, first.sent_bytes, first.drops, first.most_bps) == (LINK, 300_000, 7, 8e5)
    assert plots._binned(record, first, scale, "sent_bytes").sum() == pytest.approx(300_000)
    drawn = plots.plot(first, record, plots.Asked(record), record.cuts(), scale)
    assert [(shade.left, shade.width) for shade in drawn.shades] == [(40.0, 20.0)]
    assert drawn.line.startswith("M50.0 ")
    assert "V100.0H600.0" in drawn.line  # 0 while it is cut
    assert drawn.area == "M0 100H0V100H100V27.3H400V100H1000V100Z"
    record.changes = [LinkChange(1, 0.5, "shape", 0, None, LinkShape(1e8))]
    assert "asked 100 Mbit/s, above this plot" in plots.plot(first, record, plots.Asked(record), [], scale).text


def test_concurrent_processes_stand_in_separate_rows() -> None:
    record, scale = made_up(), timeline.Scale(0.0, 10.0)
    record.processes = [Process(i, i, "a", "x", i / 10, i / 10 + 1.05, 0) for i in range(30)]
    (row,) = [row for row in timeline.rows(record, scale, ["a", "b"]) if row.kind == "host"]
    assert row.height == timeline.STACKED
    for placed in row.bars:
        beside = [bar for bar in row.bars if bar.row == placed.row and bar is not placed]
        if placed.row < timeline.STACKED - 1:
            assert not any(
                bar.left < placed.left + placed.width and placed.left < bar.left + bar.width for bar in beside
            )


@pytest.mark.parametrize(
    ("begin_s", "end_s", "ticks"),
    [
        (0.0, 0.05, ["0.00 s", "0.01 s", "0.02 s", "0.03 s", "0.04 s", "0.05 s"]),
        (0.0, 4.3, ["0 s", "1 s", "2 s", "3 s", "4 s"]),
        (100.0, 400.0, ["2:00", "3:00", "4:00", "5:00", "6:00"]),
        (0.0, 7 * 86_400.0, ["0:00", "48:00:00", "96:00:00", "144:00:00"]),
    ],
)
def test_the_axis_has_ticks_at_round_times(begin_s: float, end_s: float, ticks: list[str]) -> None:
    assert [tick.text for tick in timeline.Scale(begin_s, end_s).ticks()] == ticks


def test_output_lines_belong_to_the_last_process_with_the_number() -> None:
    record = made_up()
    record.processes[1].pid = record.processes[2].pid
    assert last_lines(record, {("a", 4): ["three"], ("b", 77): ["nobody's"]}) == {3: ["three"]}
    assert last_lines(record, {}) == {3: ["one", "two"]}


def test_an_unwritable_folder_is_refused_in_a_single_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"file/report cannot be made: Not a directory; choose another folder$"):
        write_report(made_up(), ABOUT, tmp_path / "file" / "report")


# --- on real testbeds ---------------------------------------------------------------------------------


@pytest.mark.netns
def test_a_program_reports_its_testbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Testbed.open("netns", ["a", "b"], rate="10mbit") as bed:
        bed.follow_outputs()
        bed.start("a", ["sh", "-c", "echo all is lost; exit 7"]).wait(patience(20))
        bed.cut("a", "b", both=True)
        page = bed.report(tmp_path / "report", title="A test of <mine>")
        texts = Reader(page.read_text()).texts
        assert "A test of <mine>" in texts
        assert any(re.fullmatch(r"a: sh -c .* ended with 7 \(.*\): all is lost", text) for text in texts)
        assert "✂ a ⇄ b" in texts
        with pytest.raises(UsageError, match="'soon' is not a time"):
            bed.report(tmp_path / "report", last="soon")
        with pytest.raises(UsageError, match="the last 0 s cover no time; give a longer one, such as 5min"):
            bed.report(tmp_path / "report", last="0ms")
        with monkeypatch.context() as bare:
            bare.setattr(errors, "absent", lambda modules: ["pyarrow", "jinja2"])
            with pytest.raises(CapabilityError, match=r"pyarrow and jinja2 are not installed; .*'thalweg\[records\]'"):
                bed.report(tmp_path / "report")


FAILING = """
def test_the_client_gets_its_answer(wan):
    bed = wan(["a", "b"], rate="10mbit")
    bed.cut("b", "a")
    bed.run("a", ["false"], check=True)

def test_that_passes(wan):
    wan(["a", "b"], rate="10mbit")
"""


@pytest.mark.netns
def test_failed_tests_leave_a_report_if_asked(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(FAILING)
    options = ["-q", "-p", "no:cacheprovider", "-p", "thalweg.emulation.pytest_plugin", "--wan-report"]
    command = [sys.executable, "-B", "-m", "pytest", *options]
    done = subprocess.run(
        [*command, str(tmp_path / "reports"), str(tmp_path)],
        capture_output=True, text=True, timeout=patience(100), check=False,
    )  # fmt: skip
    (page,) = (tmp_path / "reports").rglob("index.html")
    assert page.parts[-3].endswith("test_it.py-test_the_client_gets_its_answer")
    assert done.stdout.count(f"{page}\n") == 1
    texts = Reader(page.read_text()).texts
    assert any(text.endswith("test_it.py::test_the_client_gets_its_answer failed") for text in texts)
    assert any(text.startswith("a: false: ended with 1") for text in texts)
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [*command, str(tmp_path / "file"), str(tmp_path)],
        capture_output=True, text=True, timeout=patience(100), check=False,
    )  # fmt: skip
    assert "cannot be made: Not a directory; choose another folder\n" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
