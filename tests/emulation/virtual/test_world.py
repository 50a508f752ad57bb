"""The virtual shell: times of disks, processors, timers and messages, code that fails, and reproducible logs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from flows import chain
from run_ids import R, alarm, run_of, timer_of

from thalweg.emulation.traces.trace import BandwidthTrace
from thalweg.emulation.virtual import world as virtual_world
from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.links import LinkRate
from thalweg.emulation.virtual.world import World
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.middleware.dataflow import Code, Dataflow, Node
from thalweg.middleware.errors import RunError
from thalweg.middleware.network.view import Link
from thalweg.middleware.planning.registry import RandomMoves
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import frames
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import Adaptation, GlobalMoves
from thalweg.middleware.protocol.limits import CoreConfig, MonitorConfig
from thalweg.middleware.shell.node_code import NodeCode, NodeResult

HOSTS = ("h1", "h2", "client")
ENDLESS = BandwidthTrace.constant("as good as no link at all", 1e15)
SLOW = BandwidthTrace.constant("1 kB/s", 8000.0)
CODE = Code("composite")
SINGLE_PROBES = CoreConfig(monitor=MonitorConfig(probe_train=False))


def links(trace: LinkRate = ENDLESS, **others: LinkRate) -> dict[Link, LinkRate]:
    """Return links with ``trace`` for every pair. Keywords such as ``h1_client`` set the rates of single links."""
    return {(a, b): others.get(f"{a}_{b}", trace) for a, b in permutations(HOSTS, 2)}


class Takes(NodeCode):
    """Code that takes ``seconds`` for every partition of ``size_bytes``, and counts what it has made."""

    def __init__(self, seconds: float = 0.0, size_bytes: int = 1000, length: float = math.inf) -> None:
        self.seconds, self.size_bytes, self.length = seconds, size_bytes, length
        self.made = 0

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        if index >= self.length:
            return NodeResult(None, 0, 0.0, True)
        self.made += 1
        return NodeResult((index, *inputs), self.size_bytes, self.seconds)

    def snapshot(self) -> bytes:
        return str(self.made).encode()

    def restore(self, state: bytes) -> None:
        self.made = int(state)


def fails(what: str, at: int | None = None) -> NodeCode:
    """Return code in which one method raises an error of two lines, always or for the argument ``at``."""

    def fail(*given: Any) -> Any:
        if at is not None and given[0] != at:
            return method(*given)
        raise ValueError("no such\n  pixel")

    code = Takes()
    method = getattr(code, what)
    setattr(code, what, fail)
    return code


PAIR = Dataflow(
    (
        Node("s1", "source", (), CODE, "h1"),
        Node("s2", "source", (), CODE, "h1"),
        Node("o", "operator", ("s1", "s2"), CODE),
        Node("t", "sink", ("o",), None, "client"),
    )
)
LINE, CHAIN = chain(CODE, client="client"), chain(CODE, CODE, client="client")


class Watched:
    """A world with its records and its deliveries (index, value, seconds)."""

    def __init__(
        self,
        codes: Mapping[str, Callable[[], NodeCode]],
        network: Mapping[Link, LinkRate] | None = None,
        config: WorldConfig | None = None,
        *,
        records: bool = False,
    ) -> None:
        self.delivered: list[tuple[int, Any, float]] = []
        self.records: list[tuple[str, float, e.Record]] = []
        keep: Callable[..., None] = lambda *given: self.records.append(given)  # noqa: E731
        config = config or WorldConfig("independent", startup_s=0.0, validate=True)
        self.world = World(
            HOSTS,
            network or links(),
            lambda node: codes[node.name](),
            config,
            on_record=keep if records else None,
            digest=True,
        )
        self.world.on_delivered = lambda each, now: self.delivered.append((each.index, each.value, now))

    def run(
        self,
        dataflow: Dataflow,
        placement: dict[str, str],
        partitions: int = 3,
        adaptation: Adaptation | None = None,
        driver: RandomMoves | None = None,
    ) -> list[float]:
        """Run a dataflow. Return the time at which every partition was delivered."""
        if driver is not None:
            self.world.driver = RandomMover(driver, self.world, HOSTS).on_delivered
        self.world.run(dataflow, placement, partitions, adaptation)
        for host in self.world.hosts.values():
            assert host.core.runs == {}
            assert host.code == {}
        assert [index for index, _, _ in self.delivered] == list(range(len(self.delivered)))
        return [now for _, _, now in self.delivered]

    def details(self, kind: str) -> list[dict[str, Any]]:
        return [record.fields["detail"] for _, _, record in self.records if record.kind == kind]


def about(*seconds: float) -> Any:
    """Return a comparison with these times that leaves a microsecond for messages."""
    return pytest.approx(seconds, abs=1e-6)


# --- what things take ---------------------------------------------------------------------------------


def test_sources_on_the_same_host_read_in_turn_and_a_partition_ahead() -> None:
    watched = Watched({"s1": lambda: Takes(2.0), "s2": lambda: Takes(2.0), "o": lambda: Takes(3.0)})
    # s1 reads until 2 s, s2 until 4, and both their next ones until 8; o computes from 4 to 7, 8 to 11, 12 to 15
    assert watched.run(PAIR, {"s1": "h1", "s2": "h1", "o": "h2", "t": "client"}) == about(7.0, 11.0, 15.0)
    assert watched.delivered[2][1] == (2, (2,), (2,))


@pytest.mark.parametrize("control_bytes", [None, 200, 1000])
def test_control_messages_have_a_fixed_size_if_asked(control_bytes: int | None) -> None:
    watched = Watched({"s": Takes, "o": Takes}, config=WorldConfig("independent", 0.0, control_bytes=control_bytes))
    sizes: list[int] = []
    carry = watched.world._carry
    watched.world._carry = lambda transfer: (sizes.append(transfer.size_bytes), carry(transfer))[1]  # type: ignore
    watched.run(CHAIN, {"s": "h1", "o": "h2", "t": "client"}, 5)
    control = {size for size in sizes if size != 1000 or control_bytes == 1000}
    assert control == {control_bytes} if control_bytes is not None else len(control) > 1


def test_operators_on_the_same_host_share_the_processor_and_not_the_disk() -> None:
    nodes = (
        *(Node(f"s{i}", "source", (), CODE, host) for i, host in enumerate(["h1", "h2"])),
        *(Node(f"o{i}", "operator", (f"s{i}",), CODE) for i in range(2)),
        Node("o2", "operator", ("o0", "o1"), CODE),
        Node("t", "sink", ("o2",), None, "client"),
    )
    placement = {"s0": "h1", "s1": "h2", "o0": "h1", "o1": "h1", "o2": "client", "t": "client"}
    codes: dict[str, Callable[[], NodeCode]] = {f"s{i}": lambda: Takes(1.0) for i in range(2)}
    codes |= {f"o{i}": lambda: Takes(3.0) for i in range(2)} | {"o2": lambda: Takes(0.5)}
    # both have their input at 1 s; the one computes from 1 to 4, the other to 7; then 4 to 10 would be its next
    assert Watched(codes).run(Dataflow(nodes), placement, 1) == about(7.5)
    placement["o1"] = "h2"
    assert Watched(codes).run(Dataflow(nodes), placement, 1) == about(4.5)


@pytest.mark.parametrize("ahead", [1, 4])
@pytest.mark.parametrize(("other", "sent"), [("h2", 1), ("client", 2), ("h1", 1)])
def test_consumers_on_the_same_host_are_sent_a_partition_once(other: str, sent: int, ahead: int) -> None:
    nodes = (
        Node("s", "source", (), CODE, "h1", ahead),
        *(Node(f"o{i}", "operator", ("s",), CODE) for i in range(3)),
        *(Node(f"t{i}", "sink", (f"o{i}",), None, "client") for i in range(3)),
    )
    placement = {"s": "h1", "o0": "h2", "o1": "h2", "o2": other, "t0": "client", "t1": "client", "t2": "client"}
    watched = Watched(dict.fromkeys(["s", "o0", "o1", "o2"], Takes), links(h1_h2=SLOW), records=True)
    delivered: list[tuple[str, int, Any]] = []
    watched.world.on_delivered = lambda each, now: delivered.append((each.sink, each.index, each.value))
    watched.world.run(Dataflow(nodes), placement, 8)
    assert sorted(delivered) == [(f"t{i}", index, (index, (index,))) for i in range(3) for index in range(8)]
    transfers = [record.fields["node"] for _, _, record in watched.records if record.kind == "transfer"]
    assert transfers.count("s") == 8 * sent
    assert watched.world.now == pytest.approx(8.0, abs=1e-3)  # a second each: in half the time of two


def test_a_slow_host_computes_longer_and_reads_at_the_usual_speed() -> None:
    codes = {"s": lambda: Takes(1.0), "o": lambda: Takes(2.0)}
    config = WorldConfig("independent", startup_s=0.0, compute_factor={"h1": 10.0, "h2": 3.0})
    for host, seconds in (("h1", 21.0), ("h2", 7.0), ("client", 3.0)):
        placement = {"s": "h1", "o": host, "t": "client"}
        assert Watched(codes, config=config).run(CHAIN, placement, 1) == about(seconds)


def test_a_message_takes_transfer_time_start_up_cost_and_take_up_time() -> None:
    placement = {"s": "h1", "t": "client"}
    network = links(h1_client=SLOW)
    codes = {"s": lambda: Takes(0.0, 4000)}
    # installing, its answer and the demand take a start-up each, and so does the partition
    (at_s,) = Watched(codes, network, WorldConfig("independent", startup_s=0.0)).run(LINE, placement, 1)
    (started_s,) = Watched(codes, network, WorldConfig("independent", startup_s=0.5)).run(LINE, placement, 1)
    (late_s,) = Watched(codes, network, WorldConfig("independent", startup_s=0.0, take_up_s=0.25)).run(
        LINE, placement, 1
    )
    answer_s = len(frames.encode(m.Installed(run_of("run"), "h1"))) / 1000
    assert at_s == pytest.approx(answer_s + 4.0)
    assert started_s == pytest.approx(at_s + 4 * 0.5)
    assert late_s == pytest.approx(at_s + 4 * 0.25)


def test_a_message_that_waits_at_the_receiver_does_not_occupy_the_link() -> None:
    codes = {"s": lambda: Takes(0.0, 4000)}
    config = WorldConfig("independent", startup_s=0.0, take_up_s=1000.0, core=CoreConfig().dilated(1e6))
    watched = Watched(codes, links(h1_client=SLOW), config, records=True)
    watched.run(LINE, {"s": "h1", "t": "client"}, 1)
    assert [record.fields["duration_s"] for _, _, record in watched.records if record.kind == "transfer"] == [4.0]


def test_the_sender_is_notified_at_once_of_the_duration_of_a_transfer() -> None:
    watched = Watched({"s": lambda: Takes(0.0, 20_000)}, links(h1_client=SLOW), records=True)
    watched.run(LINE, {"s": "h1", "t": "client"}, 2)
    transfers = [(host, now, record.fields) for host, now, record in watched.records if record.kind == "transfer"]
    assert [(host, fields["duration_s"]) for host, _, fields in transfers] == [("h1", pytest.approx(20.0))] * 2
    assert [now for _, now, _ in transfers] == [now for _, _, now in watched.delivered]
    (first, _) = watched.details("estimate")
    rate_bps = pytest.approx(8000.0)
    assert (first["src"], first["dst"], first["rate_bps"], first["how"]) == ("h1", "client", rate_bps, "passive")


def test_a_stream_ends_where_its_source_ends() -> None:
    watched = Watched({"s": lambda: Takes(0.0, length=2)})
    assert len(watched.run(LINE, {"s": "h1", "t": "client"}, 5)) == 2
    assert watched.world.failed is None


# --- probes -------------------------------------------------------------------------------------------


def test_probes_before_a_run_measure_the_asked_links_and_the_reverse_links() -> None:
    config = WorldConfig("single", startup_s=0.05, core=SINGLE_PROBES.dilated(1000.0))
    watched = Watched({}, links(SLOW, h1_client=BandwidthTrace("2", np.array([0.0]), np.array([16_000.0]))), config)
    estimates = watched.world.probe({("h1", "client"), ("client", "h1"), ("h2", "h1")}, 1e6)
    took = {("h1", "client"): 8.192, ("client", "h1"): 16.384, ("h2", "h1"): 16.384}
    rates = {link: m.PROBE_BYTES * 8 / seconds for link, seconds in took.items()}  # no start-up
    assert {link: estimate.rate_bps for link, estimate in estimates.items()} == pytest.approx(rates, rel=1e-3)
    assert (
        sum(host.core.links.prober.sent_bytes for host in watched.world.hosts.values()) == 4 * m.PROBE_BYTES
    )  # h1 -> h2 follows


def test_links_that_take_longer_than_the_patience_are_left_out() -> None:
    dead = BandwidthTrace("hardly", np.array([0.0]), np.array([1.0]))
    config = WorldConfig("independent", core=SINGLE_PROBES)
    world = Watched({}, links(h1_h2=dead), config).world
    estimates = world.probe({("h1", "h2"), ("h1", "client")}, 500.0)
    assert ("h1", "client") in estimates
    assert ("h1", "h2") not in estimates
    assert world.now == 500.0


# --- timers, and the order of events ------------------------------------------------------------------


class Scripted:
    """A core that answers its *n*-th event with the *n*-th list of commands."""

    recording = False

    def __init__(self, *answers: Sequence[e.Command]) -> None:
        self.answers = list(map(list, answers))
        self.heard: list[tuple[str, float]] = []
        self.validated = 0

    def handle(self, event: e.Event, now: float) -> list[e.Command]:
        self.heard.append((event.key.timer if isinstance(event, e.TimerFired) else type(event).__name__, now))
        return self.answers.pop(0) if self.answers else []

    def validate(self) -> None:
        self.validated += 1


def scripted(*answers: Sequence[e.Command], **config: Any) -> tuple[World, Scripted]:
    world = World(HOSTS, links(), lambda node: Takes(), WorldConfig(**config))
    core = Scripted(*answers)
    world.hosts["h1"].core = core  # type: ignore[assignment]
    world._soon(world.hosts["h1"], e.NextRequested(R))
    return world, core


def test_a_timer_that_is_set_again_replaces_the_earlier_timer() -> None:
    world, core = scripted(
        [alarm("later", 5.0), alarm("sooner", 5.0), alarm("first", 1.0)],
        [alarm("later", 9.0), alarm("sooner", 2.0)],
        [alarm("sooner", 5.0)],
    )
    world._until(lambda: False)
    assert core.heard == [("NextRequested", 0.0), ("first", 1.0), ("sooner", 2.0), ("sooner", 5.0), ("later", 9.0)]
    assert world.hosts["h1"].timers == {}


def test_timers_that_are_due_at_the_same_time_fire_in_the_order_of_setting() -> None:
    names = ["z", "b", "q", "a"]
    world, core = scripted([e.SetTimer(timer_of(name), 1.0) for name in names])
    world._until(lambda: False)
    assert [name for name, _ in core.heard[1:]] == names


def test_invariants_are_checked_after_every_event_if_validation_is_on() -> None:
    for wanted in (False, True):
        world, core = scripted([alarm("a", 1.0)], validate=wanted)
        world._until(lambda: False)
        assert (core.validated, world.events) == (2 if wanted else 0, 2)


class OneIsNotTaken(World):
    """An application that never asks for a second partition of sink ``idle``."""

    def _delivered(self, host: Any, command: e.Deliver) -> None:
        if command.sink != "idle":
            super()._delivered(host, command)

    def _is_over(self) -> bool:
        return self.now > 60


def test_an_idle_sink_makes_no_node_keep_more_than_two_outputs() -> None:
    flow = Dataflow()
    shared = flow.operator(CODE, flow.source(CODE, at="h1", name="s"), name="o")
    flow.sink("idle", flow.operator(CODE, shared, name="p"))
    flow.sink("taken", flow.operator(CODE, shared, name="q"))
    flow.sink("apart", flow.operator(CODE, "s", flow.source(CODE, at="h2", name="r"), name="u"))
    world = OneIsNotTaken(HOSTS, links(), lambda node: Takes(), WorldConfig(validate=True))
    delivered: list[tuple[str, int]] = []
    world.on_delivered = lambda partition, now: delivered.append((partition.sink, partition.index))
    world.run(flow, {node.name: node.pinned or "h1" for node in flow.nodes} | dict.fromkeys(flow.sinks, "client"), 50)
    assert max(index for sink, index in delivered if sink == "taken") in (1, 2)
    nodes = [node for host in world.hosts.values() for node in host.core.runs[run_of("run")].flow.nodes.values()]
    assert all((node.output is not None) + len(node.window.unacked) <= 2 for node in nodes)
    assert max(node.index for node in nodes) <= 5


def test_kept_outputs_let_the_longer_path_of_a_graph_work_as_a_pipeline() -> None:
    """From ``s`` one path is direct, and the other path has three operators of one second."""

    def took_s(ahead: int) -> float:
        flow = Dataflow()
        name = source = flow.source(CODE, at="h1", name="s", ahead=ahead)
        where = {}
        for _ in range(3):
            name = flow.operator(CODE, name)
        flow.sink("t", flow.operator(CODE, source, name, name="last"))
        where = {"op0": "h1", "op1": "h2", "op2": "client", "last": "client", "t": "client", "s": "h1"}
        code = {"op0": Takes(1.0), "op1": Takes(1.0), "op2": Takes(1.0)}
        world = World(HOSTS, links(), lambda node: code.get(node.name, Takes()), WorldConfig(validate=True))
        world.run(flow, where, 20)
        return world.now

    assert took_s(1) > 2 * took_s(4)
    assert took_s(4) < 30


def test_a_world_that_never_ends_is_stopped_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_world, "MAX_EVENTS", 50)
    world, core = scripted(*[[alarm("again", float(number))] for number in range(1000)])
    with pytest.raises(RunError, match="did not end within 50 events"):
        world._until(lambda: False)
    assert len(core.heard) == 51


# --- code that fails ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("node", "host", "call"), [("s", "h1", "produce"), ("o", "h2", "combine")])
def test_a_call_that_exceeds_the_simulated_call_timeout_ends_the_run(node: str, host: str, call: str) -> None:
    class Later(Takes):
        def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
            self.seconds = 9.0 if index == 2 else 3.0
            return super().make(index, inputs)

    codes: dict[str, Callable[[], NodeCode]] = {"s": Takes, "o": Takes, node: Later}
    watched = Watched(codes, config=WorldConfig("independent", startup_s=0.0, call_timeout_s=4.0, validate=True))
    delivered_s = watched.run(CHAIN, {"s": "h1", "o": "h2", "t": "client"}, partitions=9)
    assert len(delivered_s) <= 2
    why = f"{call}() of partition 2 has not returned within 4 s (call_timeout_s)"
    assert watched.world.failed == f"node {node!r} on host {host!r}: {why}"


@pytest.mark.parametrize("node", ["s", "o"])
def test_code_that_raises_ends_the_run_with_a_single_line_and_leaves_no_state(node: str) -> None:
    codes: dict[str, Callable[[], NodeCode]] = {"s": Takes, "o": Takes}
    codes[node] = lambda: fails("make", at=5)
    watched = Watched(codes)
    assert 0 < len(watched.run(CHAIN, {"s": "h1", "o": "h2", "t": "client"}, 9)) <= 5
    host = {"s": "h1", "o": "h2"}[node]
    assert watched.world.failed == f"node {node!r} on host {host!r}: ValueError at partition 5: no such pixel"


@pytest.mark.parametrize("what", ["snapshot", "restore"])
def test_an_operator_stays_if_the_state_cannot_be_moved(what: str) -> None:
    watched = Watched({"s": Takes, "o": lambda: fails(what)}, records=True)
    assert len(watched.run(CHAIN, {"s": "h1", "o": "h2", "t": "client"}, 12, driver=RandomMoves(moves=2, seed=4))) == 12
    assert watched.world.failed is None
    settled = watched.details("relocated")
    assert {detail["outcome"] for detail in settled} == {"stayed"}
    assert f"ValueError in {what}(): no such pixel" in settled[0]["why"]
    assert watched.world.relocations == 0
    assert watched.world.placement["o"] == "h2"


def test_an_operator_stays_if_no_other_host_can_load_the_code() -> None:
    def open_once() -> NodeCode:
        opened.append("o")
        if len(opened) > 1:
            raise ValueError("no licence")
        return Takes()

    opened: list[str] = []
    watched = Watched({"s": Takes, "o": open_once}, records=True)
    assert len(watched.run(CHAIN, {"s": "h1", "o": "h2", "t": "client"}, 12, driver=RandomMoves(moves=2, seed=4))) == 12
    proposals = [detail["why"] for detail in watched.details("proposal")] + [
        each["why"] for each in watched.details("relocated")
    ]
    assert any("ValueError: no licence" in why for why in proposals)
    assert watched.world.relocations == 0


def test_a_moved_operator_keeps_the_state() -> None:
    class Counts(Takes):
        def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
            result = super().make(index, inputs)
            return NodeResult(self.made, result.size_bytes, result.seconds)

    watched = Watched({"s": Takes, "o": Counts})
    watched.run(CHAIN, {"s": "h1", "o": "h2", "t": "client"}, 30, driver=RandomMoves(moves=10, seed=4))
    assert [value for _, value, _ in watched.delivered] == list(range(1, 31))
    assert watched.world.relocations == 10


def test_the_world_answers_and_counts_the_planning_requests_of_the_client() -> None:
    asked: list[e.RequestPlan] = []

    def answer(plan: e.RequestPlan) -> e.PlanReady:
        asked.append(plan)
        return e.PlanReady(plan.run, {**plan.placement, "o": "client"}, detail={"why": "for once"})

    watched = Watched({"s": lambda: Takes(1.0), "o": Takes})
    watched.world.answer = answer
    watched.run(CHAIN, {"s": "h1", "o": "h2", "t": "client"}, 30, GlobalMoves(period_s=10.0))
    assert (watched.world.plans, watched.world.relocations, watched.world.placement["o"]) == (len(asked), 1, "client")
    assert len(asked) in (2, 3)


# --- one log ------------------------------------------------------------------------------------------


class Pictures(Takes):
    """Code whose values are arrays. The array ``odd`` has a different pixel value."""

    def __init__(self, odd: int = -1) -> None:
        super().__init__()
        self.odd = odd

    def make(self, index: int, inputs: tuple[Any, ...]) -> NodeResult:
        return NodeResult(np.full((4, 4), 7 if index == self.odd else index, np.uint8), 16, 0.25)


def log_of(source: Callable[[], NodeCode], seed: int = 4) -> str:
    watched = Watched({"s": source, "o": Pictures}, links(SLOW))
    watched.run(CHAIN, {"s": "h1", "o": "h2", "t": "client"}, 8, driver=RandomMoves(moves=4, seed=seed))
    return watched.world.log_digest


def test_equal_worlds_have_equal_logs_and_different_worlds_have_different_logs() -> None:
    digest = log_of(Pictures)
    assert digest.startswith("sha256:")
    assert log_of(Pictures) == digest
    assert log_of(lambda: Pictures(odd=5)) != digest  # one value
    assert log_of(Pictures, seed=6) != digest  # other moves


def test_the_log_does_not_depend_on_records_or_validation() -> None:
    """The three worlds keep records, validate their invariants, or do neither."""
    logs = set()
    for records, validate in ((False, False), (True, False), (False, True)):
        config = WorldConfig("single", validate=validate)
        watched = Watched({"s": Pictures, "o": Pictures}, links(SLOW), config, records=records)
        watched.run(CHAIN, {"s": "h1", "o": "h2", "t": "client"}, 4, driver=RandomMoves(moves=2, seed=4))
        logs.add(watched.world.log_digest)
        assert bool(watched.records) == records
    assert len(logs) == 1
