"""Writes of a part of the core to the fields of another part, found in the source. R1 of ``runs.run`` forbids them.

A part is a public class with an ``__init__`` of its own. Messages and records have none. The types of values are read
from annotations of attributes, arguments and results, and from ``__init__``. A write through a value of an unknown type
is not found. Neither is a write to a record without ``__init__``, such as a node or a proposal.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

CHANGING = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popleft", "remove", "setdefault"}
    | {"difference_update", "intersection_update", "popitem", "sort", "update"}
)
TABLES = frozenset({"dict", "Mapping", "defaultdict", "list", "Sequence", "deque", "tuple", "Iterable", "Iterator"})
Type = tuple[str, bool]  # module and name of a class, and whether a table of such objects is meant
Names = dict[str, Type]
Owners = dict[str, str]


ASSIGNMENT, CHANGE = "assignment", "change of a table"


class Write(NamedTuple):
    """Line ``line`` of ``module`` writes ``target``, which class ``owner`` owns."""

    module: str
    line: int
    owner: str
    target: str
    what: str


def foreign_writes(trees: Mapping[str, ast.Module]) -> list[Write]:
    """Return the writes to fields of parts that another module defines."""
    types = _Types(trees)
    return [write for module, tree in trees.items() for node in tree.body for write in _writes(types, module, node)]


class _Types:
    """Classes of the core by module and name, with the types of their attributes. ``parts``: classes that are parts."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self.classes: dict[str, tuple[str, ast.ClassDef]] = {}
        self.scopes: defaultdict[str, dict[str, str]] = defaultdict(dict)  # by module, the full name for each name
        self.attributes: defaultdict[str, Names] = defaultdict(dict)
        self.returned: defaultdict[str, Names] = defaultdict(dict)  # by class, the types that its methods return
        for module, node in ((module, node) for module, tree in trees.items() for node in tree.body):
            if isinstance(node, ast.ClassDef):
                self.classes[f"{module}.{node.name}"] = module, node
                self.scopes[module][node.name] = f"{module}.{node.name}"
            elif isinstance(node, ast.ImportFrom):
                source = (node.module or "").removeprefix("thalweg.")
                self.scopes[module] |= {alias.asname or alias.name: f"{source}.{alias.name}" for alias in node.names}
        self.parts = {key for key, (_, node) in self.classes.items() if node.name[0] != "_" and _begin(node)}
        for _ in range(4):  # attributes of attributes are known after a further round
            for key in self.classes:
                self._learn(key)

    def _learn(self, key: str) -> None:
        module, node = self.classes[key]
        known = self.attributes[key]
        for base in node.bases:
            known |= self.attributes[self.scopes[module].get(ast.unparse(base), "")]
            self.returned[key] |= self.returned[self.scopes[module].get(ast.unparse(base), "")]
        for member in node.body:
            if isinstance(member, ast.AnnAssign):
                _keep(known, ast.unparse(member.target), self.annotated(member.annotation, module))
            elif isinstance(member, ast.FunctionDef) and "property" in map(ast.unparse, member.decorator_list):
                _keep(known, member.name, self.annotated(member.returns, module))
            elif isinstance(member, ast.FunctionDef):
                _keep(self.returned[key], member.name, self.annotated(member.returns, module))
        begin = _begin(node)
        if begin is None:
            return
        names = self.arguments(begin, module, key)
        for statement in ast.walk(begin):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Attribute):
                _keep(known, statement.target.attr, self.annotated(statement.annotation, module))
            for target, value in _pairs(statement):
                if isinstance(target, ast.Attribute):
                    _keep(known, target.attr, self.of(value, names, module))
                elif isinstance(target, ast.Name):
                    _keep(names, target.id, self.of(value, names, module))

    def of(self, value: ast.expr, names: Names, module: str) -> Type | None:
        """Return the type of a value, or None if it is unknown."""
        match value:
            case ast.Name(id=name):
                return names.get(name)
            case ast.Attribute(value=base, attr=name):
                owner = self.of(base, names, module)
                return None if owner is None or owner[1] else self.attributes[owner[0]].get(name)
            case ast.Call(func=ast.Name(id=name)) if self.scopes[module].get(name) in self.classes:
                return self.scopes[module][name], False
            case ast.Call(func=ast.Name(id="list" | "sorted" | "tuple" | "next"), args=[table, *_]):
                return self.of(table, names, module)
            case ast.Call(func=ast.Attribute(attr="get" | "existing"), args=[ast.Name(id=name)]) if (
                self.scopes[module].get(name) in self.classes  # ``RunParts`` returns an instance of that class
            ):
                return self.scopes[module][name], False
            case ast.Call(func=ast.Attribute(attr="put"), args=[part]):
                return self.of(part, names, module)
            case ast.Call(func=ast.Attribute(value=base, attr=method)):
                return self._result(base, method, names, module)
            case ast.Subscript(value=base):
                table = self.of(base, names, module)
                return (table[0], False) if table is not None and table[1] else None
            case ast.IfExp(body=body, orelse=other):
                return self.of(body, names, module) or self.of(other, names, module)
        return None

    def _result(self, base: ast.expr, method: str, names: Names, module: str) -> Type | None:
        """Return the type of the result of a method of a value. The value may be a class."""
        if isinstance(base, ast.Name) and base.id not in names:
            return self.returned[self.scopes[module].get(base.id, "")].get(method)
        owner, table = self.of(base, names, module) or ("", False)
        if not table:
            return self.returned[owner].get(method)
        if method in ("get", "pop", "setdefault"):
            return owner, False
        return (owner, True) if method in ("values", "items") else None

    def owner(self, field: ast.expr, names: Names, module: str) -> str:
        """Return the part of another module that owns a field. Empty if there is none, or if it is unknown."""
        if not isinstance(field, ast.Attribute):
            return ""
        owner, table = self.of(field.value, names, module) or ("", False)
        foreign = owner in self.parts and not table and self.classes[owner][0] != module
        return owner if foreign else ""

    def arguments(self, function: ast.FunctionDef, module: str, within: str) -> Names:
        """Return the types of a function's arguments. ``within``: the class of the function."""
        names: Names = {"self": (within, False)} if within else {}
        for argument in (*function.args.args, *function.args.kwonlyargs):
            _keep(names, argument.arg, self.annotated(argument.annotation, module))
        return names

    def annotated(self, annotation: ast.expr | None, module: str) -> Type | None:
        """Return the type of an annotation."""
        match annotation:
            case ast.Name() | ast.Attribute():
                return self.scopes[module].get(ast.unparse(annotation), ""), False
            case ast.BinOp(left=left, right=right):
                return self.annotated(left, module) or self.annotated(right, module)
            case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in TABLES:
                element = self.annotated(inner.elts[-1] if isinstance(inner, ast.Tuple) else inner, module)
                return element and (element[0], True)
        return None


def _writes(
    types: _Types,
    module: str,
    node: ast.AST,
    within: str = "",
    names: Names | None = None,
    aliases: Owners | None = None,
) -> Iterator[Write]:
    """Yield the writes below ``node``. ``aliases``: local names of fields of another part, with the owner."""
    names, aliases = {} if names is None else names, {} if aliases is None else aliases
    if isinstance(node, ast.ClassDef):
        within = f"{module}.{node.name}"
    elif isinstance(node, ast.FunctionDef):
        names, aliases = names | types.arguments(node, module, within), dict(aliases)
    elif isinstance(node, ast.For):
        table = types.of(node.iter, names, module)
        target = node.target.elts[-1] if isinstance(node.target, ast.Tuple) else node.target  # of a table's items
        if isinstance(target, ast.Name):
            _keep(names, target.id, table and (table[0], False))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        _keep(names, node.target.id, types.annotated(node.annotation, module))
    for target, value in _pairs(node):
        if isinstance(target, ast.Name) and not isinstance(node, ast.AugAssign):
            _keep(names, target.id, types.of(value, names, module))
            aliases[target.id] = types.owner(value, names, module)
        if owner := types.owner(target, names, module):
            yield Write(module, target.lineno, owner, ast.unparse(target), ASSIGNMENT)
    for table, how in _changes(node):
        kind, several = types.of(table, names, module) or ("", False)
        owner = aliases.get(table.id, "") if isinstance(table, ast.Name) else types.owner(table, names, module)
        if owner and (several or kind not in types.parts):  # else the call is a method of a part
            yield Write(module, how.lineno, owner, ast.unparse(how), CHANGE)
    for child in ast.iter_child_nodes(node):
        yield from _writes(types, module, child, within, names, aliases)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the tables that a statement or call changes in place, each with the changing expression."""
    match node:
        case ast.Call(func=ast.Attribute(value=table, attr=method)) if method in CHANGING:
            yield table, node.func
        case ast.AugAssign(target=ast.Name() as table, op=ast.BitOr() | ast.BitAnd()):
            yield table, table
    for target, _ in _pairs(node):
        if isinstance(target, ast.Subscript):
            yield target.value, target


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets that a statement assigns or deletes, each with the value."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    yield from zip(target.elts, value.elts, strict=False)
                else:
                    yield from ((element, value) for element in getattr(target, "elts", [target]))
        case ast.AugAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
            yield target, value
        case ast.Delete(targets=targets):
            yield from ((target, target) for target in targets)


def _begin(node: ast.ClassDef) -> ast.FunctionDef | None:
    methods = (member for member in node.body if isinstance(member, ast.FunctionDef))
    return next((method for method in methods if method.name == "__init__"), None)


def _keep(names: Names, name: str, known: Type | None) -> None:
    if known is not None:
        names[name] = known
