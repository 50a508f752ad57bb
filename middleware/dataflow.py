"""Dataflows: graphs of named nodes from sources over operators to sinks.

A dataflow is a connected directed acyclic graph. A node may have several consumers, and there may be several sinks. In
a *tree* every node has one consumer, and there is one sink. Only trees change their shape while data flows.

Source: Ranganathan, Acharya, Saltz (1998), section 2.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property, reduce
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from thalweg.middleware.errors import DataflowError, PlacementError, UsageError, expect, nearest, shown, words

Kind = Literal["source", "operator", "sink"]
Missing = Literal["wait", "nothing"]
OnError = Literal["fail", "skip", "dead-letter"]
TOLERANT = "thalweg.operators.on_error:Tolerant"  # runs the code in its parameters, and leaves out failing data
Placement = dict[str, str]  # node name -> host name
MOST_AHEAD = 1024  # outputs: the kept outputs of a node have to fit into its host's memory


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Name of the code that a node runs, with its parameters.

    ``use`` is the name of a registered entry point (``composite``), or an import path (``package.module:attribute``)
    that the host's configuration allows. ``params`` are the keyword arguments of the constructor (plain msgpack
    values).
    """

    use: str
    params: dict[str, Any] = {}


class Reorderable(NamedTuple):
    """Code of operators that may combine in any order.

    ``merging``: the part of this code whose operators have state.
    """

    codes: tuple[Code, ...] = ()
    merging: tuple[Code, ...] = ()


FIXED = Reorderable()


class Node(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Node of a dataflow: a *source* without inputs, an *operator*, or a *sink* (no code).

    - ``pinned``: the host on which the node must stay. A source must be pinned.
    - ``ahead``: the number of outputs that the node keeps for slower ones of several consumers. With 1, the slowest
      consumer sets the pace of the remaining consumers.
    - ``rate``: the highest number of partitions that a source gives in a second of emulated time. An earlier demand
      waits.
    - ``stand_ins``: the hosts on which the node may restart in a run with failover if its pinned host is lost.
    - ``missing``: whether an operator waits for a lost source among its inputs, or goes on with ``NOTHING``.
    """

    name: str
    kind: Kind
    inputs: tuple[str, ...] = ()
    code: Code | None = None
    pinned: str | None = None
    ahead: int = 1
    rate: float | None = None
    stand_ins: tuple[str, ...] = ()
    missing: Missing = "wait"


class Edge(NamedTuple):
    """Connection of a producer to a consumer, which takes each partition of the producer's output."""

    producer: str
    consumer: str


class Dataflow(msgspec.Struct, frozen=True, dict=True, forbid_unknown_fields=True):
    """Graph of nodes, made from a tuple of nodes, by a builder of trees, or node by node.

    ``validate`` checks the graph.

    ``source``, ``operator`` and ``sink`` add a node and return its name. Later nodes take this name as an input. A run
    takes the dataflow as it is when the run begins.
    """

    nodes: tuple[Node, ...] = ()

    def source(
        self, code: Code, *, at: str | tuple[str, ...], name: str = "", ahead: int = 1, rate: float | None = None
    ) -> str:
        """Add a source on host ``at`` and return its name, by default ``source@`` with the host's name.

        With several hosts, the source is on the first host, and the remaining hosts are its stand-ins. ``rate``: the
        highest number of partitions a second.
        """
        host, *stand_ins = (at,) if isinstance(at, str) else words(at, "the hosts of a source are names") or ("",)
        name = name or self._unused(f"source@{host}")
        return self._add(Node(name, "source", (), code, host, ahead, rate, tuple(stand_ins)))

    def operator(
        self,
        code: Code,
        *inputs: str,
        at: str | None = None,
        name: str = "",
        ahead: int = 1,
        missing: Missing = "wait",
        on_error: OnError = "fail",
    ) -> str:
        """Add an operator that takes ``inputs`` in this order, and return its name.

        ``at``: the host to which it is pinned.

        In a run with failover and ``missing="nothing"``, the operator goes on without a lost source among its inputs.
        It is given ``NOTHING`` for the partitions of this source.

        With ``on_error="skip"``, the operator leaves out data that it cannot compute. In records, the faulty rows are
        left out. Otherwise the whole partition is left out, and the output is ``NOTHING``. With ``"dead-letter"``, the
        data left out is also the output of a further node (``dead_letters``).
        """
        code = tolerant(code, on_error)
        name = name or self._unused(f"op{len(self.operators)}")
        return self._add(Node(name, "operator", inputs, code, at, ahead, missing=missing))

    def dead_letters(self, operator: str, *, at: str | None = None) -> str:
        """Add a node that gives the rows that ``operator`` leaves out, and return its name.

        The operator must have ``on_error="dead-letter"``. The node runs the same code once more. It gives tables with
        the columns reason, node, index, input and row.
        """
        node = self.by_name.get(operator)
        if node is None or not _has_letters(node.code):
            raise DataflowError(f"{operator!r} is no operator with on_error='dead-letter'; give it that, and its name")
        assert node.code is not None
        code = Code(TOLERANT, {**node.code.params, "letters_of": operator})
        return self._add(Node(f"{operator}.dead-letters", "operator", node.inputs, code, at, missing=node.missing))

    def sink(self, name: str, *inputs: str, at: str | None = None) -> str:
        """Add a sink, which hands each partition of the inputs to the application, and return its name."""
        return self._add(Node(name, "sink", inputs, None, at))

    def _unused(self, base: str) -> str:
        """Return ``base`` as the name of a new node, with a number appended if a node has this name already."""
        name, count = base, 1
        while name in self.by_name:
            count += 1
            name = f"{base}.{count}"
        return name

    def _add(self, node: Node) -> str:
        if node.name in self.by_name:
            raise DataflowError(_twice(self.by_name[node.name], node))
        msgspec.structs.force_setattr(self, "nodes", (*self.nodes, node))
        self.__dict__.clear()  # drop the cached properties of the graph without this node
        return node.name

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Edges of the graph, consumer by consumer in order of declaration.

        For each consumer, the order is that of its inputs.
        """
        return tuple(Edge(name, node.name) for node in self.nodes for name in node.inputs)

    @cached_property
    def consumers(self) -> dict[str, tuple[str, ...]]:
        """Names of the consumers of every node, in order of declaration."""
        out: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for producer, consumer in self.edges:
            out.setdefault(producer, []).append(consumer)
        return {name: tuple(names) for name, names in out.items()}

    @cached_property
    def sources(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes if node.kind == "source")

    @cached_property
    def operators(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes if node.kind == "operator")

    @cached_property
    def sinks(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes if node.kind == "sink")

    def below(self, name: str) -> set[str]:
        """Return the names of a node and of its direct and indirect producers."""
        names = {name}
        for consumer in reversed(self.upward):
            if consumer in names:
                names.update(self.by_name[consumer].inputs)
        return names

    @cached_property
    def several(self) -> frozenset[str]:
        """Names of the nodes that have more than one consumer."""
        return frozenset(name for name, takers in self.consumers.items() if len(takers) > 1)

    def not_a_tree(self) -> str:
        """Return why the graph is no tree, as the end of a sentence. The text is empty if the graph is a tree."""
        for name in self.consumers:
            if name in self.several:
                return f"node {name!r} has several consumers {list(self.consumers[name])}"
        if len(self.sinks) > 1:
            return f"there are several sinks {list(self.sinks)}"
        wide = next((name for name in self.sinks if len(self.by_name[name].inputs) > 1), None)
        return "" if wide is None else f"sink {wide!r} has several inputs {list(self.by_name[wide].inputs)}"

    @cached_property
    def upward(self) -> tuple[str, ...]:
        """Names of the nodes, producers before consumers. The sink of a tree is last."""
        return tuple(_producers_first(self))

    @cached_property
    def level(self) -> dict[str, int]:
        """Distance of each node to a sink in edges, along the longest path. A sink is on level 0."""
        level = dict.fromkeys(self.sinks, 0)
        for name in reversed(self.upward):
            for producer in self.by_name[name].inputs:
                level[producer] = max(level.get(producer, 0), level[name] + 1)
        return level

    def validate(self, hosts: Collection[str] | None = None, *, connected: bool = True) -> Dataflow:
        """Return the dataflow if it is valid, or raise DataflowError that names the first faulty node.

        ``hosts``: if given, every pin and stand-in must be one of these hosts. ``connected``: every node must be
        connected with the first node by edges.
        """
        if odd := next((node for node in self.nodes if not isinstance(node, Node)), None):
            raise DataflowError(f"a dataflow is made of nodes, not of {shown(odd)}")
        if len(self.by_name) != len(self.nodes):
            twice = next(name for name, count in Counter(node.name for node in self.nodes).items() if count > 1)
            raise DataflowError(_twice(*[node for node in self.nodes if node.name == twice][:2]))
        if not self.sinks:
            raise DataflowError("a dataflow has at least one sink, and this one has none; nothing would come out of it")
        for node in self.nodes:
            self._check_node(node, hosts)
        for node in self.nodes:
            if node.kind != "sink" and not self.consumers[node.name]:
                raise DataflowError(f"node {node.name!r} has no consumer; feed it to an operator or a sink")
        _producers_first(self)  # finds cycles; without a cycle, every node leads to a sink
        if connected and (apart := self._apart()):
            first = self.nodes[0].name
            raise DataflowError(f"node {apart!r} has nothing to do with node {first!r}; run them as two dataflows")
        return self

    def _apart(self) -> str:
        """Return the name of a node that no edges connect with the first node. The text is empty if there is none."""
        reached, queue = {self.nodes[0].name}, [self.nodes[0].name]
        while queue:
            name = queue.pop()
            near = {*self.by_name[name].inputs, *self.consumers[name]} - reached
            reached |= near
            queue += near
        return next((node.name for node in self.nodes if node.name not in reached), "")

    def _check_node(self, node: Node, hosts: Collection[str] | None) -> None:
        """Raise DataflowError if a node is not valid by itself, or does not fit its graph or ``hosts``."""
        self._check_types(node)
        self._check_kind(node)
        self._check_options(node)
        self._check_inputs(node)
        for host in () if hosts is None or node.pinned is None else (node.pinned, *node.stand_ins):
            if hosts is not None and host not in hosts:
                cure = "; of a tree, give client=NAME to the function that makes it" if node.kind == "sink" else ""
                raise DataflowError(
                    f"{node.kind} {node.name!r} is pinned to unknown host {host!r};"
                    f" the hosts are {', '.join(sorted(hosts))}{cure}"
                )

    @staticmethod
    def _check_types(node: Node) -> None:
        """Raise DataflowError for a field of a wrong type, because Python itself accepts a value of every type."""
        if not isinstance(node.name, str) or not node.name or len(node.name) > 128 or not node.name.isprintable():
            raise DataflowError(f"node name {node.name!r} is not 1 to 128 printable characters")
        if node.kind not in get_args(Kind):
            raise DataflowError(f"node {node.name!r} is of unknown kind {node.kind!r}; use one of {get_args(Kind)}")
        if isinstance(node.inputs, str):
            raise DataflowError(f"the inputs of node {node.name!r} are a tuple of names, not {shown(node.inputs)}")
        if node.code is not None and not isinstance(node.code, Code):
            raise DataflowError(f"the code of node {node.name!r} is a Code(use, params), not {shown(node.code)}")

    @staticmethod
    def _check_kind(node: Node) -> None:
        """Raise DataflowError if the inputs, the code or the pin of a node do not fit its kind."""
        if node.kind == "source" and node.inputs:
            raise DataflowError(f"source {node.name!r} has inputs {list(node.inputs)}; a source has none")
        if node.kind != "source" and not node.inputs:
            raise DataflowError(f"{node.kind} {node.name!r} has no inputs; give it at least one")
        if node.kind == "sink" and node.code is not None:
            raise DataflowError(f"sink {node.name!r} names code; partitions are handed to the client there")
        if node.kind != "sink" and node.code is None:
            raise DataflowError(f"{node.kind} {node.name!r} names no code; set Code(use=…)")
        if node.kind == "source" and node.pinned is None:
            raise DataflowError(f"source {node.name!r} is not pinned; its data lives on one host: name that host")

    @staticmethod
    def _check_options(node: Node) -> None:
        """Raise DataflowError for an option that does not fit the kind of a node, or for a wrong value of an option."""
        if node.rate is not None:
            if node.kind != "source":
                raise DataflowError(
                    f"{node.kind} {node.name!r} has a rate; only sources have rates, and all other nodes"
                    " follow the sources"
                )
            if isinstance(node.rate, bool) or not isinstance(node.rate, int | float) or not 0 < node.rate < math.inf:
                raise DataflowError(f"source {node.name!r} has a rate of {shown(node.rate)}; give partitions a second")
        if node.stand_ins and (node.pinned is None or len({node.pinned, *node.stand_ins}) <= len(node.stand_ins)):
            raise DataflowError(
                f"{node.kind} {node.name!r} has stand-ins {list(node.stand_ins)}; pin it to a host, and name"
                " other hosts as stand-ins"
            )
        if node.missing not in get_args(Missing):
            raise DataflowError(f"{node.kind} {node.name!r} has missing={shown(node.missing)}; use wait or nothing")
        if node.missing != "wait" and node.kind != "operator":
            raise DataflowError(
                f"{node.kind} {node.name!r} has missing={node.missing!r}; only operators go on without an input"
            )
        if type(node.ahead) is not int or not 1 <= node.ahead <= (1 if node.kind == "sink" else MOST_AHEAD):
            most = "a sink keeps 1" if node.kind == "sink" else f"give 1 to {MOST_AHEAD}"
            raise DataflowError(f"{node.kind} {node.name!r} keeps {shown(node.ahead)} outputs ahead; {most}")

    def _check_inputs(self, node: Node) -> None:
        """Raise DataflowError for an input that is unknown, is a sink, or is named twice."""
        for name in node.inputs:
            if name not in self.by_name:
                raise DataflowError(_unknown(node.name, name, self.by_name))
            if self.by_name[name].kind == "sink":
                raise DataflowError(f"node {node.name!r} takes its input from the sink {name!r}")
        if len(set(node.inputs)) != len(node.inputs):
            raise DataflowError(f"node {node.name!r} names an input twice: {list(node.inputs)}; name each once")


def tolerant(code: Code, on_error: OnError) -> Code:
    """Return code that runs ``code`` and leaves out data that it cannot compute (see ``Dataflow.operator``).

    With ``on_error="fail"``, ``code`` itself is returned. Raise UsageError for an unknown ``on_error``.
    """
    if on_error not in get_args(OnError):
        raise UsageError(f"on_error={shown(on_error)}; use {', '.join(get_args(OnError))}")
    if on_error == "fail":
        return code
    return Code(TOLERANT, {"use": code.use, "params": code.params, "how": on_error})


def _has_letters(code: Code | None) -> bool:
    if not isinstance(code, Code) or code.use != TOLERANT or not isinstance(code.params, dict):
        return False
    return code.params.get("how") == "dead-letter"


def _check_letters(dataflow: Dataflow) -> None:
    """Raise DataflowError for an operator with ``on_error="dead-letter"`` whose dead letters no node takes."""
    codes = {node.name: node.code for node in dataflow.nodes if node.code is not None and _has_letters(node.code)}
    collected = {code.params.get("letters_of") for code in codes.values()}
    for name, code in codes.items():
        if not code.params.get("letters_of") and name not in collected:
            raise DataflowError(
                f"operator {name!r} has on_error='dead-letter', and nothing takes its dead letters;"
                f" give a sink dead_letters({name!r}), or use on_error='skip'"
            )


def check_codes(dataflow: Dataflow) -> None:
    """Raise UsageError for code that a message cannot carry unchanged to hosts, or that hosts could not find.

    Raise DataflowError for dead letters that no node takes.
    """
    _check_letters(dataflow)
    for node in dataflow.nodes:
        code = node.code
        if not isinstance(code, Code):
            continue
        if code.use == TOLERANT and isinstance(code.params, dict):
            code = Code(code.params.get("use", ""), code.params.get("params", {}))
        if not isinstance(code.use, str) or code.use.startswith("__main__:"):
            raise UsageError(
                f"node {node.name!r} runs {shown(code.use)}; name code by a module that hosts can import, as"
                " Code('readings:Mean'): no class itself, and not __main__, which is another program there"
            )
        expect(code.params, dict, f"the parameters of node {node.name!r} are a dict")
        try:
            _check_plain(code.params, f"of the parameters of node {node.name!r}")
        except RecursionError:
            raise UsageError(f"the parameters of node {node.name!r} contain themselves") from None


def _check_plain(value: Any, where: str) -> None:
    """Raise UsageError unless a message carries the value and gives it back unchanged. Tuples come back as lists."""
    if type(value) is dict:
        words(value, f"a name {where} is a text")
        value = value.values()
    elif type(value) not in (list, tuple):
        if value is not None and type(value) not in (bool, int, float, str, bytes):
            raise UsageError(
                f"{shown(value)} {where} is {type(value).__name__}; give plain numbers, texts, bytes, lists"
            )
        return
    for element in value:
        _check_plain(element, where)


def sinks_at(dataflow: Dataflow, host: str) -> Dataflow:
    """Return a copy of the dataflow whose unpinned sinks are pinned to ``host``.

    Nodes that are added to the original later are not in the copy.
    """
    pinned = (
        msgspec.structs.replace(node, pinned=host) if node.kind == "sink" and node.pinned is None else node
        for node in dataflow.nodes
    )
    return Dataflow(tuple(pinned))


def _producers_first(dataflow: Dataflow) -> list[str]:
    """Return the nodes' names in depth-first order, producers before consumers.

    Raise DataflowError for a cycle or an unknown input.
    """
    order: list[str] = []
    state: dict[str, int] = {}  # 1 while on the stack, 2 when done
    for root in dataflow.by_name:
        stack = [(root, iter(dataflow.by_name[root].inputs))] if root not in state else []
        state.setdefault(root, 1)
        while stack:
            name, rest = stack[-1]
            child = next(rest, None)
            if child is None:
                stack.pop()
                if state[name] != 2:
                    state[name] = 2
                    order.append(name)
            elif state.get(child) == 1:
                raise DataflowError(f"node {child!r} is on a cycle: {name!r} feeds back into it")
            elif child not in state:
                if child not in dataflow.by_name:
                    raise DataflowError(_unknown(name, child, dataflow.by_name))
                state[child] = 1
                stack.append((child, iter(dataflow.by_name[child].inputs)))
    return order


def _twice(node: Node, other: Node) -> str:
    subject = f"{node.kind} {node.name!r}"
    if node.kind == other.kind:
        return f"{subject} is defined twice; give every node its own name"
    return f"{subject} and {other.kind} {other.name!r} have the same name; both are nodes: give each its own"


def _unknown(node: str, name: object, known: Iterable[str]) -> str:
    return f"node {node!r} takes its input from unknown node {shown(name)}; {nearest(str(name), known)}"


def check_placement(dataflow: Dataflow, placement: Mapping[str, str], hosts: Collection[str]) -> Placement:
    """Return the placement completed with the pins of nodes.

    Raise PlacementError that names the faulty node or host.
    """
    full: Placement = {}
    for name in placement:
        if name not in dataflow.by_name:
            raise PlacementError(f"the placement names node {name!r}, which the dataflow does not have")
    for node in dataflow.nodes:
        host = placement.get(node.name, node.pinned)
        if host is None:
            raise PlacementError(f"the placement leaves out {node.kind} {node.name!r}; name its host")
        if host not in hosts:
            raise PlacementError(
                f"{node.kind} {node.name!r} is placed on unknown host {host!r};"
                f" the hosts are {', '.join(sorted(hosts))}"
            )
        if node.pinned is not None and host != node.pinned:
            raise PlacementError(f"{node.kind} {node.name!r} is pinned to {node.pinned!r}, not {host!r}")
        full[node.name] = host
    return full


# --- builders ---------------------------------------------------------------------------------------


Combine = Callable[..., str]  # inputs -> the name of a new operator with these inputs


def _tree(
    sources: Mapping[str, Code], operator: Code, client: str, root_of: Callable[[list[str], Combine], str]
) -> Dataflow:
    """Return the tree with a source for each host, a sink, and the operators that ``root_of`` adds.

    ``root_of`` combines the names of the sources until one name is left, and returns this name.
    """
    if not isinstance(sources, Mapping):
        raise DataflowError(f"sources are a mapping of host to Code, not {shown(sources)}")
    if not sources:
        raise DataflowError("a tree needs at least one source; give a mapping of host to Code")
    leaves = [Node(f"source@{host}", "source", (), code, host) for host, code in sources.items()]
    operators: list[Node] = []

    def combine(*inputs: str) -> str:
        operators.append(Node(f"op{len(operators)}", "operator", inputs, operator))
        return operators[-1].name

    root = root_of([node.name for node in leaves], combine)
    return Dataflow((*leaves, *operators, Node("sink", "sink", (root,), None, client))).validate()


def complete_binary_tree(sources: Mapping[str, Code], operator: Code, client: str = "client") -> Dataflow:
    """Return a tree that combines its sources in pairs, level by level (section 4).

    A node without a partner rises a level. ``sources``: for each host the code of the source pinned there, in the order
    of combination. ``client``: the host of the sink.
    """

    def in_pairs(level: list[str], combine: Combine) -> str:
        while len(level) > 1:
            odd = level[len(level) // 2 * 2 :]
            level = [*map(combine, level[::2], level[1::2]), *odd]
        return level[0]

    return _tree(sources, operator, client, in_pairs)


def left_deep_tree(sources: Mapping[str, Code], operator: Code, client: str = "client") -> Dataflow:
    """Return a linear tree, in which each operator combines the result so far with one more source (Figure 5)."""
    return _tree(sources, operator, client, lambda names, combine: reduce(combine, names))


def star_tree(sources: Mapping[str, Code], operator: Code, client: str = "client") -> Dataflow:
    """Return a tree with one operator, which combines all sources at once."""
    return _tree(sources, operator, client, lambda names, combine: combine(*names))


TREES = {"binary": complete_binary_tree, "left-deep": left_deep_tree, "star": star_tree}
