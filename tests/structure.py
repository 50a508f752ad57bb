"""Architecture in figures: lines by room, circles of imports, imports that point up. ``python tests/structure.py``.

Circles of folders are counted too, and so are writes to fields of other parts, and callables that parts of the core
hand to each other. The core has none of these. Figures without a rule are public classes of the same name, and the
files that an event enters (``entered.py``).
"""

from __future__ import annotations

import ast
import itertools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = "middleware.core."
FOLDERS = ("middleware", "operators", "emulation", "experiments", "benchmarks")
# Floors of the architecture from the ground up. A module is on the floor of the longest name here that begins its own
# name. A module imports from its own room and from lower floors. Rooms on one floor (in one line) do not import each
# other. Outside the core a room is a folder.
FLOORS: tuple[str, ...] = (
    "middleware",
    "middleware.platform",
    "middleware.files middleware.network",
    "middleware.protocol",
    "middleware.core.context",
    "middleware.core.measuring",
    "middleware.core.parts",
    "middleware.core.routes",
    "middleware.core.flow",
    "middleware.core.states",
    "middleware.core.runs",
    "middleware.core.moving",
    "middleware.core.reshaping",
    "middleware.core.queries",
    "middleware.core.membership",
    "middleware.core.barrier",
    "middleware.core.failover",
    "middleware.core.steering",
    "middleware.core.stripes",
    "middleware.core.hosting",
    "middleware.core",
    "middleware.planning.problem",
    "middleware.planning.solver",
    "middleware.planning.costs",
    "middleware.planning.shapes",
    "middleware.planning.mixtures",
    "middleware.planning.usage",
    "middleware.planning.odp",
    "middleware.planning.planners",
    "middleware.planning",
    "middleware.shell",
    "middleware.client.membership",
    "middleware.client.moving",
    "middleware.client.steering",
    "middleware.client.failover",
    "middleware.client.flow",
    "middleware.client.queries",
    "middleware.client.runs",
    "middleware.client.stripes",
    "middleware.client",
    "operators",
    "emulation.links",
    "emulation.presets",
    "emulation.traces",
    "emulation.kernel",
    "emulation.proofs",
    "emulation.supervisor",
    "emulation.recording",
    "emulation.containers",
    "emulation.server",
    "emulation.testbeds",
    "emulation.uml",
    "emulation.scenarios",
    "emulation.reports",
    "emulation",
    "emulation.virtual",
    "experiments",
    "experiments.provisioning",
    "experiments.drivers",
    "experiments.records",
    "experiments.problems",
    "experiments.networks",
    "experiments.runs",
    "experiments.simulation",
    "experiments.sweeps",
    "experiments.faults",
    "experiments.views",
    "experiments.papers",
    "experiments.reports",
    "experiments.cli",
    "experiments.cli.testbed",
    "benchmarks",
)


def module_of(path: Path) -> str:
    """Return a file's module: ``middleware.core.host`` for ``middleware/core/host.py``, the folder for a package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    """Return every module of ``FOLDERS``, with its file."""
    return {module_of(path): path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))}


def imports(path: Path, known: Iterable[str]) -> Iterator[str]:
    """Yield the project's modules that a file imports, also inside functions and for type checkers only."""
    names = set(known)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported = [f"{node.module}.{alias.name}" for alias in node.names]
            imported = [name if name.removeprefix("thalweg.") in names else node.module for name in imported]
        else:
            continue
        yield from (name.removeprefix("thalweg.") for name in imported if name.removeprefix("thalweg.") in names)


@cache
def graph() -> dict[str, set[str]]:
    """Return the imported modules of each module."""
    known = modules()
    return {name: set(imports(path, known)) - {name} for name, path in known.items()}


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one module (Tarjan), each in the order of names."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(edges.get(name, ())):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            start = stack.index(name)
            components.append(sorted(stack[start:]))
            del stack[start:]

    for name in edges:
        if name not in index:
            visit(name)
    return [circle for circle in components if len(circle) > 1]


def floor_of(module: str, floors: Sequence[str] = FLOORS) -> tuple[int, str]:
    """Return the floor of a module, from 0, and its room."""
    rooms = {room: number for number, line in enumerate(floors) for room in line.split()}
    room = module
    while room not in rooms:
        if "." not in room:
            raise LookupError(f"{module} stands on no floor of FLOORS")
        room = room.rpartition(".")[0]
    return rooms[room], room


def points_down(source: tuple[int, str], target: tuple[int, str]) -> bool:
    """Return whether an import leads into the same room or to a lower floor."""
    return source[1] == target[1] or target[0] < source[0]


def upward(edges: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """Return the imports that lead neither into the same room nor to a lower floor."""
    return [
        (name, other)
        for name, imported in edges.items()
        for other in sorted(imported)
        if not points_down(floor_of(name), floor_of(other))
    ]


def folders(edges: Mapping[str, set[str]], top: str = "middleware") -> dict[str, set[str]]:
    """Return the imported folders of each folder below ``top``. A folder has only its own files, no inner folders."""
    known = modules()

    def folder(module: str) -> str:
        return ".".join(known[module].relative_to(ROOT).parent.parts)

    below = {module for module in edges if folder(module).split(".")[0] == top}
    imported: dict[str, set[str]] = {folder(module): set() for module in below}
    for module in below:
        imported[folder(module)] |= {folder(other) for other in edges[module] & below} - {folder(module)}
    return imported


def folder_circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the circles of folders below each of ``FOLDERS``."""
    return [circle for top in FOLDERS for circle in circles(folders(edges, top))]


def meanings(top: str = "middleware") -> dict[str, list[str]]:
    """Return the names of public classes that several modules below ``top`` define, with the modules."""
    names: dict[str, list[str]] = {}
    for module, path in modules().items():
        if module.split(".")[0] == top:
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    names.setdefault(node.name, []).append(module)
    return {name: where for name, where in sorted(names.items()) if len(where) > 1}


def core_trees() -> dict[str, ast.Module]:
    """Return the parsed modules of the core."""
    core = {name: path for name, path in modules().items() if name.startswith("middleware.core")}
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in core.items()}


def callables(trees: Mapping[str, ast.Module]) -> list[str]:
    """Return the callables that parts hand to each other: fields of classes and parameters of their functions.

    An alias of ``Callable`` counts, and so does a protocol with ``__call__``. Tables of a class do not count.
    """
    names = {"Callable"}
    for node in itertools.chain.from_iterable(tree.body for tree in trees.values()):
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Callable["):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ClassDef):
            names |= {node.name for method in node.body if getattr(method, "name", "") == "__call__"}

    def handed(annotation: ast.expr | None) -> bool:
        used = {node.id for node in ast.walk(annotation or ast.Tuple([])) if isinstance(node, ast.Name)}
        return "ClassVar" not in used and not used.isdisjoint(names)

    places = []
    for module, tree in trees.items():
        for scope in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
            where = f"{module}.{scope.name}" if isinstance(scope, ast.ClassDef) else module
            for node in scope.body:
                if isinstance(node, ast.AnnAssign) and isinstance(scope, ast.ClassDef) and handed(node.annotation):
                    places.append(f"{where}.{ast.unparse(node.target)}")
                elif isinstance(node, ast.FunctionDef):
                    arguments = (*node.args.args, *node.args.kwonlyargs)
                    places += [
                        f"{where}.{node.name}({argument.arg})" for argument in arguments if handed(argument.annotation)
                    ]
    return places


def figures() -> Iterator[str]:
    """Yield a line for each further figure."""
    import entered
    from part_writes import ASSIGNMENT, CHANGE, foreign_writes

    rings = folder_circles(graph())
    yield f"{len(rings)} circles of folders: {'; '.join(' '.join(circle) for circle in rings)}"
    names = meanings()
    yield f"{len(names)} public class names of the runtime with two meanings: {' '.join(names)}"
    trees = core_trees()
    handed = callables(trees)
    yield f"{len(handed)} callables handed down in the core: {' '.join(name.removeprefix(CORE) for name in handed)}"
    writes = foreign_writes(trees)
    for kind in (ASSIGNMENT, CHANGE):
        of_kind = [write for write in writes if write.what == kind]
        where = ", ".join(sorted({write.module.removeprefix(CORE) for write in of_kind}))
        yield f"{len(of_kind)} writes to another part's fields by {kind}: {where}"
    yield from entered.figures()


if __name__ == "__main__":
    edges = graph()
    lines: Counter[str] = Counter()
    for name, path in modules().items():
        lines[".".join(name.split(".")[:2])] += sum(1 for _ in path.open())
    for room, count in sorted(lines.items()):
        print(f"{count:6} {room}")
    print(f"{sum(lines.values()):6} in all")
    found = circles(edges)
    for circle in found:
        print("circle:", " ".join(circle))
    arrows = upward(edges)
    for name, other in arrows:
        print(f"upward: {name} imports {other}")
    print(f"{len(found)} circles, {len(arrows)} upward arrows")
    for line in figures():
        print(line)
    sys.exit(bool(found or arrows))
