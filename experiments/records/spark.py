"""Spark session that prints nothing, stays on loopback if local, and leaves no files behind."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psutil

from thalweg.middleware.errors import CapabilityError, UsageError, require
from thalweg.middleware.platform.files import user
from thalweg.middleware.platform.packages import install_line
from thalweg.middleware.platform.processes import ended_within, kill_group
from thalweg.middleware.platform.python import find_program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MINIMUM = 17  # Spark 4's documented minimum
JAVA_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless")  # Debian 12; 13; later
LOCAL = "local[*]"  # default master: all processors of this machine
_MASTER = re.compile(r"local|local\[(\*|[1-9]\d*)(,\d+)?\]|local-cluster\[\d+,\d+,\d+\]|spark://\S+|yarn|k8s://\S+")
_OWNED = re.compile(r"thalweg-(?:spark|ship)-(\d+)-\w+")  # the group: the process that owns the folder
_GATEWAY = "gateway"  # file to which the JVM writes its address
_STOP_S = 20.0  # time for the JVM to end before it is killed

_QUIET = """\
status = fatal
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex{1}
"""


def find_java() -> tuple[str, int]:
    """Return the Java that Spark would start, and its major version. JAVA_HOME comes before PATH.

    Raises CapabilityError, with the way to install Java on this system, if Java is missing or too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else find_program("java")
    if java is None:
        raise CapabilityError(f"Spark needs Java and none was found; {_install_java()}")
    try:
        done = subprocess.run(
            [java, "-XX:-UsePerfData", "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CapabilityError(f"{java} cannot be run ({error}); {_install_java()}") from None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if done.returncode or match is None:
        raise CapabilityError(f"{java} -version does not tell its version; {_install_java()}")
    if int(match[1]) < JAVA_MINIMUM:
        raise CapabilityError(
            f"Spark needs Java {JAVA_MINIMUM} or newer and {java} is Java {match[1]}; {_install_java()}"
        )
    return java, int(match[1])


def _install_java() -> str:
    return f"{install_line(f'Java {JAVA_MINIMUM} or newer', *JAVA_PACKAGES)}, or set JAVA_HOME to one"


def require_spark() -> None:
    """Raise CapabilityError, with installation advice, if this machine has no PySpark or no Java for Spark."""
    require("pyspark")
    find_java()


def check_master(master: str) -> str:
    """Return ``master`` unchanged. Raise UsageError if Spark has no such form of master."""
    if not _MASTER.fullmatch(master):
        raise UsageError(
            f"{master!r} is not a Spark master; use local[*], local[2], spark://host:port, yarn or k8s://…"
        )
    return master


@contextmanager
def session(master: str = LOCAL, *, app: str = "thalweg") -> Iterator[SparkSession]:
    """Start Spark, yield the session, stop Spark and wait until the JVM has ended.

    With ``local``, ``local[N]`` or ``local[*]`` as ``master``, Spark binds to 127.0.0.1 only. With ``spark://…``,
    ``yarn`` and ``k8s://…``, Spark's own configuration chooses the addresses. Nothing is printed. The temporary files
    are in one folder, removed at the end. A process has one session at a time.

    Raises CapabilityError without PySpark, without Java 17 or newer, or if Spark does not start. Raises UsageError for
    an unknown form of ``master``.
    """
    check_master(master)
    require_spark()
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        raise UsageError("this process already has a Spark session; end it before starting another")
    before = signal.getsignal(signal.SIGINT)  # SparkContext replaces it by a handler that waits for cancelled jobs
    remove_leftovers()
    folder = Path(tempfile.mkdtemp(prefix=own_prefix("spark")))
    chatter = logging.getLogger("py4j")  # warns about connections that an interrupt has cut
    level = chatter.level
    chatter.setLevel(logging.CRITICAL)
    try:
        with (folder / "jvm.log").open("w+b") as log, _jvm(_settings(master, app, folder), folder, log) as jvm:
            try:
                connected = _connect(master, jvm, folder, log)
                _restore(before)
                yield connected
                _stop()
            except Exception:
                _stop()
                raise
            except BaseException:  # interrupted: the JVM is killed at once
                _forget()
                raise
    finally:
        chatter.setLevel(level)
        _restore(before)
        shutil.rmtree(folder, ignore_errors=True)


def own_prefix(what: str) -> str:
    """Return the prefix of this process's temporary folders of one kind. Leftovers are recognised by the prefix."""
    return f"thalweg-{what}-{os.getpid()}-"


def remove_leftovers() -> None:
    """Remove the temporary folders of killed processes of this user."""
    for folder in Path(tempfile.gettempdir()).glob("thalweg-*"):
        owned = _OWNED.fullmatch(folder.name)
        if owned is None or folder.is_symlink():
            continue
        with suppress(OSError, OverflowError):  # a second session may be removing the folder too
            if folder.stat().st_uid == user() and not psutil.pid_exists(int(owned[1])):
                shutil.rmtree(folder, ignore_errors=True)


def _restore(handler: Any) -> None:
    """Set the handler of SIGINT. Outside the main thread this is impossible, and nothing is done."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


def _settings(master: str, app: str, folder: Path) -> dict[str, str]:
    options = (
        f"-Dlog4j2.configurationFile={(folder / 'log4j2.properties').as_uri()} -Djava.io.tmpdir={folder}"
        f" -Dderby.system.home={folder} -XX:-UsePerfData"
        " -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"  # C1, as start-up dominates; its default 48 MB fails
    )
    settings = {
        "spark.master": master,
        "spark.app.name": app,
        "spark.driver.extraJavaOptions": options,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.sql.session.timeZone": "UTC",
    }
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(folder),
            "spark.sql.shuffle.partitions": "4",  # few cores, and tables of a few megabytes
        }
    return settings


@contextmanager
def _jvm(settings: dict[str, str], folder: Path, log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Start Spark's JVM in a process group of its own, which Ctrl-C does not reach. End or kill the JVM after use."""
    from pyspark.find_spark_home import _find_spark_home

    (folder / "log4j2.properties").write_text(_QUIET, encoding="utf-8")
    home: str = _find_spark_home()
    command = [os.path.join(home, "bin", "spark-submit")]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    launcher = f"{os.environ.get('SPARK_LAUNCHER_OPTS', '')} -XX:-UsePerfData -XX:TieredStopAtLevel=1".strip()
    environment = os.environ | {
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder / _GATEWAY),
        "SPARK_CONNECT_MODE": "0",
        "SPARK_LAUNCHER_OPTS": launcher,
    }
    process = subprocess.Popen(
        [*command, "pyspark-shell"],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=environment,
        cwd=folder,
        process_group=0,
    )
    assert process.stdin is not None
    clean = False
    try:
        yield process
        clean = True
    finally:
        process.stdin.close()  # the JVM ends when its standard input does
        try:
            process.wait(_STOP_S if clean else 0)
        except subprocess.TimeoutExpired:
            kill_group(process)
            process.wait()


def _connect(master: str, process: subprocess.Popen[bytes], folder: Path, log: IO[bytes]) -> SparkSession:
    """Return the session when the JVM has written its address. Raise CapabilityError if the JVM ends instead."""
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    where = folder / _GATEWAY
    while not where.exists() and not ended_within(process, 0.05):
        pass
    try:
        # as PySpark's own launcher, but the JVM stays a process that this module can end
        port, length = struct.unpack(">ii", (content := where.read_bytes())[:8])
        handed = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": content[8 : 8 + length].decode()}
        os.environ.update(handed)
        try:
            SparkContext._gateway = launch_gateway()  # type: ignore[no-untyped-call]
        finally:
            for name in handed:
                del os.environ[name]
        SparkContext._jvm = SparkContext._gateway.jvm
        return SparkSession(SparkContext(conf=SparkConf()))
    except (PySparkException, Py4JError, OSError) as error:
        raise CapabilityError(
            f"Spark does not start on {master}: {_why(log, error)}; check address, JAVA_HOME and memory"
        ) from error


def _why(log: IO[bytes], error: Exception) -> str:
    """Return the first error line of the JVM's log, or the first line of the exception if the log has no error."""
    log.seek(0)
    lines = log.read().decode("utf-8", "replace").splitlines()
    telling = [line.strip() for line in lines if re.search(r"error|exception|denied|cannot", line, re.I)]
    text = telling[0] if telling else str(error).strip().split("\n")[0]
    return text[:200]


def _stop() -> None:
    """Stop the context in any state, and close the gateway."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None:
        with suppress(Py4JError, OSError):  # the JVM may have ended before
            context.stop()
    _forget()


def _forget() -> None:
    """Make PySpark forget its JVM without a message to the JVM."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, SQLContext

    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    if context is not None:
        context._jsc = None
        context.stop()  # only the accumulators' server is left to stop
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SQLContext._instantiatedContext = None
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    if gateway is not None:
        gateway.shutdown()
