"""Leftovers of Spark sessions, and their removal after a session is killed."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from thalweg.experiments.records import spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[3]
KILLED = """
import os, signal, tempfile
from thalweg.experiments.records import spark
with spark.session("local[1]") as session:
    tempfile.mkdtemp(prefix=spark.own_prefix("ship"))
    print(session._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
    input()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the temporary directory of the test."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.long
@pytest.mark.spark
def test_the_jvm_of_a_killed_process_ends_and_a_later_cleanup_removes_the_folders(temporary: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        jvm = os.pidfd_open(int(process.stdout.readline()))
        spark.remove_leftovers()
        kinds = sorted(path.name.rpartition("-")[0] for path in temporary.iterdir())
        assert kinds == [f"thalweg-ship-{process.pid}", f"thalweg-spark-{process.pid}"]  # it lives
        print(file=process.stdin, flush=True)
    try:
        assert select.select([jvm], [], [], 60.0)[0], "the JVM has outlived its Python process"
    finally:
        os.close(jvm)
    assert process.returncode == -9
    assert len(list(temporary.iterdir())) == 2
    spark.remove_leftovers()
    assert list(temporary.iterdir()) == []


def test_only_folders_of_processes_that_are_gone_are_removed(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    gone, lives = process.pid, os.getpid()
    (elsewhere := temporary.parent / "elsewhere").mkdir()
    (elsewhere / "file").touch()
    (temporary / f"thalweg-spark-{gone}-link").symlink_to(elsewhere)
    foreign = [
        f"thalweg-ship-{lives}-a_1", "thalweg-spark-1-a", f"thalweg-bed-{gone}-a", f"other-spark-{gone}-a",
        "thalweg-spark-abcdefgh",
    ]  # fmt: skip
    for name in (*foreign, f"thalweg-spark-{gone}-b2_", f"thalweg-ship-{gone}-c"):
        (temporary / name / "within").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: -1)  # all are of another user
        spark.remove_leftovers()
    assert len(list(temporary.iterdir())) == len(foreign) + 3
    spark.remove_leftovers()
    assert sorted(path.name for path in temporary.iterdir()) == sorted([*foreign, f"thalweg-spark-{gone}-link"])
    assert (elsewhere / "file").exists()


@pytest.mark.spark
def test_java_has_room_for_the_code_of_a_long_session(spark_session: SparkSession) -> None:
    """If the code cache is full, Java stops compiling and may end."""
    pools = spark_session._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()  # type: ignore[union-attr]
    room = {pool.getName(): pool.getUsage().getMax() for pool in pools if "Code" in pool.getName()}
    assert sum(room.values()) >= 200e6, room
