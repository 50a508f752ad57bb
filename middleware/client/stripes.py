"""A stream over several trees, as its application has it: what there may be, and one run for all of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NoReturn

import msgspec

from thalweg.middleware.client.journal import Stream
from thalweg.middleware.client.replanning import Search
from thalweg.middleware.client.run import Attached, Run
from thalweg.middleware.client.stream import Home, T
from thalweg.middleware.dataflow import Dataflow, Placement
from thalweg.middleware.errors import OperatorError, UsageError, expect
from thalweg.middleware.loading import keeps_state, load_code
from thalweg.middleware.network.networks import Network
from thalweg.middleware.planning import Plan, Strategy, Stripe, get_strategy
from thalweg.middleware.protocol import events as e
from thalweg.middleware.protocol import messages as m
from thalweg.middleware.protocol.stripes import MOST_STRIPES, WINDOW, stripe_name, stripe_of

Stripes = int | Literal["auto"] | Sequence[Stripe]


def check_stripes(
    stripes: Stripes,
    window: int | None,
    dataflow: Dataflow,
    allow: Collection[str],
    others: Mapping[str, object],
) -> None:
    """UsageError, in one line, where a stream cannot go over so many trees.

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
        return
    if unfit := next((name for name, wanted in others.items() if wanted), None):
        raise UsageError(f"a stream over several trees has no {unfit}; leave that out, or run it with stripes=1")
    _check_graph(dataflow, allow)


def _check_graph(dataflow: Dataflow, allow: Collection[str]) -> None:
    """UsageError, in one line, for a graph whose partitions cannot go over several trees."""
    hint = "run it with stripes=1"
    if len(dataflow.sinks) > 1:
        raise UsageError(f"a stream over several trees has one sink, and this graph {len(dataflow.sinks)}; {hint}")
    for node in dataflow.nodes:
        if node.rate is not None:
            raise UsageError(f"source {node.name!r} has a rate, and stripes take what asks next; {hint}")
        if node.code is None:
            continue
        try:
            code = load_code(node.code, allow)
        except OperatorError as error:
            if node.kind == "source":  # its data lies on another host
                continue
            raise UsageError(f"whether operator {node.name!r} has state cannot be told here: {error}; {hint}") from None
        if node.kind == "operator" and keeps_state(code):
            raise UsageError(
                f"operator {node.name!r} ({node.code.use}) has state, which partitions that go over several trees would"
                f" part; {hint}"
            )
        if node.kind == "source" and not getattr(code, "replayable", True):
            raise UsageError(
                f"source {node.name!r} ({node.code.use}) gives each partition once, in order, and stripes ask for any;"
                f" {hint}"
            )


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


def request_of(
    request: e.RunRequested, trees: Sequence[Stripe], window: int | None, start: int
) -> e.RunRequested | e.StripesRequested:
    """What the core is asked for: a run like ``request`` for each tree, where there are several."""
    if len(trees) == 1:
        return request
    install, requests = request.install, []
    for number, tree in enumerate(trees):
        locations = tuple(m.Location(node, host, 1) for node, host in tree.placement.items())
        of_stripe = msgspec.structs.replace(
            install,
            run=stripe_name(install.run, number),
            dataflow=tree.dataflow,
            locations=locations,
            partitions=None,
            afresh=install.afresh and not number,
        )
        requests.append(msgspec.structs.replace(request, install=of_stripe))
    total = sum(tree.share for tree in trees)
    shares = tuple(tree.share / total for tree in trees)
    most = WINDOW * len(trees) if window is None else window
    return e.StripesRequested(install.run, tuple(requests), shares, most, install.partitions, start)


def searches_of(search: Search | None, trees: Sequence[Stripe]) -> list[Search]:
    """What looks for better trees, one at a time, each beside the others; none where nothing does."""
    known = {str(number): tree for number, tree in enumerate(trees)}
    return [] if search is None else [
        msgspec.structs.replace(search.of(tree.dataflow), stripes=known, stripe=name) for name, tree in known.items()
    ]  # fmt: skip


class StripedRun(Run[T]):
    """A stream over several trees: iterated over as any run, with the partitions of all of them in order.

    ``trees`` are what it goes over, and where their nodes are now; ``move`` and ``reshape`` change one, named by its
    number. ``dataflow`` and ``placement`` are those of the first. Queries cannot begin in it, nor can others subscribe.

    Rules:

    - R1: Of trees and of plans each stripe is heard by its own number; partitions, the end, and failures are the
      stream's.
    """

    def __init__(
        self,
        home: Home,
        run_id: str,
        trees: Sequence[Stripe],
        search: Search | None,
        *,
        strict: bool = False,
        nothing: bool = False,
    ) -> None:
        first = trees[0]
        super().__init__(home, run_id, first.placement, first.dataflow, None, strict=strict, nothing=nothing)
        self._trees = [(tree.dataflow, tree.placement) for tree in trees]
        self._searches = searches_of(search, trees)
        self._shares = [tree.share for tree in trees]
        self._kept: Stream | None = None

    @property
    def trees(self) -> tuple[tuple[Dataflow, Placement], ...]:
        """Every stripe's graph, and where its nodes are, as far as the client has heard."""
        with self._news:
            return tuple(self._trees)

    def keep(self, stream: Stream) -> None:
        """Have the journal keep what another client needs to go on, now and as the trees change."""
        assert self._journal is not None
        self._kept = stream
        self._journal.keep(self.id, stream)

    def _keep_trees(self) -> None:
        if self._journal is not None and self._kept is not None:
            trees = tuple(Stripe(*tree, share) for tree, share in zip(self._trees, self._shares, strict=True))
            self._journal.keep(self.id, msgspec.structs.replace(self._kept, trees=trees))

    def take(self, command: e.Command) -> None:
        number = stripe_of(getattr(command, "run", ""))
        if number is None:
            super().take(command)
            return
        with self._news:  # R1
            dataflow, placement = self._trees[number]
            match command:
                case e.Placed(_, node, host):
                    self._trees[number] = dataflow, {**placement, node: host}
                    self._keep_trees()
                case e.TreeChanged():
                    self._trees[number] = command.dataflow, command.placement
                    self._keep_trees()
                case e.Plan() if self._searches:
                    self._plan_aside(self._searches[number], command)
            self.dataflow, self.placement = self._trees[0]

    def joined(self, hosts: tuple[str, ...], networks: dict[str, Network]) -> None:
        with self._news:
            self._searches = [each.among(hosts, networks) for each in self._searches]

    def move(self, placement: Mapping[str, str], stripe: int = 0) -> None:
        """Have operators of one stripe change hosts, as ``Run.move``."""
        self._move(self._named(stripe), self.trees[stripe], placement)

    def reshape(self, dataflow: Dataflow, placement: Mapping[str, str], stripe: int = 0) -> None:
        """Have one stripe go on as another tree of the same sources, as ``Run.reshape``."""
        self._reshape(self._named(stripe), self.trees[stripe], dataflow, placement)

    def _named(self, stripe: int) -> str:
        expect(stripe, int, "a stripe is known by its number")
        if not 0 <= stripe < len(self._trees):
            raise UsageError(f"there is no stripe {stripe}; they are 0 to {len(self._trees) - 1}")
        return stripe_name(self.id, stripe)

    def allow(self, *names: str) -> None:
        """Nobody can subscribe to a stream over several trees: raises UsageError."""
        self._refuse("be subscribed to")

    def attach(self, dataflow: Dataflow, *args: Any, **options: Any) -> Attached[Any]:
        """No query can begin in a stream over several trees: raises UsageError."""
        self._refuse("have other queries begin in it")

    def _refuse(self, what: str) -> NoReturn:
        raise UsageError(f"a stream over {len(self._trees)} trees cannot {what}; run it with stripes=1")


def run_of(
    trees: Sequence[Stripe], home: Home, run_id: str, search: Search | None, *, strict: bool, nothing: bool
) -> Run[Any]:
    """What the application has of a run over these trees."""
    if len(trees) > 1:
        return StripedRun(home, run_id, trees, search, strict=strict, nothing=nothing)
    (tree,) = trees
    return Run(home, run_id, tree.placement, tree.dataflow, search, strict=strict, nothing=nothing)
