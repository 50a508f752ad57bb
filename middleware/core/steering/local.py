"""What decides for one operator while the data flows, at its host: the local algorithm.

Rules:

- *Local* (Ranganathan et al., section 2.3): at the end of an operator's epoch its host decides (``epoch``), and hands
  it over if it is to move. While a proposal or a hand-over is under way it leaves the operator alone.
- Nothing here stops the flow. Links that nobody knows are probed meanwhile, and it is decided when they are known or
  waited for long enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from thalweg.middleware.core.monitoring.prober import SHARE_WAITING, TRIES, too_slow_bps
from thalweg.middleware.core.relocation.proposal import MemberState
from thalweg.middleware.core.steering import epochs as epoch
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.network.view import Link
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.messages import BookState

if TYPE_CHECKING:
    from thalweg.middleware.core.host import HostCore
    from thalweg.middleware.core.run import RunState


class _Choice:
    """A decision under way that waits for links."""

    def __init__(self, verdict: epoch.Verdict, hosts: list[str]) -> None:
        self.verdict, self.hosts = verdict, hosts
        self.waiting: frozenset[Link] = frozenset()
        self.asked: frozenset[Link] = frozenset()
        self.asked_s = 0.0  # since when these are waited for
        self.tries = 0


class LocalSteering:
    """Every host's part of the local algorithm, for the operators that are here."""

    def __init__(self, core: HostCore) -> None:
        self.core = core
        self.choices: dict[tuple[str, str], _Choice] = {}  # (run, operator)
        self.waves: dict[str, tuple[Dataflow, dict[str, int], int]] = {}

    def close(self, run_id: str) -> None:
        self.waves.pop(run_id, None)
        for key in [key for key in self.choices if key[0] == run_id]:
            del self.choices[key]

    def keep(self, run: RunState, name: str, state: BookState | None) -> None:
        """Count epochs for an operator that is here, from where its last host left off."""
        options, dataflow = run.install.moves, run.dataflow
        assert options is not None
        if dataflow.by_name[name].kind != "operator":
            return
        of, waves, count = self.waves.get(run.id, (None, {}, 0))
        if of is not dataflow:
            waves, count = epoch.waves_of(dataflow)
            self.waves[run.id] = dataflow, waves, count
        if state is None:
            book = epoch.EpochBook(options, name, waves[name], count, run.opened_s)
        else:
            book = epoch.EpochBook.from_state(options, name, waves[name], count, run.opened_s, state)
        run.books[name] = book
        self._arm(run, book)

    def marks(self, run: RunState, consumer: str, producer: str) -> tuple[bool, bool]:
        """What a demand says: the producer's last partition came last; the consumer is on the critical path."""
        node, book = run.nodes[consumer], run.books.get(consumer)
        return node.last == producer, node.node.kind == "sink" if book is None else book.critical

    def _arm(self, run: RunState, book: epoch.EpochBook) -> None:
        self.core.emit(e.SetTimer(f"epoch {run.id} {book.node}", book.due_s(self.core.now)))

    def on_timer(self, rest: str) -> None:
        """An operator's epoch is over."""
        run_id, _, name = rest.partition(" ")
        run = self.core.runs.get(run_id)
        book = run.books.get(name) if run is not None else None
        if run is None or book is None:
            return
        verdict = book.close_epoch()
        self._arm(run, book)
        producers = [run.locations[producer].host for producer in run.nodes[name].node.inputs]
        consumer = run.locations[run.consumers[name][0]].host
        hosts = epoch.candidates(
            book.options, name, verdict.epoch, producers, consumer, self.core.host, sorted(run.hosts)
        )
        choice = _Choice(verdict, hosts)
        why = self._hindrance(run, name, verdict)
        if why:
            self._record(run, name, choice, None, why)
        else:
            self._decide(run, name, choice, final=False)

    def _hindrance(self, run: RunState, name: str, verdict: epoch.Verdict) -> str:
        node = run.nodes[name]
        if not verdict.considered:
            return "not critical"
        if node.node.pinned is not None:
            return "pinned"
        if name in run.leaving or run.member.state is not MemberState.FREE:
            return "a move is under way"
        if any((name, producer) not in run.sizes for producer in node.node.inputs) or node.size_bytes is None:
            return "nothing has come through yet"
        return ""

    def _decide(self, run: RunState, name: str, choice: _Choice, *, final: bool) -> None:
        core, node, book = self.core, run.nodes[name], run.books[name]
        assert node.size_bytes is not None
        inputs = [(run.locations[producer].host, float(run.sizes[name, producer])) for producer in node.node.inputs]
        in_use = {(source, core.host) for source, _ in inputs}
        in_use.add((core.host, run.locations[run.consumers[name][0]].host))
        slow_bps = too_slow_bps(core.now - choice.asked_s)

        def rate(source: str, target: str) -> float | None:
            if source == target:
                return float("inf")
            estimate = core.monitor.estimate(source, target, core.now)
            if estimate is None and final and (source, target) in in_use:
                estimate = core.monitor.latest(source, target)
            return estimate.rate_bps if estimate is not None else slow_bps if final else None

        decision = epoch.decide(
            book.options,
            [host for host in choice.hosts if host in run.hosts],
            core.host,
            inputs,
            (run.locations[run.consumers[name][0]].host, float(node.size_bytes)),
            run.compute_s.get(name, 0.0),
            rate,
            run.state_bytes.get(name, 0),
            startup_s=book.options.startup_s,
        )
        unknown = decision.needs - choice.asked
        if decision.needs and unknown and not final:
            choice.waiting, choice.asked, choice.tries = decision.needs, choice.asked | unknown, 1
            choice.asked_s = core.now
            self.choices[run.id, name] = choice
            core.steering.probe(run, unknown)
            self._wait(run, name)
            return
        self.choices.pop((run.id, name), None)
        if decision.needs:
            self._decide(run, name, choice, final=True)
            return
        why = decision.why
        if decision.move:
            obstacle = core.mover.obstacle(run, name, decision.best)
            if obstacle:
                why = obstacle
            else:
                core.mover.begin(run, name, decision.best, protocol="epoch", reason=why)
        self._record(run, name, choice, decision, why)

    def on_estimate(self, link: Link) -> None:
        """A link was measured; decisions that wait for it, and for no other, go on."""
        for (run_id, name), choice in list(self.choices.items()):
            if link in choice.waiting:
                choice.waiting -= {link}
                run = self.core.runs.get(run_id)
                if not choice.waiting:
                    self._go_on(run_id, name, choice, final=False)
                elif run is not None:
                    self._wait(run, name)

    def on_expired(self, rest: str) -> None:
        """Links were waited for long enough."""
        run_id, _, name = rest.partition(" ")
        run, choice = self.core.runs.get(run_id), self.choices.get((run_id, name))
        if run is None or choice is None:
            return
        if choice.tries < TRIES and name in run.books:
            choice.tries += 1
            self.core.steering.probe(run, choice.waiting)
            self._wait(run, name)
        else:
            self._go_on(run_id, name, choice, final=True)

    def _wait(self, run: RunState, name: str) -> None:
        options = run.install.moves
        assert options is not None
        patience_s = min(self.core.config.probe_s, SHARE_WAITING * options.period_s)
        self.core.emit(e.SetTimer(f"decide {run.id} {name}", self.core.now + patience_s))

    def _go_on(self, run_id: str, name: str, choice: _Choice, *, final: bool) -> None:
        run = self.core.runs.get(run_id)
        if run is None or name not in run.books or self._hindrance(run, name, choice.verdict):
            self.choices.pop((run_id, name), None)
            return
        self._decide(run, name, choice, final=final)

    def _record(self, run: RunState, name: str, choice: _Choice, decision: epoch.Decision | None, why: str) -> None:
        if not self.core.recording:
            return
        verdict = choice.verdict
        detail: dict[str, Any] = {
            "sends": verdict.sends,
            "later": verdict.later,
            "critical": verdict.critical,
            "decision": "move" if decision is not None and decision.move and name in run.leaving else "stay",
            "why": why,
        }
        if decision is not None:
            costs = {host: cost_s for host, cost_s in decision.costs.items() if cost_s < float("inf")}
            detail |= {"candidates": costs, "best": decision.best, "links": self._known(choice)}
        current_s = None if decision is None or decision.current_s == float("inf") else decision.current_s
        self.core.record(run.id, "epoch", node=name, index=verdict.epoch, value=current_s, detail=detail)

    def _known(self, choice: _Choice) -> dict[str, list[float]]:
        """What the decision rested on: the links between its candidates that are known."""
        now, known = self.core.now, {}
        for a in choice.hosts:
            for b in choice.hosts:
                each = self.core.monitor.estimate(a, b, now) if a != b else None
                if each is not None:
                    known[f"{a}>{b}"] = [each.rate_bps, each.count, each.spread_bps, now - each.measured_at_s]
        return known
