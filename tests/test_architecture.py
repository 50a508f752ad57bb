"""Architecture: allowed imports between folders, layout of the package, and public names."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import get_args

import entered
import golden_runs
import pytest
import structure
from part_writes import ASSIGNMENT, CHANGE, foreign_writes

import thalweg
from thalweg.middleware.core.hosting.runs import PARTS
from thalweg.middleware.protocol import messages as m

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "middleware": {"middleware"},
    "operators": {"operators", "middleware"},
    "emulation": {"emulation", "middleware"},
    "experiments": {"experiments", "emulation", "operators", "middleware"},
    "benchmarks": {"experiments", "emulation", "operators", "middleware"},
}
PACKAGES = MAY_IMPORT.keys() - {"benchmarks"}  # benchmarks are no part of ``thalweg``
# Modules that decide have no sockets, threads, clock, chance, files or logging of their own.
PURE = ("core", "protocol", "network", "planning")
IMPURE = {
    "asyncio",
    "logging",
    "os",
    "pathlib",
    "random",
    "secrets",
    "socket",
    "subprocess",
    "threading",
    "time",
    "zmq",
}
FILES = sorted(path for folder in MAY_IMPORT for path in (ROOT / folder).rglob("*.py"))


@cache
def imports(path: Path) -> set[str]:
    """Return all modules that a file imports, also in functions. ``from a import b`` counts as ``a`` and ``a.b``."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively; write thalweg.…"
            module = node.module or ""
            imported |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return imported


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_dependencies_point_one_way(path: Path) -> None:
    folder = path.relative_to(ROOT).parts[0]
    for name in imports(path):
        parts = name.split(".")
        assert parts[0] not in PACKAGES, f"import thalweg.{name} instead of {name}"
        assert parts[0] != "benchmarks" or folder == "benchmarks", f"{folder} is installed without {name}"
        assert parts[0] not in ("pickle", "marshal", "shelve"), "nothing executable comes off the wire"
        if parts[0] == "thalweg" and len(parts) > 1 and parts[1] in PACKAGES:
            assert parts[1] in MAY_IMPORT[folder], f"{folder} must not import {name}"


@pytest.mark.parametrize(
    "path",
    [path for room in PURE for path in sorted((ROOT / "middleware" / room).rglob("*.py"))],
    ids=lambda path: str(path.relative_to(ROOT / "middleware")),
)
def test_modules_that_decide_are_pure(path: Path) -> None:
    """A ``Random`` with a given seed is no chance."""
    used = {name.partition(".")[0] for name in imports(path)}
    if set(re.findall(r"\brandom\.(\w+)", path.read_text(encoding="utf-8"))) == {"Random"}:
        used.discard("random")
    assert used.isdisjoint(IMPURE)


OF_ARRAYS = {  # Python's own sum of arrays adds them one after the other in every version
    "middleware/network/coordinates.py", "middleware/planning/odp/hubs.py", "middleware/planning/problem/loads.py",
    "middleware/planning/shapes/search.py", "middleware/planning/usage/mapping.py",
}  # fmt: skip


@pytest.mark.parametrize("folder", ["core", "network", "planning"])
def test_sums_that_decide_do_not_depend_on_the_version_of_python(folder: str) -> None:
    files = set()
    for path in (ROOT / "middleware" / folder).rglob("*.py"):
        calls = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        if any(isinstance(called, ast.Name) and called.id == "sum" for called in calls):
            files.add(str(path.relative_to(ROOT)))
    assert files <= OF_ARRAYS, "use middleware.arithmetic.plain_sum"


def test_no_imports_go_round_in_a_circle() -> None:
    assert structure.circles(structure.graph()) == []


def test_no_import_points_up() -> None:
    assert structure.upward(structure.graph()) == []


def test_no_imports_of_folders_form_a_circle() -> None:
    circles = structure.folder_circles(structure.graph())
    assert circles == []


def test_no_part_of_the_core_is_handed_a_function() -> None:
    """Yield a note or an event, return a value, take a value, or take an object of a class or protocol below."""
    assert structure.callables(structure.core_trees()) == []


def test_a_plain_run_begins_with_few_parts_and_enters_few_files() -> None:
    install, partition = entered.plain_run()
    assert len(install.parts) <= 10, install.parts
    assert len({*install.files}) <= 25, sorted({*install.files})
    assert len({*partition.files}) <= 11, sorted({*partition.files})


def test_the_client_of_a_plain_run_needs_one_part_more_than_other_hosts() -> None:
    """A run without recovery, queries and replanning creates no parts for them."""
    created = {part for event in entered.events_of(golden_runs.trees) if event.host == "client" for part in event.parts}
    assert created & {part.__name__ for part in PARTS} == {"Flow", "Proposer"}


def test_messages_have_few_kinds() -> None:
    """A variant of a message is a field with a default."""
    kinds = get_args(m.Control)
    assert len(kinds) <= 55
    assert not {kind for kind in kinds for base in kind.__mro__[1:] if base in kinds}, "a kind derives from another one"


def test_rooms_are_folders() -> None:
    """A module with a floor of its own would hide a circle of folders."""
    rooms = [room for floor in structure.FLOORS for room in floor.split()]
    assert [room for room in rooms if not ROOT.joinpath(*room.split(".")).is_dir()] == []


def test_circles_and_imports_that_point_up_are_found() -> None:
    """Check the checks: a circle, an import that points up and an import across are found, an import down is not."""
    edges = {"low.a": {"low.b"}, "low.b": {"low.a"}, "high.c": {"low.a"}, "low.d": {"high.c"}, "beside.e": {"low.a"}}
    assert structure.circles(edges) == [["low.a", "low.b"]]
    floors = ("low beside", "high")
    arrows = [
        (name, other)
        for name, imported in edges.items()
        for other in imported
        if not structure.points_down(structure.floor_of(name, floors), structure.floor_of(other, floors))
    ]
    assert arrows == [("low.d", "high.c"), ("beside.e", "low.a")]


FIRST_PART = """
Heard = Callable[[str], None]

class First:
    def __init__(self, names: set[str]) -> None:
        self.names, self.count = names, 0

class Hooks(Struct):
    tell: Heard
"""
SECOND_PART = """
from thalweg.middleware.core.first import First, Hooks

class Second:
    def __init__(self, first: First, hooks: Hooks, ask: Callable[[], int]) -> None:
        self._first, self.count = first, 0
        self._first.count = 1

    def grow(self, others: dict[str, First]) -> None:
        self.count += 1
        first = self._first
        first.count += 1
        first.names.add("a")
        for other in others.values():
            other.names = set()
        self._first.grow(self._first.count)
"""


def test_writes_to_other_parts_and_callables_handed_down_are_found() -> None:
    """Check the checks: writes to a part's own fields, reads of other fields and calls of methods do not count."""
    sources = {"middleware.core.first": FIRST_PART, "middleware.core.second": SECOND_PART}
    trees = {name: ast.parse(source) for name, source in sources.items()}
    writes = [(write.target, write.what) for write in foreign_writes(trees)]
    assignments = [(target, ASSIGNMENT) for target in ("self._first.count", "first.count", "other.names")]
    assert sorted(writes) == sorted([*assignments, ("first.names.add", CHANGE)])
    handed = ["middleware.core.first.Hooks.tell", "middleware.core.second.Second.__init__(ask)"]
    assert structure.callables(trees) == handed


THIRD_PART = """
from thalweg.middleware.core.first import First

class Third:
    def __init__(self, parts: RunParts) -> None:
        self._first = parts.put(First(set()))
        self._names = {"a"}

    def by_parts(self, parts: RunParts) -> None:
        first = parts.get(First)
        first.count = 3
        parts.existing(First).count = 4

    def by_methods(self) -> None:
        here = self.first_of("a")
        here.count = 5
        for some in self.all():
            some.names.clear()

    def by_tables(self, others: dict[str, First]) -> None:
        for _, another in list(others.items()):
            another.count = 6

    def by_other_names(self) -> None:
        names, mine = self._first.names, self._names
        names.add("b")
        names |= {"c"}
        mine |= names
        names = {"d"}
        names.add("e")

    def first_of(self, name: str) -> First | None:
        return self._first

    def all(self) -> Iterator[First]:
        yield self._first
"""


def test_writes_through_tables_methods_and_aliases_are_found() -> None:
    sources = {"middleware.core.first": FIRST_PART, "middleware.core.third": THIRD_PART}
    writes = foreign_writes({name: ast.parse(source) for name, source in sources.items()})
    assignments = ["first.count", "parts.existing(First).count", "here.count", "another.count"]
    changes = ["some.names.clear", "names.add", "names"]
    assert sorted(write.target for write in writes if write.what == ASSIGNMENT) == sorted(assignments)
    assert sorted(write.target for write in writes if write.what == CHANGE) == sorted(changes)


def test_no_part_of_the_core_writes_fields_of_a_different_part() -> None:
    """R1 of ``runs.run``: the owner has a method for each change of its fields."""
    writes = foreign_writes(structure.core_trees())
    assert [f"{write.module}:{write.line} writes {write.target} of {write.owner}" for write in writes] == []


def test_circles_of_folders_without_circles_of_modules_are_found() -> None:
    edges = {name: set[str]() for name in structure.modules()}
    edges["middleware.errors"] = {"middleware.network.view"}
    edges["middleware.network.place"] = {"middleware.dataflow"}
    edges["emulation.links.shape"] = {"emulation.wan"}
    edges["emulation.playing"] = {"emulation.links.units"}
    assert structure.circles(edges) == []
    assert structure.folder_circles(edges) == [["middleware", "middleware.network"], ["emulation", "emulation.links"]]


def test_a_partition_enters_fewer_files_than_an_install_or_a_recovery() -> None:
    lines = [*entered.figures()]
    assert len(lines) == 4
    parts, install, partition, recovery = (int(line.split()[0]) for line in lines)
    assert 10 <= parts <= install and partition < install <= recovery


MANY = {  # functions with many keywords for applications; each keyword is documented in its function
    "Client.__init__",
    "Client.run",
    "Client.plan",
    "Client.resume",
    "ArrayJoin.__init__",
    "LocalCluster.__init__",
    "SceneSource.__init__",
    "Testbed.set",
    "Window.__init__",
    "contact_sheet",
}


BRANCHES = ast.If | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.IfExp | ast.Assert | ast.match_case
COMPLEX = {
    "middleware/shell/shell.py:_loop": "the path of every message: each call would cost it",
    "emulation/virtual/world.py:_rare": "one case for each command",
}


def complexity(function: ast.AST) -> int:
    """Return 1 and the number of branches: statements, operands beside the first, loops and filters in expressions."""
    count = 1
    for node in ast.walk(function):
        if isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
        else:
            count += isinstance(node, BRANCHES)
    return count


def test_functions_with_many_branches_are_few_and_have_a_reason() -> None:
    functions = {
        f"{path.relative_to(ROOT)}:{node.name}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and complexity(node) > 20
    }
    assert functions == COMPLEX.keys(), "split it by subject"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_public_function_has_more_than_seven_parameters(path: Path) -> None:
    def visit(node: ast.AST, prefix: str, *, of_class: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                visit(child, f"{child.name}.", of_class=True)
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                parameters = [*child.args.posonlyargs, *child.args.args, *child.args.kwonlyargs]
                count = len(parameters) - (of_class and parameters[:1] != [] and parameters[0].arg in ("self", "cls"))
                public = child.name == "__init__" or not child.name.startswith("_")
                name = f"{prefix}{child.name}"
                assert not public or count <= 7 or name in MANY, f"{path}:{child.lineno}: {name} takes {count}"
                visit(child, prefix, of_class=False)

    visit(ast.parse(path.read_text(encoding="utf-8")), "", of_class=False)


def test_the_core_imports_no_shell() -> None:
    """The modules that the core imports need no shell either: a core loads without ZeroMQ."""
    code = "import sys, thalweg.middleware.core.host; print(sorted({'zmq', 'asyncio', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "module", ["experiments.runs.worker", "middleware.shell.daemon", "emulation.server.supervisor"]
)
def test_processes_inside_a_testbed_import_no_library_for_tables_and_plots(module: str) -> None:
    """The image of containers lacks these libraries. A host, which many tests start, needs no asyncio either."""
    absent = {"pyarrow", "pyspark", "matplotlib", "networkx", "jinja2", "highspy"}
    absent |= {"asyncio"} if module == "middleware.shell.daemon" else set()
    if module == "emulation.server.supervisor":  # for which each testbed waits
        module += ", thalweg.emulation.kernel.namespaces"
        absent |= {"pyroute2", "numpy", "psutil", "pathlib", "hashlib"}
    code = f"import sys, thalweg.{module}; print(sorted({absent} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("folder", sorted(PACKAGES))
def test_the_packages_are_relative_links_to_the_folders(folder: str) -> None:
    link = ROOT / "thalweg" / folder
    assert link.is_symlink()
    assert os.readlink(link) == f"../{folder}"
    assert (link / "__init__.py").is_file()


def test_the_package_folder_holds_only_links_and_three_files() -> None:
    own = {path.name for path in (ROOT / "thalweg").iterdir() if not path.is_symlink()} - {"__pycache__"}
    assert own == {"__init__.py", "__main__.py", "py.typed"}


def test_public_names_are_exactly_the_names_in_all() -> None:
    assert len(set(thalweg.__all__)) == len(thalweg.__all__)
    assert dir(thalweg) == sorted(thalweg.__all__)
    offered = {name for names in thalweg._HOME.values() for name in names.split()}
    assert offered == set(thalweg.__all__)
    for module, names in thalweg._HOME.items():
        for name in names.split():
            assert getattr(thalweg, name) is getattr(import_module(module), name)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        thalweg.nonsense  # noqa: B018


def test_type_checkers_see_the_same_names() -> None:
    """The imports under TYPE_CHECKING equal the imports that ``__getattr__`` makes at run time."""
    tree = ast.parse((ROOT / "thalweg" / "__init__.py").read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        (node.module, alias.name)
        for node in ast.walk(guarded)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {(module, name) for module, names in thalweg._HOME.items() for name in names.split()}


def test_every_public_class_and_function_has_a_docstring() -> None:
    for name in thalweg.__all__:
        thing = getattr(thalweg, name)
        if isinstance(thing, type) or callable(thing):
            assert (thing.__doc__ or "").strip(), f"{name} has no docstring"


def mentioned(text: str, packages: Collection[str]) -> list[str]:
    """Return the dotted names in a source text, between double backticks, that begin with a package."""
    names = re.findall(r"``(?:thalweg\.)?([a-z_]+(?:\.[A-Za-z_]+)+)``", text)
    return [name for name in names if name.partition(".")[0] in packages and not name.endswith((".py", ".toml"))]


def is_there(name: str, texts: Mapping[str, str]) -> bool:
    """Return whether a name is a module, a package or a name in a module. Its first words may be left out."""
    if any(f".{name}." in f".{module}." for module in texts):
        return True
    words = name.split(".")
    return any(
        re.search(rf"\b{words[cut]}\b", text) is not None
        for cut in range(1, len(words))
        for module, text in texts.items()
        if f".{module}".endswith("." + ".".join(words[:cut]))
    )


def test_modules_mentioned_in_docstrings_and_comments_exist() -> None:
    texts = {name: path.read_text(encoding="utf-8") for name, path in structure.modules().items()}
    packages = {part for name in texts for part in name.split(".")[:-1]}
    lost = {
        name: [mention for mention in mentioned(text, packages) if not is_there(mention, texts)]
        for name, text in texts.items()
    }
    assert {name: names for name, names in lost.items() if names} == {}
    assert sum(len(mentioned(text, packages)) for text in texts.values()) > 100


def test_a_mention_of_a_removed_module_is_found() -> None:
    texts = {"core.flow.node": "def made(): ...", "core.flow.tails": ""}
    text = "See ``flow.node``, ``flow.node.made``, ``core.flow``, ``flow.old``, ``flow.node.gone`` and ``self.node``."
    assert [name for name in mentioned(text, {"core", "flow"}) if not is_there(name, texts)] == [
        "flow.old",
        "flow.node.gone",
    ]


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, thalweg; print(sorted({'zmq', 'numpy', 'pyspark', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_no_file_has_markers_of_a_merge_conflict() -> None:
    folders = [ROOT, *(ROOT / name for name in (*MAY_IMPORT, "thalweg", "tests", "docs"))]
    texts = {path for folder in folders for path in (folder.glob("*") if folder == ROOT else folder.rglob("*"))}
    markers = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sorted(texts)
        if path.is_file() and path.suffix in {".py", ".md", ".toml", ".yml", ".yaml", ".json", ".sh", ""}
        for line in re.findall(r"^(?:<{7}|>{7}) .*$", path.read_text(errors="replace"), re.MULTILINE)
    ]
    assert markers == []


# --- starts of Python -------------------------------------------------------------------------------

STARTS = "middleware/platform/python.py"
"""The only module that makes command lines of Python, and looks programs up."""
FORBIDDEN_MODULES = {"multiprocessing", "runpy", "concurrent.futures.ProcessPoolExecutor", "concurrent.futures.process"}
FORBIDDEN_CALLS = re.compile(
    r"sys\.executable|shutil\.which|multiprocessing\..*|pty\.spawn|asyncio\.create_subprocess_\w+"
    r"|os\.(system|popen|exec[lvpe]+|spawn[lvpe]+|posix_spawnp?|startfile)"
)
INTERPRETER = re.compile(r"(.*/)?python[\d.]*(\.exe)?")
SHELLS = {"sh", "bash", "dash"}
IN_CONTAINERS = "emulation/testbeds/docker.py"  # the shell is that of the image


def starts_of_python(text: str, where: str = "") -> list[str]:
    """Return the places in a module's text that start Python, or look a program up, without ``STARTS``."""
    tree = ast.parse(text)
    keywords = {id(word.value) for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords}
    places = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Attribute) and FORBIDDEN_CALLS.fullmatch(ast.unparse(node)):
            places.append(f"{line}: {ast.unparse(node)}")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module), *(f"{node.module}.{name}" for name in names)]
            places += [f"{line}: import {name}" for name in names if name in FORBIDDEN_MODULES]
        elif isinstance(node, ast.Attribute) and node.attr == "python" and id(node) not in keywords:
            places.append(f"{line}: {ast.unparse(node)}, which is no argument python=…")
        elif isinstance(node, ast.keyword) and node.arg == "shell":
            places.append(f"{line}: shell=…")
        elif isinstance(node, ast.List | ast.Tuple) and len(node.elts) > 1 and isinstance(node.elts[0], ast.Constant):
            first = str(node.elts[0].value)
            if INTERPRETER.fullmatch(first) or (first in SHELLS and where != IN_CONTAINERS):
                places.append(f"{line}: {first!r}")
    return places


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_is_started_in_one_module(path: Path) -> None:
    """A start elsewhere may import or run a file of another user in the working directory."""
    where = str(path.relative_to(ROOT))
    if where != STARTS:
        assert starts_of_python(path.read_text(encoding="utf-8"), where) == [], f"use {STARTS}"


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nargv = [sys.executable, '-m', 'thalweg']",
        "from multiprocessing import get_context",
        "from concurrent.futures import ProcessPoolExecutor",
        "import os\nos.execvp('x', ['x'])",
        "import shutil\nshutil.which('unshare')",
        "subprocess.run(['python3', '-m', 'thalweg'])",
        "bed.run(host, [bed.python, '-m', 'x'])",
        "subprocess.run('ls', shell=True)",
        "subprocess.run(['sh', '-c', 'ls'])",
    ],
)
def test_every_other_start_of_python_is_found(text: str) -> None:
    assert len(starts_of_python(text)) == 1


SCRIPTS = sorted(
    path
    for path in (ROOT / "Makefile", ROOT / "Dockerfile", *(ROOT / ".ci").rglob("*"), *(ROOT / "docs").rglob("*.py"))
    if path.is_file()
)
UNSAFE = re.compile(r"""(python3?"?|\(PYTHON\)|executable,)\s+("?)-[mc]\b""")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_scripts_start_python_without_the_working_directory(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if UNSAFE.search(line)] == [], "write python -P -m, or python -I -c"


def test_unsafe_lines_of_scripts_are_found() -> None:
    unsafe = ["python3 -c 'x'", '"$venv/bin/python" -m pip', "$(PYTHON) -m venv", 'argv = [sys.executable, "-m", "x"]']
    safe = ["python3 -I -c 'x'", '"$python" -P -m pip', "$(PYTHON) -I -m venv", 'argv = [sys.executable, "-P", "-m"]']
    assert [bool(UNSAFE.search(line)) for line in (*unsafe, *safe)] == [True] * 4 + [False] * 4


# --- files that users name --------------------------------------------------------------------------

READS_OWN = {  # files of the kernel, of Thalweg itself, or that this process has just made
    "emulation/containers/image.py", "emulation/supervisor/client.py", "emulation/supervisor/processes.py",
    "emulation/uml/files.py", "emulation/uml/keeper.py", "emulation/uml/registers.py", "emulation/uml/system.py",
    "benchmarks/attack.py", "benchmarks/contention.py", "experiments/records/executors.py",
    "experiments/records/spark.py",
    "experiments/papers/pietzuch2006/running/testbed.py", "experiments/runs/processes.py",
    "middleware/platform/processes.py",
}  # fmt: skip
WRITES = re.compile(r"[wax]b?\+?|wb\+")


def plain_reads(text: str) -> list[str]:
    """Return the places in a module's text that open a file for reading without ``open_regular``."""
    places = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        modes = [word.value for word in node.args[: 1 + (not owner)] if isinstance(word, ast.Constant)]
        of_files = called == "open" and owner != "tarfile" and (not owner or re.search("path|file|index", owner))
        writes = any(isinstance(mode, str) and WRITES.fullmatch(mode) for mode in modes)
        if (owner and called in ("read_text", "read_bytes")) or (of_files and not writes):
            places.append(f"{node.lineno}: {ast.unparse(node)}")
    return places


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_that_users_name_are_opened_by_one_reader(path: Path) -> None:
    """A read elsewhere may wait without end for a pipe that is named as a file."""
    if str(path.relative_to(ROOT)) not in READS_OWN:
        reads = [line for line in plain_reads(path.read_text(encoding="utf-8")) if "devnull" not in line]
        assert reads == [], "use read_bounded, open_text or open_regular"


def test_plain_reads_are_found() -> None:
    for text in ("open(path)", "path.open('rb')", "Path(x).read_text()", "open(x, 'r')", "file.read_bytes()"):
        assert len(plain_reads(text)) == 1
    for text in ("open(path, 'wb')", "path.open('w')", "open_regular(path)", "results.open()", "webbrowser.open(x)"):
        assert plain_reads(text) == []
