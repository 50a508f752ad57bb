"""Code inside the nodes of a virtual run, and planning and execution of a virtual run."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import permutations
from typing import Any

import msgspec
import numpy as np
import pytest

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.links import LinkRate
from thalweg.emulation.virtual.world import World
from thalweg.experiments.simulation.run import Work, plan_ahead, real_code, run_ahead, sized_code
from thalweg.middleware.client.steering.replanning import hints_of_code
from thalweg.middleware.dataflow import Code, Dataflow, Node, complete_binary_tree
from thalweg.middleware.errors import OperatorError, PlacementError, PlannerError, UsageError
from thalweg.middleware.loading import DEFAULT_ALLOW, load_code
from thalweg.middleware.network.view import Link, LinkEstimate, NetworkView
from thalweg.middleware.planning import (
    CostModel,
    CostParameters,
    CriticalPath,
    DownloadAll,
    Hints,
    OneShot,
    Period,
    PlanResult,
    Task,
    bound_period_s,
)
from thalweg.middleware.planning.problem.hints import propagate_hints
from thalweg.middleware.planning.registry import MOVERS, PLANNERS, RandomReshapes, Strategy, get_strategy
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.middleware.protocol.limits import CoreConfig, MonitorConfig
from thalweg.operators import Operator, Source, digest, reference_run

HERE = __name__
ALLOW = (*DEFAULT_ALLOW, HERE)
HOSTS = ("h1", "h2", "client")


class Endless(Source):
    """Source that reports sizes and has no end."""

    def produce(self, index: int) -> bytes:
        return bytes(self.partition_bytes(index))

    def partition_bytes(self, index: int) -> int:
        return 1000 + index

    def size_bytes(self) -> float:
        return 1000.0


class Two(Source):
    def produce(self, index: int) -> bytes | None:
        return None if index >= 2 else bytes(500)

    def partition_bytes(self, index: int) -> int | None:
        return None if index >= 2 else 500


class Secret(Source):
    """Source that reports no sizes."""

    def produce(self, index: int) -> bytes:
        return b"x"


class Unlike:
    """Source that is no ``Source``."""

    def produce(self, index: int) -> bytes:
        return b"x"


class Halves(Operator):
    """Operator that returns half of its first input, and takes a second for every 1000 input bytes."""

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        return inputs[0][: len(inputs[0]) // 2]

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        return input_sizes[0] // 2

    def compute_s(self, input_sizes: Sequence[float]) -> float:
        return sum(input_sizes) / 1000


class Bare:
    """Operator without a base class and without hints."""

    def combine(self, inputs: Sequence[Any], index: int) -> Any:
        return None if index == 1 else inputs[0]


class Remembers(Halves):
    def snapshot(self) -> bytes:
        return b"something"


class RemembersAlone(Bare):
    """Operator with state and hints, without a base class."""

    def output_size_bytes(self, input_sizes: Sequence[float]) -> float:
        return 1.0

    def compute_s(self, input_sizes: Sequence[float]) -> float:
        return 0.0

    def snapshot(self) -> Any:
        return "not bytes"


def code(name: str) -> Code:
    return Code(f"{HERE}:{name}")


def source(name: str) -> Node:
    return Node("s", "source", (), code(name), "h1")


def operator(name: str) -> Node:
    return Node("o", "operator", ("s", "s2"), code(name))


# --- sizes only ---------------------------------------------------------------------------------------


def test_a_source_of_sizes_takes_the_time_of_the_disk_and_ends_after_the_last_partition() -> None:
    outputs = [sized_code(ALLOW, 250.0)(source("Two")).make(index, ()) for index in range(4)]
    assert [(output.size_bytes, output.seconds, output.end) for output in outputs] == [
        (500, 2.0, False), (500, 2.0, False), (0, 0.0, True), (0, 0.0, True),
    ]  # fmt: skip


def test_a_source_without_an_end_makes_every_requested_partition() -> None:
    endless = sized_code(ALLOW, 1e3)(source("Endless"))
    assert [endless.make(index, ()).size_bytes for index in (5, 0, 4, 99)] == [1005, 1000, 1004, 1099]


def test_an_operator_of_sizes_takes_the_declared_time_on_a_dilated_clock() -> None:
    for factor, seconds in ((1.0, 3.0), (60.0, 180.0)):
        output = sized_code(ALLOW, 1e3, factor)(operator("Halves")).make(0, (1000, 2000))
        assert (output.value, output.size_bytes, output.seconds, output.end) == (500, 500, seconds, False)
        assert sized_code(ALLOW, 1e3)(operator("Halves")).snapshot() == b""


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (source("Secret"), "Secret does not tell the sizes of its partitions in advance; add --bytes"),
        (source("Unlike"), "does not tell the sizes of its partitions .*; add --bytes"),
        (operator("Bare"), "does not tell sizes .*; add --bytes"),
        (operator("Remembers"), "has state, which only real values give; add --bytes"),
        (operator("RemembersAlone"), "has state, which only real values give; add --bytes"),
        (Node("o", "operator", ("s",), Code("running", {})), "operator 'running' has state"),
    ],
    ids=["no sizes", "no source", "no hints", "state", "state without a base class", "running"],
)
def test_code_that_needs_real_values_is_refused(node: Node, says: str) -> None:
    with pytest.raises((UsageError, OperatorError), match=says) as refused:
        sized_code(ALLOW, 1e3)(node)
    assert "\n" not in str(refused.value)


def test_only_code_that_is_allowed_is_loaded() -> None:
    for book in (sized_code(DEFAULT_ALLOW, 1e3), real_code(DEFAULT_ALLOW, 1e3)):
        with pytest.raises(OperatorError, match="does not allow code"):
            book(operator("Halves"))


# --- real values --------------------------------------------------------------------------------------


def test_real_code_makes_values_in_the_time_that_sizes_take() -> None:
    for node, inputs, sizes in (
        (source("Two"), (), ()),
        (operator("Halves"), (bytes(1000), bytes(2000)), (1000, 2000)),
    ):
        real, sized = real_code(ALLOW, 250.0, 2.0)(node), sized_code(ALLOW, 250.0, 2.0)(node)
        for index in range(3):
            real_output, sized_output = real.make(index, inputs), sized.make(index, sizes)
            assert (real_output.size_bytes, real_output.seconds, real_output.end) == (
                sized_output.size_bytes,
                sized_output.seconds,
                sized_output.end,
            )
            assert len(real_output.value or b"") == real_output.size_bytes


def test_real_code_with_an_unsendable_result_is_refused() -> None:
    bare = real_code(ALLOW, 1e3)(operator("Bare"))
    assert bare.make(0, (b"ab", b"c")).value == b"ab"
    with pytest.raises(OperatorError, match="combine returned None for partition 1"):
        bare.make(1, (b"ab", b"c"))
    assert bare.snapshot() == b""
    with pytest.raises(OperatorError, match=r"3 bytes of state, and the code here has no restore\(\)"):
        bare.restore(b"abc")
    with pytest.raises(OperatorError, match=r"snapshot\(\) returned str, not bytes"):
        real_code(ALLOW, 1e3)(operator("RemembersAlone")).snapshot()
    assert real_code(ALLOW, 1e3)(operator("Remembers")).snapshot() == b"something"


# --- planned and run ----------------------------------------------------------------------------------

DATAFLOW = complete_binary_tree({"h1": code("Endless"), "h2": code("Endless")}, code("Halves"))
CORE = CoreConfig(monitor=MonitorConfig(probe_train=False)).dilated(100.0)
SINGLE = WorldConfig("single", startup_s=0.0, core=CORE, validate=True)


def constant(rate_bps: float, later_bps: float | None = None) -> BandwidthTrace:
    """Return a link of one rate, or of a second rate from 5 s on."""
    if later_bps is None:
        return BandwidthTrace("constant", np.array([0.0]), np.array([rate_bps]))
    return BandwidthTrace("falls", np.array([0.0, 5.0]), np.array([rate_bps, later_bps]), 1e6)


def work(allow: Collection[str] = ALLOW) -> Work:
    hints = Hints({"source@h1": 1e6, "source@h2": 1e6, "op0": 1e6})
    return Work(DATAFLOW, HOSTS, hints, CostParameters(startup_s=0.0), CriticalPath(), tuple(allow))


def links(**others: LinkRate) -> dict[Link, LinkRate]:
    fast = constant(1e6)
    return {(a, b): others.get(f"{a}_{b}", fast) for a, b in permutations(HOSTS, 2)}


def test_a_plan_rests_on_measured_or_true_rates_of_links() -> None:
    network = links(h1_client=constant(1e5), client_h1=constant(1e5))
    probed = plan_ahead(work(), OneShot(), network, SINGLE)
    exact = plan_ahead(work(), OneShot(), network, SINGLE, truth=True)
    assert probed.result.placement == exact.result.placement
    assert probed.result.placement["op0"] == "h2"
    assert probed.asked
    assert exact.view.rate_bps("h1", "client") == 1e5
    assert not exact.asked


def test_a_plan_sees_the_rate_of_a_link_at_the_time_of_the_measurement() -> None:
    """The link falls after 5 s. The truth at time 0 does not show the fall, and a probe of 6 s does."""
    network = links(h1_client=constant(20_000.0, 1000.0))
    assert plan_ahead(work(), OneShot(), network, SINGLE, truth=True).view.rate_bps("h1", "client") == 20_000.0
    measured_bps = plan_ahead(work(), OneShot(), network, SINGLE).view.rate_bps("h1", "client")
    assert measured_bps is not None
    assert measured_bps < 6000.0


class Strange:
    """Planner of a user with an impossible placement."""

    def plan(self, task: Task, model: CostModel) -> PlanResult:
        result = DownloadAll().plan(task, model)
        return msgspec.structs.replace(result, placement={**result.placement, "op0": "mars"})


def test_an_impossible_plan_is_refused_before_a_run_starts() -> None:
    with pytest.raises(PlacementError, match="mars"):
        plan_ahead(work(), Strange(), links(), SINGLE)


def run(
    strategy: Strategy, network: Mapping[Link, LinkRate], partitions: int = 40, on_record: Any = None, **more: Any
) -> tuple[Any, list[int]]:
    came: list[int] = []
    plan = plan_ahead(work(), strategy.initial, network, SINGLE)
    book = sized_code(ALLOW, 1e9, 0.001)
    world = World(work().hosts, network, book, SINGLE, on_record=on_record)
    world.on_delivered = lambda each, now: came.append(each.index)
    run_ahead(work(), strategy, plan, partitions, world, **more)
    return world, came


def test_a_run_delivers_all_partitions_in_order_and_leaves_no_run_on_hosts() -> None:
    world, came = run(Strategy(DownloadAll()), links(), 7)
    assert came == list(range(7))
    assert world.failed is None
    assert [host.core.runs for host in world.hosts.values()] == [{}] * 3


def test_global_moves_search_from_the_measurements_of_the_run() -> None:
    """The link from h1 to the client falls to a hundredth of its rate. The route over h2 avoids it."""
    network = links(h1_client=constant(1e6, 1e4), client_h1=constant(1e6, 1e4))
    plans: list[dict[str, Any]] = []

    def on_record(host: str, now: float, record: e.Record) -> None:
        if record.kind == "plan":
            plans.append(record.fields["detail"])

    strategy = Strategy(DownloadAll(), GlobalMoves(period_s=100.0))
    world, came = run(strategy, network, 600, on_record=on_record, label="mine")
    assert came == list(range(600))
    assert (world.relocations, world.placement["op0"]) == (1, "h2")
    assert world.plans >= len(plans) > 0
    assert (plans[0]["planner"], plans[0]["decision"]) == ("mine", "propose")
    still, _ = run(Strategy(DownloadAll()), network, 600)
    assert world.now < still.now / 2


# --- graphs -------------------------------------------------------------------------------------------


def test_every_placement_but_random_reshapes_runs_a_graph_with_two_sinks() -> None:
    """The operators are reorderable, but the graph is no tree. The bound needs a tree too."""
    scenes = [Code("scenes", {"site": n, "sites": 3, "mean_bytes": 20_000, "seed": 3}) for n in range(3)]
    mix = Code("composite", {"fit": "nested"})
    graph = Dataflow()
    first, second, third = (graph.source(scene, at=f"h{n}") for n, scene in enumerate(scenes, 1))
    joint = graph.operator(mix, first, second)
    graph.sink("overview", graph.operator(mix, joint, third), at="client")
    graph.sink("archive", joint, third, at="client")
    flow, hosts = graph.validate(), ("h1", "h2", "h3", "client")
    network = {link: constant(2e5 + 1e4 * number) for number, link in enumerate(permutations(hosts, 2))}
    digests = set()
    for name in (*PLANNERS, *MOVERS):
        for model in (CriticalPath(), Period()):
            job = Work(flow, hosts, hints_of_code(flow), CostParameters(startup_s=0.0), model)
            options = {"period_s": 20.0} if name in ("global", "local", "thalweg") else {}
            if name == "fixed":
                options = {"placement": {each.name: "h1" for each in flow.nodes if each.kind == "operator"}}
            strategy = get_strategy(name, **options)
            world = World(hosts, network, real_code(DEFAULT_ALLOW, 1e9, 0.001), SINGLE)
            came: list[tuple[str, int, Any]] = []

            def on_delivered(each: e.Deliver, _: float, came: list[tuple[str, int, Any]] = came) -> None:
                values = each.value if isinstance(each.value, tuple) else (each.value,)
                came.append((each.sink, each.index, tuple(map(digest, values))))

            world.on_delivered = on_delivered
            plan = plan_ahead(job, strategy.initial, network, SINGLE)
            assert plan.result.dataflow == flow
            if name == "random-reshapes":
                with pytest.raises(UsageError, match="changes trees, and node 'source@h3' has several consumers"):
                    run_ahead(job, strategy, plan, 12, world)
                continue
            run_ahead(job, strategy, plan, 12, world)
            assert (world.failed, world.planner_failed, len(came)) == (None, None, 24), name
            assert world.relocations > 0 or name != "random-moves"
            digests.add(tuple(sorted(came)))
    assert len(digests) == 1
    known = NetworkView({link: LinkEstimate(1e6) for link in network})
    with pytest.raises(PlannerError, match="the bound holds for trees, and node 'source@h3' has several consumers"):
        bound_period_s(job.task(known))


# --- operators with states that merge -----------------------------------------------------------------

RUNNING = Code("running", {"fit": "nested"})
SITES = ("h1", "h2", "h3", "h4", "client")


def falling(*slow: str) -> dict[Link, LinkRate]:
    """Return links of 1 Mbit/s. After 5 s the link between these two hosts carries a hundredth."""
    return {(a, b): constant(1e6, 1e4 if {a, b} == set(slow) else 1e6) for a, b in permutations(SITES, 2)}


CHOSEN = get_strategy("thalweg").initial


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "least"),
    [
        (Strategy(DownloadAll(), driver=RandomReshapes(20, 40, seed=2)), 20),
        (Strategy(CHOSEN, GlobalMoves(5.0, horizon_s=300.0), CHOSEN), 1),
    ],
    ids=["at random", "thalweg"],
)
def test_the_tree_changes_and_the_states_of_operators_are_merged(strategy: Strategy, least: int) -> None:
    """Real images are compared with the results of one process. A link of the first tree collapses."""
    sources = {
        site: Code("scenes", {"site": i, "sites": 4, "seed": 4, "mean_bytes": 40_000.0})
        for i, site in enumerate(SITES[:-1])
    }
    flow = complete_binary_tree(sources, RUNNING)
    operator = load_code(RUNNING)
    hints = propagate_hints(flow, dict.fromkeys(flow.sources, 40_000.0), lambda _: operator)
    job = Work(flow, SITES, hints, CostParameters(startup_s=0.0), CriticalPath())
    plan = plan_ahead(job, strategy.initial, falling(), SINGLE)
    tree, where = plan.result.dataflow, plan.result.placement
    network = falling(*next(
        (where[low], where[high]) for high in tree.upward for low in tree.by_name[high].inputs
        if where[low] != where[high]
    ))  # fmt: skip
    book, came, merged = real_code(DEFAULT_ALLOW, 1e9), [], []
    world = World(
        job.hosts, network, book, SINGLE,
        on_record=lambda host, now, record: merged.append(record) if record.kind == "merged" else None,
    )  # fmt: skip
    world.on_delivered = lambda each, now: came.append(digest(each.value))
    run_ahead(job, strategy, plan, 100, world)
    assert world.failed is None
    assert came == [digest(value) for value in reference_run(flow, 100)]
    assert len(merged) == world.reshapings >= least
    assert max(record.fields["size_bytes"] for record in merged) > 16_384  # as bulk
