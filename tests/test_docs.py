"""The README and the pages under docs/ agree with the code."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import msgspec
import pytest
from command_lines import parse, verbs
from diagrams import DIAGRAMS, draw, main, state_diagram
from hooks import command_line_page, undocumented
from mypy import api

import thalweg
from thalweg.middleware.errors import UsageError
from thalweg.middleware.protocol.frames import PROTOCOL_VERSION
from thalweg.middleware.protocol.limits import CoreConfig, MonitorConfig

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXTS = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY", "STABILITY")), *PAGES]


def python_blocks(text: str) -> list[str]:
    """Return the code of the Python blocks."""
    return re.findall(r"^```python[^\n]*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[str]:
    """Return each ``thalweg …`` on lines of its own, and each within a line that has options or a file."""
    lines = re.sub(r"\\\n\s*", "", text)
    own = re.findall(r"^(?: {4}|[a-z0-9-]*\$ )?(thalweg [a-z].*)$", lines, re.MULTILINE)
    return [*own, *(inline for inline in re.findall(r"`(thalweg [a-z ]+ [^`…]+)`", lines) if "|" not in inline)]


EXAMPLES = [(page, block) for page in TEXTS for block in python_blocks(page.read_text(encoding="utf-8"))]
COMMANDS = list(dict.fromkeys(line for page in TEXTS for line in commands(page.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(("page", "block"), EXAMPLES, ids=lambda part: part.name if isinstance(part, Path) else "")
def test_python_examples_are_valid(page: Path, block: str) -> None:
    exec(compile(block, page.name, "exec"), {"__name__": "example"})


@pytest.mark.long
def test_strict_type_checking_accepts_the_examples_of_applications(tmp_path: Path) -> None:
    names = ("embed-in-an-application", "write-an-operator", "records", "move-operators-yourself")
    pages = {name.replace("-", "_"): ROOT / f"docs/how-to/{name}.md" for name in names}
    files = []
    for name, page in pages.items():
        for number, block in enumerate(python_blocks(page.read_text(encoding="utf-8"))):
            heads = re.findall(r"^ *def .*$", block, re.MULTILINE)
            if heads and all(") -> " in head for head in heads):
                files.append(tmp_path / f"{name}_{number}.py")
                files[-1].write_text(block, encoding="utf-8")
    assert len(files) >= 4
    files.append(ROOT / "docs/examples/cams.py")
    report, _, status = api.run(["--strict", "--config-file", str(ROOT / "pyproject.toml"), *map(str, files)])
    assert status == 0, report


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_in_the_texts_can_be_parsed(line: str) -> None:
    parse(shlex.split(line, comments=True)[1:])


def test_the_texts_have_examples_and_commands() -> None:
    assert len(EXAMPLES) >= 3
    assert {line.split()[1] for line in COMMANDS} >= {"run", "analyze", "testbed", "host", "bench"}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def defined(path: Path) -> set[str]:
    """Return the qualified names of a file's functions, methods and classes."""
    names: set[str] = set()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(prefix + child.name)
                visit(child, f"{prefix}{child.name}.")

    visit(ast.parse(path.read_text(encoding="utf-8")), "")
    return names


FOLDERS = "middleware|operators|emulation|experiments|benchmarks|tests|docs"
FILE = re.compile(rf"[` ]((?:{FOLDERS})/[\w/]+\.py)(?::([\w.]+))?[` ]")  # in a text or a command
NAMED = {(page.name, *named) for page in TEXTS for named in FILE.findall(page.read_text(encoding="utf-8"))}


@pytest.mark.parametrize(("page", "file", "name"), sorted(NAMED))
def test_files_and_names_in_the_texts_are_in_the_code(page: str, file: str, name: str) -> None:
    assert (ROOT / file).is_file(), f"{page} names {file}"
    assert not name or name in defined(ROOT / file), f"{page} names {name} of {file}"


TOUR = (ROOT / "docs/explanation/tour.md").read_text(encoding="utf-8")
TRIPS = (
    "A partition",
    "A move",
    "A lost host",
    "A query",
    "An option from the command line to its use",
    "A link's change",
    "An event to a plot",
)


def test_the_tour_has_seven_trips() -> None:
    assert tuple(re.findall(r"^## (.+)$", TOUR, re.MULTILINE)) == TRIPS


@pytest.mark.parametrize("trip", TRIPS)
def test_a_trip_names_eight_functions_of_the_code(trip: str) -> None:
    text = TOUR.partition(f"\n## {trip}\n")[2].partition("\n## ")[0]
    named = {(file, name) for file, name in FILE.findall(text) if name}
    missing = sorted(f"{file}:{name}" for file, name in named if name not in defined(ROOT / file))
    assert missing == []
    functions = [name for _, name in named if not name.rpartition(".")[2][0].isupper()]  # the rest are classes
    assert len(functions) >= 8, f"{trip} names {len(functions)} functions"


def shown(name: str, value: float) -> str:
    """Return a limit's value as docs/reference/limits.md shows it: ``1,000``, ``0.5 s``, ``64 MiB``."""
    if name.endswith("_bytes"):
        return f"{value / 2**20:,g} MiB" if value >= 2**20 else f"{value / 2**10:,g} KiB"
    return f"{value:,g} s" if name.endswith("_s") else f"{value:,g}"


LIMITS = [field for field in msgspec.structs.fields(CoreConfig) if field.name not in ("monitor", "capacity")]


def test_the_texts_name_the_version_of_the_protocol_that_the_code_speaks() -> None:
    texts = " ".join(page.read_text(encoding="utf-8") for page in PAGES)
    versions = re.findall(r"speaks? version (\d+)", texts)
    assert len(versions) >= 3
    assert {*versions} == {str(PROTOCOL_VERSION)}


@pytest.mark.parametrize("field", LIMITS, ids=lambda field: field.name)
def test_every_limit_has_a_row_in_the_reference(field: msgspec.structs.FieldInfo) -> None:
    text = (ROOT / "docs/reference/limits.md").read_text(encoding="utf-8")
    row = f"| `{field.name}` | {shown(field.name, field.default)} | "
    assert row in text, f"docs/reference/limits.md lacks a row that begins with {row!r}"


def test_every_option_is_on_a_page_that_is_written_by_hand() -> None:
    """Options of benchmarks are on help pages alone."""
    texts = " ".join(page.read_text(encoding="utf-8") for page in PAGES)
    options = [
        (words, [name for name in (*parameter.opts, *parameter.secondary_opts) if name.startswith("--")])
        for words, command in verbs()
        for parameter in command.params
        if words and words[0] != "bench" and not parameter.hidden
    ]
    unnamed = [
        f"{' '.join(words)} {names[0]}"
        for words, names in options
        if names and not any(re.search(rf"{name}(?![\w-])", texts) for name in names)
    ]
    assert len(options) > 250
    assert unnamed == []


def test_every_field_of_the_monitor_is_in_the_reference() -> None:
    text = (ROOT / "docs/reference/limits.md").read_text(encoding="utf-8")
    assert [field.name for field in msgspec.structs.fields(MonitorConfig) if f"`{field.name}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_diagrams_are_current(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert draw(text) == text, "run make docs"


def test_every_state_table_is_drawn_on_a_page() -> None:
    drawn = {name for page in PAGES for name in re.findall(r"<!-- diagram: (.*?) -->\n```mermaid", page.read_text())}
    assert drawn == set(DIAGRAMS)


def test_a_diagram_has_every_transition_and_the_final_states() -> None:
    text = state_diagram({("a", "go"): "b", ("b", "back"): "a", ("b", "stop"): "c"}, "a")
    lines = [line.strip() for line in text.splitlines()]
    assert lines == ["stateDiagram-v2", "[*] --> a", "a --> b: go", "b --> a: back", "b --> c: stop", "c --> [*]"]


def test_diagrams_are_drawn_in_place_and_the_rest_of_a_page_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- diagram: member -->\nstale\n<!-- end of diagram -->\nafter\n")
    assert main([str(page)]) == 0
    text = page.read_text()
    assert text.startswith("before\n<!-- diagram: member -->\n```mermaid\nstateDiagram-v2\n    [*] --> free\n")
    assert text.endswith("```\n<!-- end of diagram -->\nafter\n")
    assert draw(text) == text


def test_an_unknown_diagram_is_an_error_of_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- diagram: nonsense -->\n<!-- end of diagram -->\n")
    with pytest.raises(UsageError, match="there is no diagram 'nonsense'; there are node, leaving"):
        draw(page.read_text())
    assert main([str(page)]) == 2
    assert capsys.readouterr().err.startswith(f"{page}: there is no diagram 'nonsense'")


def test_every_public_name_is_documented() -> None:
    shown = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/reference/api").glob("*.md"))
    assert [name for name in thalweg.__all__ if f"::: thalweg.{name}\n" not in shown] == []
    assert undocumented() == []


def test_the_page_of_the_command_line_has_every_verb() -> None:
    page = command_line_page()
    for words, _ in verbs():
        assert f"# {' '.join(('thalweg', *words))}\n" in page
