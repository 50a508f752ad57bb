"""What decides on moves while the data flows: the client for all (global, random), or every operator's host (local).

Rules:

- Nothing here stops the flow. The planner itself runs elsewhere (``Plan`` … ``Planned``); links that it needs and
  nobody knows are probed meanwhile, and it is asked again when they are known or waited for long enough.
- *Global* (Ranganathan et al., section 2.2): once a period the client plans from the present placement, with what the
  monitor knows and probes, and proposes what came out to the barrier. While a proposal is under way it does not plan.
- *Local* (section 2.3): at the end of an operator's epoch its host decides (``epoch``), and hands it over if it is to
  move. While a proposal or a hand-over is under way it leaves the operator alone.
- *Random moves* are a planner for tests: at every delivery operators move somewhere, by both protocols in turn: several
  by a proposal, and while that is under way one more at a time on its own. *Random reshapes* propose other trees, too.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from thalweg.middleware import epoch
from thalweg.middleware import events as e
from thalweg.middleware import messages as m
from thalweg.middleware.adaptation import MIN_PERIOD_S, Adaptation, GlobalMoves, RandomMoves, RandomReshapes
from thalweg.middleware.dataflow import Dataflow
from thalweg.middleware.history import History, Past, Weather
from thalweg.middleware.network_view import Link, LinkEstimate
from thalweg.middleware.proposal import Change, Part
from thalweg.middleware.shuffling import shuffled

if TYPE_CHECKING:
    from thalweg.middleware.host_core import HostCore
    from thalweg.middleware.run_state import RunState


SHARE_WAITING = 0.25  # of a period, without news of any link: those that are left are too slow to plan with
TRIES = 2  # to ask for links: a request may be lost


class _Search:
    """A planning under way: what it knows, and the links it waits for."""

    def __init__(self, now: float, view: dict[Link, LinkEstimate]) -> None:
        self.begun_s = now
        self.view = view
        self.waiting: frozenset[Link] = frozenset()
        self.asked: frozenset[Link] = frozenset()
        self.asked_s = now  # since when these are waited for
        self.tries = 0
        self.rounds = 0


class _Dice:
    """Numbers that depend on a seed only; a core has no chance of its own."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rolled = 0

    def below(self, limit: int) -> int:
        """Uniform in ``range(limit)``."""
        self._rolled += 1
        text = f"{self._seed} {self._rolled}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") % limit

    def sample(self, names: list[str], count: int) -> list[str]:
        """So many of them, in any order."""
        left = list(names)
        return [left.pop(self.below(len(left))) for _ in range(count)]


class _Random:
    """The random mover's book: how many have moved, who is on the move, and whose turn it is."""

    def __init__(self, options: RandomMoves | RandomReshapes) -> None:
        self.dice = _Dice(options.seed)
        self.limit = options.moves
        self.reshapes = options.reshapes if isinstance(options, RandomReshapes) else 0  # that are left
        self.moved = 0
        self.moving: dict[str, float] = {}  # operator -> when to give up waiting for it


class Steering:
    """The client's part: what the runs of this host's application do on their own."""

    def __init__(self, core: HostCore) -> None:
        self.core = core
        self.adaptations: dict[str, Adaptation] = {}
        self.searches: dict[str, _Search] = {}
        self.random: dict[str, _Random] = {}
        self.overdue: set[str] = set()  # runs whose period was over while a proposal was under way
        self.weather: dict[str, Weather] = {}  # as the planner last read it

    def open(
        self,
        run_id: str,
        adaptation: Adaptation | None,
        known: Mapping[Link, LinkEstimate] = {},
        *,
        since_s: float = -math.inf,
    ) -> None:
        """A run begins; ``known``: of links, and of what was measured before ``since_s`` nothing else."""
        if adaptation is not None:
            self.adaptations[run_id] = adaptation
        if isinstance(adaptation, GlobalMoves) and adaptation.horizon_s is not None:
            monitor = self.core.monitor
            known = {**known, **monitor.view(self.core.now)}
            monitor.histories[run_id] = History(known, most=monitor.config.max_links, since_s=since_s)
        if isinstance(adaptation, RandomMoves | RandomReshapes):
            self.random[run_id] = _Random(adaptation)

    def close(self, run_id: str) -> None:
        for table in (self.adaptations, self.searches, self.random, self.weather, self.core.monitor.histories):
            table.pop(run_id, None)
        self.overdue.discard(run_id)

    def on_ready(self, run_id: str) -> None:
        """Every host that is needed has installed the run: the first period begins."""
        adaptation = self.adaptations.get(run_id)
        if isinstance(adaptation, GlobalMoves):
            self.core.emit(e.SetTimer(f"plan {run_id}", self.core.now + adaptation.period_s))

    # --- global ---------------------------------------------------------------------------------------

    def on_timer(self, run_id: str) -> None:
        """A period is over, or the links asked for have been waited for long enough."""
        run, adaptation = self.core.runs.get(run_id), self.adaptations.get(run_id)
        if run is None or not isinstance(adaptation, GlobalMoves):
            return
        search = self.searches.get(run_id)
        if search is not None:
            self._give_up_waiting(run, search)
        elif run.proposer.change is not None:
            self.overdue.add(run_id)
        else:
            view = {} if run_id in self.core.monitor.histories else self.core.monitor.view(self.core.now)
            search = self.searches[run_id] = _Search(self.core.now, view)
            self._plan(run, search)

    def _patience_s(self, run: RunState) -> float:
        """How long links are waited for at a time."""
        adaptation = self.adaptations[run.id]
        assert isinstance(adaptation, GlobalMoves)
        return min(self.core.config.probe_s, SHARE_WAITING * adaptation.period_s)

    def _plan(self, run: RunState, search: _Search) -> None:
        placement = self._where(run)
        dataflow = None if run.dataflow is run.install.dataflow else run.dataflow
        history, past, view = self.core.monitor.histories.get(run.id), None, search.view
        if history is not None:
            weather = self.weather.get(run.id)
            past = Past(history.samples(), self.core.now, search.asked, search.rounds, weather)
            view = {link: estimate for link, estimate in view.items() if not estimate.count}
            lost = run.peers.keys() - run.hosts
            ends = [(a, b) for a in sorted(run.peers) for b in sorted(lost) if a != b]
            view |= dict.fromkeys([*ends, *((b, a) for a, b in ends)], LinkEstimate(0.0, count=0))
        plan = e.Plan(run.id, placement, dict(view), dict(run.state_bytes), dataflow, past)
        if past is not None and self.core.recording:
            plan = msgspec.structs.replace(plan, recording=True)
        self.core.emit(plan)

    def on_planned(self, event: e.Planned) -> None:
        run, search = self.core.runs.get(event.run), self.searches.get(event.run)
        if run is None or search is None:
            return
        if event.weather is not None:
            self.weather[run.id] = event.weather
        unknown = event.needs - search.view.keys()
        gone = {link for link in unknown if not run.hosts.issuperset(link)}
        search.view |= dict.fromkeys(gone, LinkEstimate(0.0, count=0))  # a host that was lost cannot be probed
        unknown -= gone
        if gone and not unknown:
            self._plan(run, search)
            return
        if unknown:
            search.rounds += 1
            search.tries = 1
            search.asked_s = self.core.now
            search.asked |= unknown
            search.waiting = unknown
            self.probe(run, unknown)
            self.core.emit(e.SetTimer(f"plan {run.id}", self.core.now + self._patience_s(run)))
            return
        del self.searches[run.id]
        placement = event.placement or {}
        worth = event.worth and run.hosts.issuperset(placement.values())  # one that was lost may have been planned with
        if event.dataflow is None:
            where = {name: entry.host for name, entry in run.locations.items()}
            moves = {name: host for name, host in placement.items() if where.get(name, host) != host}
            proposed = bool(moves) and worth and self.core.barrier.propose(run, moves, "a better plan")
        else:
            barrier = self.core.barrier
            proposed = worth and barrier.propose(run, placement, "a better plan", event.dataflow, event.free)
        self._record(run, search, event, proposed)
        adaptation = self.adaptations[run.id]
        assert isinstance(adaptation, GlobalMoves)
        after = search.begun_s + adaptation.period_s
        self.core.emit(e.SetTimer(f"plan {run.id}", max(after, self.core.now)))

    def probe(self, run: RunState, links: frozenset[Link]) -> None:
        """Ask the hosts that send over these links to measure them."""
        by_source: dict[str, list[m.Peer]] = {}
        known = run.hosts & run.peers.keys()
        pairs = run.id in self.core.monitor.histories  # then both ways are wanted, and one probe measures both
        for source, target in sorted(links):
            if pairs and source > target and (target, source) in links:
                continue
            if {source, target} <= known:
                by_source.setdefault(source, []).append(run.peers[target])
        for source, targets in by_source.items():
            request = e.ProbesRequested(run.id, run.peers[source], tuple(targets), self.core.me)
            self.core.prober.request(request)

    def on_estimate(self, link: Link, estimate: LinkEstimate) -> None:
        """A link was measured; who waits for it goes on."""
        for run_id, search in list(self.searches.items()):
            if link in search.waiting:
                search.view[link] = estimate
                search.waiting -= {link}
                run = self.core.runs[run_id]
                if not search.waiting:
                    self._plan(run, search)
                else:  # as long as there is news, the others may follow
                    self.core.emit(e.SetTimer(f"plan {run_id}", self.core.now + self._patience_s(run)))
            elif search.waiting:
                search.view[link] = estimate

    def _give_up_waiting(self, run: RunState, search: _Search) -> None:
        """Links that nobody could measure in time are asked for again, and then taken for slow.

        Of those in use what was last known counts: whoever is too busy with partitions to probe has just measured them.
        """
        if not search.waiting:
            return
        if search.tries < TRIES:
            search.tries += 1
            self.probe(run, search.waiting)
            self.core.emit(e.SetTimer(f"plan {run.id}", self.core.now + self._patience_s(run)))
            return
        slow_bps = _too_slow_bps(self.core.now - search.asked_s)
        slow = LinkEstimate(slow_bps, count=0)
        history = self.core.monitor.histories.get(run.id)
        in_use = _in_use(run)
        for link in search.waiting:
            latest = self.core.monitor.latest(*link) if link in in_use else None
            search.view[link] = slow if latest is None else latest
            if history is not None and latest is None:
                history.add(link, LinkEstimate(slow_bps, measured_at_s=self.core.now))
        search.waiting = frozenset()
        self._plan(run, search)

    @staticmethod
    def _where(run: RunState) -> dict[str, str]:
        return {name: run.locations[name].host for name in run.dataflow.by_name}

    def _record(self, run: RunState, search: _Search, event: e.Planned, proposed: bool) -> None:
        now = self.core.now
        links = {
            f"{a}>{b}": [each.rate_bps, each.count, each.spread_bps, now - each.measured_at_s if each.count else None]
            for (a, b), each in sorted(search.view.items())
        }
        detail = {
            "placement": {**self._where(run), **(event.placement or {})} if event.dataflow is None else event.placement,
            "decision": "propose" if proposed else "stay",
            "probed": len(search.asked),
            "rounds": search.rounds,
            "links": links,
            **event.detail,
        }
        self.core.record(run.id, "plan", duration_s=now - search.begun_s, detail=detail)

    # --- random moves ---------------------------------------------------------------------------------

    def on_delivered(self, run: RunState) -> None:
        """A chance to move: several operators together if no proposal is under way, else one more on its own."""
        book = self.random.get(run.id)
        if book is None or len(run.hosts) < 2:
            return
        for name in [name for name, until_s in book.moving.items() if self.core.now > until_s]:
            del book.moving[name]
        if book.reshapes > 0 and run.proposer.change is None and (not book.limit or book.dice.below(3)):
            flow, placement = shuffled(run.dataflow, self._where(run), run.free, sorted(run.hosts), book.dice.below)
            self.core.barrier.propose(run, placement, "at random", flow)
            return
        nodes = run.dataflow.by_name
        free = [name for name in run.dataflow.operators if name not in book.moving and nodes[name].pinned is None]
        left = book.limit - book.moved - len(book.moving)
        if not free or left <= 0:
            return
        if run.proposer.change is None:
            count = min(left, max(1, len(free) // 2))
            chosen = {name: self._anywhere_else(run, book, name) for name in book.dice.sample(free, count)}
            self.core.barrier.propose(run, chosen, "at random")
        else:
            name = free[book.dice.below(len(free))]
            chosen = {name: self._anywhere_else(run, book, name)}
            at = run.locations[name]
            self.core.send(run.id, at.host, m.Relocate(run.id, name, at.version, chosen[name], "at random"))
        book.moving.update(dict.fromkeys(chosen, self.core.now + 2 * self.core.config.handoff_s))

    @staticmethod
    def _anywhere_else(run: RunState, book: _Random, name: str) -> str:
        others = sorted(run.hosts - {run.locations[name].host})
        return others[book.dice.below(len(others))]

    def on_relocated(self, run: RunState, message: m.Relocated) -> None:
        book = self.random.get(run.id)
        if book is not None:
            book.moving.pop(message.node, None)
            book.moved += message.moved

    def on_change_over(self, run: RunState, change: Change) -> None:
        """A proposal is over, whatever became of it: what had to wait for its end goes on."""
        if run.id in self.overdue:
            self.overdue.discard(run.id)
            self.on_timer(run.id)
        book = self.random.get(run.id)
        if book is not None:
            for move in change.moves:
                book.moving.pop(move.node, None)
            book.reshapes -= change.shape is not None and not change.why


def _too_slow_bps(waited_s: float) -> float:
    """What a link is taken for that nobody could measure in that time: no faster than that shows.

    It is above 0, as a search that moves one operator at a time finds no way out where two links cost infinity.
    """
    return m.PROBE_BYTES * 8 / max(waited_s, MIN_PERIOD_S)


def _in_use(run: RunState) -> set[Link]:
    """The links that the dataflow takes where it is now."""
    where = {name: entry.host for name, entry in run.locations.items()}
    nodes = run.dataflow.nodes
    return {(where[producer], where[node.name]) for node in nodes for producer in node.inputs}


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

    def keep(self, run: RunState, name: str, state: epoch.BookState | None) -> None:
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
        if name in run.leaving or run.member.part is not Part.FREE:
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
        slow_bps = _too_slow_bps(core.now - choice.asked_s)

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
