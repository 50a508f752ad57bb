"""Parts of HTML pages: templates and tables.

The templates (``templates``: HTML, SVG, CSS and the script) escape whatever they are given but ``Markup``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).parent / "templates"


@cache
def templates(folder: Path = TEMPLATES) -> Environment:
    """Return the templates of a folder, and the common ones."""
    made = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["n"] = coordinate
    return made


def render(template: str, values: Mapping[str, Any], folder: Path = TEMPLATES) -> Markup:
    """Return the text of a template of this folder, or of a common one, with these values."""
    return Markup(templates(folder).get_template(template).render(values))


def coordinate(value: float) -> str:
    """To a tenth."""
    return f"{value:.1f}".removesuffix(".0")


class SheetRow(msgspec.Struct, frozen=True):
    """Texts, each with a class or none; ``dim``: of less weight."""

    cells: list[tuple[Any, str]]
    dim: bool = False


class Sheet(msgspec.Struct, frozen=True):
    """A table. ``heads``: texts, and whether the column has figures, which stand at the right."""

    caption: str
    heads: list[tuple[str, bool]]
    rows: list[SheetRow]


def sheet(caption: str, heads: Sequence[str], rows: Iterable[Sequence[Any]], *, left: int = 1) -> Sheet:
    """A table of texts; ``left``: how many columns have texts, which stand at the left."""
    sides = [(head, i >= left) for i, head in enumerate(heads)]
    return Sheet(caption, sides, [SheetRow([(cell, "") for cell in row]) for row in rows])
