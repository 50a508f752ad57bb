"""New tree for a running tree: which operators appear, and whether the results stay the same bytes.

Rules:

R1. Sources and the sink stay. An operator is *free* if it is not pinned and its class is ``reorderable``: associative
    and commutative, with a *merge* of states if it has state. Free operators may disappear, and new operators of the
    same code may appear. Every other operator stays on its host, and keeps its inputs: the same combinations of the
    same sources, in the same order.
R2. Free operators of one code that feed each other form one combination of their inputs. Both trees must make the same
    combinations. Then both trees give the same bytes.
R3. If operators have states to merge, a combination changes as a whole or not at all. All of its operators disappear,
    and new operators appear. The last new operator, from which the output leaves the combination, takes over the
    states. The remaining new operators begin without state, because their outputs go to this last operator.
R4. A new operator has a name that the run has never had, so no late message names the operator. A free operator that is
    wanted on its present host with its present inputs stays.
R5. Hosts get only the difference (``Graft``). A whole tree of 63 nodes would be 7 KB for every host.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from thalweg.middleware.dataflow import Code, Dataflow, Node, Reorderable
from thalweg.middleware.errors import DataflowError
from thalweg.middleware.protocol.messages import Graft

MAX_NAME = 128
_NUMBERED = re.compile(r"~\d+\Z")


class Reshaped(msgspec.Struct, frozen=True):
    """Result of ``reshape``: grafts, the new tree, and the wanted new hosts of operators that stay for now."""

    grafts: tuple[Graft, ...]
    dataflow: Dataflow
    moves: dict[str, str]


def regrow(old: Dataflow, grafts: Collection[Graft]) -> Dataflow:
    """Return the tree ``old`` with the grafts, without nodes that no longer lead to the sink.

    Raises DataflowError if the result is no tree of the same sources and sink, or leaves out a graft.
    """
    nodes = _grafted(old, grafts)
    reached = _reached(nodes, old.sinks[0])
    for name in (*old.sources, *(graft.node for graft in grafts)):
        if name not in reached:
            raise DataflowError(f"node {name!r} would not reach the sink any more")
    _check_states(old, nodes, grafts, reached)
    new = Dataflow(tuple(node for node in nodes.values() if node.name in reached)).validate()
    _check_trees(old, new)
    return new


def _grafted(old: Dataflow, grafts: Iterable[Graft]) -> dict[str, Node]:
    """Return the nodes of ``old`` with the new nodes and inputs of the grafts."""
    nodes = dict(old.by_name)
    for graft in grafts:
        known = nodes.get(graft.node)
        if isinstance(graft.like, Node):
            raise DataflowError(
                f"node {graft.node!r} has code of its own; a node of another tree has the code of a present operator"
            )
        if graft.like:
            if known is not None:
                raise DataflowError(f"node {graft.node!r} cannot appear: the tree has it already")
            like = nodes.get(graft.like)
            if like is None or like.kind != "operator":
                raise DataflowError(f"operator {graft.node!r} cannot be like {graft.like!r}, which is no operator")
            nodes[graft.node] = Node(graft.node, "operator", graft.inputs, like.code)
        elif known is None:
            raise DataflowError(f"node {graft.node!r} cannot get other inputs: the tree does not have it")
        else:
            nodes[graft.node] = msgspec.structs.replace(known, inputs=graft.inputs)
    return nodes


def _reached(nodes: Mapping[str, Node], sink: str) -> set[str]:
    """Return the sink and the nodes that lead to the sink."""
    reached, queue = {sink}, [sink]
    while queue:
        for name in nodes[queue.pop()].inputs:
            if name not in nodes:
                raise DataflowError(f"node {name!r} is an input, and the tree does not have it")
            if name not in reached:
                reached.add(name)
                queue.append(name)
    return reached


def _check_states(old: Dataflow, nodes: Mapping[str, Node], grafts: Iterable[Graft], reached: Collection[str]) -> None:
    """Raise DataflowError if a graft cannot take over a state that it names."""
    inherited: set[str] = set()
    for graft in grafts:
        for name in graft.states:
            was = old.by_name.get(name)
            alike = was is not None and was.code == nodes[graft.node].code
            if not alike or name in inherited or name in reached or not graft.like:
                raise DataflowError(f"operator {graft.node!r} cannot take over the state of {name!r}")
            inherited.add(name)


def reshape(
    old: Dataflow,
    new: Dataflow,
    placement: Mapping[str, str],
    hosts: Mapping[str, str],
    reorderable: Reorderable,
    number: int,
    used: Collection[str] = (),
) -> Reshaped:
    """Return the grafts that make ``old`` the tree ``new``.

    Args:
        old, hosts: the running tree, and the hosts of its nodes.
        new, placement: the wanted tree, and its hosts. The names of its free operators have no meaning.
        reorderable: the codes that are reorderable.
        number: part of the names of new operators.
        used: names that the run has had.

    Raises DataflowError with the node at fault if ``new`` would not give the same bytes.
    """
    free, merging = reorderable
    new.validate()
    _check_trees(old, new)
    for name in (*old.sources, *new.sources):
        if old.by_name.get(name) != new.by_name.get(name):
            raise DataflowError(f"source {name!r} is not the same in both trees; sources stay as they are")
    if old.sinks[0] != new.sinks[0]:
        raise DataflowError(f"the sink is {old.sinks[0]!r}, not {new.sinks[0]!r}; it stays as it is")
    ids: dict[object, int] = {}
    before, after = (_combinations(flow, free, ids) for flow in (old, new))
    for name in old.operators:
        if not is_free(old.by_name[name], free) and name not in new.by_name:
            raise DataflowError(f"operator {name!r} is left out, and its code is not reorderable")
    for name in new.operators:
        node, was = new.by_name[name], old.by_name.get(name)
        if is_free(node, free):
            continue
        if was is None:
            raise DataflowError(f"operator {name!r} cannot appear: its code is not reorderable")
        if (was.kind, was.code, was.pinned) != (node.kind, node.code, node.pinned):
            raise DataflowError(
                f"operator {name!r} is not the same in both trees; only reorderable operators may change"
            )
        if [before[producer] for producer in was.inputs] != [after[producer] for producer in node.inputs]:
            raise DataflowError(f"operator {name!r} keeps its inputs {list(was.inputs)}: it is not reorderable")
    if before[old.by_name[old.sinks[0]].inputs[0]] != after[new.by_name[new.sinks[0]].inputs[0]]:
        raise DataflowError("the other tree would combine the inputs in another way, so its bytes would differ")
    heirs = _heirs(old, new, before, after, free, merging)  # R3: operators that take over the states of a combination
    return _graft(old, new, placement, hosts, free, number, {*used, *old.by_name}, heirs)


def _check_trees(*flows: Dataflow) -> None:
    for flow in flows:
        if why := flow.not_a_tree():
            raise DataflowError(
                f"only trees change their shape, and this is a graph: {why}; move its operators instead"
            )


def is_free(node: Node, free: Collection[Code]) -> bool:
    return node.kind == "operator" and node.pinned is None and node.code in free


def _combinations(flow: Dataflow, free: Collection[Code], ids: dict[object, int]) -> dict[str, int]:
    """Return a number for every node, equal for nodes that give the same bytes. Trees share ``ids``."""
    numbers: dict[str, int] = {}
    members: dict[str, frozenset[int]] = {}  # inputs of the combination of a free operator
    for name in flow.upward:
        node = flow.by_name[name]
        code = msgspec.msgpack.encode(node.code, order="deterministic")
        key: object
        if is_free(node, free):
            combined: set[int] = set()
            for producer in node.inputs:
                same = producer in members and flow.by_name[producer].code == node.code
                combined |= members[producer] if same else {numbers[producer]}
            members[name] = frozenset(combined)
            key = code, members[name]
        elif node.kind == "operator":
            key = name, code, tuple([numbers[producer] for producer in node.inputs])
        else:
            key = name
        numbers[name] = ids.setdefault(key, len(ids))
    return numbers


class _Heir(msgspec.Struct, frozen=True):
    """Last operator of a combination with states, in the new tree.

    ``operators``: the combination there. ``takes``: the combination in the present tree. ``last``: the present operator
    whose output leaves the combination.
    """

    operators: tuple[str, ...]
    takes: tuple[str, ...]
    last: str


def _groups(flow: Dataflow, free: Collection[Code]) -> dict[str, list[str]]:
    """Return the operators of every combination of free operators, consumers first, by the last operator."""
    groups: dict[str, list[str]] = {}
    last: dict[str, str] = {}
    for name in reversed(flow.upward):
        node = flow.by_name[name]
        if is_free(node, free):
            above = flow.by_name[flow.consumers[name][0]]
            last[name] = last[above.name] if is_free(above, free) and above.code == node.code else name
            groups.setdefault(last[name], []).append(name)
    return groups


def _heirs(
    old: Dataflow,
    new: Dataflow,
    before: Mapping[str, int],
    after: Mapping[str, int],
    free: Collection[Code],
    merging: Collection[Code],
) -> dict[str, _Heir]:
    """Return the combinations with states in ``new``, by the last operator."""
    makers = {before[name]: (name, group) for name, group in _groups(old, free).items()}
    heirs: dict[str, _Heir] = {}
    for name, group in _groups(new, free).items() if merging else ():
        if new.by_name[name].code in merging:
            last, takes = makers[after[name]]
            heirs[name] = _Heir(tuple(group), tuple(takes), last)
    return heirs


def _stay(
    old: Dataflow,
    new: Dataflow,
    where: Mapping[str, str],
    hosts: Mapping[str, str],
    free: Collection[Code],
    heirs: Mapping[str, _Heir],
) -> dict[str, str]:
    """Return the present names of the nodes of ``new`` that exist already."""
    operators = [old.by_name[name] for name in old.operators]
    existing = {(node.inputs, hosts[node.name]): node.name for node in operators if is_free(node, free)}

    def find(changed: Collection[str]) -> dict[str, str]:
        matches: dict[str, str] = {}
        for name in new.upward:
            node = new.by_name[name]
            if not is_free(node, free):
                matches[name] = name
            elif name not in changed and all(producer in matches for producer in node.inputs):
                same = existing.get((tuple([matches[producer] for producer in node.inputs]), where[name]))
                if same is not None and old.by_name[same].code == node.code:
                    matches[name] = same
        return matches

    matches = find(())
    changed = {
        operator for name, heir in heirs.items() if matches.get(name) != heir.last for operator in heir.operators
    }
    return find(changed) if changed else matches


def _graft(
    old: Dataflow,
    new: Dataflow,
    placement: Mapping[str, str],
    hosts: Mapping[str, str],
    free: Collection[Code],
    number: int,
    used: set[str],
    heirs: Mapping[str, _Heir],
) -> Reshaped:
    likes = [(old.by_name[name].code, name) for name in old.operators]
    where: dict[str, str] = {}
    for name in new.upward:
        host = placement.get(name, hosts.get(name))
        if host is None:
            raise DataflowError(f"the placement leaves out operator {name!r}; name its host")
        where[name] = host
    stay = _stay(old, new, where, hosts, free, heirs)
    names: dict[str, str] = {}
    grafts: list[Graft] = []
    moves: dict[str, str] = {}
    for name in new.upward:
        node, was = new.by_name[name], old.by_name.get(name)
        inputs = tuple([names[producer] for producer in node.inputs])
        host = where[name]
        if not is_free(node, free):
            names[name] = name
            assert was is not None
            if was.inputs != inputs:  # R5: hosts are told of the difference only
                grafts.append(Graft(name, inputs, hosts[name], ""))
            if node.kind == "operator" and host != hosts[name]:
                moves[name] = host
        elif name in stay:
            names[name] = stay[name]
        else:
            names[name] = fresh_name(name, number, used)  # R4: no late message can be about a new name
            like = next(like for code, like in likes if code == node.code)
            states = heirs[name].takes if name in heirs else ()
            grafts.append(Graft(names[name], inputs, host, like, states))
    return Reshaped(tuple(grafts), regrow(old, grafts) if grafts else old, moves)


def fresh_name(name: str, number: int, used: set[str]) -> str:
    """Return a name that no node of the run has had. Add the name to ``used``."""
    base, end = _NUMBERED.sub("", name), f"~{number}"
    fresh = base[: MAX_NAME - len(end)] + end
    count = 0
    while fresh in used:
        count += 1
        end = f"~{number}.{count}"
        fresh = base[: MAX_NAME - len(end)] + end
    used.add(fresh)
    return fresh


def as_rows(flow: Dataflow, hosts: Mapping[str, str]) -> list[list[object]]:
    """Return a tree for the records: name, inputs and host of every operator and sink, producers first."""
    chosen: Sequence[str] = [name for name in flow.upward if flow.by_name[name].kind != "source"]
    return [[name, list(flow.by_name[name].inputs), hosts.get(name, "")] for name in chosen]
