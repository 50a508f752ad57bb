"""Writes of a part of the core to the fields of another part, found in the source. R1 of ``runs.run`` forbids them.

A part is a public class with an ``__init__`` of its own; messages and records have none. The types of values are read
from annotations and from ``__init__``. A write through a value of an unknown type is not found.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

CHANGING = frozenset(
    {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popleft", "remove", "setdefault"}
    | {"popitem", "sort", "update"}
)
TABLES = frozenset({"dict", "Mapping", "defaultdict", "list", "Sequence", "deque", "tuple", "Iterable"})
Type = tuple[str, bool]  # module and name of a class, and whether a table of these is meant
Names = dict[str, Type]


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
    """The classes of the core, by module and name: the types of their attributes, and which of them are parts."""

    def __init__(self, trees: Mapping[str, ast.Module]) -> None:
        self.classes: dict[str, tuple[str, ast.ClassDef]] = {}
        self.scopes: defaultdict[str, dict[str, str]] = defaultdict(dict)  # by module, what a name stands for there
        self.attributes: defaultdict[str, Names] = defaultdict(dict)
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
        for member in node.body:
            if isinstance(member, ast.AnnAssign):
                _keep(known, ast.unparse(member.target), self.annotated(member.annotation, module))
            elif isinstance(member, ast.FunctionDef) and "property" in map(ast.unparse, member.decorator_list):
                _keep(known, member.name, self.annotated(member.returns, module))
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
        """Return the type of a value, if that is known."""
        match value:
            case ast.Name(id=name):
                return names.get(name)
            case ast.Attribute(value=base, attr=name):
                owner = self.of(base, names, module)
                return None if owner is None or owner[1] else self.attributes[owner[0]].get(name)
            case ast.Call(func=ast.Name(id=name)) if self.scopes[module].get(name) in self.classes:
                return self.scopes[module][name], False
            case ast.Call(func=ast.Attribute(value=base, attr="get" | "pop")) | ast.Subscript(value=base):
                table = self.of(base, names, module)
                return (table[0], False) if table is not None and table[1] else None
            case ast.Call(func=ast.Attribute(value=base, attr="values")):
                return self.of(base, names, module)
        return None

    def owner(self, field: ast.expr, names: Names, module: str) -> str:
        """Return the part of another module that owns a field; empty if none does, or it is not known."""
        if not isinstance(field, ast.Attribute):
            return ""
        owner, table = self.of(field.value, names, module) or ("", False)
        foreign = owner in self.parts and not table and self.classes[owner][0] != module
        return owner if foreign else ""

    def arguments(self, function: ast.FunctionDef, module: str, within: str) -> Names:
        """Return the types of a function's arguments; ``within``: its class."""
        names: Names = {"self": (within, False)} if within else {}
        for argument in (*function.args.args, *function.args.kwonlyargs):
            _keep(names, argument.arg, self.annotated(argument.annotation, module))
        return names

    def annotated(self, annotation: ast.expr | None, module: str) -> Type | None:
        """Return the type that an annotation means."""
        match annotation:
            case ast.Name() | ast.Attribute():
                return self.scopes[module].get(ast.unparse(annotation), ""), False
            case ast.BinOp(left=left, right=right):
                return self.annotated(left, module) or self.annotated(right, module)
            case ast.Subscript(value=ast.Name(id=name), slice=inner) if name in TABLES:
                element = self.annotated(inner.elts[-1] if isinstance(inner, ast.Tuple) else inner, module)
                return element and (element[0], True)
        return None


def _writes(types: _Types, module: str, node: ast.AST, within: str = "", names: Names | None = None) -> Iterator[Write]:
    names = {} if names is None else names
    if isinstance(node, ast.ClassDef):
        within = f"{module}.{node.name}"
    elif isinstance(node, ast.FunctionDef):
        names = names | types.arguments(node, module, within)
    elif isinstance(node, ast.For) and isinstance(node.target, ast.Name):
        table = types.of(node.iter, names, module)
        _keep(names, node.target.id, table and (table[0], False))
    for target, value in _pairs(node):
        if isinstance(target, ast.Name):
            _keep(names, target.id, types.of(value, names, module))
        item = isinstance(target, ast.Subscript)
        if owner := types.owner(target.value if isinstance(target, ast.Subscript) else target, names, module):
            yield Write(module, target.lineno, owner, ast.unparse(target), CHANGE if item else ASSIGNMENT)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
        field, table = types.of(node.func.value, names, module) or ("", False)
        owner = types.owner(node.func.value, names, module)
        if owner and (table or field not in types.parts):  # else it is a method of a part
            yield Write(module, node.lineno, owner, ast.unparse(node.func), CHANGE)
    for child in ast.iter_child_nodes(node):
        yield from _writes(types, module, child, within, names)


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a statement assigns to, or deletes, each with its value."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    yield from zip(target.elts, value.elts, strict=False)
                else:
                    yield from ((element, value) for element in getattr(target, "elts", [target]))
        case ast.AugAssign(target=target, value=value):
            yield target, value
        case ast.Delete(targets=targets):
            yield from ((target, target) for target in targets)


def _begin(node: ast.ClassDef) -> ast.FunctionDef | None:
    methods = (member for member in node.body if isinstance(member, ast.FunctionDef))
    return next((method for method in methods if method.name == "__init__"), None)


def _keep(names: Names, name: str, known: Type | None) -> None:
    if known is not None:
        names[name] = known
