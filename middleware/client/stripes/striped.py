"""Stream over several trees, as one run of the application in which queries can begin."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from thalweg.middleware.client.failover.journal import ResumableStream
from thalweg.middleware.client.flow.stream import ClientServices, PreparedQuery, QueryRequest, T
from thalweg.middleware.client.moving.moves import MoveHandle
from thalweg.middleware.client.runs.run import Run
from thalweg.middleware.client.steering.replanning import Replanner
from thalweg.middleware.client.stripes.split_query import LowerTree, SplitQuery, in_two, known_in
from thalweg.middleware.client.stripes.stripes import (
    StripedGraph,
    check_sources,
    in_parts,
    located,
    same_of,
    searches_of,
    with_state,
)
from thalweg.middleware.core.queries.sharing import shared
from thalweg.middleware.dataflow import Dataflow, Placement, check_placement, sinks_at
from thalweg.middleware.errors import DataflowError, UsageError, expect
from thalweg.middleware.network.networks import Network
from thalweg.middleware.planning import Stripe
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol.run_id import NO_RUN, TREES, RunId
from thalweg.middleware.protocol.split_graph import PlacedGraph, inlet_of, is_inlet, renamed, whole

ABOVE = "/"  # end of a query's names above the trees, so that no node of a tree has such a name


class StripedQuery(NamedTuple):
    """Query that is to begin in a stream, in two parts (``split``), with a placement for each tree (``wheres``).

    ``before``: nodes of the stream before the query. ``names``: for each tree, the tree's names of the query's nodes.
    """

    wanted: PreparedQuery
    split: SplitQuery
    wheres: tuple[Placement, ...]
    before: frozenset[str]
    names: tuple[dict[str, str], ...] = ()


class StripedRun(Run[T]):
    """Stream over several trees, to iterate over as over a run. The partitions of all trees come in order.

    ``trees``: the trees with the present hosts of the nodes. Every tree is joined with the upper graph, which runs
    once: operators with state, nodes above these operators, and the sinks. ``move`` and ``reshape`` change one tree, by
    its number. The upper graph is the same for every number. ``dataflow`` and ``placement`` describe the first tree.
    Other clients can subscribe to nodes of the upper graph, and to tree nodes that feed the upper graph.

    Rules:

    - R1: News of trees and plans goes to the stripe of its number. Partitions, the end, failures and news of the upper
      graph go to the stream.
    - R2: If the trees already make every node that a query takes from trees, the query begins in the upper graph.
      Otherwise new trees with the missing nodes take over (``stripes.striping``). When a query has left, new trees
      without its nodes take over. There is one change at a time.
    """

    def __init__(
        self,
        home: ClientServices,
        run_id: str,
        going: StripedGraph,
        search: Replanner | None,
        *,
        strict: bool = False,
        nothing: bool = False,
    ) -> None:
        assert going.upper is not None
        self._trees = [LowerTree.first(PlacedGraph(tree.dataflow, tree.placement)) for tree in going.trees]
        self._above = going.upper
        first = self._whole(0)
        super().__init__(home, run_id, first.placement, first.dataflow, None, strict=strict, nothing=nothing)
        self._searches, self._search = searches_of(search, going.trees), search
        self._shares = [tree.share for tree in going.trees]
        self._kept: ResumableStream | None = None
        self._like: e.RunRequested | None = None  # R2: request from which the run of a tree is made
        # R2: number of the first tree, and trees that are to take over
        self._base, self._coming = 0, list[LowerTree]()
        self._shares_coming = self._shares
        self._requested = len(self._trees)  # number of trees that were ever requested
        self._fresh = len(self._trees[0].places)  # first place that was never used
        self._own = frozenset(self._trees[0].places)  # places that the stream itself takes
        self._changes: deque[int | None] = deque()  # R2: queries that are to begin; None: a query has left
        self._beginning: dict[int, StripedQuery] = {}
        self._told: dict[int, StripedQuery] = {}  # begun queries, with hints for the planners

    @property
    def _there(self) -> list[int]:
        """Numbers of the trees that carry the stream.

        Without failover, a tree with a lost host is left out if there is an intact tree.
        """
        known, like = {*self._home.hosts()}, self._like
        lasts = like is not None and like.install.failover is not None
        intact = [number for number, tree in enumerate(self._trees) if {*tree.lower.placement.values()} <= known]
        return intact if intact and not lasts else [*range(len(self._trees))]

    def _whole(self, stripe: int) -> PlacedGraph:
        tree = self._trees[stripe]
        return whole(tree.lower, self._above, tree.places)

    @property
    def trees(self) -> tuple[tuple[Dataflow, Placement], ...]:
        """Graph and placement of every stripe, as far as the client knows."""
        with self._news:
            return tuple([(*self._whole(number),) for number in range(len(self._trees))])

    def began(self, request: e.RunRequested) -> None:
        """Note the request from which runs of later trees are made, with a different name, graph and hosts."""
        install = msgspec.structs.replace(request.install, partitions=None, afresh=False)
        self._like = msgspec.structs.replace(request, install=install, known=())

    def keep(self, stream: ResumableStream) -> None:
        """Write to the journal the state from which a client resumes the stream, now and when trees change."""
        assert self._journal is not None
        self._kept = stream
        self._journal.keep(self.id, stream)

    def _keep_trees(self) -> None:
        if self._journal is not None and self._kept is not None and 0 in self._open:
            flow, where = self._above
            own = {name for sink in self._sinks for name in flow.below(sink)}
            above = PlacedGraph(Dataflow(tuple([node for node in flow.nodes if node.name in own])), where)
            alone = [tree.pruned(self._own) for tree in self._trees]
            wholes = [whole(tree.lower, above, tree.places) for tree in alone]
            trees = tuple([Stripe(*placed, share) for placed, share in zip(wholes, self._shares, strict=True)])
            self._journal.keep(self.id, msgspec.structs.replace(self._kept, trees=trees))

    def take(self, command: e.Command) -> None:
        number = getattr(command, "run", NO_RUN).stripe
        if number in (None, TREES) and not isinstance(command, e.OperatorMoved | e.TreeChanged | e.TreesChanged):
            super().take(command)
            if isinstance(command, e.Fail) and command.query:
                self._leaves(command.query)
            return
        with self._news:  # R1: news of a stripe, by its number, or of the upper graph
            if isinstance(command, e.TreesChanged):
                self._taken_over(command)
                return
            trees, stripe = self._numbered(number)
            if stripe is not None and not 0 <= stripe < len(trees):
                return
            if isinstance(command, e.RequestPlan):
                if self._searches and stripe is not None and trees is self._trees:
                    self._plan_aside(self._searches[stripe], command)
                return
            before = self._above if stripe is None else trees[stripe].lower
            match command:
                case e.OperatorMoved(_, node, host):
                    now = PlacedGraph(before.dataflow, {**before.placement, node: host})
                case e.TreeChanged(_, dataflow, placement):
                    now = PlacedGraph(dataflow, placement)
                case _:
                    return
            if stripe is None:
                self._become(now)
            else:
                trees[stripe] = trees[stripe]._replace(lower=now)
            self._change(None)
            self._keep_trees()
            self._show()

    def _numbered(self, number: int | None) -> tuple[list[LowerTree], int | None]:
        """Return the list of trees that contains stripe ``number``, and its position there.

        The position is None for the upper graph.
        """
        if number is None:
            return self._trees, None
        first = self._requested - len(self._coming)
        if self._coming and number >= first:
            return self._coming, number - first
        return self._trees, number - self._base

    def _become(self, tree: PlacedGraph) -> None:
        self._above = tree
        self._show()

    def _show(self) -> None:
        self.dataflow, self.placement = self._whole(0)

    # --- R2: queries ----------------------------------------------------------------------------------------

    def _prepare(self, offered: QueryRequest) -> tuple[PreparedQuery, Callable[[int], None]]:
        prepare = self._home.prepare
        assert prepare is not None
        if offered.radius_s is not None:
            raise UsageError("queries of a stream over several trees share all equal nodes; leave radius_s out")
        with self._news:
            trees, wholes = [self._trees[number] for number in self._there], [*map(self._whole, self._there)]
            before = frozenset((*trees[0].lower.dataflow.by_name, *self._above.dataflow.by_name))
        wants: list[PreparedQuery] = []
        for number, tree in enumerate(wholes):
            alike = wholes.index(tree)
            wants.append(wants[alike] if alike < number else prepare(offered, tree))
        wanted, known = wants[0], dict[str, int]()
        query = wanted.dataflow
        check_sources(query, self._home.allow)
        for part, (flow, _) in zip(trees, wholes, strict=True):
            known = known_in(query, flow, part.feeding) | known
        remembering = with_state(query, self._home.allow)
        with self._news:
            rise = in_two(query, known, remembering, self._home.name, self._fresh)
            self._fresh += len(rise.made)
        names = shared(wholes[0].dataflow, query)
        beginning = StripedQuery(wanted, rise, tuple([want.placement for want in wants]), before, (names,))

        def begin(number: int) -> None:
            with self._news:
                places = {*self._trees[0].places}.intersection(*[tree.places for tree in self._coming])
                rises = beginning.split.without(places)  # some places may have left since
                self._beginning[number] = asked = beginning._replace(split=rises)
                if rises.made:
                    self._change(number)
                else:
                    self._home.tell(self._query_request(number, asked))

        return wanted, begin

    def _query_request(self, number: int, beginning: StripedQuery) -> e.AttachRequested:
        """Return the request to begin the upper graph of a query, with names that no node of a tree has."""
        above, where = beginning.split.upper, beginning.wanted.placement
        placement = {
            f"{node.name}{ABOVE}": self._home.name if is_inlet(node) else where[node.name] for node in above.nodes
        }
        names = {name: f"{name}{ABOVE}" for name in above.by_name}
        return e.AttachRequested(self._run_id, number, renamed(above, names), placement)

    def _change(self, number: int | None) -> None:
        """Queue the start of a query, or with None the removal of nodes that no query takes."""
        self._changes.append(number)
        self._go_on()

    def _go_on(self) -> None:
        while self._changes and not self._coming:
            query = self._changes.popleft()
            try:
                self._coming = self._changed(query)
            except DataflowError as error:
                self.take(e.Fail(self._run_id, str(error), query=query))
                continue
            if self._coming:
                self._shares_coming = [self._shares[number] for number in self._there]
                self._announce_change(query)

    def _changed(self, query: int | None) -> list[LowerTree]:
        """Return new trees with the nodes that a query takes, and without nodes that no query takes.

        The result is empty if the present trees need no change.
        """
        needed = {inlet_of(node) for node in self._above.dataflow.nodes if is_inlet(node)}
        for pending in self._beginning.values():
            needed |= pending.split.places
        if 0 in self._open:
            needed |= self._own
        trees = [self._trees[number] for number in self._there]
        if query is None:
            vain = trees[0].places.keys() - needed
            return [tree.pruned(needed) for tree in trees] if vain else []
        beginning = self._beginning.get(query)
        if beginning is None:
            return []
        wanted, rise = beginning.wanted.dataflow, beginning.split
        wheres = itertools.cycle(beginning.wheres)  # some trees may have gone since
        grown = [tree.pruned(needed).with_query(wanted, rise, next(wheres), query) for tree in trees]
        self._beginning[query] = beginning._replace(names=tuple([names for _, names in grown]))
        return [tree for tree, _ in grown]

    def _announce_change(self, query: int | None) -> None:
        """Request the new trees, and with the trees the start of the query."""
        like, requests = self._like, []
        assert like is not None
        for tree in self._coming:
            dataflow, placement = tree.lower
            install = msgspec.structs.replace(like.install, dataflow=dataflow, locations=located(placement))
            requests.append(msgspec.structs.replace(like, install=install))
        self._requested += len(self._coming)
        own = self._own if 0 in self._open else ()
        asked = UNSET if query is None else self._query_request(query, self._beginning[query])
        pairs = [(tree.places, tree.theirs(own)) for tree in self._coming]
        fed, foreign = zip(*pairs, strict=True)
        self._home.tell(e.TreesRequested(self._run_id, tuple(requests), fed, foreign, asked))

    def _taken_over(self, command: e.TreesChanged) -> None:
        """Replace the trees by the new trees, or drop the new trees after an error."""
        coming, self._coming = self._coming, []
        if not command.error:
            self._base, self._trees, self._shares = command.first, coming, self._shares_coming
            self._show()
            self._replan()
            self._keep_trees()
            self._changes.append(None)
        self._go_on()

    def _replan(self) -> None:
        """Create a replanner for each present tree, with the hints of the queries."""
        placed = zip(self._trees, self._shares, strict=True)
        self._searches = searches_of(self._search, [Stripe(*tree.lower, share) for tree, share in placed])
        for query in (*self._told.values(), *self._beginning.values()):
            hints = query.wanted.hints
            if hints is not None and len(query.names) == len(self._trees):
                named = zip(self._searches, query.names, strict=False)
                self._searches = [search.with_hints(hints, names) for search, names in named]

    def _grow(self, command: e.QueryStarted) -> None:
        beginning, other = self._beginning.pop(command.query, None), self._queries.get(command.query)
        with self._news:
            if beginning is not None:
                if command.query in self._open:
                    self._told[command.query] = beginning
                below = {**beginning.split.known, **beginning.split.made}
                called = {name.removesuffix(ABOVE): run_name for name, run_name in command.names.items()}
                above = {name: run_name for name, run_name in called.items() if name not in below}
                names = {**beginning.names[0], **above}
                if other is not None:
                    other._begun(msgspec.structs.replace(command, names=names), beginning.before)
            sinks = self._above.dataflow.sinks
            self._by_sink |= {name: command.query for name in command.dataflow.sinks if name not in sinks}
            self._become(PlacedGraph(command.dataflow, command.placement))

    def _left(self, query: int) -> None:
        super()._left(query)
        with self._news:
            begins = query in self._beginning and query not in self._changes
        if not begins:  # a query that is about to begin leaves later
            self._leaves(query)

    def _leaves(self, query: int) -> None:
        with self._news:
            self._beginning.pop(query, None)
            self._told.pop(query, None)
            self._change(None)

    def joined(self, hosts: tuple[str, ...], networks: dict[str, Network]) -> None:
        with self._news:
            self._searches = [search.among(hosts, networks) for search in self._searches]
            self._search = self._search and self._search.among(hosts, networks)

    def move(self, placement: Mapping[str, str], stripe: int = 0) -> MoveHandle:
        """Move operators of one stripe to other hosts, as ``Run.move`` does.

        Operators of the upper graph move at a partition of their own.
        """
        run = self._named(stripe)
        expect(placement, Mapping, "a placement is a mapping of nodes to hosts")
        with self._news:
            below, above = self._trees[stripe].lower, self._above
        over = {name: host for name, host in placement.items() if self._is_above(name)}
        rest = {name: host for name, host in placement.items() if name not in over}
        parts: dict[RunId, Mapping[str, str]] = {}
        if rest or not over:
            self._check_move(below, rest)
            parts[run] = rest
        if over:
            self._check_move(above, over)
            parts[self._run_id] = over
        return self._request_moves(placement, parts)

    def _is_above(self, name: str) -> bool:
        """Return whether the upper graph has a node of this name that is no inlet."""
        node = self._above.dataflow.by_name.get(name)
        return node is not None and not is_inlet(node)

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str], stripe: int = 0) -> MoveHandle:
        """Replace the tree of one stripe by a different tree, as ``Run.reshape`` does. The upper graph stays."""
        run = self._named(stripe)
        expect(dataflow, Dataflow, "the argument dataflow is a Dataflow")
        with self._news:
            tree, above, present = self._trees[stripe], self._above, self._whole(stripe).placement
        if not self._own.issuperset(tree.places):
            raise DataflowError(
                "a query takes partitions from the trees of the stream, and the trees keep their shapes meanwhile"
            )
        if len(above.dataflow.nodes) > len(tree.places) + 1:
            where = {name: host for name, host in present.items() if self._is_above(name)}
            upper = [name for name in where if above.dataflow.by_name[name].kind == "operator"]
            graph = sinks_at(dataflow.validate(self._home.hosts()), self._home.name)
            full = check_placement(graph, {**where, **placement}, self._home.hosts())
            new, over = in_parts(Stripe(graph, full, 1.0), upper)
            if same_of(new, over) != same_of(tree.lower, above):
                raise DataflowError("the upper graph, above the trees of a stream, stays as it is; only a tree changes")
            dataflow, placement = new
        return self._reshape(run, tree.lower, dataflow, placement)

    def _named(self, stripe: int) -> RunId:
        expect(stripe, int, "a stripe is known by its number")
        if not 0 <= stripe < len(self._trees):
            raise UsageError(f"there is no stripe {stripe}; the stripes are 0 to {len(self._trees) - 1}")
        return self._run_id.of_stripe(self._base + stripe)


def run_of(
    going: StripedGraph, home: ClientServices, run_id: str, search: Replanner | None, *, strict: bool, nothing: bool
) -> Run[Any]:
    """Return the application's run over one or several trees."""
    if len(going.trees) > 1:
        return StripedRun(home, run_id, going, search, strict=strict, nothing=nothing)
    (tree,) = going.trees
    return Run(home, run_id, tree.placement, tree.dataflow, search, strict=strict, nothing=nothing)
