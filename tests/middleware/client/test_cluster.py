"""Local clusters: hosts find the modules of their parent, and the end of a host is known at once."""

from __future__ import annotations

import gc
import importlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from flows import chain
from patience import patience
from runtime_codes import ALLOW, MIX, blocks

from thalweg import Failover
from thalweg.middleware.client import cluster as cluster_module
from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster, wait_ready_lines
from thalweg.middleware.dataflow import Code, complete_binary_tree
from thalweg.middleware.errors import HostAbsentError, HostLostError, RunError, ThalwegError
from thalweg.middleware.loading import DEFAULT_ALLOW
from thalweg.middleware.parcels import NOTHING
from thalweg.middleware.platform.processes import Progress
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.operators import reference_run

AT_ONCE_S = 2.0  # it takes milliseconds; a wait for silence takes ten times as long
FLOW = chain(blocks()["h1"], MIX)


@pytest.fixture
def doomed() -> Iterator[LocalCluster]:
    with LocalCluster(3, allow=ALLOW) as cluster:
        yield cluster


def raised_at_once(kind: type[ThalwegError], call: Callable[[], Any]) -> str:
    begun_s = time.monotonic()
    with pytest.raises(kind) as caught:
        call()
    assert time.monotonic() - begun_s < AT_ONCE_S
    return str(caught.value)


@pytest.mark.parametrize(
    ("status", "fate"),
    [(3, "ended with status 3"), (-11, "ended with status -11 (SIGSEGV)"), (-9, "ended with status -9 (SIGKILL)")],
)
def test_the_end_of_a_host_ends_the_run_at_once_and_later_runs_avoid_the_host(
    doomed: LocalCluster, status: int, fate: str
) -> None:
    flow = chain(blocks()["h1"], Code("runtime_codes:Dies", {"status": status}))
    with Client(doomed, allow=ALLOW) as client:
        run = client.run(flow, {"o": "h2"})
        next(run)
        raised_at_once(HostLostError, lambda: list(run))
        with pytest.raises(HostLostError) as caught:
            next(run)
        assert isinstance(caught.value, RunError)
        assert str(caught.value) == f"host 'h2', which holds o, {fate}"
        assert (caught.value.host, caught.value.node) == ("h2", None)
        assert client.hosts == ("h1", "h3", "client")
        said = raised_at_once(HostAbsentError, lambda: client.run(FLOW, {"o": "h2"}))
        assert said == f"host 'h2', where 'o' is to be, {fate}"
        pinned = complete_binary_tree(blocks(["h1", "h2"]), MIX)
        assert f"host 'h2', where 'source@h2' is to be, {fate}" == raised_at_once(
            HostAbsentError, lambda: client.plan(pinned)
        )
        assert "no link of host 'h2' can be measured: it ended" in raised_at_once(
            HostLostError, lambda: client.probe([("h1", "h2")])
        )
        begun_s = time.monotonic()
        assert len(list(client.run(FLOW, {"o": "h3"}, partitions=3))) == 3
        assert len(list(client.run(FLOW, partitions=3))) == 3  # planned without it
        assert time.monotonic() - begun_s < 5 * AT_ONCE_S
    with Client(doomed, allow=ALLOW) as later:
        assert later.hosts == ("h1", "h3", "client")
        assert raised_at_once(HostAbsentError, lambda: later.run(FLOW, {"o": "h2"})).endswith(fate)
    assert doomed.poll() == {"h2": status}


def test_the_run_goes_on_without_a_host_that_holds_nothing(doomed: LocalCluster) -> None:
    with Client(doomed, allow=ALLOW) as client, client.run(FLOW, {"o": "h2"}) as run:
        next(run)
        doomed.kill("h3")
        assert next(run).index == 1
        while "h3" in client.hosts:
            next(run)
        assert next(run).index > 1


def test_waiting_calls_fail_at_once_when_a_host_or_the_client_ends(doomed: LocalCluster) -> None:
    both = complete_binary_tree(blocks(["h1", "h2"]), MIX)
    calls: list[Callable[[Client], Any]] = [
        lambda client: client.plan(both),
        lambda client: client.run(both),
        lambda client: client.probe([("h1", "h2")]),
    ]
    with ExitStack() as stack, ThreadPoolExecutor(6) as pool:
        clients = [stack.enter_context(Client(doomed, allow=ALLOW)) for _ in range(6)]
        os.kill(doomed.pids["h2"], signal.SIGSTOP)  # it answers no probe
        waiting = [pool.submit(call, client) for call, client in zip(2 * calls, clients, strict=True)]
        assert not wait(waiting, 0.3).done
        begun_s = time.monotonic()
        for client in clients[:3]:
            client.close()
        wait(waiting[:3])
        doomed.kill("h2")
        wait(waiting)
        assert time.monotonic() - begun_s < AT_ONCE_S
    for each in waiting[:3]:
        with pytest.raises(RunError, match=r"^the client 'client' is closed; make another$"):
            each.result()
    for each in waiting[3:]:
        with pytest.raises(
            HostLostError, match=r"^no link of host 'h2' can be measured: it ended with status -9 \(SIGK"
        ):
            each.result()


def test_calls_on_a_closed_client_fail_at_once(doomed: LocalCluster) -> None:
    client = Client(doomed, allow=ALLOW)
    client.close()
    for call in (
        lambda: client.plan(FLOW),
        lambda: client.probe([("h1", "h2")]),
        lambda: client.run(FLOW),
        lambda: client.run(FLOW, {"o": "h1"}),
    ):
        assert raised_at_once(RunError, call) == "the client 'client' is closed; make another"


def test_a_cluster_without_a_live_host_is_refused(doomed: LocalCluster) -> None:
    for name in doomed.addresses:
        doomed.kill(name)
    said = raised_at_once(HostAbsentError, lambda: Client(doomed))
    assert said == "no host of the cluster is left: 'h1' ended with status -9 (SIGKILL)"


def test_a_cluster_that_is_closed_or_dropped_leaves_nothing_behind() -> None:
    LocalCluster(1).close()
    before = psutil.Process().num_fds(), threading.active_count()
    clusters = [LocalCluster(1), LocalCluster(["only"])]
    pids = [pid for cluster in clusters for pid in cluster.pids.values()]
    clusters.pop().close()
    with pytest.warns(ResourceWarning, match="the cluster of h1 was dropped and not closed; use with"):
        _drop(clusters)
    assert not any(map(psutil.pid_exists, pids))
    assert (psutil.Process().num_fds(), threading.active_count()) == before


def _drop(clusters: list[LocalCluster]) -> None:
    clusters.clear()
    gc.collect()


KILLED = """
import sys
from thalweg.middleware.client.client import Client
from thalweg.middleware.client import cluster as cluster_module
from thalweg.middleware.client.cluster import LocalCluster, wait_ready_lines
cluster = LocalCluster(2, transport=sys.argv[1])
client = Client(cluster)
print(cluster._folder.name, flush=True)
sys.stdin.read()
"""


def test_a_killed_application_leaves_no_host_and_no_folder() -> None:
    ways = {"ipc": signal.SIGKILL, "curve": signal.SIGTERM}
    with ExitStack() as stack:
        started = {
            way: stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", KILLED, way], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for way in ways
        }
        for way, application in started.items():
            assert application.stdout is not None
            folder = Path(application.stdout.readline().strip())
            hosts = psutil.Process(application.pid).children()
            assert len(hosts) == 2
            assert len(list(folder.iterdir())) >= 3
            application.send_signal(ways[way])
            _, alive = psutil.wait_procs(hosts, 20)
            assert not alive
            assert not folder.exists()


SHORT = """
import os, resource, sys
from thalweg.middleware.client.client import Client
from thalweg.middleware.client import cluster as cluster_module
from thalweg.middleware.client.cluster import LocalCluster, wait_ready_lines

def up():
    with LocalCluster(1) as cluster, Client(cluster):
        pass

def tried(what, begin, *limits):
    if os.fork() == 0:
        if limits:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        try:
            begin()
            said = "up"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        try:
            os.waitpid(-1, os.WNOHANG)
            said = f"a host runs on, {said}"
        except ChildProcessError:
            pass
        print(what, said, flush=True)
        os._exit(0)
    os.wait()

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for limit in range(8, 65, 8):
    tried(limit, up, limit, limit)
tried("client", lambda: Client({"h1": "tcp://127.0.0.1:1"}, insecure=True), 40, hard)
tried("soft", up, 24, hard)
os.chdir(sys.argv[1])
os.rmdir(sys.argv[1])
tried("nowhere", up)
"""


def test_few_descriptors_or_a_missing_working_directory_are_reported_and_no_host_runs_on(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SHORT, str(gone)], capture_output=True, text=True, timeout=patience(60), check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    few = "CapabilityError: each host of a cluster of 1 needs 53 file descriptors, and may open"
    for limit in ("8", "16", "24", "32", "40", "48"):
        assert said.pop(limit) == f"{few} {limit}; raise the hard limit: ulimit -Hn 53"
    few = "CapabilityError: a client of a cluster of 1 needs 48 more file descriptors, and of"
    for what in ("client", "soft"):
        found = re.fullmatch(few + r" (\d+) here (\d+) are free; raise the limit: ulimit -n (\d+)", said.pop(what))
        assert found is not None
        limit_now, free, wanted = map(int, found.groups())
        assert wanted == limit_now + 48 - free
    nowhere = "UsageError: the working directory, where hosts start, has been removed; change to another"
    assert said == {"56": "up", "64": "up", "nowhere": nowhere}


# --- where hosts find modules -----------------------------------------------------------------------


@pytest.mark.parametrize("how", ["script", "module"])
def test_the_readmes_example_runs_from_anywhere(tmp_path: Path, how: str) -> None:
    text = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    block = text.partition('```python title="readings.py"\n')[2].partition("```")[0]
    home, away = tmp_path / "app", tmp_path / "empty"
    home.mkdir()
    away.mkdir()
    (home / "readings.py").write_text(block)
    words = {"script": [str(home / "readings.py")], "module": ["-m", "readings"]}
    env = dict(os.environ)
    if how == "module":
        env["PYTHONPATH"] = os.pathsep.join([str(home), *filter(None, [env.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, *words[how]],
        cwd=away, env=env, capture_output=True, text=True, timeout=patience(60), check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    partitions, moved = done.stdout.splitlines()
    assert partitions == "300 partitions, the last is 299.0"
    assert re.fullmatch(r"Moved\(index=\d+, placement={'op0': 'h3'}\)", moved)


def test_the_example_of_cameras_gives_the_results_of_a_single_process(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parents[3] / "docs/examples"
    done = subprocess.run(
        [sys.executable, str(folder / "cams.py")], capture_output=True, text=True, timeout=patience(60), check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    monkeypatch.syspath_prepend(str(folder))
    graph, joint = importlib.import_module("cams").build()
    alarms = [
        f"frame {index}: all cameras saw {row['plate']}, the first at {row['time']:g} s"
        for index, value in enumerate(reference_run(graph, 62, (*DEFAULT_ALLOW, "cams"), sink="alarms"))
        if value is not NOTHING
        for row in value.to_pylist()
    ]
    assert len(alarms) == 6
    archive = f"{48 * 64 * 4 * 62:,} bytes of frames archived; the join ended at h3"
    *told, second, last = done.stdout.splitlines()
    assert (told, last) == (alarms, archive)
    said = re.fullmatch(r"the second query: 2 nodes shared from frame (\d+) on, and (.*) entered", second)
    assert said is not None, second
    first = -(-(int(said[1]) - 1) // 9)  # camera 1 sees car k on frame 9k + 1
    assert said[2] == ", ".join(f"TW-{car:04}" for car in range(first, first + 3))
    assert graph.by_name[joint].code == Code("join", {"on": "plate", "window_s": 30})


def test_hosts_get_an_extended_path_without_the_working_folder_and_site_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lately.py").write_text(
        "import os\nfrom thalweg import Source\n\n\nclass Path(Source):\n    def produce(self, index):\n"
        "        return os.environ['PYTHONPATH'].encode() if index == 0 else None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    flow = chain(Code("lately:Path"), MIX)
    with LocalCluster(1, allow=["lately", *ALLOW]) as cluster, Client(cluster) as client:
        (told,) = client.run(flow, {"o": "h1"})
    path = bytes(told.value).decode().removesuffix("|0").split(os.pathsep)
    assert path[0] == str(tmp_path)
    assert str(elsewhere) not in path
    assert not [entry for entry in path if "site-packages" in entry or entry == str(Path(os.__file__).parent)]


def test_a_restarted_host_rejoins_a_run_with_failover(doomed: LocalCluster) -> None:
    """The source has no stand-in, so the run waits for its host. One client has the cluster, one only its addresses."""
    addresses = dict(doomed.addresses)
    near = f"ipc://{Path(addresses['h1'].removeprefix('ipc://')).parent}/far"
    limits = CoreConfig(ping_s=0.2, detect_s=1.0)
    with Client(doomed, allow=ALLOW) as client, Client(addresses, name="far", listen=near, limits=limits) as far:
        runs = [each.run(FLOW, {"o": "h2"}, failover=Failover()) for each in (client, far)]
        for run in runs:
            assert next(run).index == 0
        doomed.kill("h1")
        assert doomed.start("h1") == addresses["h1"]
        assert {*client.hosts} == {"h1", "h2", "h3", "client"}, "it was told before start returned"
        for run in runs:
            assert [next(run).index for _ in range(40)] == list(range(1, 41))
            run.close()


@pytest.mark.parametrize("transport", ["tcp", pytest.param("curve", marks=pytest.mark.long)])
def test_a_host_that_restarts_at_a_new_port_rejoins_a_run_with_failover(transport: Any) -> None:
    with (
        LocalCluster(2, allow=ALLOW, transport=transport) as cluster,
        Client(cluster, allow=ALLOW) as client,
        client.run(FLOW, {"o": "h2"}, failover=Failover()) as run,
    ):
        assert next(run).index == 0
        cluster.kill("h1")
        cluster.start("h1")
        assert [next(run).index for _ in range(40)] == list(range(1, 41))


def started(code: str) -> str:
    """Start a host process that runs ``code``. Return its control endpoint, or raise the error of the wait."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        streams = {"h": process.stdout.fileno()}
        try:
            return wait_ready_lines(streams, 0.4, Progress({"h": process.pid}))["h"]["control"]
        finally:
            process.kill()


BUSY = 'import time\nuntil = time.monotonic() + 1\nwhile time.monotonic() < until: pass\nprint(\'{"control":"up"}\')'


def test_the_wait_for_a_starting_host_lasts_while_the_process_makes_progress() -> None:
    assert started(BUSY) == "up"
    with pytest.raises(HostAbsentError, match=r"'h' did not come up within [0-9.]+ s: its process is sleeping, after"):
        started("import time; time.sleep(1e6)")
    stopped = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    with pytest.raises(HostAbsentError, match=r"'h' did not come up within [0-9.]+ s: its process is stopped"):
        started(stopped)


def test_a_host_that_did_not_come_up_can_be_started_once_more(
    doomed: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed.kill("h3")
    with monkeypatch.context() as patched:
        patched.setattr(cluster_module, "START_S", 0.0)
        with pytest.raises(HostAbsentError, match="host 'h3' did not come up within 0 s"):
            doomed.start("h3")
    assert doomed.poll() == {"h3": -signal.SIGKILL}
    doomed.start("h3")
    assert doomed.poll() == {}
