"""Glossary and list of renames: public classes belong to terms, class names are unique, and new names exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from structure import meanings, modules

ROOT = Path(__file__).parents[1]
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
RENAMES = GLOSSARY.with_name("renames.md")
TOP = "middleware."
ROOMS = (TOP, "emulation.", "experiments.", "operators.")


class Entry(NamedTuple):
    """Term with its meaning, and the classes, modules and packages that belong to the term."""

    term: str
    meaning: str
    names: tuple[str, ...]


class Class(NamedTuple):
    """Class of the runtime: the module, below ``middleware``, and the names of the base classes."""

    module: str
    bases: tuple[str, ...]


def entries(text: str) -> list[Entry]:
    """Return the entries of a glossary's tables."""
    rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in text.splitlines() if line.startswith("| ")]
    return [
        Entry(row[0].strip("`"), row[1], tuple(re.findall(r"`([^`]+)`", row[2])) if len(row) > 2 else ())
        for row in rows
        if row[0] != "term"
    ]


def public_classes() -> dict[str, Class]:
    """Return the classes of the runtime by name: public classes, and private classes that may be bases."""
    classes = {}
    for module, path in modules().items():
        if module.startswith(TOP):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    bases = tuple(ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases)
                    classes[node.name] = Class(module.removeprefix(TOP), bases)
    return classes


def words_of(name: str) -> list[str]:
    """Return the words of a term or class name, in the singular and in lower case."""
    parts = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name)
    return [re.sub(r"(?<=[^s])s$", "", re.sub(r"ies$", "y", part.lower())) for part in parts]


def contains(name: str, term: str) -> bool:
    """Return whether a class name contains the words of a term, one after the other."""
    words, sought = words_of(name), words_of(term)
    return any(words[at : at + len(sought)] == sought for at in range(len(words)))


def without_term(classes: dict[str, Class], glossary: list[Entry]) -> list[str]:
    """Return the public classes that neither belong to a term nor derive from a class that belongs to a term."""
    named = {name for entry in glossary for name in entry.names}

    def belongs(name: str) -> bool:
        if name not in classes:
            return False
        module, bases = classes[name]
        packages = {module[:at] for at in range(len(module) + 1) if module[at : at + 1] in ("", ".")}
        own = name in named or not named.isdisjoint(packages) or any(contains(name, entry.term) for entry in glossary)
        return own or any(belongs(base) for base in bases)

    return sorted(name for name in classes if not name.startswith("_") and not belongs(name))


@pytest.fixture(scope="module")
def glossary() -> list[Entry]:
    return entries(GLOSSARY.read_text(encoding="utf-8"))


def test_every_public_class_of_the_runtime_belongs_to_a_term(glossary: list[Entry]) -> None:
    assert without_term(public_classes(), glossary) == [], "add a term to docs/reference/glossary.md, or a class to one"


def test_no_public_class_name_of_the_runtime_has_two_meanings() -> None:
    assert meanings() == {}, "rename all of them but one; docs/reference/renames.md says how the names are chosen"


def test_every_name_in_the_glossary_is_a_class_a_module_or_a_package(glossary: list[Entry]) -> None:
    known = {*public_classes()}
    for module in modules():
        parts = module.removeprefix(TOP).split(".")
        known |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    assert [name for entry in glossary for name in entry.names if name not in known] == []


def renamed(text: str) -> list[tuple[str, str]]:
    """Return pairs of a module and a name, for the new names in the list of renames."""
    places = []
    for title, table in re.findall(r"^## (.+)$((?:\n(?!## ).*)*)", text, re.MULTILINE):
        rows = [re.split(r"\s*\|\s*", line.strip("| ")) for line in table.splitlines() if line.startswith("| `")]
        for row in rows:
            cells = [re.findall(r"`([^`]+)`", cell) for cell in row]
            if title in ("Classes and functions", "Verbs"):
                places += [(module, name) for module in cells[0] for name in cells[2]]
            elif title == "Modules":
                places += [(module, "") for module in cells[1] if module.startswith(ROOMS) and module[-1] != "."]
    return places


def test_every_new_name_is_in_the_module_that_the_list_of_renames_gives() -> None:
    places = renamed(RENAMES.read_text(encoding="utf-8"))
    texts = {name.removeprefix(TOP): path.read_text(encoding="utf-8") for name, path in modules().items()}
    texts |= {module.removesuffix(".__init__"): text for module, text in texts.items()}
    wrong = [
        (module, name)
        for module, name in places
        if not re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", texts.get(module.removeprefix(TOP), ""))
    ]
    assert wrong == []
    assert len(places) > 250


def test_every_term_has_a_single_entry_in_alphabetical_order(glossary: list[Entry]) -> None:
    terms = [entry.term.lower() for entry in glossary]
    assert len({*terms}) == len(terms)
    code = terms[next(at for at, entry in enumerate(glossary) if entry.names) :]
    assert terms == [*sorted(terms[: -len(code)]), *sorted(code)]


def test_a_meaning_is_short(glossary: list[Entry]) -> None:
    long = [entry.term for entry in glossary if not 2 <= len(entry.meaning.split()) <= 50]
    assert long == []


def test_a_class_without_a_term_is_found_and_a_derived_class_is_not() -> None:
    glossary = entries("| term | meaning |\n|---|---|\n| stripe | One tree | `steering` |\n")
    classes = {
        "StripeState": Class("core", ()),
        "Lower": Class("core", ("StripeState",)),
        "Gossip": Class("steering.gossip", ()),
        "Stripling": Class("core", ()),
        "Loose": Class("steerings", ("Struct",)),
    }
    assert without_term(classes, glossary) == ["Loose", "Stripling"]
