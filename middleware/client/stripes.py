"""A stream over several trees, as its application has it: what there may be, and one run for all of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, NoReturn

import msgspec
from msgspec import UNSET

from thalweg.middleware.client.journal import Stream
from thalweg.middleware.client.replanning import Search
from thalweg.middleware.client.run import Attached, Run
from thalweg.middleware.client.stream import Home, T
from thalweg.middleware.dataflow import Dataflow, Node, Placement, check_placement, sinks_at
from thalweg.middleware.errors import DataflowError, OperatorError, UsageError, expect
from thalweg.middleware.loading import keeps_state, load_code
from thalweg.middleware.network.networks import Network
from thalweg.middleware.planning import Plan, Planner, Strategy, Stripe, get_strategy
from thalweg.middleware.planning.planners.below import Below
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.parts import Parts, Placed, is_trunk, parted, parts_of, renamed, trunk_of, whole
from thalweg.middleware.protocol.stripes import MOST_STRIPES, WINDOW, stripe_name, stripe_of

Stripes = int | Literal["auto"] | Sequence[Stripe]
HINT = "run it with stripes=1"


def check_stripes(
    stripes: Stripes,
    window: int | None,
    dataflow: Dataflow,
    allow: Collection[str],
    others: Mapping[str, object],
) -> Parts:
    """What of a stream's graph goes over several trees; UsageError, in one line, where it cannot go over so many.

    ``window``: how many partitions wait. ``others``: what there is not with several trees, if it is wanted.
    """
    expect(1 if window is None else window, int, "the window is a number of partitions")
    if window is not None and window < 1:
        raise UsageError(f"window is {window}; give how many partitions may wait for those before them, at least 1")
    if isinstance(stripes, int):
        if not 1 <= stripes <= MOST_STRIPES:
            raise UsageError(f"stripes is {stripes}; give 1 to {MOST_STRIPES} trees, or 'auto'")
    elif stripes != "auto":
        trees = () if isinstance(stripes, str) else tuple(stripes)
        if not 1 <= len(trees) <= MOST_STRIPES or not all(isinstance(each, Stripe) for each in trees):
            raise UsageError(f"stripes are a number of trees, 'auto', or 1 to {MOST_STRIPES} of planning's Stripe")
        for each in trees:
            if not (isinstance(each.share, int | float) and 0 < each.share < math.inf):
                raise UsageError(f"the share of a stripe is {each.share!r}; give its part of the partitions, above 0")
    if stripes == 1 or (not isinstance(stripes, int | str) and len(stripes) == 1):
        return Parts(dataflow)
    if unfit := next((name for name, wanted in others.items() if wanted), None):
        raise UsageError(f"a stream over several trees has no {unfit}; leave that out, or run it with stripes=1")
    _check_sources(dataflow, allow)
    return parts_of(dataflow, with_state(dataflow, allow), client_of(dataflow))


def client_of(dataflow: Dataflow) -> str:
    """Where a dataflow's sinks are."""
    return dataflow.by_name[dataflow.sinks[0]].pinned or ""


def _check_sources(dataflow: Dataflow, allow: Collection[str]) -> None:
    """UsageError, in one line, for sources that do not give any partition that they are asked for."""
    for node in (dataflow.by_name[name] for name in dataflow.sources):
        if node.rate is not None:
            raise UsageError(f"source {node.name!r} has a rate, and stripes take what asks next; {HINT}")
        assert node.code is not None
        with contextlib.suppress(OperatorError):  # its data lies on another host
            if not getattr(load_code(node.code, allow), "replayable", True):
                raise UsageError(
                    f"source {node.name!r} ({node.code.use}) gives each partition once, in order, and stripes ask for"
                    f" any; {HINT}"
                )


def with_state(dataflow: Dataflow, allow: Collection[str]) -> list[str]:
    """The operators that have state; UsageError, in one line, where one does not tell."""
    found = []
    for node in (dataflow.by_name[name] for name in dataflow.operators):
        assert node.code is not None
        try:
            if keeps_state(load_code(node.code, allow)):
                found.append(node.name)
        except OperatorError as error:
            raise UsageError(f"whether operator {node.name!r} has state cannot be told here: {error}; {HINT}") from None
    return found


def over_trees(planner: Planner, dataflow: Dataflow, allow: Collection[str], stripes: Stripes | None = None) -> Planner:
    """What plans a dataflow that is to go over several trees, by the planner's own word if ``stripes`` is None."""
    count = getattr(planner, "stripes", 1) if stripes is None else stripes
    if not isinstance(count, int | str) or count == 1:
        return planner
    parts = parts_of(dataflow, with_state(dataflow, allow), client_of(dataflow))
    return planner if parts.above is None else Below(planner, parts, "auto" if isinstance(count, str) else count)


def strategy_of(placement: str, stripes: Stripes) -> Strategy:
    """What plans and moves the trees of a stream; UsageError where it cannot say how many."""
    strategy = get_strategy(placement)
    if stripes != 1 and isinstance(stripes, int | str):
        if hasattr(strategy.initial, "stripes"):
            return get_strategy(placement, stripes=stripes)
        if stripes == "auto":
            raise UsageError(f"{placement!r} plans one tree, and cannot tell how many repay; give a number of stripes")
    return strategy


def trees_of(plan: Plan) -> tuple[Stripe, ...]:
    """The trees of a plan."""
    return tuple(Stripe(each.dataflow, each.placement, each.share) for each in (plan, *plan.beside))


def all_of(stripes: Stripes, first: Stripe, beside: Sequence[Stripe]) -> tuple[Stripe, ...]:
    """The trees of a stream: those that were given or planned, or so many times the same.

    Where they are the same, that many partitions are under way over each edge.
    """
    if not isinstance(stripes, int | str):
        return (msgspec.structs.replace(first, share=stripes[0].share), *stripes[1:])
    if beside or stripes == "auto":
        return (first, *beside)
    return (msgspec.structs.replace(first, share=1 / stripes),) * stripes


def check_below(tree: Dataflow, first: Dataflow, upper: Collection[str], allow: Collection[str]) -> None:
    """DataflowError where a further tree has an operator with state that is none of those above, ``upper``."""
    known = [first.by_name[name].code for name in first.operators if name not in upper]
    operators = [tree.by_name[name] for name in tree.operators if name not in upper]
    if found := with_state(Dataflow(tuple([node for node in operators if node.code not in known])), allow):
        raise DataflowError(
            f"operator {found[0]!r} has state, and is none of those above the trees that the first stripe has"
        )


def alike(trees: Sequence[Stripe], upper: Collection[str]) -> tuple[Stripe, ...]:
    """The trees with what is above where it is in the first, if they do not say."""
    found = []
    for tree in trees:
        over = {name: trees[0].placement[name] for name in upper if name in tree.dataflow.by_name}
        found.append(msgspec.structs.replace(tree, placement={**over, **tree.placement}))
    return tuple(found)


class Going(NamedTuple):
    """A stream over several trees: what of its graph goes over each, and what is once above them, if anything is."""

    trees: tuple[Stripe, ...]
    above: Placed | None = None

    @property
    def whole(self) -> tuple[Stripe, ...]:
        """Each tree with what is above."""
        if (above := self.above) is None:
            return self.trees
        placed = [(Placed(each.dataflow, each.placement), each.share) for each in self.trees]
        return tuple([Stripe(*whole(below, above), share) for below, share in placed])


def divided(trees: Sequence[Stripe], upper: Collection[str]) -> Going:
    """Whole graphs as what goes over several trees, and what is above, which is the same of all of them.

    ``upper``: operators above, at least all that have state. Raises DataflowError where a tree has something else above
    than the first, or elsewhere.
    """
    if len(trees) == 1 or not (upper or len(trees[0].dataflow.sinks) > 1):
        return Going(tuple(trees))
    placed = [_parted(tree, upper) for tree in trees]
    (below, above), *others = placed
    for like, other in others:
        if _taken(like, other) != _taken(below, above):
            raise DataflowError(
                "stripes of a stream are the same above their trees: all operators with state, what is made of theirs,"
                " and where they are"
            )
    return Going(tuple([Stripe(*each, tree.share) for (each, _), tree in zip(placed, trees, strict=True)]), above)


def _parted(tree: Stripe, upper: Collection[str]) -> tuple[Placed, Placed]:
    """A tree as what is below, and above: the operators ``upper`` and the sinks."""
    client = client_of(tree.dataflow)
    parts = parts_of(tree.dataflow, upper, client)
    above = parts.above or Dataflow()
    return parted(Placed(tree.dataflow, tree.placement), Parts(parts.below, above), client)


def _taken(below: Placed, above: Placed) -> tuple[list[set[str]], dict[str, Node], Placement]:
    """What is the same in all trees: the sources that each part is made of, and what is above, wherever that is."""
    flow, fed = below.dataflow, trunk_of(above.dataflow)
    over = renamed(above.dataflow, {name: str(place) for place, name in enumerate(fed)})
    made = [flow.below(name).intersection(flow.sources) for name in fed]
    where = {name: host for name, host in above.placement.items() if name not in fed}
    return made, {node.name: node for node in over.nodes if not is_trunk(node)}, where


def request_of(
    request: e.RunRequested, going: Going, window: int | None, start: int, above: m.Install | None
) -> e.RunRequested | e.StripesRequested:
    """What the core is asked for: a run like ``request`` for each tree, where there are several.

    ``above``: what runs once above them, installed.
    """
    trees = going.trees
    if len(trees) == 1:
        return request
    install, requests = request.install, []
    for number, tree in enumerate(trees):
        of_stripe = msgspec.structs.replace(
            install,
            run=stripe_name(install.run, number),
            dataflow=tree.dataflow,
            locations=located(tree.placement),
            partitions=None,
            afresh=install.afresh and not number,
        )
        requests.append(msgspec.structs.replace(request, install=of_stripe))
    total = sum(tree.share for tree in trees)
    shares = tuple(tree.share / total for tree in trees)
    most = WINDOW * len(trees) if window is None else window
    over = UNSET if above is None else e.RunRequested(above)
    return e.StripesRequested(install.run, tuple(requests), shares, most, install.partitions, start, over)


def located(placement: Placement) -> tuple[m.Location, ...]:
    """Where nodes are, as a run begins."""
    return tuple([m.Location(node, host, 1) for node, host in placement.items()])


def searches_of(search: Search | None, trees: Sequence[Stripe]) -> list[Search]:
    """What looks for better trees, one at a time, each beside the others; none where nothing does."""
    known = {str(number): tree for number, tree in enumerate(trees)}
    return [] if search is None else [
        msgspec.structs.replace(search.of(tree.dataflow), stripes=known, stripe=name) for name, tree in known.items()
    ]  # fmt: skip


class StripedRun(Run[T]):
    """A stream over several trees: iterated over as any run, with the partitions of all of them in order.

    ``trees`` are what it goes over, and where their nodes are now, each with what runs once above them: operators with
    state, and what is made of theirs. ``move`` and ``reshape`` change one, named by its number; above there is one for
    all. ``dataflow`` and ``placement`` are those of the first. Queries cannot begin in it, nor can others subscribe.

    Rules:

    - R1: Of trees and of plans each stripe is heard by its own number; partitions, the end, and failures are the
      stream's. So is what is heard of nodes above.
    """

    def __init__(
        self,
        home: Home,
        run_id: str,
        going: Going,
        search: Search | None,
        *,
        strict: bool = False,
        nothing: bool = False,
    ) -> None:
        self._below = [Placed(tree.dataflow, tree.placement) for tree in going.trees]
        self._above = going.above
        first = self._whole(0)
        super().__init__(home, run_id, first.placement, first.dataflow, None, strict=strict, nothing=nothing)
        self._searches = searches_of(search, going.trees)
        self._shares = [tree.share for tree in going.trees]
        self._kept: Stream | None = None

    def _whole(self, stripe: int) -> Placed:
        below = self._below[stripe]
        return below if self._above is None else whole(below, self._above)

    @property
    def trees(self) -> tuple[tuple[Dataflow, Placement], ...]:
        """Every stripe's graph, and where its nodes are, as far as the client has heard."""
        with self._news:
            return tuple([(*self._whole(number),) for number in range(len(self._below))])

    def keep(self, stream: Stream) -> None:
        """Have the journal keep what another client needs to go on, now and as the trees change."""
        assert self._journal is not None
        self._kept = stream
        self._journal.keep(self.id, stream)

    def _keep_trees(self) -> None:
        if self._journal is not None and self._kept is not None:
            trees = tuple([Stripe(*self._whole(number), share) for number, share in enumerate(self._shares)])
            self._journal.keep(self.id, msgspec.structs.replace(self._kept, trees=trees))

    def take(self, command: e.Command) -> None:
        number = stripe_of(getattr(command, "run", ""))
        if number is None and not isinstance(command, e.Placed | e.TreeChanged):
            super().take(command)
            return
        with self._news:  # R1
            if isinstance(command, e.Plan):
                if self._searches and number is not None:
                    self._plan_aside(self._searches[number], command)
                return
            before = self._above if number is None else self._below[number]
            assert before is not None
            match command:
                case e.Placed(_, node, host):
                    now = Placed(before.dataflow, {**before.placement, node: host})
                case e.TreeChanged(_, dataflow, placement):
                    now = Placed(dataflow, placement)
                case _:
                    return
            if number is None:
                self._above = now
            else:
                self._below[number] = now
            self._keep_trees()
            self.dataflow, self.placement = self._whole(0)

    def joined(self, hosts: tuple[str, ...], networks: dict[str, Network]) -> None:
        with self._news:
            self._searches = [each.among(hosts, networks) for each in self._searches]

    def move(self, placement: Mapping[str, str], stripe: int = 0) -> None:
        """Have operators of one stripe change hosts, as ``Run.move``, and those above the trees, at a partition of
        their own."""
        run = self._named(stripe)
        expect(placement, Mapping, "a placement is a mapping of nodes to hosts")
        with self._news:
            below, above = self._below[stripe], self._above
        over = {} if above is None else {name: host for name, host in placement.items() if self._is_above(name)}
        rest = {name: host for name, host in placement.items() if name not in over}
        if above is not None and over:
            self._check_move(above, over)  # before anything moves
        if rest or not over:
            self._move(run, below, rest)
        if above is not None and over:
            self._move(self.id, above, over)

    def _is_above(self, name: str) -> bool:
        """Whether there is a node of that name above the trees."""
        node = None if self._above is None else self._above.dataflow.by_name.get(name)
        return node is not None and not is_trunk(node)

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str], stripe: int = 0) -> None:
        """Have one stripe go on as another tree of the same sources, as ``Run.reshape``; what is above stays."""
        run = self._named(stripe)
        with self._news:
            below, above = self._below[stripe], self._above
        if above is not None:
            expect(dataflow, Dataflow, "what runs is a Dataflow")
            present = self._whole(stripe).placement
            where = {name: host for name, host in present.items() if self._is_above(name)}
            upper = [name for name in where if above.dataflow.by_name[name].kind == "operator"]
            graph = sinks_at(dataflow.validate(self._home.hosts()), self._home.name)
            full = check_placement(graph, {**where, **placement}, self._home.hosts())
            new, over = _parted(Stripe(graph, full, 1.0), upper)
            if _taken(new, over) != _taken(below, above):
                raise DataflowError("what is above the trees of a stream stays as it is; only a tree changes")
            dataflow, placement = new
        self._reshape(run, below, dataflow, placement)

    def _named(self, stripe: int) -> str:
        expect(stripe, int, "a stripe is known by its number")
        if not 0 <= stripe < len(self._below):
            raise UsageError(f"there is no stripe {stripe}; they are 0 to {len(self._below) - 1}")
        return stripe_name(self.id, stripe)

    def allow(self, *names: str) -> None:
        """Nobody can subscribe to a stream over several trees: raises UsageError."""
        self._refuse("be subscribed to")

    def attach(self, dataflow: Dataflow, *args: Any, **options: Any) -> Attached[Any]:
        """No query can begin in a stream over several trees: raises UsageError."""
        self._refuse("have other queries begin in it")

    def _refuse(self, what: str) -> NoReturn:
        raise UsageError(f"a stream over {len(self._below)} trees cannot {what}; run it with stripes=1")


def run_of(going: Going, home: Home, run_id: str, search: Search | None, *, strict: bool, nothing: bool) -> Run[Any]:
    """What the application has of a run over these trees."""
    if len(going.trees) > 1:
        return StripedRun(home, run_id, going, search, strict=strict, nothing=nothing)
    (tree,) = going.trees
    return Run(home, run_id, tree.placement, tree.dataflow, search, strict=strict, nothing=nothing)
