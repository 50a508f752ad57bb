"""One trial of a fault plan: a small run in virtual time that the plan's seed draws, and its outcome.

The seed draws hosts, links, a tree (or a graph, see ``graphs``), a placement, moves of operators, and states. Every
output of an operator states the number of partitions that the operator has combined. A state that was lost, doubled or
mixed up shows in the delivered partitions, which have to be those of one machine. Operators with states that merge
remember all inputs. Inputs of an odd partition are shown from the next partition on, so for a while no other host has
them. A trial is

- *delivered*: All partitions arrived once, in order, with the right contents.
- *ended*: The run ended with one line that explains it, and the partitions delivered before are right. The line names a
  host that the plan has crashed or cut off from the client for long. Or it names two hosts with a link that the plan
  has cut for long.
- *abandoned*: The plan has crashed the client itself. The partitions delivered before are right.
- *failed*: Any other end. A trial also fails if a host that is up still knows of the run afterwards. It fails if a
  relocation has not exactly one outcome, "moved" or "stayed". It fails if a stream stood still in a fault that no
  message named in time.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from thalweg.emulation.virtual.config import WorldConfig
from thalweg.emulation.virtual.faults import LONGEST_S, OVER_ALL, FaultPlan, Late, OfMessage, Storm
from thalweg.emulation.virtual.faulty import FaultyWorld
from thalweg.experiments.drivers.random_moves import RandomMover
from thalweg.experiments.faults.expected_losses import (
    LIMITS,
    WAIT_S,
    crashed,
    excused,
    may_be_dead,
    may_be_lost,
    may_be_missed,
    to_be_asked_again,
)
from thalweg.experiments.faults.generated_plans import CLIENT, COMING_BYTES, Trial, code_of, trial_of
from thalweg.experiments.faults.graphs import ALLOW, BROKEN
from thalweg.experiments.faults.networks import Rerouter
from thalweg.experiments.faults.queries import GUESTS, Callers
from thalweg.experiments.faults.standstill import Standstill, Watch, lasting
from thalweg.experiments.faults.stripes import OneStripe
from thalweg.experiments.faults.trial_code import FREE, MERGING, Known, content
from thalweg.middleware.client.steering.replanning import Replanner
from thalweg.middleware.client.stripes.stripes import searches_of
from thalweg.middleware.dataflow import Dataflow, Reorderable
from thalweg.middleware.errors import UsageError, one_line
from thalweg.middleware.network.view import NetworkView
from thalweg.middleware.parcels import is_nothing
from thalweg.middleware.planning import CostParameters, Stripe, Task, get_cost_model
from thalweg.middleware.planning.problem.hints import Hints, propagate_hints
from thalweg.middleware.planning.registry import AGAIN, Driver, RandomMoves
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.absent_sources import gaps_of
from thalweg.middleware.protocol.adaptation import GlobalMoves
from thalweg.middleware.protocol.run_id import RunId
from thalweg.middleware.shell.packing import opened
from thalweg.operators.reference import reference_run

PATIENCE_S = LIMITS.liveness_s + LIMITS.lease_s + 60.0 + 2 * LONGEST_S  # longest time until a run ends
STARTUP_S = 0.005
SILENT_S = 2 * LIMITS.liveness_s + 15.0  # of a standstill in a fault without a message
EVERY = (1, 2, 4, 16)  # partitions from a replica to the next

SHARED = "which it shares, and so that had ended"  # in the error of a query that shared a node with an ended query
NOT_ALLOWED = "it has to be among the run's subscribers"
TOO_SLOW = "too slowly: the others have waited"  # also without faults: a guest's links may be the slowest
TOO_LATE = ("has left the run", "the run has no node", "the run is over", "has ended the run")  # for a subscription
GIVEN_UP = (
    "no vote of", "has ended it", "it was lost", "it was restarted", "it no longer knows", "has not answered for",
    "has been silent for", "is a way cut?",
    "has not come",  # the run has begun anew after the partition in the error (docs/explanation/failover.md)
)  # fmt: skip

Outcome = Literal["delivered", "ended", "abandoned", "failed"]


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a trial. ``kind`` and ``what`` say how it failed, or why it ended.

    - ``nothing``: values of graphs delivered as ``NOTHING``. ``missing``: how often a sink lost a source or got it
      back.
    - ``moves``: relocations by outcome and protocol. ``recoveries``: how often the run began anew.
    - ``shapes``: changes of the tree by outcome. ``queries``: queries of a graph by outcome. ``faults``: faults by
      kind.
    - ``silent_s``: longest part of a standstill that a fault lasted without a message.
    """

    seed: int
    outcome: Outcome
    kind: str = ""
    what: str = ""
    expected: int = 0
    delivered: int = 0
    nothing: int = 0
    missing: int = 0
    lost: int = 0
    duplicate: int = 0
    out_of_order: int = 0
    moves: dict[str, int] = {}
    recoveries: int = 0
    shapes: dict[str, int] = {}
    queries: dict[str, int] = {}
    faults: dict[str, int] = {}
    silent_s: float = 0.0
    events: int = 0
    digest: str = ""


# --- a trial ------------------------------------------------------------------------------------------


class _Log:
    """Partitions that the application received, with the expected values, and records of the hosts."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.indices: defaultdict[str, list[int]] = defaultdict(list)  # by sink
        self.known: Known = {}
        self.flows: dict[str, Dataflow] = {}  # by sink, the graph that leads to it
        self.queries: dict[str, int] = {}  # by sink
        self.former: defaultdict[str, list[Dataflow]] = defaultdict(list)  # by sink, earlier graphs with other sources
        self.first = dict.fromkeys(trial.dataflow.by_name, 0)  # partition, by node
        self.reference: dict[str, Iterator[Any]] = {}
        self._begin(0, trial.dataflow, trial.dataflow.by_name)
        self.right: defaultdict[str, list[Any]] = defaultdict(list)  # results of the references so far
        self.nothing = self.missing = 0
        self.wrong = ""
        self.moves: Counter[str] = Counter()
        self.shapes: Counter[str] = Counter()
        self.recoveries = 0
        self.settled: defaultdict[tuple[RunId, str, int], list[str]] = defaultdict(list)  # outcomes, by generation,
        # operator and version
        self.odd = ""
        self.watch = Watch(CLIENT)

    def _begin(self, query: int, flow: Dataflow, names: Iterable[str]) -> None:
        for sink in [name for name in names if name in flow.sinks]:
            below = flow.below(sink)
            self.flows[sink] = Dataflow(tuple([node for node in flow.nodes if node.name in below]))
            self.queries[sink] = query
            if self.trial.graph:
                self.reference[sink] = reference_run(self.flows[sink], allow=ALLOW, first=self.first)

    def on_attached(self, begun: e.QueryStarted) -> None:
        new = [name for name in begun.names.values() if name not in self.first]
        self.first |= dict.fromkeys(new, begun.first_index)
        self._begin(begun.query, begun.dataflow, new)

    def on_tree(self, flow: Dataflow) -> None:
        """Note a changed graph. If other partitions of a source are missing, expect the results of the new graph."""
        for sink in self.flows.keys() & set(flow.sinks) if self.trial.graph else ():
            below = flow.below(sink)
            now = Dataflow(tuple([node for node in flow.nodes if node.name in below]))
            if [*map(gaps_of, now.nodes)] != [*map(gaps_of, self.flows[sink].nodes)]:
                self.former[sink].append(self.flows[sink])
                self.flows[sink] = now
                self.reference[sink] = reference_run(now, allow=ALLOW, first=self.first)
                self.right[sink].clear()
                self.missing += 1

    def on_delivered(self, partition: e.Deliver, now: float) -> None:
        expected, value = self._expected(partition.sink, partition.index), partition.value
        if self.trial.graph:
            values = value if isinstance(value, tuple) else (value,)
            self.nothing += sum(map(is_nothing, values))
            value = tuple(map(opened, values)) if isinstance(value, tuple) else opened(value)
        if value != expected and not self.wrong and not self._was_so(partition.sink, partition.index, value):
            self.wrong = f"partition {partition.index} of {partition.sink} is {value}, not {expected}"
        self.indices[partition.sink].append(partition.index)
        self.watch.on_delivered(partition.sink, now)

    def _was_so(self, sink: str, index: int, value: Any) -> bool:
        """Return whether another client has received a partition from before a change of the graph."""
        former = self.former[sink] if self.queries[sink] < 0 else []
        place = index - self.first[sink]
        references = [reference_run(flow, allow=ALLOW, first=self.first) for flow in former]
        return any(value == next(itertools.islice(reference, place, None), None) for reference in references)

    def _expected(self, sink: str, index: int) -> Any:
        if not self.trial.graph:
            flow = self.trial.dataflow
            parts = tuple([content(flow, name, index, self.known) for name in flow.by_name[sink].inputs])
            return parts if len(parts) > 1 else parts[0]
        right = self.right[sink]
        place = index - self.first[sink]
        right += itertools.islice(self.reference[sink], max(0, place + 1 - len(right)))
        return right[place] if 0 <= place < len(right) else "the end"

    def length(self, sink: str) -> int:
        """Return the number of partitions of a sink: that of the shortest source below the sink."""
        flow, trial = self.flows[sink], self.trial
        if any(map(gaps_of, flow.nodes)):  # a missing source may have no end, or return after it
            right = self.right[sink]
            most = max(0, trial.partitions - self.first[sink] - len(right))
            with contextlib.suppress(ValueError):  # drawn to fail
                right += itertools.islice(self.reference[sink], most)
            return self.first[sink] + len(right)
        codes = [(name, flow.by_name[name].code) for name in flow.sources]
        lengths = [trial.lengths.get(name) or (code.params.get("length") if code else None) for name, code in codes]
        return min([trial.partitions, *[length for length in lengths if length]])

    def on_record(self, host: str, now: float, record: e.Record) -> None:
        self.watch.on_record(host, now, record)
        if record.kind == "relocated":
            detail = record.fields["detail"]
            node, version, outcome = record.fields["node"], detail["version"], detail["outcome"]
            self.moves[f"{outcome} {detail['protocol']}"] += 1
            if outcome not in ("moved", "stayed"):
                self.odd = f"{node} on its way from {host} ended as {outcome!r}"
            self.settled[record.run, node, version].append(outcome)
        elif record.kind == "recovered":
            self.recoveries += 1
        elif record.kind == "reshaped":
            self.shapes[record.fields["detail"]["outcome"]] += 1
        elif record.kind == "proposal" and record.fields["detail"]["outcome"] not in (
            "committed",
            "aborted",
            "superseded",
        ):
            self.odd = f"a proposal ended as {record.fields['detail']['outcome']!r}"

    def check_settled(self, world: FaultyWorld) -> str:
        """Return a line if a hand-over that began has not exactly one outcome, else an empty text.

        A host that crashes may leave no outcome.
        """
        for (run, node, version), hosts in world.begun.items():
            outcomes = self.settled[run, node, version]
            if len(outcomes) > 1:
                return f"{node}, version {version}, is recorded {len(outcomes)} times: {', '.join(outcomes)}"
            alive = [host.name for host in hosts if world.hosts[host.name] is host]
            if not outcomes and alive:
                return f"{node}, version {version}, began to leave host {alive[0]} and neither moved nor stayed"
        return ""


def run_trial(
    plan: FaultPlan, *, digest: bool = False, control_bytes: int | None = None
) -> tuple[TrialResult, tuple[OfMessage, ...]]:
    """Run the trial that the plan's seed draws, with the plan's faults. Return its result, and the faults of messages.

    ``control_bytes``: as in ``WorldConfig``. Raises UsageError for a plan that does not fit its trial.
    """
    trial = trial_of(plan)
    log = _Log(trial)
    config = WorldConfig(
        interface=trial.interface,
        startup_s=STARTUP_S,
        core=LIMITS,
        guests=GUESTS if trial.subscriptions else (),
        validate=True,
        ahead=plan.ahead,
        control_bytes=control_bytes,
    )
    world = FaultyWorld(
        trial.hosts,
        trial.links,
        partial(code_of, trial),
        plan,
        config,
        on_record=log.on_record,
        digest=digest,
    )
    world.patience_s = PATIENCE_S
    if plan.lasting:
        world.failover = m.Failover(every=EVERY[plan.seed % len(EVERY)], wait_s=WAIT_S)
    world.on_delivered, world.on_attached, world.on_tree = log.on_delivered, log.on_attached, log.on_tree
    callers = Callers(trial.queries, trial.leaves, trial.subscriptions, world)
    world.driver = partial(_each, [callers.on_delivered, *_drivers(trial, world)])
    _plan_moves(trial, world)
    world.ways = trial.joined.ways
    world.begin(callers.begin)
    problem: tuple[str, str] | None = None
    free = Reorderable((FREE, MERGING), (MERGING,))
    try:
        if trial.striped is not None:
            world.run_stripes(trial.striped, trial.partitions, trial.adaptation, reorderable=free)
        else:
            world.run(trial.dataflow, trial.placement, trial.partitions, trial.adaptation, reorderable=free)
    except UsageError:
        raise
    except Exception as error:  # a trial is to find every error of a core
        problem = type(error).__name__, f"{one_line(error)[:500]} (at {world.now:.3f} s)"
    return _result(plan, trial, world, log, callers, problem), tuple(world.done)


def _each(calls: Iterable[Callable[[], None]]) -> None:
    for call in calls:
        call()


def _drivers(trial: Trial, world: FaultyWorld) -> Iterator[Callable[[], None]]:
    """Yield the actions of the application after a partition: moves of operators, and choices of routes."""
    driver, free = trial.driver, (FREE, MERGING)
    if driver is not None and trial.striped is None:
        yield RandomMover(driver, world, world.names, free).on_delivered
    elif driver is not None and trial.striped is not None:
        for number, (tree, _) in enumerate(trial.striped.trees):
            several = len(tree.by_name[tree.sinks[0]].inputs) > 1  # a tree without one root keeps its shape
            options: Driver = RandomMoves(1000, driver.seed + number)
            if not several:
                options = msgspec.structs.replace(driver, seed=driver.seed + number)
            yield RandomMover(options, OneStripe(world, number), world.names, (FREE,)).on_delivered
        if driver.moves:
            yield RandomMover(RandomMoves(driver.moves, driver.seed), OneStripe(world, None), world.names).on_delivered
    if trial.joined.networks and not isinstance(trial.adaptation, GlobalMoves):
        yield Rerouter(world.plan.seed, trial.joined.networks, world).on_delivered


def _plan_moves(trial: Trial, world: FaultyWorld) -> None:
    """Let the client plan moves if the trial has ``GlobalMoves``."""
    if not isinstance(trial.adaptation, GlobalMoves):
        return
    search = _search(trial, trial.adaptation)
    if trial.striped is None:
        world.answer = lambda command: _with_queries(search, trial, world.attached).answer(command)
        return
    shares = trial.striped.shares
    stripes = [Stripe(*tree, share) for tree, share in zip(trial.striped.trees, shares, strict=True)]
    searches = searches_of(search, stripes)

    def answer(command: e.RequestPlan) -> e.PlanReady:
        stripe = command.run.stripe
        assert stripe is not None
        return searches[stripe].answer(command)

    world.answer = answer


def _hints(trial: Trial, dataflow: Dataflow) -> Hints:
    sizes = {name: float(trial.sizes.get(name, COMING_BYTES)) for name in dataflow.sources}
    return propagate_hints(dataflow, sizes, partial(code_of, trial))


def _with_queries(search: Replanner, trial: Trial, attached: Mapping[int, e.QueryStarted]) -> Replanner:
    """Return the replanner with the hints of the queries that have begun, as ``client.Run`` has them."""
    for query, begun in attached.items():
        search = search.with_hints(_hints(trial, trial.queries[query - 1].dataflow), begun.names)
    return search


def _search(trial: Trial, options: GlobalMoves) -> Replanner:
    dataflow, hints = trial.dataflow, _hints(trial, trial.dataflow)
    model = get_cost_model("critical-path")
    task = Task((dataflow,), trial.hosts, NetworkView({}), hints, CostParameters(startup_s=STARTUP_S))
    task = task.but(networks=trial.joined.networks, hops=2)
    return Replanner(task, model, options, AGAIN)


class _Counts(NamedTuple):
    """Numbers of partitions over all sinks: expected, missing, delivered, duplicate and out of order."""

    expected: int
    missing: int
    delivered: int
    duplicate: int
    out_of_order: int


def _result(
    plan: FaultPlan, trial: Trial, world: FaultyWorld, log: _Log, callers: Callers, problem: tuple[str, str] | None
) -> TrialResult:
    counts = _count_partitions(world, log, callers)
    expected, _, delivered, duplicate, out_of_order = counts
    gone = CLIENT in crashed(plan) and delivered < expected
    silence = None if gone else _longest_silence(plan, world, log, callers)
    problem = problem or _problem(plan, world, log, counts) or _problem_of_silence(plan, silence)
    if problem is None and not world.failed and not gone:
        problem = _problem_of_queries(plan, world, log, callers)
    outcome: Outcome = "failed" if problem else "ended" if world.failed else "abandoned" if gone else "delivered"
    kind, reason = problem or (_how_ended(world), world.failed or "")
    told_late = kind == "silent" and world.failed is not None  # a run that ended has lost nothing
    return TrialResult(
        seed=plan.seed,
        outcome=outcome,
        kind=kind,
        what=reason,
        expected=expected,
        delivered=delivered,
        nothing=log.nothing,
        missing=log.missing,
        lost=expected - delivered if outcome in ("delivered", "failed") and not told_late else 0,
        duplicate=duplicate,
        out_of_order=out_of_order,
        moves=dict(sorted(log.moves.items())),
        recoveries=log.recoveries,
        shapes=dict(sorted(log.shapes.items())),
        queries=callers.counts(),
        faults=_count_faults(plan, world),
        silent_s=0.0 if silence is None else round(silence.unnamed_s, 3),
        events=world.events,
        digest=world.log_digest if world._digest is not None else "",
    )


def _count_partitions(world: FaultyWorld, log: _Log, callers: Callers) -> _Counts:
    """Return the numbers of partitions. Of a query that left or failed, only its delivered partitions are expected."""
    expected, missing, delivered, duplicate, out_of_order = 0, 0, 0, 0, 0
    stayed = {0, *callers.asked} - callers.left - world.queries_failed.keys()
    stayed |= {log.queries[sink] for sink in callers.lasting}
    for sink in log.flows:
        high = log.first[sink]
        again, end = 0, max(high, log.length(sink))
        for index in log.indices[sink]:
            again += index < high
            out_of_order += index != high
            high = max(high, index + 1)
        here = len(log.indices[sink]) - again
        length = end - log.first[sink] if log.queries[sink] in stayed else here
        expected += length
        missing += abs(length - here)
        delivered, duplicate = delivered + here, duplicate + again
    return _Counts(expected, missing, delivered, duplicate, out_of_order)


def _count_faults(plan: FaultPlan, world: FaultyWorld) -> dict[str, int]:
    """Return the number of faults by kind: timed faults of the plan, and faults of single messages."""
    timed = [fault for fault in plan.faults if not isinstance(fault, OfMessage | OVER_ALL)]
    counts = Counter(fault.kind for fault in (*timed, *world.done))
    return dict(sorted(counts.items()))


def _longest_silence(plan: FaultPlan, world: FaultyWorld, log: _Log, callers: Callers) -> Standstill | None:
    """Return the standstill of one of the first query's sinks that a fault lasted longest without a message."""
    ends = [(at_s, world.queries_failed[query]) for query, at_s in world.queries_failed_s.items() if query == 0]
    if world.failed is not None and world.failed_s is not None:
        ends.append((world.failed_s, world.failed))
    for at_s, why in ends:
        log.watch.on_failed(at_s, why)
    ended_s = min([at_s for at_s, _ in ends], default=world.now)
    standstills: list[Standstill] = []
    for sink in [name for name, query in log.queries.items() if query == 0 and 0 not in callers.left]:
        got_s, whole = log.watch.got_s[sink], len(set(log.indices[sink])) >= log.length(sink)
        over_s = got_s[-1] if whole and got_s else ended_s
        standstills += log.watch.standstills(lasting(plan, world.names), [sink], over_s)
    return max(standstills, key=lambda standstill: standstill.unnamed_s, default=None)


def _silent_s(plan: FaultPlan) -> float:
    """Return for how long a standstill may last without a message.

    If messages come late, an answer of a host that is lost by now still counts. In a storm, a step takes more tries in
    proportion to the tries that the storm spoils.
    """
    late_s = max([fault.within_s for fault in plan.faults if isinstance(fault, Late)], default=0.0)
    storms = [(1.0 - fault.drop) * (1.0 - fault.unconfirmed) for fault in plan.faults if isinstance(fault, Storm)]
    return late_s + SILENT_S / min(storms, default=1.0)


def _problem_of_silence(plan: FaultPlan, silence: Standstill | None) -> tuple[str, str] | None:
    """Return the kind and a line if a standstill lasted too long without a message."""
    if silence is None or silence.unnamed_s <= _silent_s(plan):
        return None
    still = f"sink {silence.sink} got nothing from {silence.from_s:.1f} to {silence.until_s:.1f} s"
    return "silent", f"{still}, while a fault lasted for {silence.unnamed_s:.1f} s that no message named"


def _problem_of_queries(plan: FaultPlan, world: FaultyWorld, log: _Log, callers: Callers) -> tuple[str, str] | None:
    """Return the kind and a line of the first unexplained error of a query or subscription, or None."""
    suspects = may_be_lost(plan, world.names)
    for query, why in world.queries_failed.items():
        if not _query_may_fail(plan, world, why, suspects) and query not in callers.left:
            return "query", f"query {query} failed: {why}"
    for query in callers.asked - callers.left - world.queries_failed.keys() - world.attached.keys():
        return "query", f"query {query} never began"
    no_guests = bool(log.watch.no_client)  # the client that resumes the run knows no guests
    for (guest, number), why in world.dismissed.items():
        if not _subscription_may_fail(plan, world, why, suspects) and not (no_guests and NOT_ALLOWED in why):
            return "query", f"subscription {number} of {guest} failed: {why}"
    for guest, number in callers.subscribed - callers.parted - world.dismissed.keys() - world.subscribed.keys():
        if guest not in world.crashed_s:
            return "query", f"subscription {number} of {guest} never began"
    return None


def _query_may_fail(plan: FaultPlan, world: FaultyWorld, why: str, suspects: Collection[str]) -> bool:
    """Return whether the plan's faults or the end of the first query explain a query's error."""
    if BROKEN in why or excused(plan, world, why, suspects) or (plan.faults and "no vote of" in why):
        return True
    if "nothing in common" in why and 0 not in world.open:  # the shared nodes have left with the first query
        return True
    left_out = {host for link in may_be_dead(plan, world.names) for host in link} if plan.lasting else set()
    return "has no part in the run" in why and any(f"host {host!r}" in why for host in left_out)


def _subscription_may_fail(plan: FaultPlan, world: FaultyWorld, why: str, suspects: Collection[str]) -> bool:
    """Return whether the plan's faults, or when and how fast the guest asked, explain a subscription's error."""
    if BROKEN in why or TOO_SLOW in why or any(text in why for text in TOO_LATE):
        return True
    return excused(plan, world, why, suspects) or bool(plan.faults and any(text in why for text in GIVEN_UP))


def _problem(plan: FaultPlan, world: FaultyWorld, log: _Log, counts: _Counts) -> tuple[str, str] | None:
    """Return the kind and a line of the first error of a trial, or None."""
    expected, delivered = counts.expected, counts.expected - counts.missing
    if log.wrong:
        return "contents", log.wrong
    if counts.duplicate or counts.out_of_order:
        return "order", f"{counts.duplicate} partitions came twice, {counts.out_of_order} out of order"
    if world.stalled:
        runs = [run for host in world.hosts.values() for run in host.core.runs.values()]
        nodes = sorted(repr(node) for run in runs for node in run.flow.nodes.values())
        return "stalled", f"no end at {world.now:.0f} s, after {delivered} of {expected} partitions: {' '.join(nodes)}"
    if world.failed and not _run_may_end(plan, world, world.failed):
        return "ended", f"ended though no such host had gone: {world.failed}"
    if not world.failed and delivered < expected and CLIENT not in crashed(plan):
        return "lost", f"delivered {delivered} of {expected} partitions"
    if left := _left_over(world):
        return "left", left
    odd = log.odd or log.check_settled(world)
    return ("relocation", odd) if odd else None


def _run_may_end(plan: FaultPlan, world: FaultyWorld, why: str) -> bool:
    """Return whether the plan's faults, or the end of the first query, explain the error that ended the run."""
    if 0 not in world.open and (BROKEN in why or SHARED in why):  # an error in nodes that only later queries use
        return True
    suspects = may_be_lost(plan, world.names) - to_be_asked_again(plan, world)
    if plan.lasting and world.open:  # a run that lingers for other clients alone does not begin anew
        suspects = may_be_missed(plan, world)
    return excused(plan, world, why, suspects)


def _left_over(world: FaultyWorld) -> str:
    """Return a line about the first host that still has state or code of the run."""
    for host in world.hosts.values():
        core = host.core
        tables = {
            "the run": core.runs,
            "the run's end": core.coordinator.led,
            "links' pasts": core.links.monitor.histories,
            "the stream": core._stripes.led,
        }
        left = [name for name, table in tables.items() if table]
        if left or host.code:
            return f"host {host.name} still has {', '.join(left) or 'code'}"
    return ""


def _how_ended(world: FaultyWorld) -> str:
    """Return ``unheard`` if the client, which knew of no move, ended the run for a host that held nothing any more."""
    for name in world.fallen:
        held = [newest for known, newest in world.at_failure.values() if known == name]
        if world.failed and world.failed.startswith(f"host {name!r}, which holds") and held and name not in held:
            return "unheard"
    return ""
