"""A redis replica over a WAN, through an outage: what it serves meanwhile, and that it catches up.

With Thalweg, its extra ``records`` and pytest installed, ``apt-get install redis-server``, ``pytest``. The fixture
``wan`` comes with Thalweg.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet
import pytest

from thalweg import Testbed
from thalweg.emulation.pytest_plugin import Wan

pytestmark = pytest.mark.skipif(not shutil.which("redis-server"), reason="needs redis-server (apt-get install it)")
SERVER = ["redis-server", "--protected-mode", "no", "--save", "", "--repl-diskless-sync-delay", "0"]


def redis(bed: Testbed, host: str, *commands: str) -> list[str]:
    """What the server on a host answers, over one connection made on that host, so that no link is in the way."""
    lines = "".join(f"{one}\n" for one in commands)
    return bed.run(host, ["redis-cli"], input=lines, check=True, timeout_s=30).stdout.split()


@pytest.fixture
def bed(wan: Wan, tmp_path_factory: pytest.TempPathFactory) -> Testbed:
    """A primary and its replica, 10 Mbit/s apart, that hold the same."""
    bed = wan(["primary", "replica"], rate="10mbit")
    for host, more in (("primary", []), ("replica", ["--replicaof", "primary", "6379"])):
        folder = tmp_path_factory.mktemp(host)
        server = bed.start(host, [*SERVER, *more], cwd=folder, stdout=subprocess.PIPE)
        assert server.stdout is not None
        assert any(b"Ready to accept connections" in line for line in server.stdout)
        server.stdout.close()
    assert redis(bed, "primary", "set city Basel", "wait 1 20000") == ["OK", "1"]  # one replica has it, within 20 s
    return bed


def test_the_replica_serves_what_it_had_and_catches_up(bed: Testbed) -> None:
    bed.cut("primary", "replica", both=True)
    assert redis(bed, "primary", "set city Bern", "wait 1 500") == ["OK", "0"]
    assert redis(bed, "replica", "get city") == ["Basel"]

    bed.restore()
    assert redis(bed, "primary", "incr outages", "wait 1 20000") == ["1", "1"]  # and so has all before it
    assert redis(bed, "replica", "get city") == ["Bern"]


def test_the_report_tells_of_the_outage(bed: Testbed, tmp_path: Path) -> None:
    """``pytest --basetemp out`` leaves the page in ``out``."""
    load = bed.start("primary", ["redis-benchmark", "-t", "set", "-n", "40000", "-d", "100", "-q"])
    redis(bed, "primary", "wait 1 500")  # some of the load has reached the replica
    bed.cut("primary", "replica", both=True)
    redis(bed, "primary", "set city Bern", "wait 1 1000")
    bed.restore()
    assert load.wait(60) == 0
    assert redis(bed, "primary", "incr outages", "wait 1 20000") == ["1", "1"]

    page = bed.report(tmp_path / "report", title="A redis replica through an outage")
    assert "primary ⇄ replica" in page.read_text()
    cuts = pyarrow.parquet.read_table(page.parent / "cuts.parquet").to_pylist()
    assert [(cut["source"], cut["target"]) for cut in cuts] == [("primary", "replica"), ("replica", "primary")]
    began_s, ended_s = cuts[0]["begin_s"], cuts[0]["end_s"]
    counters = pyarrow.parquet.read_table(page.parent / "counters.parquet").to_pylist()
    through = [row for row in counters if began_s < row["begin_s"] and row["end_s"] < ended_s]
    assert sum(row["bytes"] for row in through) == 0


def test_a_slow_link_holds_it_up_but_not_for_long(bed: Testbed) -> None:
    bed.set("primary", "replica", rate="1mbit")
    bed.prove("primary", "replica")  # the link is what it says: what follows is not the machine's doing
    large = f"set map {'x' * 100_000}"  # 0.8 s at 1 Mbit/s
    assert redis(bed, "primary", large, "wait 1 200", "incr maps", "wait 1 10000") == ["OK", "0", "1", "1"]
