"""The client side, end to end: real host processes on loopback."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import psutil
import pytest
from flows import chain
from patience import patience
from runtime_codes import ALLOW, MIX, assert_reference, blocks

from thalweg.middleware.client.client import Client
from thalweg.middleware.client.cluster import LocalCluster
from thalweg.middleware.client.membership.hello import identify_hosts
from thalweg.middleware.client.runs.run import Run
from thalweg.middleware.client.steering.run_options import Planning
from thalweg.middleware.core.measuring.coordinate_search import ENOUGH
from thalweg.middleware.dataflow import Code, Dataflow, complete_binary_tree, left_deep_tree, star_tree
from thalweg.middleware.errors import DataflowError, HostLostError, PlacementError, RunError, UsageError
from thalweg.middleware.network.figures import HostFigures
from thalweg.middleware.planning import CostModel, DownloadAll, Hints, Plan, Task
from thalweg.middleware.planning.planners.cost_space import CostSpace
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.middleware.protocol.limits import CoreConfig
from thalweg.operators import write_image

BLOCKS = blocks()["h1"]
KB, MB = 1_000, 1_000_000


def everywhere(flow: Dataflow, host: str) -> dict[str, str]:
    return dict.fromkeys(flow.operators, host)


def take_all(run: Run, indices: list[int]) -> None:
    for each in run:
        indices.append(each.index)


def test_a_quick_operator_that_stalls_does_not_hold_up_the_host(client: Client, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    flow = chain(BLOCKS, Code("runtime_codes:Stalls", {"path": str(pipe), "at": 20}))
    run = client.run(flow, {"o": "h1"}, partitions=40)
    assert [next(run).index for _ in range(20)] == list(range(20))
    with pipe.open("wb"):  # returns when the operator has opened its end, and lets it go on when closed
        identify_hosts({"h1": client._registry.peers["h1"].control}, timeout_s=5)
        other = client.run(chain(BLOCKS, MIX), {"o": "h1"}, partitions=30)  # new nodes there, quick ones soon
        assert [each.index for each in other] == list(range(30))
    assert [each.index for each in run] == list(range(20, 40))


def test_a_host_reads_only_folders_below_the_data_roots(tmp_path: Path) -> None:
    given, kept = tmp_path / "given", tmp_path / "kept"
    for folder in (given, kept):
        folder.mkdir()
        write_image(np.full((2, 3), 7, np.uint8), folder / "a.png")
    with LocalCluster(1, data_roots=[given]) as cluster, Client(cluster) as client:
        for folder in (given, kept):
            run = client.run(chain(Code("image_folder", {"folder": str(folder)}), Code("composite")), {"o": "h1"})
            if folder is given:
                assert [each.value.tolist() for each in run] == [[[7, 7, 7], [7, 7, 7]]]
            else:
                with pytest.raises(RunError, match=f"gives only files in {given} to read; start it with --data-root"):
                    next(run)


def test_a_host_without_room_for_a_run_fails_the_run_at_once() -> None:
    with (
        LocalCluster(1, allow=ALLOW, limits={"max_nodes": 2}) as cluster,
        Client(cluster, allow=ALLOW, limits=CoreConfig(liveness_s=1e6)) as client,
        pytest.raises(
            RunError, match=r"'h1'.* cannot take part: the run has 3 nodes, and the host takes 2; start it with"
        ),
    ):
        next(client.run(chain(BLOCKS, MIX), {"o": "h1"}))


# --- what comes out ---------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["h2", "client", "spread"])
@pytest.mark.parametrize("build", [complete_binary_tree, left_deep_tree, star_tree])
def test_partitions_equal_the_partitions_of_a_single_process(client: Client, build: Any, where: str) -> None:
    flow = build(blocks(sizes=[0, 1, 100 * KB, 300 * KB]), MIX)
    spread = {name: client.hosts[i % len(client.hosts)] for i, name in enumerate(flow.operators)}
    run = client.run(flow, spread if where == "spread" else everywhere(flow, where), partitions=9)
    delivered = list(run)
    assert [each.index for each in delivered] == list(range(9))
    assert all(each.size_bytes == each.value.nbytes for each in delivered)
    assert_reference([each.value for each in delivered], flow, 9)


def test_partitions_of_many_chunks_arrive_unchanged(client: Client) -> None:
    flow = complete_binary_tree(blocks(sizes=[3 * MB]), MIX)
    values = [each.value for each in client.run(flow, everywhere(flow, "h2"), partitions=4)]
    assert_reference(values, flow, 4)


def test_values_of_bytes_arrive_and_the_sources_end_the_run(client: Client) -> None:
    flow = star_tree(blocks(sizes=[0, 5, 400 * KB], length=5, text=True), MIX)
    values = [each.value for each in client.run(flow, everywhere(flow, "h3"))]
    assert len(values) == 5
    assert all(type(value) is bytes for value in values)
    assert_reference(values, flow, None)


def test_a_source_that_ends_before_the_requested_number_ends_the_run(client: Client) -> None:
    flow = chain(Code("runtime_codes:Blocks", {"site": 0, "length": 2}), MIX)
    assert len(list(client.run(flow, {"o": "h2"}, partitions=10))) == 2
    empty = chain(Code("runtime_codes:Blocks", {"site": 0, "length": 0}), MIX)
    assert list(client.run(empty, {"o": "h2"})) == []


def test_received_arrays_are_read_only(client: Client) -> None:
    flow = chain(Code("runtime_codes:Blocks", {"site": 0, "sizes": [10, 600 * KB]}), MIX)
    for each in client.run(flow, {"o": "h2"}, partitions=2):
        assert isinstance(each.value, np.ndarray)
        assert not each.value.flags.writeable


def test_async_iteration_gives_every_partition(client: Client) -> None:
    flow = star_tree(blocks(), MIX)

    async def collect() -> list[Any]:
        return [each.value async for each in client.run(flow, everywhere(flow, "h1"), partitions=20)]

    assert_reference(asyncio.run(collect()), flow, 20)


def test_two_simultaneous_runs_do_not_mix(client: Client) -> None:
    one, other = star_tree(blocks(), MIX), left_deep_tree(blocks(sizes=[7]), MIX)
    runs = (client.run(one, everywhere(one, "h1"), partitions=10), client.run(other, everywhere(other, "h2")))
    first, second = zip(*((next(runs[0]).value, next(runs[1]).value) for _ in range(10)), strict=True)
    runs[1].close()
    assert list(runs[0]) == []
    assert_reference(list(first), one, 10)
    assert_reference(list(second), other, 10)


def test_a_run_that_is_closed_early_frees_the_hosts_for_the_next_run(client: Client) -> None:
    flow = star_tree(blocks(sizes=[2 * MB]), MIX)
    with client.run(flow, everywhere(flow, "h2")) as run:
        assert next(run).index == 0
    assert list(run) == []
    run.close()
    client.run(flow, everywhere(flow, "h2")).close()  # not one partition taken
    small = star_tree(blocks(sizes=[9]), MIX)
    assert_reference([each.value for each in client.run(small, everywhere(small, "h3"), partitions=5)], small, 5)


def test_runs_deliver_partitions_after_many_runs_that_were_closed_at_once(client: Client) -> None:
    flow = star_tree(blocks(sizes=[9]), MIX)
    for _ in range(60):  # the hosts are dialled afresh while the connections of the run before are still closing
        client.run(flow, everywhere(flow, "h2")).close()
        assert [each.index for each in client.run(flow, everywhere(flow, "h3"), partitions=2)] == [0, 1]


def test_a_planner_by_name_places_the_run(client: Client) -> None:
    flow = complete_binary_tree(blocks(), MIX)
    run = client.run(flow, "download-all", partitions=3)
    assert {run.placement[name] for name in flow.operators} == {"client"}
    assert_reference([each.value for each in run], flow, 3)


def test_probes_measure_the_requested_links_latencies_and_coordinates(client: Client) -> None:
    links = {("h1", "h2"), ("h2", "h1"), ("client", "h3"), ("h3", "h1")}
    found = client.probe([*links, ("h2", "h2")])
    assert found.keys() >= links
    assert found.keys() <= links | {(b, a) for a, b in links}  # some of the opposite links come for free
    assert all(estimate.rate_bps > 1e5 for estimate in found.values())
    assert client.probe([]) == {}
    heard = client.latencies(links)
    assert heard.keys() == {("h1", "h2"), ("client", "h3"), ("h3", "h1")}  # one direction stands for both
    assert all(0 < each.latency_s < 0.1 and each.count >= 3 for each in heard.values())
    found_there = client.coordinates()
    assert found_there.keys() == set(client.hosts)
    assert all(len(each.at) == 3 and each.height_s > 0 and each.count >= ENOUGH for each in found_there.values())
    with pytest.raises(UsageError, match="there is no host 'h9'; did you mean"):
        client.coordinates(["h9"])


def test_a_planner_gets_the_required_figures_of_hosts_before_a_run(client: Client) -> None:
    told: list[Hints] = []

    class Asks(DownloadAll, frozen=True):
        needs: ClassVar = {"hosts"}

        def plan(self, task: Task, model: CostModel) -> Plan:
            told.append(task.hints)
            return super().plan(task, model)

    flow = complete_binary_tree(blocks(), MIX)
    plan = client.plan(flow, CostSpace(measured=1))  # by coordinates, as of many hosts
    assert 0 < len(plan.asked) <= 3 * len(flow.nodes)
    client.plan(flow, Asks())
    assert told[0].hosts == dict.fromkeys(("h1", "h2", "h3", "client"), HostFigures())


def test_a_planner_gets_the_required_measurements_while_data_flows() -> None:
    told: list[Task] = []

    class Asks(msgspec.Struct, frozen=True):
        needs: ClassVar = {"latency", "hosts", "work", "coordinates"}

        def plan(self, task: Task, model: CostModel) -> Plan:
            told.append(task)
            return Plan(dict(task.current or {}), task.dataflow, cost_s=1.0, initial_cost_s=1.0)

    moves = GlobalMoves(period_s=4.0)
    with (
        LocalCluster(2, allow=ALLOW, time_scale=40.0) as cluster,
        Client(cluster, allow=ALLOW, limits=CoreConfig(capacity=HostFigures(2.0, 4))) as client,
        client.run(chain(BLOCKS, MIX), {"o": "h2"}, adaptation=moves, planning=Planning(planner=Asks())) as run,
    ):
        for each in run:
            known = told[-1] if told else None
            places = known.view.places.values() if known else ()
            if (
                known
                and len(known.view.latencies) > 1
                and {"s", "o"} <= known.hints.rates_hz.keys()
                and len([each for each in places if each.count]) == 3
            ):
                break
            assert each.index < 200_000
    assert known is not None and all(0 < each.latency_s < 4 for each in known.view.latencies.values())
    assert known.view.places["client"].host.cores == 4
    assert known.hints.hosts["client"] == HostFigures(2.0, 4) and known.hints.hosts.keys() <= {"h1", "h2", "client"}
    assert known.hints.input_bytes["o"]["s"] == pytest.approx(known.hints.output_bytes["s"], rel=0.01)
    assert known.hints.compute_s["o"] > 0


# --- what goes wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("value", "ValueError at partition 2: two lines of text"),
        ("surrogate", "FileNotFoundError at partition 2: no file caf?"),
        ("exit", "SystemExit at partition 2: 3"),
        ("long", "ValueError at partition 2: " + "so " * 2_000),
        ("none", "combine returned None for partition 2; return NOTHING for an index without a value"),
        ("set", "a value of type set at ['a'] does not travel; return a list"),
        ("objects", "an array of dtype object holds Python objects; only plain numbers travel"),
    ],
)
def test_failing_code_ends_the_run_with_node_and_host(client: Client, how: str, says: str) -> None:
    run = client.run(chain(BLOCKS, Code("runtime_codes:Raises", {"how": how})), {"o": "h2"}, partitions=10)
    delivered: list[int] = []
    with pytest.raises(RunError) as caught:
        take_all(run, delivered)
    assert delivered == [0, 1][: len(delivered)]  # the failure may overtake what is still on its way
    said, whole = str(caught.value), f"node 'o' on host 'h2': {says}"
    assert said == (whole if len(whole) < 4_000 else f"{whole[:3_999]}…")
    error = caught.value
    ours = how in ("none", "set", "objects")  # the runtime's own word on what the code returned
    assert (error.node, error.host, error.index) == ("o", "h2", 2)
    assert (error.cause_type == "thalweg.middleware.errors.OperatorError") == ours
    assert (error.remote_traceback is None) == ours
    with pytest.raises(RunError, match="node 'o' on host 'h2'"):  # a later call raises it too
        next(run)
    run.close()
    assert list(run) == []


def test_the_traceback_of_failing_code_arrives_and_is_logged_on_the_host(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
    flow = chain(Code("runtime_codes:Blocks", {"site": 0}), Code("runtime_codes:Raises", {"how": "value"}))
    with LocalCluster(1, allow=ALLOW) as cluster, Client(cluster, allow=ALLOW) as client:
        with pytest.raises(RunError) as caught:
            list(client.run(flow, {"o": "h1"}))
        with pytest.raises(RunError) as constructed:
            list(client.run(chain(BLOCKS, Code("runtime_codes:Picky")), {"o": "h1"}))
    lines = (caught.value.remote_traceback or "").splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.split(", ")[-1] for line in lines if line.startswith("  File")] == ["in combine"], "its own lines only"
    assert lines[-2:] == ["ValueError: two lines", "of text"]
    assert 'raise ValueError("two lines\\nof text")' in lines[2]
    assert (caught.value.cause_type, caught.value.index) == ("ValueError", 2)
    assert (constructed.value.cause_type, constructed.value.index) == ("RuntimeError", None)
    assert 'raise RuntimeError("never")' in (constructed.value.remote_traceback or "")
    logged = capfd.readouterr().err
    assert logged.count('raise ValueError("two lines') == 1
    assert logged.count('raise RuntimeError("never")') == 1
    assert ": node 'o': ValueError at partition 2: two lines of text\nTraceback" in logged
    lines = [line for line in logged.splitlines() if ": run " in line]
    assert len(lines) == 2
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} ERROR h1: run ", line) for line in lines)


def test_code_may_print_more_than_is_read_and_finds_no_input(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
    with LocalCluster(1, allow=ALLOW) as cluster, Client(cluster, allow=ALLOW) as client:
        flow = chain(BLOCKS, Code("runtime_codes:Talks"), MIX)
        got = [each.value.tobytes() for each in client.run(flow, dict.fromkeys(flow.operators, "h1"), partitions=3)]
        assert got == [each.value.tobytes() for each in client.run(chain(BLOCKS, MIX), {"o": "h1"}, partitions=3)]
    assert capfd.readouterr().err.count("partition 2 …") == 1


def test_a_call_may_take_longer_than_a_host_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
    limits = {"ping_s": 0.2, "liveness_s": 1.0, "lease_s": 1.0}
    own = CoreConfig(ping_s=0.2)
    with LocalCluster(2, allow=ALLOW, limits=limits) as cluster, Client(cluster, allow=ALLOW, limits=own) as client:
        flow = chain(BLOCKS, Code("runtime_codes:Hangs", {"sleeps_s": 3.0}), MIX)
        where = dict(zip(flow.operators, ("h1", "h2"), strict=True))
        assert [each.index for each in client.run(flow, where, partitions=1)] == [0]


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (Code("compsite"), "unknown operator 'compsite'; did you mean 'composite'?"),
        (Code("subprocess:run"), "this host does not allow code from 'subprocess'; start it with --allow subprocess"),
        (Code("runtime_codes:Nothing"), "'runtime_codes:Nothing' cannot be imported here"),
        (Code("runtime_codes:Picky"), "RuntimeError: never"),
        (Code("runtime_codes:Mix", {"x": 1}), "does not take {'x': 1}"),
        (Code("runtime_codes:Blocks", {"site": 1}), "cannot run as operator: it has no combine()"),
    ],
)
def test_code_that_cannot_be_loaded_ends_the_run(client: Client, code: Code, says: str) -> None:
    with pytest.raises(RunError, match=r"^node 'o' on host 'h3': .*" + re.escape(says)):
        list(client.run(chain(BLOCKS, code), {"o": "h3"}, partitions=1))


def test_failing_code_on_the_client_ends_the_run_and_names_the_client(client: Client) -> None:
    flow = chain(BLOCKS, Code("runtime_codes:Raises", {"how": "value", "at": 0}))
    with pytest.raises(RunError, match="node 'o' on host 'client': ValueError"):
        list(client.run(flow, {"o": "client"}))


def test_the_failure_of_a_run_is_raised_in_an_async_iteration(client: Client) -> None:
    async def take() -> None:
        async for _ in client.run(chain(BLOCKS, Code("runtime_codes:Raises", {"how": "value", "at": 1})), {"o": "h2"}):
            pass

    with pytest.raises(RunError, match="node 'o' on host 'h2'"):
        asyncio.run(take())


def test_wrong_arguments_of_clients_and_runs_are_refused_with_the_reason(client: Client, cluster: LocalCluster) -> None:
    flow = star_tree(blocks(), MIX)
    with pytest.raises(PlacementError, match="leaves out operator 'op0'"):
        client.run(flow, {})
    with pytest.raises(PlacementError, match="unknown host 'h9'"):
        client.run(flow, {"op0": "h9"})
    with pytest.raises(DataflowError, match="pinned to unknown host 'h7'"):
        client.run(star_tree(blocks(["h7"]), MIX), {"op0": "h1"})
    with pytest.raises(UsageError, match="at least 1, not 0"):
        client.run(flow, {"op0": "h1"}, partitions=0)
    with pytest.raises(UsageError, match="unknown strategy"):
        client.run(flow, "two-shot")
    with pytest.raises(UsageError, match=r"an application calls Run\.move"):
        client.run(flow, "random-moves")
    with pytest.raises(UsageError, match="a host has that name"):
        Client(cluster, name="h1")
    with pytest.raises(UsageError, match="is called 'h1', not 'h2'"):
        identify_hosts({"h2": cluster.addresses["h1"]})
    with pytest.raises(UsageError, match="is not an endpoint"):
        identify_hosts({"h1": "http://127.0.0.1"})
    with pytest.raises(
        HostLostError,
        match=r"host 'h9' at tcp://127\.0\.0\.1:1 does not answer: nothing listens there; is thalweg host running",
    ):
        identify_hosts({"h9": "tcp://127.0.0.1:1"}, timeout_s=0.2)


@pytest.mark.parametrize(
    ("code", "options", "says"),
    [
        (MIX, {"label": "x" * 129}, "length <= 128"),
        (MIX, {"partitions": 2**60}, "9007199254740991"),
        (Code("runtime_codes:Mix", {"name": "caf\udce9"}), {}, "surrogates not allowed"),
        (Code("runtime_codes:Mix", {"data": bytes(5 * MB)}), {}, "over the limit of 4194304"),
    ],
)
def test_an_argument_that_no_message_can_carry_is_refused_before_the_run(
    client: Client, code: Code, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=f"the run cannot be sent to the hosts: .*{says}"):
        client.run(chain(BLOCKS, code), {"o": "h1"}, **options)
    assert len(list(client.run(chain(BLOCKS, MIX), {"o": "h2"}, partitions=2))) == 2


def test_a_sink_placed_away_from_the_client_is_refused(client: Client) -> None:
    with pytest.raises(PlacementError, match="the sink 't' is placed on 'h1'; a sink is always at the client"):
        client.run(chain(BLOCKS, MIX), {"o": "h1", "t": "h1"})


def test_closing_the_client_ends_the_iterations_that_wait(cluster: LocalCluster) -> None:
    client = Client(cluster, allow=ALLOW)
    runs = [client.run(chain(BLOCKS, MIX), {"o": "h2"}) for _ in range(2)]
    taken = threading.Semaphore(0)

    def take() -> None:
        for _ in runs[0]:
            taken.release()

    async def take_async() -> None:
        async for _ in runs[1]:
            taken.release()

    threads = [threading.Thread(target=take), threading.Thread(target=lambda: asyncio.run(take_async()))]
    for thread in threads:
        thread.start()
    for _ in range(20):
        taken.acquire()
    client.close()
    for thread in threads:
        thread.join(patience(5))
        assert not thread.is_alive()
    with pytest.raises(RunError, match="the client 'client' is closed; make another"):
        client.run(chain(BLOCKS, MIX), {"o": "h2"})


def test_a_killed_host_ends_the_run_within_the_liveness_limit(cluster: LocalCluster) -> None:
    limits = CoreConfig(ping_s=0.1, liveness_s=0.5)
    with LocalCluster(["k1", "k2"]) as doomed, Client(doomed.addresses, allow=ALLOW, limits=limits) as client:
        scenes = {host: Code("scenes", {"site": i, "sites": 2, "seed": 1}) for i, host in enumerate(["k1", "k2"])}
        flow = star_tree(scenes, Code("composite"))
        run = client.run(flow, {"op0": "k2"})
        assert next(run).index == 0
        doomed.kill("k1")
        with pytest.raises(RunError) as caught:
            for _ in run:
                pass
        assert str(caught.value) == "host 'k1', which holds source@k1, has been silent for 0.5 s"
        assert doomed.poll() == {"k1": -9}


def test_the_known_loss_of_a_host_ends_a_run_at_once(client: Client) -> None:
    flow = star_tree(blocks(), MIX)
    run = client.run(flow, everywhere(flow, "h2"))
    next(run)
    client.lost("h3")
    with pytest.raises(RunError, match="host 'h3', which holds source@h3, went away"):
        for _ in run:
            pass


def test_a_slow_sink_does_not_make_the_memory_of_hosts_grow(client: Client, cluster: LocalCluster) -> None:
    """200 MB pass; the application takes a partition only after a round trip through every host."""
    flow = chain(Code("runtime_codes:Blocks", {"site": 0, "sizes": [MB]}), MIX)
    processes = [psutil.Process(pid) for pid in cluster.pids.values()]
    before = 0
    for each in client.run(flow, {"o": "h2"}, partitions=200):
        assert each.value.nbytes == MB
        if each.index == 20:
            before = sum(process.memory_info().rss for process in processes)
        if each.index % 10 == 0:
            client.probe([("client", "h1"), ("h1", "h2"), ("h2", "client")])
    grown = sum(process.memory_info().rss for process in processes) - before
    assert grown < 24 * MB, f"hosts grew by {grown / MB:.0f} MB"


def test_a_closed_client_leaves_no_thread_and_no_descriptor(cluster: LocalCluster) -> None:
    threads = set(threading.enumerate())
    descriptors = psutil.Process().num_fds()
    for _ in range(3):
        with Client(cluster, allow=ALLOW) as client:
            flow = star_tree(blocks(), MIX)
            list(client.run(flow, everywhere(flow, "client"), partitions=2))
    for thread in set(threading.enumerate()) - threads:
        thread.join(patience(5))
        assert not thread.is_alive(), thread
    assert psutil.Process().num_fds() <= descriptors
