"""The house in figures: lines by room, circles of imports, and arrows that point up. ``python tests/structure.py``."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("middleware", "operators", "emulation", "experiments")
# The house from the ground up. A module stands on the floor of the longest name here that its own begins with, and
# imports from its own room and from lower floors. Rooms on one floor (in one line) know nothing of each other.
FLOORS: tuple[str, ...] = (
    "middleware middleware.arithmetic middleware.errors",
    "middleware.platform",
    "middleware.arrays middleware.dataflow middleware.files middleware.logbook middleware.parcels",
    "middleware.loading middleware.network",
    "middleware.grants",
    "middleware.protocol",
    "middleware.core middleware.core.notes",
    "middleware.core.outbox middleware.core.past",
    "middleware.core.monitoring",
    "middleware.core.shared",
    "middleware.core.flow",
    "middleware.core.monitoring.coordinator",
    "middleware.core.relocation",
    "middleware.core.steering",
    "middleware.core.trunk",
    "middleware.core.striping",
    "middleware.core.run",
    "middleware.core.hosting",
    "middleware.core.host",
    "middleware.planning.problem",
    "middleware.planning.solver",
    "middleware.planning.costs",
    "middleware.planning.shapes",
    "middleware.planning.bound",
    "middleware.planning.usage",
    "middleware.planning.odp",
    "middleware.planning.provisioning",
    "middleware.planning.mapping",
    "middleware.planning.planners",
    "middleware.planning",
    "middleware.shell",
    "middleware.client",
    "operators",
    "emulation emulation.units",
    "emulation.links",
    "emulation.traces",
    "emulation.kernel",
    "emulation.proofs",
    "emulation.supervisor.processes emulation.supervisor.connection emulation.supervisor.requests",
    "emulation.supervisor.client",
    "emulation.containers",
    "emulation.supervisor",
    "emulation.testbeds",
    "emulation.uml",
    "emulation.capabilities",
    "emulation.scenarios",
    "emulation.outputs",
    "emulation.condition",
    "emulation.playing",
    "emulation.wan",
    "emulation.pytest_plugin",
    "emulation.pytest_entry",
    "emulation.virtual",
    "experiments",
    "experiments.drivers",
    "experiments.records",
    "experiments.runs.config",
    "experiments.problems",
    "experiments.networks",
    "experiments.runs",
    "experiments.simulation",
    "experiments.sweeps",
    "experiments.faults",
    "experiments.views",
    "experiments.papers",
    "experiments.reports",
    "experiments.bench",
    "experiments.cli",
)


def module_of(path: Path) -> str:
    """``middleware/core/host.py`` is ``middleware.core.host``; a package is named as its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    """Every module of the four folders, with its file."""
    return {module_of(path): path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))}


def imports(path: Path, known: Iterable[str]) -> Iterator[str]:
    """The project's modules that a file imports anywhere: also inside functions, and for type checkers only."""
    names = set(known)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found = [f"{node.module}.{alias.name}" for alias in node.names]
            found = [each if each.removeprefix("thalweg.") in names else node.module for each in found]
        else:
            continue
        yield from (name.removeprefix("thalweg.") for name in found if name.removeprefix("thalweg.") in names)


@cache
def graph() -> dict[str, set[str]]:
    """Which module imports which."""
    known = modules()
    return {name: set(imports(path, known)) - {name} for name, path in known.items()}


def circles(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan), each in the order of names."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

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
            found.append(sorted(stack[start:]))
            del stack[start:]

    for name in edges:
        if name not in index:
            visit(name)
    return [circle for circle in found if len(circle) > 1]


def floor_of(module: str, floors: Sequence[str] = FLOORS) -> tuple[int, str]:
    """The floor a module stands on, from 0, and its room there."""
    rooms = {room: number for number, line in enumerate(floors) for room in line.split()}
    room = module
    while room not in rooms:
        if "." not in room:
            raise LookupError(f"{module} stands on no floor of FLOORS")
        room = room.rpartition(".")[0]
    return rooms[room], room


def points_down(source: tuple[int, str], target: tuple[int, str]) -> bool:
    """Whether an import leads into the same room, or to a lower floor."""
    return source[1] == target[1] or target[0] < source[0]


def upward(edges: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """The imports that do not."""
    return [
        (name, other)
        for name, others in edges.items()
        for other in sorted(others)
        if not points_down(floor_of(name), floor_of(other))
    ]


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
    sys.exit(bool(found or arrows))
