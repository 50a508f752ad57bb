"""What decides for all operators at once while the data flows, at the client: global and random moves.

Rules:

- Nothing here stops the flow. The planner itself runs elsewhere (``Plan`` … ``Planned``); links that it needs and
  nobody knows are probed meanwhile, and it is asked again when they are known or waited for long enough.
- *Global* (Ranganathan et al., section 2.2): once a period the client plans from the present placement, with what the
  monitor knows and probes, and proposes what came out to the barrier. While a proposal is under way it does not plan.
- Links are waited for as long as two partitions take lately, as a probe may have to wait for those under way at both
  its ends, but asking twice takes a period at most, or a horizon. What was asked for in vain all the same counts as
  slow for one horizon, unless it is measured after all; it is no sample.
- *Random moves* are a planner for tests: at every delivery operators move somewhere, by both protocols in turn: several
  by a proposal, and while that is under way one more at a time on its own. *Random reshapes* propose other trees, too.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from thalweg.middleware.core.monitoring.prober import SHARE_WAITING, TRIES, too_slow_bps
from thalweg.middleware.core.relocation.proposal import Proposal
from thalweg.middleware.core.steering.shuffling import shuffled
from thalweg.middleware.network.history import History, Past, Variability
from thalweg.middleware.network.view import Link, LinkEstimate
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.adaptation import Adaptation, GlobalMoves, RandomMoves, RandomReshapes

if TYPE_CHECKING:
    from thalweg.middleware.core.host import HostCore
    from thalweg.middleware.core.run import RunState


PATIENT = 2.0  # times what passes between two partitions: links are waited for so long, without news of any
LATELY = 8  # partitions


class _InVain(msgspec.Struct, frozen=True):
    """A link that was asked for at ``asked_s`` and not measured by ``given_up_s``, and what it counts as."""

    rate_bps: float
    asked_s: float
    given_up_s: float


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
        self.variability: dict[str, Variability] = {}  # as the planner last read it
        self.delivered_s: dict[str, deque[float]] = {}  # when the last partitions were, or the run began
        self.in_vain: dict[str, dict[Link, _InVain]] = {}

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
        for table in (
            self.adaptations,
            self.searches,
            self.random,
            self.variability,
            self.delivered_s,
            self.in_vain,
            self.core.monitor.histories,
        ):
            table.pop(run_id, None)
        self.overdue.discard(run_id)

    def on_ready(self, run_id: str) -> None:
        """Every host that is needed has installed the run: the first period begins."""
        adaptation = self.adaptations.get(run_id)
        if isinstance(adaptation, GlobalMoves):
            self.delivered_s[run_id] = deque([self.core.now], maxlen=LATELY + 1)
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
        times_s = self.delivered_s[run.id]
        apart_s = (self.core.now - times_s[0]) / max(1, len(times_s) - 1)
        most_s = (adaptation.horizon_s or adaptation.period_s) / TRIES
        least_s = min(self.core.config.probe_s, SHARE_WAITING * adaptation.period_s)
        return max(least_s, min(most_s, PATIENT * apart_s))

    def _slow(self, run_id: str, history: History) -> dict[Link, LinkEstimate]:
        """What links count as that were asked for in vain within the horizon, and not measured since they were."""
        adaptation, links = self.adaptations[run_id], self.in_vain.get(run_id, {})
        assert isinstance(adaptation, GlobalMoves) and adaptation.horizon_s is not None
        for link, vain in list(links.items()):
            over = vain.given_up_s + adaptation.horizon_s <= self.core.now
            if over or history.latest_s(link) > vain.asked_s:
                del links[link]
        return {link: LinkEstimate(vain.rate_bps, count=0) for link, vain in links.items()}

    def _plan(self, run: RunState, search: _Search) -> None:
        placement = self._where(run)
        dataflow = None if run.dataflow is run.install.dataflow else run.dataflow
        history, past, view = self.core.monitor.histories.get(run.id), None, search.view
        if history is not None:
            variability = self.variability.get(run.id)
            past = Past(history.samples(), self.core.now, search.asked, search.rounds, variability)
            view = self._slow(run.id, history)
            lost = run.peers.keys() - run.hosts
            ends = [Link(a, b) for a in sorted(run.peers) for b in sorted(lost) if a != b]
            view |= dict.fromkeys([*ends, *(Link(b, a) for a, b in ends)], LinkEstimate(0.0, count=0))
        plan = e.Plan(run.id, placement, dict(view), dict(run.state_bytes), dataflow, past)
        if past is not None and self.core.recording:
            plan = msgspec.structs.replace(plan, recording=True)
        self.core.emit(plan)

    def on_planned(self, event: e.Planned) -> None:
        run, search = self.core.runs.get(event.run), self.searches.get(event.run)
        if run is None or search is None:
            return
        if event.variability is not None:
            self.variability[run.id] = event.variability
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

    def on_lost(self, run: RunState, host: str) -> None:
        """A host is gone; who waits for its links goes on without them."""
        search = self.searches.get(run.id)
        if search is None or not any(host in link for link in search.waiting):
            return
        gone = {link for link in search.waiting if host in link}
        search.view |= dict.fromkeys(gone, LinkEstimate(0.0, count=0))
        search.waiting -= gone
        if not search.waiting:
            self._plan(run, search)

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
        slow_bps = too_slow_bps(self.core.now - search.asked_s)
        slow = LinkEstimate(slow_bps, count=0)
        history = self.core.monitor.histories.get(run.id)
        in_use = _in_use(run)
        for link in search.waiting:
            latest = self.core.monitor.latest(*link) if link in in_use else None
            search.view[link] = slow if latest is None else latest
            if history is not None and latest is None:
                vain = _InVain(slow_bps, search.asked_s, self.core.now)
                self.in_vain.setdefault(run.id, {})[link] = vain
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
        if run.id in self.delivered_s:
            self.delivered_s[run.id].append(self.core.now)
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

    def on_change_over(self, run: RunState, change: Proposal) -> None:
        """A proposal is over, whatever became of it: what had to wait for its end goes on."""
        if run.id in self.overdue:
            self.overdue.discard(run.id)
            self.on_timer(run.id)
        book = self.random.get(run.id)
        if book is not None:
            for move in change.moves:
                book.moving.pop(move.node, None)
            book.reshapes -= change.shape is not None and not change.why


def _in_use(run: RunState) -> set[Link]:
    """The links that the dataflow takes where it is now."""
    where = {name: entry.host for name, entry in run.locations.items()}
    nodes = run.dataflow.nodes
    return {Link(where[producer], where[node.name]) for node in nodes for producer in node.inputs}
