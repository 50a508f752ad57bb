"""Placement decisions for one operator at its host, at the end of the operator's epochs: the local algorithm.

Rules:

R1. *Local* (Ranganathan et al., section 2.3): at the end of an operator's epoch (``epochs``), its host decides where
    the operator should be (``neighbourhood``). If the operator should move, the host hands it over. While a proposal or
    a hand-over is under way, the operator stays.
R2. No decision stops the flow. Unknown links are probed meanwhile. The decision follows when the links are known, or
    have been awaited long enough.
R3. Links to subscribers are not probed. A subscriber's sink counts as if it were at the client.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from thalweg.middleware.core.barrier.member import Member
from thalweg.middleware.core.context.notes import LinkMeasured, Notes
from thalweg.middleware.core.context.outbox import RunContext, Timer
from thalweg.middleware.core.flow.epochs import EpochVerdict
from thalweg.middleware.core.flow.flow import FlowParts
from thalweg.middleware.core.measuring.prober import SHARE_WAITING, TRIES, too_slow_bps
from thalweg.middleware.core.moving.departures import Departures
from thalweg.middleware.core.parts.handlers import Handlers
from thalweg.middleware.core.parts.host_services import HostServices
from thalweg.middleware.core.parts.part import Need, Part, RunParts
from thalweg.middleware.core.steering.neighbourhood import Decision, Neighbourhood, candidates, decide, links_between
from thalweg.middleware.network.view import Link, Pair


class _Choice:
    """Decision about one operator, pending until links are measured."""

    def __init__(self, verdict: EpochVerdict, hosts: list[str]) -> None:
        self.verdict, self.hosts = verdict, hosts
        self.waiting: frozenset[Link] = frozenset()
        self.asked: frozenset[Link] = frozenset()
        self.asked_s = 0.0  # time of the first request for these links
        self.tries = 0


class EpochSteering(Part):
    """Local algorithm of one host, for the operators of one run on the host."""

    NEEDED_FOR = Need.EPOCHS

    @classmethod
    def of(cls, parts: RunParts) -> EpochSteering:
        return cls(
            parts.context,
            parts.shared,
            FlowParts.of(parts),
            parts.get(Departures),
            parts.get(Member),
        )

    def __init__(
        self, context: RunContext, shared: HostServices, stream: FlowParts, departures: Departures, member: Member
    ) -> None:
        self._out, self._limits, self._options = context.out, context.limits, context.by_epochs
        self._client = context.install.client
        self._monitor, self._prober = shared.monitor, shared.prober
        self._tree, self._directory, self._books, self._flow = (
            stream.tree, stream.directory, stream.books, stream.flow,
        )  # fmt: skip
        self._departures, self._member = departures, member
        self.choices: dict[str, _Choice] = {}

    def _consumers_hosts(self, name: str) -> list[str]:
        hosts = [self._directory.locations[consumer].host for consumer in self._tree.consumers[name]]
        guests = self._directory.subscribers
        # R3: a subscriber's sink counts as at the client, so no link to a subscriber is probed
        return [self._client if host in guests else host for host in hosts] if guests else hosts

    def on_epoch(self, name: str) -> Notes:
        """Close an epoch of an operator, and decide whether the operator moves (R1)."""
        book = self._books.of.get(name)
        if book is None:
            return
        verdict = book.close_epoch()
        self._books.arm(book)
        producers = [self._directory.locations[producer].host for producer in self._flow.nodes[name].node.inputs]
        hosts = candidates(
            book.options,
            name,
            verdict.epoch,
            producers,
            self._consumers_hosts(name),
            self._out.host,
            sorted(self._directory.hosts),
        )
        choice = _Choice(verdict, hosts)
        why = self._hindrance(name, verdict)
        if why:
            self._record(name, choice, None, why)
        else:
            yield from self._decide(name, choice, final=False)

    def _hindrance(self, name: str, verdict: EpochVerdict) -> str:
        node = self._flow.nodes[name]
        if not verdict.considered:
            return "not critical"
        if node.node.pinned is not None:
            return "pinned"
        if name in self._departures.leaving or self._member.busy:
            return "a move is under way"
        if any((name, producer) not in self._flow.sizes for producer in node.node.inputs) or node.size_bytes is None:
            return "nothing has come through yet"
        return ""

    def _rates_bps(self, pairs: Iterable[Pair], now: float) -> dict[Pair, float]:
        """Return the rates of the links with a valid estimate."""
        estimates = {pair: self._monitor.estimate(pair, now) for pair in pairs}
        return {pair: estimate.rate_bps for pair, estimate in estimates.items() if estimate is not None}

    def _decide(self, name: str, choice: _Choice, *, final: bool) -> Notes:
        here, now, monitor = self._out.host, self._out.now, self._monitor
        node, options, locations = self._flow.nodes[name], self._books.of[name].options, self._directory.locations
        assert node.size_bytes is not None
        inputs = [(locations[producer].host, float(self._flow.sizes[name, producer])) for producer in node.node.inputs]
        outputs = [(host, float(node.size_bytes)) for host in self._consumers_hosts(name)]
        in_use = {(source, here) for source, _ in inputs} | {(here, target) for target, _ in outputs}
        hosts = [host for host in choice.hosts if host in self._directory.hosts]
        pairs = links_between((here, *hosts), inputs, outputs) | {(here, host) for host in hosts}
        rates_bps = self._rates_bps(pairs, now)
        if final:  # R2: a link that is still unknown counts as slow, or with its last estimate if it is in use
            latest = {pair: monitor.latest(pair) for pair in pairs & in_use - rates_bps.keys()}
            known = {pair: estimate.rate_bps for pair, estimate in latest.items() if estimate is not None}
            rates_bps = dict.fromkeys(pairs, too_slow_bps(now - choice.asked_s)) | known | rates_bps
        decision = decide(
            options,
            hosts,
            here,
            Neighbourhood(
                inputs,
                outputs,
                rates_bps,
                self._flow.compute_s.get(name, 0.0),
                self._departures.state_bytes.get(name, 0),
                options.startup_s,
            ),
        )
        unknown = decision.needs - choice.asked
        if decision.needs and unknown and not final:  # R2: unknown links are probed before the decision
            choice.waiting, choice.asked, choice.tries = decision.needs, choice.asked | unknown, 1
            choice.asked_s = now
            self.choices[name] = choice
            yield from self._probe(unknown)
            self._wait(name)
            return
        self.choices.pop(name, None)
        if decision.needs:
            yield from self._decide(name, choice, final=True)
            return
        why = decision.why
        if decision.move:
            obstacle = self._departures.obstacle(name, decision.best)
            if obstacle:
                why = obstacle
            else:
                yield from self._departures.begin(name, decision.best, protocol="epoch", reason=why)
        self._record(name, choice, decision, why)

    def _probe(self, links: frozenset[Link]) -> Notes:
        return self._prober.measure(self._out.run, self._directory.reachable(), links)

    def on_measured(self, note: LinkMeasured) -> Notes:
        """Continue the decisions for which a measured link was the last missing link."""
        for name, choice in list(self.choices.items()):
            if note.link in choice.waiting:
                choice.waiting -= {note.link}
                if choice.waiting:
                    self._wait(name)
                else:
                    yield from self._go_on(name, choice, final=False)

    def on_expired(self, name: str) -> Notes:
        """Request the missing links of a decision again, or decide without them (R2)."""
        choice = self.choices.get(name)
        if choice is None:
            return
        if choice.tries < TRIES and name in self._books.of:
            choice.tries += 1
            yield from self._probe(choice.waiting)
            self._wait(name)
        else:
            yield from self._go_on(name, choice, final=True)

    def _wait(self, name: str) -> None:
        assert self._options is not None
        patience_s = min(self._limits.probe_s, SHARE_WAITING * self._options.period_s)
        self._out.wake(Timer.DECIDE, self._out.now + patience_s, name)

    def _go_on(self, name: str, choice: _Choice, *, final: bool) -> Notes:
        if name not in self._books.of or self._hindrance(name, choice.verdict):
            self.choices.pop(name, None)
        else:
            yield from self._decide(name, choice, final=final)

    def _record(self, name: str, choice: _Choice, decision: Decision | None, why: str) -> None:
        if not self._out.recording:
            return
        verdict = choice.verdict
        moves = decision is not None and decision.move and name in self._departures.leaving
        detail: dict[str, Any] = {
            "sends": verdict.sends,
            "later": verdict.later,
            "critical": verdict.critical,
            "decision": "move" if moves else "stay",
            "why": why,
        }
        if decision is not None:
            costs = {host: cost_s for host, cost_s in decision.costs.items() if cost_s < float("inf")}
            detail |= {"candidates": costs, "best": decision.best, "links": self._known(choice)}
        current_s = None if decision is None or decision.current_s == float("inf") else decision.current_s
        self._out.record("epoch", node=name, index=verdict.epoch, value=current_s, detail=detail)

    def _known(self, choice: _Choice) -> dict[str, list[float]]:
        """Return the estimates of links between the candidates of a decision, for its record.

        An estimate is a list of rate, number of samples, spread and age.
        """
        now, known = self._out.now, {}
        for a in choice.hosts:
            for b in choice.hosts:
                estimate = self._monitor.estimate((a, b), now) if a != b else None
                if estimate is not None:
                    known[f"{a}>{b}"] = [
                        estimate.rate_bps,
                        estimate.count,
                        estimate.spread_bps,
                        now - estimate.measured_at_s,
                    ]
        return known

    HANDLERS = Handlers(
        notes={LinkMeasured: on_measured},
        timers={Timer.EPOCH: on_epoch, Timer.DECIDE: on_expired},
    )
